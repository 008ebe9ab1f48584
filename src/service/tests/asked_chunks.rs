//! The filter of deduplication: what it knows, and what it spares the index.

use super::claims::writer;
use super::records::{file_of, register, upload_as, xorb_of};
use super::{Moment, Setup};
use crate::format::ChunkHash;
use crate::service::Cas;
use crate::service::access::{Claims, RepoScope};

async fn is_told(cas: &Cas, chunk: ChunkHash) -> bool {
    let all = Claims { repo: RepoScope::All, ..writer("org/a") };
    cas.dedup_response(&all, chunk).await.unwrap().is_some()
}

#[tokio::test]
async fn unknown_chunks_are_not_asked_for_and_known_ones_are() {
    let setup = Setup::new().await;
    let cas = setup.process();
    // More of them than one page has.
    let xorbs: Vec<_> = (0..5).map(|number| xorb_of(&[10 * number, 10 * number + 1])).collect();
    for xorb in &xorbs {
        upload_as(&cas, "org/a", xorb).await;
    }
    let first = |at: usize| xorbs[at].xorb().chunk_hashes()[0];
    for xorb in &xorbs[..4] {
        register(&cas, "org/a", vec![file_of(xorb, 0, 2, None)], &[]).await;
    }
    let unknown = ChunkHash::from_bytes([7; 32]);
    assert!(!is_told(&cas, unknown).await);
    cas.load_asked_chunks().await.unwrap();
    for at in 0..4 {
        assert!(is_told(&cas, first(at)).await, "{at}");
    }
    setup.faults.arm_at("find_dedup", Moment::Before);
    assert!(!is_told(&cas, unknown).await);
    assert!(!is_told(&cas, first(4)).await);
    assert_eq!(setup.faults.disarm(), None, "the index was asked");
    // Chunks registered from then on are known.
    register(&cas, "org/a", vec![file_of(&xorbs[4], 0, 2, None)], &[]).await;
    assert!(is_told(&cas, first(4)).await);
}

#[tokio::test]
async fn an_incomplete_filter_gives_no_response() {
    let setup = Setup::new().await;
    let cas = setup.process();
    let xorb = xorb_of(&[1, 2]);
    upload_as(&cas, "org/a", &xorb).await;
    register(&cas, "org/a", vec![file_of(&xorb, 0, 2, None)], &[]).await;
    setup.faults.arm_at("dedup_chunks_after", Moment::Before);
    cas.load_asked_chunks().await.unwrap_err();
    setup.faults.disarm();
    assert!(is_told(&cas, xorb.xorb().chunk_hashes()[0]).await);
}
