//! Changes to the directories of a commit.
//!
//! Only the directories that a change touches are loaded, each once. The others keep their ids.

use std::collections::BTreeMap;

use super::{HubError, OpenRepo};
use crate::git::{Entry, EntryKind, ObjectId, RepoPath, Tree};
use crate::index::HubTree;
use crate::runtime::fair::{FairGate, Permit, Tenant};
use crate::service::{Store, StoreError};

/// Maximum number of entries of a directory. One of 100 000 entries has 4 MB, which every commit
/// that touches it writes again.
const MAX_ENTRY_COUNT: usize = 100_000;

/// Maximum number of directories that a commit touches. A path of 1 KiB can name 500 new ones, so
/// the number of changes does not bound them.
const MAX_DIRECTORY_COUNT: usize = 25_000;

/// Maximum bytes of memory of all directories that a commit touches, as they were before. Each one
/// that changes is written beside them. 1000 directories of 1000 files with names of 30 bytes take
/// 94 MB.
const MAX_LOADED_WEIGHT: u32 = 96 << 20;

/// Above this many bytes of directories a commit needs a permit for large ones, so that only a few
/// of them are in memory at once.
const LARGE_WEIGHT: u32 = 8 << 20;

/// The directories of a commit while they are changed.
pub(super) struct Editing<'a> {
    store: &'a Store,
    open: &'a OpenRepo,
    root: Directory,
    left: Allowance,
    large: Large<'a>,
}

/// The gate for commits with large directories, and the permit of this one.
struct Large<'a> {
    gate: &'a FairGate,
    tenant: Tenant,
    permit: Option<Permit>,
}

impl Large<'_> {
    /// Waits for the permit, if so much is loaded that one is needed.
    async fn check(&mut self, left: &Allowance) -> Result<(), HubError> {
        if self.permit.is_none() && MAX_LOADED_WEIGHT.saturating_sub(left.weight) > LARGE_WEIGHT {
            self.permit = Some(self.gate.enter(self.tenant, 1).await.map_err(StoreError::from)?);
        }
        Ok(())
    }
}

/// What may still be loaded.
#[derive(Debug)]
struct Allowance {
    directory_count: usize,
    weight: u32,
}

impl Allowance {
    /// Takes a directory from the allowance.
    fn take(&mut self, tree: &Tree) -> Result<(), HubError> {
        self.directory_count = self.directory_count.checked_sub(1).ok_or_else(|| {
            HubError::Invalid(format!("A commit changes files in at most {MAX_DIRECTORY_COUNT} directories."))
        })?;
        self.weight = self.weight.checked_sub(tree.weight()).ok_or_else(|| {
            HubError::Invalid(
                "The directories that this commit changes have too many files; make several commits.".to_owned(),
            )
        })?;
        Ok(())
    }
}

/// A directory that was loaded.
#[derive(Debug, Default)]
struct Directory {
    tree: Tree,
    /// Directories below it that were loaded, too. Their entries in `tree` may be outdated.
    loaded: BTreeMap<String, Self>,
    has_changed: bool,
}

impl<'a> Editing<'a> {
    /// Begins with this root directory.
    pub(super) async fn begin(
        store: &'a Store,
        open: &'a OpenRepo,
        root: ObjectId,
        gate: &'a FairGate,
    ) -> Result<Self, HubError> {
        let root = store.tree(open, root).await?;
        let mut left = Allowance { directory_count: MAX_DIRECTORY_COUNT + 1, weight: MAX_LOADED_WEIGHT };
        left.take(&root)?;
        let mut large = Large { gate, tenant: Tenant::current(), permit: None };
        large.check(&left).await?;
        Ok(Self { store, open, root: Directory::of(Tree::clone(&root)), left, large })
    }

    /// Puts a file at a path, in place of the file that is there. Makes directories on the way.
    pub(super) async fn put(&mut self, path: &RepoPath, entry: Entry) -> Result<(), HubError> {
        let (directories, last) = path.split();
        let directory = self.enter(&directories, true).await?;
        let directory = directory.ok_or_else(|| HubError::Invalid(format!("A directory of {path} is a file.")))?;
        directory.prune(last);
        if directory.tree.get(last).is_some_and(|before| before.kind == EntryKind::Directory) {
            return Err(HubError::Invalid(format!("{path} is a directory; delete it first.")));
        }
        if directory.tree.get(last).is_none() {
            directory.check_count()?;
        }
        if directory.tree.get(last) != Some(entry) {
            directory.tree.insert(last, entry);
            directory.has_changed = true;
        }
        Ok(())
    }

    /// Removes a file, or a directory with everything below it. `false` if there is none.
    pub(super) async fn remove(&mut self, path: &RepoPath, is_directory: bool) -> Result<bool, HubError> {
        let (directories, last) = path.split();
        let Some(directory) = self.enter(&directories, false).await? else { return Ok(false) };
        directory.prune(last);
        let is_same = |entry: Entry| (entry.kind == EntryKind::Directory) == is_directory;
        if !directory.tree.get(last).is_some_and(is_same) {
            return Ok(false);
        }
        directory.tree.remove(last);
        directory.loaded.remove(last);
        directory.has_changed = true;
        Ok(true)
    }

    /// The id of the root directory, and the directories that have changed; with the permit of a
    /// large commit, which is to be held until they are written.
    pub(super) async fn finish(self) -> Result<(ObjectId, Vec<HubTree>, Option<Permit>), HubError> {
        let Self { store, open, root, large, .. } = self;
        let (id, trees) = store.pool.run_for(open.claims.tenant(), move || root.write_all()).await?;
        Ok((id, trees, large.permit))
    }

    /// The directory with these names, loaded. `None` if there is none and `creates` is not set, or
    /// if one of the names is a file.
    async fn enter(&mut self, names: &[&str], creates: bool) -> Result<Option<&mut Directory>, HubError> {
        let Self { store, open, root, left, large } = self;
        let mut at = root;
        for name in names {
            if !at.loaded.contains_key(*name) {
                let loaded = match at.tree.get(name) {
                    Some(entry) if entry.kind == EntryKind::Directory => {
                        let tree = store.tree(open, entry.id).await?;
                        left.take(&tree)?;
                        large.check(left).await?;
                        Directory::of(Tree::clone(&tree))
                    }
                    None if creates => {
                        at.check_count()?;
                        // The id is known when the directory is written.
                        let id = ObjectId::from_bytes([0; 20]);
                        at.tree.insert(name, Entry { kind: EntryKind::Directory, id });
                        left.take(&Tree::default())?;
                        Directory { has_changed: true, ..Directory::default() }
                    }
                    Some(_) | None => return Ok(None),
                };
                at.loaded.insert((*name).to_owned(), loaded);
            }
            let Some(next) = at.loaded.get_mut(*name) else { return Ok(None) };
            at = next;
        }
        Ok(Some(at))
    }
}

impl Directory {
    fn of(tree: Tree) -> Self {
        Self { tree, ..Self::default() }
    }

    /// Refuses one more entry if there are too many.
    fn check_count(&self) -> Result<(), HubError> {
        if self.tree.count() < MAX_ENTRY_COUNT {
            return Ok(());
        }
        Err(HubError::Invalid(format!("A directory has at most {MAX_ENTRY_COUNT} entries.")))
    }

    /// Removes the directory with this name if nothing is left below it: in git it does not exist.
    fn prune(&mut self, name: &str) {
        if self.loaded.get(name).is_some_and(Self::is_void) {
            self.tree.remove(name);
            self.loaded.remove(name);
            self.has_changed = true;
        }
    }

    /// Whether there is no file at any level below.
    fn is_void(&self) -> bool {
        let is_void = |name: &str| self.loaded.get(name).is_some_and(Self::is_void);
        self.tree.entries().all(|(name, entry)| entry.kind == EntryKind::Directory && is_void(name))
    }

    /// Writes the root directory and those below it. Blocks.
    fn write_all(mut self) -> Result<(ObjectId, Vec<HubTree>), HubError> {
        let mut written = Vec::new();
        if let Some(id) = self.write(&mut written)? {
            return Ok((id, written));
        }
        // No files are left: git has an object for the empty root, too.
        let (id, entries) = Tree::default().to_object()?;
        written.push(HubTree { id, entries });
        Ok((id, written))
    }

    /// Writes the directories below, then this one. `None` if it is empty: git has no empty
    /// directories.
    fn write(&mut self, written: &mut Vec<HubTree>) -> Result<Option<ObjectId>, HubError> {
        for (name, below) in &mut self.loaded {
            let before = self.tree.get(name).map(|entry| entry.id);
            let now = below.write(written)?;
            match now {
                Some(id) => self.tree.insert(name, Entry { kind: EntryKind::Directory, id }),
                None => drop(self.tree.remove(name)),
            }
            self.has_changed |= before != now;
        }
        if self.tree.is_empty() {
            return Ok(None);
        }
        let (id, entries) = self.tree.to_object()?;
        if self.has_changed {
            written.push(HubTree { id, entries });
        }
        Ok(Some(id))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::runtime::fair::Limits;

    #[test]
    fn directories_of_a_commit_have_limits_of_count_and_memory() {
        let mut tree = Tree::default();
        tree.insert("twelve bytes", Entry { kind: EntryKind::File, id: ObjectId::from_bytes([7; 20]) });
        let takes = |directory_count, weight| {
            let mut left = Allowance { directory_count, weight };
            (0..).take_while(|_| left.take(&tree).is_ok()).count()
        };
        let weight = tree.weight();
        assert_eq!(takes(5, 1000 * weight), 5);
        assert_eq!(takes(100, 3 * weight - 1), 2);
        assert_eq!(takes(100, 3 * weight), 3);
    }

    #[tokio::test]
    async fn commit_of_large_directories_waits_for_another_one() {
        let limits = Limits { capacity: 1, per_tenant: 1, waiting_count: 9, patience: Duration::from_secs(30) };
        let (gate, tenant) = (FairGate::new(limits), Tenant::new(1));
        let with = |weight| Allowance { directory_count: 9, weight: MAX_LOADED_WEIGHT - weight };
        let mut commits = [0, 1, 2].map(|_| Large { gate: &gate, tenant, permit: None });
        let [small, first, second] = &mut commits;
        small.check(&with(LARGE_WEIGHT)).await.unwrap();
        assert!(small.permit.is_none());
        for _ in 0..2 {
            first.check(&with(LARGE_WEIGHT + 1)).await.unwrap();
        }
        assert!(second.check(&with(LARGE_WEIGHT + 1)).now_or_never().is_none(), "it waits");
        first.permit = None;
        second.check(&with(LARGE_WEIGHT + 1)).await.unwrap();
        assert!(second.permit.is_some());
    }
}
