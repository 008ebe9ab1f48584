//! Write transactions: begun, run and ended in one place, where tests count statements and let
//! single ones fail.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use sqlx::{Connection, Sqlite, SqliteConnection, Transaction};

use super::map;
#[cfg(any(test, feature = "full-tests"))]
use super::probe::{self, Place};
use crate::index::error::IndexError;

/// From this time on a transaction is logged: other writers have waited for it.
const SLOW: Duration = Duration::from_millis(50);

/// A transaction that may write from its beginning. Dropped without a commit, it changes nothing.
pub(super) struct Write<'c> {
    op: &'static str,
    transaction: Transaction<'c, Sqlite>,
    began: Instant,
}

impl<'c> Write<'c> {
    pub(super) async fn begin(op: &'static str, connection: &'c mut SqliteConnection) -> Result<Self, IndexError> {
        #[cfg(any(test, feature = "full-tests"))]
        probe::pass(Place::Begin, op)?;
        let began = Instant::now();
        let transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(|error| map(op, error))?;
        Ok(Self { op, transaction, began })
    }

    /// After an error the outcome is unknown.
    pub(super) async fn commit(self) -> Result<(), IndexError> {
        let op = self.op;
        #[cfg(any(test, feature = "full-tests"))]
        probe::pass(Place::Commit, op)?;
        let statements = self.began.elapsed();
        self.transaction.commit().await.map_err(|error| map(op, error))?;
        let whole = self.began.elapsed();
        if whole >= SLOW {
            tracing::debug!(operation = op, ?whole, ?statements, "slow write of the index");
        }
        #[cfg(any(test, feature = "full-tests"))]
        {
            probe::record_slow(op, whole, statements);
            probe::pass(Place::Committed, op)?;
        }
        Ok(())
    }

    pub(super) async fn rollback(self) -> Result<(), IndexError> {
        self.transaction.rollback().await.map_err(|error| map(self.op, error))
    }
}

impl Deref for Write<'_> {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.transaction
    }
}

impl DerefMut for Write<'_> {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.transaction
    }
}

/// The connection for the next statement of a transaction. In tests the statement may fail.
#[cfg_attr(not(any(test, feature = "full-tests")), expect(clippy::unnecessary_wraps, reason = "it fails in tests"))]
pub(super) fn statement<'c>(
    op: &'static str,
    connection: &'c mut SqliteConnection,
) -> Result<&'c mut SqliteConnection, IndexError> {
    #[cfg(any(test, feature = "full-tests"))]
    probe::pass(Place::Statement, op)?;
    #[cfg(not(any(test, feature = "full-tests")))]
    let _ = op;
    Ok(connection)
}
