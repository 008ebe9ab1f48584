//! Deletion of repositories.
//!
//! A deletion first hides the repository, in one transaction after its record. From then on no
//! client sees it, and it has no branches. After that its claims to files are removed one by one,
//! each with its record, and then its rows. That is done in the background
//! ([`Server::purge_deleted_repos`]), and continued after a crash. Until then the name is taken: a
//! creation with this name does the rest first, so that nothing removes a claim of the new
//! repository.
//!
//! All claims under the storage name are removed, also to files that no commit has. Files that were
//! uploaded without authentication have no such claim, so they stay.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::{HubError, HubName};
use crate::index::{HubRepo, Reader};
use crate::runtime::telemetry::chain;
use crate::service::Server;
use crate::service::access::{Claims, Scope};
use crate::service::gc::Pace;
use crate::service::registration_log::HubChange;

/// Claims that are removed with one hold of the lock of the name. Each takes some milliseconds.
const CLAIM_COUNT: u32 = if cfg!(test) { 2 } else { 100 };

impl Server {
    /// Deletes a repository. After `Ok` no client sees it, durably.
    ///
    /// # Errors
    ///
    /// [`HubError::NoRepo`], the caller may not write it, or the store failed.
    pub async fn delete_hub_repo(self: &Arc<Self>, claims: &Claims, name: &HubName) -> Result<(), HubError> {
        let open = self.open_hub_repo(claims, name, Scope::Write).await?;
        let lock = self.lock_hub_repo(&open.repo.storage_name).await;
        let (store, repo) = (Arc::clone(&self.store), self.store.hub_repo_now(&open).await?);
        let delete = async move {
            let _lock = lock;
            let (appended, change) = store.append_hub(HubChange { is_deletion: true, ..HubChange::of(repo) }).await?;
            let deleted = store.index.delete_hub_repo(change.repo.id, Some(appended.number())).await;
            Ok::<_, HubError>(store.settle_deletion(appended, deleted, change.repo).await?)
        };
        if self.uninterrupted(delete).await? { Ok(()) } else { Err(HubError::NoRepo) }
    }

    /// Removes the claims and the rows of all deleted repositories, in steps. A failure of one of
    /// them is logged, and the next call tries again.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn purge_deleted_repos(&self, pace: &Pace) -> Result<(), HubError> {
        let mut after = 0;
        while let Some(repo) = self.store.index.next_deleted_hub_repo(after).await? {
            after = repo.id;
            loop {
                let lock = self.lock_hub_repo(&repo.storage_name).await;
                let purged = self.purge_some(&repo).await;
                drop(lock);
                match purged {
                    Ok(ControlFlow::Continue(())) => {}
                    Ok(ControlFlow::Break(())) => break,
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
        Ok(())
    }

    /// Removes what is left of a deleted repository. The caller holds the lock of its name.
    pub(super) async fn purge(&self, repo: &HubRepo) -> Result<(), HubError> {
        while self.purge_some(repo).await?.is_continue() {}
        Ok(())
    }

    /// Removes some of the claims of a deleted repository, or its rows if it has none. The caller
    /// holds the lock of its name, so no repository has been created under this name meanwhile.
    async fn purge_some(&self, repo: &HubRepo) -> Result<ControlFlow<()>, HubError> {
        let HubRepo { id, kind, namespace, name, storage_name, .. } = repo.clone();
        let index = &self.store.index;
        let deleted = index.find_deleted_hub_repo(kind, namespace, name).await?;
        if deleted.is_none_or(|deleted| deleted.id != id) {
            return Ok(ControlFlow::Break(()));
        }
        let claimed = index.files_after(Reader::Repo(storage_name.clone()), None, CLAIM_COUNT).await?;
        for file in &claimed {
            let removed = self.store.remove_claims(file.hash, Some(storage_name.clone())).await?;
            if removed.repos.is_empty() {
                // Otherwise the next call would list it again, without end.
                let what = format!("the claim to file {}", file.hash);
                return Err(HubError::Inconsistent { repo: storage_name, what });
            }
        }
        if !claimed.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        index.drop_hub_repo(id).await?;
        Ok(ControlFlow::Break(()))
    }
}
