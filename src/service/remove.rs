//! Files are removed: by those who registered them, or by whoever runs the store.
//!
//! After `Ok` the claims are gone, durably, and with the last one the file: no reader finds it. Its xorbs are not touched
//! but in their rows, so whoever fetches their bytes at this moment gets them; what no other file needs is garbage from
//! then on. The references of a large file go in steps after that. A crash leaves them, which keeps their xorbs and what
//! repositories are charged for them, until a collection of garbage clears them up.

use thiserror::Error;

use super::Cas;
use super::access::{Claims, RepoScope, Scope};
use super::error::StoreError;
use crate::format::FileHash;
use crate::index::RemovedClaims;
use crate::runtime::telemetry::chain;

/// Steps at clearing up that are taken before the answer, so that of most files nothing is left by then.
const STEP_COUNT: usize = 4;

/// What became of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedFile {
    /// Whose claims to it were removed; `*` for those of tokens for all repositories.
    pub repos: Vec<String>,
    /// Whether nobody has the file any more, as far as these claims may know: those of one repository are not told of others.
    pub is_file_removed: bool,
}

/// Why a file was not removed.
#[derive(Debug, Error)]
pub enum RemoveError {
    /// Nobody whom this is about has such a file.
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
    /// Removes a claim to a file: that of this repository, or what these claims stand for by themselves. For whoever
    /// administers all repositories those are all there are, for everybody else their own.
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
        let noted = self.note_removal(file, repo.clone()).await?;
        let removed = self.index.remove_claims_of(file, repo, self.clock.now(), Some(noted.number())).await;
        match &removed {
            Ok(removed) if removed.repos.is_empty() && !removed.is_file_removed => noted.withdraw().await,
            // Also where that failed: it may have been done all the same.
            Ok(_) | Err(_) => noted.keep(),
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
