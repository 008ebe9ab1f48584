//! A disk that cannot read one blob, or fails once, or fails altogether. Also the rate limit of
//! checks.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{StreamExt, once};
use futures_util::{FutureExt, TryStreamExt};
use rustix::io::Errno;
use tokio::time::Instant;

use super::records::Problems;
use super::{Setup, read, upload, xorb};
use crate::blob::memory::MemoryBlobStore;
use crate::blob::{BlobError, BlobErrorKind, BlobKey, BlobStore, BlobStream, Draft};
use crate::format::ByteRange;
use crate::format::compression::Policy;
use crate::format::xorb::BuiltXorb;
use crate::index::HealthIndex;
use crate::index::sqlite::SqliteIndex;
use crate::runtime::blocking::Pool;
use crate::runtime::incarnation::Incarnation;
use crate::service::archive::Watch;
use crate::service::fsck::{Fsck, Presence};
use crate::service::scrub::{Checked, Scrub};
use crate::service::verify::{BlobVerifier, Damage, Pace, Verdict};
use crate::service::{Form, ReadError, ScrubBudget, Server, Settings};

/// The operation on a blob that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    /// The query of its length.
    Head,
    /// Opening it.
    Open,
    /// Reading it, after the first piece.
    Middle,
}

/// The injected failure.
#[derive(Clone, Copy, Debug)]
struct Failure {
    point: Point,
    error: Errno,
    /// The number of operations that fail; later ones succeed.
    count: usize,
    /// Whether the whole disk fails, so that the probe fails, too.
    is_of_disk: bool,
}

#[derive(Clone, Debug)]
struct FailingBlobs {
    inner: MemoryBlobStore,
    failure: Arc<Mutex<Option<Failure>>>,
}

impl FailingBlobs {
    fn set(&self, failure: Option<Failure>) {
        *self.failure.lock().unwrap() = failure;
    }

    fn error(&self, point: Point) -> Option<BlobError> {
        let mut failure = self.failure.lock().unwrap();
        let failure = failure.as_mut().filter(|failure| failure.point == point && failure.count > 0)?;
        failure.count -= 1;
        Some(error(failure.error))
    }
}

fn error(errno: Errno) -> BlobError {
    let source = io::Error::from_raw_os_error(errno.raw_os_error());
    BlobError { op: "read", key: None, kind: BlobErrorKind::Other, source: Box::new(source) }
}

impl BlobStore for FailingBlobs {
    fn draft(&self) -> Result<Box<dyn Draft>, BlobError> {
        self.inner.draft()
    }

    fn read(&self, key: BlobKey, range: ByteRange) -> BoxFuture<'_, Result<Option<BlobStream>, BlobError>> {
        async move {
            if let Some(error) = self.error(Point::Open) {
                return Err(error);
            }
            let Some(blob) = self.inner.read(key, range).await? else { return Ok(None) };
            Ok(Some(match self.error(Point::Middle) {
                Some(error) => blob.take(1).chain(once(async { Err(error) })).boxed(),
                None => blob,
            }))
        }
        .boxed()
    }

    fn head(&self, key: BlobKey) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        async move {
            match self.error(Point::Head) {
                Some(error) => Err(error),
                None => self.inner.head(key).await,
            }
        }
        .boxed()
    }

    fn delete(&self, key: BlobKey) -> BoxFuture<'_, Result<bool, BlobError>> {
        self.inner.delete(key)
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        self.inner.list()
    }

    fn list_group(&self, group: u8) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        self.inner.list_group(group)
    }

    fn remove_stray_drafts(&self) -> BoxFuture<'_, Result<usize, BlobError>> {
        self.inner.remove_stray_drafts()
    }

    fn free_len(&self) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        self.inner.free_len()
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), BlobError>> {
        let failure = self.failure.lock().unwrap().filter(|failure| failure.is_of_disk);
        async move { failure.map_or(Ok(()), |failure| Err(error(failure.error))) }.boxed()
    }
}

/// A store with one xorb, whose blob can be made unreadable.
struct Failing {
    setup: Setup,
    blobs: FailingBlobs,
    server: Arc<Server>,
    xorb: BuiltXorb,
}

impl Failing {
    async fn new() -> Self {
        let (setup, xorb) = (Setup::new().await, xorb("bytes", Policy::None));
        let blobs = FailingBlobs { inner: setup.blobs.clone(), failure: Arc::default() };
        let server = setup.process_over(blobs.clone());
        upload(&server, &xorb).await.unwrap();
        Self { setup, blobs, server, xorb }
    }

    async fn check(&self) -> Result<Checked, crate::service::StoreError> {
        self.server.store.check_xorb(self.xorb.xorb().hash(), &mut Pace::new(None)).await
    }

    async fn is_damaged(&self) -> bool {
        self.setup.index.find_health(self.xorb.xorb().hash()).await.unwrap().unwrap().damaged_at.is_some()
    }
}

const POINTS: [Point; 3] = [Point::Head, Point::Open, Point::Middle];

const ALWAYS: Failure = Failure { point: Point::Head, error: Errno::IO, count: usize::MAX, is_of_disk: false };

#[tokio::test]
async fn unreadable_blob_is_damaged_and_an_upload_heals_it() {
    for point in POINTS {
        let store = Failing::new().await;
        store.blobs.set(Some(Failure { point, ..ALWAYS }));
        let checked = store.check().await.unwrap();
        assert!(matches!(checked, Checked::Damaged(Damage::Unreadable(_))), "{point:?}: {checked:?}");
        assert!(matches!(read(&store.server, &store.xorb).await, Err(ReadError::Quarantined { .. })), "{point:?}");
        // The upload writes a new file, on other sectors of the disk.
        store.blobs.set(None);
        assert!(upload(&store.server, &store.xorb).await.unwrap().was_inserted, "{point:?}");
        assert_eq!(read(&store.server, &store.xorb).await.unwrap().as_deref(), Some(store.xorb.bytes()), "{point:?}");
    }
}

#[tokio::test]
async fn transient_read_error_or_failed_disk_damages_nothing() {
    for point in POINTS {
        let store = Failing::new().await;
        store.blobs.set(Some(Failure { point, count: 1, ..ALWAYS }));
        let checked = store.check().await.unwrap();
        assert!(matches!(checked, Checked::Sound), "{point:?}: {checked:?}");
        // The whole disk fails, so the error says nothing about this blob.
        store.blobs.set(Some(Failure { point, is_of_disk: true, ..ALWAYS }));
        store.check().await.unwrap_err();
        // These errors are not bad sectors, so they say nothing about the blob either.
        for error in [Errno::MFILE, Errno::ACCESS, Errno::ROFS, Errno::STALE] {
            store.blobs.set(Some(Failure { point, error, ..ALWAYS }));
            store.check().await.unwrap_err();
        }
        assert!(!store.is_damaged().await, "{point:?}");
        store.blobs.set(None);
        assert_eq!(read(&store.server, &store.xorb).await.unwrap().as_deref(), Some(store.xorb.bytes()), "{point:?}");
    }
}

/// A rebuild of the index reports a blob on bad sectors and goes on. It stops if the whole disk
/// fails, because it would lose every blob.
#[tokio::test]
async fn rebuild_leaves_out_an_unreadable_blob_but_no_failed_disk() {
    for point in [Point::Open, Point::Middle] {
        let store = Failing::new().await;
        for (failure, xorb_counts) in [
            (Some(Failure { point, ..ALWAYS }), Some((0, 1))),
            (Some(Failure { point, is_of_disk: true, ..ALWAYS }), None),
            (Some(Failure { point, count: 1, ..ALWAYS }), Some((1, 0))),
            (None, Some((1, 0))),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let index = SqliteIndex::open(&directory.path().join("index.sqlite")).await.unwrap();
            let server = Server::new(&Settings { index: Arc::new(index), ..store.setup.settings(store.blobs.clone()) });
            store.blobs.set(failure);
            let watch: Arc<dyn Watch> = Arc::new(Problems::default());
            let rebuilt = server.store.rebuild(&watch).await;
            let found = rebuilt.ok().map(|rebuilt| (rebuilt.xorb_count, rebuilt.damaged_xorb_count));
            assert_eq!(found, xorb_counts, "{failure:?}");
        }
    }
}

/// It may be the only copy of its data.
#[tokio::test]
async fn repair_removes_no_blob_without_a_row_that_cannot_be_read() {
    let store = Failing::new().await;
    let sql = "DELETE FROM xorb_domains; DELETE FROM xorb_chunks; DELETE FROM xorbs; UPDATE totals SET raw_len = 0";
    store.setup.index.tamper(sql).await;
    let checked = Arc::clone(&store.setup.process_over(store.blobs.clone()).store);
    let fsck = Fsck { store: checked, presence: Presence::Alone, is_deep: true, trusts_clock: false };
    for (failure, kind) in [(Some(Failure { point: Point::Middle, ..ALWAYS }), "unchecked"), (None, "orphan_blob")] {
        store.blobs.set(failure);
        let (mut walk, mut kinds) = (fsck.walk(), Vec::new());
        while let Some(findings) = walk.next_findings().await.unwrap() {
            for finding in findings.into_iter().filter(|finding| finding.blob.is_some()) {
                kinds.push(finding.kind.as_str());
                fsck.execute(&finding).await.unwrap();
            }
        }
        assert_eq!(kinds, [kind], "{failure:?}");
        assert_eq!(store.setup.blobs.list().await.unwrap().len(), 1);
    }
    store.blobs.set(None);
    let server = store.setup.process();
    assert_eq!(read(&server, &store.xorb).await.unwrap().as_deref(), Some(store.xorb.bytes()), "it was adopted");
}

#[tokio::test]
async fn bad_sector_ends_the_download_and_has_the_blob_checked() {
    for (form, point) in [(Form::Serialized, Point::Middle), (Form::Raw, Point::Middle), (Form::Raw, Point::Open)] {
        let store = Failing::new().await;
        let case = format!("{form:?} {point:?}");
        let found = store.server.store.find(store.xorb.xorb().hash()).await.unwrap().unwrap();
        let layout = found.layout();
        let len = if form == Form::Raw { layout.raw_len() } else { layout.serialized_len() };
        store.blobs.set(Some(Failure { point, ..ALWAYS }));
        let read = async {
            let pieces = store.server.store.read(&found, form, ByteRange::new(0, len).unwrap()).await?;
            pieces.try_collect::<Vec<Bytes>>().await
        };
        assert!(matches!(read.await, Err(ReadError::Store(_))), "{case}");
        assert!(!store.is_damaged().await, "{case}: a reader alone decides nothing");
        let budget = ScrubBudget { bytes_per_sec: 1 << 40, interval: Duration::from_secs(30 * 24 * 3600) };
        Scrub::new(Arc::clone(&store.server.store), budget, Duration::from_millis(1)).round().await.unwrap();
        assert!(store.is_damaged().await, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn checks_obey_the_read_rate_and_save_no_credit() {
    const RATE: u64 = 20_000;
    let (blobs, xorb) = (MemoryBlobStore::new(), xorb("bytes", Policy::None));
    let len = xorb.bytes().len() as u64;
    let key = BlobKey::new(xorb.xorb().hash(), Incarnation::UNNAMED);
    blobs.damage(key, xorb.bytes().to_vec());
    let verifier = BlobVerifier { blobs: Arc::new(blobs), pool: Pool::new(1) };
    let mut pace = Pace::new(Some(RATE));
    let per_blob = Duration::from_micros(len * 1_000_000 / RATE);
    assert!(per_blob > Duration::from_secs(1), "{per_blob:?}");
    for idle in [0, 0, 3600] {
        tokio::time::sleep(Duration::from_secs(idle)).await;
        let begin = Instant::now();
        let verdict = verifier.verify(key, Some(len), &mut pace).await.unwrap();
        assert!(matches!(verdict, Verdict::Sound(_)));
        // Timers have a resolution of one millisecond, and each of several waits is rounded.
        let (taken, slack) = (begin.elapsed(), Duration::from_millis(5));
        assert!(taken + slack >= per_blob && taken <= per_blob + slack, "{taken:?} of {per_blob:?}");
    }
    assert_eq!(pace.read_len(), 3 * len);
    // Without a rate limit there is no wait.
    let begin = Instant::now();
    verifier.verify(key, Some(len), &mut Pace::new(None)).await.unwrap();
    assert_eq!(begin.elapsed(), Duration::ZERO);
}
