//! Random histories of a repository, with sweeps between the changes and beside them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::time::timeout;

use super::{claimed, object_counts, pass, put_large, put_text, sweep, upload};
#[cfg(feature = "full-tests")]
use super::{commit_during_a_sweep, register_during_a_sweep};
use crate::git::ObjectId;
use crate::index::{Index, Reader};
use crate::runtime::clock::{Clock, Timestamp};
use crate::service::gc::Pace;
use crate::service::hub::Depth;
use crate::service::tests::faults::SweepGuard;
use crate::service::tests::hub::{claims, create, name, open, seen};
use crate::service::tests::{Moment, Setup};
use crate::service::{Change, CommitRequest, HubError, Server, StoreError};

fn is_week(since: Timestamp, now: Timestamp) -> bool {
    now.as_millis().saturating_sub(since.as_millis()) >= 7 * 24 * 3600 * 1000
}

/// Steps of a seed with a broken guard, and seeds after which the guard counts as unnoticed.
#[cfg(feature = "full-tests")]
const GUARD_STEP_COUNT: u64 = 300;
#[cfg(feature = "full-tests")]
const GUARD_SEED_COUNT: u64 = 20;

/// The heads of the branches of a repository, as they must be: the contents of each path.
type Heads = BTreeMap<String, BTreeMap<String, String>>;

/// Random changes of one repository, and the heads that they must give.
struct World {
    setup: Setup,
    index: Arc<dyn Index>,
    /// Whether the operations of the index can be made to fail.
    has_faults: bool,
    server: Arc<Server>,
    rng: StdRng,
    heads: Heads,
    /// Commits that were heads once.
    known: Vec<(ObjectId, BTreeMap<String, String>)>,
    /// Files that were registered without a commit, each with the earliest time since then.
    uploads: BTreeMap<String, Timestamp>,
}

impl World {
    /// A repository in the index of a new `Setup`.
    async fn new(seed: u64) -> Self {
        let setup = Setup::without_id().await;
        let index = Arc::new(setup.index.clone());
        Self::begin(seed, setup, index, true).await
    }

    /// A repository in this index.
    #[cfg(feature = "postgres-tests")]
    async fn on(seed: u64, index: Arc<dyn Index>) -> Self {
        Self::begin(seed, Setup::without_id().await, index, false).await
    }

    async fn begin(seed: u64, setup: Setup, index: Arc<dyn Index>, has_faults: bool) -> Self {
        let server = if has_faults { setup.process() } else { setup.process_on(Arc::clone(&index)) };
        assert!(server.store.agree(true).await.unwrap().is_new);
        create(&server, "repo").await.unwrap();
        let heads = BTreeMap::from([("main".to_owned(), BTreeMap::new())]);
        let rng = StdRng::seed_from_u64(seed);
        Self { setup, index, has_faults, server, rng, heads, known: Vec::new(), uploads: BTreeMap::new() }
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
        self.uploads.insert(text, self.setup.clock.now());
    }

    /// Commits a file that was registered before.
    async fn commit_upload(&mut self) {
        let Some(text) = self.uploads.keys().collect::<Vec<_>>().choose(&mut self.rng).copied().cloned() else {
            return;
        };
        let since = self.uploads[&text];
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
            Err(HubError::Invalid(_)) if is_week(since, self.setup.clock.now()) => {
                self.uploads.remove(&text);
            }
            Err(error) => panic!("{text} since {since:?}, now {:?}: {error:?}", self.setup.clock.now()),
        }
    }

    fn set_clock(&mut self, now: Timestamp) {
        // What was there for a week may be deleted by now, also if the clock shows less than a week
        // again.
        let before = self.setup.clock.now();
        self.setup.clock.set(now);
        for since in self.uploads.values_mut() {
            *since = if is_week(*since, before) { Timestamp::from_millis(0) } else { now.min(*since) };
        }
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
        // Much may be left of the deleted one: then a client is asked to try again.
        let mut left = 100;
        while let Err(error) = create(&self.server, "repo").await {
            assert!(matches!(error, HubError::Store(StoreError::Busy(_))) && left > 0, "{error:?}");
            left -= 1;
        }
        self.heads = BTreeMap::from([("main".to_owned(), BTreeMap::new())]);
        self.known.clear();
        self.uploads.clear();
    }

    /// Sweeps, sometimes with a fault in one of the operations, or until the process dies.
    async fn sweep(&mut self) {
        if !self.rng.random_bool(0.3) {
            return sweep(&self.server).await;
        }
        if self.has_faults {
            let moment = if self.rng.random_bool(0.5) { Moment::Before } else { Moment::After };
            self.setup.faults.arm(self.rng.random_range(0..40), moment);
            // The failure of a repository is logged; that of the search is an error.
            drop(self.server.sweep_hub_repos(&Pace::default()).await);
            self.setup.faults.disarm();
            self.server = self.setup.process();
        } else {
            let life = Duration::from_micros(self.rng.random_range(0..50_000));
            drop(timeout(life, self.server.sweep_hub_repos(&Pace::default())).await);
            self.server = self.setup.process_on(Arc::clone(&self.index));
        }
        self.server.load_unneeded_files().await.unwrap();
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

    /// Every head has its files, and all equal texts are the same file.
    async fn check(&self) {
        let found = seen(&self.server).await;
        let refs = found["repo"].refs();
        assert_eq!(refs.len(), self.heads.len());
        let mut hashes: BTreeMap<&String, &String> = BTreeMap::new();
        for (branch, files) in &self.heads {
            let (_, found) = &refs[&format!("refs/heads/{branch}")];
            let paths: BTreeSet<&String> = found.keys().filter(|path| *path != ".gitattributes").collect();
            assert_eq!(paths, files.keys().collect(), "{branch}");
            for (path, text) in files {
                assert_eq!(*hashes.entry(text).or_insert(&found[path]), &found[path], "{branch}: {path}");
            }
        }
        let different: BTreeSet<&&String> = hashes.values().collect();
        assert_eq!(different.len(), hashes.len());
    }

    /// When the time of everything unneeded is over, nothing of it is left.
    async fn end(&self) {
        self.check().await;
        // When its time is over, everything is deleted that no branch needs.
        for _ in 0..2 {
            pass(&self.setup, &self.server, 8).await;
        }
        self.check().await;
        let found = seen(&self.server).await;
        let refs = found["repo"].refs().values();
        let commits: BTreeSet<&String> = refs.clone().flat_map(|(commits, _)| commits).collect();
        let opened = open(&self.server, "repo").await.unwrap();
        let (mut trees, mut files) = (BTreeSet::new(), BTreeSet::new());
        for id in &commits {
            let commit = self.server.find_revision(&opened, id).await.unwrap();
            trees.insert(commit.tree.to_string());
            for entry in
                self.server.list_hub_files(&opened, &commit, "", Depth::All, (None, 1000)).await.unwrap().entries
            {
                let is_file = entry.blob.is_some();
                if is_file { &mut files } else { &mut trees }.insert(entry.id.to_string());
            }
        }
        let expected = [commits.len(), trees.len(), files.len()];
        assert_eq!(object_counts(&*self.index, &self.server, "repo").await, expected);
        let blobs = self.index.list_hub_blobs(opened.repo.id, None, 10_000).await.unwrap();
        let named: BTreeSet<String> =
            blobs.iter().filter(|blob| blob.len > 0).map(|blob| blob.file.to_string()).collect();
        let claimed = claimed(&*self.index, "repo").await;
        assert!(named.is_subset(&claimed));
        // What the store had before the repository was created may belong to others.
        let reader = Reader::Repo(opened.repo.storage_name.clone());
        let entries = self.index.files_after(reader, None, 10_000).await.unwrap();
        for file in entries.iter().filter(|file| !named.contains(&file.hash.to_string())) {
            assert!(file.registered < opened.repo.created, "{file:?}");
        }
    }
}

/// Takes steps, checks what they have left, and lets the time of everything unneeded pass.
async fn run(seed: u64, step_count: u64, broken: Option<SweepGuard>) {
    let world = World::new(seed).await;
    if let Some(guard) = broken {
        world.setup.faults.break_guard(guard);
    }
    play(world, step_count).await;
}

async fn play(mut world: World, step_count: u64) {
    for step in 0..step_count {
        Box::pin(world.step()).await;
        if step % 5 == 0 {
            world.check().await;
        }
    }
    world.end().await;
}

/// The seed and the number of steps of a random history: `ZORB_SEED` and `ZORB_SWEEP_STEPS`.
fn seed_and_steps(full: u64, quick: u64) -> (u64, u64) {
    let of = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let steps = of("ZORB_SWEEP_STEPS").unwrap_or(if cfg!(feature = "full-tests") { full } else { quick });
    let seed = of("ZORB_SEED").unwrap_or_else(rand::random);
    println!("ZORB_SEED={seed}");
    (seed, steps)
}

#[tokio::test]
async fn random_histories_lose_no_file_and_leave_no_garbage() {
    let (seed, steps) = seed_and_steps(2000, 300);
    run(seed, steps, None).await;
}

/// The same in PostgreSQL, where sweeps end at any moment instead of at a fault.
#[cfg(feature = "postgres-tests")]
#[tokio::test]
async fn random_histories_in_postgresql_lose_no_file() {
    let (seed, steps) = seed_and_steps(300, 100);
    let index = crate::index::postgres::test_hooks::fresh().await;
    play(World::on(seed, Arc::new(index)).await, steps).await;
}

/// Whether this guard, broken, makes the histories of a seed fail. Two guards are for moments that a
/// random history hardly meets.
#[cfg(feature = "full-tests")]
#[expect(clippy::disallowed_methods, reason = "a panic ends this thread, not the test")]
fn is_noticed(seed: u64, guard: SweepGuard) -> bool {
    let failing = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            match guard {
                SweepGuard::LooksAtFile => register_during_a_sweep(Some(guard)).await,
                SweepGuard::CommitChecksClaims => commit_during_a_sweep(Some(guard)).await,
                SweepGuard::Grace | SweepGuard::LooksAgain | SweepGuard::TakesFromList | SweepGuard::CommitsFirst => {
                    run(seed, GUARD_STEP_COUNT, Some(guard)).await
                }
            }
        });
    });
    failing.join().is_err()
}

#[cfg(feature = "full-tests")]
#[test]
fn every_broken_guard_of_the_sweep_is_noticed() {
    for guard in SweepGuard::ALL {
        let seed = (0..GUARD_SEED_COUNT).find(|seed| is_noticed(*seed, guard));
        println!("{guard:?}: {seed:?}");
        assert!(seed.is_some(), "{guard:?} is not noticed");
    }
}
