//! Sweeps of Hub repositories: what is deleted and when, what stays, and random histories.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use sha2::Digest;

use super::hub::{claims, commit, create, name, open, put, seen};
use super::records::rebuild;
use super::{BodyError, Moment, Setup};
use crate::format::shard::Sha256;
use crate::git::ObjectId;
use crate::index::{ClaimIndex, HubIndex, HubObject, HubSweepIndex, ListIndex, Reader};
use crate::runtime::clock::{Clock, Timestamp};
use crate::service::gc::Pace;
use crate::service::{Change, CommitRequest, HubError, Server, WholeFile};

/// A little longer than the time between two sweeps of a repository.
const DAY: Duration = Duration::from_secs(24 * 3600 + 1);

async fn sweep(server: &Arc<Server>) {
    server.sweep_hub_repos(&Pace::default()).await.unwrap();
}

fn put_text(path: &str, text: &str) -> Change {
    Change::Put { path: path.parse().unwrap(), contents: text.as_bytes().to_vec() }
}

async fn squash(server: &Arc<Server>, repo: &str) {
    server.squash(&open(server, repo).await.unwrap(), "main", None).await.unwrap();
}

async fn head(server: &Arc<Server>, repo: &str) -> ObjectId {
    server.find_revision(&open(server, repo).await.unwrap(), "main").await.unwrap().id
}

/// The files that a repository has a claim to.
async fn claimed(setup: &Setup, repo: &str) -> BTreeSet<String> {
    let reader = Reader::Repo(name(repo).storage_name());
    let files = setup.index.files_after(reader, None, 10_000).await.unwrap();
    files.into_iter().map(|file| file.hash.to_string()).collect()
}

/// Number of commits, directories and files that have a row.
async fn object_counts(setup: &Setup, server: &Arc<Server>, repo: &str) -> [usize; 3] {
    let id = open(server, repo).await.unwrap().repo.id;
    let commits = setup.index.list_hub_commits(id, None, 10_000).await.unwrap();
    let trees = setup.index.list_hub_ids(id, HubObject::Tree, None, 10_000).await.unwrap();
    let blobs = setup.index.list_hub_ids(id, HubObject::Blob, None, 10_000).await.unwrap();
    [commits.len(), trees.len(), blobs.len()]
}

fn sha256(text: &str) -> Sha256 {
    Sha256::from_digest(sha2::Sha256::digest(text).into())
}

/// Registers a large file without a commit.
async fn upload(server: &Arc<Server>, repo: &str, text: &str) {
    let (claims, body) = (claims(repo), stream::iter([Ok::<_, BodyError>(Bytes::copy_from_slice(text.as_bytes()))]));
    let (tenant, len) = (claims.tenant(), text.len() as u64);
    server.receive_whole_file(WholeFile { tenant, claims: &claims, sha256: sha256(text), len, body }).await.unwrap();
}

fn put_large(path: &str, text: &str) -> Change {
    Change::PutLarge { path: path.parse().unwrap(), sha256: sha256(text), len: Some(text.len() as u64) }
}

fn delete(path: &str) -> Change {
    Change::Delete { path: path.parse().unwrap() }
}

/// The file with these contents, if the repository has a claim to it.
async fn file_of(setup: &Setup, repo: &str, text: &str) -> Option<String> {
    let found = setup.index.find_sha256(sha256(text), Reader::Repo(name(repo).storage_name())).await.unwrap();
    found.map(|found| found.file.to_string())
}

/// Advances the clock by days, and sweeps on each.
async fn pass(setup: &Setup, server: &Arc<Server>, days: u32) {
    for _ in 0..days {
        setup.clock.advance(DAY);
        sweep(server).await;
    }
}

#[tokio::test]
async fn squashed_history_is_deleted_after_a_week() {
    let setup = Setup::new().await;
    let server = setup.process();
    for repo in ["repo", "other"] {
        create(&server, repo).await.unwrap();
        let (same, again) = (put_text("a/old.txt", "in both"), put_text("a/b/moved.txt", "under two paths"));
        commit(&server, repo, vec![same, again, put_text("own.txt", repo)]).await.unwrap();
    }
    let moved = put_text("c.txt", "under two paths");
    commit(&server, "repo", vec![delete("a/old.txt"), delete("a/b/moved.txt"), delete("own.txt"), moved])
        .await
        .unwrap();
    let (old, other) = (head(&server, "repo").await, claimed(&setup, "other").await);
    squash(&server, "repo").await;
    let (expected, all) = (seen(&server).await, object_counts(&setup, &server, "repo").await);
    assert_eq!((all, claimed(&setup, "repo").await.len()), ([4, 5, 4], 4));
    sweep(&server).await;
    pass(&setup, &server, 6).await;
    // Until then the old commit can be read, and brought back.
    assert_eq!(server.find_revision(&open(&server, "repo").await.unwrap(), &old.to_string()).await.unwrap().id, old);
    assert_eq!(object_counts(&setup, &server, "repo").await, all);
    pass(&setup, &server, 1).await;
    // One commit, its root, its `.gitattributes` and one file are left.
    assert_eq!((object_counts(&setup, &server, "repo").await, claimed(&setup, "repo").await.len()), ([1, 1, 2], 2));
    assert_eq!((seen(&server).await, claimed(&setup, "other").await), (expected.clone(), other));
    let found = server.find_revision(&open(&server, "repo").await.unwrap(), &old.to_string()).await;
    assert!(matches!(found, Err(HubError::NoRevision { .. })));
    // A rebuild has the old rows again; the next sweeps delete them.
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!(rebuilt.problems, [""; 0]);
    assert_eq!(seen(&setup.process_with(&rebuilt.index)).await, expected);
}

#[tokio::test]
async fn branch_at_an_old_commit_keeps_its_history() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put_text("a.txt", "one")]).await.unwrap();
    let old = head(&server, "repo").await;
    commit(&server, "repo", vec![put_text("a.txt", "two")]).await.unwrap();
    squash(&server, "repo").await;
    sweep(&server).await;
    pass(&setup, &server, 6).await;
    let opened = open(&server, "repo").await.unwrap();
    server.create_hub_ref(&opened, "refs/heads/back".to_owned(), old).await.unwrap();
    let expected = seen(&server).await;
    pass(&setup, &server, 20).await;
    assert_eq!(seen(&server).await, expected);
    // When it is deleted, a week begins again.
    server.delete_hub_ref(&opened, "refs/heads/back".to_owned()).await.unwrap();
    sweep(&server).await;
    pass(&setup, &server, 7).await;
    assert!(server.find_revision(&opened, &old.to_string()).await.is_ok());
    pass(&setup, &server, 1).await;
    assert!(server.find_revision(&opened, &old.to_string()).await.is_err());
}

/// A branch lives between two sweeps, at a commit that was unneeded for long.
#[tokio::test]
async fn young_commit_keeps_its_old_parent() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put_text("a.txt", "one")]).await.unwrap();
    let old = head(&server, "repo").await;
    squash(&server, "repo").await;
    sweep(&server).await;
    pass(&setup, &server, 6).await;
    setup.clock.advance(DAY);
    let opened = open(&server, "repo").await.unwrap();
    server.create_hub_ref(&opened, "refs/heads/short".to_owned(), old).await.unwrap();
    let (branch, message, changes) = ("short".to_owned(), "young".to_owned(), vec![put_text("b.txt", "two")]);
    let request = CommitRequest { branch, message, parent: None, changes };
    let young = server.commit(&opened, request).await.unwrap().id.to_string();
    server.delete_hub_ref(&opened, "refs/heads/short".to_owned()).await.unwrap();
    for days in [0, 6] {
        pass(&setup, &server, days).await;
        sweep(&server).await;
        let found = server.find_revision(&opened, &young).await.unwrap();
        let (history, _) = server.hub_history(&opened, found.clone(), 9).await.unwrap();
        assert_eq!(history.len(), 3);
        assert!(server.find_hub_file(&opened, &found, "a.txt").await.is_ok());
    }
    pass(&setup, &server, 1).await;
    assert!(server.find_revision(&opened, &young).await.is_err());
    assert_eq!(
        (object_counts(&setup, &server, "repo").await[0], server.store.metrics.hub.sweep_failures.get()),
        (1, 0)
    );
}

/// Git has another id for a large file than for a regular one with the same contents.
#[tokio::test]
async fn claim_stays_while_another_file_has_the_same_contents() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put_text("regular.txt", "the same")]).await.unwrap();
    upload(&server, "repo", "the same").await;
    let changes = vec![put_large("large.txt", "the same"), delete("regular.txt")];
    commit(&server, "repo", changes).await.unwrap();
    squash(&server, "repo").await;
    let expected = seen(&server).await;
    sweep(&server).await;
    pass(&setup, &server, 8).await;
    // `.gitattributes`, and the large file.
    assert_eq!(object_counts(&setup, &server, "repo").await, [1, 1, 2]);
    assert_eq!((claimed(&setup, "repo").await.len(), seen(&server).await), (2, expected));
}

/// A user removes a claim after a commit has stored its contents, and before it has the lock.
#[tokio::test]
async fn commit_whose_claim_was_removed_meanwhile_is_refused() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    let before = seen(&server).await;
    let lock = server.lock_hub_repo(&name("repo").storage_name()).await;
    let committing = commit(&server, "repo", vec![put("a.txt")]);
    let removing = async {
        // The contents of the commit are stored before it takes the lock.
        let mut claims = claimed(&setup, "repo").await;
        let known = claims.clone();
        while claims.len() == known.len() {
            tokio::task::yield_now().await;
            claims = claimed(&setup, "repo").await;
        }
        let new = claims.difference(&known).next().unwrap().parse().unwrap();
        server.store.drop_claim(new, &name("repo").storage_name()).await.unwrap();
        drop(lock);
    };
    let (committed, ()) = tokio::join!(committing, removing);
    assert!(matches!(committed, Err(HubError::Moving)), "{committed:?}");
    assert_eq!(seen(&server).await, before);
    // A repetition stores the contents again.
    commit(&server, "repo", vec![put("a.txt")]).await.unwrap();
    seen(&server).await;
}

/// Two files of a deleted commit that are registered again, each in its own way, before the sweep
/// that removes the third one.
#[tokio::test]
async fn file_that_is_registered_again_stays_for_its_commit() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    let texts = ["sent again", "found by its sha256", "not sent again"];
    for (text, path) in texts.iter().zip(["a.bin", "b.bin", "c.bin"]) {
        upload(&server, "repo", text).await;
        commit(&server, "repo", vec![put_large(path, text)]).await.unwrap();
    }
    commit(&server, "repo", ["a.bin", "b.bin", "c.bin"].map(delete).to_vec()).await.unwrap();
    upload(&server, "repo", "never committed").await;
    squash(&server, "repo").await;
    sweep(&server).await;
    pass(&setup, &server, 6).await;
    // A process that has begun since then knows the list, too.
    let server = setup.process();
    server.load_unneeded_files().await.unwrap();
    upload(&server, "repo", texts[0]).await;
    let opened = open(&server, "repo").await.unwrap();
    assert!(server.has_whole_file(&opened, sha256(texts[1]), texts[1].len() as u64).await.unwrap());
    assert!(!server.has_whole_file(&opened, sha256(texts[2]), 1).await.unwrap());
    let found = async || {
        let mut found = Vec::new();
        for text in texts.iter().chain(&["never committed"]) {
            found.push(file_of(&setup, "repo", text).await.is_some());
        }
        found
    };
    assert_eq!(found().await, [true; 4]);
    pass(&setup, &server, 1).await;
    assert_eq!(found().await, [true, true, false, true]);
    // No commit has these files by now, but a week has begun again for each.
    pass(&setup, &server, 6).await;
    commit(&server, "repo", vec![put_large("a.bin", texts[0]), put_large("b.bin", texts[1])]).await.unwrap();
    let expected = seen(&server).await;
    pass(&setup, &server, 20).await;
    assert_eq!((found().await, seen(&server).await), (vec![true, true, false, true], expected));
}

/// The lists are empty after the sweep, and a repository without a change is not read again.
#[tokio::test]
async fn unchanged_repository_is_not_read() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put("a/b.txt")]).await.unwrap();
    squash(&server, "repo").await;
    sweep(&server).await;
    pass(&setup, &server, 9).await;
    setup.index.tamper("DELETE FROM hub_trees").await;
    pass(&setup, &server, 3).await;
    assert_eq!(server.store.metrics.hub.sweep_failures.get(), 0);
    let opened = open(&server, "repo").await.unwrap();
    let target = head(&server, "repo").await;
    server.create_hub_ref(&opened, "refs/tags/v1".to_owned(), target).await.unwrap();
    pass(&setup, &server, 1).await;
    assert_eq!(server.store.metrics.hub.sweep_failures.get(), 1);
}

/// A clock that was ahead has listed something: its week begins again.
#[tokio::test]
async fn clock_that_was_ahead_deletes_nothing_early() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put("a.txt")]).await.unwrap();
    let (old, now) = (head(&server, "repo").await.to_string(), setup.clock.now());
    squash(&server, "repo").await;
    setup.clock.advance(DAY * 1000);
    sweep(&server).await;
    setup.clock.set(now);
    sweep(&server).await;
    let opened = open(&server, "repo").await.unwrap();
    pass(&setup, &server, 6).await;
    assert!(server.find_revision(&opened, &old).await.is_ok());
    pass(&setup, &server, 1).await;
    assert!(server.find_revision(&opened, &old).await.is_err());
}

/// A copy that was made during a sweep has only a part of an unneeded commit.
#[tokio::test]
async fn part_of_an_unneeded_commit_is_no_damage() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put("a/b.txt")]).await.unwrap();
    commit(&server, "repo", vec![put("a/c.txt")]).await.unwrap();
    let history = server.find_revision(&open(&server, "repo").await.unwrap(), "main").await.unwrap();
    squash(&server, "repo").await;
    let (parent, head) = (history.parent.unwrap(), head(&server, "repo").await);
    let first = format!("SELECT tree FROM hub_commits WHERE parent IS NULL AND oid != x'{head}'");
    setup.index.tamper(&format!("DELETE FROM hub_trees WHERE oid IN ({first})")).await;
    setup.index.tamper(&format!("DELETE FROM hub_commits WHERE oid = x'{parent}'")).await;
    let expected = seen(&server).await;
    sweep(&server).await;
    pass(&setup, &server, 8).await;
    assert_eq!((seen(&server).await, object_counts(&setup, &server, "repo").await[0]), (expected, 1));
    assert_eq!(server.store.metrics.hub.sweep_failures.get(), 0);
}

#[tokio::test]
async fn repository_with_a_missing_directory_loses_nothing() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put("a/b.txt")]).await.unwrap();
    squash(&server, "repo").await;
    sweep(&server).await;
    let opened = open(&server, "repo").await.unwrap();
    let main = server.find_revision(&opened, "main").await.unwrap();
    let page = server.list_hub_files(&opened, &main, "", crate::service::Depth::One, (None, 9)).await.unwrap();
    let below = page.entries.iter().find(|entry| entry.path == "a").unwrap().id;
    setup.index.tamper(&format!("DELETE FROM hub_trees WHERE oid = x'{below}'")).await;
    let all = object_counts(&setup, &server, "repo").await;
    pass(&setup, &server, 20).await;
    assert_eq!(object_counts(&setup, &server, "repo").await, all);
    assert_eq!(server.store.metrics.hub.sweep_failures.get(), 20);
}

/// The heads of the branches of a repository, as they must be: the contents of each path.
type Heads = BTreeMap<String, BTreeMap<String, String>>;

/// Random changes of one repository, and the heads that they must give.
struct World {
    setup: Setup,
    server: Arc<Server>,
    rng: StdRng,
    heads: Heads,
    /// Commits that were heads once.
    known: Vec<(ObjectId, BTreeMap<String, String>)>,
    /// Files that were registered without a commit, each with the earliest time since then.
    uploads: BTreeMap<String, Timestamp>,
    /// All that ever were.
    uploaded: BTreeSet<String>,
}

impl World {
    async fn new(seed: u64) -> Self {
        let setup = Setup::new().await;
        let server = setup.process();
        create(&server, "repo").await.unwrap();
        let heads = BTreeMap::from([("main".to_owned(), BTreeMap::new())]);
        let rng = StdRng::seed_from_u64(seed);
        let (uploads, uploaded) = (BTreeMap::new(), BTreeSet::new());
        Self { setup, server, rng, heads, known: Vec::new(), uploads, uploaded }
    }

    fn branch(&mut self) -> String {
        let names: Vec<&String> = self.heads.keys().collect();
        (*names.choose(&mut self.rng).unwrap()).clone()
    }

    async fn commit(&mut self) {
        let branch = self.branch();
        let mut files = self.heads[&branch].clone();
        let mut changes = Vec::new();
        for _ in 0..self.rng.random_range(1..4) {
            let path = *["a.txt", "b/c.txt", "b/d.txt", "e/f/g.txt"].choose(&mut self.rng).unwrap();
            if files.contains_key(path) && self.rng.random_bool(0.4) {
                files.remove(path);
                changes.push(Change::Delete { path: path.parse().unwrap() });
            } else {
                let text = format!("contents {}", self.rng.random_range(0..12));
                changes.push(put_text(path, &text));
                files.insert(path.to_owned(), text);
            }
        }
        let request = CommitRequest { branch: branch.clone(), message: "a commit".to_owned(), parent: None, changes };
        let opened = open(&self.server, "repo").await.unwrap();
        let done = self.server.commit(&opened, request).await.unwrap();
        self.known.push((done.id, files.clone()));
        self.heads.insert(branch, files);
    }

    /// Registers a file without a commit.
    async fn upload(&mut self) {
        let text = format!("upload {}", self.rng.random_range(0..4));
        upload(&self.server, "repo", &text).await;
        self.uploaded.insert(file_of(&self.setup, "repo", &text).await.unwrap());
        self.uploads.insert(text, self.setup.clock.now());
    }

    /// Commits a file that was registered before.
    async fn commit_upload(&mut self) {
        let Some(text) = self.uploads.keys().collect::<Vec<_>>().choose(&mut self.rng).copied().cloned() else {
            return;
        };
        let age = self.setup.clock.now().as_millis().saturating_sub(self.uploads[&text].as_millis());
        let (branch, path) = (self.branch(), "large.bin");
        let changes = vec![put_large(path, &text)];
        let request = CommitRequest { branch: branch.clone(), message: "a file".to_owned(), parent: None, changes };
        let opened = open(&self.server, "repo").await.unwrap();
        match self.server.commit(&opened, request).await {
            Ok(done) => {
                let files = self.heads.get_mut(&branch).unwrap();
                files.insert(path.to_owned(), text);
                self.known.push((done.id, files.clone()));
            }
            Err(HubError::Invalid(_) | HubError::Moving) if age >= 7 * 24 * 3600 * 1000 => {
                self.uploads.remove(&text);
            }
            Err(error) => panic!("{text}, {age} ms: {error:?}"),
        }
    }

    fn set_clock(&mut self, now: Timestamp) {
        self.setup.clock.set(now);
        self.uploads.values_mut().for_each(|since| *since = now.min(*since));
    }

    async fn begin_branch(&mut self) {
        let Some((id, files)) = self.known.choose(&mut self.rng).cloned() else { return };
        let branch = format!("branch-{}", self.rng.random_range(0..3));
        let opened = open(&self.server, "repo").await.unwrap();
        match self.server.create_hub_ref(&opened, format!("refs/heads/{branch}"), id).await {
            Ok(()) => assert!(self.heads.insert(branch, files).is_none()),
            Err(HubError::Exists { .. }) => assert!(self.heads.contains_key(&branch)),
            // A sweep has deleted the commit.
            Err(HubError::NoRevision { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }

    async fn end_branch(&mut self) {
        let branch = self.branch();
        if branch != "main" {
            let opened = open(&self.server, "repo").await.unwrap();
            self.server.delete_hub_ref(&opened, format!("refs/heads/{branch}")).await.unwrap();
            self.heads.remove(&branch);
        }
    }

    async fn begin_again(&mut self) {
        self.server.delete_hub_repo(&claims("repo"), &name("repo")).await.unwrap();
        if self.rng.random_bool(0.5) {
            self.server.purge_deleted_repos(&Pace::default()).await.unwrap();
        }
        create(&self.server, "repo").await.unwrap();
        self.heads = BTreeMap::from([("main".to_owned(), BTreeMap::new())]);
        self.known.clear();
        self.uploads.clear();
    }

    /// Sweeps, sometimes with a fault in one of the operations.
    async fn sweep(&mut self) {
        if self.rng.random_bool(0.3) {
            let moment = if self.rng.random_bool(0.5) { Moment::Before } else { Moment::After };
            self.setup.faults.arm(self.rng.random_range(0..40), moment);
            // The failure of a repository is logged; that of the search is an error.
            drop(self.server.sweep_hub_repos(&Pace::default()).await);
            self.setup.faults.disarm();
            self.server = self.setup.process();
            self.server.load_unneeded_files().await.unwrap();
        } else {
            sweep(&self.server).await;
        }
    }

    /// Sweeps while the repository is changed.
    async fn sweep_meanwhile(&mut self) {
        let server = Arc::clone(&self.server);
        let changing = async {
            for _ in 0..4 {
                self.change().await;
            }
        };
        tokio::join!(sweep(&server), changing);
    }

    async fn change(&mut self) {
        match self.rng.random_range(0..67) {
            0..33 => self.commit().await,
            33..39 => self.upload().await,
            39..45 => self.commit_upload().await,
            45..55 => self.begin_branch().await,
            55..62 => self.end_branch().await,
            _ => {
                let branch = self.branch();
                let opened = open(&self.server, "repo").await.unwrap();
                self.server.squash(&opened, &branch, None).await.unwrap();
            }
        }
    }

    async fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..67 => self.change().await,
            67..68 => self.begin_again().await,
            68..84 => {
                let hours = self.rng.random_range(1..80);
                self.setup.clock.advance(Duration::from_secs(hours * 3600));
            }
            84..86 => {
                let now = self.setup.clock.now().as_millis();
                let back = self.rng.random_range(0..100 * 3600 * 1000);
                self.set_clock(Timestamp::from_millis(now.saturating_sub(back)));
            }
            86..92 => self.sweep().await,
            _ => self.sweep_meanwhile().await,
        }
    }

    /// Every head has its files, with their contents.
    async fn check(&self) {
        let found = seen(&self.server).await;
        let refs = found["repo"].refs();
        assert_eq!(refs.len(), self.heads.len());
        for (branch, files) in &self.heads {
            let (_, paths) = &refs[&format!("refs/heads/{branch}")];
            let paths: BTreeSet<&String> = paths.keys().filter(|path| *path != ".gitattributes").collect();
            assert_eq!(paths, files.keys().collect(), "{branch}");
        }
    }
}

/// `ZORB_SWEEP_STEPS` sets the number of steps, and `ZORB_SEED` the seed.
#[tokio::test]
async fn random_histories_lose_no_file_and_leave_no_garbage() {
    let of = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let steps = of("ZORB_SWEEP_STEPS").unwrap_or(if cfg!(feature = "full-tests") { 2000 } else { 300 });
    let seed = of("ZORB_SEED").unwrap_or_else(rand::random);
    println!("ZORB_SEED={seed}");
    let mut world = World::new(seed).await;
    for step in 0..steps {
        Box::pin(world.step()).await;
        if step % 5 == 0 {
            world.check().await;
        }
    }
    world.check().await;
    // When its time is over, everything is deleted that no branch needs.
    for _ in 0..2 {
        pass(&world.setup, &world.server, 8).await;
    }
    world.check().await;
    let found = seen(&world.server).await;
    let refs = found["repo"].refs().values();
    let commits: BTreeSet<&String> = refs.clone().flat_map(|(commits, _)| commits).collect();
    assert_eq!(object_counts(&world.setup, &world.server, "repo").await[0], commits.len());
    let id = open(&world.server, "repo").await.unwrap().repo.id;
    let blobs = world.setup.index.list_hub_blobs(id, None, 10_000).await.unwrap();
    let named: BTreeSet<String> = blobs.iter().filter(|blob| blob.len > 0).map(|blob| blob.file.to_string()).collect();
    let claimed = claimed(&world.setup, "repo").await;
    assert!(named.is_subset(&claimed));
    // What was registered without a commit may stay.
    assert!(claimed.difference(&named).all(|file| world.uploaded.contains(file)));
}
