//! Removal of files, by the repositories that registered them or by the operator.
//!
//! After `Ok` the claims are removed, durably, and with the last one the file: no reader finds it.
//! Only the rows of its xorbs change, so running downloads complete. Xorbs that no other file needs
//! are garbage from then on. The references of a large file are deleted in steps after that. A
//! crash leaves them until a garbage collection clears them up. Until then their xorbs stay, and
//! repositories are charged for them.

use thiserror::Error;

use super::Cas;
use super::access::{Claims, RepoScope, Scope};
use super::error::StoreError;
use crate::format::FileHash;
use crate::index::RemovedClaims;
use crate::runtime::telemetry::chain;

/// Steps of clearing up before the response: most files need no more.
const STEP_COUNT: usize = 4;

/// The result of a removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedFile {
    /// The repositories whose claims were removed; `*` for tokens of all repositories.
    pub repos: Vec<String>,
    /// Whether the file no longer exists, as far as these claims may know: a token of one
    /// repository is not told of others.
    pub is_file_removed: bool,
}

/// Why a file was not removed.
#[derive(Debug, Error)]
pub enum RemoveError {
    /// No repository that this is about has such a file.
    #[error("file not found")]
    NotFound,
    /// These claims are about another repository.
    #[error("the claim belongs to another repository")]
    Foreign,
    /// The store failed.
    #[error("the file could not be removed")]
    Store(#[from] StoreError),
}

impl Cas {
    /// Removes a claim to a file: that of this repository, or of the claims' own. For the operator,
    /// whose claims cover all repositories, these are all claims to the file.
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
        let removed = self.uninterrupted(|cas| async move { cas.remove_claims(file, repo).await }).await?;
        if removed.repos.is_empty() && !removed.is_file_removed {
            return Err(RemoveError::NotFound);
        }
        let is_file_removed = removed.is_file_removed || claims.repo != RepoScope::All;
        Ok(RemovedFile { repos: removed.repos, is_file_removed })
    }

    async fn remove_claims(&self, file: FileHash, repo: Option<String>) -> Result<RemovedClaims, StoreError> {
        let appended = self.append_removal(file, repo.clone()).await?;
        let removed = self.index.remove_claims_of(file, repo, self.clock.now(), Some(appended.number())).await;
        match &removed {
            Ok(removed) if removed.repos.is_empty() && !removed.is_file_removed => appended.roll_back().await,
            // Also after an error: the transaction may have been committed.
            Ok(_) | Err(_) => appended.retain(),
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
