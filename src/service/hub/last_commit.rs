//! The last commit that changed each path of a list.
//!
//! The history is followed from the commit of the list. A path was changed last by the first commit
//! whose parent has something else there, or nothing. A directory that the parent has, too, is not
//! looked into, because its id says that nothing in it differs.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ancestors::Ancestors;
use super::{HubEntry, HubError, OpenRepo};
use crate::git::{EntryKind, ObjectId, RepoPath};
use crate::index::HubCommit;
use crate::service::Server;

/// Steps for one list: a commit, a directory on the way to a path, or a hundred entries of one are
/// a step. Each takes up to a tenth of a millisecond, and a history may have a million commits.
/// What is not found then has no last commit, which clients take as unknown.
const MAX_STEP_COUNT: usize = if cfg!(test) { 40 } else { 5000 };

/// Entries of a directory that are read in one step.
const STEP_ENTRY_COUNT: usize = 100;

/// The paths of a list that are in one directory.
struct Directory {
    /// Its id in the commit that was looked at last.
    id: ObjectId,
    /// Name and number of each entry whose last commit is not known yet.
    left: Vec<(String, usize)>,
}

impl Server {
    /// The last commit for each of these entries of a commit, in their order; `None` if it is
    /// further back in the history than is looked.
    ///
    /// # Errors
    ///
    /// The index does not respond, or a commit or directory is missing.
    pub async fn last_commits(
        &self,
        open: &OpenRepo,
        commit: &HubCommit,
        entries: &[HubEntry],
    ) -> Result<Vec<Option<Arc<HubCommit>>>, HubError> {
        let mut found = vec![None; entries.len()];
        let mut directories: BTreeMap<&str, Directory> = BTreeMap::new();
        for (number, entry) in entries.iter().enumerate() {
            let (directory, name) = entry.path.rsplit_once('/').unwrap_or(("", &entry.path));
            let new = || Directory { id: commit.tree, left: Vec::new() };
            directories.entry(directory).or_insert_with(new).left.push((name.to_owned(), number));
        }
        for (path, directory) in &mut directories {
            if let Some(id) = self.find_directory(open, commit.tree, path).await? {
                directory.id = id;
            }
        }
        let (mut child, mut child_root) = (Arc::new(commit.clone()), self.store.tree(open, commit.tree).await?);
        let mut step_count = 0;
        let mut ancestors = Ancestors::of(commit, &self.store, open);
        loop {
            if directories.is_empty() {
                return Ok(found);
            }
            let Some(parent) = ancestors.next().await? else { break };
            step_count += 1 + child_root.count() / STEP_ENTRY_COUNT;
            if step_count > MAX_STEP_COUNT {
                return Ok(found);
            }
            let parent_root = self.store.tree(open, parent.tree).await?;
            for (path, directory) in &mut directories {
                let (first, _) = path.split_once('/').unwrap_or((path, ""));
                if !first.is_empty() && parent_root.get(first) == child_root.get(first) {
                    continue;
                }
                step_count += path.split('/').count();
                let before = self.find_directory(open, parent.tree, path).await?;
                if before == Some(directory.id) {
                    continue;
                }
                let tree = match before {
                    Some(id) => self.store.tree(open, id).await?,
                    None => Arc::default(),
                };
                step_count += tree.count() / STEP_ENTRY_COUNT;
                directory.left.retain(|(name, number)| {
                    let old = tree.get(name).map(|entry| entry.id);
                    let is_same = entries.get(*number).is_some_and(|entry| old == Some(entry.id));
                    if let Some(found) = found.get_mut(*number).filter(|_| !is_same) {
                        *found = Some(Arc::clone(&child));
                    }
                    is_same
                });
                directory.id = before.unwrap_or(directory.id);
            }
            directories.retain(|_, directory| !directory.left.is_empty());
            (child, child_root) = (Arc::new(parent), parent_root);
        }
        // What is left was there from the first commit on.
        for (_, number) in directories.into_values().flat_map(|directory| directory.left) {
            if let Some(found) = found.get_mut(number) {
                *found = Some(Arc::clone(&child));
            }
        }
        Ok(found)
    }

    /// The id of the directory at a path; `None` if there is none.
    async fn find_directory(&self, open: &OpenRepo, root: ObjectId, path: &str) -> Result<Option<ObjectId>, HubError> {
        if path.is_empty() {
            return Ok(Some(root));
        }
        let Ok(path) = path.parse::<RepoPath>() else { return Ok(None) };
        let entry = self.store.find_entry(open, root, &path).await?;
        Ok(entry.filter(|entry| entry.kind == EntryKind::Directory).map(|entry| entry.id))
    }
}
