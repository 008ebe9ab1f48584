//! Stores in which the n-th operation fails, before or after it was carried out.

mod collect;
mod compact;
mod hub;
mod measure;
mod register;

use std::collections::BTreeSet;
use std::io;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

pub(super) use self::hub::SweepGuard;
use crate::blob::memory::MemoryBlobStore;
use crate::blob::records::memory::MemoryRecordStore;
use crate::blob::records::{RecordStore, Seq};
use crate::blob::{BlobError, BlobErrorKind, BlobKey, BlobStore, BlobStream, Draft};
use crate::format::shard::{Sha256, Term};
use crate::format::{ByteRange, ChunkHash, ChunkRange, FileHash, StoreId, XorbHash};
use crate::index::sqlite::SqliteIndex;
use crate::index::{
    ArchiveIndex, ChunkColumns, Claim, ClaimIndex, ClaimState, DedupHit, FileEntry, FileIndex, FileRecord, FileRow,
    GrantIndex, Index, IndexError, IndexErrorKind, KnownSha256, ListIndex, NewXorb, Reader, RecordIndex, RestoredFile,
    SpentGrant, Staging, StoreMark, Ticket, Totals, XorbContents, XorbEntry, XorbIndex, XorbPart, XorbRow, XorbState,
};
use crate::runtime::clock::Timestamp;
use crate::service::tests::model::{BrokenGuards, Gate};

/// Whether a failed operation was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    Before,
    After,
}

/// Determines which operation fails; shared by the stores.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    plan: Arc<Mutex<Option<Plan>>>,
    /// The operation that is to wait.
    held: Arc<Mutex<Option<Hold>>>,
    /// If set, each operation first waits at this gate.
    gate: Option<Gate>,
    /// Whether the index says that other servers may use it.
    is_shared: Arc<AtomicBool>,
    /// What the index says of the records of other servers.
    others: Arc<Mutex<Others>>,
    /// The guard of sweeps that is broken, if any.
    broken: Arc<Mutex<Option<SweepGuard>>>,
    /// Whether the process that has these stores has died.
    is_dead: Arc<AtomicBool>,
}

/// What an index of several servers has, and one in SQLite has not.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// The open records, all of which are abandoned.
    pub(super) open: BTreeSet<u64>,
    pub(super) was_set_back: bool,
    /// Whether the index cannot tell if the change of a record was made, also with one server.
    pub(super) cannot_tell: bool,
    /// Whether the index does not respond when it is asked for that.
    pub(super) is_silent: bool,
}

#[derive(Debug)]
struct Hold {
    name: &'static str,
    reached: oneshot::Sender<()>,
    release: oneshot::Receiver<()>,
}

/// An operation that waits until it is released.
#[derive(Debug)]
pub(super) struct Held {
    reached: oneshot::Receiver<()>,
    release: oneshot::Sender<()>,
}

impl Held {
    /// Waits until the operation waits. It is released when the returned value is dropped.
    pub(super) async fn reached(self) -> oneshot::Sender<()> {
        self.reached.await.unwrap();
        self.release
    }
}

#[derive(Debug)]
struct Plan {
    trigger: Trigger,
    moment: Moment,
    failed: Option<&'static str>,
    after: After,
}

/// What follows the operation that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// Further operations succeed.
    Success,
    /// Further operations fail until the plan is taken back.
    Outage,
    /// Further operations fail until the plan is taken back, and those of the same process always.
    Death,
}

#[derive(Debug)]
enum Trigger {
    Count(usize),
    Name(&'static str),
}

impl Faults {
    /// No fault yet; operations wait at this gate.
    pub(super) fn behind(gate: Gate) -> Self {
        Self { gate: Some(gate), ..Self::default() }
    }

    /// Lets `n` further operations succeed, and makes the one after them fail.
    pub(super) fn arm(&self, n: usize, moment: Moment) {
        self.plan(Trigger::Count(n), moment, After::Success);
    }

    /// Makes the next operation with this name fail.
    pub(super) fn arm_at(&self, name: &'static str, moment: Moment) {
        self.plan(Trigger::Name(name), moment, After::Success);
    }

    /// Makes the next operation with this name fail, and each later one until
    /// [`disarm`](Self::disarm).
    pub(super) fn break_at(&self, name: &'static str, moment: Moment) {
        self.plan(Trigger::Name(name), moment, After::Outage);
    }

    /// The same, but as if the process had died: after `disarm`, only the operations of other
    /// processes succeed.
    pub(super) fn crash_at(&self, name: &'static str, moment: Moment) {
        self.plan(Trigger::Name(name), moment, After::Death);
    }

    fn plan(&self, trigger: Trigger, moment: Moment, after: After) {
        *self.plan.lock().unwrap() = Some(Plan { trigger, moment, failed: None, after });
    }

    /// The same faults, for the stores of one process.
    pub(super) fn of_process(&self) -> Self {
        Self { is_dead: Arc::default(), ..self.clone() }
    }

    /// Makes the index say that other servers may use it.
    pub(super) fn share(&self) {
        self.is_shared.store(true, Ordering::Relaxed);
    }

    pub(super) fn others(&self) -> MutexGuard<'_, Others> {
        self.others.lock().unwrap()
    }

    pub(super) fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed)
    }

    /// Makes the next operation with this name wait before it begins.
    pub(super) fn hold(&self, name: &'static str) -> Held {
        let ((reach, reached), (release, released)) = (oneshot::channel(), oneshot::channel());
        *self.held.lock().unwrap() = Some(Hold { name, reached: reach, release: released });
        Held { reached, release }
    }

    /// Ends the injection of faults. Returns the name of the failed operation.
    pub(super) fn disarm(&self) -> Option<&'static str> {
        self.plan.lock().unwrap().take().and_then(|plan| plan.failed)
    }

    /// Counts an operation. Returns when it is to fail: before or after it is carried out.
    fn hit(&self, name: &'static str) -> Option<Moment> {
        if self.is_dead.load(Ordering::Relaxed) {
            return Some(Moment::Before);
        }
        let mut plan = self.plan.lock().unwrap();
        let plan = plan.as_mut()?;
        if plan.failed.is_some() {
            self.is_dead.store(plan.after == After::Death, Ordering::Relaxed);
            return (plan.after != After::Success).then_some(Moment::Before);
        }
        let due = match &mut plan.trigger {
            Trigger::Name(wanted) => *wanted == name,
            Trigger::Count(0) => true,
            Trigger::Count(left) => {
                *left -= 1;
                false
            }
        };
        due.then(|| {
            plan.failed = Some(name);
            self.is_dead.store(plan.after == After::Death, Ordering::Relaxed);
            plan.moment
        })
    }

    /// Carries out an operation with this name, unless it is to fail.
    pub(super) async fn around<T, E>(
        &self,
        name: &'static str,
        operation: impl Future<Output = Result<T, E>>,
        error: impl FnOnce() -> E,
    ) -> Result<T, E> {
        if let Some(gate) = &self.gate {
            gate.pass(name).await;
        }
        let held = self.held.lock().unwrap().take_if(|held| held.name == name);
        if let Some(Hold { reached, release, .. }) = held {
            reached.send(()).unwrap();
            // An error: the test has dropped the other half.
            _ = release.await;
        }
        match self.hit(name) {
            None => operation.await,
            Some(Moment::Before) => Err(error()),
            Some(Moment::After) => {
                operation.await?;
                Err(error())
            }
        }
    }
}

fn blob_error() -> BlobError {
    BlobError { op: "fail", key: None, kind: BlobErrorKind::Other, source: Box::new(io::Error::other("a fault")) }
}

pub(super) fn index_error() -> IndexError {
    IndexError { op: "fail", kind: IndexErrorKind::Other, source: Box::new(io::Error::other("a fault")) }
}

#[derive(Clone, Debug)]
pub(super) struct FaultyBlobs {
    pub(super) inner: MemoryBlobStore,
    pub(super) faults: Faults,
}

// The memory store acts when it is called, not when the future is polled; hence the `async` blocks.
impl BlobStore for FaultyBlobs {
    fn draft(&self) -> Result<Box<dyn Draft>, BlobError> {
        if self.faults.hit("draft").is_some() {
            return Err(blob_error());
        }
        Ok(Box::new(FaultyDraft { inner: self.inner.draft()?, faults: self.faults.clone() }))
    }

    fn read(&self, key: BlobKey, range: ByteRange) -> BoxFuture<'_, Result<Option<BlobStream>, BlobError>> {
        self.faults.around("read", async move { self.inner.read(key, range).await }, blob_error).boxed()
    }

    fn head(&self, key: BlobKey) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        self.faults.around("head", async move { self.inner.head(key).await }, blob_error).boxed()
    }

    fn delete(&self, key: BlobKey) -> BoxFuture<'_, Result<bool, BlobError>> {
        self.faults.around("delete", async move { self.inner.delete(key).await }, blob_error).boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        self.faults.around("list", async move { self.inner.list().await }, blob_error).boxed()
    }

    fn list_group(&self, group: u8) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        async move {
            let keys = self.inner.list_group(group).await?;
            if keys.is_empty() {
                // Most of the 256 groups are empty, and a failure of each of their listings would
                // test nothing new.
                return Ok(keys);
            }
            self.faults.around("list_group", async { Ok(keys) }, blob_error).await
        }
        .boxed()
    }

    fn remove_stray_drafts(&self) -> BoxFuture<'_, Result<usize, BlobError>> {
        self.faults
            .around("remove_stray_drafts", async move { self.inner.remove_stray_drafts().await }, blob_error)
            .boxed()
    }

    fn free_len(&self) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        self.faults.around("free_len", self.inner.free_len(), blob_error).boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), BlobError>> {
        self.faults.around("probe", async move { self.inner.probe().await }, blob_error).boxed()
    }
}

#[derive(Debug)]
struct FaultyDraft {
    inner: Box<dyn Draft>,
    faults: Faults,
}

impl Draft for FaultyDraft {
    fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        if self.faults.hit("write").is_some() {
            return Err(blob_error());
        }
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> Result<(), BlobError> {
        if self.faults.hit("flush").is_some() {
            return Err(blob_error());
        }
        self.inner.flush()
    }

    fn into_bytes(self: Box<Self>) -> Result<Vec<u8>, BlobError> {
        if self.faults.hit("into_bytes").is_some() {
            return Err(blob_error());
        }
        self.inner.into_bytes()
    }

    fn publish(self: Box<Self>, key: BlobKey) -> BoxFuture<'static, Result<(), BlobError>> {
        let Self { inner, faults } = *self;
        let publish = async move { inner.publish(key).await };
        async move { faults.around("publish", publish, blob_error).await }.boxed()
    }
}

#[derive(Clone, Debug)]
pub(super) struct FaultyRecords {
    pub(super) inner: MemoryRecordStore,
    pub(super) faults: Faults,
}

impl RecordStore for FaultyRecords {
    fn append(&self, record: Bytes) -> BoxFuture<'_, Result<Seq, BlobError>> {
        // In an `async` block, because the record must not exist before the fault.
        async move { self.faults.around("append", async { self.inner.append(record).await }, blob_error).await }.boxed()
    }

    fn list(&self, after: Option<Seq>) -> BoxFuture<'_, Result<Vec<Seq>, BlobError>> {
        self.faults.around("list_records", self.inner.list(after), blob_error).boxed()
    }

    fn last(&self) -> BoxFuture<'_, Result<Option<Seq>, BlobError>> {
        self.faults.around("last_record", self.inner.last(), blob_error).boxed()
    }

    fn read(&self, seq: Seq) -> BoxFuture<'_, Result<Option<Bytes>, BlobError>> {
        self.faults.around("read_record", self.inner.read(seq), blob_error).boxed()
    }

    fn remove(&self, seq: Seq) -> BoxFuture<'_, Result<bool, BlobError>> {
        async move { self.faults.around("remove_record", async { self.inner.remove(seq).await }, blob_error).await }
            .boxed()
    }

    fn is_complete(&self) -> BoxFuture<'_, Result<bool, BlobError>> {
        self.faults.around("is_complete", self.inner.is_complete(), blob_error).boxed()
    }

    fn set_complete(&self) -> BoxFuture<'_, Result<(), BlobError>> {
        async move { self.faults.around("set_complete", async { self.inner.set_complete().await }, blob_error).await }
            .boxed()
    }

    fn store_id(&self) -> BoxFuture<'_, Result<Option<StoreId>, BlobError>> {
        self.faults.around("store_id", self.inner.store_id(), blob_error).boxed()
    }

    fn set_store_id(&self, id: StoreId) -> BoxFuture<'_, Result<(), BlobError>> {
        async move { self.faults.around("set_store_id", async { self.inner.set_store_id(id).await }, blob_error).await }
            .boxed()
    }

    fn reserve_through(&self, seq: Seq) {
        self.inner.reserve_through(seq);
    }
}

#[derive(Clone, Debug)]
pub(super) struct FaultyIndex {
    pub(super) inner: SqliteIndex,
    pub(super) faults: Faults,
    /// The guards that are broken. Only the tests of the guards break any.
    pub(super) weakness: BrokenGuards,
}

impl FaultyIndex {
    pub(super) fn new(inner: &SqliteIndex, faults: &Faults) -> Self {
        Self { inner: inner.clone(), faults: faults.clone(), weakness: BrokenGuards::default() }
    }
}

impl Index for FaultyIndex {}

impl XorbIndex for FaultyIndex {
    fn find_xorb(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbRow>, IndexError>> {
        self.faults.around("find_xorb", self.weakness.find_xorb(&self.inner, hash), index_error).boxed()
    }

    fn find_chunks(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<ChunkColumns>, IndexError>> {
        self.faults.around("find_chunks", self.inner.find_chunks(hash), index_error).boxed()
    }

    fn xorb_contents(&self, hashes: Vec<XorbHash>) -> BoxFuture<'_, Result<Vec<XorbContents>, IndexError>> {
        self.faults.around("xorb_contents", self.inner.xorb_contents(hashes), index_error).boxed()
    }

    fn xorb_parts(&self, wanted: Vec<(XorbHash, ChunkRange)>) -> BoxFuture<'_, Result<Vec<XorbPart>, IndexError>> {
        self.faults.around("xorb_parts", self.inner.xorb_parts(wanted), index_error).boxed()
    }

    fn stage_xorb(&self, hash: XorbHash, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<Staging, IndexError>> {
        self.faults.around("stage_xorb", self.weakness.stage_xorb(&self.inner, hash, ticket, now), index_error).boxed()
    }

    fn publish_xorb(&self, xorb: NewXorb, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>> {
        self.faults
            .around("publish_xorb", self.weakness.publish_xorb(&self.inner, xorb, ticket, now), index_error)
            .boxed()
    }

    fn share_xorb(&self, hash: XorbHash, domain: String) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.faults.around("share_xorb", self.inner.share_xorb(hash, domain), index_error).boxed()
    }

    fn foreign_single_chunks(
        &self,
        hashes: Vec<XorbHash>,
        domain: String,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        let found = self.inner.foreign_single_chunks(hashes, domain);
        self.faults.around("foreign_single_chunks", found, index_error).boxed()
    }

    fn renew_xorb(
        &self,
        hash: XorbHash,
        domain: Option<String>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.faults.around("renew_xorb", self.weakness.renew_xorb(&self.inner, hash, domain, now), index_error).boxed()
    }

    fn abandon_xorb(&self, hash: XorbHash, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.faults.around("abandon_xorb", self.inner.abandon_xorb(hash, now), index_error).boxed()
    }

    fn forget_xorb(&self, hash: XorbHash) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.faults.around("forget_xorb", self.inner.forget_xorb(hash), index_error).boxed()
    }

    fn unfinished_xorbs(&self) -> BoxFuture<'_, Result<Vec<(XorbHash, XorbState)>, IndexError>> {
        self.faults.around("unfinished_xorbs", self.weakness.unfinished_xorbs(&self.inner), index_error).boxed()
    }

    fn totals(&self) -> BoxFuture<'_, Result<Totals, IndexError>> {
        self.faults.around("totals", self.inner.totals(), index_error).boxed()
    }

    fn list_xorbs(&self) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        self.faults.around("list_xorbs", self.inner.list_xorbs(), index_error).boxed()
    }
}

impl GrantIndex for FaultyIndex {
    fn spend_grant(&self, grant: SpentGrant) -> BoxFuture<'_, Result<(), IndexError>> {
        self.faults.around("spend_grant", self.inner.spend_grant(grant), index_error).boxed()
    }

    fn is_grant_spent(&self, nonce: [u8; 16]) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.faults.around("is_grant_spent", self.inner.is_grant_spent(nonce), index_error).boxed()
    }

    fn forget_grants(&self, before: Timestamp) -> BoxFuture<'_, Result<u64, IndexError>> {
        self.faults.around("forget_grants", self.inner.forget_grants(before), index_error).boxed()
    }
}

impl FileIndex for FaultyIndex {
    fn find_file(
        &self,
        hash: FileHash,
        reader: Reader,
        part: Option<ByteRange>,
    ) -> BoxFuture<'_, Result<Option<FileRow>, IndexError>> {
        self.faults.around("find_file", self.weakness.find_file(&self.inner, hash, reader, part), index_error).boxed()
    }

    fn find_dedup(
        &self,
        chunk: ChunkHash,
        domain: Option<String>,
        lease_until: RangeInclusive<Timestamp>,
    ) -> BoxFuture<'_, Result<Option<DedupHit>, IndexError>> {
        self.faults
            .around("find_dedup", self.weakness.find_dedup(&self.inner, chunk, domain, lease_until), index_error)
            .boxed()
    }
}

impl ListIndex for FaultyIndex {
    fn files_after(
        &self,
        reader: Reader,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<FileEntry>, IndexError>> {
        self.faults.around("files_after", self.inner.files_after(reader, after, limit), index_error).boxed()
    }

    fn xorbs_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbEntry>, IndexError>> {
        self.faults.around("xorbs_after", self.inner.xorbs_after(after, limit), index_error).boxed()
    }
}

impl ArchiveIndex for FaultyIndex {
    fn file_records(&self, after: Option<FileHash>) -> BoxFuture<'_, Result<Vec<FileRecord>, IndexError>> {
        self.faults.around("file_records", self.inner.file_records(after), index_error).boxed()
    }

    fn restore_files(&self, files: Vec<RestoredFile>) -> BoxFuture<'_, Result<(), IndexError>> {
        self.faults.around("restore_files", self.inner.restore_files(files), index_error).boxed()
    }
}

impl ClaimIndex for FaultyIndex {
    fn find_sha256(&self, sha256: Sha256, reader: Reader) -> BoxFuture<'_, Result<Option<KnownSha256>, IndexError>> {
        self.faults.around("find_sha256", self.inner.find_sha256(sha256, reader), index_error).boxed()
    }

    fn unverified_claims(
        &self,
        lens: Range<u64>,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<Claim>, IndexError>> {
        self.faults.around("unverified_claims", self.inner.unverified_claims(lens, after, limit), index_error).boxed()
    }

    fn settle_claim(&self, claim: Claim, state: ClaimState) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.faults.around("settle_claim", self.inner.settle_claim(claim, state), index_error).boxed()
    }

    fn next_claimant(
        &self,
        lens: Range<u64>,
        after: Option<String>,
    ) -> BoxFuture<'_, Result<Option<String>, IndexError>> {
        self.faults.around("next_claimant", self.inner.next_claimant(lens, after), index_error).boxed()
    }

    fn sha256_claims_of(
        &self,
        repo: String,
        lens: Range<u64>,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<Claim>, IndexError>> {
        self.faults
            .around("sha256_claims_of", self.inner.sha256_claims_of(repo, lens, after, limit), index_error)
            .boxed()
    }

    fn single_terms(
        &self,
        files: Vec<FileHash>,
        max_len: u64,
    ) -> BoxFuture<'_, Result<Vec<(FileHash, Term)>, IndexError>> {
        self.faults.around("single_terms", self.inner.single_terms(files, max_len), index_error).boxed()
    }

    fn settle_true_claims(&self, claims: Vec<Claim>) -> BoxFuture<'_, Result<u64, IndexError>> {
        self.faults.around("settle_true_claims", self.inner.settle_true_claims(claims), index_error).boxed()
    }
}

impl RecordIndex for FaultyIndex {
    fn owned_xorbs(&self, hashes: Vec<XorbHash>, domain: String) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        self.faults.around("owned_xorbs", self.inner.owned_xorbs(hashes, domain), index_error).boxed()
    }

    fn claimed_files(
        &self,
        files: Vec<FileHash>,
        repo: String,
    ) -> BoxFuture<'_, Result<Vec<(FileHash, bool)>, IndexError>> {
        let all = files.iter().map(|file| (*file, false)).collect();
        let claimed = async move {
            let claimed = self.inner.claimed_files(files, repo).await?;
            Ok(if self.faults.lacks(SweepGuard::CommitChecksClaims) { all } else { claimed })
        };
        self.faults.around("claimed_files", claimed, index_error).boxed()
    }

    fn visible_files(&self, files: Vec<FileHash>) -> BoxFuture<'_, Result<Vec<FileHash>, IndexError>> {
        self.faults.around("visible_files", self.inner.visible_files(files), index_error).boxed()
    }

    fn readers_of(&self, file: FileHash) -> BoxFuture<'_, Result<Vec<(String, bool)>, IndexError>> {
        self.faults.around("readers_of", self.inner.readers_of(file), index_error).boxed()
    }

    fn unverified_sha256(&self, file: FileHash) -> BoxFuture<'_, Result<Option<Sha256>, IndexError>> {
        self.faults.around("unverified_sha256", self.inner.unverified_sha256(file), index_error).boxed()
    }

    fn store_mark(&self) -> BoxFuture<'_, Result<StoreMark, IndexError>> {
        self.faults.around("store_mark", self.inner.store_mark(), index_error).boxed()
    }

    fn set_store(&self, id: StoreId, last_record: Option<u64>) -> BoxFuture<'_, Result<(), IndexError>> {
        let set = async move {
            self.inner.set_store(id, last_record).await?;
            self.faults.others().open.retain(|seq| Some(*seq) != last_record);
            Ok(())
        };
        self.faults.around("set_store", set, index_error).boxed()
    }

    fn take_records(&self, seqs: Vec<u64>) -> BoxFuture<'_, Result<(), IndexError>> {
        let take = async move {
            self.inner.take_records(seqs.clone()).await?;
            self.faults.others().open.retain(|seq| !seqs.contains(seq));
            Ok(())
        };
        self.faults.around("take_records", take, index_error).boxed()
    }

    fn close_record(&self, seq: u64) -> BoxFuture<'_, Result<(), IndexError>> {
        if !self.faults.is_shared() {
            return self.inner.close_record(seq);
        }
        let close = async move {
            self.faults.others().open.remove(&seq);
            self.inner.close_record(seq).await
        };
        self.faults.around("close_record", close, index_error).boxed()
    }

    fn is_record_open(&self, seq: u64) -> BoxFuture<'_, Result<Option<bool>, IndexError>> {
        if self.faults.is_shared() || self.faults.others().cannot_tell {
            return async { Ok(None) }.boxed();
        }
        if self.faults.others().is_silent {
            return async { Err(index_error()) }.boxed();
        }
        self.faults.around("is_record_open", self.inner.is_record_open(seq), index_error).boxed()
    }

    fn give_up_record(&self, seq: u64) -> BoxFuture<'_, Result<(), IndexError>> {
        self.inner.give_up_record(seq)
    }

    fn abandoned_records(&self) -> BoxFuture<'_, Result<Vec<u64>, IndexError>> {
        if !self.faults.is_shared() {
            return self.faults.around("abandoned_records", self.inner.abandoned_records(), index_error).boxed();
        }
        let list = async { Ok(self.faults.others().open.iter().copied().collect()) };
        self.faults.around("abandoned_records", list, index_error).boxed()
    }

    fn was_set_back(&self) -> BoxFuture<'_, Result<bool, IndexError>> {
        if !self.faults.is_shared() {
            return self.inner.was_set_back();
        }
        let look = async { Ok(self.faults.others().was_set_back) };
        self.faults.around("was_set_back", look, index_error).boxed()
    }

    fn note_history(&self) -> BoxFuture<'_, Result<(), IndexError>> {
        if !self.faults.is_shared() {
            return self.inner.note_history();
        }
        let note = async {
            self.faults.others().was_set_back = false;
            Ok(())
        };
        self.faults.around("note_history", note, index_error).boxed()
    }

    fn add_unapplied_records(&self, seqs: Vec<u64>) -> BoxFuture<'_, Result<(), IndexError>> {
        self.faults.around("add_unapplied_records", self.inner.add_unapplied_records(seqs), index_error).boxed()
    }
}
