//! What no branch or tag of a Hub repository needs: it is listed as unneeded with the time since
//! when, and deleted later. A caller that deletes something holds the lock of the repository, and
//! has made sure that nothing needs it.

use futures_util::future::BoxFuture;

use super::HubRepo;
use crate::format::FileHash;
use crate::git::ObjectId;
use crate::index::error::IndexError;
use crate::runtime::clock::Timestamp;

/// The kind of an object that only commits need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HubObject {
    /// A directory.
    Tree,
    /// A file.
    Blob,
}

/// A commit that no branch or tag needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnneededCommit {
    /// Its id.
    pub id: ObjectId,
    /// When a sweep found that.
    pub since: Timestamp,
}

/// The contents of a file that only unneeded commits have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnneededFile {
    /// The Xet file.
    pub file: FileHash,
    /// When a sweep found that.
    pub since: Timestamp,
}

/// The generation of a repository: the number of its changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubGenerations {
    /// The present one.
    pub current: i64,
    /// That of the last complete sweep; -1 if there was none.
    pub swept: i64,
}

/// Methods for sweeps.
pub trait HubSweepIndex {
    /// The first repository with a number above `after` whose last complete sweep began before
    /// `before`, or after `now`: then the clock was wrong.
    fn next_unswept_hub_repo(
        &self,
        after: i64,
        before: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>>;

    /// The generations of a repository; `None` if it does not exist.
    fn hub_generations(&self, repo: i64) -> BoxFuture<'_, Result<Option<HubGenerations>, IndexError>>;

    /// Notes a complete sweep: when it began, and the generation then.
    fn set_hub_repo_swept(&self, repo: i64, began: Timestamp, generation: i64)
    -> BoxFuture<'_, Result<(), IndexError>>;

    /// A page of the unneeded commits of a repository, by id, those after `after`.
    fn list_unneeded_commits(
        &self,
        repo: i64,
        after: Option<ObjectId>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<UnneededCommit>, IndexError>>;

    /// Lists these commits as unneeded since this time, or with `None` takes them from the list.
    /// Lists nothing if the repository does not exist.
    fn set_unneeded_commits(
        &self,
        repo: i64,
        commits: Vec<ObjectId>,
        since: Option<Timestamp>,
    ) -> BoxFuture<'_, Result<(), IndexError>>;

    /// A page of the unneeded files of a repository, by hash, those after `after`.
    fn list_unneeded_files(
        &self,
        repo: i64,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<UnneededFile>, IndexError>>;

    /// Since when the repository has this file in the list of unneeded files; `None` if it has not.
    fn file_unneeded_since(&self, repo: i64, file: FileHash) -> BoxFuture<'_, Result<Option<Timestamp>, IndexError>>;

    /// Lists all unneeded files of all repositories as unneeded since this time.
    fn renew_unneeded_files(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Lists these files, each once, as unneeded since this time, or with `None` takes them from
    /// the list. Lists nothing if the repository does not exist.
    fn set_unneeded_files(
        &self,
        repo: i64,
        files: Vec<FileHash>,
        since: Option<Timestamp>,
    ) -> BoxFuture<'_, Result<(), IndexError>>;

    /// The repositories that have unneeded files.
    fn hub_repos_with_unneeded_files(&self) -> BoxFuture<'_, Result<Vec<HubRepo>, IndexError>>;

    /// Deletes commits, also from the list of unneeded ones. No branch, tag or other commit may
    /// need them. The last complete sweep no longer counts, so that the next one deletes what the
    /// commits had.
    fn drop_hub_commits(&self, repo: i64, commits: Vec<ObjectId>) -> BoxFuture<'_, Result<(), IndexError>>;

    /// A page of the ids of the objects of a repository, those after `after`.
    fn list_hub_ids(
        &self,
        repo: i64,
        object: HubObject,
        after: Option<ObjectId>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<ObjectId>, IndexError>>;

    /// Deletes objects, in steps. No commit may need them.
    fn drop_hub_objects(
        &self,
        repo: i64,
        object: HubObject,
        ids: Vec<ObjectId>,
    ) -> BoxFuture<'_, Result<(), IndexError>>;
}
