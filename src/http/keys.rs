//! The signing keys in use, the list of revoked tokens, and the accounts. They change while the
//! server runs: `zorb token rotate-key`, `zorb token revoke`, `zorb user` and `zorb org` write a
//! new key file.

use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};

use crate::runtime::blocking::Pool;
use crate::service::access::{KeyRing, Reason, Refused};

/// The source from which keys are reloaded: the key file.
pub trait KeySource: Debug + Send + Sync + 'static {
    /// The current keys; `None` if the source has not changed since the last call, or cannot be
    /// read. Blocks. Cheap if nothing has changed.
    fn changed(&self) -> Option<KeyRing>;
}

/// The keys in use, shared by all code that signs or checks.
#[derive(Clone, Debug)]
pub struct Keys {
    ring: Arc<RwLock<Arc<KeyRing>>>,
    source: Arc<dyn KeySource>,
    /// Runs one reload at a time, because each request with an unknown key or user causes one.
    reloads: Pool,
}

impl Keys {
    /// Keys that begin with this ring. [`Keys::refresh`] reloads them from the source.
    #[must_use]
    pub fn new(ring: KeyRing, source: Arc<dyn KeySource>) -> Self {
        Self { ring: Arc::new(RwLock::new(Arc::new(ring))), source, reloads: Pool::new(1) }
    }

    /// The keys as last loaded.
    #[must_use]
    pub fn current(&self) -> Arc<KeyRing> {
        Arc::clone(&self.ring.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reloads the keys if they have changed.
    pub async fn refresh(&self) {
        let (source, ring) = (Arc::clone(&self.source), Arc::clone(&self.ring));
        // The new keys are set on the pool, not by the caller. The caller may be dropped while it
        // waits, and then the change would be lost. And two callers could set their keys in the
        // wrong order.
        let reload = move || {
            if let Some(changed) = source.changed() {
                let keys: Vec<_> = changed.ids().map(|id| id.number()).collect();
                let (revoked_tokens, users) = (changed.revoked_count(), changed.accounts().users().count());
                tracing::info!(?keys, revoked_tokens, users, "reloaded the keys");
                *ring.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(changed);
            }
        };
        self.reloads.run(reload).await;
    }

    /// Checks a signed text with the keys in use. If its key or user is unknown, reloads the keys
    /// and checks again, because the key or user may be new and clients do not retry after a 401.
    pub(super) async fn check<T>(&self, check: impl Fn(&KeyRing) -> Result<T, Refused> + Send) -> Result<T, Refused> {
        match check(&self.current()) {
            Err(refused) if matches!(refused.reason(), Reason::UnknownKey | Reason::Account) => {
                self.refresh().await;
                check(&self.current())
            }
            result => result,
        }
    }
}
