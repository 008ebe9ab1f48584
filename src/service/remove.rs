//! Removal of files, by the repositories that registered them or by the operator.
//!
//! After `Ok` the removal of the claims is durable. With the last claim the file is removed: no
//! reader finds it. Running downloads complete, since no xorb is deleted here. Xorbs that no other
//! file needs are garbage from then on. The references of a large file are deleted in later steps,
//! and after a crash by GC. Until then its xorbs are not garbage, and repositories are charged for
//! them.

use std::sync::Arc;

use thiserror::Error;

use super::access::{Claims, RepoScope, Scope};
use super::error::StoreError;
use super::permits::PATIENCE;
use super::store_locks::{FileChange, LockedFiles};
use super::{Server, Store};
use crate::format::FileHash;
use crate::index::{Reader, RemovedClaims};
use crate::runtime::telemetry::chain;

/// Maximum number of clean-up steps before the response. Most files need no more.
const STEP_COUNT: usize = 4;

/// The result of a removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedFile {
    /// The repositories whose claims were removed; `*` for tokens of all repositories.
    pub repos: Vec<String>,
    /// Whether the file no longer exists. A token of one repository always sees true: it must not
    /// learn whether other repositories have the file.
    pub is_file_removed: bool,
}

/// Why a file was not removed.
#[derive(Debug, Error)]
pub enum RemoveError {
    /// None of the repositories in question has this file.
    #[error("file not found")]
    NotFound,
    /// The token is for another repository.
    #[error("the claim belongs to another repository")]
    Foreign,
    /// The store failed.
    #[error("the file could not be removed")]
    Store(#[from] StoreError),
}

impl Server {
    /// Removes the claim of one repository to a file: of `repo`, or without `repo` of the
    /// repository of the token. If an operator, whose token is for all repositories, names no
    /// `repo`, all claims to the file are removed.
    ///
    /// # Errors
    ///
    /// See [`RemoveError`].
    pub async fn remove_file(
        &self,
        claims: &Claims,
        file: FileHash,
        repo: Option<RepoScope>,
    ) -> Result<RemovedFile, RemoveError> {
        let repo = match (&claims.repo, claims.scope, repo) {
            (RepoScope::All, Scope::Admin, repo) => repo,
            (own, _, Some(other)) if *own != other => return Err(RemoveError::Foreign),
            (own, ..) => Some(own.clone()),
        };
        let repo = repo.map(|repo| repo.to_string());
        let store = Arc::clone(&self.store);
        let removed = self.uninterrupted(async move { store.remove_claims(file, repo).await }).await?;
        if removed.repos.is_empty() && !removed.is_file_removed {
            return Err(RemoveError::NotFound);
        }
        let is_file_removed = removed.is_file_removed || claims.repo != RepoScope::All;
        Ok(RemovedFile { repos: removed.repos, is_file_removed })
    }
}

impl Store {
    /// Removes the claim of a repository that no client has asked to remove: first from the index,
    /// and then with a record. Does nothing if there is none.
    ///
    /// In the other order, a failed transaction would leave a record of a removal that was not
    /// made. A later registration of the file would change nothing and have no record, so a rebuilt
    /// index would lack the file.
    pub(super) async fn drop_claim(&self, file: FileHash, repo: &str) -> Result<(), StoreError> {
        let lock = self.lock_files([file], FileChange::Other, PATIENCE).await?;
        self.drop_locked_claim(lock, file, repo).await.map(drop)
    }

    /// The same with the lock of the file. Returns whether there was a claim.
    pub(super) async fn drop_locked_claim(
        &self,
        lock: LockedFiles,
        file: FileHash,
        repo: &str,
    ) -> Result<bool, StoreError> {
        let removed = self.index.remove_claims_of(file, Some(repo.to_owned()), self.clock.now(), None).await?;
        if removed.repos.is_empty() {
            return Ok(false);
        }
        self.append_made_removal(lock, file, repo.to_owned()).await?;
        Ok(true)
    }

    /// Removes the claim of this repository, or all claims. Then deletes rows of removed files, but
    /// only a few steps of them.
    async fn remove_claims(&self, file: FileHash, repo: Option<String>) -> Result<RemovedClaims, StoreError> {
        // The lock excludes registrations of the file, and with several servers also of others. So
        // a client must not get it for a file that it does not have.
        let reader = repo.clone().map_or(Reader::All, Reader::Repo);
        if self.index.find_file(file, reader, None).await?.is_none() {
            return Ok(RemovedClaims::default());
        }
        let appended = self.append_removal(file, repo.clone()).await?;
        let removed = self.index.remove_claims_of(file, repo, self.clock.now(), Some(appended.number())).await;
        match &removed {
            Ok(removed) if removed.repos.is_empty() && !removed.is_file_removed => appended.roll_back().await,
            Ok(_) => appended.retain(),
            Err(_) => self.settle_failed_removal(appended, file).await,
        }
        let removed = removed?;
        for _ in 0..STEP_COUNT {
            match self.index.sweep_removed(self.clock.now()).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "cannot clean up a removed file; retrying later");
                    break;
                }
            }
        }
        Ok(removed)
    }
}
