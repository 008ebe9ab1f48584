//! Maps sqlx errors of PostgreSQL to [`IndexError`]s. Only this module and `sqlite/failure.rs`
//! inspect sqlx errors.

use crate::index::error::{Inconsistent, IndexError, IndexErrorKind};
use crate::runtime::outage::Outage;

/// Classifies a failure for callers.
pub(super) fn map(op: &'static str, error: sqlx::Error) -> IndexError {
    let kind = match (&error, code(&error)) {
        (sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_), _) => IndexErrorKind::Inconsistent,
        (sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::Io(_), _) => IndexErrorKind::Unavailable,
        (sqlx::Error::WorkerCrashed | sqlx::Error::BeginFailed, _) => IndexErrorKind::Unavailable,
        (_, Some(code)) => kind(&code),
        _ => IndexErrorKind::Other,
    };
    let source = match error {
        // An error that `decode` made for an invalid column: keep it without the wrapper of sqlx.
        sqlx::Error::Decode(source) if source.is::<Inconsistent>() => source,
        error => Box::new(error),
    };
    IndexError { op, kind, source }
}

/// Whether the same statement may succeed a little later: a serialization failure, a deadlock, or a
/// lock that was not available in time.
pub(super) fn is_transient(error: &sqlx::Error) -> bool {
    matches!(code(error).as_deref(), Some("40001" | "40P01" | "55P03"))
}

fn code(error: &sqlx::Error) -> Option<String> {
    match error {
        sqlx::Error::Database(error) => error.code().map(|code| code.into_owned()),
        _ => None,
    }
}

/// Classifies an SQLSTATE: <https://www.postgresql.org/docs/15/errcodes-appendix.html>.
fn kind(code: &str) -> IndexErrorKind {
    match code {
        "53100" => IndexErrorKind::NoSpace,
        "53200" => IndexErrorKind::Outage(Outage::OutOfMemory),
        // A lost connection, limits of the server, a timeout, a server that starts or stops, a
        // standby.
        "53300" | "53400" | "57014" | "25006" | "25P03" | "40001" | "40P01" | "55P03" => IndexErrorKind::Unavailable,
        "58030" => IndexErrorKind::Outage(Outage::Failing),
        "XX001" | "XX002" => IndexErrorKind::Damaged,
        _ if code.starts_with("08") || code.starts_with("57P") => IndexErrorKind::Unavailable,
        _ => IndexErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_sqlstate_tell_what_passes_by_itself() {
        assert_eq!(kind("53100"), IndexErrorKind::NoSpace);
        assert_eq!(kind("08006"), IndexErrorKind::Unavailable);
        assert_eq!(kind("57P01"), IndexErrorKind::Unavailable);
        assert_eq!(kind("55P03"), IndexErrorKind::Unavailable);
        assert_eq!(kind("58030"), IndexErrorKind::Outage(Outage::Failing));
        assert_eq!(kind("XX001"), IndexErrorKind::Damaged);
        // Violated constraints and programming errors.
        assert_eq!(kind("23503"), IndexErrorKind::Other);
        assert_eq!(kind("42601"), IndexErrorKind::Other);
    }
}
