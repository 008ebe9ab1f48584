//! Maps sqlx errors of SQLite to [`IndexError`]s. Only this module and `postgres/failure.rs`
//! inspect sqlx errors.

use crate::index::error::{Inconsistent, IndexError, IndexErrorKind};
use crate::runtime::outage::Outage;

/// The error of the operation `op`, with a kind by which a caller can react.
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
    let source = match error {
        // An error that `decode` made for an invalid column: keep it without the wrapper of sqlx.
        sqlx::Error::Decode(source) if source.is::<Inconsistent>() => source,
        error => Box::new(error),
    };
    IndexError { op, kind, source }
}

/// Classifies one of SQLite's extended result codes: <https://www.sqlite.org/rescode.html>.
const fn kind(code: i64) -> IndexErrorKind {
    const BUSY: i64 = 5;
    const NOMEM: i64 = 7;
    const READONLY: i64 = 8;
    const IOERR: i64 = 10;
    const CORRUPT: i64 = 11;
    const FULL: i64 = 13;
    const CANTOPEN: i64 = 14;
    const NOTADB: i64 = 26;
    /// The shared memory of the WAL could not grow, because the disk is full.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_codes_mean_their_primary_code_except_full_disk() {
        assert_eq!(kind(13), IndexErrorKind::NoSpace);
        assert_eq!(kind(10 | 19 << 8), IndexErrorKind::NoSpace);
        assert_eq!(kind(5), IndexErrorKind::Unavailable);
        assert_eq!(kind(10 | 3 << 8), IndexErrorKind::Outage(Outage::Failing));
        assert_eq!(kind(8 | 1 << 8), IndexErrorKind::Outage(Outage::ReadOnly));
        assert_eq!(kind(14), IndexErrorKind::Outage(Outage::CannotOpen));
        assert_eq!(kind(7), IndexErrorKind::Outage(Outage::OutOfMemory));
        // Damage and programming errors are no outage.
        assert_eq!(kind(11), IndexErrorKind::Damaged);
        assert_eq!(kind(11 | 1 << 8), IndexErrorKind::Damaged);
        assert_eq!(kind(26), IndexErrorKind::Damaged);
        assert_eq!(kind(1), IndexErrorKind::Other);
    }
}
