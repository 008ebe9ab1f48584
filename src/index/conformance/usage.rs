//! What the contract says about usage, and about limits on it.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::files::{file, file_hash, registration, term};
use super::{Db, NOW, SqliteIndex, put, xorb};
use crate::format::FileHash;
use crate::index::migrate::{SQLITE, migrator};
use crate::index::{
    Allowance, Excess, FileRecord, Limits, Measure, NewXorb, Quantity, Reader, Registered, Registration, RemovedClaims,
    RepoUsage, RestoredFile, Usage,
};

suite! {
    a_repository_has_its_files_and_each_of_their_xorbs_once_whoever_else_has_them
    a_registration_that_tells_nothing_new_costs_nothing_even_beyond_the_limit
    each_limit_is_reached_and_not_exceeded_and_a_refusal_changes_nothing
    what_is_exceeded_already_refuses_only_what_adds_to_it
    the_limit_of_an_owner_is_for_all_of_its_repositories_together
    of_two_registrations_at_the_limit_one_wins
    usages_are_listed_in_pages_by_name
    what_is_kept_is_what_there_is_after_anything
}

/// The first ones are of the same length, the others are not.
fn sized(byte: u8) -> NewXorb {
    xorb(byte, if byte < 5 { 3 } else { byte })
}

fn len(xorbs: &[u8]) -> u64 {
    xorbs.iter().map(|byte| sized(*byte).layout.serialized_len()).sum()
}

async fn usage(db: &Db, repo: &str) -> Usage {
    db.repo_usage(repo.to_owned()).await.unwrap()
}

fn used(file_count: u64, logical_len: u64, xorbs: &[u8]) -> Usage {
    Usage { file_count, logical_len, physical_len: len(xorbs) }
}

async fn stocked(db: &Db) {
    for byte in 1..9 {
        put(db, sized(byte)).await;
    }
}

/// A registration of files, each of one chunk of the xorb with the same number as the file divided by ten.
fn limited(repo: &str, allowance: &Allowance, files: &[u8]) -> Registration {
    let xorbs: BTreeSet<u8> = files.iter().map(|number| number / 10).collect();
    let files = files.iter().map(|number| file(*number, &[term(number / 10, 0, 1)])).collect();
    let xorbs: Vec<u8> = xorbs.into_iter().collect();
    Registration { allowance: allowance.clone(), ..registration(repo, files, &xorbs) }
}

fn own(repo: Limits) -> Allowance {
    Allowance { repo, owner: None }
}

async fn a_repository_has_its_files_and_each_of_their_xorbs_once_whoever_else_has_them(db: Db) {
    stocked(&db).await;
    let none = Allowance::default();
    assert_eq!(usage(&db, "a").await, Usage::default());
    let two = file(9, &[term(1, 0, 1), term(2, 0, 2), term(1, 1, 2)]);
    db.register(&registration("a", vec![two, file(8, &[term(2, 0, 1)])], &[1, 2])).await.unwrap();
    assert_eq!(usage(&db, "a").await, used(2, 5000, &[1, 2]));
    // Xorbs that a shard lists, and no file needs, are nobody's.
    db.register(&registration("a", Vec::new(), &[3])).await.unwrap();
    assert_eq!(usage(&db, "a").await, used(2, 5000, &[1, 2]));
    db.register(&limited("b", &none, &[20])).await.unwrap();
    db.register(&registration("b", vec![file(8, &[term(2, 0, 1)])], &[2])).await.unwrap();
    assert_eq!(usage(&db, "b").await, used(2, 2000, &[2]));
    assert_eq!(usage(&db, "a").await, used(2, 5000, &[1, 2]));

    // What a known file refers to is charged, not what a second shard says of it.
    db.register(&registration("c", vec![file(8, &[term(4, 0, 1)])], &[4])).await.unwrap();
    assert_eq!(usage(&db, "c").await, used(1, 1000, &[2]));

    let remove = |byte, repo: Option<&str>| db.remove_claims(file_hash(byte), repo.map(str::to_owned), NOW);
    remove(9, Some("a")).await.unwrap();
    assert_eq!(usage(&db, "a").await, used(1, 1000, &[2]), "at once, before anything is cleared up");
    assert_eq!(remove(9, Some("a")).await.unwrap(), RemovedClaims::default());
    remove(8, None).await.unwrap();
    assert_eq!((usage(&db, "a").await, usage(&db, "c").await), (Usage::default(), Usage::default()));
    assert_eq!(usage(&db, "b").await, used(1, 1000, &[2]));
    while db.sweep_removed(NOW).await.unwrap() {}
    assert_eq!(usage(&db, "b").await, used(1, 1000, &[2]));
}

async fn a_registration_that_tells_nothing_new_costs_nothing_even_beyond_the_limit(db: Db) {
    stocked(&db).await;
    db.register(&limited("a", &Allowance::default(), &[10, 20])).await.unwrap();
    let tight = own(Limits { file_count: Some(1), logical_len: Some(1), physical_len: Some(1) });
    assert_eq!(db.register(&limited("a", &tight, &[10, 20, 10])).await.unwrap(), Registered::Known);
    assert_eq!(usage(&db, "a").await, used(2, 2000, &[1, 2]));
    // The same file twice in one shard is one file.
    let one = own(Limits { file_count: Some(1), ..Limits::default() });
    assert_eq!(db.register(&limited("b", &one, &[10, 10])).await.unwrap(), Registered::New);
    assert_eq!(usage(&db, "b").await, used(1, 1000, &[1]));
}

async fn each_limit_is_reached_and_not_exceeded_and_a_refusal_changes_nothing(db: Db) {
    stocked(&db).await;
    let none = Limits::default();
    let cases = [
        (Quantity::Files, Limits { file_count: Some(3), ..none }, 3, 2, 1),
        (Quantity::LogicalBytes, Limits { logical_len: Some(3000), ..none }, 3000, 2000, 1000),
        (
            Quantity::PhysicalBytes,
            Limits { physical_len: Some(len(&[1, 2])), ..none },
            len(&[1, 2]),
            len(&[1]),
            len(&[2]),
        ),
    ];
    for (index, (quantity, limits, limit, used, one)) in cases.into_iter().enumerate() {
        let repo = format!("a/{index}");
        let allowance = own(limits);
        assert_eq!(db.register(&limited(&repo, &allowance, &[10, 11])).await.unwrap(), Registered::New);
        let before = usage(&db, &repo).await;
        // Two more at once are too many, whatever one of them would be.
        let refused = db.register(&limited(&repo, &allowance, &[20, 30])).await.unwrap();
        let excess = Excess { is_owner_wide: false, quantity, limit, used, added: 2 * one };
        assert_eq!(refused, Registered::OverQuota(excess));
        assert_eq!(usage(&db, &repo).await, before);
        let reader = Reader::Repo(repo.clone());
        assert_eq!(db.find_file(file_hash(20), reader.clone(), None).await.unwrap(), None);
        assert_eq!(db.register(&limited(&repo, &allowance, &[20])).await.unwrap(), Registered::New, "at the limit");
        let refused = db.register(&limited(&repo, &allowance, &[30])).await.unwrap();
        let excess = Excess { is_owner_wide: false, quantity, limit, used: limit, added: one };
        assert_eq!(refused, Registered::OverQuota(excess));
        assert!(db.find_file(file_hash(20), reader.clone(), None).await.unwrap().is_some());
        // What is removed makes room.
        db.remove_claims(file_hash(20), Some(repo.clone()), NOW).await.unwrap();
        assert_eq!(db.register(&limited(&repo, &allowance, &[30])).await.unwrap(), Registered::New);
        db.remove_claims(file_hash(30), Some(repo), NOW).await.unwrap();
    }
    let nobody = db.find_file(file_hash(20), Reader::All, None).await.unwrap();
    assert_eq!(nobody, None, "it was there for those only who were not refused");
}

async fn what_is_exceeded_already_refuses_only_what_adds_to_it(db: Db) {
    stocked(&db).await;
    db.register(&limited("a", &Allowance::default(), &[10, 20])).await.unwrap();
    let lowered = own(Limits { physical_len: Some(1), ..Limits::default() });
    assert_eq!(db.register(&limited("a", &lowered, &[11])).await.unwrap(), Registered::New, "of a xorb that it has");
    assert!(matches!(db.register(&limited("a", &lowered, &[30])).await.unwrap(), Registered::OverQuota(_)));
}

async fn the_limit_of_an_owner_is_for_all_of_its_repositories_together(db: Db) {
    stocked(&db).await;
    let owner = |name: &str, count| {
        let limits = Limits { file_count: Some(count), ..Limits::default() };
        Allowance { repo: Limits::default(), owner: Some((name.to_owned(), limits)) }
    };
    let acme = owner("acme", 3);
    assert_eq!(db.register(&limited("acme/a", &acme, &[10, 20])).await.unwrap(), Registered::New);
    assert_eq!(db.register(&limited("acme/b", &acme, &[10])).await.unwrap(), Registered::New);
    assert_eq!(db.owner_usage("acme".to_owned()).await.unwrap(), used(3, 3000, &[1, 2, 1]));
    let excess = Excess { is_owner_wide: true, quantity: Quantity::Files, limit: 3, used: 3, added: 1 };
    for repo in ["acme/a", "acme/b", "acme/c", "acme"] {
        let refused = db.register(&limited(repo, &acme, &[30])).await.unwrap();
        assert_eq!(refused, Registered::OverQuota(excess), "{repo}");
    }
    // Others are not the same owner, however alike their names are.
    for repo in ["acme/b/c", "acm/e", "acmee/a"] {
        db.register(&limited(repo, &Allowance::default(), &[30])).await.unwrap();
    }
    assert_eq!(db.owner_usage("acme".to_owned()).await.unwrap().file_count, 3);
    db.remove_claims(file_hash(20), Some("acme/a".to_owned()), NOW).await.unwrap();
    assert_eq!(db.register(&limited("acme/c", &acme, &[30])).await.unwrap(), Registered::New);
    // The own limit counts as well.
    let both = Allowance { repo: Limits { file_count: Some(0), ..Limits::default() }, ..owner("acme", 9) };
    let refused = db.register(&limited("acme/d", &both, &[30])).await.unwrap();
    assert!(matches!(refused, Registered::OverQuota(Excess { is_owner_wide: false, .. })), "{refused:?}");
}

async fn of_two_registrations_at_the_limit_one_wins(db: Db) {
    stocked(&db).await;
    let allowance = own(Limits { file_count: Some(1), ..Limits::default() });
    let tries = [10, 20, 30, 40].map(|number| limited("a", &allowance, &[number]));
    let mut won = 0;
    for outcome in join_all(tries.iter().map(|registration| db.register(registration))).await {
        match outcome.unwrap() {
            Registered::New => won += 1,
            refused => {
                assert!(matches!(refused, Registered::OverQuota(Excess { used: 1, added: 1, .. })), "{refused:?}")
            }
        }
    }
    assert_eq!((won, usage(&db, "a").await.file_count), (1, 1));
}

async fn usages_are_listed_in_pages_by_name(db: Db) {
    stocked(&db).await;
    for repo in ["b", "*", "a/x", "ä"] {
        db.register(&limited(repo, &Allowance::default(), &[10])).await.unwrap();
    }
    db.register(&limited("gone", &Allowance::default(), &[20])).await.unwrap();
    db.remove_claims(file_hash(20), None, NOW).await.unwrap();
    for limit in 1..6 {
        let (mut listed, mut after): (Vec<RepoUsage>, _) = (Vec::new(), None);
        loop {
            let page = db.usages_after(after, limit).await.unwrap();
            assert!(page.len() <= limit as usize);
            let Some(last) = page.last() else { break };
            after = Some(last.repo.clone());
            listed.extend(page);
        }
        let expected =
            ["*", "a/x", "b", "ä"].map(|repo| RepoUsage { repo: repo.to_owned(), usage: used(1, 1000, &[1]) });
        assert_eq!(listed, expected, "limit {limit}");
    }
}

/// What repositories claim, as a model that knows no database.
#[derive(Default)]
struct Model {
    /// Of each file its xorbs, its bytes, and who has it.
    files: BTreeMap<u8, (Vec<u8>, u64, BTreeSet<&'static str>)>,
}

impl Model {
    fn usage(&self, repo: &str) -> Usage {
        let claimed: Vec<_> = self.files.values().filter(|(.., repos)| repos.contains(repo)).collect();
        let xorbs: BTreeSet<u8> = claimed.iter().flat_map(|(xorbs, ..)| xorbs.iter().copied()).collect();
        let xorbs: Vec<u8> = xorbs.into_iter().collect();
        used(claimed.len() as u64, claimed.iter().map(|(_, len, _)| len).sum(), &xorbs)
    }
}

const REPOS: [&str; 4] = ["acme/a", "acme/b", "other/c", "*"];

async fn what_is_kept_is_what_there_is_after_anything(db: Db) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    stocked(&db).await;
    let mut model = Model::default();
    for step in 0..400 {
        let (number, repo) = (rng.random_range(100..120), REPOS[rng.random_range(0..REPOS.len())]);
        // Different files of the same number, so that the second one finds the terms of the first.
        let xorbs: Vec<u8> = (0..rng.random_range(0..4)).map(|_| rng.random_range(1..9)).collect();
        let terms: Vec<_> = xorbs.iter().map(|xorb| term(*xorb, 0, rng.random_range(1..3))).collect();
        let new = file(number, &terms);
        match rng.random_range(0..10) {
            0..5 => {
                let limits = Limits { file_count: Some(rng.random_range(0..12)), ..Limits::default() };
                let allowance = own(if rng.random_bool(0.5) { limits } else { Limits::default() });
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
                let is_gone = model.files.get_mut(&number).is_some_and(|(.., repos)| {
                    let was_removed = repos.remove(repo);
                    all || was_removed && repos.is_empty()
                });
                if is_gone {
                    model.files.remove(&number);
                }
            }
            8 => {
                db.sweep_removed(NOW).await.unwrap();
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
                    owners: Vec::new(),
                };
                db.restore_files(vec![RestoredFile { record, dedup: Vec::new() }]).await.unwrap();
                model.files.insert(number, (xorbs, new.raw_len, repos));
            }
        }
        for repo in REPOS {
            assert_eq!(usage(&db, repo).await, model.usage(repo), "{repo} after step {step}");
        }
    }
}

/// A database of the schema before usage was kept, with some files.
async fn old_database(path: &std::path::Path) {
    use sqlx::{Connection, SqliteConnection, raw_sql};
    let old: Vec<_> = SQLITE.iter().filter(|(version, ..)| *version < 8).copied().collect();
    let mut connection = SqliteConnection::connect(&format!("sqlite://{}?mode=rwc", path.display())).await.unwrap();
    migrator(&old).run(&mut connection).await.unwrap();
    let sql = "INSERT INTO xorbs (id, hash, state, since, ticket, serialized_len, raw_len, crc64, layout) VALUES \
             (1, zeroblob(32), 1, 0, 0, 100, 1, 0, x'00'), (2, randomblob(32), 1, 0, 0, 10, 1, 0, x'00'); \
         INSERT INTO files (id, hash, raw_len, since) VALUES \
             (1, randomblob(32), 7, 0), (2, randomblob(32), 5, 0), (3, randomblob(32), 3, 0); \
         INSERT INTO xorb_files VALUES (1, 1), (1, 2), (2, 2), (2, 3); \
         INSERT INTO file_repos (file_id, repo) VALUES (1, 'acme/a'), (2, 'acme/a'), (2, 'acme/b');";
    raw_sql(sql).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

#[tokio::test]
async fn an_index_of_an_older_schema_is_counted_when_it_is_brought_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index.sqlite");
    old_database(&path).await;
    let index = SqliteIndex::open(&path).await.unwrap();
    let of = async |repo: &str| index.repo_usage(repo.to_owned()).await.unwrap();
    assert_eq!(of("acme/a").await, Usage { file_count: 2, logical_len: 12, physical_len: 110 });
    assert_eq!(of("acme/b").await, Usage { file_count: 1, logical_len: 5, physical_len: 110 });
    assert_eq!(index.owner_usage("acme".to_owned()).await.unwrap().physical_len, 220);
    let [kept, counted] = index.recounted().await;
    assert!(kept.len() > 5, "{kept:?}");
    assert_eq!(kept, counted);
    index.close().await;
}

#[tokio::test]
async fn usage_follows_whatever_is_done_to_claims_and_references_and_a_row_that_would_move_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index.sqlite");
    old_database(&path).await;
    let index = SqliteIndex::open(&path).await.unwrap();
    // What a compaction, a heal, a repair and a rebuild do, in orders that none of them takes.
    for sql in [
        "INSERT INTO xorb_files VALUES (2, 1)",
        "DELETE FROM xorb_files WHERE xorb_id = 1 AND file_id = 1",
        "UPDATE xorbs SET serialized_len = 33 WHERE id = 1",
        "UPDATE xorbs SET serialized_len = 44, state = 1",
        "INSERT OR IGNORE INTO file_repos (file_id, repo) VALUES (3, 'acme/b'), (1, 'acme/a'), (3, '*')",
        "DELETE FROM xorb_files WHERE file_id = 2",
        "INSERT INTO xorb_files VALUES (2, 2)",
        "UPDATE file_repos SET has_claimed = 1",
        "DELETE FROM files WHERE id = 2",
        "DELETE FROM file_repos WHERE repo = 'acme/b'",
        "DELETE FROM files",
    ] {
        let before = index.recounted().await;
        assert!(index.is_let(sql).await, "{sql}");
        let [kept, counted] = index.recounted().await;
        assert_eq!(kept, counted, "{sql}");
        let is_idle = sql.contains("has_claimed");
        assert_eq!(kept == before[0], is_idle, "{sql} shows");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index.sqlite");
    old_database(&path).await;
    let index = SqliteIndex::open(&path).await.unwrap();
    assert!(!index.is_let("UPDATE file_repos SET repo = 'x' WHERE repo = 'acme/b'").await);
    assert!(!index.is_let("UPDATE xorb_files SET xorb_id = 2 WHERE xorb_id = 1").await);
    assert!(!index.is_let("UPDATE files SET hash = randomblob(32) WHERE id = 1").await);
    let [kept, counted] = index.recounted().await;
    assert_eq!(kept, counted);
}
