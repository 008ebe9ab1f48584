//! Checks after random operations that the stored usage equals a recount.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::backends::{Backend, TestIndex};
use super::super::files::{file, file_hash, registration, term};
use super::super::{Db, NOW, SqliteIndex};
use super::{of_repo, stocked, usage, used};
use crate::format::FileHash;
use crate::index::migrate::{SQLITE, migrator};
use crate::index::{FileRecord, Limits, Registered, RestoredFile, Usage, UsageIndex};

suite_in_steps! {
    stored_usage_equals_a_recount_after_any_change
}

suite_with_hooks! {
    usage_follows_every_change_and_moving_rows_is_refused
}

/// A model of the claims of repositories, without a database.
#[derive(Default)]
struct Model {
    /// The xorbs, bytes and repositories of each file.
    files: BTreeMap<u8, (Vec<u8>, u64, BTreeSet<&'static str>)>,
    /// The xorbs of removed claims that may not be swept yet, and the repositories that may still
    /// be charged for them.
    unswept: Vec<(Vec<u8>, BTreeSet<&'static str>)>,
}

impl Model {
    fn usage(&self, repo: &str) -> Usage {
        let claimed: Vec<_> = self.files.values().filter(|(.., repos)| repos.contains(repo)).collect();
        let xorbs: BTreeSet<u8> = claimed.iter().flat_map(|(xorbs, ..)| xorbs.iter().copied()).collect();
        let xorbs: Vec<u8> = xorbs.into_iter().collect();
        used(claimed.len() as u64, claimed.iter().map(|(_, len, _)| len).sum(), &xorbs)
    }

    /// Compares the stored usage with the model. The physical bytes lie between those of the claims
    /// and those that include unswept xorbs.
    async fn check(&self, db: &Db, step: usize) {
        for repo in REPOS {
            let (stored, least) = (usage(db, repo).await, self.usage(repo));
            let most = self.charged(repo);
            assert!(
                (least.physical_len..=most).contains(&stored.physical_len),
                "{repo} after step {step}: {stored:?}, {least:?}"
            );
            assert_eq!(
                Usage { physical_len: 0, ..stored },
                Usage { physical_len: 0, ..least },
                "{repo} after step {step}"
            );
        }
    }

    /// Removes the claim of this repository, or all claims.
    fn remove(&mut self, number: u8, repo: &'static str, all: bool) {
        let Some((xorbs, _, repos)) = self.files.get_mut(&number) else { return };
        let is_removed = all || repos.remove(repo) && repos.is_empty();
        // If the file is large and other repositories have it, the sweep credits this claim, too.
        let mut unswept = (xorbs.clone(), BTreeSet::from([repo]));
        if is_removed {
            unswept.1.append(repos);
            self.files.remove(&number);
        }
        self.unswept.push(unswept);
    }

    /// Bytes of the xorbs of a repository's claims, including unswept xorbs.
    fn charged(&self, repo: &str) -> u64 {
        let claimed = self.files.values().map(|(xorbs, _, repos)| (xorbs, repos));
        let all = claimed.chain(self.unswept.iter().map(|(xorbs, repos)| (xorbs, repos)));
        let of_repo = all.filter(|(_, repos)| repos.contains(repo));
        let xorbs: BTreeSet<u8> = of_repo.flat_map(|(xorbs, _)| xorbs.iter().copied()).collect();
        used(0, 0, &xorbs.into_iter().collect::<Vec<_>>()).physical_len
    }
}

const REPOS: [&str; 4] = ["acme/a", "acme/b", "other/c", "*"];

async fn stored_usage_equals_a_recount_after_any_change(db: Db) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    stocked(&db).await;
    let mut model = Model::default();
    for step in 0..400 {
        let (number, repo) = (rng.random_range(100..120), REPOS[rng.random_range(0..REPOS.len())]);
        // Files with the same number have the same hash and different terms. So a second
        // registration finds the terms of the first one.
        let xorbs: Vec<u8> = (0..rng.random_range(0..4)).map(|_| rng.random_range(1..9)).collect();
        let terms: Vec<_> = xorbs.iter().map(|xorb| term(*xorb, 0, rng.random_range(1..3))).collect();
        let new = file(number, &terms);
        match rng.random_range(0..10) {
            0..5 => {
                let limits = Limits { file_count: Some(rng.random_range(0..12)), ..Limits::default() };
                let allowance = of_repo(if rng.random_bool(0.5) { limits } else { Limits::default() });
                let (raw_len, has) = (new.raw_len, model.usage(repo).file_count);
                let known = model.files.get(&number).is_some_and(|(.., repos)| repos.contains(repo));
                let mut new = registration(repo, vec![new], &xorbs);
                new.xorbs.sort_unstable_by_key(|hash| *hash.as_bytes());
                new.xorbs.dedup();
                let fits = allowance.repo.file_count.is_none_or(|limit| has < limit);
                new.allowance = allowance;
                let done = db.register(&new).await.unwrap();
                match (known, fits) {
                    (true, _) => assert_eq!(done, Registered::Known, "step {step}"),
                    (false, false) => assert!(matches!(done, Registered::OverQuota(_)), "step {step}: {done:?}"),
                    (false, true) => {
                        assert_eq!(done, Registered::New, "step {step}");
                        let entry = model.files.entry(number).or_insert((xorbs, raw_len, BTreeSet::new()));
                        entry.2.insert(repo);
                    }
                }
            }
            5..8 => {
                let all = rng.random_bool(0.3);
                db.remove_claims(file_hash(number), (!all).then(|| repo.to_owned()), NOW).await.unwrap();
                model.remove(number, repo, all);
            }
            8 => {
                if !db.sweep_removed(NOW).await.unwrap() {
                    model.unswept.clear();
                }
            }
            _ => {
                let repos: BTreeSet<&str> = REPOS.iter().filter(|_| rng.random_bool(0.5)).copied().collect();
                let record = FileRecord {
                    hash: FileHash::from_bytes([number; 32]),
                    raw_len: new.raw_len,
                    terms,
                    since: NOW,
                    sha256: None,
                    repos: repos.iter().map(|repo| (*repo).to_owned()).collect(),
                    later: BTreeMap::new(),
                    claimants: Vec::new(),
                    owners: Vec::new(),
                };
                db.restore_files(vec![RestoredFile { record, dedup: Vec::new() }]).await.unwrap();
                model.files.insert(number, (xorbs, new.raw_len, repos));
            }
        }
        model.check(&db, step).await;
    }
}

/// Some files of two repositories.
const ROWS: &str = "INSERT INTO xorbs (id, hash, state, since, ticket, serialized_len, raw_len, crc64, layout) VALUES \
         (1, zeroblob(32), 1, 0, 0, 100, 1, 0, x'00'), (2, randomblob(32), 1, 0, 0, 10, 1, 0, x'00'); \
         INSERT INTO files (id, hash, raw_len, since) VALUES \
             (1, randomblob(32), 7, 0), (2, randomblob(32), 5, 0), (3, randomblob(32), 3, 0); \
         INSERT INTO xorb_files VALUES (1, 1), (1, 2), (2, 2), (2, 3); \
         INSERT INTO file_repos (file_id, repo) VALUES (1, 'acme/a'), (2, 'acme/a'), (2, 'acme/b');";

/// An index with these rows.
async fn counted<B: Backend>() -> (B::Place, B::Index) {
    let (place, index) = B::fresh().await;
    index.tamper(ROWS).await;
    (place, index)
}

/// An index of the schema before this version, with these rows, after its migration.
pub(in crate::index::conformance) async fn upgraded(
    before: i64,
    rows: &'static str,
) -> (tempfile::TempDir, SqliteIndex) {
    use sqlx::{Connection, SqliteConnection, raw_sql};
    let old: Vec<_> = SQLITE.iter().filter(|(version, ..)| *version < before).copied().collect();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("index.sqlite");
    let mut connection = SqliteConnection::connect(&format!("sqlite://{}?mode=rwc", path.display())).await.unwrap();
    migrator(&old).run(&mut connection).await.unwrap();
    raw_sql(rows).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    (directory, SqliteIndex::open(&path).await.unwrap())
}

#[tokio::test]
async fn index_of_an_older_schema_is_counted_when_migrated() {
    // The last schema without usage.
    let (_directory, index) = upgraded(8, ROWS).await;
    let of = async |repo: &str| index.repo_usage(repo.to_owned()).await.unwrap();
    assert_eq!(of("acme/a").await, Usage { file_count: 2, logical_len: 12, physical_len: 110 });
    assert_eq!(of("acme/b").await, Usage { file_count: 1, logical_len: 5, physical_len: 110 });
    assert_eq!(index.owner_usage("acme".to_owned()).await.unwrap().physical_len, 220);
    let [stored, counted] = index.recounted().await;
    assert!(stored.len() > 5, "{stored:?}");
    assert_eq!(stored, counted);
    index.close().await;
}

/// The triggers are tested with every change of claims and references.
async fn usage_follows_every_change_and_moving_rows_is_refused<B: Backend>() {
    let (_place, index) = counted::<B>().await;
    // Statements as a compaction, a repair or a rebuild makes them, in an unusual order.
    for sql in [
        "INSERT INTO xorb_files VALUES (2, 1)",
        "DELETE FROM xorb_files WHERE xorb_id = 1 AND file_id = 1",
        "UPDATE xorbs SET serialized_len = 33 WHERE id = 1",
        "UPDATE xorbs SET serialized_len = 44, state = 1",
        "INSERT INTO file_repos (file_id, repo) VALUES (3, 'acme/b'), (1, 'acme/a'), (3, '*') ON CONFLICT DO NOTHING",
        "DELETE FROM xorb_files WHERE file_id = 2",
        "INSERT INTO xorb_files VALUES (2, 2)",
        "UPDATE file_repos SET has_claimed = TRUE",
        "UPDATE files SET hash = randomblob(32), removed_at = 1 WHERE id = 1",
        "DELETE FROM xorb_files WHERE file_id = 1",
        "INSERT INTO xorb_files VALUES (1, 1)",
        "DELETE FROM files WHERE id = 1",
        "DELETE FROM files WHERE id = 2",
        "DELETE FROM file_repos WHERE repo = 'acme/b'",
        "DELETE FROM files",
    ] {
        let before = index.recounted().await;
        assert!(index.is_accepted(sql).await, "{sql}");
        let [stored, counted] = index.recounted().await;
        assert_eq!(stored, counted, "{sql}");
        let changes_nothing = sql.contains("has_claimed");
        assert_eq!(stored == before[0], changes_nothing, "{sql}");
    }
    let (_place, index) = counted::<B>().await;
    assert!(!index.is_accepted("UPDATE file_repos SET repo = 'x' WHERE repo = 'acme/b'").await);
    assert!(!index.is_accepted("UPDATE xorb_files SET xorb_id = 2 WHERE xorb_id = 1").await);
    assert!(!index.is_accepted("UPDATE files SET hash = randomblob(32) WHERE id = 1").await);
    assert!(index.is_accepted("UPDATE files SET removed_at = 1 WHERE id = 3").await);
    assert!(!index.is_accepted("UPDATE files SET removed_at = NULL WHERE id = 3").await);
    let [stored, counted] = index.recounted().await;
    assert_eq!(stored, counted);
}
