//! The registration log: every registration with new content has a record, and an index that is
//! rebuilt from blobs and records equals the lost one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;

use super::{Moment, Setup};
use crate::blob::BlobStore;
use crate::blob::records::{RecordStore, Seq};
use crate::format::compression::Policy;
use crate::format::shard::{CasChunk, CasInfo, FileInfo, Sha256, Shard, Term, write_upload};
use crate::format::xorb::{BuiltXorb, XorbBuilder};
use crate::format::{ChunkRange, FileHash, RangeHash, XorbHash, merkle};
use crate::index::sqlite::SqliteIndex;
use crate::index::{ArchiveIndex, Collect, FileIndex, FileRecord, Index, RecordIndex, Totals, XorbIndex};
use crate::runtime::clock::Clock;
use crate::runtime::metrics::Metrics;
use crate::service::access::{Claims, RepoScope, Scope};
use crate::service::archive::Watch;
use crate::service::{BodyError, Pruned, Pruning, RebuildError, Rebuilt, RemoveError, Server, Settings, Upload};

pub(super) fn writer(repo: &str) -> Claims {
    let repo = repo.parse::<RepoScope>().unwrap();
    Claims { scope: Scope::Write, repo, subject: None, issued_unix_secs: 0, expires_unix_secs: u64::MAX, user: None }
}

/// A xorb whose chunks are these numbers, so that xorbs can share chunks.
pub(crate) fn xorb_of(chunks: &[u32]) -> BuiltXorb {
    let mut builder = XorbBuilder::new(Policy::Lz4);
    for chunk in chunks {
        builder.push(format!("chunk {chunk} ").repeat(100).as_bytes()).unwrap();
    }
    builder.finish().unwrap()
}

/// A file of some chunks of a xorb.
pub(crate) fn file_of(xorb: &BuiltXorb, start: u32, end: u32, sha256: Option<u8>) -> FileInfo {
    let (verified, chunks) = (xorb.xorb(), ChunkRange::new(start, end).unwrap());
    let inside = start as usize..end as usize;
    let hashes = &verified.chunk_hashes()[inside.clone()];
    let lens: Vec<u64> = verified.layout().chunks().map(|place| place.raw.byte_len()).collect();
    let raw_len = u32::try_from(lens[inside.clone()].iter().sum::<u64>()).unwrap();
    FileInfo {
        hash: merkle::file_hash(hashes.iter().zip(lens[inside].iter().copied())),
        terms: vec![Term { xorb: verified.hash(), chunks, raw_len }],
        range_hashes: Some(vec![RangeHash::of(hashes)]),
        sha256: sha256.map(|byte| Sha256::from_digest([byte; 32])),
    }
}

/// The entry of a xorb in the xorb list of a shard.
pub(super) fn listing(xorb: &BuiltXorb) -> CasInfo {
    let layout = xorb.xorb().layout();
    let narrow = |number: u64| u32::try_from(number).unwrap();
    let chunks = layout.chunks().zip(xorb.xorb().chunk_hashes()).map(|(place, hash)| CasChunk {
        hash: *hash,
        raw_offset: narrow(place.raw.start()),
        raw_len: narrow(place.raw.byte_len()),
        dedup_eligible: false,
    });
    CasInfo { hash: xorb.xorb().hash(), chunks: chunks.collect(), raw_len: narrow(layout.raw_len()) }
}

pub(crate) async fn upload_as(server: &Arc<Server>, repo: &str, xorb: &BuiltXorb) {
    let pieces: Vec<Result<Bytes, BodyError>> = vec![Ok(Bytes::copy_from_slice(xorb.bytes()))];
    let (claims, claimed, body) = (writer(repo), xorb.xorb().hash(), stream::iter(pieces));
    let upload = Upload { claims: &claims, claimed, max_len: 1 << 20, declared_len: None, body };
    server.upload(upload).await.unwrap();
}

pub(crate) async fn register(server: &Arc<Server>, repo: &str, files: Vec<FileInfo>, xorbs: &[&BuiltXorb]) -> bool {
    let xorbs = xorbs.iter().copied().map(listing).collect();
    let shard = write_upload(&Shard { files, xorbs }).unwrap();
    server.register(&writer(repo), shard.into()).await.unwrap().was_new
}

pub(super) async fn remove(server: &Arc<Server>, file: FileHash, repo: Option<&str>) {
    let claims = repo.map_or(Claims::UNRESTRICTED, writer);
    match server.remove_file(&claims, file, None).await {
        Ok(_) | Err(RemoveError::NotFound) => {}
        Err(error) => panic!("{error}"),
    }
    while server.store.index.sweep_removed(server.store.clock.now()).await.unwrap() {}
}

/// Deletes an unreferenced xorb as GC does.
pub(super) async fn delete_xorb(setup: &Setup, hash: XorbHash) -> bool {
    let now = setup.clock.now();
    setup.index.condemn_xorbs(vec![hash], now, now).await.unwrap();
    if setup.index.begin_deletions(vec![hash], now, now).await.unwrap().is_empty() {
        return false;
    }
    setup.blobs.delete(setup.blobs.key_of(hash)).await.unwrap();
    setup.index.forget_xorb(hash).await.unwrap()
}

/// The problems that a rebuild has reported.
#[derive(Debug, Default)]
pub(super) struct Problems(Mutex<Vec<String>>);

impl Watch for Problems {
    fn total(&self, _: u64) {}

    fn position(&self, _: u64) {}

    fn problem(&self, problem: &(dyn std::error::Error + 'static)) {
        self.0.lock().unwrap().push(crate::runtime::telemetry::chain(problem).to_string());
    }
}

/// An index that was rebuilt from blobs and records, and what the rebuild reported.
pub(super) struct New {
    _directory: TempDir,
    pub(super) index: SqliteIndex,
    pub(super) rebuilt: Rebuilt,
    pub(super) problems: Vec<String>,
}

pub(super) async fn rebuild(setup: &Setup) -> Result<New, RebuildError> {
    let directory = tempfile::tempdir().unwrap();
    let index = SqliteIndex::open_unsynced(&directory.path().join("index.sqlite")).await.unwrap();
    let reported = Arc::new(Problems::default());
    let watch: Arc<dyn Watch> = Arc::clone(&reported) as _;
    let rebuilt = setup.process_with(&index).store.rebuild(&watch).await?;
    let problems = reported.0.lock().unwrap().clone();
    Ok(New { _directory: directory, index, rebuilt, problems })
}

impl Setup {
    /// A process over the same blobs and records, and another index.
    pub(super) fn process_with(&self, index: &SqliteIndex) -> Arc<Server> {
        self.process_on(Arc::new(index.clone()))
    }

    pub(super) fn process_on(&self, index: Arc<dyn Index>) -> Arc<Server> {
        let clock: Arc<dyn Clock> = Arc::clone(&self.clock) as _;
        let (blobs, records) = (Arc::new(self.blobs.clone()), Arc::new(self.records.clone()));
        let settings = Settings::over(blobs, records, index, clock, Arc::new(Metrics::new()));
        Server::new(&Settings { upload_count: 4, verify_worker_count: 2, layout_cache_len: 1 << 20, ..settings })
    }

    pub(super) async fn record_seqs(&self) -> Vec<Seq> {
        self.records.list(None).await.unwrap()
    }
}

/// The contents of an index, as far as readers see them.
#[derive(Debug, PartialEq)]
pub(super) struct Said {
    files: Vec<FileRecord>,
    readers: Vec<Vec<(String, bool)>>,
    xorbs: BTreeSet<String>,
    totals: Totals,
    /// For each chunk: whether a dedup query finds it without a domain, and in each of two domains.
    pub(super) dedup: Vec<Vec<bool>>,
}

/// Reads the contents of an index. The dedup queries for these chunks lease their xorbs.
pub(super) async fn said(index: &SqliteIndex, chunks: &[u32]) -> Said {
    let files = index.file_records(None).await.unwrap();
    let mut readers = Vec::new();
    for file in &files {
        readers.push(index.readers_of(file.hash).await.unwrap());
    }
    let xorbs = index.list_xorbs().await.unwrap().iter().map(XorbHash::to_string).collect();
    let mut dedup = Vec::new();
    for chunk in chunks {
        let hash = xorb_of(&[*chunk]).xorb().chunk_hashes()[0];
        let mut told = Vec::new();
        for domain in [None, Some("org"), Some("other")] {
            let lease = super::Timestamp::from_millis(0);
            let hit = index.find_dedup(hash, domain.map(str::to_owned), lease..=lease).await.unwrap();
            told.push(hit.is_some());
        }
        dedup.push(told);
    }
    Said { files, readers, xorbs, totals: index.totals().await.unwrap(), dedup }
}

/// Checks that a rebuilt index has the same contents as the current one.
pub(super) async fn check_same(setup: &Setup, case: &str) {
    let chunks: Vec<u32> = (0..20).collect();
    let new = rebuild(setup).await.unwrap();
    assert_eq!(new.problems, [""; 0], "{case}");
    assert!(!new.rebuilt.has_problems());
    assert_eq!(said(&new.index, &chunks).await, said(&setup.index, &chunks).await, "{case}");
}

#[tokio::test]
async fn rebuilt_index_has_the_same_contents() {
    let setup = Setup::new().await;
    let server = setup.process();
    let (a, b) = (xorb_of(&[0, 1, 2, 3]), xorb_of(&[9, 1, 2, 3]));
    upload_as(&server, "org/a", &a).await;
    upload_as(&server, "other/b", &b).await;
    // The same file is registered with other xorbs, at other times, by several repositories. Its
    // first terms and its first time stay.
    register(&server, "org/a", vec![file_of(&a, 1, 4, Some(1)), file_of(&a, 0, 2, None)], &[&a]).await;
    setup.clock.advance(Duration::from_secs(5));
    register(&server, "other/b", vec![file_of(&b, 1, 4, None), file_of(&b, 0, 1, None)], &[&b]).await;
    register(&server, "*", vec![file_of(&b, 1, 4, Some(1))], &[&b]).await;
    register(&server, "org/c", vec![file_of(&a, 0, 4, None)], &[]).await;
    check_same(&setup, "as it was registered").await;

    // The first repository removes the file; its terms stay, since other repositories have it.
    setup.clock.advance(Duration::from_secs(5));
    remove(&server, file_of(&a, 1, 4, None).hash, Some("org/a")).await;
    check_same(&setup, "one claim less").await;
    remove(&server, file_of(&a, 0, 2, None).hash, None).await;
    remove(&server, file_of(&a, 0, 4, None).hash, Some("org/c")).await;
    check_same(&setup, "files less").await;
    // A removed file is registered again, later and with a sha256.
    setup.clock.advance(Duration::from_secs(5));
    register(&server, "org/a", vec![file_of(&a, 0, 2, Some(3))], &[]).await;
    check_same(&setup, "a file more").await;
    remove(&server, file_of(&a, 1, 4, None).hash, None).await;
    register(&server, "other/b", vec![file_of(&b, 1, 4, None)], &[]).await;
    check_same(&setup, "again by other terms").await;
}

#[tokio::test]
async fn registrations_of_deleted_xorbs_cost_no_file() {
    let setup = Setup::new().await;
    let server = setup.process();
    let (a, b) = (xorb_of(&[0, 1, 2]), xorb_of(&[9, 0, 1, 2]));
    upload_as(&server, "org/a", &a).await;
    upload_as(&server, "other/b", &b).await;
    let file = file_of(&a, 0, 3, None).hash;
    register(&server, "org/a", vec![file_of(&a, 0, 3, None)], &[&a]).await;
    register(&server, "other/b", vec![file_of(&b, 1, 4, None)], &[&b]).await;
    // No file refers to `b`, because the file has the terms of its first registration.
    setup.clock.advance(Duration::from_secs(1));
    assert!(delete_xorb(&setup, b.xorb().hash()).await);
    check_same(&setup, "the second one by a xorb that is gone").await;
    // The file is removed and its xorb is deleted. Then the file is registered with the other xorb.
    remove(&server, file, None).await;
    setup.clock.advance(Duration::from_secs(1));
    assert!(delete_xorb(&setup, a.xorb().hash()).await);
    check_same(&setup, "nothing").await;
    let server = setup.process();
    upload_as(&server, "other/b", &b).await;
    register(&server, "other/b", vec![file_of(&b, 1, 4, None)], &[]).await;
    check_same(&setup, "by the second one alone").await;
}

#[tokio::test]
async fn new_terms_make_the_file_even_if_old_xorbs_are_deleted() {
    let setup = Setup::new().await;
    let server = setup.process();
    let (old, new) = (xorb_of(&[0, 1, 2, 3]), xorb_of(&[1, 2]));
    upload_as(&server, "org/a", &old).await;
    let file = file_of(&old, 1, 3, None);
    register(&server, "org/a", vec![file.clone()], &[&old]).await;
    setup.clock.advance(Duration::from_secs(5));
    register(&server, "other/b", vec![file.clone()], &[&old]).await;
    upload_as(&server, "*", &new).await;
    let switched = FileInfo { hash: file.hash, ..file_of(&new, 0, 2, None) };
    assert_eq!(switched.hash, file_of(&new, 0, 2, None).hash);
    let appended = server
        .store
        .append_terms(&Shard { files: vec![switched.clone()], xorbs: Vec::new() }, Vec::new())
        .await
        .unwrap();
    appended.retain();
    setup.blobs.delete(setup.blobs.key_of(old.xorb().hash())).await.unwrap();
    let made = rebuild(&setup).await.unwrap();
    assert_eq!(made.problems, [""; 0]);
    let before = setup.index.file_records(None).await.unwrap();
    let after = made.index.file_records(None).await.unwrap();
    assert_eq!(after[0].terms, switched.terms);
    assert_eq!((&after[0].repos, after[0].since), (&before[0].repos, before[0].since));
    // The other way round, as after a crash before the switch: the old xorb exists, and the new one
    // was collected.
    upload_as(&setup.process_with(&made.index), "org/a", &old).await;
    setup.blobs.delete(setup.blobs.key_of(new.xorb().hash())).await.unwrap();
    let made = rebuild(&setup).await.unwrap();
    assert_eq!((made.problems.len(), made.index.file_records(None).await.unwrap()[0].terms.clone()), (0, file.terms));
}

#[tokio::test]
async fn file_of_a_missing_xorb_is_left_out_until_it_is_back() {
    let setup = Setup::new().await;
    let server = setup.process();
    let (a, b) = (xorb_of(&[0, 1, 2]), xorb_of(&[5, 6]));
    upload_as(&server, "org/a", &a).await;
    upload_as(&server, "org/a", &b).await;
    register(&server, "org/a", vec![file_of(&a, 0, 3, None), file_of(&b, 0, 2, None)], &[&a, &b]).await;
    register(&server, "other/b", vec![file_of(&a, 0, 3, None)], &[]).await;
    // Every way in which a blob can be damaged.
    let (key, bytes) = (setup.blobs.key_of(a.xorb().hash()), a.bytes().to_vec());
    let mut altered = bytes.clone();
    altered[20] ^= 1;
    let longer = [bytes.clone(), bytes.clone()].concat();
    for (case, blob) in
        [("altered", altered), ("short", bytes[..20].to_vec()), ("empty", Vec::new()), ("longer", longer)]
    {
        setup.blobs.damage(key, blob);
        let new = rebuild(&setup).await.unwrap();
        assert_eq!((new.rebuilt.damaged_xorb_count, new.rebuilt.left_out_count), (1, 2), "{case}: {:?}", new.problems);
        assert!(new.problems.iter().any(|problem| problem.contains(&a.xorb().hash().to_string())), "{case}");
        let files = new.index.file_records(None).await.unwrap();
        assert_eq!(files.iter().map(|file| file.hash).collect::<Vec<_>>(), [file_of(&b, 0, 2, None).hash], "{case}");
    }
    setup.blobs.delete(key).await.unwrap();
    assert_eq!(rebuild(&setup).await.unwrap().rebuilt.left_out_count, 2);
    setup.blobs.damage(key, bytes);
    check_same(&setup, "healed").await;
    // Another xorb with the same chunks repairs the file, for every repository that had registered
    // it.
    setup.blobs.delete(key).await.unwrap();
    let c = xorb_of(&[9, 0, 1, 2]);
    upload_as(&server, "third/c", &c).await;
    register(&server, "third/c", vec![file_of(&c, 1, 4, None)], &[&c]).await;
    let new = rebuild(&setup).await.unwrap();
    assert_eq!(new.problems, [""; 0]);
    let files = new.index.file_records(None).await.unwrap();
    let found = files.iter().find(|file| file.hash == file_of(&a, 0, 3, None).hash).unwrap();
    assert_eq!(found.repos, ["org/a", "other/b", "third/c"]);
}

#[tokio::test]
async fn damaged_record_is_reported_and_not_applied() {
    let setup = Setup::new().await;
    let server = setup.process();
    let a = xorb_of(&[0, 1, 2]);
    upload_as(&server, "org/a", &a).await;
    for end in 1..=3 {
        register(&server, "org/a", vec![file_of(&a, 0, end, None)], &[&a]).await;
    }
    let seqs = setup.record_seqs().await;
    let record = setup.records.read(seqs[1]).await.unwrap().unwrap();
    let mut cases: Vec<Vec<u8>> = (0..record.len()).step_by(97).map(|len| record[..len].to_vec()).collect();
    cases.extend((0..record.len()).step_by(89).map(|at| {
        let mut altered = record.to_vec();
        altered[at] ^= 1 << (at % 8);
        altered
    }));
    assert!(cases.len() > 10);
    for case in cases {
        setup.records.damage(seqs[1], case.clone());
        let new = rebuild(&setup).await.unwrap();
        assert_eq!((new.rebuilt.record_count, new.rebuilt.damaged_record_count), (2, 1), "{case:?}");
        assert!(new.problems[0].contains(&seqs[1].to_string()), "{:?}", new.problems);
        assert_eq!(new.index.file_records(None).await.unwrap().len(), 2);
    }
}

#[tokio::test]
async fn known_or_refused_registration_leaves_no_record() {
    let setup = Setup::new().await;
    let server = setup.process();
    let a = xorb_of(&[0, 1, 2]);
    upload_as(&server, "org/a", &a).await;
    let file = |sha256| vec![file_of(&a, 0, 3, sha256)];
    assert!(register(&server, "org/a", file(None), &[&a]).await);
    assert_eq!(setup.record_seqs().await.len(), 1);
    for _ in 0..3 {
        assert!(!register(&server, "org/a", file(None), &[&a]).await);
    }
    assert_eq!(setup.record_seqs().await.len(), 1);
    // A new sha256 claim is recorded once.
    for _ in 0..2 {
        register(&server, "org/a", file(Some(1)), &[]).await;
        assert_eq!(setup.record_seqs().await.len(), 2);
    }
    // Two registrations are refused: one names a missing xorb, and one claims another sha256 for a
    // file that cannot be read.
    let shard = |sha256| write_upload(&Shard { files: file(sha256), xorbs: Vec::new() }).unwrap();
    let missing = file_of(&xorb_of(&[7, 8]), 0, 2, None);
    let missing = write_upload(&Shard { files: vec![missing], xorbs: Vec::new() }).unwrap();
    server.register(&writer("org/a"), missing.into()).await.unwrap_err();
    setup.blobs.delete(setup.blobs.key_of(a.xorb().hash())).await.unwrap();
    server.register(&writer("org/a"), shard(Some(2)).into()).await.unwrap_err();
    assert_eq!(setup.record_seqs().await.len(), 2);
}

/// A registration with a fault in the `n`-th operation; returns whether there was one.
async fn check_registration_with_fault(n: usize, moment: Moment) -> bool {
    let setup = Setup::new().await;
    let server = setup.process();
    let a = xorb_of(&[0, 1, 2]);
    upload_as(&server, "org/a", &a).await;
    setup.faults.arm(n, moment);
    let shard = write_upload(&Shard { files: vec![file_of(&a, 0, 3, Some(1))], xorbs: vec![listing(&a)] }).unwrap();
    let result = server.register(&writer("org/a"), shard.clone().into()).await;
    let Some(failed) = setup.faults.disarm() else { return false };
    let case = format!("operation {n} ({failed}) failed {moment:?}: {result:?}");
    let before = setup.index.file_records(None).await.unwrap();
    let new = rebuild(&setup).await.unwrap();
    assert_eq!(new.problems, [""; 0], "{case}");
    let after = new.index.file_records(None).await.unwrap();
    if result.is_ok() || !before.is_empty() {
        assert_eq!(after, before, "{case}: an acknowledged or visible file is lost");
    }
    assert!(after.len() <= 1, "{case}");
    // The registration can be repeated, and then the rebuilt index has the same contents.
    server.register(&writer("org/a"), shard.clone().into()).await.unwrap();
    check_same(&setup, &case).await;
    let count = setup.record_seqs().await.len();
    server.register(&writer("org/a"), shard.into()).await.unwrap();
    assert_eq!(setup.record_seqs().await.len(), count, "{case}: the log grows");
    true
}

/// A rebuilt index has the whole registration or nothing of it.
#[tokio::test]
async fn registration_with_nth_failure_is_absent_or_whole_rebuilt() {
    for moment in [Moment::Before, Moment::After] {
        let mut n = 0;
        while check_registration_with_fault(n, moment).await {
            n += 1;
        }
        assert!(n > 3, "a registration has more than {n} operations that can fail");
    }
}

/// A removal with a fault in the `n`-th operation; returns whether there was one.
async fn check_removal_with_fault(n: usize, moment: Moment) -> bool {
    let setup = Setup::new().await;
    let server = setup.process();
    let a = xorb_of(&[0, 1, 2]);
    upload_as(&server, "org/a", &a).await;
    for repo in ["org/a", "org/b"] {
        register(&server, repo, vec![file_of(&a, 0, 3, None)], &[&a]).await;
    }
    let file = file_of(&a, 0, 3, None).hash;
    setup.faults.arm(n, moment);
    let result = server.remove_file(&writer("org/a"), file, None).await;
    let Some(failed) = setup.faults.disarm() else { return false };
    let case = format!("operation {n} ({failed}) failed {moment:?}: {result:?}");
    let readers = async |index: &SqliteIndex| index.readers_of(file).await.unwrap();
    let (before, after) = (readers(&setup.index).await, readers(&rebuild(&setup).await.unwrap().index).await);
    if result.is_ok() || before.len() == 1 {
        assert_eq!(after, [("org/b".to_owned(), false)], "{case}: the removed claim is back");
    }
    assert!(after.contains(&("org/b".to_owned(), false)), "{case}: the claim of another repository was removed");
    remove(&server, file, Some("org/a")).await;
    check_same(&setup, &case).await;
    // The removal of a missing file leaves no record.
    let count = setup.record_seqs().await.len();
    assert!(matches!(server.remove_file(&writer("org/a"), file, None).await, Err(RemoveError::NotFound)), "{case}");
    assert_eq!(setup.record_seqs().await.len(), count, "{case}");
    true
}

/// If a removal was acknowledged, a rebuilt index does not have the claim.
#[tokio::test]
async fn removal_with_nth_failure_is_done_or_not_in_a_rebuild() {
    for moment in [Moment::Before, Moment::After] {
        let mut n = 0;
        while check_removal_with_fault(n, moment).await {
            n += 1;
        }
        assert!(n > 2, "a removal has more than {n} operations that can fail");
    }
}

/// A store whose files were registered by a version without records.
async fn without_records() -> Setup {
    let mut setup = Setup::new().await;
    let server = setup.process();
    let (a, b) = (xorb_of(&[0, 1, 2, 3]), xorb_of(&[9, 1, 2, 3]));
    upload_as(&server, "org/a", &a).await;
    upload_as(&server, "other/b", &b).await;
    register(&server, "org/a", vec![file_of(&a, 1, 4, Some(1)), file_of(&a, 0, 2, None)], &[&a]).await;
    setup.clock.advance(Duration::from_secs(5));
    register(&server, "other/b", vec![file_of(&b, 1, 4, None), file_of(&b, 0, 1, Some(2))], &[&b]).await;
    register(&server, "*", vec![file_of(&b, 1, 4, Some(1))], &[&b]).await;
    setup.records = Default::default();
    setup
}

#[tokio::test]
async fn files_without_records_get_them_from_the_index_once() {
    let setup = without_records().await;
    let server = setup.process();
    assert_eq!(server.store.complete_records().await.unwrap(), 3);
    let count = setup.record_seqs().await.len();
    // Repositories with and without a sha256 claim are distinguished.
    assert!((1..=5).contains(&count), "{count} records");
    let files = async |index: &SqliteIndex| {
        let files = index.file_records(None).await.unwrap();
        let mut readers = Vec::new();
        for file in &files {
            readers.push(index.readers_of(file.hash).await.unwrap());
        }
        (files, readers, index.totals().await.unwrap())
    };
    let new = rebuild(&setup).await.unwrap();
    assert_eq!(new.problems, [""; 0]);
    assert_eq!(files(&new.index).await, files(&setup.index).await);
    assert_eq!(setup.process().store.complete_records().await.unwrap(), 0);
    assert_eq!(setup.record_seqs().await.len(), count);
}

#[tokio::test]
async fn writing_index_records_resumes_after_any_failure() {
    for moment in [Moment::Before, Moment::After] {
        for n in 0.. {
            let setup = without_records().await;
            setup.faults.arm(n, moment);
            let result = setup.process().store.complete_records().await;
            if setup.faults.disarm().is_none() {
                assert!(n > 5, "only {n} operations");
                break;
            }
            result.unwrap_err();
            setup.process().store.complete_records().await.unwrap();
            let new = rebuild(&setup).await.unwrap();
            let (after, before) = (new.index.file_records(None).await, setup.index.file_records(None).await);
            assert_eq!(after.unwrap(), before.unwrap(), "operation {n} {moment:?}");
        }
    }
}

pub(super) async fn prune(setup: &Setup, count: usize) -> Pruned {
    let (server, mut pruning) = (setup.process(), Pruning::default());
    loop {
        if let Some(pruned) = server.store.prune_records(&mut pruning, count).await.unwrap() {
            return pruned;
        }
    }
}

/// Pruning does not change a rebuilt index.
#[tokio::test]
async fn pruning_removes_obsolete_records_only() {
    let seed = std::env::var("ZORB_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("ZORB_TEST_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let setup = Setup::new().await;
    let xorbs: Vec<BuiltXorb> = (0..4).map(|first| xorb_of(&[first, 10, 11, 12])).collect();
    let (repos, chunks): (_, Vec<u32>) = (["org/a", "org/b", "org/c"], (0..13).collect());
    let mut pruned_count = 0;
    for round in 0..12 {
        for _ in 0..8 {
            let server = setup.process();
            setup.clock.advance(Duration::from_secs(3600));
            let (xorb, repo) = (xorbs.choose(&mut rng).unwrap(), *repos.choose(&mut rng).unwrap());
            let (start, end) = *[(0, 2), (1, 4), (1, 3)].choose(&mut rng).unwrap();
            let file = file_of(xorb, start, end, None);
            match rng.random_range(0..10) {
                0..4 => {
                    upload_as(&server, repo, xorb).await;
                    register(&server, repo, vec![file], &[xorb]).await;
                }
                4..6 => remove(&server, file.hash, Some(repo)).await,
                6..8 => remove(&server, file.hash, None).await,
                _ => drop(delete_xorb(&setup, xorb.xorb().hash()).await),
            }
        }
        if round % 4 == 3 {
            // Remove all files and delete all xorbs, so that nearly all records are obsolete.
            for file in setup.index.file_records(None).await.unwrap() {
                remove(&setup.process(), file.hash, None).await;
            }
            setup.clock.advance(Duration::from_secs(48 * 3600));
            for xorb in &xorbs {
                delete_xorb(&setup, xorb.xorb().hash()).await;
            }
        }
        let before = rebuild(&setup).await.unwrap();
        let live = said(&setup.index, &chunks).await;
        let pruned = prune(&setup, rng.random_range(1..20)).await;
        pruned_count += pruned.registration_count + pruned.removal_count;
        let after = rebuild(&setup).await.unwrap();
        let (before, after) = (said(&before.index, &chunks).await, said(&after.index, &chunks).await);
        // Dedup chunks of xorbs that no file needs are lost with the records.
        let is_no_more =
            |(after, before): (&Vec<bool>, &Vec<bool>)| after.iter().zip(before).all(|(after, before)| after <= before);
        assert!(after.dedup.iter().zip(&before.dedup).all(is_no_more), "round {round}");
        let before = Said { dedup: after.dedup.clone(), ..before };
        assert_eq!(before, after, "round {round}, {pruned:?}");
        assert_eq!(Said { dedup: Vec::new(), ..live }, Said { dedup: Vec::new(), ..after }, "round {round}");
        if round % 4 == 3 {
            // The last record that the index has applied stays, because a start checks that it
            // exists.
            let last = setup.index.store_mark().await.unwrap().last_record;
            assert_eq!(setup.record_seqs().await, [Seq::new(last.unwrap())], "round {round}");
        }
    }
    assert!(pruned_count > 10, "{pruned_count}");
}

#[tokio::test]
async fn lost_index_does_not_cost_records_that_rebuild_it() {
    let mut setup = Setup::new().await;
    let server = setup.process();
    let a = xorb_of(&[0, 1, 2]);
    upload_as(&server, "org/a", &a).await;
    register(&server, "org/a", vec![file_of(&a, 0, 3, None)], &[&a]).await;
    remove(&server, file_of(&a, 0, 3, None).hash, None).await;
    register(&server, "org/b", vec![file_of(&a, 0, 2, None)], &[&a]).await;
    setup.clock.advance(Duration::from_secs(48 * 3600));
    let (lost, directory) = (setup.index.clone(), tempfile::tempdir().unwrap());
    setup.index = SqliteIndex::open(&directory.path().join("index.sqlite")).await.unwrap();
    // Without the number of the last applied record, no record is obsolete.
    assert_eq!(prune(&setup, 100).await, Pruned::default());
    setup.index = lost;
    check_same(&setup, "after pruning beside an empty index").await;
    // With it, that of the removed file is, although its xorb is stored.
    assert_eq!(prune(&setup, 100).await.registration_count, 1);
    check_same(&setup, "after pruning").await;
}

/// The process died before its transaction: no row has it, and a rebuild makes it.
#[tokio::test]
async fn record_that_no_row_has_stays_while_its_xorb_is_stored() {
    let setup = Setup::new().await;
    let server = setup.process();
    let (a, b) = (xorb_of(&[0, 1, 2]), xorb_of(&[5]));
    upload_as(&server, "org/a", &a).await;
    upload_as(&server, "org/a", &b).await;
    setup.faults.crash_at("register", Moment::Before);
    let shard = write_upload(&Shard { files: vec![file_of(&a, 0, 3, None)], xorbs: Vec::new() }).unwrap();
    server.register(&writer("org/a"), shard.into()).await.unwrap_err();
    assert_eq!(setup.faults.disarm(), Some("register"));
    // A later one is applied, so the index counts the first as considered.
    register(&setup.process(), "org/a", vec![file_of(&b, 0, 1, None)], &[]).await;
    setup.clock.advance(Duration::from_secs(48 * 3600));
    assert_eq!(prune(&setup, 100).await, Pruned::default());
    let new = rebuild(&setup).await.unwrap();
    assert_eq!((new.problems.len(), new.index.file_records(None).await.unwrap().len()), (0, 2));
    assert!(delete_xorb(&setup, a.xorb().hash()).await);
    assert_eq!(prune(&setup, 100).await.registration_count, 1);
}

#[tokio::test]
async fn record_has_no_list_of_xorbs() {
    let setup = Setup::new().await;
    let server = setup.process();
    let many: Vec<u32> = (0..200).collect();
    let xorb = xorb_of(&many);
    upload_as(&server, "org/a", &xorb).await;
    register(&server, "org/a", vec![file_of(&xorb, 0, 3, None)], &[&xorb]).await;
    let [seq] = setup.record_seqs().await[..] else { panic!("one registration") };
    let record = setup.records.read(seq).await.unwrap().unwrap();
    // The list would have 48 bytes for each of 200 chunks.
    assert!(record.len() < 1000, "{} bytes", record.len());
}
