//! The last commit that changed each path of a list.
//!
//! The history is followed from the commit of the list. A path was changed last by the first commit
//! whose parent has something else there, or nothing. A directory that the parent has, too, is not
//! looked into, because its id says that nothing in it differs.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{HubEntry, HubError, OpenRepo};
use crate::git::{EntryKind, ObjectId, RepoPath, Tree};
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
            if let Some((id, _)) = self.find_directory(open, commit.tree, path).await? {
                directory.id = id;
            }
        }
        let (mut child, mut step_count) = (Arc::new(commit.clone()), 0);
        while !directories.is_empty() && step_count < MAX_STEP_COUNT {
            let parent = match child.parent {
                Some(id) => {
                    let parent = self.store.index.find_hub_commit(open.repo.id, id).await?;
                    Some(parent.ok_or_else(|| open.inconsistent(format!("commit {id}")))?)
                }
                None => None,
            };
            let entry_count = self.store.tree(open, child.tree).await?.count();
            step_count += 1 + entry_count / STEP_ENTRY_COUNT;
            if parent.as_ref().is_none_or(|parent| parent.tree != child.tree) {
                let roots = match &parent {
                    Some(parent) => {
                        Some((self.store.tree(open, parent.tree).await?, self.store.tree(open, child.tree).await?))
                    }
                    None => None,
                };
                for (path, directory) in &mut directories {
                    let (first, _) = path.split_once('/').unwrap_or((path, ""));
                    let is_same = |(before, after): &(Arc<Tree>, Arc<Tree>)| before.get(first) == after.get(first);
                    if !first.is_empty() && roots.as_ref().is_some_and(is_same) {
                        continue;
                    }
                    let before = match &parent {
                        Some(parent) => self.find_directory(open, parent.tree, path).await?,
                        None => None,
                    };
                    let entry_count = before.as_ref().map_or(0, |(_, tree)| tree.count());
                    step_count += 1 + path.split('/').count() + entry_count / STEP_ENTRY_COUNT;
                    if before.as_ref().is_some_and(|(id, _)| *id == directory.id) {
                        continue;
                    }
                    directory.left.retain(|(name, number)| {
                        let old = before.as_ref().and_then(|(_, tree)| tree.get(name)).map(|entry| entry.id);
                        let is_same = entries.get(*number).is_some_and(|entry| old == Some(entry.id));
                        if let Some(found) = found.get_mut(*number).filter(|_| !is_same) {
                            *found = Some(Arc::clone(&child));
                        }
                        is_same
                    });
                    if let Some((id, _)) = before {
                        directory.id = id;
                    }
                }
                directories.retain(|_, directory| !directory.left.is_empty());
            }
            let Some(parent) = parent else { break };
            child = Arc::new(parent);
        }
        Ok(found)
    }

    /// The directory at a path, with its id; `None` if there is none.
    async fn find_directory(
        &self,
        open: &OpenRepo,
        root: ObjectId,
        path: &str,
    ) -> Result<Option<(ObjectId, Arc<Tree>)>, HubError> {
        let mut id = root;
        if !path.is_empty() {
            let Ok(path) = path.parse::<RepoPath>() else { return Ok(None) };
            let entry = self.store.find_entry(open, root, &path).await?;
            let Some(entry) = entry.filter(|entry| entry.kind == EntryKind::Directory) else { return Ok(None) };
            id = entry.id;
        }
        Ok(Some((id, self.store.tree(open, id).await?)))
    }
}
