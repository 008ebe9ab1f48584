//! Copies of Hub repositories, for backups and for the registration log.
//!
//! A copy begins with the branches of a moment. Commits, directories and files are read after that,
//! and only a sweep or a deletion of the repository deletes them. So a copy has everything that its
//! branches need. A copy that was cut off has no branches, and its repository is discarded. The
//! same holds if the repository was deleted meanwhile, or a branch of that moment, whose commits a
//! sweep has deleted since.

use std::collections::{HashSet, VecDeque};

use super::name::MAX_FORMER_COUNT;
use super::part::{HubPart, HubState};
use crate::git::ObjectId;
use crate::index::{HubBlob, HubCommit, HubRef, HubRepo, HubTree, Index, IndexError, RepoKind};
use crate::runtime::clock::Timestamp;

/// Rows that are read or written at once.
const PAGE_COUNT: u32 = 1000;

/// Directories that are read at once. One can have 28 MB.
const TREE_PAGE_COUNT: u32 = 8;

/// Bytes of directories that are written at once.
const TREE_PAGE_LEN: usize = 32 << 20;

/// Repositories, branches and tags that are read at once.
const REPO_PAGE_COUNT: u32 = 1000;

/// Reads the parts of a repository, a page at a time.
#[derive(Debug)]
pub(in crate::service) struct Copying<'a> {
    index: &'a dyn Index,
    repo: HubRepo,
    former_names: Vec<String>,
    pages: VecDeque<Next>,
}

/// What is to be read next.
#[derive(Debug)]
enum Next {
    Repo,
    Commits(Option<ObjectId>),
    Trees(Option<ObjectId>),
    Blobs(Option<ObjectId>),
    Refs(Vec<HubRef>),
}

/// Writes the parts of repositories into an index, which no client uses.
#[derive(Debug)]
pub(in crate::service) struct Loading<'a> {
    index: &'a dyn Index,
    /// The number of the repository whose parts are being written.
    repo: Option<i64>,
    commits: Vec<HubCommit>,
    trees: Vec<HubTree>,
    blobs: Vec<HubBlob>,
}

/// All repositories, and their branches and tags. Each repository is read at another moment, but no
/// two of them have one name.
pub(in crate::service) async fn hub_states(index: &dyn Index) -> Result<Vec<HubState>, IndexError> {
    loop {
        let states = read_states(index).await?;
        let mut names = HashSet::with_capacity(states.len());
        // Otherwise one was renamed meanwhile, and another one has its name.
        if states.iter().all(|state| names.insert((state.repo.kind, state.repo.lower_name()))) {
            return Ok(states);
        }
    }
}

async fn read_states(index: &dyn Index) -> Result<Vec<HubState>, IndexError> {
    let mut states = Vec::new();
    for kind in RepoKind::ALL {
        let mut before = i64::MAX;
        loop {
            let repos = index.list_hub_repos(kind, None, before, REPO_PAGE_COUNT).await?;
            let Some(last) = repos.last() else { break };
            before = last.id;
            for repo in repos {
                states.push(state_of(index, repo).await?);
            }
        }
    }
    Ok(states)
}

/// The present state of a repository.
pub(in crate::service) async fn state_of(index: &dyn Index, repo: HubRepo) -> Result<HubState, IndexError> {
    let former_names = index.list_former_names(repo.id, MAX_FORMER_COUNT).await?;
    let refs = refs_of(index, repo.id).await?;
    Ok(HubState { repo, former_names, refs })
}

/// All branches and tags of a repository.
pub(super) async fn refs_of(index: &dyn Index, repo: i64) -> Result<Vec<HubRef>, IndexError> {
    let mut refs: Vec<HubRef> = Vec::new();
    loop {
        let after = refs.last().map(|last| last.name.clone()).unwrap_or_default();
        let page = index.list_hub_refs(repo, after, REPO_PAGE_COUNT).await?;
        if page.is_empty() {
            return Ok(refs);
        }
        refs.extend(page);
    }
}

impl<'a> Copying<'a> {
    /// Begins with the first part.
    pub(in crate::service) fn begin(index: &'a dyn Index, state: HubState) -> Self {
        let HubState { repo, former_names, refs } = state;
        let pages = [Next::Repo, Next::Commits(None), Next::Trees(None), Next::Blobs(None), Next::Refs(refs)];
        Self { index, repo, former_names, pages: pages.into() }
    }

    /// Whether neither the repository nor one of these commits was deleted before this call.
    async fn is_there(&self, refs: &[HubRef]) -> Result<bool, IndexError> {
        for HubRef { target, .. } in refs {
            if self.index.find_hub_commit(self.repo.id, *target).await?.is_none() {
                return Ok(false);
            }
        }
        let found = self.index.find_stored_hub_repo(self.repo.storage_name.clone()).await?;
        Ok(found.is_some_and(|found| found.id == self.repo.id))
    }

    /// Puts a page before all others.
    fn then(&mut self, page: Option<Next>) {
        if let Some(page) = page {
            self.pages.push_front(page);
        }
    }

    /// The next parts; empty after the last one.
    pub(in crate::service) async fn next(&mut self) -> Result<Vec<HubPart>, IndexError> {
        let (index, repo) = (self.index, self.repo.id);
        while let Some(page) = self.pages.pop_front() {
            // A page that is not empty is followed by the next one of its kind.
            let parts: Vec<HubPart> = match page {
                Next::Repo => vec![HubPart::Repo(self.repo.clone(), std::mem::take(&mut self.former_names))],
                // Rows are deleted after the repository is hidden, and commits before what they
                // name, so all pages were complete.
                Next::Refs(refs) if self.is_there(&refs).await? => vec![HubPart::Refs(refs)],
                Next::Refs(_) => Vec::new(),
                Next::Commits(after) => {
                    let rows = index.list_hub_commits(repo, after, PAGE_COUNT).await?;
                    self.then(rows.last().map(|last| Next::Commits(Some(last.id))));
                    rows.into_iter().map(HubPart::Commit).collect()
                }
                Next::Trees(after) => {
                    let rows = index.list_hub_trees(repo, after, TREE_PAGE_COUNT).await?;
                    self.then(rows.last().map(|last| Next::Trees(Some(last.id))));
                    rows.into_iter().map(HubPart::Tree).collect()
                }
                Next::Blobs(after) => {
                    let rows = index.list_hub_blobs(repo, after, PAGE_COUNT).await?;
                    self.then(rows.last().map(|last| Next::Blobs(Some(last.id))));
                    rows.into_iter().map(HubPart::Blob).collect()
                }
            };
            if !parts.is_empty() {
                return Ok(parts);
            }
        }
        Ok(Vec::new())
    }
}

/// Gives a repository of a copy a name that no repository has, because a later one has its name.
/// Returns the new name.
pub(in crate::service) async fn make_way(index: &dyn Index, repo: HubRepo) -> Result<String, IndexError> {
    const MAX_KEPT_LEN: usize = 70;
    // The new name must be one that clients accept.
    let kept: String = repo.name.chars().take(MAX_KEPT_LEN).collect();
    let kept = kept.trim_end_matches(['-', '.']);
    let mut number = 1_u32;
    loop {
        let name = format!("{kept}-recovered-{number}");
        if index.rename_hub_repo(HubRepo { name: name.clone(), ..repo.clone() }).await? {
            return Ok(name);
        }
        number = number.saturating_add(1);
    }
}

impl<'a> Loading<'a> {
    pub(in crate::service) fn begin(index: &'a dyn Index) -> Self {
        Self { index, repo: None, commits: Vec::new(), trees: Vec::new(), blobs: Vec::new() }
    }

    /// Takes a part. `false` if it is not the part of a repository that was begun, if a commit or
    /// directory does not have its id, or if a branch names no commit.
    pub(in crate::service) async fn push(&mut self, part: HubPart) -> Result<bool, IndexError> {
        if let HubPart::Repo(repo, former_names) = part {
            self.flush().await?;
            // An archive has also repositories that were deleted later, and a later one may have
            // the name or the storage name.
            let (index, stored) = (self.index, self.index.find_stored_hub_repo(repo.storage_name.clone()).await?);
            if let Some(other) = stored.filter(|stored| stored.created != repo.created) {
                index.drop_hub_repo(other.id).await?;
            }
            let at_name = index.find_hub_repo(repo.kind, repo.namespace.clone(), repo.name.clone()).await?;
            if let Some(other) = at_name.filter(|other| other.storage_name != repo.storage_name) {
                make_way(index, other).await?;
            }
            let id = self.index.restore_hub_repo(repo).await?;
            self.index.set_former_names(id, former_names).await?;
            self.repo = Some(id);
            return Ok(true);
        }
        let Some(repo) = self.repo else { return Ok(false) };
        match part {
            part if !part.has_its_id() => {
                self.repo = None;
                return Ok(false);
            }
            HubPart::Commit(commit) => self.commits.push(commit),
            HubPart::Tree(tree) => self.trees.push(tree),
            HubPart::Blob(blob) => self.blobs.push(blob),
            HubPart::Repo(..) => return Ok(false),
            HubPart::Refs(refs) => {
                self.flush().await?;
                for HubRef { target, .. } in &refs {
                    if self.index.find_hub_commit(repo, *target).await?.is_none() {
                        self.repo = None;
                        return Ok(false);
                    }
                }
                self.index.set_hub_refs(repo, refs).await?;
                self.repo = None;
            }
        }
        let tree_len: usize = self.trees.iter().map(|tree| tree.entries.len()).sum();
        let message_len: usize = self.commits.iter().map(|commit| commit.message.len()).sum();
        let count = self.commits.len() + self.trees.len() + self.blobs.len();
        if count >= PAGE_COUNT as usize || tree_len + message_len >= TREE_PAGE_LEN {
            self.flush().await?;
        }
        Ok(true)
    }

    /// Discards what was cut off. To be called after the last part.
    pub(in crate::service) async fn finish(&mut self) -> Result<(), IndexError> {
        self.flush().await?;
        self.index.discard_hub_repos().await
    }

    async fn flush(&mut self) -> Result<(), IndexError> {
        let Some(repo) = self.repo else { return Ok(()) };
        let (commits, trees, blobs) =
            (std::mem::take(&mut self.commits), std::mem::take(&mut self.trees), std::mem::take(&mut self.blobs));
        let since = commits.last().map_or(Timestamp::from_millis(0), |commit| commit.at);
        self.index.add_hub_commits(repo, commits).await?;
        self.index.add_hub_objects(repo, trees, blobs, since).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::Tree;
    use crate::index::HubIndex;
    use crate::index::sqlite::SqliteIndex;
    use crate::service::hub::part::sealed;

    /// Pushes a repository with one commit, whose parts `change` may alter; whether all were taken.
    async fn load(index: &SqliteIndex, change: impl Fn(&mut HubPart)) -> bool {
        let (id, entries) = Tree::default().to_object().unwrap();
        let at = Timestamp::from_millis(7000);
        let unsealed = HubCommit { id, tree: id, parent: None, at, author: "a".to_owned(), message: "m".to_owned() };
        let commit = sealed(unsealed).unwrap();
        let repo = HubRepo {
            id: 0,
            kind: RepoKind::Model,
            namespace: "a".to_owned(),
            name: "b".to_owned(),
            storage_name: "models/a/b".to_owned(),
            is_private: true,
            created: at,
            updated: at,
        };
        let refs = vec![HubRef { name: "refs/heads/main".to_owned(), target: commit.id }];
        let tree = HubPart::Tree(HubTree { id, entries });
        let mut loading = Loading::begin(index);
        let mut was_taken = true;
        for mut part in [HubPart::Repo(repo, Vec::new()), HubPart::Commit(commit), tree, HubPart::Refs(refs)] {
            change(&mut part);
            was_taken &= loading.push(part).await.unwrap();
        }
        loading.finish().await.unwrap();
        was_taken
    }

    #[tokio::test]
    async fn part_without_its_id_or_commit_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let index = SqliteIndex::open(&directory.path().join("index.sqlite")).await.unwrap();
        let other = ObjectId::from_bytes([9; 20]);
        let is_there =
            async || index.find_hub_repo(RepoKind::Model, "a".to_owned(), "b".to_owned()).await.unwrap().is_some();
        let changes: [fn(&mut HubPart, ObjectId); 4] = [
            |part, other| {
                if let HubPart::Commit(commit) = part {
                    commit.id = other
                }
            },
            |part, _| {
                if let HubPart::Commit(commit) = part {
                    commit.message.push('x')
                }
            },
            |part, other| {
                if let HubPart::Tree(tree) = part {
                    tree.id = other
                }
            },
            |part, other| {
                if let HubPart::Refs(refs) = part {
                    refs[0].target = other
                }
            },
        ];
        for change in changes {
            assert!(!load(&index, |part| change(part, other)).await);
            assert!(!is_there().await);
        }
        assert!(load(&index, |_| {}).await && is_there().await);
    }
}
