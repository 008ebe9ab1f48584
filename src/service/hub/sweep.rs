//! Deletes what no branch or tag of a repository needs any more: after a squash, or when a branch
//! was deleted.
//!
//! A sweep lists the commits that no branch or tag needs, and the files that only they have. What
//! it has listed a week ago it deletes: commits, each before its parent, then directories, and with
//! the last file of the same contents the claim of the repository to them. The xorbs are then
//! garbage like all others.
//!
//! So at any moment, also after a crash, a commit that exists has its history and all of its files.
//! If a branch or tag lacks a commit, directory or file, nothing of the repository is deleted.
//!
//! Clients go on meanwhile:
//!
//! * A sweep holds the lock of the repository while it deletes, and looks first for new commits,
//!   branches and tags. A commit checks with this lock that the claims to its files are still
//!   there.
//! * A registration takes its files from the list before its response, with the locks of the files,
//!   and a sweep removes a claim with the same lock. So what a client has just registered has a
//!   week until its commit.
//!
//! What it does not do: claims to files that were never part of a commit stay, and so do those of
//! `*`, of uploads without authentication. A rebuild of the index has deleted commits again until
//! the next sweeps, without the files that they alone had.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::history::{History, Marks, PAGE_COUNT};
use super::{HubError, OpenRepo};
use crate::format::FileHash;
use crate::git::ObjectId;
use crate::index::{HubObject, HubRepo};
use crate::runtime::clock::Timestamp;
use crate::runtime::telemetry::chain;
use crate::service::gc::Pace;
use crate::service::permits::PATIENCE;
use crate::service::{Server, StoreError};

/// Each repository is swept once in this time.
const PERIOD_MILLIS: u64 = 24 * 3600 * 1000;

/// How long something is listed before it is deleted. A user can bring a commit back within this
/// time, and a client can commit what it has registered.
const GRACE_MILLIS: u64 = 7 * 24 * 3600 * 1000;

/// Commits, directories or files that are deleted with one hold of the lock. A claim may take some
/// milliseconds.
const DROP_COUNT: usize = if cfg!(test) { 2 } else { 50 };

/// The repositories with unneeded files: their numbers by their storage names. In memory, so that
/// registrations for others have nothing to look up.
#[derive(Debug, Default)]
pub(in crate::service) struct Unneeded(Mutex<HashMap<String, i64>>);

impl Unneeded {
    /// Forgets a repository that has none any more. Only a sweep adds some.
    pub(super) fn forget(&self, storage_name: &str) {
        self.repos().remove(storage_name);
    }

    fn repos(&self) -> MutexGuard<'_, HashMap<String, i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a sweep of a repository has deleted.
#[derive(Clone, Copy, Debug, Default)]
struct Swept {
    /// Commits, directories and files.
    object_count: u64,
    /// Claims of the repository to contents of files.
    claim_count: u64,
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

impl Server {
    /// Takes files that this repository has just registered or committed from the list of unneeded
    /// files. The caller holds the locks of the files, or that of the repository.
    pub(in crate::service) async fn retain_unneeded(
        &self,
        storage_name: &str,
        files: impl Iterator<Item = FileHash> + Send,
    ) -> Result<(), StoreError> {
        let id = self.unneeded.repos().get(storage_name).copied();
        let Some(id) = id else { return Ok(()) };
        Ok(self.store.index.set_unneeded_files(id, files.collect(), None).await?)
    }

    /// Takes a file that a client need not send again from the list of unneeded files. Afterwards a
    /// claim to it that exists stays for a week.
    pub(super) async fn retain_file(&self, open: &OpenRepo, file: FileHash) -> Result<(), StoreError> {
        let name = &open.repo.storage_name;
        if self.unneeded.repos().contains_key(name) {
            let _lock = self.store.file_locks.lock_within(PATIENCE, [file]).await?;
            self.retain_unneeded(name, std::iter::once(file)).await?;
        }
        Ok(())
    }

    /// Loads which repositories have unneeded files. To be called before a server takes requests.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn load_unneeded_files(&self) -> Result<(), StoreError> {
        let repos = self.store.index.hub_repos_with_unneeded_files().await?;
        self.unneeded.repos().extend(repos.into_iter().map(|repo| (repo.storage_name, repo.id)));
        Ok(())
    }

    /// Sweeps the repositories that were not swept for a day. A failure is logged, and the
    /// repository is swept again by the next call.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn sweep_hub_repos(&self, pace: &Pace) -> Result<(), HubError> {
        let now = self.store.clock.now();
        let before = Timestamp::from_millis(now.as_millis().saturating_sub(PERIOD_MILLIS));
        let mut after = 0;
        while let Some(repo) = self.store.index.next_unswept_hub_repo(after, before, now).await? {
            after = repo.id;
            let name = &repo.storage_name;
            match self.sweep_hub_repo(&repo, pace).await {
                Ok(Swept { object_count: 0, claim_count: 0 }) => {}
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
        let (index, now) = (&self.store.index, self.store.clock.now());
        let lock = self.lock_hub_repo(&repo.storage_name).await;
        let Some(generations) = index.hub_generations(repo.id).await? else { return Ok(Swept::default()) };
        let has_unneeded = !index.list_unneeded_commits(repo.id, None, 1).await?.is_empty()
            || !index.list_unneeded_files(repo.id, None, 1).await?.is_empty();
        if generations.current == generations.swept && !has_unneeded {
            index.set_hub_repo_swept(repo.id, now, generations.current).await?;
            return Ok(Swept::default());
        }
        let Some(history) = History::read(&self.store, repo).await? else { return Ok(Swept::default()) };
        drop(lock);
        let generation = history.generation;
        let mut sweep = Sweep { server: self, repo, now, history, marks: Marks::default(), swept: Swept::default() };
        if sweep.run(pace).await? {
            if index.list_unneeded_files(repo.id, None, 1).await?.is_empty() {
                self.unneeded.forget(&repo.storage_name);
            }
            index.set_hub_repo_swept(repo.id, now, generation).await?;
        }
        Ok(sweep.swept)
    }
}

impl Sweep<'_> {
    /// `false` if it was stopped, or the repository was deleted.
    async fn run(&mut self, pace: &Pace) -> Result<bool, HubError> {
        let old_commits = self.list_commits().await?;
        self.marks.add(&self.server.store, self.repo, &self.history).await?;
        let old_files = self.list_files().await?;
        if !old_commits.is_empty() {
            if !self.drop_commits(old_commits, pace).await? {
                return Ok(false);
            }
            self.marks = Marks::default();
        }
        Ok(self.drop_objects(pace).await? && self.drop_claims(old_files, pace).await?)
    }

    /// Lists the commits that are unneeded, and takes those from the list that are needed again.
    /// Returns those that were unneeded for long enough.
    async fn list_commits(&self) -> Result<HashSet<ObjectId>, HubError> {
        let (index, repo) = (&self.server.store.index, self.repo.id);
        let (mut listed, mut after) = (HashMap::new(), None);
        loop {
            let page = index.list_unneeded_commits(repo, after, PAGE_COUNT).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            listed.extend(page.into_iter().map(|unneeded| (unneeded.id, unneeded.since)));
        }
        let needed = self.history.needed();
        let new = self.history.ids().copied().filter(|id| !needed.contains(id) && !self.is_listed(listed.get(id)));
        index.set_unneeded_commits(repo, new.collect(), Some(self.now)).await?;
        let again = listed.keys().copied().filter(|id| needed.contains(id));
        index.set_unneeded_commits(repo, again.collect(), None).await?;
        let old = listed.into_iter().filter(|(_, since)| self.is_old(*since)).map(|(id, _)| id);
        Ok(old.filter(|id| !needed.contains(id) && self.history.has(id)).collect())
    }

    /// The same for files.
    async fn list_files(&self) -> Result<Vec<FileHash>, HubError> {
        let (index, repo) = (&self.server.store.index, self.repo.id);
        let (mut listed, mut after) = (HashMap::new(), None);
        loop {
            let page = index.list_unneeded_files(repo, after, PAGE_COUNT).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.file);
            listed.extend(page.into_iter().map(|unneeded| (unneeded.file, unneeded.since)));
        }
        let new: Vec<FileHash> = self.marks.unneeded_files().filter(|file| !self.is_listed(listed.get(file))).collect();
        self.add_files(new).await?;
        let again = listed.keys().copied().filter(|file| self.marks.is_needed(file));
        index.set_unneeded_files(repo, again.collect(), None).await?;
        let old = listed.into_iter().filter(|(_, since)| self.is_old(*since)).map(|(file, _)| file);
        Ok(old.filter(|file| !self.marks.is_needed(file)).collect())
    }

    /// Lists these files as unneeded.
    async fn add_files(&self, files: Vec<FileHash>) -> Result<(), HubError> {
        if !files.is_empty() {
            // Before the first row, so that each registration after it looks at the list.
            self.server.unneeded.repos().insert(self.repo.storage_name.clone(), self.repo.id);
            self.server.store.index.set_unneeded_files(self.repo.id, files, Some(self.now)).await?;
        }
        Ok(())
    }

    /// Whether something is in a list since this time. The clock may have been ahead then.
    fn is_listed(&self, since: Option<&Timestamp>) -> bool {
        since.is_some_and(|since| *since <= self.now)
    }

    fn is_old(&self, since: Timestamp) -> bool {
        self.now.as_millis().saturating_sub(since.as_millis()) >= GRACE_MILLIS
    }

    /// Reads the commits again if the repository has changed. The caller holds the lock of the
    /// repository. `false` if it was deleted.
    async fn refresh(&mut self) -> Result<bool, HubError> {
        let (store, repo) = (&self.server.store, self.repo);
        let Some(generations) = store.index.hub_generations(repo.id).await? else { return Ok(false) };
        if generations.current != self.history.generation {
            let Some(history) = History::read(store, repo).await? else { return Ok(false) };
            self.history = history;
        }
        Ok(true)
    }

    /// Deletes those of these commits that are still unneeded. `false` as in [`run`](Self::run).
    async fn drop_commits(&mut self, old: HashSet<ObjectId>, pace: &Pace) -> Result<bool, HubError> {
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
            dropped.iter().for_each(|id| self.history.forget(id));
            if !pace.next().await {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Deletes the directories and files that no commit has. `false` as in [`run`](Self::run).
    async fn drop_objects(&mut self, pace: &Pace) -> Result<bool, HubError> {
        let (index, repo) = (&self.server.store.index, self.repo);
        self.marks.add(&self.server.store, repo, &self.history).await?;
        for object in [HubObject::Tree, HubObject::Blob] {
            let mut after = None;
            loop {
                let page = index.list_hub_ids(repo.id, object, after, PAGE_COUNT).await?;
                let Some(last) = page.last() else { break };
                after = Some(*last);
                let unmarked: Vec<ObjectId> = page.into_iter().filter(|id| !self.marks.has(object, id)).collect();
                for some in unmarked.chunks(DROP_COUNT) {
                    let lock = self.server.lock_hub_repo(&repo.storage_name).await;
                    if !self.refresh().await? {
                        return Ok(false);
                    }
                    self.marks.add(&self.server.store, repo, &self.history).await?;
                    let dropped: Vec<ObjectId> =
                        some.iter().copied().filter(|id| !self.marks.has(object, id)).collect();
                    if object == HubObject::Blob {
                        self.add_files_of(&dropped).await?;
                    }
                    self.swept.object_count += dropped.len() as u64;
                    index.drop_hub_objects(repo.id, object, dropped).await?;
                    drop(lock);
                    if !pace.next().await {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Lists the contents of these files, which no commit has, unless they are listed already. A
    /// commit may have put a file that a later change of the same commit has replaced.
    async fn add_files_of(&self, blobs: &[ObjectId]) -> Result<(), HubError> {
        let (index, repo) = (&self.server.store.index, self.repo.id);
        let mut new = Vec::new();
        for blob in index.find_hub_blobs(repo, blobs.to_vec()).await? {
            if !self.marks.has_file(&blob.file) && !index.is_file_unneeded(repo, blob.file).await? {
                new.push(blob.file);
            }
        }
        self.add_files(new).await
    }

    /// Removes the claims to those of these files that no commit has. `false` as in
    /// [`run`](Self::run).
    async fn drop_claims(&mut self, old: Vec<FileHash>, pace: &Pace) -> Result<bool, HubError> {
        let (store, repo) = (&self.server.store, self.repo);
        for some in old.chunks(DROP_COUNT) {
            let lock = self.server.lock_hub_repo(&repo.storage_name).await;
            if !self.refresh().await? {
                return Ok(false);
            }
            self.marks.add(store, repo, &self.history).await?;
            for file in some.iter().copied().filter(|file| !self.marks.has_file(file)) {
                let is_unneeded = async { Ok(store.index.is_file_unneeded(repo.id, file).await?) };
                if store.drop_claim_if(file, &repo.storage_name, is_unneeded).await? {
                    self.swept.claim_count += 1;
                    store.metrics.hub.swept_files.inc();
                }
                store.index.set_unneeded_files(repo.id, vec![file], None).await?;
            }
            drop(lock);
            if !pace.next().await {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
