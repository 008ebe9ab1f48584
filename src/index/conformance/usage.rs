//! Tests of [`UsageIndex`](crate::index::UsageIndex) and of the limits of a registration: what
//! counts as usage, and what is refused.

pub(super) mod model;

use std::collections::BTreeSet;

use futures_util::future::join_all;

use super::files::{file, file_hash, registration, sha256, term};
use super::{Db, NOW, SqliteIndex, put, xorb};
use crate::index::{
    Allowance, Excess, Limits, NewFile, NewXorb, Quantity, Reader, Registered, Registration, RemovedClaims, RepoUsage,
    Usage,
};

suite_in_steps! {
    repository_counts_its_files_and_each_xorb_once
    registration_of_known_files_is_free_beyond_the_limit
    limits_are_reached_not_exceeded_and_refusal_changes_nothing
    exceeded_limit_refuses_only_registrations_that_add_to_it
    limit_of_an_owner_covers_all_its_repositories
    removed_large_file_frees_its_length_at_once_its_xorbs_later
    records_of_files_with_many_terms_are_charged_and_given_back
    usages_are_listed_in_pages_by_name
    the_largest_usages_are_the_first_and_as_many_as_asked_for
    ;
    // Not run in steps: there each registration counts from its first step on, so all of them may be
    // refused.
    of_several_registrations_at_the_limit_one_is_accepted
}

/// Xorbs below 5 have the same length, the others differ.
fn sized(byte: u8) -> NewXorb {
    xorb(byte, if byte < 5 { 3 } else { byte })
}

fn len(xorbs: &[u8]) -> u64 {
    xorbs.iter().map(|byte| sized(*byte).layout.serialized_len()).sum()
}

pub(super) async fn usage(db: &Db, repo: &str) -> Usage {
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

/// A registration of files. File number n has one chunk of xorb number n / 10.
fn limited(repo: &str, allowance: &Allowance, files: &[u8]) -> Registration {
    let xorbs: BTreeSet<u8> = files.iter().map(|number| number / 10).collect();
    let files = files.iter().map(|number| file(*number, &[term(number / 10, 0, 1)])).collect();
    let xorbs: Vec<u8> = xorbs.into_iter().collect();
    Registration { allowance: allowance.clone(), ..registration(repo, files, &xorbs) }
}

fn of_repo(repo: Limits) -> Allowance {
    Allowance { repo, owner: None }
}

async fn records_of_files_with_many_terms_are_charged_and_given_back(db: Db) {
    stocked(&db).await;
    // 96 bytes for header and sha256, and 96 bytes for each of 1000 terms: 93 whole KiB.
    let many_terms = || file(9, &[term(1, 0, 1); 1000]);
    let record_len = 93 << 10;
    let with_records =
        |record_len: u64| Usage { file_count: 1, logical_len: 1_000_000, physical_len: len(&[1]) + record_len };
    let within = |physical_len, sha256| {
        let allowance = of_repo(Limits { physical_len: Some(physical_len), ..Limits::default() });
        let new = NewFile { sha256, ..many_terms() };
        Registration { allowance, ..registration("a", vec![new], &[1]) }
    };
    let excess = Registered::OverQuota(Excess {
        is_owner_wide: false,
        quantity: Quantity::PhysicalBytes,
        limit: len(&[1]) + record_len - 1,
        used: 0,
        added: len(&[1]) + record_len,
    });
    assert_eq!(db.register(&within(len(&[1]) + record_len - 1, None)).await.unwrap(), excess);
    assert_eq!(db.register(&within(len(&[1]) + record_len, None)).await.unwrap(), Registered::New);
    assert_eq!(usage(&db, "a").await, with_records(record_len));
    // A repeated registration has no record, so the repository is not charged.
    assert_eq!(db.register(&within(0, None)).await.unwrap(), Registered::Known);
    // A new claim of a sha256 has a record of its own.
    let claimed = |physical_len| within(physical_len, Some(sha256(1)));
    assert!(matches!(db.register(&claimed(len(&[1]) + record_len)).await.unwrap(), Registered::OverQuota(_)));
    assert_eq!(db.register(&claimed(u64::MAX)).await.unwrap(), Registered::Added);
    assert_eq!(usage(&db, "a").await, with_records(2 * record_len));
    db.register(&registration("b", vec![many_terms()], &[1])).await.unwrap();
    assert_eq!(usage(&db, "b").await, with_records(record_len));
    for repo in ["a", "b"] {
        db.remove_claims(file_hash(9), Some(repo.to_owned()), NOW).await.unwrap();
        assert_eq!(usage(&db, repo).await, Usage::default(), "{repo}");
    }
}

/// Claims of other repositories have no effect.
async fn repository_counts_its_files_and_each_xorb_once(db: Db) {
    stocked(&db).await;
    let none = Allowance::default();
    assert_eq!(usage(&db, "a").await, Usage::default());
    let two = file(9, &[term(1, 0, 1), term(2, 0, 2), term(1, 1, 2)]);
    db.register(&registration("a", vec![two, file(8, &[term(2, 0, 1)])], &[1, 2])).await.unwrap();
    assert_eq!(usage(&db, "a").await, used(2, 5000, &[1, 2]));
    // Xorbs that a shard lists without a file count for no repository.
    db.register(&registration("a", Vec::new(), &[3])).await.unwrap();
    assert_eq!(usage(&db, "a").await, used(2, 5000, &[1, 2]));
    db.register(&limited("b", &none, &[20])).await.unwrap();
    db.register(&registration("b", vec![file(8, &[term(2, 0, 1)])], &[2])).await.unwrap();
    assert_eq!(usage(&db, "b").await, used(2, 2000, &[2]));
    assert_eq!(usage(&db, "a").await, used(2, 5000, &[1, 2]));

    // The repository is charged for the stored terms of a known file, not for those of a second
    // shard.
    db.register(&registration("c", vec![file(8, &[term(4, 0, 1)])], &[4])).await.unwrap();
    assert_eq!(usage(&db, "c").await, used(1, 1000, &[2]));

    let remove = |byte, repo: Option<&str>| db.remove_claims(file_hash(byte), repo.map(str::to_owned), NOW);
    remove(9, Some("a")).await.unwrap();
    assert_eq!(usage(&db, "a").await, used(1, 1000, &[2]), "at once, before any sweep");
    assert_eq!(remove(9, Some("a")).await.unwrap(), RemovedClaims::default());
    remove(8, None).await.unwrap();
    assert_eq!((usage(&db, "a").await, usage(&db, "c").await), (Usage::default(), Usage::default()));
    assert_eq!(usage(&db, "b").await, used(1, 1000, &[2]));
    while db.sweep_removed(NOW).await.unwrap() {}
    assert_eq!(usage(&db, "b").await, used(1, 1000, &[2]));
}

async fn registration_of_known_files_is_free_beyond_the_limit(db: Db) {
    stocked(&db).await;
    db.register(&limited("a", &Allowance::default(), &[10, 20])).await.unwrap();
    let tight = of_repo(Limits { file_count: Some(1), logical_len: Some(1), physical_len: Some(1) });
    assert_eq!(db.register(&limited("a", &tight, &[10, 20, 10])).await.unwrap(), Registered::Known);
    assert_eq!(usage(&db, "a").await, used(2, 2000, &[1, 2]));
    // The same file twice in one shard is one file.
    let one = of_repo(Limits { file_count: Some(1), ..Limits::default() });
    assert_eq!(db.register(&limited("b", &one, &[10, 10])).await.unwrap(), Registered::New);
    assert_eq!(usage(&db, "b").await, used(1, 1000, &[1]));
}

async fn limits_are_reached_not_exceeded_and_refusal_changes_nothing(db: Db) {
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
        let allowance = of_repo(limits);
        assert_eq!(db.register(&limited(&repo, &allowance, &[10, 11])).await.unwrap(), Registered::New);
        let before = usage(&db, &repo).await;
        // Two more files at once are too many, although each one alone would fit.
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
        // A removal frees its quota.
        db.remove_claims(file_hash(20), Some(repo.clone()), NOW).await.unwrap();
        assert_eq!(db.register(&limited(&repo, &allowance, &[30])).await.unwrap(), Registered::New);
        db.remove_claims(file_hash(30), Some(repo), NOW).await.unwrap();
    }
    let found = db.find_file(file_hash(20), Reader::All, None).await.unwrap();
    assert_eq!(found, None, "it was removed again");
}

async fn exceeded_limit_refuses_only_registrations_that_add_to_it(db: Db) {
    stocked(&db).await;
    db.register(&limited("a", &Allowance::default(), &[10, 20])).await.unwrap();
    let lowered = of_repo(Limits { physical_len: Some(1), ..Limits::default() });
    assert_eq!(
        db.register(&limited("a", &lowered, &[11])).await.unwrap(),
        Registered::New,
        "the xorb is counted already"
    );
    assert!(matches!(db.register(&limited("a", &lowered, &[30])).await.unwrap(), Registered::OverQuota(_)));
}

async fn limit_of_an_owner_covers_all_its_repositories(db: Db) {
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
    // Owners with similar names are not the same.
    for repo in ["acme/b/c", "acm/e", "acmee/a"] {
        db.register(&limited(repo, &Allowance::default(), &[30])).await.unwrap();
    }
    assert_eq!(db.owner_usage("acme".to_owned()).await.unwrap().file_count, 3);
    db.remove_claims(file_hash(20), Some("acme/a".to_owned()), NOW).await.unwrap();
    assert_eq!(db.register(&limited("acme/c", &acme, &[30])).await.unwrap(), Registered::New);
    // If both have limits, the limit of the repository holds, too.
    let both = Allowance { repo: Limits { file_count: Some(0), ..Limits::default() }, ..owner("acme", 9) };
    let refused = db.register(&limited("acme/d", &both, &[30])).await.unwrap();
    assert!(matches!(refused, Registered::OverQuota(Excess { is_owner_wide: false, .. })), "{refused:?}");
}

async fn of_several_registrations_at_the_limit_one_is_accepted(db: Db) {
    stocked(&db).await;
    let allowance = of_repo(Limits { file_count: Some(1), ..Limits::default() });
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

/// The xorbs of a large file are credited in steps. In unit tests eight xorbs are enough for several
/// steps.
async fn removed_large_file_frees_its_length_at_once_its_xorbs_later(db: Db) {
    const COUNT: u8 = 8;
    stocked(&db).await;
    let (all, none): (Vec<u8>, _) = ((1..=COUNT).collect(), Allowance::default());
    let large = file(9, &all.iter().map(|xorb| term(*xorb, 0, 1)).collect::<Vec<_>>());
    for repo in ["a", "b"] {
        db.register(&registration(repo, vec![large.clone()], &all)).await.unwrap();
    }
    db.register(&limited("a", &none, &[20])).await.unwrap();
    let listed = async |repo: &str| {
        let reader = Reader::Repo(repo.to_owned());
        db.files_after(reader, None, 10).await.unwrap().into_iter().map(|file| file.hash).collect::<Vec<_>>()
    };
    assert_eq!(listed("a").await.len(), 2);
    let removed = db.remove_claims(file_hash(9), Some("a".to_owned()), NOW).await.unwrap();
    let used_by_a = usage(&db, "a").await;
    assert_eq!((removed.is_file_removed, used_by_a.file_count, used_by_a.logical_len), (false, 1, 1000), "b has it");
    while db.sweep_removed(NOW).await.unwrap() {}
    assert_eq!(usage(&db, "a").await, used(1, 1000, &[2]));
    assert_eq!(usage(&db, "b").await, used(1, 8000, &all));

    db.register(&registration("a", vec![large.clone()], &all)).await.unwrap();
    let removed = db.remove_claims(file_hash(9), None, NOW).await.unwrap();
    assert_eq!((removed.repos, removed.is_file_removed), (vec!["a".to_owned(), "b".to_owned()], true));
    let (a, b) = (usage(&db, "a").await, usage(&db, "b").await);
    assert_eq!(((a.file_count, a.logical_len), (b.file_count, b.logical_len)), ((1, 1000), (0, 0)));
    assert_eq!((listed("a").await, listed("b").await), (vec![file_hash(20)], vec![]));
    assert_eq!(db.remove_claims(file_hash(9), None, NOW).await.unwrap(), RemovedClaims::default());

    // A new registration of the removed file makes a new row, which stays.
    db.register(&registration("b", vec![large.clone()], &all)).await.unwrap();
    assert_eq!(usage(&db, "b").await, used(1, 8000, &all), "each xorb once");
    while db.sweep_removed(NOW).await.unwrap() {}
    assert_eq!((usage(&db, "a").await, usage(&db, "b").await), (used(1, 1000, &[2]), used(1, 8000, &all)));
    assert_eq!(listed("b").await, [file_hash(9)]);
    db.remove_claims(file_hash(9), Some("b".to_owned()), NOW).await.unwrap();
    while db.sweep_removed(NOW).await.unwrap() {}
    assert_eq!(usage(&db, "b").await, Usage::default());
    let names: Vec<_> = db.usages_after(None, 10).await.unwrap().into_iter().map(|usage| usage.repo).collect();
    assert_eq!(names, ["a"], "nothing is left of b");
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

async fn the_largest_usages_are_the_first_and_as_many_as_asked_for(db: Db) {
    stocked(&db).await;
    for (repo, files) in [("small", &[10][..]), ("large", &[20, 10]), ("other", &[10]), ("gone", &[30])] {
        db.register(&limited(repo, &Allowance::default(), files)).await.unwrap();
    }
    db.remove_claims(file_hash(30), None, NOW).await.unwrap();
    let all = db.largest_usages(10).await.unwrap();
    let names: Vec<_> = all.iter().map(|usage| usage.repo.as_str()).collect();
    assert_eq!(names, ["large", "other", "small"]);
    for usage in &all {
        assert_eq!(usage.usage, db.repo_usage(usage.repo.clone()).await.unwrap(), "{}", usage.repo);
    }
    for limit in 0..4 {
        assert_eq!(db.largest_usages(limit).await.unwrap(), all[..limit as usize], "limit {limit}");
    }
}
