//! The commits of a repository, and the directories and files that they have.

use std::collections::{HashMap, HashSet};

use super::copy::refs_of;
use super::{HubError, missing};
use crate::format::FileHash;
use crate::format::shard::Sha256;
use crate::git::{EntryKind, ObjectId};
use crate::index::{HubObject, HubRef, HubRepo};
use crate::runtime::fair::Tenant;
use crate::service::Store;
use crate::service::gc::Pace;

/// Rows that are read at once.
pub(super) const PAGE_COUNT: u32 = if cfg!(test) { 3 } else { 1000 };

/// Maximum number of directories and files of a repository that is swept: their marks take some 400
/// MiB.
const MAX_MARK_COUNT: usize = 4_000_000;

/// The commits of a repository at a moment.
#[derive(Debug)]
pub(super) struct History {
    /// The generation of the repository.
    pub(super) generation: i64,
    /// The commits that branches and tags need.
    needed: HashSet<ObjectId>,
    /// The parent and the root directory of each commit.
    commits: HashMap<ObjectId, (Option<ObjectId>, ObjectId)>,
}

/// The directories and files that commits have.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// The generation of the history that was marked last.
    generation: Option<i64>,
    commits: HashSet<ObjectId>,
    trees: HashSet<ObjectId>,
    blobs: HashSet<ObjectId>,
    /// The contents of the files, each with whether a branch or tag needed it when it was marked.
    files: HashMap<FileHash, bool>,
    /// The first bytes of the sha256 of each large file.
    sha256s: HashSet<[u8; 8]>,
}

impl History {
    /// Reads the commits. The caller holds the lock of the repository, so that there are no new
    /// ones meanwhile. `None` if the repository does not exist.
    ///
    /// # Errors
    ///
    /// A commit is missing that a branch or tag needs, or the index does not respond.
    pub(super) async fn read(store: &Store, repo: &HubRepo) -> Result<Option<Self>, HubError> {
        let Some(generations) = store.index.hub_generations(repo.id).await? else { return Ok(None) };
        let refs = refs_of(store.index.as_ref(), repo.id).await?;
        let (mut commits, mut after) = (HashMap::new(), None);
        loop {
            let page = store.index.list_hub_commits(repo.id, after, PAGE_COUNT).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            commits.extend(page.into_iter().map(|commit| (commit.id, (commit.parent, commit.tree))));
        }
        let mut history = Self { generation: generations.current, needed: HashSet::new(), commits };
        let mut needed = HashSet::new();
        for HubRef { target, .. } in refs {
            history.follow(target, |id| needed.insert(id));
        }
        if let Some(id) = needed.iter().find(|id| !history.commits.contains_key(id)) {
            return Err(missing(repo, format!("commit {id}")));
        }
        history.needed = needed;
        Ok(Some(history))
    }

    /// Whether a branch or tag needs a commit.
    pub(super) fn needs(&self, id: &ObjectId) -> bool {
        self.needed.contains(id)
    }

    pub(super) fn has(&self, id: &ObjectId) -> bool {
        self.commits.contains_key(id)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = &ObjectId> {
        self.commits.keys()
    }

    pub(super) fn forget(&mut self, id: &ObjectId) {
        self.commits.remove(id);
    }

    /// Calls `visit` with a commit and its ancestors, until it returns false.
    fn follow(&self, from: ObjectId, mut visit: impl FnMut(ObjectId) -> bool) {
        let mut next = Some(from);
        while let Some(id) = next.filter(|id| visit(*id)) {
            next = self.commits.get(&id).and_then(|(parent, _)| *parent);
        }
    }

    /// Those of these commits that no other commit needs, in an order in which each comes before
    /// its parent.
    pub(super) fn in_order(&self, mut old: HashSet<ObjectId>) -> Vec<ObjectId> {
        for (id, (parent, _)) in &self.commits {
            if let Some(parent) = parent.filter(|_| !old.contains(id)) {
                self.follow(parent, |ancestor| old.remove(&ancestor));
            }
        }
        let parent_of = |id: &ObjectId| self.commits.get(id).and_then(|(parent, _)| *parent);
        let mut child_counts: HashMap<ObjectId, usize> = HashMap::new();
        for parent in old.iter().filter_map(parent_of) {
            *child_counts.entry(parent).or_default() += 1;
        }
        let mut ready: Vec<ObjectId> = old.iter().copied().filter(|id| !child_counts.contains_key(id)).collect();
        let mut ordered = Vec::with_capacity(old.len());
        while let Some(id) = ready.pop() {
            ordered.push(id);
            let Some(parent) = parent_of(&id).filter(|parent| old.contains(parent)) else { continue };
            if let Some(count) = child_counts.get_mut(&parent) {
                *count -= 1;
                if *count == 0 {
                    ready.push(parent);
                }
            }
        }
        ordered
    }
}

impl Marks {
    pub(super) fn has(&self, object: HubObject, id: &ObjectId) -> bool {
        match object {
            HubObject::Tree => self.trees.contains(id),
            HubObject::Blob => self.blobs.contains(id),
        }
    }

    pub(super) fn has_file(&self, file: &FileHash) -> bool {
        self.files.contains_key(file)
    }

    /// Whether a commit has a large file with this sha256, or one that begins with the same bytes.
    pub(super) fn may_have_sha256(&self, sha256: &Sha256) -> bool {
        sha256.as_digest().first_chunk().is_some_and(|first| self.sha256s.contains(first))
    }

    /// The files that only unneeded commits have.
    pub(super) fn unneeded_files(&self) -> impl Iterator<Item = FileHash> {
        self.files.iter().filter(|(_, is_needed)| !**is_needed).map(|(file, _)| *file)
    }

    /// The files that branches and tags need.
    pub(super) fn needed_files(&self) -> impl Iterator<Item = FileHash> {
        self.files.iter().filter(|(_, is_needed)| **is_needed).map(|(file, _)| *file)
    }

    /// Whether a branch or tag needed this file when it was marked.
    pub(super) fn is_needed(&self, file: &FileHash) -> bool {
        self.files.get(file).is_some_and(|is_needed| *is_needed)
    }

    /// Marks what the commits of a history have that is not marked yet. `false` if it was stopped.
    ///
    /// # Errors
    ///
    /// A directory or file is missing that a branch or tag needs, there are too many, or the index
    /// does not respond. What an unneeded commit lacks is no error: a copy that was made during a
    /// sweep, or a rebuild after one, has only a part of it.
    pub(super) async fn add(
        &mut self,
        store: &Store,
        repo: &HubRepo,
        history: &History,
        pace: &Pace,
    ) -> Result<bool, HubError> {
        if self.generation == Some(history.generation) {
            return Ok(true);
        }
        // The needed ones first, so that their files are marked as needed.
        for is_needed in [true, false] {
            let commits = history.commits.iter().filter(|(id, _)| history.needs(id) == is_needed);
            let mut blobs = Vec::new();
            for (id, (_, tree)) in commits {
                if self.commits.insert(*id) && !self.add_tree(store, repo, (*tree, is_needed), &mut blobs, pace).await?
                {
                    return Ok(false);
                }
            }
            self.add_files(store, repo, blobs, is_needed).await?;
        }
        self.generation = Some(history.generation);
        Ok(true)
    }

    async fn add_tree(
        &mut self,
        store: &Store,
        repo: &HubRepo,
        (root, is_needed): (ObjectId, bool),
        blobs: &mut Vec<ObjectId>,
        pace: &Pace,
    ) -> Result<bool, HubError> {
        let mut next = vec![root];
        while let Some(id) = next.pop() {
            if !self.trees.insert(id) {
                continue;
            }
            if pace.stop.is_cancelled() {
                return Ok(false);
            }
            let tree = match store.read_tree(Tenant::SERVER, repo.id, id).await? {
                Some(tree) => tree,
                None if is_needed => return Err(missing(repo, format!("directory {id}"))),
                None => {
                    // A later commit may add it again.
                    self.trees.remove(&id);
                    continue;
                }
            };
            for (_, entry) in tree.entries() {
                match entry.kind {
                    EntryKind::Directory => next.push(entry.id),
                    EntryKind::File | EntryKind::Executable | EntryKind::Link => {
                        if self.blobs.insert(entry.id) {
                            blobs.push(entry.id);
                        }
                    }
                }
            }
            if self.trees.len() + self.blobs.len() > MAX_MARK_COUNT {
                return Err(HubError::Invalid(format!(
                    "the repository has more than {MAX_MARK_COUNT} directories and files"
                )));
            }
        }
        Ok(true)
    }

    async fn add_files(
        &mut self,
        store: &Store,
        repo: &HubRepo,
        blobs: Vec<ObjectId>,
        is_needed: bool,
    ) -> Result<(), HubError> {
        for some in blobs.chunks(PAGE_COUNT as usize) {
            let found = store.index.find_hub_blobs(repo.id, some.to_vec()).await?;
            if is_needed && found.len() != some.len() {
                return Err(missing(repo, "a file".to_owned()));
            }
            if found.len() != some.len() {
                // A later commit may add the others again.
                some.iter().for_each(|id| _ = self.blobs.remove(id));
                self.blobs.extend(found.iter().map(|blob| blob.id));
            }
            for blob in found {
                self.files.entry(blob.file).or_insert(is_needed);
                self.sha256s.extend(blob.sha256.iter().filter_map(|sha256| sha256.as_digest().first_chunk()));
            }
        }
        Ok(())
    }
}
