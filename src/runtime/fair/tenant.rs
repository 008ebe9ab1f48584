//! Tenants, and the tenant that the current task works for.

use std::future::Future;

/// A tenant, identified by a number. The layers above derive the number from a token or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant(u64);

impl Tenant {
    /// The tenant of the server's own work, and of work without a tenant.
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

    /// Runs `work` for this tenant. Within `work`, [`Tenant::current`] returns this tenant, which
    /// decides in which queue the work waits.
    pub async fn doing<F: Future>(self, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }
}

tokio::task_local! {
    static CURRENT: Tenant;
}
