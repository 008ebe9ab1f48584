//! The filter of dedup chunks: which chunks it has, and which index queries it avoids.

use std::sync::Arc;

use super::claims::writer;
use super::records::{file_of, register, upload_as, xorb_of};
use super::{Moment, Setup};
use crate::format::ChunkHash;
use crate::service::Server;
use crate::service::access::{Claims, RepoScope};

/// Whether a dedup query finds this chunk.
async fn is_found(server: &Arc<Server>, chunk: ChunkHash) -> bool {
    let all = Claims { repo: RepoScope::All, ..writer("org/a") };
    server.dedup_response(&all, chunk).await.unwrap().is_some()
}

#[tokio::test]
async fn unknown_chunks_are_not_asked_for_and_known_ones_are() {
    let setup = Setup::new().await;
    let server = setup.process();
    // More xorbs than the number of chunks in one page.
    let xorbs: Vec<_> = (0..5).map(|number| xorb_of(&[10 * number, 10 * number + 1])).collect();
    for xorb in &xorbs {
        upload_as(&server, "org/a", xorb).await;
    }
    let first = |at: usize| xorbs[at].xorb().chunk_hashes()[0];
    for xorb in &xorbs[..4] {
        register(&server, "org/a", vec![file_of(xorb, 0, 2, None)], &[]).await;
    }
    let unknown = ChunkHash::from_bytes([7; 32]);
    assert!(!is_found(&server, unknown).await);
    server.load_dedup_filter().await.unwrap();
    for at in 0..4 {
        assert!(is_found(&server, first(at)).await, "{at}");
    }
    setup.faults.arm_at("find_dedup", Moment::Before);
    assert!(!is_found(&server, unknown).await);
    assert!(!is_found(&server, first(4)).await);
    assert_eq!(setup.faults.disarm(), None, "the index was asked");
    // Chunks registered from then on are known.
    register(&server, "org/a", vec![file_of(&xorbs[4], 0, 2, None)], &[]).await;
    assert!(is_found(&server, first(4)).await);
}

#[tokio::test]
async fn incomplete_filter_leaves_the_response_to_the_index() {
    let setup = Setup::new().await;
    let server = setup.process();
    let xorb = xorb_of(&[1, 2]);
    upload_as(&server, "org/a", &xorb).await;
    register(&server, "org/a", vec![file_of(&xorb, 0, 2, None)], &[]).await;
    setup.faults.arm_at("dedup_chunks_after", Moment::Before);
    server.load_dedup_filter().await.unwrap_err();
    setup.faults.disarm();
    assert!(is_found(&server, xorb.xorb().chunk_hashes()[0]).await);
}
