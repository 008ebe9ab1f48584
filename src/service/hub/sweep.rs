//! Deletes what no branch or tag of a repository needs any more: after a squash, or when a branch
//! was deleted.
//!
//! A sweep lists the commits that no branch or tag needs, and deletes those that it has listed a
//! week ago, each before its parent. Then it deletes the directories and files that no commit has.
//! With a file it removes the claim of the repository to the contents, unless another file has the
//! same contents. The xorbs are then garbage like all others.
//!
//! So at any moment, also after a crash, a commit that exists has its history and all of its files.
//! Commits go on meanwhile: the sweep holds the lock of the repository while it deletes, and looks
//! first for new commits, branches and tags. A commit checks with this lock that the claims to its
//! files are still there. If a commit or directory is missing or damaged, nothing is deleted.
//!
//! What it does not do: claims to files that were never part of a commit stay.

use std::collections::{HashMap, HashSet};

use super::copy::refs_of;
use super::{HubError, missing};
use crate::format::FileHash;
use crate::git::{EntryKind, ObjectId, Tree};
use crate::index::{HubObject, HubRef, HubRepo};
use crate::runtime::clock::Timestamp;
use crate::runtime::telemetry::chain;
use crate::service::gc::Pace;
use crate::service::{Server, Store};

/// Each repository is swept once in this time.
const PERIOD_MILLIS: u64 = 24 * 3600 * 1000;

/// How long a commit is unneeded before it is deleted. A user can bring it back within this time,
/// and a backup that has begun before may still copy it.
const GRACE_MILLIS: u64 = 7 * 24 * 3600 * 1000;

/// Rows that are read at once.
const PAGE_COUNT: u32 = if cfg!(test) { 3 } else { 1000 };

/// Commits, directories or files that are deleted with one hold of the lock. A file may take some
/// milliseconds.
const DROP_COUNT: usize = if cfg!(test) { 2 } else { 50 };

/// Maximum number of directories and files: their marks have some 200 MiB. A repository with more
/// is not swept.
const MAX_MARK_COUNT: usize = 4_000_000;

/// What a sweep of a repository has deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Swept {
    /// Commits, directories and files.
    object_count: u64,
    /// Claims of the repository to files.
    claim_count: u64,
}

/// The commits of a repository.
#[derive(Debug)]
struct History {
    /// The number of commits that had been added before these were read.
    generation: i64,
    refs: Vec<HubRef>,
    /// The parent and the root directory of each commit.
    commits: HashMap<ObjectId, (Option<ObjectId>, ObjectId)>,
}

/// The directories and files that commits have.
#[derive(Debug, Default)]
struct Marks {
    /// The commits that were marked.
    commits: HashSet<ObjectId>,
    trees: HashSet<ObjectId>,
    blobs: HashSet<ObjectId>,
    /// The contents of the files, as far as they were looked up.
    files: HashSet<FileHash>,
    /// Files whose contents are not in `files` yet.
    unloaded: Vec<ObjectId>,
}

/// A sweep of one repository.
struct Sweep<'a> {
    server: &'a Server,
    repo: &'a HubRepo,
    now: Timestamp,
    history: History,
    marks: Marks,
    swept: Swept,
}

impl History {
    /// Reads the commits. `None` if the repository does not exist.
    async fn read(store: &Store, repo: &HubRepo) -> Result<Option<Self>, HubError> {
        let Some(generation) = store.index.hub_generation(repo.id).await? else { return Ok(None) };
        let refs = refs_of(store.index.as_ref(), repo.id).await?;
        let (mut commits, mut after) = (HashMap::new(), None);
        loop {
            let page = store.index.list_hub_commits(repo.id, after, PAGE_COUNT).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            commits.extend(page.into_iter().map(|commit| (commit.id, (commit.parent, commit.tree))));
        }
        let lost = |id: &ObjectId| !commits.contains_key(id);
        let named = refs.iter().map(|named| named.target);
        let needed = named.chain(commits.values().filter_map(|(parent, _)| *parent));
        match needed.into_iter().find(|id| lost(id)) {
            Some(id) => Err(missing(repo, format!("commit {id}"))),
            None => Ok(Some(Self { generation, refs, commits })),
        }
    }

    /// The commits that branches and tags need.
    fn needed(&self) -> HashSet<ObjectId> {
        let mut needed = HashSet::new();
        for named in &self.refs {
            self.add_line(named.target, |id| needed.insert(id));
        }
        needed
    }

    /// Calls `add` with a commit and its ancestors, until it returns false.
    fn add_line(&self, from: ObjectId, mut add: impl FnMut(ObjectId) -> bool) {
        let mut next = Some(from);
        while let Some(id) = next.filter(|id| add(*id)) {
            next = self.commits.get(&id).and_then(|(parent, _)| *parent);
        }
    }

    /// Those of these commits that no other commit needs, in an order in which each comes before
    /// its parent.
    fn in_order(&self, mut old: HashSet<ObjectId>) -> Vec<ObjectId> {
        for id in self.commits.keys() {
            if !old.contains(id) {
                let (parent, _) = self.commits[id];
                if let Some(parent) = parent {
                    self.add_line(parent, |ancestor| old.remove(&ancestor));
                }
            }
        }
        let mut children: HashMap<ObjectId, usize> = HashMap::new();
        for parent in old.iter().filter_map(|id| self.commits[id].0) {
            *children.entry(parent).or_default() += 1;
        }
        let mut ready: Vec<ObjectId> = old.iter().copied().filter(|id| !children.contains_key(id)).collect();
        let mut ordered = Vec::with_capacity(old.len());
        while let Some(id) = ready.pop() {
            ordered.push(id);
            if let Some(parent) = self.commits[&id].0
                && let Some(count) = children.get_mut(&parent)
            {
                *count -= 1;
                if *count == 0 && old.contains(&parent) {
                    ready.push(parent);
                }
            }
        }
        ordered
    }
}

impl Marks {
    fn has(&self, object: HubObject, id: &ObjectId) -> bool {
        match object {
            HubObject::Tree => self.trees.contains(id),
            HubObject::Blob => self.blobs.contains(id),
        }
    }

    /// Marks what the commits have that are not marked yet, and looks up the contents.
    async fn add(&mut self, store: &Store, repo: &HubRepo, history: &History) -> Result<(), HubError> {
        for (id, (_, tree)) in &history.commits {
            if self.commits.insert(*id) {
                self.add_tree(store, repo, *tree).await?;
            }
        }
        while !self.unloaded.is_empty() {
            let some = self.unloaded.split_off(self.unloaded.len().saturating_sub(PAGE_COUNT as usize));
            let found = store.index.find_hub_blobs(repo.id, some.clone()).await?;
            if found.len() != some.len() {
                return Err(missing(repo, "a file".to_owned()));
            }
            self.files.extend(found.into_iter().map(|blob| blob.file));
        }
        Ok(())
    }

    async fn add_tree(&mut self, store: &Store, repo: &HubRepo, root: ObjectId) -> Result<(), HubError> {
        let mut next = vec![root];
        while let Some(id) = next.pop() {
            if !self.trees.insert(id) {
                continue;
            }
            let lost = || missing(repo, format!("directory {id}"));
            let bytes = store.index.find_hub_tree(repo.id, id).await?.ok_or_else(lost)?;
            let tree = store.pool.run(move || Tree::parse(&bytes)).await.map_err(|_| lost())?;
            for (_, entry) in tree.entries() {
                match entry.kind {
                    EntryKind::Directory => next.push(entry.id),
                    EntryKind::File | EntryKind::Executable | EntryKind::Link => {
                        if self.blobs.insert(entry.id) {
                            self.unloaded.push(entry.id);
                        }
                    }
                }
            }
            if self.trees.len() + self.blobs.len() > MAX_MARK_COUNT {
                return Err(HubError::Invalid(format!(
                    "The repository has more than {MAX_MARK_COUNT} directories and files, so it is not swept."
                )));
            }
        }
        Ok(())
    }
}

impl Server {
    /// Sweeps the repositories that were not swept for a day. A failure is logged, and the
    /// repository is swept again by the next call.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn sweep_hub_repos(&self, pace: &Pace) -> Result<(), HubError> {
        let before = self.store.clock.now().as_millis().saturating_sub(PERIOD_MILLIS);
        let before = Timestamp::from_millis(before);
        let mut after = 0;
        while let Some(repo) = self.store.index.next_unswept_hub_repo(after, before).await? {
            after = repo.id;
            let name = &repo.storage_name;
            match self.sweep_hub_repo(&repo, pace).await {
                Ok(Swept { object_count: 0, .. }) => {}
                Ok(Swept { object_count: objects, claim_count: files }) => {
                    tracing::info!(repo = name, objects, files, "deleted what no branch or tag needs");
                }
                Err(error) => {
                    self.store.metrics.hub.sweep_failures.inc();
                    tracing::error!(repo = name, error = %chain(&error), "cannot sweep a repository; nothing more of it \
                        is deleted");
                }
            }
            if !pace.next().await {
                break;
            }
        }
        Ok(())
    }

    /// Sweeps a repository, unless it is deleted meanwhile or `pace` stops it.
    async fn sweep_hub_repo(&self, repo: &HubRepo, pace: &Pace) -> Result<Swept, HubError> {
        let now = self.store.clock.now();
        let Some(history) = History::read(&self.store, repo).await? else { return Ok(Swept::default()) };
        let mut sweep = Sweep { server: self, repo, now, history, marks: Marks::default(), swept: Swept::default() };
        if sweep.drop_commits(pace).await? && sweep.drop_objects(pace).await? {
            self.store.index.set_hub_repo_swept(repo.id, now).await?;
        }
        Ok(sweep.swept)
    }
}

impl Sweep<'_> {
    /// Reads the commits again if there are new ones, or other branches and tags. The caller holds
    /// the lock of the repository. `false` if it was deleted.
    async fn refresh(&mut self) -> Result<bool, HubError> {
        let (store, repo) = (&self.server.store, self.repo);
        let is_same = store.index.hub_generation(repo.id).await? == Some(self.history.generation)
            && refs_of(store.index.as_ref(), repo.id).await? == self.history.refs;
        if !is_same {
            let Some(history) = History::read(store, repo).await? else { return Ok(false) };
            self.history = history;
        }
        Ok(true)
    }

    /// Lists the commits that are unneeded, and deletes those that were for long enough. `false` if
    /// it was stopped, or the repository was deleted.
    async fn drop_commits(&mut self, pace: &Pace) -> Result<bool, HubError> {
        let old = self.list_unneeded().await?;
        let mut left = self.history.in_order(old);
        while !left.is_empty() {
            let lock = self.server.lock_hub_repo(&self.repo.storage_name).await;
            if !self.refresh().await? {
                return Ok(false);
            }
            let needed = self.history.needed();
            left = self.history.in_order(left.into_iter().filter(|id| !needed.contains(id)).collect());
            let rest = left.split_off(left.len().min(DROP_COUNT));
            let dropped = std::mem::replace(&mut left, rest);
            self.server.store.index.drop_hub_commits(self.repo.id, dropped.clone()).await?;
            drop(lock);
            self.swept.object_count += dropped.len() as u64;
            for id in &dropped {
                self.history.commits.remove(id);
            }
            if !pace.next().await {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Lists the commits that are unneeded, and takes those from the list that are needed again.
    /// Returns those that were unneeded for long enough.
    async fn list_unneeded(&self) -> Result<HashSet<ObjectId>, HubError> {
        let (index, repo) = (&self.server.store.index, self.repo.id);
        let (mut listed, mut after) = (HashMap::new(), None);
        loop {
            let page = index.list_hub_garbage(repo, after, PAGE_COUNT).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            listed.extend(page.into_iter().map(|garbage| (garbage.id, garbage.since)));
        }
        let needed = self.history.needed();
        // The clock may have been ahead when a commit was listed.
        let is_listed = |id: &ObjectId| listed.get(id).is_some_and(|since| *since <= self.now);
        let new: Vec<ObjectId> =
            self.history.commits.keys().filter(|id| !needed.contains(id) && !is_listed(id)).copied().collect();
        let again: Vec<ObjectId> = listed.keys().filter(|id| needed.contains(id)).copied().collect();
        for some in new.chunks(PAGE_COUNT as usize) {
            index.set_hub_unneeded(repo, some.to_vec(), Some(self.now)).await?;
        }
        for some in again.chunks(PAGE_COUNT as usize) {
            index.set_hub_unneeded(repo, some.to_vec(), None).await?;
        }
        let is_old = |since: Timestamp| self.now.as_millis().saturating_sub(since.as_millis()) >= GRACE_MILLIS;
        let old = listed.into_iter().filter(|(_, since)| is_old(*since)).map(|(id, _)| id);
        Ok(old.filter(|id| !needed.contains(id) && self.history.commits.contains_key(id)).collect())
    }

    /// Deletes the directories and files that no commit has. `false` as in `drop_commits`.
    async fn drop_objects(&mut self, pace: &Pace) -> Result<bool, HubError> {
        let store = &self.server.store;
        self.marks.add(store, self.repo, &self.history).await?;
        for object in [HubObject::Tree, HubObject::Blob] {
            let mut after = None;
            loop {
                let page = store.index.list_hub_ids(self.repo.id, object, after, PAGE_COUNT).await?;
                let Some(last) = page.last() else { break };
                after = Some(*last);
                let unmarked: Vec<ObjectId> = page.into_iter().filter(|id| !self.marks.has(object, id)).collect();
                for some in unmarked.chunks(DROP_COUNT) {
                    let lock = self.server.lock_hub_repo(&self.repo.storage_name).await;
                    let is_there = self.refresh().await?;
                    if is_there {
                        self.marks.add(store, self.repo, &self.history).await?;
                        self.drop_unmarked(object, some).await?;
                    }
                    drop(lock);
                    if !is_there || !pace.next().await {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Deletes those of these objects that no commit has. The caller holds the lock of the
    /// repository, and has marked all commits.
    async fn drop_unmarked(&mut self, object: HubObject, ids: &[ObjectId]) -> Result<(), HubError> {
        let (store, repo) = (&self.server.store, self.repo);
        let ids: Vec<ObjectId> = ids.iter().copied().filter(|id| !self.marks.has(object, id)).collect();
        if object == HubObject::Blob {
            let blobs = store.index.find_hub_blobs(repo.id, ids.clone()).await?;
            let files: HashSet<FileHash> = blobs.iter().map(|blob| blob.file).collect();
            for file in files.difference(&self.marks.files) {
                // None if the file was uploaded without authentication, or a user has removed it.
                let removed = store.remove_claims(*file, Some(repo.storage_name.clone())).await?;
                self.swept.claim_count += removed.repos.len() as u64;
                store.metrics.hub.swept_files.inc_by(removed.repos.len() as u64);
            }
        }
        self.swept.object_count += ids.len() as u64;
        Ok(store.index.drop_hub_objects(repo.id, object, ids).await?)
    }
}
