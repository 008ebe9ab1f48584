//! Deletion of Hub repositories, and of what no branch or tag of them needs any more.
//!
//! Commits that are unneeded are in a list, each with the time since when. The caller that deletes
//! something holds the lock of the repository, and has made sure that nothing needs it.

use futures_util::future::BoxFuture;

use super::{HubRepo, RepoKind};
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
pub struct HubGarbage {
    /// Its id.
    pub id: ObjectId,
    /// When a sweep found that.
    pub since: Timestamp,
}

/// Methods for what is deleted.
pub trait HubSweepIndex {
    /// Deletes a repository: it is invisible from then on, and has no branches. Its other rows
    /// stay, and so does its name, until [`drop_hub_repo`](Self::drop_hub_repo). `false` if it does
    /// not exist.
    fn delete_hub_repo(&self, repo: i64, record: Option<u64>) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// The deleted repository with this name, in any case, whose rows are still there.
    fn find_deleted_hub_repo(
        &self,
        kind: RepoKind,
        namespace: String,
        name: String,
    ) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>>;

    /// The first deleted repository with a number above `after` whose rows are still there.
    fn next_deleted_hub_repo(&self, after: i64) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>>;

    /// Deletes a repository with all of its rows, in steps. A crash leaves a deleted repository.
    fn drop_hub_repo(&self, repo: i64) -> BoxFuture<'_, Result<(), IndexError>>;

    /// The first repository with a number above `after` whose last sweep began before this time.
    fn next_unswept_hub_repo(
        &self,
        after: i64,
        before: Timestamp,
    ) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>>;

    /// Notes that a sweep, which began at this time, is complete.
    fn set_hub_repo_swept(&self, repo: i64, began: Timestamp) -> BoxFuture<'_, Result<(), IndexError>>;

    /// The number of commits that were ever added to a repository; `None` if it does not exist.
    fn hub_generation(&self, repo: i64) -> BoxFuture<'_, Result<Option<i64>, IndexError>>;

    /// A page of the commits of a repository that are listed as unneeded, by id, those after
    /// `after`.
    fn list_hub_garbage(
        &self,
        repo: i64,
        after: Option<ObjectId>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubGarbage>, IndexError>>;

    /// Lists these commits as unneeded since this time, or with `None` takes them from the list.
    fn set_hub_unneeded(
        &self,
        repo: i64,
        commits: Vec<ObjectId>,
        since: Option<Timestamp>,
    ) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Deletes commits. The caller has made sure that no branch, tag or other commit needs them.
    fn drop_hub_commits(&self, repo: i64, commits: Vec<ObjectId>) -> BoxFuture<'_, Result<(), IndexError>>;

    /// A page of the ids of the objects of a repository, those after `after`.
    fn list_hub_ids(
        &self,
        repo: i64,
        object: HubObject,
        after: Option<ObjectId>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<ObjectId>, IndexError>>;

    /// Deletes objects. The caller has made sure that no commit needs them.
    fn drop_hub_objects(
        &self,
        repo: i64,
        object: HubObject,
        ids: Vec<ObjectId>,
    ) -> BoxFuture<'_, Result<(), IndexError>>;
}
