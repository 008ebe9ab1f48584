//! Compares the index with the data directory before either is used: they must be of one store, and
//! the index not older than the records.
//!
//! The data directory and the index have the same store id, and the index has the number of the
//! last record that it has applied. The comparison finds an index that was truncated, restored from
//! a copy or taken from another store. A rebuild makes the right one of blobs and records. Nothing
//! else may run before that: blobs that the old index does not know would look like garbage.
//!
//! A crash leaves unapplied records, too. They differ in what they need ([`tail`](super::tail)):
//! all of it is in the index, so a start applies them like a rebuild does. None of them was
//! acknowledged, so they may be applied or not. Xorbs of theirs with an interrupted deletion are
//! restored first ([`half_deleted`](super::half_deleted)).
//!
//! Order at the first start: the id is written into the index, then beside it. The next start
//! completes that after a crash. So a data directory with an id has an index with one. An index
//! without an id is then not the original.

use thiserror::Error;

use super::record::Record;
use super::replay::Replay;
use super::tail::{Tail, Untakable};
use crate::blob::BlobStore;
use crate::blob::records::{RecordStore, Seq};
use crate::format::StoreId;
use crate::format::shard::parse_stored as parse_shard;
use crate::index::{Reader, StoreMark};
use crate::runtime::telemetry::chain;
use crate::service::archive::Watch;
use crate::service::error::StoreError;
use crate::service::{Cas, RebuildError, Rebuilt};

/// Why the index is not used. Nothing was changed then, except that a start may have applied
/// records before.
#[derive(Debug, Error)]
pub enum Gap {
    /// There is no store, and none may be created.
    #[error("no store")]
    NoStore,
    /// The index is empty, or from before the store had an id.
    #[error("the index is empty or an older copy, but the store has blobs or records")]
    EmptyIndex,
    /// The index has another id than the data directory.
    #[error("the index belongs to store {index}, the data directory to store {directory}")]
    OtherStore {
        /// The id of the data directory.
        directory: StoreId,
        /// The id of the index.
        index: StoreId,
    },
    /// The data directory has no id yet, or has lost it.
    #[error("the data directory has no id")]
    Unidentified,
    /// The index has not applied records, and lacks data that these need.
    #[error("the index is older than the records: it has not applied record {seq} and lacks what that needs")]
    Behind {
        /// Such a record.
        seq: Seq,
    },
    /// The last record that the index has applied is missing.
    #[error("record {seq}, which the index has applied, is missing from the directory shards")]
    RecordsMissing {
        /// Which record.
        seq: Seq,
    },
    /// A record of a newer program.
    #[error("record {seq} has version {found}: use the zorb that wrote it")]
    Newer {
        /// Which record.
        seq: Seq,
        /// Its version.
        found: u32,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The result of the comparison at a start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// Whether the store was created now.
    pub is_new: bool,
    /// Records that a crash had left, applied now.
    pub taken_count: usize,
}

/// Whether there are records or blobs, so that there must be an index, too.
///
/// # Errors
///
/// The store cannot be read.
pub async fn has_anything(blobs: &dyn BlobStore, records: &dyn RecordStore) -> Result<bool, StoreError> {
    if records.last().await?.is_some() {
        return Ok(true);
    }
    for group in 0..=u8::MAX {
        if !blobs.list_group(group).await?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A new id, unique by chance.
pub(super) fn new_store_id() -> StoreId {
    StoreId::from_bytes(rand::random())
}

impl Cas {
    /// Compares the index with the data directory, and changes nothing. Returns the records that
    /// the index has not applied and can apply. Beside a server those are registrations under way,
    /// else they were left by a crash.
    ///
    /// # Errors
    ///
    /// See [`Gap`].
    pub async fn compare(&self) -> Result<Tail, Gap> {
        let mark = self.index.store_mark().await.map_err(StoreError::from)?;
        match (self.records.store_id().await.map_err(StoreError::from)?, mark.id) {
            (Some(directory), Some(index)) if directory == index => {}
            (Some(directory), Some(index)) => return Err(Gap::OtherStore { directory, index }),
            (Some(_), None) => return Err(Gap::EmptyIndex),
            (None, _) => return Err(Gap::Unidentified),
        }
        self.compare_records(&mark).await
    }

    /// Compares the index with the data directory, applies records that a crash has left, and gives
    /// both an id where they have none. To be called first, and only while no other process uses
    /// the store.
    ///
    /// # Errors
    ///
    /// See [`Gap`].
    pub async fn agree(&self, may_create: bool) -> Result<Agreed, Gap> {
        let directory = self.records.store_id().await.map_err(StoreError::from)?;
        let mut mark = self.index.store_mark().await.map_err(StoreError::from)?;
        if let (Some(directory), Some(index)) = (directory, mark.id)
            && directory != index
        {
            return Err(Gap::OtherStore { directory, index });
        }
        let has_anything = has_anything(self.blobs.as_ref(), self.records.as_ref()).await?;
        let is_new = directory.is_none() && mark.id.is_none() && !has_anything;
        if is_new && !may_create {
            return Err(Gap::NoStore);
        }
        if mark.id.is_none() && has_anything {
            if directory.is_some() || !self.has_rows().await? {
                return Err(Gap::EmptyIndex);
            }
            // From a version without ids.
            mark.last_record = self.newest_taken().await?.map(Seq::number);
        }
        let tail = self.compare_records(&mark).await?;
        let id = mark.id.or(directory).unwrap_or_else(new_store_id);
        if !tail.is_empty() {
            self.take_tail(&mark, &tail).await?;
        }
        let last = tail.seqs.last().map_or(mark.last_record, |last| Some(last.number()));
        if mark.id.is_none() || !tail.is_empty() {
            self.index.set_store(id, last).await.map_err(StoreError::from)?;
        }
        if directory.is_none() {
            self.records.set_store_id(id).await.map_err(StoreError::from)?;
        }
        Ok(Agreed { is_new, taken_count: tail.len() })
    }

    /// Compares what the index has applied with the stored records.
    async fn compare_records(&self, mark: &StoreMark) -> Result<Tail, Gap> {
        // While records are incomplete, the index has more than the records, and writes them next.
        let is_complete = self.records.is_complete().await.map_err(StoreError::from)?;
        let last = mark.last_record.map(Seq::new);
        if let Some(last) = last {
            // Its number must not be used again: the new record would look applied.
            self.records.start_behind(last);
            if is_complete && !self.has_record(last).await? {
                return Err(Gap::RecordsMissing { seq: last });
            }
        }
        if let Some(newest) = self.records.last().await.map_err(StoreError::from)? {
            self.records.start_behind(newest);
        }
        match self.read_tail(mark).await? {
            Ok(tail) => Ok(tail),
            Err(Untakable::Record(seq)) => Err(Gap::Behind { seq }),
            Err(Untakable::Newer { seq, found }) => Err(Gap::Newer { seq, found }),
        }
    }

    async fn has_record(&self, seq: Seq) -> Result<bool, StoreError> {
        let before = seq.number().checked_sub(1).map(Seq::new);
        Ok(self.records.list(before).await?.first() == Some(&seq))
    }

    /// Whether the index has any xorb, or an upload or a deletion that was under way.
    async fn has_rows(&self) -> Result<bool, StoreError> {
        Ok(self.index.totals().await?.xorb_count > 0 || !self.index.unfinished_xorbs().await?.is_empty())
    }

    /// The newest record whose files the index has, for an index that does not store the last
    /// applied one.
    async fn newest_taken(&self) -> Result<Option<Seq>, StoreError> {
        let mut seqs = Vec::new();
        loop {
            let page = self.records.list(seqs.last().copied()).await?;
            if page.is_empty() {
                break;
            }
            seqs.extend(page);
        }
        for seq in seqs.into_iter().rev() {
            let Some(Ok(Record::Register(registered))) = self.read_record(seq).await? else { continue };
            let shard = registered.shard;
            let Ok(shard) = self.verify_pool.run(move || parse_shard(&shard)).await else { continue };
            let mut is_known = !shard.files.is_empty();
            for file in &shard.files {
                is_known = is_known && self.index.find_file(file.hash, Reader::All, None).await?.is_some();
            }
            if is_known {
                return Ok(Some(seq));
            }
        }
        Ok(None)
    }

    /// Applies the records that a crash has left. A file that cannot be proven, as with a damaged
    /// xorb, is left out, and its xorbs are retained.
    async fn take_tail(&self, mark: &StoreMark, tail: &Tail) -> Result<(), Gap> {
        // In batches: the replay would discard the rows of an interrupted registration in its own
        // steps.
        self.discard_abandoned().await?;
        let mut rebuilt = Rebuilt::default();
        let replay = Replay::new(self, &Logged, &mut rebuilt).behind(mark.last_record.map(Seq::new));
        let left = match Box::pin(replay.run()).await {
            Ok(left) => left,
            Err(RebuildError::Newer { seq, found }) => return Err(Gap::Newer { seq, found }),
            Err(RebuildError::Store(error)) => return Err(error.into()),
        };
        let left = left.into_iter().filter(|seq| tail.seqs.contains(seq)).map(Seq::number).collect();
        self.index.leave_records(left).await.map_err(StoreError::from)?;
        Ok(())
    }
}

/// Logs what cannot be applied.
#[derive(Debug)]
struct Logged;

impl Watch for Logged {
    fn total(&self, _: u64) {}

    fn position(&self, _: u64) {}

    fn problem(&self, problem: &(dyn std::error::Error + 'static)) {
        tracing::warn!(problem = %chain(problem), "cannot apply all of a record of the last run");
    }
}
