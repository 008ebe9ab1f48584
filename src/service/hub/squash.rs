//! Changes of a repository that add no files: the squash of a branch, and its visibility.

use std::sync::Arc;

use super::advance::Ready;
use super::commit::check_message;
use super::part::sealed;
use super::refs::author_of;
use super::{HubError, OpenRepo};
use crate::index::{HubCommit, HubRef, HubRepo};
use crate::service::Server;
use crate::service::registration_log::HubChange;

impl Server {
    /// Sets whether a repository is private. Every token for it can read it all the same.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub async fn set_hub_repo_private(self: &Arc<Self>, open: &OpenRepo, is_private: bool) -> Result<(), HubError> {
        let lock = self.lock_hub_repo(&open.repo.storage_name).await?;
        let now = self.store.hub_repo_now(open).await?;
        if now.is_private == is_private {
            return Ok(());
        }
        let repo = HubRepo { is_private, ..now };
        let store = Arc::clone(&self.store);
        let set = async move {
            let lock = Arc::new(lock);
            let (appended, change) = store.append_hub(HubChange::of(repo)).await?;
            let appended = appended.holding(Arc::clone(&lock));
            let HubRepo { id, storage_name, .. } = change.repo.clone();
            let set = store.index.set_hub_repo_private(id, is_private, appended.number()).await;
            let look = async {
                let found = store.index.find_stored_hub_repo(storage_name).await?;
                let is_set = found.as_ref().is_some_and(|found| found.is_private == is_private);
                // What the log must say if it was not set.
                Ok(found.filter(|_| !is_set).map(HubChange::of))
            };
            Ok::<_, HubError>(store.settle_hub(appended, set, look).await?)
        };
        if self.uninterrupted(set).await? { Ok(()) } else { Err(HubError::NoRepo) }
    }

    /// Replaces the history of a branch by one commit with the same files. Old commits can be read
    /// by their ids for a week.
    ///
    /// # Errors
    ///
    /// [`HubError::NoRevision`] without this branch; [`HubError::Moving`] if another process moves
    /// it meanwhile; [`RegisterError::OverQuota`](crate::service::RegisterError::OverQuota) if the
    /// branch has one commit already.
    pub async fn squash(
        self: &Arc<Self>,
        open: &OpenRepo,
        branch: &str,
        message: Option<String>,
    ) -> Result<(), HubError> {
        let name = format!("refs/heads/{branch}");
        let message = message.filter(|message| !message.is_empty());
        let message = message.unwrap_or_else(|| format!("Super-squash branch '{branch}'"));
        check_message(&message)?;
        let lock = Arc::new(self.lock_hub_repo(&open.repo.storage_name).await?);
        let head = self.head(open, branch, &name).await?;
        // A repository over its quota can get rid of its history.
        if head.parent.is_none() {
            self.check_quota_of_commit(&open.repo.storage_name, message.len(), std::iter::empty()).await?;
        }
        // It may be listed since before the branch was created.
        self.store.index.set_unneeded_commits(open.repo.id, vec![head.id], None).await?;
        let at = self.store.clock.now().max(head.at);
        let commit =
            HubCommit { id: head.id, tree: head.tree, parent: None, at, author: author_of(&open.claims), message };
        let from = HubRef { name, target: head.id };
        let ready = Ready { from, commit: sealed(commit)?, trees: Vec::new(), blobs: Vec::new(), permits: Vec::new() };
        self.advance(open, ready, &lock).await?.map(drop).ok_or(HubError::Moving)
    }
}
