//! Names of repositories: where a repository of a name is, and renaming.
//!
//! A repository keeps its storage name under every name, so claims, quotas and tokens stay with it.
//! A token for one repository opens the same one after a rename, and never another one that took
//! its name. A repository whose name equals the storage name of a renamed one gets a storage name
//! with `~2` and so on at the end, which no name has.
//!
//! A former name leads to the repository, except for those who may see another repository of the
//! name. So to readers a hidden repository shows nothing by having or having had a name. Who may
//! create a name learns that it is in use. There is no redirect, because clients send a commit
//! once: after a redirect they could not send it again. Deletions and renames need the present
//! name.
//!
//! The record of a rename comes after its transaction, like that of a deletion. A rename that was
//! recorded and not made would take the name from a later repository in a rebuild. A crash between
//! the two leaves a rename that was not acknowledged, and the next start of a first server records
//! it. If the record cannot be written, the next rename of the repository writes it first, or a
//! creation or rename that takes the former name.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::catalog::shown_by;
use super::name::MAX_FORMER_COUNT;
use super::{HubError, HubName, OpenRepo, creating_claims};
use crate::index::{HubRepo, HubRepoAt};
use crate::runtime::fair::Busy;
use crate::service::access::{Claims, Scope};
use crate::service::registration_log::HubChange;
use crate::service::store_locks::RepoLock;
use crate::service::{Server, Store, StoreError};

/// Maximum number of renames, and of deletions, whose records are written at once: each needs the
/// lock of its repository. More are written in further rounds.
const MAX_RECORD_COUNT: u32 = 100;

/// Maximum number of storage names that are tried for a new repository.
const MAX_STORAGE_NAME_COUNT: u32 = 1000;

/// A name that is free, with the locks that keep it so.
pub(super) struct FreeName {
    /// A storage name that is free, for a new repository.
    pub(super) storage_name: String,
    /// The locks of the name, of the storage name, and of those that the caller asked for.
    pub(super) locks: Vec<RepoLock>,
}

impl Store {
    /// The repository with this name.
    pub(super) async fn find_hub_name(&self, name: &HubName) -> Result<Option<HubRepo>, StoreError> {
        let find = self.index.find_hub_repo(name.kind(), name.namespace().to_owned(), name.name().to_owned());
        Ok(find.await?)
    }

    /// The same, with the commit of a branch or tag.
    pub(super) async fn find_hub_name_at(
        &self,
        name: &HubName,
        reference: &str,
    ) -> Result<Option<HubRepoAt>, StoreError> {
        let (kind, namespace, repo_name) = (name.kind(), name.namespace().to_owned(), name.name().to_owned());
        Ok(self.index.find_hub_repo_at(kind, namespace, repo_name, reference.to_owned()).await?)
    }

    /// Renames and deletions of repositories that had this name, if they have no record.
    async fn unrecorded_changes(&self, name: &HubName) -> Result<Vec<HubChange>, StoreError> {
        let mut found = Vec::new();
        for is_deletion in [false, true] {
            let (kind, namespace, repo_name) = (name.kind(), name.namespace().to_owned(), name.name().to_owned());
            let list = self.index.list_unrecorded_renames(kind, namespace, repo_name, is_deletion, MAX_RECORD_COUNT);
            found.extend(list.await?.into_iter().map(|repo| HubChange { is_deletion, ..HubChange::of(repo) }));
        }
        Ok(found)
    }

    /// Appends the record of a rename or deletion, after its transaction.
    pub(super) async fn record_made(&self, change: HubChange) -> Result<(), StoreError> {
        let id = change.repo.id;
        let (appended, _) = self.append_hub(change).await?;
        appended.retain_applied().await?;
        Ok(self.index.set_hub_repo_recorded(id).await?)
    }

    /// A storage name for a new repository of this name. Those of these deleted ones count as free.
    async fn free_storage_name(&self, name: &HubName, deleted: &[HubRepo]) -> Result<String, HubError> {
        let first = name.storage_name();
        for number in 1..=MAX_STORAGE_NAME_COUNT {
            let tried = if number == 1 { first.clone() } else { format!("{first}~{number}") };
            let is_deleted = deleted.iter().any(|deleted| deleted.storage_name == tried);
            if is_deleted || !self.index.has_storage_name(tried.clone()).await? {
                return Ok(tried);
            }
        }
        Err(HubError::Invalid("Too many repositories had this name. Choose another one.".to_owned()))
    }

    /// The deleted repositories that have this name, or the storage name that belongs to it.
    async fn deleted_of(&self, name: &HubName) -> Result<Vec<HubRepo>, StoreError> {
        let (namespace, bare) = (name.namespace().to_owned(), name.name().to_owned());
        let named = self.index.find_deleted_hub_repo(name.kind(), namespace, bare).await?;
        let stored = self.index.find_deleted_stored_hub_repo(name.storage_name()).await?;
        let stored = stored.filter(|stored| named.as_ref().is_none_or(|named| named.id != stored.id));
        Ok(named.into_iter().chain(stored).collect())
    }
}

impl Server {
    /// The repository that these claims find by a former name: of those that they show, the one
    /// that was created last.
    pub(super) async fn find_former_hub_name(
        &self,
        claims: &Claims,
        name: &HubName,
    ) -> Result<Option<HubRepo>, HubError> {
        let Some(shown) = shown_by(claims, name.kind()) else { return Ok(None) };
        let (namespace, repo_name) = (name.namespace().to_owned(), name.name().to_owned());
        let found = self.store.index.list_renamed_hub_repos(name.kind(), namespace, repo_name, shown, 1).await?;
        Ok(found.into_iter().next())
    }

    /// Takes the locks of a name that is to be given to a repository, and those of these storage
    /// names. Purges deleted repositories of the name.
    ///
    /// # Errors
    ///
    /// `Err` with the repository that has the name; or much is left of a deleted one.
    pub(super) async fn lock_free_name(
        self: &Arc<Self>,
        name: &HubName,
        others: &[&str],
    ) -> Result<Result<FreeName, HubRepo>, HubError> {
        let store = &self.store;
        loop {
            // Clients create what exists, so this is frequent. It needs no lock.
            if let Some(found) = store.find_hub_name(name).await? {
                return Ok(Err(found));
            }
            let (deleted, former) = (store.deleted_of(name).await?, store.unrecorded_changes(name).await?);
            let storage_name = store.free_storage_name(name, &deleted).await?;
            let mut names = BTreeSet::from([name.storage_name(), storage_name.clone()]);
            names.extend(repos_of(&deleted, &former).map(|repo| repo.storage_name.clone()));
            names.extend(others.iter().map(|&other| other.to_owned()));
            let locks = self.lock_hub_repos(names).await?;
            // What was seen without the locks may have changed. The name comes first: no repository
            // gets it any more, and one that gave it up is among the others, or has its record.
            let locked: Vec<i64> = repos_of(&deleted, &former).map(|repo| repo.id).collect();
            if let Some(found) = store.find_hub_name(name).await? {
                return Ok(Err(found));
            }
            let deleted = store.deleted_of(name).await?;
            let former = store.unrecorded_changes(name).await?;
            let are_all = former.len() < MAX_RECORD_COUNT as usize;
            if !repos_of(&deleted, &former).all(|repo| locked.contains(&repo.id)) {
                continue;
            }
            let server = Arc::clone(self);
            // With the locks, also if the client disconnects: records of one repository must be in
            // the order of its changes.
            let clear = async move {
                for change in former {
                    server.store.record_made(change).await?;
                }
                for deleted in &deleted {
                    server.purge(deleted).await?;
                }
                Ok::<_, HubError>(locks)
            };
            let locks = self.uninterrupted(clear).await?;
            if are_all && !store.index.has_storage_name(storage_name.clone()).await? {
                return Ok(Ok(FreeName { storage_name, locks }));
            }
        }
    }

    /// The locks of several repositories, in the one order in which all callers take them.
    async fn lock_hub_repos(&self, storage_names: BTreeSet<String>) -> Result<Vec<RepoLock>, HubError> {
        let keys: BTreeSet<String> = storage_names.iter().map(|name| name.to_ascii_lowercase()).collect();
        let mut locks = Vec::with_capacity(keys.len());
        for key in keys {
            locks.push(self.lock_hub_repo(&key).await?);
        }
        Ok(locks)
    }

    /// Gives a repository another name in its namespace. Its present one becomes a former name.
    ///
    /// # Errors
    ///
    /// [`HubError::NoRepo`], [`HubError::Exists`]; [`HubError::ReadOnly`] if these claims do not
    /// permit creating a repository of the new name; or the names are in two namespaces. After an
    /// error of the store it may be renamed all the same.
    pub async fn rename_hub_repo(
        self: &Arc<Self>,
        claims: &Claims,
        from: &HubName,
        to: &HubName,
    ) -> Result<(), HubError> {
        let open = self.open_present_hub_repo(claims, from, Scope::Write).await?;
        if from.kind() != to.kind() || !from.namespace().eq_ignore_ascii_case(to.namespace()) {
            let detail = "A repository stays in its namespace: the names must differ behind the slash only.";
            return Err(HubError::Invalid(detail.to_owned()));
        }
        // The namespace as it was created. A name is also a claim to what asks for it.
        let to = &to.in_namespace_of(&open.repo);
        if creating_claims(claims, to, &to.storage_name()).is_none() {
            return Err(HubError::ReadOnly);
        }
        let locks = match self.lock_free_name(to, &[&open.repo.storage_name]).await? {
            Ok(free) => free.locks,
            // Only the case of its own name changes.
            Err(found) if found.id == open.repo.id && found.name != to.name() => {
                vec![self.lock_hub_repo(&open.repo.storage_name).await?]
            }
            Err(found) if found.id == open.repo.id => return Ok(()),
            Err(found) => return Err(in_use(claims, to, Some(found))),
        };
        let now = self.store.named_hub_repo_now(&open).await?;
        let former = self.store.index.list_former_names(now.id, MAX_FORMER_COUNT).await?;
        let renamed = HubRepo { name: to.name().to_owned(), ..now.clone() };
        let is_more = renamed.lower_name() != now.lower_name() && !former.contains(&renamed.lower_name());
        if is_more && former.len() >= MAX_FORMER_COUNT as usize {
            let detail = format!("A repository has at most {MAX_FORMER_COUNT} former names.");
            return Err(HubError::Invalid(detail));
        }
        let store = Arc::clone(&self.store);
        let rename = async move {
            let _locks = locks;
            // If the last rename has no record, no record would have the name that it gave.
            if !store.index.is_hub_repo_recorded(now.id).await? {
                store.record_made(HubChange::of(now)).await?;
            }
            let was_renamed = store.index.rename_hub_repo(renamed.clone()).await?;
            if was_renamed {
                store.record_made(HubChange::of(renamed)).await?;
            }
            Ok::<_, HubError>(was_renamed)
        };
        if self.uninterrupted(rename).await? {
            return Ok(());
        }
        Err(in_use(claims, to, self.store.find_hub_name(to).await?))
    }
}

/// The refusal of a name that this repository has. Without the right to see it that is the refusal
/// of any name that the claims do not permit. `None` if one had it a moment ago: the client tries
/// again.
pub(super) fn in_use(claims: &Claims, name: &HubName, found: Option<HubRepo>) -> HubError {
    let Some(found) = found else { return StoreError::from(Busy { is_above_share: false }).into() };
    match OpenRepo::of(claims, found) {
        Some(_) => HubError::Exists { what: format!("{}/{}", name.namespace(), name.name()) },
        None => HubError::ReadOnly,
    }
}

/// Repositories that are deleted, and those of changes.
fn repos_of<'a>(deleted: &'a [HubRepo], changes: &'a [HubChange]) -> impl Iterator<Item = &'a HubRepo> {
    deleted.iter().chain(changes.iter().map(|change| &change.repo))
}
