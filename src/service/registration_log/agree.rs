//! Compares the index with the data directory before either is used. They must belong to one store,
//! and the index must not be older than the records.
//!
//! The data directory and the index have the same store id, and the index has the number of the
//! last record that it has applied. The comparison detects an index that was truncated, restored
//! from a copy or taken from another store. Such an index must be rebuilt from blobs and records.
//! Nothing else may run before the rebuild, because blobs that an old index does not know would
//! look like garbage.
//!
//! Records can be unapplied for another reason: a crash. Then the index has all the data that these
//! records need ([`tail`](super::tail)), so a start applies them like a rebuild does. After a crash
//! none of them was acknowledged. If instead an index was restored that is only a little older,
//! some of them may have been acknowledged. The two cases look alike, so all records are applied.
//! If they need xorbs with an interrupted deletion, these are restored first
//! ([`half_deleted`](super::half_deleted)). Unapplied records that later ones have overtaken are
//! open, and are applied with the others ([`settle`](super::settle)). With several servers the two
//! cases can be told apart: records of changes that were not made are removed, and an index that
//! was set back gets the xorbs that it lacks ([`set_back`](super::set_back)).
//!
//! At the first start the id is written into the index, then into the data directory. After a crash
//! in between, the next start writes the id into the data directory. So if the data directory has
//! an id, and blobs or records, and the index has no id, the index is not the original one. With an
//! index outside the data directory the order is the reverse: see [`Store::identify_directory`]. A
//! crash in between leaves an id in the data directory, and none in the index. So if the data
//! directory has an id, but neither blobs nor records, an index without an id gets this id.

use thiserror::Error;

use super::record::Record;
use super::replay::Replay;
use super::tail::{Inapplicable, Tail};
use crate::blob::BlobStore;
use crate::blob::records::{RecordStore, Seq};
use crate::format::StoreId;
use crate::format::shard::parse_stored as parse_shard;
use crate::index::{Index, Reader, StoreMark};
use crate::runtime::telemetry::chain;
use crate::service::archive::Watch;
use crate::service::error::StoreError;
use crate::service::{RebuildError, Rebuilt, Store};

/// Why the index is not used. Nothing was changed, except that a start may already have applied
/// records, and taken over blobs if the index was set back.
#[derive(Debug, Error)]
pub enum Gap {
    /// There is no store, and none may be created.
    #[error("no store")]
    NoStore,
    /// The index has no id, and the data directory is not new. [`Store::compare`] refuses every
    /// data directory with an id, and [`Store::agree`] every one with blobs or records, except one
    /// of a version without ids.
    #[error("the index is empty or an older copy, but the store is not new")]
    EmptyIndex,
    /// The index has another id than the data directory.
    #[error("the index belongs to store {index}, the data directory to store {directory}")]
    OtherStore {
        /// The id of the data directory.
        directory: StoreId,
        /// The id of the index.
        index: StoreId,
    },
    /// An index outside the data directory has an id, and the data directory has none.
    #[error("the index belongs to store {index}, and the data directory has no id")]
    BelongsElsewhere {
        /// The id of the index.
        index: StoreId,
    },
    /// The data directory has no id yet, or has lost it.
    #[error("the data directory has no id")]
    Unidentified,
    /// The index has not applied some records, and lacks data that they need, or one of them cannot
    /// be read.
    #[error(
        "the index is older than the records: it cannot apply record {seq}, which is damaged or needs more than it has"
    )]
    Behind {
        /// One of these records.
        seq: Seq,
    },
    /// The last record that the index has applied is missing.
    #[error("record {seq}, which the index has applied, is missing from the directory shards")]
    RecordsMissing {
        /// The record.
        seq: Seq,
    },
    /// A record of a newer program.
    #[error("record {seq} has version {found}: use the zorb that wrote it")]
    Newer {
        /// The record.
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
pub struct Reconciled {
    /// Whether this call created the store. `false` if [`Store::identify_directory`] gave the data
    /// directory its id before.
    pub is_new: bool,
    /// Number of records that a crash had left and that were replayed now. Some of them may have
    /// had parts that could not be applied.
    pub applied_count: usize,
}

/// Whether there are records or blobs. If there are, there must be an index, too.
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

/// Checks that an index outside the data directory does not belong to another data directory.
/// Changes nothing.
///
/// # Errors
///
/// [`Gap::OtherStore`], [`Gap::BelongsElsewhere`], or the store cannot be read.
pub async fn check_owner(records: &dyn RecordStore, index: &dyn Index) -> Result<(), Gap> {
    let directory = records.store_id().await.map_err(StoreError::from)?;
    let mark = index.store_mark().await.map_err(StoreError::from)?;
    match (directory, mark.id) {
        (Some(directory), Some(index)) if directory != index => Err(Gap::OtherStore { directory, index }),
        (None, Some(index)) => Err(Gap::BelongsElsewhere { index }),
        _ => Ok(()),
    }
}

/// A new random id.
pub(super) fn new_store_id() -> StoreId {
    StoreId::from_bytes(rand::random())
}

impl Store {
    /// Compares the index with the data directory, and changes nothing. Returns the records that
    /// the index has not applied and can apply. While a server is running these are registrations
    /// under way; otherwise a crash has left them.
    ///
    /// # Errors
    ///
    /// See [`Gap`].
    pub async fn compare(&self) -> Result<Tail, Gap> {
        self.compare_records(&self.mark_of_store().await?).await
    }

    /// The mark of the index, which must be of the same store as the records.
    pub(in crate::service) async fn mark_of_store(&self) -> Result<StoreMark, Gap> {
        let mark = self.index.store_mark().await.map_err(StoreError::from)?;
        match (self.records.store_id().await.map_err(StoreError::from)?, mark.id) {
            (Some(directory), Some(index)) if directory == index => Ok(mark),
            (Some(directory), Some(index)) => Err(Gap::OtherStore { directory, index }),
            (Some(_), None) => Err(Gap::EmptyIndex),
            (None, _) => Err(Gap::Unidentified),
        }
    }

    /// For an index outside the data directory: gives a new data directory its id. Servers with
    /// other data directories may use the same index by mistake. So here the directory gets the id
    /// before the index does. So an index with an id never belongs to a directory without one, also
    /// after a crash between the two writes. Returns whether the
    /// store is new. To be called before [`Store::agree`].
    ///
    /// # Errors
    ///
    /// See [`check_owner`], and [`Gap::NoStore`].
    pub async fn identify_directory(&self, may_create: bool) -> Result<bool, Gap> {
        check_owner(self.records.as_ref(), self.index.as_ref()).await?;
        let is_identified = self.records.store_id().await.map_err(StoreError::from)?.is_some();
        if is_identified || has_anything(self.blobs.as_ref(), self.records.as_ref()).await? {
            return Ok(false);
        }
        if !may_create {
            return Err(Gap::NoStore);
        }
        self.records.set_store_id(new_store_id()).await.map_err(StoreError::from)?;
        Ok(true)
    }

    /// Compares the index with the data directory, applies records that a crash has left, and gives
    /// both an id where they have none. To be called before the store is used, and after
    /// [`Store::identify_directory`] and [`Store::restore_half_deleted`]. No other process may use
    /// the store meanwhile.
    ///
    /// # Errors
    ///
    /// See [`Gap`].
    pub async fn agree(&self, may_create: bool) -> Result<Reconciled, Gap> {
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
            // The index and the data directory are from a version without ids.
            mark.last_record = self.newest_applied().await?.map(Seq::number);
        }
        let was_set_back = self.index.was_set_back().await.map_err(StoreError::from)?;
        if was_set_back {
            // Refuse early, because the rest may take long.
            self.check_last_record(&mark).await?;
            if let Err(Inapplicable::Newer { seq, found }) = self.read_tail_needs(&mark).await? {
                return Err(Gap::Newer { seq, found });
            }
            let count = self.adopt_unknown_blobs().await?;
            tracing::warn!(count, "the database was set back: this number of xorbs that it lacked have rows now");
        }
        let mut tail = self.compare_records(&mark).await?;
        let id = mark.id.or(directory).unwrap_or_else(new_store_id);
        let to_close = self.settle_open(&mark, &mut tail).await?;
        let applied_count = tail.len();
        if applied_count > 0 {
            self.apply_tail(&tail).await?;
        }
        // Only now: a record that is closed and not applied would be lost if this start died. In
        // order, so that the last applied one does not go beyond an open one.
        for seq in to_close {
            self.index.set_store(id, Some(seq.number())).await.map_err(StoreError::from)?;
        }
        if applied_count > 0 && self.index.is_shared() {
            tail.add(self.append_mark().await?);
        }
        let last = tail.seqs.last().map_or(mark.last_record, |last| Some(last.number()));
        if mark.id.is_none() || applied_count > 0 {
            self.index.set_store(id, last).await.map_err(StoreError::from)?;
        }
        if directory.is_none() {
            self.records.set_store_id(id).await.map_err(StoreError::from)?;
        }
        if was_set_back {
            let count = self.mark_missing_blobs().await?;
            tracing::warn!(
                count,
                "the database was set back: this number of its xorbs have no blob and are damaged now"
            );
        }
        // Last: until here the next start finds out again that the index was set back. A database
        // that cannot say its history is compared by its records alone.
        if let Err(error) = self.index.note_history().await {
            tracing::warn!(error = %chain(&error), "cannot note the history of the database");
        }
        Ok(Reconciled { is_new, applied_count })
    }

    /// Checks that the last record that the index has applied is there.
    async fn check_last_record(&self, mark: &StoreMark) -> Result<(), Gap> {
        // The records are not marked as complete if the store is from an earlier version or from a
        // restore, or if an operator has moved the directory `shards` away. Then the last applied
        // record may be missing, and `Store::complete_records` writes records of all files.
        let is_complete = self.records.is_complete().await.map_err(StoreError::from)?;
        let last = mark.last_record.map(Seq::new);
        if let Some(last) = last {
            // Reserve the number of this record, because a new record with the same number would
            // look applied.
            self.records.reserve_through(last);
            if is_complete && !self.has_record(last).await? {
                // A record that was the last applied one then may have been pruned since.
                let was_set_back = self.index.was_set_back().await.map_err(StoreError::from)?;
                let seq = last;
                return Err(if was_set_back { Gap::Behind { seq } } else { Gap::RecordsMissing { seq } });
            }
        }
        Ok(())
    }

    /// Compares what the index has applied with the stored records.
    async fn compare_records(&self, mark: &StoreMark) -> Result<Tail, Gap> {
        self.check_last_record(mark).await?;
        if let Some(newest) = self.records.last().await.map_err(StoreError::from)? {
            self.records.reserve_through(newest);
        }
        match self.read_tail(mark).await? {
            Ok(tail) => Ok(tail),
            Err(Inapplicable::Record(seq)) => Err(Gap::Behind { seq }),
            Err(Inapplicable::Newer { seq, found }) => Err(Gap::Newer { seq, found }),
        }
    }

    async fn has_record(&self, seq: Seq) -> Result<bool, StoreError> {
        let before = seq.number().checked_sub(1).map(Seq::new);
        Ok(self.records.list(before).await?.first() == Some(&seq))
    }

    /// Whether the index has any xorb, or an unfinished upload or deletion.
    pub(super) async fn has_rows(&self) -> Result<bool, StoreError> {
        Ok(self.index.totals().await?.xorb_count > 0 || !self.index.unfinished_xorbs().await?.is_empty())
    }

    /// The newest record whose files are all in the index. Used for an index of a version that does
    /// not store the last applied record.
    async fn newest_applied(&self) -> Result<Option<Seq>, StoreError> {
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
            let Ok(shard) = self.pool.run(move || parse_shard(&shard)).await else { continue };
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

    /// Applies the records that a crash has left. A file whose hash cannot be computed from stored
    /// chunks, for example because a xorb is damaged, is left out, and its xorbs are retained.
    async fn apply_tail(&self, tail: &Tail) -> Result<(), Gap> {
        // Discards the rows of abandoned registrations first: otherwise the replay would have to
        // replace those of the same files.
        self.discard_abandoned().await?;
        // The index may be an older copy. Then its lists do not say what was registered again.
        self.index.renew_unneeded_files(self.clock.now()).await.map_err(StoreError::from)?;
        let mut rebuilt = Rebuilt::default();
        let replay = Replay::new(self, &Logged, &mut rebuilt);
        let replay = replay.of_tail(tail.listed.clone());
        let unapplied = match Box::pin(replay.run()).await {
            Ok(unapplied) => unapplied,
            Err(RebuildError::Newer { seq, found }) => return Err(Gap::Newer { seq, found }),
            Err(RebuildError::Store(error)) => return Err(error.into()),
        };
        let unapplied = unapplied.into_iter().filter(|seq| tail.seqs.contains(seq)).map(Seq::number).collect();
        self.index.add_unapplied_records(unapplied).await.map_err(StoreError::from)?;
        Ok(())
    }
}

/// Logs the parts of records that cannot be applied.
#[derive(Debug)]
struct Logged;

impl Watch for Logged {
    fn total(&self, _: u64) {}

    fn position(&self, _: u64) {}

    fn problem(&self, problem: &(dyn std::error::Error + 'static)) {
        tracing::warn!(problem = %chain(problem), "cannot apply all of a record of the last run");
    }
}
