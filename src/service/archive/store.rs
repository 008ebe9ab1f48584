//! Stores the entries of an archive: xorbs are repacked and hashed again, files proven against
//! them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::error::RestoreError;
use super::read::UnpackedXorb;
use super::restore::Target;
use crate::blob::{BlobKey, BlobStore, Draft};
use crate::format::merkle::Aggregator;
use crate::format::shard::Term;
use crate::format::xorb::{RepackMode, Repacker, VerifiedXorb};
use crate::format::{ChunkHash, Crc64, XorbHash};
use crate::index::{FileRecord, NewXorb, RestoredFile, Staging, Ticket, XorbContents};
use crate::service::StoreError;

/// Terms that are proven at once, and xorbs whose contents are cached for the next file: 41 bytes
/// per chunk each.
const BATCH_COUNT: usize = 128;

/// Files that are entered in one transaction, and bytes of their terms, at most.
const TRANSACTION_COUNT: usize = 1000;
const TRANSACTION_TERM_COUNT: usize = 200_000;

/// Stores a xorb; returns its raw bytes.
pub(super) async fn store_xorb(target: &Target, xorb: UnpackedXorb) -> Result<u64, RestoreError> {
    let (named, raw_len) = (xorb.hash, xorb.contents.len() as u64);
    let (blobs, mode) = (Arc::clone(&target.blobs), target.mode);
    let (actual, crc64, draft) = target.pool.run(move || repack(&*blobs, &xorb, mode)).await?;
    if actual.hash() != named {
        return Err(RestoreError::OtherXorb { named, actual: actual.hash() });
    }
    let ticket = Ticket::random();
    let staging = target.index.stage_xorb(named, ticket, target.clock.now()).await.map_err(StoreError::from)?;
    // An archive may have a xorb twice; both are the same.
    if staging == Staging::Staged {
        draft.publish(BlobKey::new(named, ticket.incarnation())).await.map_err(StoreError::from)?;
        let (hash, layout, chunk_hashes, schemes) = actual.into_parts();
        let row = NewXorb { hash, crc64, layout, chunk_hashes, schemes, owner: None, grant: None };
        target.index.publish_xorb(row, ticket, target.clock.now()).await.map_err(StoreError::from)?;
    }
    Ok(raw_len)
}

/// Makes the serialized xorb from its unpacked form and writes it to a draft. Blocks.
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

/// Files to be entered into the index.
pub(super) struct Files<'a> {
    target: &'a Target,
    pending: Vec<RestoredFile>,
    pending_term_count: usize,
    /// Contents of xorbs that recent files have named.
    contents: HashMap<XorbHash, XorbContents>,
}

impl<'a> Files<'a> {
    pub(super) fn new(target: &'a Target) -> Self {
        Self { target, pending: Vec::new(), pending_term_count: 0, contents: HashMap::new() }
    }

    /// Proves a file, whose xorbs must be stored, and enters it with the next ones.
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
        self.pending.push(RestoredFile { record, dedup: proof.dedup.into_iter().collect() });
        let is_due = self.pending.len() >= TRANSACTION_COUNT || self.pending_term_count >= TRANSACTION_TERM_COUNT;
        if is_due { self.flush().await } else { Ok(()) }
    }

    /// Enters the pending files.
    pub(super) async fn flush(&mut self) -> Result<(), RestoreError> {
        self.pending_term_count = 0;
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return Ok(());
        }
        Ok(self.target.index.restore_files(pending).await.map_err(StoreError::from)?)
    }

    /// Ensures that the contents of these terms' xorbs are in memory, as far as they exist.
    async fn load(&mut self, terms: &[Term]) -> Result<(), RestoreError> {
        let wanted: HashSet<XorbHash> = terms.iter().map(|term| term.xorb).collect();
        if wanted.iter().all(|xorb| self.contents.contains_key(xorb)) {
            return Ok(());
        }
        if self.contents.len() + wanted.len() > 2 * BATCH_COUNT {
            self.contents.clear();
        }
        let missing = wanted.into_iter().filter(|xorb| !self.contents.contains_key(xorb)).collect();
        let found = self.target.index.xorb_contents(missing).await.map_err(StoreError::from)?;
        self.contents.extend(found.into_iter().map(|contents| (contents.hash, contents)));
        Ok(())
    }
}

/// A file with some of its terms proven.
struct Proof {
    chunks: Aggregator,
    dedup: HashSet<(ChunkHash, XorbHash)>,
    raw_len: u64,
    is_first: bool,
}

impl Proof {
    /// Adds the next term; `None` where it differs from the xorb.
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
        // Chunks that dedup may find: the first one of every file, and one in 1024 of its xorbs
        // (spec 1.8).
        if std::mem::take(&mut self.is_first) {
            self.dedup.extend(hashes.first().map(|first| (*first, term.xorb)));
        }
        let asked_for = contents.chunk_hashes.iter().filter(|hash| hash.is_dedup_eligible());
        self.dedup.extend(asked_for.map(|hash| (*hash, term.xorb)));
        self.raw_len += raw.byte_len();
        Some(())
    }
}
