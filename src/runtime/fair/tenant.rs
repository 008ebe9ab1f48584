//! Who shares, and for whom something is done.

use std::future::Future;

/// Whoever shares: a number that is the same for the same one. What it is made of is the business of those above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant(u64);

impl Tenant {
    /// The server itself, and what it does for nobody in particular.
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

    /// For whom what runs now is done, as [`Tenant::doing`] said; the server where nobody did.
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
