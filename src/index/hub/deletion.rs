//! Deletion of Hub repositories. A caller that changes one holds the lock of its name.

use futures_util::future::BoxFuture;

use super::{HubRepo, RepoKind};
use crate::index::error::IndexError;

/// Methods for the deletion of Hub repositories.
pub trait HubDeletionIndex {
    /// Deletes a repository: it is invisible from then on, and has no branches. Its other rows
    /// stay, and so does its name, until [`drop_hub_repo`](Self::drop_hub_repo). Its deletion is
    /// not recorded yet. `false` if it does not exist.
    fn delete_hub_repo(&self, repo: i64) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// The deleted repository with this name, in any case, whose rows are still there.
    fn find_deleted_hub_repo(
        &self,
        kind: RepoKind,
        namespace: String,
        name: String,
    ) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>>;

    /// The deleted repository with this storage name whose rows are still there.
    fn find_deleted_stored_hub_repo(&self, storage_name: String) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>>;

    /// The first deleted repository with a number above `after` whose rows are still there.
    fn next_deleted_hub_repo(&self, after: i64) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>>;

    /// Deletes some commits, directories and files of a deleted repository, in one short
    /// transaction. Returns whether there may be more.
    fn drop_hub_rows(&self, repo: i64) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Deletes a repository with all of its rows, in steps. A crash leaves a deleted repository.
    fn drop_hub_repo(&self, repo: i64) -> BoxFuture<'_, Result<(), IndexError>>;
}
