//! Writes a commit: its record, then its directories and files, then one transaction that moves the
//! branch.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{HubError, OpenRepo};
use crate::git::ObjectId;
use crate::index::{HubBlob, HubCommit, HubRef, HubRepo, HubTree};
use crate::runtime::fair::Permit;
use crate::service::Server;
use crate::service::registration_log::HubChange;
use crate::service::store_locks::RepoLock;
use crate::service::upload::KeyLocks;

/// Locks of repositories by their names in small letters. Each change of a repository is made with
/// its lock, so that its records are in the order of its changes. Commits of this process do not
/// compete either: only other processes can move a branch between its read and its write.
pub(in crate::service) type BranchLocks = KeyLocks<String>;

/// A commit that is ready to be put on a branch.
pub(super) struct Ready {
    /// The branch, and the commit that it must name still.
    pub(super) from: HubRef,
    pub(super) commit: HubCommit,
    /// The directories and files that may be new.
    pub(super) trees: Vec<HubTree>,
    pub(super) blobs: Vec<HubBlob>,
    /// For their memory; held until they are written, also if the client disconnects.
    pub(super) permits: Vec<Permit>,
}

impl Server {
    /// Writes rows of files that have changed although the commit changes nothing: the earlier
    /// contents of a large file had a false sha256.
    pub(super) async fn renew_blobs(
        &self,
        open: &OpenRepo,
        blobs: Vec<HubBlob>,
        lock: &Arc<RepoLock>,
    ) -> Result<(), HubError> {
        let known = self.store.index.find_hub_blobs(open.repo.id, blobs.iter().map(|blob| blob.id).collect()).await?;
        let known: HashMap<ObjectId, HubBlob> = known.into_iter().map(|blob| (blob.id, blob)).collect();
        let blobs: Vec<HubBlob> = blobs.into_iter().filter(|blob| known.get(&blob.id) != Some(blob)).collect();
        if blobs.is_empty() {
            return Ok(());
        }
        let (store, lock) = (Arc::clone(&self.store), Arc::clone(lock));
        let change = HubChange { blobs, ..HubChange::of(self.store.hub_repo_now(open).await?) };
        let write = async move {
            let _lock = lock;
            let (appended, HubChange { repo, blobs, .. }) = store.append_hub(change).await?;
            // Applied before its change: when the rows are there, the same request writes no other
            // record. If they do not follow, the record is right all the same.
            appended.retain_applied().await?;
            store.index.add_hub_objects(repo.id, Vec::new(), blobs, store.clock.now()).await?;
            Ok::<_, HubError>(())
        };
        self.uninterrupted(write).await
    }

    /// Writes the record, then the directories and files, and then moves the branch. `None` if it
    /// has moved meanwhile.
    pub(super) async fn advance(
        self: &Arc<Self>,
        open: &OpenRepo,
        Ready { from, commit, trees, blobs, permits }: Ready,
        lock: &Arc<RepoLock>,
    ) -> Result<Option<ObjectId>, HubError> {
        let (store, lock, id) = (Arc::clone(&self.store), Arc::clone(lock), commit.id);
        let repo = self.store.hub_repo_now(open).await?;
        let change = HubChange {
            commits: vec![commit.clone()],
            trees,
            blobs,
            refs: BTreeMap::from([(from.name.clone(), Some(id))]),
            ..HubChange::of(HubRepo { updated: commit.at, ..repo })
        };
        let write = async move {
            let _permits = permits;
            let (appended, change) = store.append_hub(change).await?;
            let appended = appended.holding(Arc::clone(&lock));
            let HubChange { repo, trees, blobs, .. } = change;
            let (index, name) = (&store.index, from.name.clone());
            let moved = match index.add_hub_objects(repo.id, trees, blobs, commit.at).await {
                Ok(()) => index.move_hub_ref(repo.id, from, commit, appended.number()).await,
                Err(error) => Err(error),
            };
            Ok::<_, HubError>(store.settle_ref(appended, moved, repo, (name, Some(id))).await?)
        };
        // In a task, so that a client that disconnects does not leave it half done.
        let has_moved = self.uninterrupted(write).await?;
        Ok(has_moved.then_some(id))
    }
}
