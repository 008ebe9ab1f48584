//! Who is asking. There is no authentication yet: whoever reaches the server may do everything.

use crate::service::access::{Claims, RepoScope, Scope};

/// The claims of a server without authentication.
pub(super) const fn anonymous() -> Claims {
    Claims {
        scope: Scope::Admin,
        repo: RepoScope::All,
        subject: None,
        issued_unix_secs: 0,
        expires_unix_secs: u64::MAX,
    }
}
