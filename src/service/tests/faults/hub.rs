//! Hub repositories in an index with faults.

use futures_util::future::BoxFuture;

use super::FaultyIndex;
use crate::git::ObjectId;
use crate::index::{HubBlob, HubCommit, HubIndex, HubRef, HubRepo, HubTree, IndexError, NewHubRepo, RepoKind};
use crate::runtime::clock::Timestamp;

/// Without faults: no case with faults has Hub repositories.
impl HubIndex for FaultyIndex {
    fn create_hub_repo(
        &self,
        repo: NewHubRepo,
        first: HubCommit,
        trees: Vec<HubTree>,
        blobs: Vec<HubBlob>,
    ) -> BoxFuture<'_, Result<Option<i64>, IndexError>> {
        self.inner.create_hub_repo(repo, first, trees, blobs)
    }

    fn find_hub_repo(
        &self,
        kind: RepoKind,
        namespace: String,
        name: String,
    ) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>> {
        self.inner.find_hub_repo(kind, namespace, name)
    }

    fn list_hub_repos(
        &self,
        kind: RepoKind,
        before: i64,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubRepo>, IndexError>> {
        self.inner.list_hub_repos(kind, before, limit)
    }

    fn find_hub_ref(&self, repo: i64, name: String) -> BoxFuture<'_, Result<Option<ObjectId>, IndexError>> {
        self.inner.find_hub_ref(repo, name)
    }

    fn list_hub_refs(&self, repo: i64, after: String, limit: u32) -> BoxFuture<'_, Result<Vec<HubRef>, IndexError>> {
        self.inner.list_hub_refs(repo, after, limit)
    }

    fn find_hub_commit(&self, repo: i64, id: ObjectId) -> BoxFuture<'_, Result<Option<HubCommit>, IndexError>> {
        self.inner.find_hub_commit(repo, id)
    }

    fn find_hub_tree(&self, repo: i64, id: ObjectId) -> BoxFuture<'_, Result<Option<Vec<u8>>, IndexError>> {
        self.inner.find_hub_tree(repo, id)
    }

    fn find_hub_blobs(&self, repo: i64, ids: Vec<ObjectId>) -> BoxFuture<'_, Result<Vec<HubBlob>, IndexError>> {
        self.inner.find_hub_blobs(repo, ids)
    }

    fn add_hub_objects(
        &self,
        repo: i64,
        trees: Vec<HubTree>,
        blobs: Vec<HubBlob>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<(), IndexError>> {
        self.inner.add_hub_objects(repo, trees, blobs, now)
    }

    fn move_hub_ref(&self, repo: i64, name: String, commit: HubCommit) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.inner.move_hub_ref(repo, name, commit)
    }

    fn create_hub_ref(&self, repo: i64, new: HubRef) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.inner.create_hub_ref(repo, new)
    }

    fn delete_hub_ref(&self, repo: i64, name: String) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.inner.delete_hub_ref(repo, name)
    }

    fn list_hub_commits(
        &self,
        repo: i64,
        after: Option<ObjectId>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubCommit>, IndexError>> {
        self.inner.list_hub_commits(repo, after, limit)
    }

    fn list_hub_trees(
        &self,
        repo: i64,
        after: Option<ObjectId>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubTree>, IndexError>> {
        self.inner.list_hub_trees(repo, after, limit)
    }

    fn list_hub_blobs(
        &self,
        repo: i64,
        after: Option<ObjectId>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubBlob>, IndexError>> {
        self.inner.list_hub_blobs(repo, after, limit)
    }

    fn restore_hub_repo(&self, copy: HubRepo) -> BoxFuture<'_, Result<i64, IndexError>> {
        self.inner.restore_hub_repo(copy)
    }

    fn add_hub_commits(&self, repo: i64, commits: Vec<HubCommit>) -> BoxFuture<'_, Result<(), IndexError>> {
        self.inner.add_hub_commits(repo, commits)
    }

    fn set_hub_refs(&self, repo: i64, refs: Vec<HubRef>) -> BoxFuture<'_, Result<(), IndexError>> {
        self.inner.set_hub_refs(repo, refs)
    }

    fn discard_hub_repos(&self) -> BoxFuture<'_, Result<(), IndexError>> {
        self.inner.discard_hub_repos()
    }
}
