//! Deletion of repositories.
//!
//! A deletion first hides the repository, in one transaction, and then has its record. From the
//! transaction on no client sees the repository, and it has no branches. After that its claims to
//! files are removed one by one, each with its record, then its rows, and a last record says that
//! nothing is left. That is done in the background ([`Server::purge_deleted_repos`]), and continued
//! after a crash. Until then the name is taken: a creation with this name does the rest first, and
//! registrations under it are refused, so that nothing removes a new claim. A registration that
//! began before the deletion goes on, and the deletion is complete only after it has ended. So its
//! claims are removed, too, and never belong to a later repository of the name.
//!
//! The record comes after the transaction, unlike those of other changes: a deletion that was
//! recorded and not made would destroy the repository in a rebuild, with all commits since. In this
//! order a crash between the two leaves a deletion that was not acknowledged, and a rebuild then
//! brings the repository back.
//!
//! A claim is removed in the same order. So if the index is lost after a crash, or after a record
//! could not be written, some claims of the deleted repository may be back. They keep their files,
//! and count for the quota of the name.
//!
//! All claims under the storage name are removed, also to files that no commit has. Files that were
//! uploaded without authentication have no such claim, so they stay.

use std::sync::Arc;

use super::{HubError, HubName};
use crate::index::{HubRepo, Reader};
use crate::runtime::fair::Busy;
use crate::runtime::telemetry::chain;
use crate::service::access::{Claims, Scope};
use crate::service::gc::Pace;
use crate::service::registration_log::HubChange;
use crate::service::{Server, Store, StoreError};

/// Claims that are removed with one hold of the lock of the name. Each takes some milliseconds.
const CLAIM_COUNT: u32 = if cfg!(test) { 2 } else { 100 };

/// Steps of a purge that a creation of the same name does. After that its client is asked to retry.
const CREATION_STEP_COUNT: usize = 16;

/// What a step of a purge has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    Some,
    /// Registrations that began before the deletion.
    Registrations,
}

impl Server {
    /// Deletes a repository. After `Ok` no client sees it, durably.
    ///
    /// # Errors
    ///
    /// [`HubError::NoRepo`], the caller may not write it, or the store failed. Then it may be
    /// deleted all the same.
    pub async fn delete_hub_repo(self: &Arc<Self>, claims: &Claims, name: &HubName) -> Result<(), HubError> {
        let open = self.open_present_hub_repo(claims, name, Scope::Write).await?;
        let lock = self.lock_hub_repo(&open.repo.storage_name).await?;
        let (server, repo) = (Arc::clone(self), self.store.named_hub_repo_now(&open).await?);
        let delete = async move {
            let _lock = lock;
            // Before the transaction, because claims may be removed after it.
            server.deleting.insert(repo.storage_name.clone());
            let is_deleted = server.store.index.delete_hub_repo(repo.id).await?;
            if is_deleted {
                server.store.record_deletion(&repo).await?;
                tracing::info!(repo = repo.storage_name, "deleted a repository");
            }
            Ok::<_, HubError>(is_deleted)
        };
        if self.uninterrupted(delete).await? { Ok(()) } else { Err(HubError::NoRepo) }
    }

    /// Refuses registrations under the names of deleted repositories from now on, as long as their
    /// claims are being removed. To be called before a server takes requests.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn load_deleted_repos(&self) -> Result<(), HubError> {
        let deleted = self.store.deleted_repos().await?;
        deleted.into_iter().for_each(|repo| self.deleting.insert(repo.storage_name));
        Ok(())
    }

    /// Removes the claims and the rows of all deleted repositories, in steps. A failure of one of
    /// them is logged, and the next call tries again.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn purge_deleted_repos(&self, pace: &Pace) -> Result<(), HubError> {
        for repo in self.store.deleted_repos().await? {
            loop {
                let purged = async {
                    let _lock = self.lock_hub_repo_to_purge(&repo.storage_name).await?;
                    self.purge_some(&repo).await
                };
                match purged.await {
                    Ok(Left::Some) => {}
                    Ok(Left::Nothing | Left::Registrations) => break,
                    Err(error) => {
                        tracing::warn!(repo = repo.storage_name, error = %chain(&error), "cannot remove the files of a \
                            deleted repository; retrying later");
                        break;
                    }
                }
                if !pace.next().await {
                    return Ok(());
                }
            }
        }
        // Also the names of repositories whose deletion has failed.
        for name in self.deleting.list() {
            let lock = match self.lock_hub_repo_to_purge(&name).await {
                Ok(lock) => lock,
                Err(StoreError::Busy(_)) => continue,
                Err(error) => return Err(error.into()),
            };
            if self.store.index.find_deleted_stored_hub_repo(name.clone()).await?.is_none() {
                self.deleting.remove(&name);
            }
            drop(lock);
        }
        Ok(())
    }

    /// Removes what is left of a deleted repository, before a creation with its name. The caller
    /// holds the lock of the name.
    ///
    /// # Errors
    ///
    /// The store failed, or that takes longer than a client waits.
    pub(super) async fn purge(&self, repo: &HubRepo) -> Result<(), HubError> {
        for _ in 0..CREATION_STEP_COUNT {
            match self.purge_some(repo).await? {
                Left::Nothing => return Ok(()),
                Left::Some => {}
                Left::Registrations => break,
            }
        }
        Err(StoreError::from(Busy { is_above_share: false }).into())
    }

    /// Removes some of the claims of a deleted repository, or some of its rows if it has none. The
    /// caller holds the lock of its name, so no repository has been created under it meanwhile.
    async fn purge_some(&self, repo: &HubRepo) -> Result<Left, HubError> {
        let HubRepo { id, kind, namespace, name, storage_name, .. } = repo.clone();
        let (store, index) = (&self.store, &self.store.index);
        let deleted = index.find_deleted_hub_repo(kind, namespace, name).await?;
        if deleted.is_none_or(|deleted| deleted.id != id) {
            return Ok(Left::Nothing);
        }
        if !index.is_hub_repo_recorded(id).await? {
            store.record_deletion(repo).await?;
        }
        // Before the list of claims: a registration that ends after the list may add some.
        let stopped = store.stop_registrations(&storage_name).await?;
        let is_registering = stopped.is_none() || self.deleting.has_registration(&storage_name);
        let claimed = index.files_after(Reader::Repo(storage_name.clone()), None, CLAIM_COUNT).await?;
        for file in &claimed {
            store.drop_claim(file.hash, &storage_name).await?;
        }
        if !claimed.is_empty() {
            return Ok(Left::Some);
        }
        if is_registering {
            return Ok(Left::Registrations);
        }
        if index.drop_hub_rows(id).await? {
            return Ok(Left::Some);
        }
        let (appended, _) = store.append_hub(HubChange { is_end: true, ..HubChange::of(repo.clone()) }).await?;
        appended.retain_applied().await?;
        index.drop_hub_repo(id).await?;
        self.unneeded.forget(&storage_name);
        self.deleting.remove(&storage_name);
        Ok(Left::Nothing)
    }
}

impl Store {
    /// The deleted repositories of which something is left.
    pub(in crate::service) async fn deleted_repos(&self) -> Result<Vec<HubRepo>, StoreError> {
        let mut found: Vec<HubRepo> = Vec::new();
        while let Some(next) = self.index.next_deleted_hub_repo(found.last().map_or(0, |last| last.id)).await? {
            found.push(next);
        }
        Ok(found)
    }

    /// Appends the record of a deletion that was made.
    async fn record_deletion(&self, repo: &HubRepo) -> Result<(), StoreError> {
        self.record_made(HubChange { is_deletion: true, ..HubChange::of(repo.clone()) }).await
    }
}
