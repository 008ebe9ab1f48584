//! Errors of the index.

use std::error::Error as StdError;

use thiserror::Error;

use crate::runtime::outage::Outage;

/// A failed operation on the index, with its cause.
#[derive(Debug, Error)]
#[error("index: cannot {op}")]
pub struct IndexError {
    /// The operation, as an infinitive such as "stage a xorb".
    pub op: &'static str,
    /// The kind of the failure, by which a caller decides what to do.
    pub kind: IndexErrorKind,
    /// The cause.
    #[source]
    pub source: Box<dyn StdError + Send + Sync>,
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexErrorKind {
    /// The database is busy or cannot be reached; a retry may succeed.
    Unavailable,
    /// The disk is full: the operator has to act.
    NoSpace,
    /// The machine or its disk fails, possibly for a while only.
    Outage(Outage),
    /// Another server is registering one of the files in steps; a retry succeeds when it is done.
    InProgress,
    /// The row was not in the expected state, usually because another operation changed it first.
    Lost,
    /// A column of a row does not parse, or contradicts another one.
    Inconsistent,
    /// The file is not a database, or one of its pages is damaged.
    Damaged,
    /// The schema of the database is newer than this program.
    Newer,
    /// The database has no schema, or an older one than this program needs, and opening it does not
    /// migrate it.
    Older,
    /// Anything else.
    Other,
}

/// A column is invalid: it does not parse, or contradicts another one.
#[derive(Debug, Error)]
#[error("{table}.{column} of {key} is not valid: {reason}")]
pub(super) struct Inconsistent {
    pub(super) table: &'static str,
    pub(super) column: &'static str,
    pub(super) key: String,
    pub(super) reason: String,
}

/// A conditional statement should have changed one row, and changed another number of them.
#[derive(Debug, Error)]
#[error("expected one row in the right state, found {changed}")]
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
