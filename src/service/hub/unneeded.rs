//! Files that a sweep has listed as unneeded, and that a client needs again.
//!
//! After `Ok` of [`Server::retain_unneeded`] or [`Server::retain_file`] the files are in no list.
//! So a claim to one of them that exists then stays for a week at least, until its commit.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::OpenRepo;
use crate::format::FileHash;
use crate::index::{HubRepo, Usage};
use crate::service::permits::PATIENCE;
use crate::service::store_locks::FileChange;
use crate::service::{Server, StoreError};

/// What sweeps of this process remember between two of them.
#[derive(Debug, Default)]
pub(in crate::service) struct Unneeded {
    /// The repositories with unneeded files: their numbers by their storage names. In memory, so
    /// that registrations for others have nothing to look up. With several servers they are looked
    /// up.
    repos: Mutex<HashMap<String, i64>>,
    /// The number and the bytes of the files of each repository when its last complete sweep of
    /// this process began, by its number.
    swept: Mutex<HashMap<i64, (u64, u64)>>,
}

impl Unneeded {
    /// Whether a repository has as many files and bytes as when its last complete sweep began. Then
    /// nothing was registered for it since then, unless as much was removed.
    pub(super) fn was_swept_with(&self, repo: &HubRepo, usage: Usage) -> bool {
        self.swept().get(&repo.id) == Some(&(usage.file_count, usage.logical_len))
    }

    /// Notes a complete sweep, and the usage of the repository when it began. `None` if the next
    /// sweep may find more without a change of that.
    pub(super) fn set_swept(&self, repo: &HubRepo, usage: Option<Usage>) {
        match usage {
            Some(usage) => _ = self.swept().insert(repo.id, (usage.file_count, usage.logical_len)),
            None => _ = self.swept().remove(&repo.id),
        }
    }

    fn swept(&self) -> MutexGuard<'_, HashMap<i64, (u64, u64)>> {
        self.swept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a repository has some, before the first one is listed.
    pub(super) fn insert(&self, repo: &HubRepo) {
        self.repos().insert(repo.storage_name.clone(), repo.id);
    }

    /// Forgets a repository that has none any more. Only a sweep adds some.
    pub(super) fn forget(&self, storage_name: &str) {
        self.repos().remove(storage_name);
    }

    fn repos(&self) -> MutexGuard<'_, HashMap<String, i64>> {
        self.repos.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Takes files that this repository has just registered or committed from the list of unneeded
    /// files. The caller holds the locks of the files, or that of the repository.
    pub(in crate::service) async fn retain_unneeded(
        &self,
        storage_name: &str,
        files: impl Iterator<Item = FileHash> + Send,
    ) -> Result<(), StoreError> {
        let Some(id) = self.repo_with_unneeded(storage_name).await? else { return Ok(()) };
        Ok(self.store.index.set_unneeded_files(id, files.collect(), None).await?)
    }

    /// Takes a file that a client need not send again from the list of unneeded files. Afterwards a
    /// claim to it that exists stays for a week. Returns whether a sweep may have removed the claim
    /// before.
    pub(super) async fn retain_file(&self, open: &OpenRepo, file: FileHash) -> Result<bool, StoreError> {
        let name = &open.repo.storage_name;
        if self.repo_with_unneeded(name).await?.is_none() {
            return Ok(false);
        }
        let _lock = self.store.lock_files([file], FileChange::Register, PATIENCE).await?;
        self.retain_unneeded(name, std::iter::once(file)).await?;
        Ok(true)
    }

    /// The number of the repository, if a sweep may have listed files of it as unneeded.
    async fn repo_with_unneeded(&self, storage_name: &str) -> Result<Option<i64>, StoreError> {
        if !self.store.index.is_shared() {
            return Ok(self.unneeded.repos().get(storage_name).copied());
        }
        let index = &self.store.index;
        let Some(repo) = index.find_stored_hub_repo(storage_name.to_owned()).await? else { return Ok(None) };
        let has_some = !index.list_unneeded_files(repo.id, None, 1).await?.is_empty();
        Ok(has_some.then_some(repo.id))
    }

    /// Loads which repositories have unneeded files. To be called before a server takes requests.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn load_unneeded_files(&self) -> Result<(), StoreError> {
        let repos = self.store.index.hub_repos_with_unneeded_files().await?;
        self.unneeded.repos().extend(repos.into_iter().map(|repo| (repo.storage_name, repo.id)));
        Ok(())
    }
}
