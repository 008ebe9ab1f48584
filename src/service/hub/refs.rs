//! Repositories are created. Their branches and tags.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::part::sealed;
use super::rename::{FreeName, in_use};
use super::{HubError, HubName, OpenRepo, creating_claims};
use crate::git::{EntryKind, ObjectId, Tree};
use crate::index::{HubCommit, HubRef, HubRepo, HubTree, NewHubRepo};
use crate::service::Server;
use crate::service::access::Claims;
use crate::service::registration_log::HubChange;

/// The files that a new repository has.
///
/// Git clients that clone it must know which of its files are large. These are the endings that the
/// Hugging Face Hub writes, too.
const ATTRIBUTES: &[&str] = &[
    "7z",
    "arrow",
    "bin",
    "bz2",
    "ckpt",
    "ftz",
    "gguf",
    "gz",
    "h5",
    "joblib",
    "mlmodel",
    "model",
    "msgpack",
    "npy",
    "npz",
    "onnx",
    "ot",
    "parquet",
    "pb",
    "pickle",
    "pkl",
    "pt",
    "pth",
    "rar",
    "safetensors",
    "tar",
    "tflite",
    "tgz",
    "wasm",
    "xz",
    "zip",
    "zst",
];

/// Maximum number of branches and tags of a repository: clients read all of them at once.
const MAX_REF_COUNT: usize = 10_000;

/// Refs on a page.
const REF_PAGE_COUNT: u32 = 1000;

impl Server {
    /// Creates a repository. Its branch `main` has one commit with a `.gitattributes`.
    ///
    /// # Errors
    ///
    /// [`HubError::Exists`], these claims do not permit it, or much is left of a deleted repository
    /// of the name.
    pub async fn create_hub_repo(
        self: &Arc<Self>,
        claims: &Claims,
        name: &HubName,
        is_private: bool,
    ) -> Result<(), HubError> {
        creating_claims(claims, name, &name.storage_name()).ok_or(HubError::ReadOnly)?;
        // A refusal has no record: the next start would apply it after a kill. So whatever can
        // refuse is checked with the lock, before the record is written.
        let FreeName { storage_name, locks } = match self.lock_free_name(name, &[]).await? {
            Ok(free) => free,
            Err(found) => return Err(in_use(claims, name, Some(found))),
        };
        // A token for one repository does not open a new one with its former name.
        let acting = creating_claims(claims, name, &storage_name).ok_or(HubError::ReadOnly)?;
        let message = "initial commit".to_owned();
        // Before a file is stored for a repository that does not exist.
        self.check_quota_of_commit(&storage_name, message.len(), std::iter::empty()).await?;
        let blobs = self.ingest(&acting, vec![attributes().into_bytes()]).await?;
        let mut root = Tree::default();
        for blob in &blobs {
            root.insert(".gitattributes", crate::git::Entry { kind: EntryKind::File, id: blob.id });
        }
        let (tree, entries) = root.to_object()?;
        let at = self.store.clock.now();
        let author = author_of(&acting);
        let first = HubCommit { id: ObjectId::from_bytes([0; 20]), tree, parent: None, at, author, message };
        let first = sealed(first)?;
        let new = NewHubRepo {
            kind: name.kind(),
            namespace: name.namespace().to_owned(),
            name: name.name().to_owned(),
            storage_name,
            is_private,
        };
        let trees = vec![HubTree { id: tree, entries }];
        let created = HubRepo {
            id: 0,
            kind: new.kind,
            namespace: new.namespace.clone(),
            name: new.name.clone(),
            storage_name: new.storage_name.clone(),
            is_private,
            created: at,
            updated: at,
        };
        let change = HubChange {
            commits: vec![first.clone()],
            trees,
            blobs,
            refs: BTreeMap::from([("refs/heads/main".to_owned(), Some(first.id))]),
            is_creation: true,
            ..HubChange::of(created)
        };
        let store = Arc::clone(&self.store);
        let write = async move {
            let (appended, HubChange { trees, blobs, .. }) = store.append_hub(change).await?;
            let appended = appended.holding(locks);
            let created = store.index.create_hub_repo(new, first, trees, blobs, appended.number()).await;
            match &created {
                Ok(None) => appended.roll_back().await,
                Ok(Some(_)) => appended.retain(),
                Err(_) => {
                    appended.retain_unknown().await;
                }
            }
            Ok::<_, HubError>(created?.is_some())
        };
        if self.uninterrupted(write).await? {
            return Ok(());
        }
        Err(in_use(claims, name, self.store.find_hub_name(name).await?))
    }

    /// All branches and tags of a repository.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn hub_refs(&self, open: &OpenRepo) -> Result<Vec<HubRef>, HubError> {
        let mut refs: Vec<HubRef> = Vec::new();
        loop {
            let after = refs.last().map(|last| last.name.clone()).unwrap_or_default();
            let page = self.store.index.list_hub_refs(open.repo.id, after, REF_PAGE_COUNT).await?;
            let is_last = page.len() < REF_PAGE_COUNT as usize;
            refs.extend(page);
            if is_last || refs.len() >= MAX_REF_COUNT {
                return Ok(refs);
            }
        }
    }

    /// Creates a branch or tag with this full name, such as `refs/tags/v1`.
    ///
    /// # Errors
    ///
    /// [`HubError::Exists`], the name is invalid, or there are too many.
    pub async fn create_hub_ref(
        self: &Arc<Self>,
        open: &OpenRepo,
        name: String,
        target: ObjectId,
    ) -> Result<(), HubError> {
        check_ref_name(&name)?;
        let lock = self.lock_hub_repo(&open.repo.storage_name).await?;
        let refs = self.hub_refs(open).await?;
        if refs.iter().any(|known| known.name == name) {
            return Err(HubError::Exists { what: name });
        }
        if self.store.index.find_hub_commit(open.repo.id, target).await?.is_none() {
            return Err(HubError::NoRevision { revision: target.to_string() });
        }
        // Git stores each as a file, so `a` and `a/b` cannot both exist.
        let is_below = |one: &str, other: &str| one.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'));
        if refs.iter().any(|known| is_below(&known.name, &name) || is_below(&name, &known.name)) {
            return Err(HubError::Invalid(
                "Another branch or tag has a part of this name, so git cannot have both.".to_owned(),
            ));
        }
        if refs.len() >= MAX_REF_COUNT {
            return Err(HubError::Invalid(format!("A repository has at most {MAX_REF_COUNT} branches and tags.")));
        }
        let (store, repo) = (Arc::clone(&self.store), self.store.hub_repo_now(open).await?);
        let new = HubRef { name: name.clone(), target };
        let write = async move {
            let lock = Arc::new(lock);
            let refs = BTreeMap::from([(new.name.clone(), Some(target))]);
            let (appended, change) = store.append_hub(HubChange { refs, ..HubChange::of(repo) }).await?;
            let appended = appended.holding(Arc::clone(&lock));
            let name = new.name.clone();
            let created = store.index.create_hub_ref(change.repo.id, new, appended.number()).await;
            Ok::<_, HubError>(store.settle_ref(appended, created, change.repo, (name, Some(target))).await?)
        };
        if self.uninterrupted(write).await? { Ok(()) } else { Err(HubError::Exists { what: name }) }
    }

    /// Deletes a branch or tag with this full name. The branch `main` stays.
    ///
    /// # Errors
    ///
    /// [`HubError::NoRevision`], or it is the branch `main`.
    pub async fn delete_hub_ref(self: &Arc<Self>, open: &OpenRepo, name: String) -> Result<(), HubError> {
        if name == "refs/heads/main" {
            return Err(HubError::Invalid("The branch main cannot be deleted.".to_owned()));
        }
        let lock = self.lock_hub_repo(&open.repo.storage_name).await?;
        let none = || HubError::NoRevision { revision: name.clone() };
        let target = self.store.index.find_hub_ref(open.repo.id, name.clone()).await?.ok_or_else(none)?;
        let (store, repo) = (Arc::clone(&self.store), self.store.hub_repo_now(open).await?);
        // It may be listed since before the branch was created.
        store.index.set_unneeded_commits(repo.id, vec![target], None).await?;
        let old = HubRef { name: name.clone(), target };
        let write = async move {
            let lock = Arc::new(lock);
            let refs = BTreeMap::from([(old.name.clone(), None)]);
            let (appended, change) = store.append_hub(HubChange { refs, ..HubChange::of(repo) }).await?;
            let appended = appended.holding(Arc::clone(&lock));
            let name = old.name.clone();
            let deleted = store.index.delete_hub_ref(change.repo.id, old, appended.number()).await;
            Ok::<_, HubError>(store.settle_ref(appended, deleted, change.repo, (name, None)).await?)
        };
        // Only another process can have moved it meanwhile.
        if self.uninterrupted(write).await? { Ok(()) } else { Err(HubError::Moving) }
    }
}

/// The name of the author of a commit with these claims.
pub(super) fn author_of(claims: &Claims) -> String {
    claims.subject.as_ref().map_or("anonymous", |subject| subject.as_str()).to_owned()
}

pub(in crate::service) fn attributes() -> String {
    let line = |ending: &&str| format!("*.{ending} filter=lfs diff=lfs merge=lfs -text\n");
    ATTRIBUTES.iter().map(line).collect()
}

/// Refuses a name that git refuses for a branch or tag (`git check-ref-format`), and one that looks
/// like a commit id.
fn check_ref_name(name: &str) -> Result<(), HubError> {
    const MAX_LEN: usize = 255;
    let short = name.splitn(3, '/').nth(2).unwrap_or_default();
    let is_forbidden = |character: char| character.is_control() || " ~^:?*[\\".contains(character);
    let is_component = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    let is_valid = name.len() <= MAX_LEN
        && short.split('/').all(is_component)
        && !short.starts_with('-')
        && !short.ends_with('.')
        && !short.contains("..")
        && !short.contains("@{")
        && short != "@"
        && short != "HEAD"
        && !short.starts_with("refs/")
        && !short.contains(is_forbidden)
        && short.parse::<ObjectId>().is_err();
    if is_valid { Ok(()) } else { Err(HubError::Invalid(format!("Git does not allow the name {short:?}."))) }
}
