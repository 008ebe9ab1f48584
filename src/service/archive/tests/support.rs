//! Stores with contents, and archives that several runs share.

use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex};

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use tempfile::TempDir;

use crate::blob::memory::MemoryBlobStore;
use crate::blob::records::memory::MemoryRecordStore;
use crate::blob::{BlobKey, BlobStore, Draft};
use crate::format::compression::Policy;
use crate::format::merkle::Aggregator;
use crate::format::shard::{Sha256, Term};
use crate::format::xorb::{BuiltXorb, RepackMode, VerifiedXorb, XorbBuilder, verify};
use crate::format::{ByteRange, ChunkRange, FileHash, XorbHash};
use crate::index::sqlite::SqliteIndex;
use crate::index::{
    Allowance, ArchiveIndex, Claim, ClaimIndex, ClaimState, FileRecord, NewFile, NewXorb, ObjectIndex, RegisterIndex,
    Registered, Registration, Staging, Ticket, XorbIndex,
};
use crate::rca::Storage;
use crate::runtime::clock::{ManualClock, Timestamp};
use crate::runtime::metrics::Metrics;
use crate::service::access::KeyRing;
use crate::service::archive::{BackedUp, BackupError, RestoreError, Restored, Watch, empty_archive};
use crate::service::{Settings, Store};

pub(super) const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// A generator with a seed: `ZORB_TEST_SEED` if that is set, else a fresh one. Printed.
pub(super) fn rng() -> StdRng {
    let seed = std::env::var("ZORB_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("ZORB_TEST_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// A store in memory.
pub(super) struct TestStore {
    _directory: TempDir,
    pub(super) blobs: MemoryBlobStore,
    pub(super) index: SqliteIndex,
}

impl TestStore {
    pub(super) async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let index = SqliteIndex::open(&directory.path().join("index.sqlite")).await.unwrap();
        Self { _directory: directory, blobs: MemoryBlobStore::new(), index }
    }

    pub(super) async fn add_xorb(&self, xorb: &Xorb) {
        let mut draft = self.blobs.draft().unwrap();
        Draft::write(&mut *draft, xorb.bytes()).unwrap();
        let (hash, layout, chunk_hashes, schemes) = xorb.xorb().clone().into_parts();
        let ticket = Ticket::random();
        assert_eq!(self.index.stage_xorb(hash, ticket, NOW).await.unwrap(), Staging::Staged);
        draft.publish(BlobKey::new(hash, ticket.incarnation())).await.unwrap();
        let row = NewXorb { hash, crc64: 7, layout, chunk_hashes, schemes, owner: Some("org".to_owned()), grant: None };
        self.index.publish_xorb(row, ticket, NOW).await.unwrap();
    }

    /// Registers a file of runs of chunks for a repository; returns its hash.
    pub(super) async fn add_file(&self, repo: &str, runs: &[(&Xorb, u32, u32)], sha256: Option<u8>) -> FileHash {
        let (mut chunks, mut terms) = (Aggregator::new(), Vec::new());
        for (xorb, start, end) in runs {
            let range = ChunkRange::new(*start, *end).unwrap();
            let raw_len = u32::try_from(xorb.xorb().layout().raw_range(range).unwrap().byte_len()).unwrap();
            terms.push(Term { xorb: xorb.xorb().hash(), chunks: range, raw_len });
            let places = xorb.xorb().layout().chunks().zip(xorb.xorb().chunk_hashes());
            for (place, hash) in places.skip(*start as usize).take((end - start) as usize) {
                chunks.push(hash, place.raw.byte_len());
            }
        }
        let hash = chunks.file_hash();
        let sha256 = sha256.map(|byte| Sha256::from_digest([byte; 32]));
        let raw_len = terms.iter().map(|term| u64::from(term.raw_len)).sum();
        let mut xorbs: Vec<XorbHash> = terms.iter().map(|term| term.xorb).collect();
        xorbs.sort_unstable_by_key(|hash| *hash.as_bytes());
        xorbs.dedup();
        let registration = Registration {
            repo: repo.to_owned(),
            files: vec![NewFile { hash, raw_len, terms, sha256 }],
            xorbs,
            dedup: Vec::new(),
            now: NOW,
            allowance: Allowance::default(),
        };
        let registered = self.index.register(&registration);
        assert!(matches!(registered.await.unwrap(), Registered::New | Registered::Added | Registered::Known));
        hash
    }

    pub(super) async fn settle(&self, file: FileHash, byte: u8, state: ClaimState) {
        let claim = Claim { file, sha256: Sha256::from_digest([byte; 32]) };
        assert!(self.index.settle_claim(claim, state).await.unwrap());
    }

    pub(super) async fn records(&self) -> Vec<FileRecord> {
        let (mut records, mut after) = (Vec::new(), None);
        loop {
            let page = self.index.file_records(after).await.unwrap();
            let Some(last) = page.last() else { return records };
            after = Some(last.hash);
            records.extend(page);
        }
    }

    /// The stored bytes of a xorb.
    pub(super) async fn bytes(&self, hash: XorbHash) -> Option<Vec<u8>> {
        use futures_util::TryStreamExt;
        let key = BlobKey::new(hash, self.index.incarnation_of(hash).await.unwrap()?);
        let len = self.blobs.head(key).await.unwrap()?;
        let stream = self.blobs.read(key, ByteRange::new(0, len)?).await.unwrap()?;
        Some(stream.try_collect::<Vec<_>>().await.unwrap().concat())
    }

    pub(super) async fn back_up(&self, archive: &SharedFile) -> Result<BackedUp, BackupError> {
        self.back_up_with(archive, None, &Arc::new(Reported::default())).await
    }

    pub(super) async fn back_up_with(
        &self,
        archive: &SharedFile,
        keys: Option<&KeyRing>,
        watch: &Arc<Reported>,
    ) -> Result<BackedUp, BackupError> {
        let watch: Arc<dyn Watch> = Arc::clone(watch) as Arc<dyn Watch>;
        self.store(2).back_up(archive.handle(), keys, watch).await
    }

    /// Restores into this store, which should be empty.
    pub(super) async fn restore(&self, archive: &SharedFile) -> Result<Restored, RestoreError> {
        self.store(3).restore(archive.handle(), RepackMode::Compressed, Arc::new(Reported::default())).await
    }

    fn store(&self, verify_worker_count: usize) -> Arc<Store> {
        let (blobs, records) = (Arc::new(self.blobs.clone()), Arc::new(MemoryRecordStore::new()));
        let (clock, metrics) = (Arc::new(ManualClock::new(NOW)), Arc::new(Metrics::new()));
        let settings = Settings::over(blobs, records, Arc::new(self.index.clone()), clock, metrics);
        Store::new(&Settings { verify_worker_count, ..settings })
    }
}

/// Everything of both stores is equal, bytes of xorbs included.
pub(super) async fn assert_same(a: &TestStore, b: &TestStore) {
    let sorted = |mut hashes: Vec<XorbHash>| {
        hashes.sort_unstable_by_key(|hash| *hash.as_bytes());
        hashes
    };
    let hashes = sorted(a.index.list_xorbs().await.unwrap());
    assert_eq!(hashes, sorted(b.index.list_xorbs().await.unwrap()));
    for hash in hashes {
        assert_eq!(a.bytes(hash).await, b.bytes(hash).await, "{hash}");
        let rows = (a.index.find_xorb(hash).await.unwrap().unwrap(), b.index.find_xorb(hash).await.unwrap().unwrap());
        assert_eq!(rows.0.layout, rows.1.layout);
        assert_eq!(a.index.find_chunks(hash).await.unwrap(), b.index.find_chunks(hash).await.unwrap());
    }
    assert_eq!(a.records().await, b.records().await);
    assert_eq!(a.index.totals().await.unwrap(), b.index.totals().await.unwrap());
}

/// A xorb and its bytes.
#[derive(Clone, Debug)]
pub(super) struct Xorb {
    bytes: Vec<u8>,
    xorb: VerifiedXorb,
}

impl Xorb {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn xorb(&self) -> &VerifiedXorb {
        &self.xorb
    }

    pub(super) fn hash(&self) -> XorbHash {
        self.xorb.hash()
    }
}

impl From<BuiltXorb> for Xorb {
    fn from(built: BuiltXorb) -> Self {
        let (bytes, xorb) = built.into_parts();
        Self { bytes, xorb }
    }
}

/// A xorb as full as stock clients fill them: 64 MiB raw, and a header per chunk on top.
pub(super) fn brimful(rng: &mut StdRng) -> Xorb {
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
    for _ in 0..1024 {
        rng.fill_bytes(&mut chunk);
        bytes.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]);
        bytes.extend_from_slice(&chunk);
    }
    let xorb = verify(&bytes).unwrap();
    Xorb { bytes, xorb }
}

/// A xorb of text, numbers and noise, alternating.
pub(super) fn mixed(rng: &mut StdRng, chunk_count: usize) -> Xorb {
    let mut builder = XorbBuilder::new(Policy::Predict);
    for index in 0..chunk_count {
        let len = rng.random_range(1..30_000);
        let chunk: Vec<u8> = match index % 3 {
            0 => (0..len).map(|_| rng.random()).collect(),
            1 => format!("text that says {} again and again. ", rng.next_u32()).bytes().cycle().take(len).collect(),
            _ => (0..len).map(|at| if at % 4 == 3 { 0x3f } else { rng.random() }).collect(),
        };
        builder.push(&chunk).unwrap();
    }
    builder.finish().unwrap().into()
}

/// A xorb of this many incompressible bytes.
pub(super) fn noise(rng: &mut StdRng, len: usize) -> Xorb {
    let mut bytes = vec![0; len];
    rng.fill_bytes(&mut bytes);
    let mut builder = XorbBuilder::new(Policy::None);
    for chunk in bytes.chunks(64 << 10) {
        builder.push(chunk).unwrap();
    }
    builder.finish().unwrap().into()
}

/// Records the problems that a backup reports.
#[derive(Debug, Default)]
pub(super) struct Reported(pub(super) Mutex<Vec<String>>);

impl Watch for Reported {
    fn total(&self, _: u64) {}

    fn position(&self, _: u64) {}

    fn problem(&self, problem: &(dyn std::error::Error + 'static)) {
        self.0.lock().unwrap().push(crate::runtime::telemetry::chain(problem));
    }
}

/// A file in memory that can be opened again, and records which of its bytes were read.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedFile {
    bytes: Arc<Mutex<Vec<u8>>>,
    reads: Arc<Mutex<Vec<(u64, u64)>>>,
    /// The bytes at each sync, if recorded: before a commit, and after it.
    snapshots: Arc<Mutex<Option<Vec<Vec<u8>>>>>,
}

impl SharedFile {
    /// A new archive.
    pub(super) fn archive() -> Self {
        Self::of(empty_archive().unwrap())
    }

    pub(super) fn of(bytes: Vec<u8>) -> Self {
        Self { bytes: Arc::new(Mutex::new(bytes)), ..Self::default() }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }

    pub(super) fn len(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }

    /// Bytes of `range` that were read since the last call, counted once per read.
    pub(super) fn take_read_len_in(&self, start: u64, end: u64) -> u64 {
        let reads = std::mem::take(&mut *self.reads.lock().unwrap());
        reads.iter().map(|(from, to)| to.min(&end).saturating_sub(*from.max(&start))).sum()
    }

    /// Records from now on every state in which a machine may crash.
    pub(super) fn keep_snapshots(&self) {
        *self.snapshots.lock().unwrap() = Some(vec![self.bytes()]);
    }

    pub(super) fn take_snapshots(&self) -> Vec<Vec<u8>> {
        self.snapshots.lock().unwrap().take().unwrap()
    }

    pub(super) fn handle(&self) -> Handle {
        Handle { file: self.clone(), at: 0 }
    }
}

#[derive(Debug)]
pub(super) struct Handle {
    file: SharedFile,
    at: u64,
}

impl Handle {
    fn with<T>(&mut self, work: impl FnOnce(&mut Cursor<&mut Vec<u8>>) -> io::Result<T>) -> io::Result<T> {
        let mut bytes = self.file.bytes.lock().unwrap();
        let mut cursor = Cursor::new(&mut *bytes);
        cursor.set_position(self.at);
        let result = work(&mut cursor);
        self.at = cursor.position();
        result
    }
}

impl Read for Handle {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let start = self.at;
        let len = self.with(|cursor| cursor.read(buf))?;
        self.file.reads.lock().unwrap().push((start, start + len as u64));
        Ok(len)
    }
}

impl Write for Handle {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.with(|cursor| cursor.write(buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Handle {
    fn seek(&mut self, pos: SeekFrom) -> io::Result<u64> {
        self.with(|cursor| cursor.seek(pos))
    }
}

impl Storage for Handle {
    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.file.bytes.lock().unwrap().resize(usize::try_from(len).unwrap(), 0);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let bytes = self.file.bytes();
        if let Some(snapshots) = &mut *self.file.snapshots.lock().unwrap() {
            snapshots.push(bytes);
        }
        Ok(())
    }
}
