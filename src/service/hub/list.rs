//! Lists of the files and directories of a commit.
//!
//! The order is by the bytes of each name, a directory before what is below it. A page begins after
//! a path, so that directories that are wholly before it are not read.

use std::collections::HashMap;
use std::sync::Arc;

use super::{HubError, OpenRepo};
use crate::git::{Entry, EntryKind, ObjectId, RepoPath, Tree};
use crate::index::{HubBlob, HubCommit};
use crate::service::Server;

/// A file or directory of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubEntry {
    /// Its path.
    pub path: String,
    /// Id of its blob or tree.
    pub id: ObjectId,
    /// The blob of a file; `None` for a directory.
    pub blob: Option<HubBlob>,
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubPage {
    /// The entries.
    pub entries: Vec<HubEntry>,
    /// The path after which the next page begins; `None` on the last page.
    pub next: Option<String>,
}

/// What a list has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The files and directories of the directory.
    One,
    /// Those of all levels below.
    All,
    /// The files of all levels below.
    Files,
}

/// A directory whose entries are being listed.
struct Level {
    /// Its path, with a slash at its end unless it is the root.
    prefix: String,
    /// The rest of its entries, the last one first.
    rest: Vec<(String, Entry)>,
}

impl Server {
    /// A page of what is below a directory of a commit.
    ///
    /// # Errors
    ///
    /// [`HubError::NoEntry`] if the path is not a directory.
    pub async fn list_hub_files(
        &self,
        open: &OpenRepo,
        commit: &HubCommit,
        path: &str,
        depth: Depth,
        (after, limit): (Option<&str>, usize),
    ) -> Result<HubPage, HubError> {
        let path = path.trim_end_matches('/');
        let root = self.directory(open, commit, path).await?;
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let mut levels = vec![Level::of(prefix, &root)];
        let mut found: Vec<(String, Entry)> = Vec::new();
        let mut has_more = false;
        while let Some(level) = levels.last_mut() {
            let Some((name, entry)) = level.rest.pop() else {
                levels.pop();
                continue;
            };
            let path = format!("{}{name}", level.prefix);
            let place = after.map_or(Place::After, |after| Place::of(&path, after));
            let is_listed = place == Place::After && !(depth == Depth::Files && entry.kind == EntryKind::Directory);
            if is_listed && found.len() == limit {
                has_more = true;
                break;
            }
            let is_directory = entry.kind == EntryKind::Directory;
            if depth != Depth::One && is_directory && place != Place::Before {
                let tree = self.store.tree(open, entry.id).await?;
                levels.push(Level::of(format!("{path}/"), &tree));
            }
            if is_listed {
                found.push((path, entry));
            }
        }
        let next = found.last().map(|(path, _)| path.clone()).filter(|_| has_more);
        Ok(HubPage { entries: self.with_blobs(open, found).await?, next })
    }

    /// Those of these paths that a commit has, in the order of the paths.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn find_hub_paths(
        &self,
        open: &OpenRepo,
        commit: &HubCommit,
        paths: &[String],
    ) -> Result<Vec<HubEntry>, HubError> {
        let mut found = Vec::new();
        // Those of one directory follow each other: larger directories than memory keeps are then
        // read once and not for each path.
        let mut sorted: Vec<(usize, &str)> = paths.iter().map(|path| path.trim_matches('/')).enumerate().collect();
        sorted.sort_unstable_by_key(|(_, path)| *path);
        for (number, path) in sorted {
            let Ok(parsed) = path.parse::<RepoPath>() else { continue };
            if let Some(entry) = self.store.find_entry(open, commit.tree, &parsed).await? {
                found.push((number, (path.to_owned(), entry)));
            }
        }
        found.sort_unstable_by_key(|(number, _)| *number);
        self.with_blobs(open, found.into_iter().map(|(_, found)| found).collect()).await
    }

    /// Of the files among these entries, those whose contents can be read.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn readable_files(&self, open: &OpenRepo, entries: Vec<HubEntry>) -> Result<Vec<HubEntry>, HubError> {
        let mut readable = Vec::new();
        for entry in entries {
            if let Some(blob) = entry.blob.clone()
                && self.readable(open, blob).await?.is_some()
            {
                readable.push(entry);
            }
        }
        Ok(readable)
    }

    async fn directory(&self, open: &OpenRepo, commit: &HubCommit, path: &str) -> Result<Arc<Tree>, HubError> {
        if path.is_empty() {
            return self.store.tree(open, commit.tree).await;
        }
        let none = || HubError::NoEntry { path: path.to_owned(), commit: commit.id };
        let parsed: RepoPath = path.parse().map_err(|_| none())?;
        let entry = self.store.find_entry(open, commit.tree, &parsed).await?;
        let entry = entry.filter(|entry| entry.kind == EntryKind::Directory).ok_or_else(none)?;
        self.store.tree(open, entry.id).await
    }

    /// Adds the blobs of the files.
    async fn with_blobs(&self, open: &OpenRepo, found: Vec<(String, Entry)>) -> Result<Vec<HubEntry>, HubError> {
        let files = found.iter().filter(|(_, entry)| entry.kind != EntryKind::Directory);
        let ids: Vec<ObjectId> = files.map(|(_, entry)| entry.id).collect();
        let blobs = self.store.index.find_hub_blobs(open.repo.id, ids).await?;
        let blobs: HashMap<ObjectId, HubBlob> = blobs.into_iter().map(|blob| (blob.id, blob)).collect();
        let entries = found.into_iter().map(|(path, Entry { kind, id })| {
            let blob = match kind {
                EntryKind::Directory => None,
                EntryKind::File | EntryKind::Executable | EntryKind::Link => {
                    Some(blobs.get(&id).cloned().ok_or_else(|| open.inconsistent(format!("blob {id}")))?)
                }
            };
            Ok(HubEntry { path, id, blob })
        });
        entries.collect()
    }
}

impl Level {
    fn of(prefix: String, tree: &Tree) -> Self {
        let rest = tree.entries().rev().map(|(name, entry)| (name.to_owned(), entry)).collect();
        Self { prefix, rest }
    }
}

/// Where a path is in a list that continues after another path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It was listed, and so was everything below it.
    Before,
    /// It was listed; the list continues below it.
    Above,
    /// It was not listed.
    After,
}

impl Place {
    fn of(path: &str, after: &str) -> Self {
        if after == path || after.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')) {
            return Self::Above;
        }
        if path.split('/').gt(after.split('/')) { Self::After } else { Self::Before }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_continues_below_the_last_path_and_after_it() {
        for (path, after, place) in [
            ("a", "b", Place::Before),
            ("b", "a", Place::After),
            ("a", "a", Place::Above),
            ("a", "a/b", Place::Above),
            ("a/b", "a", Place::After),
            // By names: the slash ends one, so it is before every character.
            ("a.txt", "a/b", Place::After),
            ("a/b", "a.txt", Place::Before),
            ("a/c", "a/b/z", Place::After),
        ] {
            assert_eq!(Place::of(path, after), place, "{path} after {after}");
        }
    }
}
