//! Files of many gigabytes, with all rows in the index and no bytes.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::mpsc;
use std::time::Duration;

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
use crate::index::{Index, NewXorb, Ticket};
use crate::runtime::clock::Timestamp;
use crate::runtime::fair::{Busy, Tenant};
use crate::service::access::{Claims, RepoScope, Scope};
use crate::service::files::PLANNED_XORB_COUNT;
use crate::service::{Detail, ReconstructError, StoreError};

/// Raw length of every chunk.
const CHUNK_LEN: u32 = 64 << 10;

/// Chunks of every xorb: 64 MiB.
const CHUNK_COUNT: u32 = 1024;

/// Xorbs of the file: 10 GiB.
const XORB_COUNT: usize = 160;

const EVERYBODY: Claims = Claims {
    scope: Scope::Admin,
    repo: RepoScope::All,
    subject: None,
    issued_unix_secs: 0,
    expires_unix_secs: u64::MAX,
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

/// And prepared for an edit.
#[tokio::test]
async fn ten_gib_file_is_registered_and_planned_without_its_blobs() {
    let setup = Setup::new().await;
    let blobs = WatchedBlobs::new(setup.blobs.clone());
    let cas = setup.process_over(blobs.clone());
    let mut rng = StdRng::seed_from_u64(1);
    let xorbs: Vec<NewXorb> = (0..XORB_COUNT).map(|_| xorb(&mut rng)).collect();
    for xorb in &xorbs {
        publish(&setup, xorb).await;
    }
    let (file, shard) = shard(&xorbs);
    assert!(cas.register(&EVERYBODY, shard.into()).await.unwrap().was_new);
    let len = cas.file_len(&EVERYBODY, file).await.unwrap().unwrap();
    assert_eq!(len, 10 << 30);

    // As a client reads it, window by window: every byte is in the plan of its window, and little
    // else.
    let (mut start, mut term_count) = (0, 0);
    while start < len {
        let range = ByteRange::new(start, start + 256_000_000);
        let found = cas.reconstruct(&EVERYBODY, file, range, Detail::Terms).await.unwrap();
        let planned: u64 = found.plan.file.terms.iter().map(|term| u64::from(term.raw_len)).sum();
        let wanted = 256_000_000.min(len - start);
        assert!(wanted <= planned && planned < wanted + 2 * u64::from(CHUNK_LEN), "{start}: {planned}");
        term_count += found.plan.file.terms.len();
        start += 256_000_000;
    }
    assert!(term_count < 2 * XORB_COUNT, "{term_count}");
    let edit = [ByteRange::new(5 << 30, (5 << 30) + 1).unwrap()];
    let permit = cas.walk_permit(EVERYBODY.tenant()).await.unwrap();
    let windows = cas.chunk_windows(&permit, &EVERYBODY, file, &edit).await.unwrap();
    assert_eq!((windows.total_chunks, windows.gap_verification.len()), (163_840, XORB_COUNT - 1));
    assert_eq!(blobs.call_count(), 0);
}

#[tokio::test]
async fn the_lengths_of_chunks_come_with_ranges_up_to_a_gib() {
    let setup = Setup::new().await;
    let cas = setup.process();
    let xorb = xorb(&mut StdRng::seed_from_u64(2));
    publish(&setup, &xorb).await;
    // The same xorb 17 times: 17/16 GiB. It is listed once.
    let (file, bytes) = shard(&vec![xorb; 17]);
    let mut parsed = parse(&bytes).unwrap();
    parsed.xorbs.truncate(1);
    cas.register(&EVERYBODY, write_upload(&parsed).unwrap().into()).await.unwrap();
    let lens = async |start: u64, end: u64, detail: Detail| {
        cas.reconstruct(&EVERYBODY, file, ByteRange::new(start, end), detail).await.unwrap().chunk_raw_lens
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
    let cas = setup.process();
    let mut rng = StdRng::seed_from_u64(4);
    let mut xorbs: Vec<NewXorb> = (0..PLANNED_XORB_COUNT + 10).map(|_| xorb_of(&mut rng, 2)).collect();
    for xorb in &xorbs {
        publish(&setup, xorb).await;
    }
    // Those of the first run come once more at the end.
    let named = xorbs.len();
    xorbs.extend_from_within(..5);
    let (file, bytes) = shard(&xorbs);
    let mut parsed = parse(&bytes).unwrap();
    parsed.xorbs.truncate(named);
    cas.register(&EVERYBODY, write_upload(&parsed).unwrap().into()).await.unwrap();
    let found = cas.reconstruct(&EVERYBODY, file, None, Detail::Chunks).await.unwrap();
    let terms: Vec<_> = found.plan.file.terms.iter().map(|term| (term.xorb, term.chunks)).collect();
    assert_eq!(terms, xorbs.iter().map(|xorb| (xorb.hash, xorb.layout.whole())).collect::<Vec<_>>());
    let planned: Vec<_> = found.plan.xorbs.iter().map(|xorb| xorb.xorb).collect();
    assert_eq!(planned, xorbs[..named].iter().map(|xorb| xorb.hash).collect::<Vec<_>>());
    assert_eq!(found.chunk_raw_lens, Some(vec![vec![CHUNK_LEN; 2]; xorbs.len()]));
    let batch = cas.reconstruct_all(&EVERYBODY, &[file]).await.unwrap().plan;
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
    setup.process().register(&EVERYBODY, write_upload(&parsed).unwrap().into()).await.unwrap();
    file
}

#[tokio::test]
async fn long_plan_is_computed_elsewhere_and_short_ones_pass_it() {
    let setup = Setup::new().await;
    let cas = setup.process();
    let file = file_of_single_chunks(&setup).await;

    // There is one permit for two workers, and it is taken.
    let (release, released) = mpsc::channel::<()>();
    let taken = cas.computing.start_for(Tenant::SERVER, move || released.recv().is_err()).await;
    let mut long = pin!(cas.reconstruct(&EVERYBODY, file, None, Detail::Terms));
    let is_awaited = async {
        while !cas.computing.is_awaited() {
            yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = is_awaited => {}
        _ = &mut long => panic!("it was computed where it was asked for"),
    }
    let range = ByteRange::new(0, 10 * u64::from(CHUNK_LEN));
    let short = timeout(Duration::from_secs(60), cas.reconstruct(&EVERYBODY, file, range, Detail::Chunks)).await;
    let short = short.expect("it does not wait for that permit").unwrap();
    assert_eq!(short.plan.file.terms.len(), 10);
    drop(release);
    assert!(taken.await);
    assert_eq!(long.await.unwrap().plan.file.terms.len(), 4096);
}

#[tokio::test]
async fn long_plan_holds_response_budget_and_a_short_one_none() {
    let setup = Setup::new().await;
    let cas = setup.process();
    let file = file_of_single_chunks(&setup).await;
    let whole = || cas.reconstruct(&EVERYBODY, file, None, Detail::Terms);
    let mut others = Vec::new();
    while let Ok(budget) = cas.response_budget(4 << 20).await {
        others.push(budget);
    }
    assert_eq!(others.len(), 28, "seven eighths of 128 MiB");
    let refused = whole().await.unwrap_err();
    assert!(matches!(refused, ReconstructError::Store(StoreError::Busy(_))), "{refused:?}");
    let refused = cas.reconstruct_all(&EVERYBODY, &[file]).await.unwrap_err();
    assert!(matches!(refused, ReconstructError::Store(StoreError::Busy(_))), "{refused:?}");
    let range = ByteRange::new(0, 256 * u64::from(CHUNK_LEN));
    let short = cas.reconstruct(&EVERYBODY, file, range, Detail::Chunks).await.unwrap();
    assert_eq!(short.plan.file.terms.len(), 256);
    drop(others);

    let taken = || cas.budgeted_len();
    assert_eq!(taken(), 0);
    let long = whole().await.unwrap();
    assert_eq!(taken(), 4096 << 10);
    let batch = cas.reconstruct_all(&EVERYBODY, &[file]).await.unwrap();
    assert_eq!(taken(), 8192 << 10);
    drop(long);
    drop(batch);
    assert_eq!(taken(), 0);
}

#[tokio::test]
async fn tenant_with_most_of_the_budget_is_refused_and_others_not() {
    let setup = Setup::new().await;
    let cas = setup.process();
    let [greedy, other] = [Tenant::new(1), Tenant::new(2)];
    let budget = async |tenant: Tenant, mib: usize| tenant.doing(cas.response_budget(mib << 20)).await;
    let _most = budget(greedy, 700).await.unwrap();
    let refused = budget(greedy, 200).await.unwrap_err();
    assert!(matches!(refused, StoreError::Busy(Busy { is_above_share: true })), "{refused:?}");
    let _rest = budget(other, 200).await.unwrap();
    let refused = budget(other, 200).await.unwrap_err();
    assert!(matches!(refused, StoreError::Busy(Busy { is_above_share: false })), "{refused:?}");
    // Moderate responses have a budget of their own, and small ones need none.
    let _moderate = budget(other, 4).await.unwrap();
    let _small = cas.response_budget(256 << 10).await.unwrap();
    assert_eq!(cas.budgeted_len(), 904 << 20);
    // Dedup responses take nothing from readers, and the reverse.
    let _chunks = greedy.doing(cas.dedup_budget(90 << 20)).await.unwrap();
    assert!(greedy.doing(cas.dedup_budget(40 << 20)).await.is_err());
    let _moderate = budget(greedy, 4).await.unwrap();
    assert_eq!(cas.budgeted_len(), 998 << 20);
}

#[tokio::test]
async fn response_text_resizes_the_budget_of_its_plan() {
    let setup = Setup::new().await;
    let cas = setup.process();
    let text = async |made_in: usize, len: usize| {
        let budget = cas.response_budget(made_in).await.unwrap();
        let budget = cas.text_budget(budget, len).await.unwrap();
        let taken = cas.budgeted_len();
        drop(budget);
        assert_eq!(cas.budgeted_len(), 0);
        taken
    };
    assert_eq!(text(100 << 20, 20 << 20).await, 20 << 20);
    assert_eq!(text(100 << 20, 1 << 20).await, 1 << 20);
    assert_eq!(text(100 << 20, 1).await, 0);
    assert_eq!(text(0, 1).await, 0);
    assert_eq!(text(0, 1 << 20).await, 1 << 20);
    assert_eq!(text(3 << 20, 5 << 20).await, 5 << 20);
    // No other tenant could have got the budget of the plan.
    let plan = cas.response_budget(1 << 30).await.unwrap();
    let _text = cas.text_budget(plan, 8 << 20).await.unwrap();
}
