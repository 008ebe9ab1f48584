//! What can go wrong with the index.

use std::error::Error as StdError;

use thiserror::Error;

use crate::runtime::outage::Outage;

/// An operation on the index that failed: what was being done, and why it did not work.
#[derive(Debug, Error)]
#[error("index: cannot {op}")]
pub struct IndexError {
    /// What was being done, as an infinitive.
    pub op: &'static str,
    /// What the caller may want to do about it.
    pub kind: IndexErrorKind,
    /// What went wrong below.
    #[source]
    pub source: Box<dyn StdError + Send + Sync>,
}

/// What a caller may want to do about a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexErrorKind {
    /// The database cannot answer now; trying again may help.
    Unavailable,
    /// No room: the operator has to act.
    NoSpace,
    /// The machine cannot do it for now.
    Outage(Outage),
    /// The row was not in the state that the operation starts from: somebody else was faster.
    Lost,
    /// A row does not say anything valid.
    Inconsistent,
    /// The file is no database, or a page of it is damaged.
    Damaged,
    /// A newer program has made its schema.
    Newer,
    /// Its schema is older than this program needs, and it was opened for reading only.
    Older,
    /// Anything else.
    Other,
}

/// A row that does not parse: our own corruption, named to the column.
#[derive(Debug, Error)]
#[error("{table}.{column} of {key} is not valid: {reason}")]
pub(super) struct Inconsistent {
    pub(super) table: &'static str,
    pub(super) column: &'static str,
    pub(super) key: String,
    pub(super) reason: String,
}

/// A change of state that found its row in another state.
#[derive(Debug, Error)]
#[error("{changed} rows were in the state expected, not 1")]
pub(super) struct RowsChanged {
    pub(super) changed: u64,
}

impl IndexError {
    pub(super) fn inconsistent(op: &'static str, source: Inconsistent) -> Self {
        Self { op, kind: IndexErrorKind::Inconsistent, source: Box::new(source) }
    }

    pub(super) fn lost(op: &'static str, changed: u64) -> Self {
        Self { op, kind: IndexErrorKind::Lost, source: Box::new(RowsChanged { changed }) }
    }
}
