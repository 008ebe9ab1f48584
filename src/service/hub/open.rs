//! Opening: which repository of a name a caller sees, with which claims, and at which commit.
//!
//! A caller learns nothing of a repository that these claims do not show: it is
//! [`HubError::NoRepo`], like one that does not exist.

use super::{HubError, HubName, missing};
use crate::index::{HubCommit, HubRepo, IndexError, IndexErrorKind};
use crate::runtime::clock::Timestamp;
use crate::runtime::fair::Tenant;
use crate::service::access::{Claims, PublicRepo, Repo, RepoScope, Scope};
use crate::service::{Server, StoreError};

/// A Hub repository, as it is open for one caller.
#[derive(Clone, Debug)]
pub struct OpenRepo {
    /// Its row.
    pub repo: HubRepo,
    /// The claims under which its files are registered.
    pub(super) claims: Claims,
    /// The claims of the caller, under which its files are read. With claims for all repositories
    /// the caller may read what was uploaded while the server had no authentication.
    pub(super) caller: Claims,
}

impl Server {
    /// Opens a repository for reading or writing, by its name, or a former one if these claims do
    /// not show another repository of the name.
    ///
    /// # Errors
    ///
    /// [`HubError::NoRepo`] also if these claims are for another repository, so that a caller does
    /// not learn which repositories exist.
    pub async fn open_hub_repo(&self, claims: &Claims, name: &HubName, needed: Scope) -> Result<OpenRepo, HubError> {
        match self.open_present_hub_repo(claims, name, needed).await {
            Err(HubError::NoRepo) => {}
            opened => return opened,
        }
        match OpenRepo::open(claims, self.find_former_hub_name(claims, name).await?, needed) {
            Err(HubError::NoRepo) => {}
            opened => return opened,
        }
        // It may have been given its former name back meanwhile.
        self.open_present_hub_repo(claims, name, needed).await
    }

    /// Opens a repository for reading, as [`open_hub_repo`](Self::open_hub_repo) does, and finds
    /// the commit of a revision, as [`find_revision`](Self::find_revision) does. In one read of the
    /// index for the head of a branch, which most requests name.
    ///
    /// # Errors
    ///
    /// Those of both.
    pub async fn open_hub_revision(
        &self,
        claims: &Claims,
        name: &HubName,
        revision: &str,
    ) -> Result<(OpenRepo, HubCommit), HubError> {
        let branch = if revision.starts_with("refs/") { revision } else { &format!("refs/heads/{revision}") };
        let found = match revision.chars().any(char::is_control) {
            true => Ok(None),
            false => self.store.find_hub_name_at(name, branch).await,
        };
        let found = match found {
            // A damaged row of a commit is an error only for those who are shown it: below.
            Err(StoreError::Index(IndexError {
                kind: IndexErrorKind::Inconsistent | IndexErrorKind::Damaged, ..
            })) => None,
            found => found?,
        };
        // A caller that is shown a repository may read it.
        let (open, head) = match found.and_then(|found| Some((OpenRepo::of(claims, found.repo)?, found.head))) {
            Some(found) => found,
            None => (self.open_hub_repo(claims, name, Scope::Read).await?, None),
        };
        let head = match head {
            Some(head) => head,
            None => self.find_revision(&open, revision).await?,
        };
        Ok((open, head))
    }

    /// Whether the repository of a token for reading it is still there and public.
    ///
    /// # Errors
    ///
    /// The index does not respond, or the tenant got no permit for a lookup in time.
    pub async fn is_still_public(&self, public: &PublicRepo, tenant: Tenant) -> Result<bool, StoreError> {
        let _permit = self.lookup_permit(tenant).await?;
        let found = self.store.index.find_stored_hub_repo(public.repo().to_string()).await?;
        Ok(found.and_then(|found| found.created_if_public()) == Some(public.created()))
    }

    /// As [`open_hub_repo`](Self::open_hub_repo), but only by the present name of the repository.
    pub(super) async fn open_present_hub_repo(
        &self,
        claims: &Claims,
        name: &HubName,
        needed: Scope,
    ) -> Result<OpenRepo, HubError> {
        OpenRepo::open(claims, self.store.find_hub_name(name).await?, needed)
    }

    /// The commit of a revision: a branch, a tag, a full name such as `refs/heads/main`, or the id
    /// of a commit.
    ///
    /// # Errors
    ///
    /// [`HubError::NoRevision`], or the index does not respond.
    pub async fn find_revision(&self, open: &OpenRepo, revision: &str) -> Result<HubCommit, HubError> {
        let (repo, index) = (open.repo.id, &self.store.index);
        if revision.chars().any(char::is_control) {
            return Err(HubError::NoRevision { revision: String::new() });
        }
        let names = match revision.starts_with("refs/") {
            true => vec![revision.to_owned()],
            false => vec![format!("refs/heads/{revision}"), format!("refs/tags/{revision}")],
        };
        for name in &names {
            if let Some(head) = index.find_hub_head(repo, name.clone()).await? {
                return Ok(head);
            }
        }
        if let Ok(id) = revision.parse()
            && let Some(commit) = index.find_hub_commit(repo, id).await?
        {
            return Ok(commit);
        }
        for name in names {
            if let Some(target) = index.find_hub_ref(repo, name).await? {
                return Err(open.inconsistent(format!("commit {target}")));
            }
        }
        Err(HubError::NoRevision { revision: revision.to_owned() })
    }
}

impl OpenRepo {
    /// The repository, if the holder of these claims may see it.
    pub(super) fn of(claims: &Claims, repo: HubRepo) -> Option<Self> {
        let acting = acting_claims(claims, &repo.storage_name, repo.created_if_public())?;
        let caller = if claims.repo == RepoScope::All { claims.clone() } else { acting.clone() };
        Some(Self { repo, claims: acting, caller })
    }

    /// The repository that was found, for these claims.
    fn open(claims: &Claims, found: Option<HubRepo>, needed: Scope) -> Result<Self, HubError> {
        let open = found.and_then(|repo| Self::of(claims, repo)).ok_or(HubError::NoRepo)?;
        if open.claims.allow(needed) { Ok(open) } else { Err(HubError::ReadOnly) }
    }

    /// The claims with which a client reads or writes the files of the repository for an hour.
    #[must_use]
    pub const fn claims(&self) -> &Claims {
        &self.claims
    }

    pub(super) fn inconsistent(&self, what: String) -> HubError {
        missing(&self.repo, what)
    }
}

/// The claims under which a caller creates a repository of this name, with this storage name.
/// `None` if the caller may not.
pub(super) fn creating_claims(claims: &Claims, name: &HubName, storage_name: &str) -> Option<Claims> {
    let is_elsewhere = matches!(&claims.repo, RepoScope::Account(account) if !account.creates_in(name.namespace()));
    acting_claims(claims, storage_name, None).filter(|acting| acting.allow(Scope::Write) && !is_elsewhere)
}

/// The claims under which a caller acts on a repository: those for all repositories, for its
/// namespace or of a user become claims for this one. `None` if the caller may not see it. All
/// users read a public one, which has the time of its creation here.
///
/// A server without authentication does not distinguish repositories, because its clients upload
/// without tokens.
pub(in crate::service) fn acting_claims(
    claims: &Claims,
    storage_name: &str,
    public: Option<Timestamp>,
) -> Option<Claims> {
    if *claims == Claims::UNRESTRICTED {
        return Some(claims.clone());
    }
    let repo: Repo = storage_name.parse().ok()?;
    let public = public.map(|created| PublicRepo::new(repo.clone(), created));
    let (most, repo) = match &claims.repo {
        RepoScope::Account(account) => match account.role_for(storage_name) {
            Some(role) => (role.into(), RepoScope::One(repo)),
            None => (Scope::Read, RepoScope::Public(public?)),
        },
        RepoScope::Public(own) => (Scope::Read, RepoScope::Public(public.filter(|public| public == own)?)),
        scope if scope.covers(&repo) => (claims.scope, RepoScope::One(repo)),
        RepoScope::All | RepoScope::One(_) | RepoScope::Namespace(_) => return None,
    };
    Some(Claims { scope: claims.scope.min(most), repo, ..claims.clone() })
}
