//! Deletes what no branch or tag of a repository needs: after a squash, when a branch was deleted,
//! or when a client has registered files and never committed them.
//!
//! A sweep lists the commits that no branch or tag needs, and the files that only they or no commit
//! has. What was listed a week ago it deletes: commits, each before its parent, then directories
//! and files, and with the last file of the same contents the claim of the repository to them. The
//! xorbs are then garbage like all others.
//!
//! So at any moment, also after a crash, a commit that exists has its history and all of its files.
//! If something is missing that a branch or tag needs, nothing of the repository is deleted.
//!
//! Clients go on meanwhile:
//!
//! * A sweep holds the lock of the repository while it deletes, and looks first for changes. A
//!   commit checks with this lock that the claims to its files are still there.
//! * A registration takes its files from the list before its response, with the locks of the files,
//!   and a sweep removes a claim with the same lock. So what a client has just registered has a
//!   week until its commit.
//!
//! What it does not do:
//!
//! * Claims to files stay that were registered for its name before the repository was created: they
//!   may belong to users of the name without the Hub.
//! * Claims of `*` stay, which uploads without authentication have.
//! * A rebuild of the index brings deleted commits back, without the files that only they had. So
//!   does a restore of a backup that was made during a sweep. Later sweeps delete them again.

mod claims;

use std::collections::{HashMap, HashSet};

use super::HubError;
use super::history::{History, Marks, PAGE_COUNT};
use crate::format::FileHash;
use crate::git::ObjectId;
use crate::index::{FileEntry, HubObject, HubRepo, Reader};
use crate::runtime::clock::Timestamp;
use crate::runtime::telemetry::chain;
use crate::service::Server;
use crate::service::gc::Pace;

/// Each repository is swept once in this time.
const PERIOD_MILLIS: u64 = 24 * 3600 * 1000;

/// How long something is listed before it is deleted. A user can bring a commit back within this
/// time, and a client can commit what it has registered.
const GRACE_MILLIS: u64 = 7 * 24 * 3600 * 1000;

/// Commits, directories or files that are deleted with one hold of the lock. A claim may take some
/// milliseconds.
const DROP_COUNT: usize = if cfg!(test) { 2 } else { 50 };

/// Files without a commit that one sweep lists: the list is in memory during a sweep, and each of
/// them costs some milliseconds when it is deleted. The next sweep lists more.
const MAX_NEW_COUNT: usize = 100_000;

/// The generation of a sweep that does not count.
const UNSWEPT: i64 = -1;

/// What a sweep of a repository has deleted.
#[derive(Clone, Copy, Debug, Default)]
struct Swept {
    /// Commits, directories and files.
    object_count: u64,
    /// Claims of the repository to contents of files.
    claim_count: u64,
}

/// A sweep of one repository. Its steps return `false` if it ends, because the server stops or the
/// repository was deleted.
struct Sweep<'a> {
    server: &'a Server,
    repo: &'a HubRepo,
    pace: &'a Pace,
    history: History,
    marks: Marks,
    /// Claims of the repository that this sweep has seen.
    claim_count: u64,
    swept: Swept,
}

impl Server {
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
                // It was deleted meanwhile.
                Err(_) if self.store.index.hub_generations(repo.id).await?.is_none() => {}
                Err(HubError::Invalid(why)) => {
                    tracing::warn!(repo = name, why, "cannot sweep a repository; retrying in a day");
                    self.store.index.set_hub_repo_swept(repo.id, now, UNSWEPT).await?;
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
        let (index, began) = (&self.store.index, self.store.clock.now());
        let lock = self.lock_hub_repo(&repo.storage_name).await?;
        let Some(generations) = index.hub_generations(repo.id).await? else { return Ok(Swept::default()) };
        let usage = index.repo_usage(repo.storage_name.clone()).await?;
        let has_listed = async || {
            Ok::<_, HubError>(
                !index.list_unneeded_commits(repo.id, None, 1).await?.is_empty()
                    || !index.list_unneeded_files(repo.id, None, 1).await?.is_empty(),
            )
        };
        let is_unchanged = generations.current == generations.swept && self.unneeded.was_swept_with(repo, usage);
        if is_unchanged && !has_listed().await? {
            index.set_hub_repo_swept(repo.id, began, generations.current).await?;
            self.unneeded.forget(&repo.storage_name);
            return Ok(Swept::default());
        }
        let Some(history) = History::read(&self.store, repo).await? else { return Ok(Swept::default()) };
        drop(lock);
        let generation = history.generation;
        let (marks, swept) = (Marks::default(), Swept::default());
        let mut sweep = Sweep { server: self, repo, pace, history, marks, claim_count: 0, swept };
        if sweep.run().await? {
            index.set_hub_repo_swept(repo.id, began, generation).await?;
            // If files are listed, a client may take them from the list. If a claim was not seen,
            // it belongs to a registration that is not complete.
            let has_all = sweep.claim_count == usage.file_count && !has_listed().await?;
            self.unneeded.set_swept(repo, has_all.then_some(usage));
        }
        Ok(sweep.swept)
    }
}

impl Sweep<'_> {
    async fn run(&mut self) -> Result<bool, HubError> {
        let old_commits = self.list_commits().await?;
        if !self.mark().await? {
            return Ok(false);
        }
        let Some(old_files) = self.list_files().await? else { return Ok(false) };
        if !old_commits.is_empty() {
            if !self.drop_commits(old_commits).await? {
                return Ok(false);
            }
            self.marks = Marks::default();
        }
        Ok(self.drop_objects().await? && self.drop_claims(old_files).await?)
    }

    fn now(&self) -> Timestamp {
        self.server.store.clock.now()
    }

    /// Marks what all commits have.
    async fn mark(&mut self) -> Result<bool, HubError> {
        self.marks.add(&self.server.store, self.repo, &self.history, self.pace).await
    }

    /// Lists the commits that are unneeded, and takes those from the list that are needed again.
    /// Returns those that were unneeded for long enough.
    async fn list_commits(&self) -> Result<HashSet<ObjectId>, HubError> {
        let (index, repo, now) = (&self.server.store.index, self.repo.id, self.now());
        let (mut listed, mut after) = (HashMap::new(), None);
        loop {
            let page = index.list_unneeded_commits(repo, after, PAGE_COUNT).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            listed.extend(page.into_iter().map(|unneeded| (unneeded.id, unneeded.since)));
        }
        // The clock may have been ahead when something was listed.
        let is_listed = |id: &ObjectId| listed.get(id).is_some_and(|since| *since <= now);
        let new = self.history.ids().copied().filter(|id| !self.history.needs(id) && !is_listed(id));
        index.set_unneeded_commits(repo, new.collect(), Some(now)).await?;
        let again = listed.keys().copied().filter(|id| self.history.needs(id));
        index.set_unneeded_commits(repo, again.collect(), None).await?;
        let old = listed.into_iter().filter(|(_, since)| is_old(*since, now)).map(|(id, _)| id);
        Ok(old.filter(|id| !self.history.needs(id) && self.history.has(id)).collect())
    }

    /// The same for files. `None` if it was stopped.
    async fn list_files(&mut self) -> Result<Option<Vec<FileHash>>, HubError> {
        let (index, repo, now) = (&self.server.store.index, self.repo.id, self.now());
        let (mut listed, mut after) = (HashMap::new(), None);
        loop {
            let page = index.list_unneeded_files(repo, after, PAGE_COUNT).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.file);
            listed.extend(page.into_iter().map(|unneeded| (unneeded.file, unneeded.since)));
        }
        let again: Vec<FileHash> = listed.keys().copied().filter(|file| self.marks.is_needed(file)).collect();
        again.iter().for_each(|file| _ = listed.remove(file));
        index.set_unneeded_files(repo, again, None).await?;
        let unlisted = self.marks.unneeded_files().filter(|file| !listed.contains_key(file));
        let ahead = listed.iter().filter(|(_, since)| **since > now).map(|(file, _)| *file);
        self.add_files(unlisted.chain(ahead).collect()).await?;
        if !self.list_uncommitted(&listed).await? {
            return Ok(None);
        }
        let old = listed.into_iter().filter(|(_, since)| is_old(*since, now)).map(|(file, _)| file);
        Ok(Some(old.collect()))
    }

    /// Lists the claims to files that no commit has, as far as they are not listed. If one of them
    /// was registered a moment ago, its week begins now all the same. `false` if it was stopped.
    async fn list_uncommitted(&mut self, listed: &HashMap<FileHash, Timestamp>) -> Result<bool, HubError> {
        let (index, mut after, mut new_count) = (&self.server.store.index, None, 0);
        while new_count < MAX_NEW_COUNT {
            let reader = Reader::Repo(self.repo.storage_name.clone());
            let page = index.files_after(reader, after, PAGE_COUNT).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.hash);
            self.claim_count += page.len() as u64;
            let is_new = |file: &FileEntry| {
                file.registered >= self.repo.created
                    && !self.marks.has_file(&file.hash)
                    && !listed.contains_key(&file.hash)
                    // A commit that names another file with this sha256 may be read from this one.
                    && !file.sha256.is_some_and(|sha256| self.marks.may_have_sha256(&sha256))
            };
            let new: Vec<FileHash> = page.into_iter().filter(is_new).map(|file| file.hash).collect();
            new_count += new.len();
            self.add_files(new).await?;
            if !self.pace.next().await {
                return Ok(false);
            }
        }
        if new_count > 0 {
            let (repo, files) = (&self.repo.storage_name, new_count);
            tracing::info!(repo, files, "no commit has these files; they are deleted after a week");
        }
        Ok(true)
    }

    /// Lists these files as unneeded, each once.
    async fn add_files(&self, files: Vec<FileHash>) -> Result<(), HubError> {
        if !files.is_empty() {
            // Before the first row, so that each registration after it looks at the list.
            self.server.unneeded.insert(self.repo);
            self.server.store.index.set_unneeded_files(self.repo.id, files, Some(self.now())).await?;
        }
        Ok(())
    }

    /// Reads the commits again if the repository has changed, and returns whether it has. `None` if
    /// it was deleted. The caller holds the lock of the repository.
    async fn refresh(&mut self) -> Result<Option<bool>, HubError> {
        let (store, repo) = (&self.server.store, self.repo);
        let Some(generations) = store.index.hub_generations(repo.id).await? else { return Ok(None) };
        if generations.current == self.history.generation {
            return Ok(Some(false));
        }
        let Some(history) = History::read(store, repo).await? else { return Ok(None) };
        self.history = history;
        Ok(Some(true))
    }

    /// [`refresh`](Self::refresh), and marks what is new.
    async fn refresh_marks(&mut self) -> Result<bool, HubError> {
        Ok(self.refresh().await?.is_some() && self.mark().await?)
    }

    /// Deletes these commits, or what [`list_commits`](Self::list_commits) returns after a change.
    async fn drop_commits(&mut self, old: HashSet<ObjectId>) -> Result<bool, HubError> {
        let mut left = self.history.in_order(old);
        while !left.is_empty() {
            let lock = self.server.lock_hub_repo(&self.repo.storage_name).await?;
            match self.refresh().await? {
                None => return Ok(false),
                // Listed anew: a branch may have been created at one of them, and deleted.
                Some(true) => left = self.history.in_order(self.list_commits().await?),
                Some(false) => {}
            }
            let rest = left.split_off(left.len().min(DROP_COUNT));
            let dropped = std::mem::replace(&mut left, rest);
            self.server.store.index.drop_hub_commits(self.repo.id, dropped.clone()).await?;
            drop(lock);
            self.swept.object_count += dropped.len() as u64;
            dropped.iter().for_each(|id| self.history.forget(id));
            if !self.pace.next().await {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Deletes the directories and files that no commit has.
    async fn drop_objects(&mut self) -> Result<bool, HubError> {
        let (index, repo) = (&self.server.store.index, self.repo);
        if !self.mark().await? {
            return Ok(false);
        }
        for object in [HubObject::Tree, HubObject::Blob] {
            let mut after = None;
            loop {
                let page = index.list_hub_ids(repo.id, object, after, PAGE_COUNT).await?;
                let Some(last) = page.last() else { break };
                after = Some(*last);
                let unmarked: Vec<ObjectId> = page.into_iter().filter(|id| !self.marks.has(object, id)).collect();
                for some in unmarked.chunks(DROP_COUNT) {
                    let lock = self.server.lock_hub_repo(&repo.storage_name).await?;
                    if !self.refresh_marks().await? {
                        return Ok(false);
                    }
                    let dropped: Vec<ObjectId> =
                        some.iter().copied().filter(|id| !self.marks.has(object, id)).collect();
                    if object == HubObject::Blob {
                        self.add_files_of(&dropped).await?;
                    }
                    self.swept.object_count += dropped.len() as u64;
                    index.drop_hub_objects(repo.id, object, dropped).await?;
                    drop(lock);
                    if !self.pace.next().await {
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
        let mut new = HashSet::new();
        for blob in index.find_hub_blobs(repo, blobs.to_vec()).await? {
            if !self.marks.has_file(&blob.file) && index.file_unneeded_since(repo, blob.file).await?.is_none() {
                new.insert(blob.file);
            }
        }
        self.add_files(new.into_iter().collect()).await
    }
}

/// Whether something that was listed at `since` has been listed for long enough.
const fn is_old(since: Timestamp, now: Timestamp) -> bool {
    now.as_millis().saturating_sub(since.as_millis()) >= GRACE_MILLIS
}
