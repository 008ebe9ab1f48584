//! The unit tests of the service. This file has what they share, and the tests of uploads and
//! recovery: each store operation of an upload fails once.

mod agree;
mod backup;
mod claims;
mod compact;
mod contents;
mod dedup_filter;
mod faults;
mod faults_health;
mod faults_objects;
mod file_bytes;
mod fsck;
mod gc;
mod granted;
mod health;
mod hub;
mod hub_check;
mod hub_deletion;
mod hub_git;
mod hub_many;
mod hub_reading;
mod hub_rename;
mod hub_sweep;
mod large;
mod late;
mod left_records;
#[cfg_attr(
    not(feature = "full-tests"),
    expect(dead_code, unused_imports, reason = "the long runs, and breaking the guards, are in the full lane")
)]
mod model;
mod open_records;
mod possession;
mod quota;
pub(crate) mod records;
mod replace;
mod set_back;
mod shared_workers;
mod unreadable;
mod verbs;
mod watched;
mod whole_files;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{TryStreamExt, stream};
use tempfile::TempDir;

use self::faults::{Faults, FaultyBlobs, FaultyIndex, FaultyRecords, Moment};
use super::access::Claims;
use super::gc as gc_rules;
use super::{BodyError, Form, Quotas, ReadError, Recovered, Server, Settings, Upload, UploadError, Uploaded};
use crate::blob::BlobStore;
use crate::blob::memory::MemoryBlobStore;
use crate::blob::records::memory::MemoryRecordStore;
use crate::format::ByteRange;
use crate::format::compression::Policy;
use crate::format::limits::MAX_XORB_SERIALIZED_LEN;
use crate::format::xorb::{BuiltXorb, XorbBuilder};
use crate::index::sqlite::SqliteIndex;
use crate::index::{ClaimIndex, XorbIndex};
use crate::runtime::clock::{Clock, ManualClock, Timestamp};
use crate::runtime::metrics::Metrics;

/// Blobs and records in memory, and an index in a temporary directory. Faults can be injected into
/// all of them.
struct Setup {
    directory: TempDir,
    faults: Faults,
    blobs: MemoryBlobStore,
    records: MemoryRecordStore,
    index: SqliteIndex,
    clock: Arc<ManualClock>,
}

impl Setup {
    async fn new() -> Self {
        let setup = Self::without_id().await;
        assert!(setup.process().store.agree(true).await.unwrap().is_new);
        setup
    }

    /// Before a first process has given the stores their common id.
    async fn without_id() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let index = SqliteIndex::open(&directory.path().join("index.sqlite")).await.unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_700_000_000_000)));
        Self {
            directory,
            faults: Faults::default(),
            blobs: MemoryBlobStore::new(),
            records: MemoryRecordStore::new(),
            index,
            clock,
        }
    }

    /// A new index without rows.
    async fn empty_index(&self) -> SqliteIndex {
        SqliteIndex::open(&self.directory.path().join("empty.sqlite")).await.unwrap()
    }

    /// The number of unverified claims in the index.
    async fn index_claims(&self) -> usize {
        self.index.unverified_claims(0..u64::MAX, None, u32::MAX).await.unwrap().len()
    }

    /// A new process over these stores, as a restart would start it.
    fn process(&self) -> Arc<Server> {
        self.process_over(self.faulty_blobs())
    }

    /// A new process with this blob store instead.
    fn process_over(&self, blobs: impl BlobStore) -> Arc<Server> {
        Server::new(&self.settings(blobs))
    }

    fn settings(&self, blobs: impl BlobStore) -> Settings {
        let faults = self.faults.of_process();
        let index = FaultyIndex::new(&self.index, &faults);
        let clock: Arc<dyn Clock> = Arc::clone(&self.clock) as _;
        let records = FaultyRecords { inner: self.records.clone(), faults };
        let (blobs, records, index) = (Arc::new(blobs), Arc::new(records), Arc::new(index));
        let settings = Settings::over(blobs, records, index, clock, Arc::new(Metrics::new()));
        Settings { upload_count: 4, verify_worker_count: 2, layout_cache_len: 1 << 20, ..settings }
    }

    /// A new process with these quotas.
    fn process_limited(&self, quotas: Quotas) -> Arc<Server> {
        Server::new(&Settings { quotas, ..self.settings(self.faulty_blobs()) })
    }

    fn faulty_blobs(&self) -> FaultyBlobs {
        FaultyBlobs { inner: self.blobs.clone(), faults: self.faults.of_process() }
    }
}

/// The policy with the shortest permitted times.
fn policy_of_gc() -> gc_rules::Policy {
    gc_rules::Policy::new(gc_rules::MIN_GRACE, gc_rules::MIN_CONDEMNED).unwrap()
}

/// A xorb of five chunks that are made of this text.
fn xorb(text: &str, policy: Policy) -> BuiltXorb {
    let mut builder = XorbBuilder::new(policy);
    for index in 0..5 {
        builder.push(format!("{index} {text}").repeat(2000).as_bytes()).unwrap();
    }
    builder.finish().unwrap()
}

async fn upload(server: &Arc<Server>, xorb: &BuiltXorb) -> Result<Uploaded, UploadError> {
    let pieces: Vec<Result<Bytes, BodyError>> =
        xorb.bytes().chunks(3000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    let claimed = xorb.xorb().hash();
    let body = stream::iter(pieces);
    server
        .upload(Upload {
            claims: &Claims::UNRESTRICTED,
            claimed,
            max_len: MAX_XORB_SERIALIZED_LEN,
            declared_len: None,
            body,
        })
        .await
}

/// The stored bytes as a reader gets them; `None` if there is no such xorb.
async fn read(server: &Arc<Server>, xorb: &BuiltXorb) -> Result<Option<Vec<u8>>, ReadError> {
    let Some(found) = server.store.find(xorb.xorb().hash()).await? else { return Ok(None) };
    let bytes = ByteRange::new(0, found.layout().serialized_len()).unwrap();
    let pieces: Vec<Bytes> = server.store.read(&found, Form::Serialized, bytes).await?.try_collect().await?;
    Ok(Some(pieces.concat()))
}

/// Checks the invariants after an upload with a fault in the `n`-th operation, at once and after a
/// restart. Returns false if an upload has no `n`-th operation.
async fn check_upload_with_fault(n: usize, moment: Moment) -> bool {
    let (setup, xorb) = (Setup::new().await, xorb("bytes", Policy::Lz4));
    let server = setup.process();
    setup.faults.arm(n, moment);
    let result = upload(&server, &xorb).await;
    let Some(failed) = setup.faults.disarm() else {
        assert!(result.unwrap().was_inserted);
        return false;
    };
    let case = format!("operation {n} ({failed}) failed {moment:?}: {result:?}");

    // An acknowledged upload is served. Any other upload is invisible, or it is served as a whole
    // because its last operation was carried out although it failed.
    let seen = read(&server, &xorb).await.unwrap();
    match &result {
        Ok(_) => assert_eq!(seen.as_deref(), Some(xorb.bytes()), "{case}"),
        Err(_) => {
            assert!(seen.is_none() || (moment == Moment::After && seen.as_deref() == Some(xorb.bytes())), "{case}")
        }
    }
    // A restart removes everything that is not visible, and nothing else.
    let server = setup.process();
    server.store.recover().await.unwrap();
    assert_eq!(read(&server, &xorb).await.unwrap(), seen, "{case}");
    assert_eq!(setup.blobs.list().await.unwrap().len(), usize::from(seen.is_some()), "{case}");
    assert_eq!(setup.index.unfinished_xorbs().await.unwrap(), [], "{case}");
    assert_eq!(server.store.recover().await.unwrap(), Recovered::default(), "{case}");
    // The upload can be repeated.
    assert_eq!(upload(&server, &xorb).await.unwrap().was_inserted, seen.is_none(), "{case}");
    assert_eq!(read(&server, &xorb).await.unwrap().as_deref(), Some(xorb.bytes()), "{case}");
    true
}

#[tokio::test]
async fn upload_with_nth_failure_is_invisible_and_can_be_repeated() {
    for moment in [Moment::Before, Moment::After] {
        let mut n = 0;
        while check_upload_with_fault(n, moment).await {
            n += 1;
        }
        assert!(n > 6, "an upload has more than {n} operations that can fail");
    }
}

#[tokio::test]
async fn failed_upload_is_repeated_in_another_serialization() {
    for moment in [Moment::Before, Moment::After] {
        for n in 0.. {
            let setup = Setup::new().await;
            let (first, second) = (xorb("bytes", Policy::Lz4), xorb("bytes", Policy::None));
            let server = setup.process();
            setup.faults.arm(n, moment);
            let failed = upload(&server, &first).await.is_err();
            if setup.faults.disarm().is_none() {
                break;
            }
            let seen = read(&server, &first).await.unwrap();
            let inserted = upload(&server, &second).await.unwrap().was_inserted;
            assert_eq!(inserted, seen.is_none(), "operation {n} {moment:?}");
            assert!(failed || !inserted);
            let expected = if inserted { second.bytes() } else { first.bytes() };
            assert_eq!(read(&server, &first).await.unwrap().as_deref(), Some(expected), "operation {n} {moment:?}");
        }
    }
}

#[tokio::test]
async fn a_recovery_that_fails_midway_is_finished_by_the_next_one() {
    for moment in [Moment::Before, Moment::After] {
        for n in 0.. {
            let (setup, xorb) = (Setup::new().await, xorb("bytes", Policy::Lz4));
            // The blob is published and the row staged: the process dies before it goes live.
            setup.faults.arm_at("publish_xorb", Moment::Before);
            upload(&setup.process(), &xorb).await.unwrap_err();
            setup.faults.disarm();
            assert_eq!(setup.blobs.list().await.unwrap(), [setup.blobs.key_of(xorb.xorb().hash())]);

            setup.faults.arm(n, moment);
            let result = setup.process().store.recover().await;
            if setup.faults.disarm().is_none() {
                assert_eq!(result.unwrap(), Recovered { drafts: 0, rows: 1 });
                break;
            }
            result.unwrap_err();
            let server = setup.process();
            server.store.recover().await.unwrap();
            assert_eq!(setup.blobs.list().await.unwrap(), [], "operation {n} {moment:?}");
            assert_eq!(setup.index.unfinished_xorbs().await.unwrap(), [], "operation {n} {moment:?}");
            assert!(upload(&server, &xorb).await.unwrap().was_inserted);
        }
    }
}

#[tokio::test]
async fn xorb_being_deleted_is_refused_with_retry_after() {
    let (setup, xorb) = (Setup::new().await, xorb("bytes", Policy::Lz4));
    setup.faults.arm_at("publish_xorb", Moment::Before);
    let server = setup.process();
    upload(&server, &xorb).await.unwrap_err();
    setup.faults.disarm();
    setup.index.abandon_xorb(xorb.xorb().hash(), Timestamp::from_millis(0)).await.unwrap();
    assert!(matches!(upload(&server, &xorb).await, Err(UploadError::BeingDeleted { .. })));
    assert_eq!(read(&server, &xorb).await.unwrap(), None);
}

#[tokio::test]
async fn blob_shorter_than_indexed_ends_both_streams_with_an_error() {
    let (setup, xorb) = (Setup::new().await, xorb("bytes", Policy::Lz4));
    let server = setup.process();
    upload(&server, &xorb).await.unwrap();
    let key = setup.blobs.key_of(xorb.xorb().hash());
    setup.blobs.damage(key, xorb.bytes()[..xorb.bytes().len() - 1].to_vec());
    let found = server.store.find(xorb.xorb().hash()).await.unwrap().unwrap();
    for (form, len) in [(Form::Serialized, found.layout().serialized_len()), (Form::Raw, found.layout().raw_len())] {
        let stream = server.store.read(&found, form, ByteRange::new(0, len).unwrap()).await.unwrap();
        assert!(stream.try_collect::<Vec<_>>().await.is_err(), "{form:?}");
    }
    setup.blobs.delete(key).await.unwrap();
    let whole = ByteRange::new(0, found.layout().raw_len()).unwrap();
    assert!(matches!(server.store.read(&found, Form::Raw, whole).await, Err(ReadError::Missing { .. })));
}

#[tokio::test]
async fn every_raw_range_is_the_slice_of_the_whole_also_within_chunks() {
    let (setup, xorb) = (Setup::new().await, xorb("x", Policy::Lz4));
    let server = setup.process();
    upload(&server, &xorb).await.unwrap();
    let found = server.store.find(xorb.xorb().hash()).await.unwrap().unwrap();
    let len = found.layout().raw_len();
    let whole = read_raw(&server, &found, 0, len).await;
    assert_eq!(whole.len() as u64, len);
    // Offsets around the boundaries of chunks and of the whole xorb.
    let ends = found.layout().chunks().map(|chunk| chunk.raw.end());
    let mut points: Vec<u64> = ends.flat_map(|end| [end - 1, end, end + 1]).filter(|point| *point <= len).collect();
    points.extend([0, 1, 2]);
    for start in &points {
        for end in points.iter().filter(|end| *end > start) {
            let (from, to) = (usize::try_from(*start).unwrap(), usize::try_from(*end).unwrap());
            assert_eq!(read_raw(&server, &found, *start, *end).await, whole[from..to], "{start}-{end}");
        }
    }
}

async fn read_raw(server: &Arc<Server>, xorb: &super::StoredXorb, start: u64, end: u64) -> Vec<u8> {
    let stream = server.store.read(xorb, Form::Raw, ByteRange::new(start, end).unwrap()).await.unwrap();
    stream.try_collect::<Vec<Bytes>>().await.unwrap().concat()
}
