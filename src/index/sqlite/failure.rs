//! Maps sqlx errors to [`IndexError`]s. No other module inspects sqlx errors.

use sqlx::{Connection, SqliteConnection};

use crate::index::error::{IndexError, IndexErrorKind};
use crate::runtime::outage::Outage;

/// Classifies a failure for callers.
pub(in crate::index) fn map(op: &'static str, error: sqlx::Error) -> IndexError {
    let code = match &error {
        sqlx::Error::Database(error) => error.code().and_then(|code| code.parse::<i64>().ok()),
        _ => None,
    };
    let kind = match (&error, code) {
        (sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed, _) => IndexErrorKind::Unavailable,
        (sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_), _) => IndexErrorKind::Inconsistent,
        (_, Some(code)) => kind(code),
        _ => IndexErrorKind::Other,
    };
    IndexError { op, kind, source: Box::new(error) }
}

/// Classifies one of SQLite's extended result codes: <https://www.sqlite.org/rescode.html>.
const fn kind(code: i64) -> IndexErrorKind {
    const BUSY: i64 = 5;
    const NOMEM: i64 = 7;
    const READONLY: i64 = 8;
    const IOERR: i64 = 10;
    const FULL: i64 = 13;
    const CANTOPEN: i64 = 14;
    const CORRUPT: i64 = 11;
    const NOTADB: i64 = 26;
    /// The shared memory of the WAL could not grow: a full disk shows up like this there.
    const IOERR_SHMSIZE: i64 = IOERR | 19 << 8;
    match (code, code & 0xff) {
        (_, FULL) | (IOERR_SHMSIZE, _) => IndexErrorKind::NoSpace,
        (_, BUSY) => IndexErrorKind::Unavailable,
        (_, NOMEM) => IndexErrorKind::Outage(Outage::OutOfMemory),
        (_, READONLY) => IndexErrorKind::Outage(Outage::ReadOnly),
        (_, IOERR) => IndexErrorKind::Outage(Outage::Failing),
        (_, CANTOPEN) => IndexErrorKind::Outage(Outage::CannotOpen),
        (_, CORRUPT | NOTADB) => IndexErrorKind::Damaged,
        _ => IndexErrorKind::Other,
    }
}

/// Whether a connection can begin to write; if not, it is closed and another one is opened.
///
/// SQLite opens a file without write permission for reading only, without an error. The connection
/// stays read-only after the file system is writable again. Nor does it end a transaction that
/// failed at its commit.
pub(super) async fn can_write(connection: &mut SqliteConnection) -> bool {
    match connection.begin_with("BEGIN IMMEDIATE").await {
        Ok(transaction) => transaction.rollback().await.is_ok(),
        // Another process is writing, such as a restore: that says nothing about this connection.
        Err(error) => matches!(map("begin to write", error).kind, IndexErrorKind::Unavailable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_codes_mean_their_primary_code_but_for_disk_full() {
        assert_eq!(kind(13), IndexErrorKind::NoSpace);
        assert_eq!(kind(4874), IndexErrorKind::NoSpace);
        assert_eq!(kind(5), IndexErrorKind::Unavailable);
        assert_eq!(kind(778), IndexErrorKind::Outage(Outage::Failing));
        assert_eq!(kind(264), IndexErrorKind::Outage(Outage::ReadOnly));
        assert_eq!(kind(14), IndexErrorKind::Outage(Outage::CannotOpen));
        assert_eq!(kind(7), IndexErrorKind::Outage(Outage::OutOfMemory));
        // Damage and programming errors are no outage.
        assert_eq!(kind(11), IndexErrorKind::Damaged);
        assert_eq!(kind(267), IndexErrorKind::Damaged);
        assert_eq!(kind(26), IndexErrorKind::Damaged);
        assert_eq!(kind(1), IndexErrorKind::Other);
    }
}
