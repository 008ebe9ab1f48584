//! Who shares, and for whom something is done.

use std::future::Future;

/// A tenant: a number that is the same for the same tenant. The layers above derive it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant(u64);

impl Tenant {
    /// The server itself, and work without a tenant.
    pub const SERVER: Self = Self(0);

    /// The tenant with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The tenant of the current task, as set by [`Tenant::doing`]; the server if not set.
    #[must_use]
    pub fn current() -> Self {
        CURRENT.try_with(|tenant| *tenant).unwrap_or(Self::SERVER)
    }

    /// Does something for this tenant: in its line, wherever that waits in a line.
    pub async fn doing<F: Future>(self, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }
}

tokio::task_local! {
    static CURRENT: Tenant;
}
