//! Hub repositories in an index with faults.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{Faults, FaultyIndex, index_error};
use crate::format::FileHash;
use crate::git::ObjectId;
use crate::index::{
    HubBlob, HubCommit, HubDeletionIndex, HubGenerations, HubIndex, HubObject, HubRef, HubRenameIndex, HubRepo,
    HubRepoAt, HubSweepIndex, HubTree, IndexError, NewHubRepo, RepoKind, RepoPlace, ShownRepos, UnneededCommit,
    UnneededFile,
};
use crate::runtime::clock::Timestamp;

/// A guard of the sweeps of Hub repositories. Each is broken between the service and the index, so
/// that the service needs no code for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::service::tests) enum SweepGuard {
    /// What was listed is deleted after a week, and not before.
    Grace,
    /// With the lock of the repository, a sweep looks for changes before it deletes something.
    LooksAgain,
    /// Registrations and commits take their files from the list.
    TakesFromList,
    /// With the lock of a file, a sweep looks whether the file is still listed.
    LooksAtFile,
    /// A commit looks, with the lock of the repository, whether its files still have their claims.
    CommitChecksClaims,
    /// A commit is deleted before its directories and files.
    CommitsFirst,
}

#[cfg(feature = "full-tests")]
impl SweepGuard {
    pub(in crate::service::tests) const ALL: [Self; 6] = [
        Self::Grace,
        Self::LooksAgain,
        Self::TakesFromList,
        Self::LooksAtFile,
        Self::CommitChecksClaims,
        Self::CommitsFirst,
    ];
}

impl Faults {
    /// Breaks a guard from now on.
    pub(in crate::service::tests) fn break_guard(&self, guard: SweepGuard) {
        *self.broken.lock().unwrap() = Some(guard);
    }

    pub(super) fn lacks(&self, guard: SweepGuard) -> bool {
        *self.broken.lock().unwrap() == Some(guard)
    }
}

/// Long ago.
const EPOCH: Timestamp = Timestamp::from_millis(0);

/// Faults only in the verbs that change something, and in one at which a test waits.
impl HubIndex for FaultyIndex {
    fn create_hub_repo(
        &self,
        repo: NewHubRepo,
        first: HubCommit,
        trees: Vec<HubTree>,
        blobs: Vec<HubBlob>,
        record: u64,
    ) -> BoxFuture<'_, Result<Option<i64>, IndexError>> {
        self.faults
            .around("create_hub_repo", self.inner.create_hub_repo(repo, first, trees, blobs, record), index_error)
            .boxed()
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
        namespace: Option<String>,
        before: i64,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubRepo>, IndexError>> {
        self.inner.list_hub_repos(kind, namespace, before, limit)
    }

    fn list_shown_hub_repos(
        &self,
        kind: RepoKind,
        shown: ShownRepos,
        place: RepoPlace,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubRepo>, IndexError>> {
        self.inner.list_shown_hub_repos(kind, shown, place, limit)
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

    fn list_hub_history(
        &self,
        repo: i64,
        from: ObjectId,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubCommit>, IndexError>> {
        let listed = self.inner.list_hub_history(repo, from, limit);
        self.faults.around("list_hub_history", listed, index_error).boxed()
    }

    fn find_hub_head(&self, repo: i64, name: String) -> BoxFuture<'_, Result<Option<HubCommit>, IndexError>> {
        self.inner.find_hub_head(repo, name)
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
        self.faults.around("add_hub_objects", self.inner.add_hub_objects(repo, trees, blobs, now), index_error).boxed()
    }

    fn move_hub_ref(
        &self,
        repo: i64,
        from: HubRef,
        commit: HubCommit,
        record: u64,
    ) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.faults.around("move_hub_ref", self.inner.move_hub_ref(repo, from, commit, record), index_error).boxed()
    }

    fn create_hub_ref(&self, repo: i64, new: HubRef, record: u64) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.faults.around("create_hub_ref", self.inner.create_hub_ref(repo, new, record), index_error).boxed()
    }

    fn delete_hub_ref(&self, repo: i64, old: HubRef, record: u64) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.faults.around("delete_hub_ref", self.inner.delete_hub_ref(repo, old, record), index_error).boxed()
    }

    fn set_hub_repo_private(
        &self,
        repo: i64,
        is_private: bool,
        record: u64,
    ) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.faults
            .around("set_hub_repo_private", self.inner.set_hub_repo_private(repo, is_private, record), index_error)
            .boxed()
    }

    fn list_hub_commits(
        &self,
        repo: i64,
        after: Option<ObjectId>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubCommit>, IndexError>> {
        let listed = self.inner.list_hub_commits(repo, after, limit);
        self.faults.around("list_hub_commits", listed, index_error).boxed()
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

    fn put_hub_ref(&self, repo: i64, name: String, target: Option<ObjectId>) -> BoxFuture<'_, Result<(), IndexError>> {
        self.inner.put_hub_ref(repo, name, target)
    }

    fn find_unrecorded_hub_repo(&self) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>> {
        self.inner.find_unrecorded_hub_repo()
    }

    fn set_hub_repo_recorded(&self, repo: i64) -> BoxFuture<'_, Result<(), IndexError>> {
        self.faults.around("set_hub_repo_recorded", self.inner.set_hub_repo_recorded(repo), index_error).boxed()
    }

    fn discard_hub_repos(&self) -> BoxFuture<'_, Result<(), IndexError>> {
        self.inner.discard_hub_repos()
    }
}

impl HubDeletionIndex for FaultyIndex {
    fn delete_hub_repo(&self, repo: i64) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.faults.around("delete_hub_repo", self.inner.delete_hub_repo(repo), index_error).boxed()
    }

    fn drop_hub_rows(&self, repo: i64) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.faults.around("drop_hub_rows", self.inner.drop_hub_rows(repo), index_error).boxed()
    }

    fn find_deleted_hub_repo(
        &self,
        kind: RepoKind,
        namespace: String,
        name: String,
    ) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>> {
        self.inner.find_deleted_hub_repo(kind, namespace, name)
    }

    fn find_deleted_stored_hub_repo(&self, storage_name: String) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>> {
        self.inner.find_deleted_stored_hub_repo(storage_name)
    }

    fn next_deleted_hub_repo(&self, after: i64) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>> {
        self.inner.next_deleted_hub_repo(after)
    }

    fn drop_hub_repo(&self, repo: i64) -> BoxFuture<'_, Result<(), IndexError>> {
        self.faults.around("drop_hub_repo", self.inner.drop_hub_repo(repo), index_error).boxed()
    }
}

impl HubSweepIndex for FaultyIndex {
    fn next_unswept_hub_repo(
        &self,
        after: i64,
        before: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>> {
        self.inner.next_unswept_hub_repo(after, before, now)
    }

    fn hub_generations(&self, repo: i64) -> BoxFuture<'_, Result<Option<HubGenerations>, IndexError>> {
        let read = async move {
            let generations = self.inner.hub_generations(repo).await?;
            let is_frozen = self.faults.lacks(SweepGuard::LooksAgain);
            Ok(generations.map(|found| if is_frozen { HubGenerations { current: 7, swept: -2 } } else { found }))
        };
        self.faults.around("hub_generations", read, index_error).boxed()
    }

    fn set_hub_repo_swept(
        &self,
        repo: i64,
        began: Timestamp,
        generation: i64,
    ) -> BoxFuture<'_, Result<(), IndexError>> {
        let set = self.inner.set_hub_repo_swept(repo, began, generation);
        self.faults.around("set_hub_repo_swept", set, index_error).boxed()
    }

    fn list_unneeded_commits(
        &self,
        repo: i64,
        after: Option<ObjectId>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<UnneededCommit>, IndexError>> {
        async move {
            let mut page = self.inner.list_unneeded_commits(repo, after, limit).await?;
            if self.faults.lacks(SweepGuard::Grace) {
                page.iter_mut().for_each(|unneeded| unneeded.since = EPOCH);
            }
            Ok(page)
        }
        .boxed()
    }

    fn set_unneeded_commits(
        &self,
        repo: i64,
        commits: Vec<ObjectId>,
        since: Option<Timestamp>,
    ) -> BoxFuture<'_, Result<(), IndexError>> {
        let set = self.inner.set_unneeded_commits(repo, commits, since);
        self.faults.around("set_unneeded_commits", set, index_error).boxed()
    }

    fn list_unneeded_files(
        &self,
        repo: i64,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<UnneededFile>, IndexError>> {
        async move {
            let mut page = self.inner.list_unneeded_files(repo, after, limit).await?;
            if self.faults.lacks(SweepGuard::Grace) {
                page.iter_mut().for_each(|unneeded| unneeded.since = EPOCH);
            }
            Ok(page)
        }
        .boxed()
    }

    fn file_unneeded_since(&self, repo: i64, file: FileHash) -> BoxFuture<'_, Result<Option<Timestamp>, IndexError>> {
        let read = async move {
            let since = self.inner.file_unneeded_since(repo, file).await?;
            Ok(match () {
                () if self.faults.lacks(SweepGuard::LooksAtFile) => Some(EPOCH),
                () if self.faults.lacks(SweepGuard::Grace) => since.map(|_| EPOCH),
                () => since,
            })
        };
        self.faults.around("file_unneeded_since", read, index_error).boxed()
    }

    fn renew_unneeded_files(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>> {
        self.inner.renew_unneeded_files(now)
    }

    fn set_unneeded_files(
        &self,
        repo: i64,
        files: Vec<FileHash>,
        since: Option<Timestamp>,
    ) -> BoxFuture<'_, Result<(), IndexError>> {
        let is_ignored = since.is_none() && self.faults.lacks(SweepGuard::TakesFromList);
        let set =
            async move { if is_ignored { Ok(()) } else { self.inner.set_unneeded_files(repo, files, since).await } };
        self.faults.around("set_unneeded_files", set, index_error).boxed()
    }

    fn hub_repos_with_unneeded_files(&self) -> BoxFuture<'_, Result<Vec<HubRepo>, IndexError>> {
        self.inner.hub_repos_with_unneeded_files()
    }

    fn drop_hub_commits(&self, repo: i64, commits: Vec<ObjectId>) -> BoxFuture<'_, Result<(), IndexError>> {
        let drop = async move {
            let stay = self.faults.lacks(SweepGuard::CommitsFirst);
            if stay { Ok(()) } else { self.inner.drop_hub_commits(repo, commits).await }
        };
        self.faults.around("drop_hub_commits", drop, index_error).boxed()
    }

    fn list_hub_ids(
        &self,
        repo: i64,
        object: HubObject,
        after: Option<ObjectId>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<ObjectId>, IndexError>> {
        let name = match object {
            HubObject::Tree => "list_hub_trees",
            HubObject::Blob => "list_hub_blobs",
        };
        self.faults.around(name, self.inner.list_hub_ids(repo, object, after, limit), index_error).boxed()
    }

    fn drop_hub_objects(
        &self,
        repo: i64,
        object: HubObject,
        ids: Vec<ObjectId>,
    ) -> BoxFuture<'_, Result<(), IndexError>> {
        self.faults.around("drop_hub_objects", self.inner.drop_hub_objects(repo, object, ids), index_error).boxed()
    }
}

impl HubRenameIndex for FaultyIndex {
    fn find_hub_repo_at(
        &self,
        kind: RepoKind,
        namespace: String,
        name: String,
        reference: String,
    ) -> BoxFuture<'_, Result<Option<HubRepoAt>, IndexError>> {
        self.inner.find_hub_repo_at(kind, namespace, name, reference)
    }

    fn find_stored_hub_repo(&self, storage_name: String) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>> {
        self.inner.find_stored_hub_repo(storage_name)
    }

    fn has_storage_name(&self, storage_name: String) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.inner.has_storage_name(storage_name)
    }

    fn list_renamed_hub_repos(
        &self,
        kind: RepoKind,
        namespace: String,
        name: String,
        shown: ShownRepos,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubRepo>, IndexError>> {
        self.inner.list_renamed_hub_repos(kind, namespace, name, shown, limit)
    }

    fn list_unrecorded_renames(
        &self,
        kind: RepoKind,
        namespace: String,
        name: String,
        is_deleted: bool,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubRepo>, IndexError>> {
        self.inner.list_unrecorded_renames(kind, namespace, name, is_deleted, limit)
    }

    fn is_hub_repo_recorded(&self, repo: i64) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.inner.is_hub_repo_recorded(repo)
    }

    fn rename_hub_repo(&self, renamed: HubRepo) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.faults.around("rename_hub_repo", self.inner.rename_hub_repo(renamed), index_error).boxed()
    }

    fn list_former_names(&self, repo: i64, limit: u32) -> BoxFuture<'_, Result<Vec<String>, IndexError>> {
        self.inner.list_former_names(repo, limit)
    }

    fn set_former_names(&self, repo: i64, names: Vec<String>) -> BoxFuture<'_, Result<(), IndexError>> {
        self.inner.set_former_names(repo, names)
    }
}
