//! The keys in use. They change while the server runs: `zorb token rotate-key` and `revoke` write a
//! new key file beside it.

use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};

use crate::runtime::blocking::Pool;
use crate::service::access::{KeyRing, Reason, Refused};

/// Where keys come from.
pub trait KeySource: Debug + Send + Sync + 'static {
    /// The keys as they are now, if that is not what this gave out before. Blocks; costs next to
    /// nothing while nothing has changed. What cannot be read is not a change: the keys in use
    /// stay.
    fn changed(&self) -> Option<KeyRing>;
}

/// The keys in use, shared by everybody who signs or checks.
#[derive(Clone, Debug)]
pub struct Keys {
    ring: Arc<RwLock<Arc<KeyRing>>>,
    source: Arc<dyn KeySource>,
    /// One reload at a time: a request with an unknown key triggers one.
    looks: Pool,
}

impl Keys {
    /// These keys, until the source has others.
    #[must_use]
    pub fn new(ring: KeyRing, source: Arc<dyn KeySource>) -> Self {
        Self { ring: Arc::new(RwLock::new(Arc::new(ring))), source, looks: Pool::new(1) }
    }

    /// The keys as last seen.
    #[must_use]
    pub fn current(&self) -> Arc<KeyRing> {
        Arc::clone(&self.ring.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks whether there are others.
    pub async fn refresh(&self) {
        let (source, ring) = (Arc::clone(&self.source), Arc::clone(&self.ring));
        // Applied where it was read: a waiter may be dropped, and the later of two reloads must
        // win.
        let look = move || {
            if let Some(changed) = source.changed() {
                let keys: Vec<_> = changed.ids().map(|id| id.number()).collect();
                tracing::info!(?keys, revoked_tokens = changed.revoked_count(), "reloaded the keys");
                *ring.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(changed);
            }
        };
        self.looks.run(look).await;
    }

    /// Checks something signed. If its key is not known, there may be a newer key file: a token
    /// that was issued a moment ago must not be refused, since clients give up for good on a 401.
    pub(super) async fn check<T>(&self, check: impl Fn(&KeyRing) -> Result<T, Refused> + Send) -> Result<T, Refused> {
        match check(&self.current()) {
            Err(refused) if refused.reason() == Reason::UnknownKey => {
                self.refresh().await;
                check(&self.current())
            }
            result => result,
        }
    }
}
