//! Registrations under the names of Hub repositories that are being deleted.
//!
//! A registration that begins after a deletion is refused. One that has begun before goes on, and
//! the deletion is complete only after it has ended. So a claim that it makes is removed with the
//! others, and never belongs to a later repository of the name. A registration has not ended while
//! the index cannot tell its outcome. A crash ends all registrations.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::access::RepoScope;
use super::error::StoreError;
use super::{Server, Store};
use crate::index::StoreLock;
use crate::runtime::fair::Busy;

/// What this process knows of deletions of Hub repositories.
#[derive(Debug, Default)]
pub(super) struct Deleting(Mutex<Names>);

#[derive(Debug, Default)]
struct Names {
    /// The storage names of the repositories that are being deleted.
    deleted: HashSet<String>,
    /// The number of registrations under way in this process, by the storage name.
    registering: HashMap<String, usize>,
}

impl Deleting {
    /// Refuses registrations under this storage name from now on.
    pub(super) fn insert(&self, storage_name: String) {
        self.names().deleted.insert(storage_name);
    }

    /// Accepts registrations under this storage name again.
    pub(super) fn remove(&self, storage_name: &str) {
        self.names().deleted.remove(storage_name);
    }

    /// The storage names of the repositories that are being deleted.
    pub(super) fn list(&self) -> Vec<String> {
        self.names().deleted.iter().cloned().collect()
    }

    /// Whether a registration is under way in this process that began before the deletion.
    pub(super) fn has_registration(&self, storage_name: &str) -> bool {
        self.names().registering.contains_key(storage_name)
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registration that is under way. Until this is dropped, no deletion of its repository is
/// complete.
#[derive(Debug)]
pub(super) struct Registering {
    _counted: Counted,
    _store_lock: Option<StoreLock>,
}

/// One registration in [`Names::registering`].
#[derive(Debug)]
struct Counted {
    home: Arc<Deleting>,
    name: String,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut names = self.home.names();
        if let Some(count) = names.registering.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                names.registering.remove(&self.name);
            }
        }
    }
}

impl Server {
    /// Begins a registration under this name. One under the name of a repository that is being
    /// deleted is refused: the deletion would remove its claims.
    ///
    /// # Errors
    ///
    /// A repository of this name is being deleted, or the index does not respond.
    pub(super) async fn begin_registering(&self, repo: &RepoScope) -> Result<Registering, StoreError> {
        let (name, busy) = (repo.to_string(), Busy { is_above_share: false });
        let counted = {
            let mut names = self.deleting.names();
            // With several servers the index is asked, because another one may have deleted it.
            if names.deleted.contains(&name) && !self.store.index.is_shared() {
                return Err(busy.into());
            }
            *names.registering.entry(name.clone()).or_default() += 1;
            Counted { home: Arc::clone(&self.deleting), name: name.clone() }
        };
        // What is no name of a Hub repository now can be deleted only after it was created, and
        // a new repository keeps earlier claims.
        let mut store_lock = None;
        if self.store.index.is_shared() && self.store.index.has_storage_name(name.clone()).await? {
            // Before the lock also, so that refused registrations do not hold up the purge.
            self.store.check_stored_hub_repo(&name).await?;
            store_lock = self.store.share_registrations(&name).await?;
            self.store.check_stored_hub_repo(&name).await?;
        }
        Ok(Registering { _counted: counted, _store_lock: store_lock })
    }
}

impl Store {
    /// Refuses the storage name of a repository that is being deleted. The name is in use.
    async fn check_stored_hub_repo(&self, storage_name: &str) -> Result<(), StoreError> {
        match self.index.find_stored_hub_repo(storage_name.to_owned()).await? {
            Some(_) => Ok(()),
            // Another server has completed the deletion meanwhile.
            None if !self.index.has_storage_name(storage_name.to_owned()).await? => Ok(()),
            None => Err(Busy { is_above_share: false }.into()),
        }
    }
}
