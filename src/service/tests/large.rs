//! Files of many gigabytes, which have rows in the index and no blobs. Also the response budgets of
//! their plans.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::yield_now;
use tokio::time::timeout;

use super::Setup;
use super::watched::WatchedBlobs;
use crate::format::compression::Scheme;
use crate::format::shard::{CasChunk, CasInfo, FileInfo, Shard, Term, parse, write_upload};
use crate::format::xorb::LayoutBuilder;
use crate::format::{ByteRange, ChunkHash, ChunkRange, FileHash, RangeHash, XorbHash, merkle};
use crate::index::{NewXorb, Ticket, XorbIndex};
use crate::runtime::clock::Timestamp;
use crate::runtime::fair::{Busy, Tenant};
use crate::service::access::{Claims, RepoScope, Scope};
use crate::service::files::PLANNED_XORB_COUNT;
use crate::service::{BodyError, Detail, ReconstructError, StoreError};

/// Raw length of every chunk.
const CHUNK_LEN: u32 = 64 << 10;

/// Chunks of every xorb: 64 MiB.
const CHUNK_COUNT: u32 = 1024;

/// Xorbs of the file: 10 GiB.
const XORB_COUNT: usize = 160;

const ADMIN: Claims = Claims {
    scope: Scope::Admin,
    repo: RepoScope::All,
    subject: None,
    issued_unix_secs: 0,
    expires_unix_secs: u64::MAX,
    user: None,
};

/// A xorb that was never uploaded.
fn xorb(rng: &mut StdRng) -> NewXorb {
    xorb_of(rng, CHUNK_COUNT)
}

fn xorb_of(rng: &mut StdRng, chunk_count: u32) -> NewXorb {
    let mut layout = LayoutBuilder::new();
    (0..chunk_count).for_each(|_| layout.push(8 + CHUNK_LEN, CHUNK_LEN).unwrap());
    NewXorb {
        hash: XorbHash::from_bytes(rng.random()),
        crc64: rng.random(),
        layout: layout.finish().unwrap(),
        chunk_hashes: (0..chunk_count).map(|_| ChunkHash::from_bytes(rng.random())).collect(),
        schemes: vec![Scheme::None; chunk_count as usize],
        owner: None,
        grant: None,
    }
}

/// The shard of a file that consists of these xorbs.
fn shard(xorbs: &[NewXorb]) -> (FileHash, Vec<u8>) {
    let chunk = |(hash, index): (&ChunkHash, u32)| CasChunk {
        hash: *hash,
        raw_offset: index * CHUNK_LEN,
        raw_len: CHUNK_LEN,
        dedup_eligible: false,
    };
    let raw_len = |xorb: &NewXorb| xorb.layout.chunk_count() * CHUNK_LEN;
    let listed = |xorb: &NewXorb| CasInfo {
        hash: xorb.hash,
        chunks: xorb.chunk_hashes.iter().zip(0..).map(chunk).collect(),
        raw_len: raw_len(xorb),
    };
    let hashes = xorbs.iter().flat_map(|xorb| &xorb.chunk_hashes);
    let hash = merkle::file_hash(hashes.map(|hash| (hash, CHUNK_LEN.into())));
    let term = |xorb: &NewXorb| Term { xorb: xorb.hash, raw_len: raw_len(xorb), chunks: xorb.layout.whole() };
    let terms = xorbs.iter().map(term).collect();
    let range_hashes = Some(xorbs.iter().map(|xorb| RangeHash::of(&xorb.chunk_hashes)).collect());
    let file = FileInfo { hash, terms, range_hashes, sha256: None };
    let mut seen = HashSet::new();
    let listed = xorbs.iter().filter(|xorb| seen.insert(xorb.hash)).map(listed).collect();
    (hash, write_upload(&Shard { files: vec![file], xorbs: listed }).unwrap())
}

async fn publish(setup: &Setup, xorb: &NewXorb) {
    let (ticket, now) = (Ticket::random(), Timestamp::from_millis(0));
    setup.index.stage_xorb(xorb.hash, ticket, now).await.unwrap();
    setup.index.publish_xorb(xorb.clone(), ticket, now).await.unwrap();
}

/// The windows for an edit of the file need no blobs either.
#[tokio::test]
async fn ten_gib_file_is_registered_and_planned_without_its_blobs() {
    let setup = Setup::new().await;
    let blobs = WatchedBlobs::new(setup.blobs.clone());
    let server = setup.process_over(blobs.clone());
    let mut rng = StdRng::seed_from_u64(1);
    let xorbs: Vec<NewXorb> = (0..XORB_COUNT).map(|_| xorb(&mut rng)).collect();
    for xorb in &xorbs {
        publish(&setup, xorb).await;
    }
    let (file, shard) = shard(&xorbs);
    assert!(server.register(&ADMIN, shard.into()).await.unwrap().was_new);
    let len = server.file_len(&ADMIN, file).await.unwrap().unwrap();
    assert_eq!(len, 10 << 30);

    // Plan the file window by window, as a client reads it. Each plan covers its window, with
    // little more at both ends.
    let (mut start, mut term_count) = (0, 0);
    while start < len {
        let range = ByteRange::new(start, start + 256_000_000);
        let found = server.reconstruct(&ADMIN, file, range, Detail::Terms).await.unwrap();
        let planned: u64 = found.plan.file.terms.iter().map(|term| u64::from(term.raw_len)).sum();
        let wanted = 256_000_000.min(len - start);
        assert!(wanted <= planned && planned < wanted + 2 * u64::from(CHUNK_LEN), "{start}: {planned}");
        term_count += found.plan.file.terms.len();
        start += 256_000_000;
    }
    assert!(term_count < 2 * XORB_COUNT, "{term_count}");
    let edit = [ByteRange::new(5 << 30, (5 << 30) + 1).unwrap()];
    let permit = server.walk_permit(ADMIN.tenant()).await.unwrap();
    let windows = server.chunk_windows(&permit, &ADMIN, file, &edit).await.unwrap();
    assert_eq!((windows.total_chunks, windows.gap_verification.len()), (163_840, XORB_COUNT - 1));
    assert_eq!(blobs.call_count(), 0);
}

#[tokio::test]
async fn chunk_lengths_are_returned_for_ranges_up_to_a_gib() {
    let setup = Setup::new().await;
    let server = setup.process();
    let xorb = xorb(&mut StdRng::seed_from_u64(2));
    publish(&setup, &xorb).await;
    // The file has the same xorb 17 times, so it has 17/16 GiB. The shard lists the xorb once.
    let (file, bytes) = shard(&vec![xorb; 17]);
    let mut parsed = parse(&bytes).unwrap();
    parsed.xorbs.truncate(1);
    server.register(&ADMIN, write_upload(&parsed).unwrap().into()).await.unwrap();
    let lens = async |start: u64, end: u64, detail: Detail| {
        server.reconstruct(&ADMIN, file, ByteRange::new(start, end), detail).await.unwrap().chunk_raw_lens
    };
    let (gib, chunk) = (1_u64 << 30, u64::from(CHUNK_LEN));
    assert_eq!(lens(chunk + 1, 2 * chunk + 1, Detail::Chunks).await, Some(vec![vec![CHUNK_LEN; 2]]));
    assert_eq!(lens(7, 7 + gib, Detail::Chunks).await.map(|lens| lens.iter().flatten().count()), Some(16_385));
    assert_eq!(lens(7, 8 + gib, Detail::Chunks).await, None);
    assert_eq!(lens(0, 2 * gib, Detail::Chunks).await, None);
    assert_eq!(lens(0, 1, Detail::Terms).await, None);
}

#[tokio::test]
async fn plan_beyond_a_batch_of_xorbs_has_each_xorb_once() {
    let setup = Setup::new().await;
    let server = setup.process();
    let mut rng = StdRng::seed_from_u64(4);
    let mut xorbs: Vec<NewXorb> = (0..PLANNED_XORB_COUNT + 10).map(|_| xorb_of(&mut rng, 2)).collect();
    for xorb in &xorbs {
        publish(&setup, xorb).await;
    }
    // Xorbs of the first run are named again at the end.
    let named = xorbs.len();
    xorbs.extend_from_within(..5);
    let (file, bytes) = shard(&xorbs);
    let mut parsed = parse(&bytes).unwrap();
    parsed.xorbs.truncate(named);
    server.register(&ADMIN, write_upload(&parsed).unwrap().into()).await.unwrap();
    let found = server.reconstruct(&ADMIN, file, None, Detail::Chunks).await.unwrap();
    let terms: Vec<_> = found.plan.file.terms.iter().map(|term| (term.xorb, term.chunks)).collect();
    assert_eq!(terms, xorbs.iter().map(|xorb| (xorb.hash, xorb.layout.whole())).collect::<Vec<_>>());
    let planned: Vec<_> = found.plan.xorbs.iter().map(|xorb| xorb.xorb).collect();
    assert_eq!(planned, xorbs[..named].iter().map(|xorb| xorb.hash).collect::<Vec<_>>());
    assert_eq!(found.chunk_raw_lens, Some(vec![vec![CHUNK_LEN; 2]; xorbs.len()]));
    let batch = server.reconstruct_all(&ADMIN, &[file]).await.unwrap().plan;
    assert_eq!((batch.files, batch.xorbs), (vec![found.plan.file], found.plan.xorbs));
}

/// Registers a file of 4096 terms, one for every chunk.
async fn file_of_single_chunks(setup: &Setup) -> FileHash {
    let mut rng = StdRng::seed_from_u64(3);
    let xorbs: Vec<NewXorb> = (0..4).map(|_| xorb(&mut rng)).collect();
    for xorb in &xorbs {
        publish(setup, xorb).await;
    }
    let (file, bytes) = shard(&xorbs);
    let mut parsed = parse(&bytes).unwrap();
    let chunks = || xorbs.iter().flat_map(|xorb| xorb.chunk_hashes.iter().zip(0..).map(|chunk| (xorb.hash, chunk)));
    let term = |(xorb, (_, index)): (XorbHash, (_, u32))| {
        let chunks = ChunkRange::new(index, index + 1).unwrap();
        Term { xorb, raw_len: CHUNK_LEN, chunks }
    };
    parsed.files[0].terms = chunks().map(term).collect();
    parsed.files[0].range_hashes = Some(chunks().map(|(_, (hash, _))| RangeHash::of(&[*hash])).collect());
    setup.process().register(&ADMIN, write_upload(&parsed).unwrap().into()).await.unwrap();
    file
}

#[tokio::test]
async fn short_plans_do_not_wait_for_the_computing_pool() {
    let setup = Setup::new().await;
    let server = setup.process();
    let file = file_of_single_chunks(&setup).await;

    // The computing pool has one thread, which is busy.
    let (release, released) = mpsc::channel::<()>();
    let taken = server.computing.start_for(Tenant::SERVER, move || released.recv().is_err()).await;
    let mut long = pin!(server.reconstruct(&ADMIN, file, None, Detail::Terms));
    let is_awaited = async {
        while !server.computing.is_awaited() {
            yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = is_awaited => {}
        _ = &mut long => panic!("the long plan did not wait for the computing pool"),
    }
    let range = ByteRange::new(0, 10 * u64::from(CHUNK_LEN));
    let short = timeout(Duration::from_secs(60), server.reconstruct(&ADMIN, file, range, Detail::Chunks)).await;
    let short = short.expect("the short plan does not wait for the computing pool").unwrap();
    assert_eq!(short.plan.file.terms.len(), 10);
    drop(release);
    assert!(taken.await);
    assert_eq!(long.await.unwrap().plan.file.terms.len(), 4096);
}

#[tokio::test]
async fn long_plan_holds_response_budget_and_a_short_one_none() {
    let setup = Setup::new().await;
    let server = setup.process();
    let file = file_of_single_chunks(&setup).await;
    let whole = || server.reconstruct(&ADMIN, file, None, Detail::Terms);
    let mut others = Vec::new();
    while let Ok(budget) = server.response_budget(4 << 20).await {
        others.push(budget);
    }
    assert_eq!(others.len(), 28, "seven eighths of 128 MiB");
    let refused = whole().await.unwrap_err();
    assert!(matches!(refused, ReconstructError::Store(StoreError::Busy(_))), "{refused:?}");
    let refused = server.reconstruct_all(&ADMIN, &[file]).await.unwrap_err();
    assert!(matches!(refused, ReconstructError::Store(StoreError::Busy(_))), "{refused:?}");
    let range = ByteRange::new(0, 256 * u64::from(CHUNK_LEN));
    let short = server.reconstruct(&ADMIN, file, range, Detail::Chunks).await.unwrap();
    assert_eq!(short.plan.file.terms.len(), 256);
    drop(others);

    let taken = || server.budgeted_len();
    assert_eq!(taken(), 0);
    let long = whole().await.unwrap();
    assert_eq!(taken(), 4096 << 10);
    let batch = server.reconstruct_all(&ADMIN, &[file]).await.unwrap();
    assert_eq!(taken(), 8192 << 10);
    drop(long);
    drop(batch);
    assert_eq!(taken(), 0);
}

#[tokio::test]
async fn tenant_above_its_budget_share_is_refused_others_are_not() {
    let setup = Setup::new().await;
    let server = setup.process();
    let [greedy, other] = [Tenant::new(1), Tenant::new(2)];
    let budget = async |tenant: Tenant, mib: usize| tenant.doing(server.response_budget(mib << 20)).await;
    let _most = budget(greedy, 700).await.unwrap();
    let refused = budget(greedy, 200).await.unwrap_err();
    assert!(matches!(refused, StoreError::Busy(Busy { is_above_share: true })), "{refused:?}");
    let _rest = budget(other, 200).await.unwrap();
    let refused = budget(other, 200).await.unwrap_err();
    assert!(matches!(refused, StoreError::Busy(Busy { is_above_share: false })), "{refused:?}");
    // Moderate responses have a budget of their own, and small ones need none.
    let _moderate = budget(other, 4).await.unwrap();
    let _small = server.response_budget(256 << 10).await.unwrap();
    assert_eq!(server.budgeted_len(), 904 << 20);
    // Dedup responses have another budget than downloads.
    let _chunks = greedy.doing(server.dedup_budget(90 << 20)).await.unwrap();
    assert!(greedy.doing(server.dedup_budget(40 << 20)).await.is_err());
    let _moderate = budget(greedy, 4).await.unwrap();
    assert_eq!(server.budgeted_len(), 998 << 20);
}

#[tokio::test]
async fn response_text_resizes_the_budget_of_its_plan() {
    let setup = Setup::new().await;
    let server = setup.process();
    let text = async |made_in: usize, len: usize| {
        let budget = server.response_budget(made_in).await.unwrap();
        let budget = server.text_budget(budget, len).await.unwrap();
        let taken = server.budgeted_len();
        drop(budget);
        assert_eq!(server.budgeted_len(), 0);
        taken
    };
    assert_eq!(text(100 << 20, 20 << 20).await, 20 << 20);
    assert_eq!(text(100 << 20, 1 << 20).await, 1 << 20);
    assert_eq!(text(100 << 20, 1).await, 0);
    assert_eq!(text(0, 1).await, 0);
    assert_eq!(text(0, 1 << 20).await, 1 << 20);
    assert_eq!(text(3 << 20, 5 << 20).await, 5 << 20);
    // The text takes its budget over from the largest possible plan, so no other response can take
    // it first.
    let plan = server.response_budget(1 << 30).await.unwrap();
    let _text = server.text_budget(plan, 8 << 20).await.unwrap();
}

#[tokio::test]
async fn slow_shard_takes_no_memory_and_small_ones_have_their_own() {
    let setup = Setup::new().await;
    let server = setup.process();
    let (large, small) = (&server.permits.shard_budget, &server.permits.small_shard_budget);
    let body = |len: usize| stream::iter([Ok::<_, BodyError>(Bytes::from(vec![0; len]))]);
    for (declared, budget) in [(80 << 20, large), (1 << 20, small)] {
        let slow = body(300 << 10).chain(stream::pending());
        let mut slow = pin!(server.receive_shard(Tenant::new(1), Some(declared), slow));
        assert!(timeout(Duration::from_millis(100), &mut slow).await.is_err());
        assert_eq!(budget.load(), (0, 0), "{declared} bytes have not arrived");
    }
    let _all = large.enter(Tenant::new(2), u32::MAX).await.unwrap();
    let receive = |len: usize| server.receive_shard(Tenant::new(3), Some(len as u64), body(len));
    let received = timeout(Duration::from_secs(60), receive(1 << 20)).await.unwrap().unwrap();
    assert_eq!(received.bytes.len(), 1 << 20);
    assert!(timeout(Duration::from_millis(100), receive((1 << 20) + 1)).await.is_err(), "it is a large one");
}
