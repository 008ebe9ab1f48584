//! The outcome of a rebuild of the index, or of a replay of records.

use thiserror::Error;

use crate::blob::records::Seq;
use crate::format::StoreId;
use crate::service::error::StoreError;

/// What a rebuild of the index, or the replay of the records of the last run, has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Xorbs that are in it.
    pub xorb_count: u64,
    /// Bytes of their blobs.
    pub serialized_len: u64,
    /// Xorbs without a sound blob, which are therefore not in it.
    pub damaged_xorb_count: u64,
    /// Valid records. The damaged ones are not included.
    pub record_count: u64,
    /// Records that are damaged.
    pub damaged_record_count: u64,
    /// Registrations of a file that could not be replayed.
    pub left_out_count: u64,
    /// Changes of Hub repositories that could not be replayed.
    pub left_out_hub_count: u64,
    /// The store that the new index belongs to.
    pub store_id: Option<StoreId>,
}

impl Rebuilt {
    /// Whether a blob or record is damaged, or a registration or a change was left out.
    #[must_use]
    pub const fn has_problems(&self) -> bool {
        self.damaged_xorb_count + self.damaged_record_count + self.left_out_count + self.left_out_hub_count > 0
    }
}

/// Why a rebuild or a replay failed.
#[derive(Debug, Error)]
pub enum RebuildError {
    /// A record of a newer program, whose meaning is unknown.
    #[error("record {seq} has version {found}: use the zorb that wrote it")]
    Newer {
        /// The record.
        seq: Seq,
        /// Its version.
        found: u32,
    },
    /// The store failed.
    #[error("the index could not be rebuilt")]
    Store(#[from] StoreError),
}
