//! Hub repositories: their names, branches and tags, commits, directories and files.
//!
//! A commit is *reachable* if a branch or tag names it, or a reachable commit has it as its parent.
//! After `Ok` of [`HubIndex::move_hub_ref`] the branch names the new commit, durably, and every
//! directory and file of the commit has a row, because the caller has added them before.

mod deletion;
mod deletion_verbs;
mod rename;
mod rename_verbs;
pub(in crate::index) mod sql;
mod sweep;
mod sweep_verbs;
mod verbs;

use futures_util::future::BoxFuture;

use super::error::IndexError;
use crate::format::FileHash;
use crate::format::shard::Sha256;
use crate::git::ObjectId;
use crate::runtime::clock::Timestamp;

pub use self::deletion::HubDeletionIndex;
pub(super) use self::deletion_verbs::hub_deletion_verbs;
pub use self::rename::{HubRenameIndex, HubRepoAt};
pub(super) use self::rename_verbs::hub_rename_verbs;
pub use self::sweep::{HubGenerations, HubObject, HubSweepIndex, UnneededCommit, UnneededFile};
pub(super) use self::sweep_verbs::hub_sweep_verbs;
pub(super) use self::verbs::hub_verbs;

/// The kind of a Hub repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RepoKind {
    /// A model.
    Model,
    /// A dataset.
    Dataset,
    /// A space. It is stored like the others; zorb does not run it.
    Space,
}

/// A repository that is about to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewHubRepo {
    /// Its kind.
    pub kind: RepoKind,
    /// The user or organization whose it is.
    pub namespace: String,
    /// Its name in the namespace.
    pub name: String,
    /// What claims, quotas and tokens call it.
    pub storage_name: String,
    /// Whether it was created as a private one.
    pub is_private: bool,
}

/// A repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubRepo {
    /// Its number in the index.
    pub id: i64,
    /// Its kind.
    pub kind: RepoKind,
    /// The user or organization whose it is.
    pub namespace: String,
    /// Its name in the namespace.
    pub name: String,
    /// What claims, quotas and tokens call it.
    pub storage_name: String,
    /// Whether it was created as a private one.
    pub is_private: bool,
    /// When it was created.
    pub created: Timestamp,
    /// When its last commit was made.
    pub updated: Timestamp,
}

/// A branch or tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubRef {
    /// Its full name, such as `refs/heads/main`.
    pub name: String,
    /// The commit that it names.
    pub target: ObjectId,
}

/// A commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubCommit {
    /// Its id.
    pub id: ObjectId,
    /// Its root directory.
    pub tree: ObjectId,
    /// The commit before it; `None` for the first one.
    pub parent: Option<ObjectId>,
    /// When it was made. The git object has the whole seconds of it.
    pub at: Timestamp,
    /// The name of its author.
    pub author: String,
    /// Its message.
    pub message: String,
}

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubBlob {
    /// Id of the blob: of the contents of a regular file, or of the pointer of a large one.
    pub id: ObjectId,
    /// Length of the file in bytes.
    pub len: u64,
    /// The sha256 of a large file; `None` for a regular one.
    pub sha256: Option<Sha256>,
    /// The Xet file with the contents.
    pub file: FileHash,
}

/// A directory of a repository, as the bytes of its git object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubTree {
    /// Its id.
    pub id: ObjectId,
    /// The bytes.
    pub entries: Vec<u8>,
}

/// Which repositories a caller is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShownRepos {
    /// All.
    All,
    /// All of this namespace, written exactly so.
    Of(String),
    /// The one with this storage name.
    One(String),
    /// Public ones, and all of these namespaces, whatever their case.
    PublicAndOf(Vec<String>),
}

/// The order of a list of repositories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepoOrder {
    /// The newest first.
    Created,
    /// The last changed first.
    Changed,
}

/// After which repository a page of a list begins. It has only what the list shows of this one: the
/// number of its row would tell how many others there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoPlace {
    /// The order of the list.
    pub order: RepoOrder,
    /// When it was created or changed.
    pub at: Timestamp,
    /// `namespace/name` in small letters, for those of one time.
    pub lower_name: String,
}

impl RepoPlace {
    /// The beginning of a list.
    #[must_use]
    pub const fn first(order: RepoOrder) -> Self {
        Self { order, at: Timestamp::from_millis(i64::MAX.unsigned_abs()), lower_name: String::new() }
    }

    /// The place after this repository, in the same order.
    #[must_use]
    pub fn after(&self, repo: &HubRepo) -> Self {
        let at = match self.order {
            RepoOrder::Created => repo.created,
            RepoOrder::Changed => repo.updated,
        };
        Self { order: self.order, at, lower_name: lower_name(&repo.namespace, &repo.name) }
    }

    /// Whether this repository comes after the place.
    #[must_use]
    pub fn precedes(&self, repo: &HubRepo) -> bool {
        let place = self.after(repo);
        (place.at, &place.lower_name) < (self.at, &self.lower_name)
    }
}

/// Methods for Hub repositories.
pub trait HubIndex {
    /// Creates a repository whose branch `main` names this commit. The directories and files of the
    /// commit are added with it. `record` is the number of its record. `None` if a repository of
    /// this kind has the name, in any case, or one has the storage name.
    fn create_hub_repo(
        &self,
        repo: NewHubRepo,
        first: HubCommit,
        trees: Vec<HubTree>,
        blobs: Vec<HubBlob>,
        record: u64,
    ) -> BoxFuture<'_, Result<Option<i64>, IndexError>>;

    /// The repository with this name, in any case.
    fn find_hub_repo(
        &self,
        kind: RepoKind,
        namespace: String,
        name: String,
    ) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>>;

    /// A page of the repositories of a kind, the newest first, those with smaller numbers than
    /// `before`. With a namespace, only those in it, whatever its case.
    fn list_hub_repos(
        &self,
        kind: RepoKind,
        namespace: Option<String>,
        before: i64,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubRepo>, IndexError>>;

    /// A page of the repositories of a kind that a caller is shown, after a place and in its order.
    /// Hidden ones change nothing of the page.
    fn list_shown_hub_repos(
        &self,
        kind: RepoKind,
        shown: ShownRepos,
        place: RepoPlace,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubRepo>, IndexError>>;

    /// The commit that a branch or tag names now.
    fn find_hub_ref(&self, repo: i64, name: String) -> BoxFuture<'_, Result<Option<ObjectId>, IndexError>>;

    /// A page of the branches and tags, by name, those after the name `after`.
    fn list_hub_refs(&self, repo: i64, after: String, limit: u32) -> BoxFuture<'_, Result<Vec<HubRef>, IndexError>>;

    /// A commit, reachable or not. A [sweep](HubSweepIndex) deletes unreachable ones later.
    fn find_hub_commit(&self, repo: i64, id: ObjectId) -> BoxFuture<'_, Result<Option<HubCommit>, IndexError>>;

    /// A commit and the next of its ancestors, in any order, at most this many. Fewer if the last
    /// one has no parent or its parent is missing; none if the commit is.
    fn list_hub_history(
        &self,
        repo: i64,
        from: ObjectId,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubCommit>, IndexError>>;

    /// The commit of a branch or tag; `None` also if the commit is missing.
    fn find_hub_head(&self, repo: i64, name: String) -> BoxFuture<'_, Result<Option<HubCommit>, IndexError>>;

    /// The bytes of a directory.
    fn find_hub_tree(&self, repo: i64, id: ObjectId) -> BoxFuture<'_, Result<Option<Vec<u8>>, IndexError>>;

    /// Those of these files that the repository has, in any order.
    fn find_hub_blobs(&self, repo: i64, ids: Vec<ObjectId>) -> BoxFuture<'_, Result<Vec<HubBlob>, IndexError>>;

    /// Adds directories and files to a repository. A file that it has gets the new length, sha256
    /// and contents: they differ only if the sha256 of the earlier contents was false.
    fn add_hub_objects(
        &self,
        repo: i64,
        trees: Vec<HubTree>,
        blobs: Vec<HubBlob>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Adds a commit, and makes a branch name it if it names the commit `from` now. Otherwise
    /// changes nothing and returns `false`.
    fn move_hub_ref(
        &self,
        repo: i64,
        from: HubRef,
        commit: HubCommit,
        record: u64,
    ) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Creates a branch or tag that names an existing commit. `false` if the name exists, or the
    /// commit does not.
    fn create_hub_ref(&self, repo: i64, new: HubRef, record: u64) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Deletes a branch or tag. `false` if it does not exist, or names another commit.
    fn delete_hub_ref(&self, repo: i64, old: HubRef, record: u64) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Sets whether a repository is private. `false` if it does not exist.
    fn set_hub_repo_private(&self, repo: i64, is_private: bool, record: u64)
    -> BoxFuture<'_, Result<bool, IndexError>>;

    /// A page of the commits of a repository, by id, those after `after`.
    fn list_hub_commits(
        &self,
        repo: i64,
        after: Option<ObjectId>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubCommit>, IndexError>>;

    /// A page of the directories of a repository, likewise.
    fn list_hub_trees(
        &self,
        repo: i64,
        after: Option<ObjectId>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubTree>, IndexError>>;

    /// A page of the files of a repository, likewise.
    fn list_hub_blobs(
        &self,
        repo: i64,
        after: Option<ObjectId>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubBlob>, IndexError>>;

    /// Creates a repository from a copy, without branches. Returns its number, which differs from
    /// that of the copy. A repository with this storage name stays, with the name, the times and
    /// the visibility of the copy; a name that it had before becomes a former one.
    fn restore_hub_repo(&self, copy: HubRepo) -> BoxFuture<'_, Result<i64, IndexError>>;

    /// Adds commits to a repository. Those that it has stay as they are.
    fn add_hub_commits(&self, repo: i64, commits: Vec<HubCommit>) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Makes these the branches and tags of a repository, in place of those that it has.
    fn set_hub_refs(&self, repo: i64, refs: Vec<HubRef>) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Makes a branch or tag name this commit, which the repository has, whatever it names now.
    /// Without a commit, deletes it.
    fn put_hub_ref(&self, repo: i64, name: String, target: Option<ObjectId>) -> BoxFuture<'_, Result<(), IndexError>>;

    /// A repository whose state is not in the registration log; `None` if there is none.
    fn find_unrecorded_hub_repo(&self) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>>;

    /// Notes that the state of a repository is in the registration log.
    fn set_hub_repo_recorded(&self, repo: i64) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Deletes the repositories without any branch or tag: their copy was cut off.
    fn discard_hub_repos(&self) -> BoxFuture<'_, Result<(), IndexError>>;
}

impl HubRepo {
    /// The name by which repositories of a kind are unique: `namespace/name` in small letters.
    #[must_use]
    pub fn lower_name(&self) -> String {
        lower_name(&self.namespace, &self.name)
    }

    /// When it was created, if it is public.
    #[must_use]
    pub fn created_if_public(&self) -> Option<Timestamp> {
        (!self.is_private).then_some(self.created)
    }
}

impl RepoKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Model, Self::Dataset, Self::Space];

    /// The name that bodies have, such as `model`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Dataset => "dataset",
            Self::Space => "space",
        }
    }

    /// The plural that paths have, such as `models`.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
            Self::Space => "spaces",
        }
    }

    /// The number that the index has.
    pub(super) const fn number(self) -> i64 {
        match self {
            Self::Model => 0,
            Self::Dataset => 1,
            Self::Space => 2,
        }
    }

    pub(super) fn from_number(number: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }
}

/// The name by which repositories are unique.
pub(crate) fn lower_name(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}").to_ascii_lowercase()
}
