//! Stores the records of an archive. A xorb is repacked, and its chunks must have its hash. A file
//! is *proven*: the chunks of its terms, in the stored xorbs, must have the hash of the file.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::RestoreError;
use super::read::UnpackedXorb;
use crate::blob::{BlobKey, BlobStore, Draft};
use crate::format::merkle::Aggregator;
use crate::format::shard::Term;
use crate::format::xorb::{RepackMode, Repacker, VerifiedXorb};
use crate::format::{ChunkHash, Crc64, XorbHash};
use crate::index::{FileRecord, NewXorb, RestoredFile, Staging, Ticket, XorbContents};
use crate::service::{Store, StoreError};

/// Number of terms whose xorbs are loaded with one query. The contents of up to twice as many xorbs
/// stay in memory for the next files, with 41 bytes per chunk.
const BATCH_COUNT: usize = 128;

/// The least and the greatest number of pending files that are written in one transaction. With
/// fewer, a disk that is slow to sync would be waited for all the time; with 16, a transaction took
/// 61 ms where the tests are slowest.
const TRANSACTION_COUNTS: (usize, usize) = (8, 64);

/// How long a transaction is meant to take. Its number of files follows from the time that the one
/// before took: in a debug build 64 files took 82 ms, and no transaction of the index may take more
/// than 50 ms.
const TRANSACTION_TIME: Duration = Duration::from_millis(15);

/// Pending files are also written when they have this number of terms together.
const TRANSACTION_TERM_COUNT: usize = 20_000;

/// Pending files are also written when they have this number of rows of other kinds together: of
/// xorbs, owners, repositories and chunks for deduplication. The files after a batch of small ones
/// may be large: in a debug build 64 of them took 109 ms, at some 50 µs for each row.
const TRANSACTION_ROW_COUNT: usize = 256;

/// Stores a xorb in this store, where no other process writes. Returns its length in raw bytes.
pub(super) async fn store_xorb(store: &Store, mode: RepackMode, xorb: UnpackedXorb) -> Result<u64, RestoreError> {
    let (named, raw_len) = (xorb.hash, xorb.contents.len() as u64);
    let blobs = Arc::clone(&store.blobs);
    let (actual, crc64, draft) = store.pool.run(move || repack(&*blobs, &xorb, mode)).await?;
    if actual.hash() != named {
        return Err(RestoreError::OtherXorb { named, actual: actual.hash() });
    }
    let ticket = Ticket::random();
    let staging = store.index.stage_xorb(named, ticket, store.clock.now()).await.map_err(StoreError::from)?;
    // If the archive has two records of a xorb, the row is live at the second one. The draft of the
    // second one is dropped.
    if staging == Staging::Staged {
        draft.publish(BlobKey::new(named, ticket.incarnation())).await.map_err(StoreError::from)?;
        let (hash, layout, chunk_hashes, schemes) = actual.into_parts();
        let row = NewXorb { hash, crc64, layout, chunk_hashes, schemes, owner: None, grant: None };
        store.index.publish_xorb(row, ticket, store.clock.now()).await.map_err(StoreError::from)?;
    }
    Ok(raw_len)
}

/// Serializes a xorb from its unpacked form and writes it to a draft. Returns the xorb that the
/// chunks are, its CRC-64 and the draft. The caller must compare the hash. Blocks.
pub(super) fn repack(
    blobs: &dyn BlobStore,
    xorb: &UnpackedXorb,
    mode: RepackMode,
) -> Result<(VerifiedXorb, u64, Box<dyn Draft>), StoreError> {
    let mut draft = blobs.draft()?;
    let (mut repacker, mut crc64, mut record) = (Repacker::new(mode), Crc64::new(), Vec::new());
    let mut rest = xorb.contents.as_slice();
    for chunk in &xorb.chunks {
        let (contents, after) = rest.split_at(chunk.raw_len as usize);
        record.clear();
        repacker.push(*chunk, contents, &mut record).expect("the table was checked against the limits of a xorb");
        crc64.update(&record);
        draft.write(&record)?;
        rest = after;
    }
    Ok((repacker.finish().expect("a table has at least one chunk"), crc64.value(), draft))
}

/// Proves files, and writes them to the index in batches.
pub(super) struct Files<'a> {
    store: &'a Store,
    /// Proven files that were not written yet.
    pending: Vec<RestoredFile>,
    pending_term_count: usize,
    pending_row_count: usize,
    /// The number of pending files at which they are written.
    due_count: usize,
    /// The chunk hashes and layouts of xorbs that recent files have named.
    contents: HashMap<XorbHash, XorbContents>,
}

impl<'a> Files<'a> {
    pub(super) fn new(store: &'a Store) -> Self {
        Self {
            store,
            pending: Vec::new(),
            pending_term_count: 0,
            pending_row_count: 0,
            due_count: TRANSACTION_COUNTS.0,
            contents: HashMap::new(),
        }
    }

    /// Proves a file and adds it to the pending ones. Writes these if enough are pending. The xorbs
    /// of the file must have been stored before.
    pub(super) async fn push(&mut self, record: FileRecord) -> Result<(), RestoreError> {
        let mut proof = Proof { chunks: Aggregator::new(), dedup: HashSet::new(), raw_len: 0, is_first: true };
        for (number, terms) in record.terms.chunks(BATCH_COUNT).enumerate() {
            self.load(terms).await?;
            for (index, term) in terms.iter().enumerate() {
                let wrong = RestoreError::Term { file: record.hash, term: number * BATCH_COUNT + index };
                let contents = self.contents.get(&term.xorb);
                contents.and_then(|contents| proof.take(term, contents)).ok_or(wrong)?;
            }
        }
        let (named, actual) = (record.hash, proof.chunks.file_hash());
        if actual != named || proof.raw_len != record.raw_len {
            return Err(RestoreError::OtherFile { named, actual });
        }
        self.pending_term_count += record.terms.len();
        let xorbs: HashSet<XorbHash> = record.terms.iter().map(|term| term.xorb).collect();
        self.pending_row_count += xorbs.len() + record.owners.len() + record.repos.len() + proof.dedup.len();
        self.pending.push(RestoredFile { record, dedup: proof.dedup.into_iter().collect() });
        let is_due = self.pending.len() >= self.due_count
            || self.pending_term_count >= TRANSACTION_TERM_COUNT
            || self.pending_row_count >= TRANSACTION_ROW_COUNT;
        if is_due { self.flush().await } else { Ok(()) }
    }

    /// Writes the pending files to the index.
    pub(super) async fn flush(&mut self) -> Result<(), RestoreError> {
        (self.pending_term_count, self.pending_row_count) = (0, 0);
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return Ok(());
        }
        let (count, begin) = (pending.len(), Instant::now());
        self.store.index.restore_files(pending).await.map_err(StoreError::from)?;
        let fitting = TRANSACTION_TIME.as_micros().saturating_mul(count as u128) / begin.elapsed().as_micros().max(1);
        self.due_count =
            usize::try_from(fitting).unwrap_or(usize::MAX).clamp(TRANSACTION_COUNTS.0, TRANSACTION_COUNTS.1);
        Ok(())
    }

    /// Loads the contents of the xorbs of these terms. Xorbs that do not exist are left out.
    async fn load(&mut self, terms: &[Term]) -> Result<(), RestoreError> {
        let wanted: HashSet<XorbHash> = terms.iter().map(|term| term.xorb).collect();
        if wanted.iter().all(|xorb| self.contents.contains_key(xorb)) {
            return Ok(());
        }
        if self.contents.len() + wanted.len() > 2 * BATCH_COUNT {
            self.contents.clear();
        }
        let missing = wanted.into_iter().filter(|xorb| !self.contents.contains_key(xorb)).collect();
        let found = self.store.index.xorb_contents(missing).await.map_err(StoreError::from)?;
        self.contents.extend(found.into_iter().map(|contents| (contents.hash, contents)));
        Ok(())
    }
}

/// The proof of a file, after some of its terms.
struct Proof {
    /// Computes the hash of the file from its chunks.
    chunks: Aggregator,
    /// Chunks that deduplication may find, each with its xorb.
    dedup: HashSet<(ChunkHash, XorbHash)>,
    raw_len: u64,
    /// Whether the next term is the first one.
    is_first: bool,
}

impl Proof {
    /// Adds the next term. `None` if the xorb does not have these chunks, or if their length
    /// differs.
    fn take(&mut self, term: &Term, contents: &XorbContents) -> Option<()> {
        let raw = contents.layout.raw_range(term.chunks)?;
        if raw.byte_len() != u64::from(term.raw_len) {
            return None;
        }
        let (start, end) = (usize::try_from(term.chunks.start()).ok()?, usize::try_from(term.chunks.end()).ok()?);
        let hashes = contents.chunk_hashes.get(start..end)?;
        for (place, hash) in contents.layout.chunks().skip(start).zip(hashes) {
            self.chunks.push(hash, place.raw.byte_len());
        }
        // Clients query the first chunk of a file, and chunks with an eligible hash, which are one
        // in 1024 (spec 1.8). So these are the chunks that dedup must find.
        if std::mem::take(&mut self.is_first) {
            self.dedup.extend(hashes.first().map(|first| (*first, term.xorb)));
        }
        let eligible = contents.chunk_hashes.iter().filter(|hash| hash.is_dedup_eligible());
        self.dedup.extend(eligible.map(|hash| (*hash, term.xorb)));
        self.raw_len += raw.byte_len();
        Some(())
    }
}
