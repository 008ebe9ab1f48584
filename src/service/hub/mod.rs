//! Hub repositories: names, revisions, commits, and the files of a revision.
//!
//! The contents of every file are a Xet file, also of small ones. A commit names only files that
//! the repository may read. The order of a commit is: contents durable and registered, then the
//! rows of directories and files, then one transaction with the commit and its branch. So after a
//! crash at any step the branch is where it was, or where the commit has put it, and every file of
//! it can be read.
//!
//! Each change of a repository is in the registration log before its transaction
//! (`registration_log::hub`).
//!
//! What no branch or tag needs is deleted after a week, also files that were uploaded and never
//! committed ([`sweep`]).

mod advance;
mod ancestors;
mod card;
mod catalog;
mod check;
mod commit;
mod copy;
mod delete;
mod edit;
mod history;
mod ingest;
mod last_commit;
mod list;
pub(super) mod name;
mod open;
mod part;
mod refs;
mod rename;
mod squash;
mod sweep;
mod unneeded;

use std::sync::Arc;

use moka::sync::Cache;
use thiserror::Error;
use tokio::task::coop::consume_budget;

pub(super) use self::advance::BranchLocks;
pub(crate) use self::card::MAX_METADATA_LEN;
pub use self::card::metadata_of;
pub use self::catalog::{RepoHead, StoredRepo};
pub(super) use self::check::RepoFault;
pub(crate) use self::commit::MAX_CHANGE_COUNT;
pub use self::commit::{Change, CommitRequest, Committed};
pub(super) use self::copy::{Copying, Loading, hub_states, make_way, state_of};
pub(crate) use self::ingest::MAX_WHOLE_FILE_LEN;
pub use self::ingest::WholeFile;
pub use self::list::{Depth, HubEntry, HubPage};
pub use self::name::{HubName, HubNameError};
pub use self::open::OpenRepo;
pub(super) use self::open::acting_claims;
use self::open::creating_claims;
pub(super) use self::part::{HubPart, HubState};
#[cfg(test)]
pub(super) use self::refs::attributes;
pub(super) use self::unneeded::Unneeded;
use super::error::{RegisterError, StoreError, UploadError};
use super::file_bytes::RegisteredFile;
use super::{Server, Store};
use crate::format::FileHash;
use crate::git::{Entry, EntryKind, ObjectError, ObjectId, RepoPath, Tree};
use crate::index::{HubBlob, HubCommit, HubRepo};
use crate::runtime::fair::Tenant;
use crate::service::access::Claims;

/// A file of a revision.
#[derive(Clone, Debug)]
pub struct HubFile {
    /// Its blob.
    pub blob: HubBlob,
    /// Its contents.
    pub file: RegisteredFile,
}

/// Directories in memory, by repository and id. What an id names never changes.
pub(super) type Trees = Cache<(i64, ObjectId), Arc<Tree>>;

/// Bytes of directories in memory: 300 of 1000 entries each.
const TREE_CACHE_LEN: u64 = 32 << 20;

/// Bytes of a common entry of a directory.
const ENTRY_LEN: usize = 64;

/// Metadata of cards in memory, by the file. What a hash names never changes.
pub(super) type Cards = Cache<FileHash, Arc<str>>;

/// Bytes of metadata in memory: 8000 of 1 KiB.
const CARD_CACHE_LEN: u64 = 8 << 20;

/// An empty cache.
pub(super) fn card_cache() -> Cards {
    let weight = |_: &FileHash, card: &Arc<str>| u32::try_from(card.len()).unwrap_or(u32::MAX).saturating_add(100);
    Cache::builder().weigher(weight).max_capacity(CARD_CACHE_LEN).build()
}

/// An empty cache.
pub(super) fn tree_cache() -> Trees {
    Cache::builder().weigher(|_, tree: &Arc<Tree>| tree.weight()).max_capacity(TREE_CACHE_LEN).build()
}

/// Why a request to a Hub repository failed. Nothing of it is visible then, except after
/// [`Store`](Self::Store): a transaction may be committed although it reports an error.
#[derive(Debug, Error)]
pub enum HubError {
    /// The repository does not exist, or the caller may not see it.
    #[error("repository not found")]
    NoRepo,
    /// No branch, tag or commit has this name.
    #[error("revision {revision} not found")]
    NoRevision {
        /// The name.
        revision: String,
    },
    /// The revision has no such file.
    #[error("{path} is not a file of the revision")]
    NoEntry {
        /// The path.
        path: String,
        /// The commit of the revision.
        commit: ObjectId,
    },
    /// The caller may read, but not write.
    #[error("the token does not permit writing")]
    ReadOnly,
    /// The repository, branch or tag exists already.
    #[error("{what} exists already")]
    Exists {
        /// What exists.
        what: String,
    },
    /// `parentCommit` is not the head of the branch.
    #[error("the branch is at {head}, not at the parent of the commit")]
    Stale {
        /// The head.
        head: ObjectId,
    },
    /// Other commits were always faster.
    #[error("the branch moved too often")]
    Moving,
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// An object cannot be made.
    #[error("an object cannot be made")]
    Object(#[from] ObjectError),
    /// The contents could not be stored.
    #[error("the contents could not be stored")]
    Upload(#[from] UploadError),
    /// The files could not be registered.
    #[error("the files could not be registered")]
    Register(#[from] RegisterError),
    /// A row that another row names is missing, or cannot be parsed.
    #[error("{what} of {repo} is missing or damaged")]
    Inconsistent {
        /// The storage name of the repository.
        repo: String,
        /// What is missing.
        what: String,
    },
    /// The store failed.
    #[error("the repository could not be read or written")]
    Store(#[from] StoreError),
}

impl From<crate::index::IndexError> for HubError {
    fn from(error: crate::index::IndexError) -> Self {
        Self::Store(error.into())
    }
}

impl Server {
    /// A file of a commit.
    ///
    /// # Errors
    ///
    /// [`HubError::NoEntry`], also for a directory and for contents that are not readable any more.
    /// Or the index does not respond.
    pub async fn find_hub_file(&self, open: &OpenRepo, commit: &HubCommit, path: &str) -> Result<HubFile, HubError> {
        let none = || HubError::NoEntry { path: path.to_owned(), commit: commit.id };
        let entry = match path.parse() {
            Ok(path) => self.store.find_entry(open, commit.tree, &path).await?,
            Err(_) => None,
        };
        let entry = entry.filter(|entry| entry.kind != EntryKind::Directory).ok_or_else(none)?;
        let blob = self.store.blob(open, entry.id).await?;
        self.readable(open, blob).await?.ok_or_else(none)
    }

    /// The contents of a blob. `None` if the repository has lost its claim to them, by `DELETE
    /// /v1/files`, or if their sha256 has turned out to be false.
    async fn readable(&self, open: &OpenRepo, blob: HubBlob) -> Result<Option<HubFile>, HubError> {
        let find = async |claims: &Claims| match blob.sha256.filter(|_| blob.len > 0) {
            Some(sha256) => self.find_file_by_sha256(claims, sha256).await,
            None => self.find_file(claims, blob.file).await,
        };
        let mut file = find(&open.caller).await?;
        if file.is_none() && open.caller.repo != open.claims.repo {
            // Until its sha256 is verified, a file is found by it in the repository that claims it.
            file = find(&open.claims).await?;
        }
        Ok(file.filter(|file| file.len == blob.len).map(|file| HubFile { blob, file }))
    }
}

impl Store {
    /// A directory, from memory or from the index.
    async fn tree(&self, open: &OpenRepo, id: ObjectId) -> Result<Arc<Tree>, HubError> {
        let key = (open.repo.id, id);
        // A list may take millions of steps through directories that are all in memory.
        consume_budget().await;
        if let Some(tree) = self.trees.get(&key) {
            return Ok(tree);
        }
        let damaged = || open.inconsistent(format!("directory {id}"));
        let tree = Arc::new(self.read_tree(open.claims.tenant(), open.repo.id, id).await?.ok_or_else(damaged)?);
        self.trees.insert(key, Arc::clone(&tree));
        Ok(tree)
    }

    /// A directory from the index; `None` if it is missing or damaged.
    async fn read_tree(&self, tenant: Tenant, repo: i64, id: ObjectId) -> Result<Option<Tree>, HubError> {
        let Some(bytes) = self.index.find_hub_tree(repo, id).await? else { return Ok(None) };
        let entry_count = bytes.len() / ENTRY_LEN;
        Ok(self.compute_for(tenant, entry_count, move || Tree::parse(&bytes).ok()).await)
    }

    /// The entry at a path; `None` if there is none.
    async fn find_entry(&self, open: &OpenRepo, root: ObjectId, path: &RepoPath) -> Result<Option<Entry>, HubError> {
        let (directories, last) = path.split();
        let mut tree = self.tree(open, root).await?;
        for name in directories {
            match tree.get(name).filter(|entry| entry.kind == EntryKind::Directory) {
                Some(entry) => tree = self.tree(open, entry.id).await?,
                None => return Ok(None),
            }
        }
        Ok(tree.get(last))
    }

    /// The row of an open repository as it is now. With its lock, nothing changes it afterwards.
    async fn hub_repo_now(&self, open: &OpenRepo) -> Result<HubRepo, HubError> {
        let found = self.index.find_stored_hub_repo(open.repo.storage_name.clone()).await?;
        found.filter(|found| found.id == open.repo.id).ok_or(HubError::NoRepo)
    }

    /// The same, if nothing has renamed the repository since it was opened by its present name.
    async fn named_hub_repo_now(&self, open: &OpenRepo) -> Result<HubRepo, HubError> {
        let now = self.hub_repo_now(open).await?;
        if now.lower_name() == open.repo.lower_name() { Ok(now) } else { Err(HubError::NoRepo) }
    }

    async fn blob(&self, open: &OpenRepo, id: ObjectId) -> Result<HubBlob, HubError> {
        let found = self.index.find_hub_blobs(open.repo.id, vec![id]).await?;
        found.into_iter().next().ok_or_else(|| open.inconsistent(format!("blob {id}")))
    }
}

/// The error if a row of a repository is missing or damaged.
fn missing(repo: &HubRepo, what: String) -> HubError {
    HubError::Inconsistent { repo: repo.storage_name.clone(), what }
}
