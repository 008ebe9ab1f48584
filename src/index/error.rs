//! Errors of the index.

use std::error::Error as StdError;

use thiserror::Error;

use crate::runtime::outage::Outage;

/// A failed operation on the index, with its cause.
#[derive(Debug, Error)]
#[error("index: cannot {op}")]
pub struct IndexError {
    /// The operation, as an infinitive.
    pub op: &'static str,
    /// How the caller may react.
    pub kind: IndexErrorKind,
    /// The cause.
    #[source]
    pub source: Box<dyn StdError + Send + Sync>,
}

/// How a caller may react to a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexErrorKind {
    /// The database is busy; a retry may succeed.
    Unavailable,
    /// The disk is full: the operator has to act.
    NoSpace,
    /// The machine fails for now.
    Outage(Outage),
    /// The row was not in the state that the operation starts from: another operation was first.
    Lost,
    /// A row is invalid.
    Inconsistent,
    /// The file is no database, or a page of it is damaged.
    Damaged,
    /// Its schema is newer than this program.
    Newer,
    /// Its schema is older than this program needs, and it is open for reading only.
    Older,
    /// Anything else.
    Other,
}

/// A row that does not parse. Names the column.
#[derive(Debug, Error)]
#[error("{table}.{column} of {key} is not valid: {reason}")]
pub(super) struct Inconsistent {
    pub(super) table: &'static str,
    pub(super) column: &'static str,
    pub(super) key: String,
    pub(super) reason: String,
}

/// A change of state found its row in another state.
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
