//! Lists of repositories.

use std::sync::Arc;

use super::{HubError, OpenRepo, acting_claims};
use crate::index::{HubCommit, HubRepo, RepoKind, RepoOrder, RepoPlace, ShownRepos};
use crate::service::Server;
use crate::service::access::{Claims, RepoScope};

/// Repositories of a namespace that are listed with their storage, of each kind.
const MAX_OWN_COUNT: u32 = 1000;

/// A repository and how many bytes it stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRepo {
    /// Its row.
    pub repo: HubRepo,
    /// Bytes of its chunks, compressed.
    pub stored_len: u64,
}

/// Which repositories of a kind these claims may show; `None` if none. The index filters by it, so
/// hidden ones do not count towards its limits.
pub(super) fn shown_by(claims: &Claims, kind: RepoKind) -> Option<ShownRepos> {
    match &claims.repo {
        RepoScope::All => Some(ShownRepos::All),
        RepoScope::One(repo) => Some(ShownRepos::One(repo.to_string())),
        RepoScope::Public(public) => Some(ShownRepos::One(public.repo().to_string())),
        RepoScope::Account(account) => Some(ShownRepos::PublicAndOf(account.namespaces())),
        RepoScope::Namespace(namespace) if !namespace.has_kind(kind.plural()) => None,
        RepoScope::Namespace(namespace) => Some(ShownRepos::Of(namespace.name().to_owned())),
    }
}

/// What the head of the branch `main` says of a repository.
#[derive(Clone, Debug)]
pub struct RepoHead {
    /// The commit.
    pub commit: HubCommit,
    /// The metadata of its card, as YAML; `None` if it has none.
    pub metadata: Option<Arc<str>>,
}

impl Server {
    /// A page of the repositories of a kind that these claims permit to read. Also the place at
    /// which the next page begins. Repositories that they do not permit to read change neither.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn list_hub_repos(
        &self,
        claims: &Claims,
        kind: RepoKind,
        place: RepoPlace,
        limit: u32,
    ) -> Result<(Vec<HubRepo>, Option<RepoPlace>), HubError> {
        let index = &self.store.index;
        // The index leaves hidden ones out of lists. It is not the only thing that hides them.
        let is_shown = |row: &HubRepo| acting_claims(claims, &row.storage_name, row.created_if_public()).is_some();
        let shown = match shown_by(claims, kind) {
            None => return Ok((Vec::new(), None)),
            Some(ShownRepos::One(own)) => {
                let own = self.own_repo(kind, own).await?;
                return Ok((own.into_iter().filter(|own| place.precedes(own) && is_shown(own)).collect(), None));
            }
            Some(shown) => shown,
        };
        let rows = index.list_shown_hub_repos(kind, shown, place.clone(), limit).await?;
        let next = rows.last().map(|last| place.after(last)).filter(|_| rows.len() == limit as usize);
        Ok((rows.into_iter().filter(is_shown).collect(), next))
    }

    /// What the head of a listed repository says of it; `None` if the repository was deleted since,
    /// or its head cannot be read: it is listed all the same.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn hub_repo_head(&self, claims: &Claims, repo: &HubRepo) -> Result<Option<RepoHead>, HubError> {
        let Some(open) = OpenRepo::of(claims, repo.clone()) else { return Ok(None) };
        let read = async {
            let commit = self.find_revision(&open, "refs/heads/main").await?;
            let metadata = self.hub_card(&open, &commit).await?;
            Ok(RepoHead { commit, metadata })
        };
        match read.await {
            Ok(head) => Ok(Some(head)),
            Err(error @ HubError::Store(_)) => Err(error),
            Err(error) => {
                tracing::debug!(repo = repo.storage_name, %error, "cannot read the head of a listed repository");
                Ok(None)
            }
        }
    }

    /// The repositories of a namespace in which these claims have a role, with what they store.
    /// Public ones of others are left out. At most 1000 of each kind, the newest.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn own_hub_repos(&self, claims: &Claims, namespace: &str) -> Result<Vec<StoredRepo>, HubError> {
        let has_none = match &claims.repo {
            RepoScope::All | RepoScope::One(_) => false,
            RepoScope::Namespace(own) => !own.name().eq_ignore_ascii_case(namespace),
            RepoScope::Account(account) => account.role_in(namespace).is_none(),
            RepoScope::Public(_) => true,
        };
        if has_none {
            return Ok(Vec::new());
        }
        let (index, first) = (&self.store.index, RepoPlace::first(RepoOrder::Created));
        let mut found = Vec::new();
        for kind in RepoKind::ALL {
            let rows = match shown_by(claims, kind) {
                None => Vec::new(),
                Some(ShownRepos::One(own)) => self.own_repo(kind, own).await?.into_iter().collect(),
                Some(shown @ ShownRepos::Of(_)) => {
                    index.list_shown_hub_repos(kind, shown, first.clone(), MAX_OWN_COUNT).await?
                }
                Some(ShownRepos::All | ShownRepos::PublicAndOf(_)) => {
                    index.list_hub_repos(kind, Some(namespace.to_owned()), i64::MAX, MAX_OWN_COUNT).await?
                }
            };
            for repo in rows.into_iter().filter(|repo| repo.namespace.eq_ignore_ascii_case(namespace)) {
                if acting_claims(claims, &repo.storage_name, None).is_some() {
                    let usage = index.repo_usage(repo.storage_name.clone()).await?;
                    found.push(StoredRepo { repo, stored_len: usage.physical_len });
                }
            }
        }
        Ok(found)
    }

    /// What a repository stores, in bytes. `None` for a caller without a role in its namespace, who
    /// reads it because it is public.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn stored_len(&self, open: &OpenRepo) -> Result<Option<u64>, HubError> {
        if matches!(open.claims.repo, RepoScope::Public(_)) {
            return Ok(None);
        }
        let usage = self.store.index.repo_usage(open.repo.storage_name.clone()).await?;
        Ok(Some(usage.physical_len))
    }

    /// The repository with this storage name, if it is of this kind. Others are not looked at: even
    /// how many there are is not for the holder of a token for one.
    async fn own_repo(&self, kind: RepoKind, storage_name: String) -> Result<Option<HubRepo>, HubError> {
        let found = self.store.index.find_stored_hub_repo(storage_name).await?;
        Ok(found.filter(|found| found.kind == kind))
    }
}
