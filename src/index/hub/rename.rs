//! Names of Hub repositories: storage names, which never change, and former names. A caller that
//! changes a name holds the locks of the repository and of both names.

use futures_util::future::BoxFuture;

use super::{HubCommit, HubRepo, RepoKind, ShownRepos};
use crate::index::decode::{Cells, FromRow, column};
use crate::index::error::IndexError;

/// A repository, and the commit of one of its branches or tags; `None` without that one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubRepoAt {
    /// The repository.
    pub repo: HubRepo,
    /// The commit.
    pub head: Option<HubCommit>,
}

/// Methods for the names of Hub repositories.
pub trait HubRenameIndex {
    /// The repository with this name, in any case, and the commit of its branch or tag with this
    /// full name: [`find_hub_repo`](super::HubIndex::find_hub_repo) and
    /// [`find_hub_head`](super::HubIndex::find_hub_head) in one read.
    fn find_hub_repo_at(
        &self,
        kind: RepoKind,
        namespace: String,
        name: String,
        reference: String,
    ) -> BoxFuture<'_, Result<Option<HubRepoAt>, IndexError>>;

    /// The repository with this storage name, unless it is deleted.
    fn find_stored_hub_repo(&self, storage_name: String) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>>;

    /// Whether a repository has this storage name, also a deleted one whose rows are still there.
    fn has_storage_name(&self, storage_name: String) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// The repositories of which this is a former name, in any case, and that a caller is shown,
    /// those that were created last first. At most this many; hidden ones do not count. Another
    /// repository may have the name now.
    fn list_renamed_hub_repos(
        &self,
        kind: RepoKind,
        namespace: String,
        name: String,
        shown: ShownRepos,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubRepo>, IndexError>>;

    /// The repositories of which this is a former name, in any case, and whose state the
    /// registration log does not have: deleted ones, or the others. At most this many, by number.
    fn list_unrecorded_renames(
        &self,
        kind: RepoKind,
        namespace: String,
        name: String,
        is_deleted: bool,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<HubRepo>, IndexError>>;

    /// Whether the registration log has the state of a repository: whether
    /// [`set_hub_repo_recorded`](super::HubIndex::set_hub_repo_recorded) was called since it was
    /// restored, renamed or deleted.
    fn is_hub_repo_recorded(&self, repo: i64) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Gives a repository, found by its number, the name of this row; its present one becomes a
    /// former name. The rename is not recorded yet. `false` if the repository does not exist, or
    /// another one of its kind has the name, also a deleted one whose rows are still there.
    fn rename_hub_repo(&self, renamed: HubRepo) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// The former names of a repository in small letters, `namespace/name`, in order. At most this
    /// many.
    fn list_former_names(&self, repo: i64, limit: u32) -> BoxFuture<'_, Result<Vec<String>, IndexError>>;

    /// Makes these the former names of a repository, as
    /// [`list_former_names`](Self::list_former_names) returns them, in place of those that it has.
    fn set_former_names(&self, repo: i64, names: Vec<String>) -> BoxFuture<'_, Result<(), IndexError>>;
}

impl FromRow for HubRepoAt {
    fn from_row(row: &impl Cells) -> sqlx::Result<Self> {
        let repo = HubRepo::from_row(row)?;
        let Some(id) = column(row, "head")? else { return Ok(Self { repo, head: None }) };
        let (tree, parent, at) = (column(row, "tree")?, column(row, "parent")?, column(row, "at")?);
        let (author, message) = (column(row, "author")?, column(row, "message")?);
        Ok(Self { repo, head: Some(HubCommit { id, tree, parent, at, author, message }) })
    }
}
