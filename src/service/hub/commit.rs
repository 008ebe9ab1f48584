//! Commits: changes of files, put on top of the head of a branch.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::advance::Ready;
use super::edit::Editing;
use super::part::sealed;
use super::refs::author_of;
use super::{HubError, OpenRepo};
use crate::format::FileHash;
use crate::format::shard::Sha256;
use crate::git::{Entry, EntryKind, ObjectId, Pointer, RepoPath};
use crate::index::{HubBlob, HubCommit, HubRef, HubTree};
use crate::runtime::fair::{Permit, Tenant};
use crate::service::access::RepoScope;
use crate::service::{Server, StoreError};

/// Maximum number of changes of a commit.
pub(crate) const MAX_CHANGE_COUNT: usize = 25_000;

/// Maximum length of a commit message in bytes.
const MAX_MESSAGE_LEN: usize = 64 << 10;

/// How often a commit without a parent is tried on a head that other commits move.
const TRY_COUNT: usize = 10;

/// A change of one path.
#[derive(Clone, Debug)]
pub enum Change {
    /// Put these contents at the path.
    Put {
        /// The path.
        path: RepoPath,
        /// The contents.
        contents: Vec<u8>,
    },
    /// Put a large file at the path, which the repository has registered before.
    PutLarge {
        /// The path.
        path: RepoPath,
        /// Its sha256.
        sha256: Sha256,
        /// Its length in bytes, if the client states it.
        len: Option<u64>,
    },
    /// Copy a file of a revision of this repository.
    Copy {
        /// The new path.
        path: RepoPath,
        /// The path of the file.
        from: RepoPath,
        /// The revision that has it; `None` for the head of the branch.
        revision: Option<String>,
    },
    /// Delete a file.
    Delete {
        /// The path.
        path: RepoPath,
    },
    /// Delete a directory with everything below it.
    DeleteDirectory {
        /// The path.
        path: RepoPath,
    },
}

/// A commit that a client asks for.
#[derive(Clone, Debug)]
pub struct CommitRequest {
    /// The branch, without `refs/heads/`.
    pub branch: String,
    /// The message.
    pub message: String,
    /// The id, or at least seven digits of it, that the head of the branch must have.
    pub parent: Option<String>,
    /// The changes, in order.
    pub changes: Vec<Change>,
}

/// The head of the branch after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its id.
    pub id: ObjectId,
    /// Whether it is a new commit. It is not if the changes change nothing.
    pub is_new: bool,
}

/// A change whose contents are stored.
enum Stored {
    Put(RepoPath, HubBlob),
    Copy { path: RepoPath, from: RepoPath, revision: Option<String> },
    Delete { path: RepoPath, is_directory: bool },
}

/// Directories after the changes of a commit.
struct Applied {
    /// The root directory.
    tree: ObjectId,
    /// Those that have changed.
    trees: Vec<HubTree>,
    /// The files that were copied.
    copied: Vec<HubBlob>,
    /// The permit of a large commit.
    large: Option<Permit>,
}

impl Server {
    /// Commits changes to a branch. After `Ok` the branch names a commit with them, durably.
    ///
    /// # Errors
    ///
    /// [`HubError::Stale`] if the head is not the stated parent. Without a stated parent, the
    /// changes are put on top of the head of the moment, and [`HubError::Moving`] says that it
    /// always moved. Nothing is visible after an error, except that contents may be stored.
    pub async fn commit(self: &Arc<Self>, open: &OpenRepo, request: CommitRequest) -> Result<Committed, HubError> {
        let CommitRequest { branch, message, parent, changes } = request;
        check_message(&message)?;
        let name = format!("refs/heads/{branch}");
        // Before contents are stored, so that a commit to a branch that does not exist stores none.
        self.head(open, &branch, &name).await?;
        let changes = self.store_contents(open, changes).await?;
        let at = self.store.clock.now();
        let author = author_of(&open.claims);
        let lock = Arc::new(self.lock_hub_repo(&open.repo.storage_name).await?);
        self.check_claims(open, &changes).await?;
        for _ in 0..TRY_COUNT {
            // After the lock: a permit must not wait for other commits of the repository.
            let permit = self.permits.commits.enter(Tenant::current(), 1).await.map_err(StoreError::from)?;
            let head = self.head(open, &branch, &name).await?;
            if let Some(parent) = parent.as_deref().filter(|parent| !is_prefix(parent, head.id)) {
                return self.repeated(open, &head, parent, (&changes, &author, &message)).await;
            }
            let Applied { tree, trees, copied, large } = match self.apply(open, &head, &changes).await {
                Ok(applied) => applied,
                // A deletion that was made by the same commit before: its response was lost.
                Err(error @ (HubError::NoEntry { .. } | HubError::Invalid(_))) => {
                    let before = head.parent.map(|parent| parent.to_string()).unwrap_or_default();
                    let repeated = self.repeated(open, &head, &before, (&changes, &author, &message)).await;
                    return repeated.map_err(|_| error);
                }
                Err(error) => return Err(error),
            };
            if tree == head.tree {
                self.renew_blobs(open, blobs_of(&changes), &lock).await?;
                return Ok(Committed { id: head.id, is_new: false });
            }
            let tree_lens = trees.iter().map(|tree| tree.entries.len());
            self.check_quota_of_commit(&open.repo.storage_name, message.len(), tree_lens).await?;
            // The clocks of replicas differ a little; a history must not go back in time.
            let at = at.max(head.at);
            let unsealed = HubCommit {
                id: head.id,
                tree,
                parent: Some(head.id),
                at,
                author: author.clone(),
                message: message.clone(),
            };
            let from = HubRef { name: name.clone(), target: head.id };
            // The record of a commit has also what it copies: the one that added it may be damaged.
            let blobs = [blobs_of(&changes), copied].concat();
            let permits = [Some(permit), large].into_iter().flatten().collect();
            let ready = Ready { from, commit: sealed(unsealed)?, trees, blobs, permits };
            if let Some(id) = self.advance(open, ready, &lock).await? {
                return Ok(Committed { id, is_new: true });
            }
        }
        Err(HubError::Moving)
    }

    /// The head of a branch.
    pub(super) async fn head(&self, open: &OpenRepo, branch: &str, name: &str) -> Result<HubCommit, HubError> {
        let target = self.store.index.find_hub_ref(open.repo.id, name.to_owned()).await?;
        let target = target.ok_or_else(|| HubError::NoRevision { revision: branch.to_owned() })?;
        let found = self.store.index.find_hub_commit(open.repo.id, target).await?;
        found.ok_or_else(|| open.inconsistent(format!("commit {target}")))
    }

    /// A client repeats a commit whose response was lost. Then the head is this very commit.
    async fn repeated(
        &self,
        open: &OpenRepo,
        head: &HubCommit,
        stated: &str,
        (changes, author, message): (&[Stored], &str, &str),
    ) -> Result<Committed, HubError> {
        let stale = || HubError::Stale { head: head.id };
        let parent = head.parent.filter(|parent| is_prefix(stated, *parent)).ok_or_else(stale)?;
        let before = self.store.index.find_hub_commit(open.repo.id, parent).await?;
        let before = before.ok_or_else(|| open.inconsistent(format!("commit {parent}")))?;
        if head.author != author || head.message != message {
            return Err(stale());
        }
        // Changes that do not fit on the parent are not those of the head.
        match self.apply(open, &before, changes).await {
            Ok(applied) if applied.tree == head.tree => Ok(Committed { id: head.id, is_new: false }),
            Ok(_) | Err(HubError::Invalid(_) | HubError::NoEntry { .. }) => Err(stale()),
            Err(error) => Err(error),
        }
    }

    /// Stores the contents of the changes, and finds the large files.
    async fn store_contents(self: &Arc<Self>, open: &OpenRepo, changes: Vec<Change>) -> Result<Vec<Stored>, HubError> {
        let (mut stored, mut contents, mut places) = (Vec::with_capacity(changes.len()), Vec::new(), Vec::new());
        let mut known: HashMap<[u8; 32], HubBlob> = HashMap::new();
        for change in changes {
            let (path, sha256, len) = match change {
                Change::Put { path, contents: bytes } => match Pointer::parse(&bytes) {
                    // In git a pointer and the large file are the same blob, so they are here, too.
                    Some(pointer) => (path, Sha256::from_digest(pointer.sha256), Some(pointer.len)),
                    None => {
                        contents.push(bytes);
                        places.push((stored.len(), path));
                        // Replaced below.
                        stored.push(None);
                        continue;
                    }
                },
                Change::PutLarge { path, sha256, len } => (path, sha256, len),
                Change::Copy { path, from, revision } => {
                    stored.push(Some(Stored::Copy { path, from, revision }));
                    continue;
                }
                Change::Delete { path } => {
                    stored.push(Some(Stored::Delete { path, is_directory: false }));
                    continue;
                }
                Change::DeleteDirectory { path } => {
                    stored.push(Some(Stored::Delete { path, is_directory: true }));
                    continue;
                }
            };
            let blob = match known.get(sha256.as_digest()) {
                Some(blob) if len.is_none_or(|len| len == blob.len) => blob.clone(),
                Some(_) | None => self.large_blob(open, &path, sha256, len).await?,
            };
            known.insert(*sha256.as_digest(), blob.clone());
            stored.push(Some(Stored::Put(path, blob)));
        }
        let blobs = self.ingest(&open.claims, contents).await?;
        for ((index, path), blob) in places.into_iter().zip(blobs) {
            if let Some(place) = stored.get_mut(index) {
                *place = Some(Stored::Put(path, blob));
            }
        }
        let stored: Option<Vec<Stored>> = stored.into_iter().collect();
        stored.ok_or_else(|| open.inconsistent("contents of a commit".to_owned()))
    }

    /// The blob of a large file that the repository has registered.
    async fn large_blob(
        &self,
        open: &OpenRepo,
        path: &RepoPath,
        sha256: Sha256,
        stated: Option<u64>,
    ) -> Result<HubBlob, HubError> {
        let unknown =
            || HubError::Invalid(format!("{path}: this repository has no file with this sha256; upload it first."));
        let (file, len) = self.find_large(&open.claims, sha256).await?.ok_or_else(unknown)?;
        if stated.is_some_and(|stated| stated != len) {
            return Err(HubError::Invalid(format!("{path}: the file with this sha256 has {len} bytes.")));
        }
        let id = Pointer { sha256: *sha256.as_digest(), len }.id()?;
        Ok(HubBlob { id, len, sha256: Some(sha256), file })
    }

    /// Refuses changes whose contents have no claim any more, because a user or a sweep has removed
    /// it since they were stored. A repetition stores those again that are in the commit. The
    /// caller holds the lock of the repository, with which a sweep removes claims.
    async fn check_claims(&self, open: &OpenRepo, changes: &[Stored]) -> Result<(), HubError> {
        // A server without authentication does not distinguish repositories.
        let RepoScope::One(repo) = &open.claims.repo else { return Ok(()) };
        let files: HashSet<FileHash> =
            blobs_of(changes).into_iter().filter(|blob| blob.len > 0).map(|blob| blob.file).collect();
        let claimed = self.store.index.claimed_files(files.iter().copied().collect(), repo.to_string()).await?;
        let claimed: HashSet<FileHash> = claimed.into_iter().map(|(file, _)| file).collect();
        let is_lost = |blob: &HubBlob| blob.len > 0 && !claimed.contains(&blob.file);
        let lost = changes.iter().filter_map(|change| match change {
            Stored::Put(path, blob) if is_lost(blob) => Some((path, blob.sha256)),
            Stored::Put(..) | Stored::Copy { .. } | Stored::Delete { .. } => None,
        });
        let mut is_any_lost = false;
        for (path, sha256) in lost {
            if sha256.is_some() {
                // A client that only repeats the commit does not send a large file again.
                let detail =
                    format!("The contents of {path} have been removed since they were sent. Upload them again.");
                return Err(HubError::Invalid(detail));
            }
            is_any_lost = true;
        }
        if is_any_lost {
            return Err(HubError::Moving);
        }
        Ok(self.retain_unneeded(&open.repo.storage_name, files.into_iter()).await?)
    }

    /// The directories after these changes.
    async fn apply(&self, open: &OpenRepo, head: &HubCommit, changes: &[Stored]) -> Result<Applied, HubError> {
        let mut copied = Vec::new();
        let mut editing = Editing::begin(&self.store, open, head.tree, &self.permits.large_commits).await?;
        for change in changes {
            match change {
                Stored::Put(path, blob) => {
                    editing.put(path, Entry { kind: EntryKind::File, id: blob.id }).await?;
                }
                Stored::Copy { path, from, revision } => {
                    let commit = match revision {
                        Some(revision) => self.find_revision(open, revision).await?,
                        None => head.clone(),
                    };
                    // A file that cannot be read any more is not copied.
                    let found = self.find_hub_file(open, &commit, from.as_str()).await?;
                    editing.put(path, Entry { kind: EntryKind::File, id: found.blob.id }).await?;
                    copied.push(found.blob);
                }
                Stored::Delete { path, is_directory } => {
                    if !editing.remove(path, *is_directory).await? {
                        return Err(HubError::NoEntry { path: path.to_string(), commit: head.id });
                    }
                }
            }
        }
        let (tree, trees, large) = editing.finish().await?;
        Ok(Applied { tree, trees, copied, large })
    }
}

/// Refuses a message that git cannot keep, or that is too long.
pub(super) fn check_message(message: &str) -> Result<(), HubError> {
    if message.contains('\0') {
        return Err(HubError::Invalid("A commit message has no NUL characters.".to_owned()));
    }
    if message.len() > MAX_MESSAGE_LEN {
        return Err(HubError::Invalid(format!("A commit message has at most {MAX_MESSAGE_LEN} bytes.")));
    }
    Ok(())
}

/// The files that these changes put, each once.
fn blobs_of(changes: &[Stored]) -> Vec<HubBlob> {
    let blobs = changes.iter().filter_map(|change| match change {
        Stored::Put(_, blob) => Some((blob.id, blob.clone())),
        Stored::Copy { .. } | Stored::Delete { .. } => None,
    });
    blobs.collect::<BTreeMap<ObjectId, HubBlob>>().into_values().collect()
}

/// Whether a text is the id, or at least seven digits of its beginning.
fn is_prefix(text: &str, id: ObjectId) -> bool {
    text.len() >= 7 && id.to_string().starts_with(&text.to_ascii_lowercase())
}
