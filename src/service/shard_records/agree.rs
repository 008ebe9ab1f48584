//! Whether the index is the one of this store, and not behind what was recorded: compared before anything relies on it.
//!
//! The data directory and the index have the same store id, and the index has the number of the last record that it has
//! taken. An index that was truncated, put back from a copy or taken from another store is found by that. A rebuild makes
//! the right one of blobs and records, so that nothing else may be done before: what the old index does not know would be
//! taken for garbage.
//!
//! A crash leaves records that were not taken, too. They are told apart by what they need ([`tail`](super::tail)): all of
//! it is in the index, so that a start takes them like a rebuild does. Nothing of them was acknowledged, which is why they
//! may be taken or not. A xorb of theirs whose deletion was interrupted is restored before ([`half_deleted`](super::half_deleted)).
//!
//! Order at the first start: the id is written into the index, then beside it. What a crash between the two leaves is
//! completed by the next start. So a data directory with an id has an index with one, and where it has not, that index is
//! not the one that was there.

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

/// Why the index is not relied upon. Nothing was changed then, but for records that a start has taken before it found this.
#[derive(Debug, Error)]
pub enum Gap {
    /// There is no store, and none is to be made.
    #[error("no store")]
    NoStore,
    /// The index is empty, or one from before the store had an id.
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
    /// The index has not taken records that need what it does not have.
    #[error("the index is older than the records: it has not applied record {seq} and lacks what that needs")]
    Behind {
        /// Such a record.
        seq: Seq,
    },
    /// The last record that the index has taken is not there.
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

/// What a start has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// Whether there was no store before.
    pub is_new: bool,
    /// Records that a crash had left, and that are taken now.
    pub taken_count: usize,
}

/// Whether there are records or blobs, so that an index must be there, too.
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

/// An id that no other store has.
pub(super) fn new_store_id() -> StoreId {
    StoreId::from_bytes(rand::random())
}

impl Cas {
    /// Compares the index with the data directory, and changes nothing. Returns the records that the index has not taken
    /// and can take: beside a server those of registrations that are under way, else what a crash has left.
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

    /// Compares the index with the data directory before anybody uses them, takes what a crash has left, and gives both an
    /// id where they have none. To be called first, and while nobody else uses the store.
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
            // From before there were ids.
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

    /// Compares what the index has taken with the records that are there.
    async fn compare_records(&self, mark: &StoreMark) -> Result<Tail, Gap> {
        // Where not everything has its record yet, the index knows more than the records, and is about to write them.
        let is_complete = self.records.is_complete().await.map_err(StoreError::from)?;
        let last = mark.last_record.map(Seq::new);
        if let Some(last) = last {
            // Nor is its number given to another one, which would look as if it had been taken.
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

    /// Whether the index knows of any xorb, or of an upload or a deletion that was under way.
    async fn has_rows(&self) -> Result<bool, StoreError> {
        Ok(self.index.totals().await?.xorb_count > 0 || !self.index.unfinished_xorbs().await?.is_empty())
    }

    /// The newest record whose files the index has, where it does not say itself which one it has taken last.
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

    /// Takes what a crash has left. What cannot be proven, such as a file of a damaged xorb, is left, and its xorbs are kept.
    async fn take_tail(&self, mark: &StoreMark, tail: &Tail) -> Result<(), Gap> {
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

/// Says in the log what cannot be taken.
#[derive(Debug)]
struct Logged;

impl Watch for Logged {
    fn total(&self, _: u64) {}

    fn position(&self, _: u64) {}

    fn problem(&self, problem: &(dyn std::error::Error + 'static)) {
        tracing::warn!(problem = %chain(problem), "cannot apply all of a record of the last run");
    }
}
