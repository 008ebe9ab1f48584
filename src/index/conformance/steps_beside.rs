//! The contract on registrations in steps while other methods change the same files and limits, and
//! on those that only the stored files make long.

use std::sync::Arc;

use super::backends::{Backend, TestIndex};
use super::files::{file, file_hash, reader, registration, sha256, term};
use super::steps::{WHOLE, clear, several, shared_file, stocked, take};
use super::usage::usage;
use super::{Db, NOW, SqliteIndex, hash};
use crate::format::shard::Term;
use crate::index::{
    Cursor, FileSwitch, IndexErrorKind, Limits, NewFile, Registered, Registration, RunSwitch, Switched, Usage,
};

suite! {
    registration_that_lost_rows_to_another_cannot_be_published
    compaction_sees_no_file_of_an_unpublished_registration
    each_step_must_fit_the_limit_after_removals
    short_terms_of_a_file_in_many_xorbs_are_charged_in_steps
    a_short_claim_to_a_file_in_many_xorbs_is_discarded_in_steps
    small_known_files_are_claimed_in_one_transaction
    file_that_only_ended_registrations_claim_is_removed
    removed_file_does_not_take_over_a_claimed_sha256
}

suite_with_hooks! {
    file_whose_last_claim_was_abandoned_is_registered_as_new
}

/// Locks of files prevent this within a process. Between processes, nothing else does.
async fn registration_that_lost_rows_to_another_cannot_be_published(db: Db) {
    stocked(&db).await;
    let new = several("org/a");
    // First the files are discarded, then the claims to files of another repository.
    for other in [several("org/b"), several("org/a")] {
        let begun = db.begin_registration(&new).await.unwrap();
        assert_eq!(take(&db, begun, &new, Cursor::start(&new), 100).await, None);
        assert_eq!(db.register(&other).await.unwrap(), Registered::New);
        let lost = db.publish_registration(begun, None).await.unwrap_err();
        assert_eq!(lost.kind, IndexErrorKind::Lost);
        clear(&db).await;
        for file in &other.files {
            let found = db.find_file(file.hash, reader(&other.repo), WHOLE).await.unwrap().unwrap();
            assert_eq!(found.terms, file.terms);
        }
    }
}

async fn compaction_sees_no_file_of_an_unpublished_registration(db: Db) {
    stocked(&db).await;
    let new = several("org/a");
    let begun = db.begin_registration(&new).await.unwrap();
    let (mut next, mut tried_count) = (Some(Cursor::start(&new)), 0);
    while let Some(from) = next {
        next = take(&db, begun, &new, from, 1).await;
        assert_eq!(db.terms_of(file_hash(60)).await.unwrap(), []);
        assert_eq!(db.files_of(hash(1), 0, 9).await.unwrap().files, []);
        let rows = db.term_rows(0, 100).await.unwrap().rows;
        let Some(row) = rows.into_iter().find(|row| row.file == file_hash(60)) else { continue };
        let after = row.terms.iter().map(|term| Term { xorb: hash(4), ..*term }).collect();
        let switch = FileSwitch { file: row.file, runs: vec![RunSwitch { row: row.row, before: row.terms, after }] };
        let switched = db.switch_terms_of(&[switch], NOW, None).await.unwrap();
        assert_eq!(switched, Switched::Other(file_hash(60)));
        tried_count += 1;
    }
    assert!(tried_count > 1, "{tried_count} switches were tried");
    db.publish_registration(begun, None).await.unwrap();
    assert_eq!(db.files_of(hash(1), 0, 9).await.unwrap().files.len(), 4);
}

async fn each_step_must_fit_the_limit_after_removals(db: Db) {
    stocked(&db).await;
    let old = registration("org/a", (70..74).map(|byte| file(byte, &[term(1, 0, 2)])).collect(), &[1]);
    db.register(&old).await.unwrap();
    let mut new = registration("org/a", (50..52).map(|byte| file(byte, &[term(1, 0, 2)])).collect(), &[1]);
    new.allowance.repo = Limits { file_count: Some(3), ..Limits::default() };
    // It begins above its limit. After the removals, one file fits and two do not.
    let begun = db.begin_registration(&new).await.unwrap();
    for byte in [70, 71] {
        db.remove_claims_of(file_hash(byte), Some("org/a".to_owned()), NOW, None).await.unwrap();
    }
    let next = take(&db, begun, &new, Cursor::start(&new), 1).await.unwrap();
    let refused = db.write_step(begun, &new, next).await.unwrap();
    assert!(matches!(refused.outcome, Registered::OverQuota(excess) if excess.limit == 3), "{refused:?}");
    assert_eq!(usage(&db, "org/a").await.file_count, 3);
}

/// Steps to the end. Returns what the repository was charged for xorbs before and after each step.
async fn charges(db: &Db, new: &Registration) -> Vec<u64> {
    let begun = db.begin_registration(new).await.unwrap();
    let mut charges = vec![usage(db, &new.repo).await.physical_len];
    let mut next = Some(Cursor::start(new));
    while let Some(from) = next {
        next = take(db, begun, new, from, 1).await;
        charges.push(usage(db, &new.repo).await.physical_len);
    }
    db.publish_registration(begun, None).await.unwrap();
    clear(db).await;
    charges.dedup();
    charges
}

/// The file that `org/a` has in four xorbs, with one term, as a client of `org/b` has packed it.
async fn packed_otherwise(db: &Db) -> Registration {
    shared_file(db, &["org/a"]).await;
    registration("org/b", vec![file(60, &[term(1, 0, 8)])], &[1])
}

async fn short_terms_of_a_file_in_many_xorbs_are_charged_in_steps(db: Db) {
    let new = packed_otherwise(&db).await;
    let whole = usage(&db, "org/a").await;
    assert_eq!(db.register_of(&new, Some(1)).await.unwrap(), None, "one transaction would be too long");
    assert_eq!(usage(&db, "org/b").await, Usage::default());
    assert_eq!(db.readers_of(file_hash(60)).await.unwrap().len(), 1);
    let charges = charges(&db, &new).await;
    assert!(charges.len() == 3 && charges.is_sorted(), "two parts: {charges:?}");
    assert_eq!(usage(&db, "org/b").await, whole);
    assert_eq!(db.readers_of(file_hash(60)).await.unwrap().len(), 2);
    assert_eq!(db.register_of(&new, None).await.unwrap(), Some(Registered::Known));
}

async fn a_short_claim_to_a_file_in_many_xorbs_is_discarded_in_steps(db: Db) {
    let new = packed_otherwise(&db).await;
    let whole = usage(&db, "org/a").await;
    let begun = db.begin_registration(&new).await.unwrap();
    assert_eq!(take(&db, begun, &new, Cursor::start(&new), 100).await, None);
    db.abandon_registrations(Some(begun.id)).await.unwrap();
    assert_eq!(db.register_of(&new, None).await.unwrap(), None);
    let charges = charges(&db, &new).await;
    let all = whole.physical_len;
    assert!(charges.len() == 5 && charges[0] == all && charges[2] == 0 && charges[4] == all, "{charges:?}");
    assert_eq!(usage(&db, "org/b").await, whole);
}

async fn small_known_files_are_claimed_in_one_transaction(db: Db) {
    stocked(&db).await;
    let files = || (70..72).map(|byte| file(byte, &[term(1, 0, 1), term(2, 0, 1)])).collect();
    assert_eq!(db.register(&registration("org/a", files(), &[1, 2])).await.unwrap(), Registered::New);
    let new = registration("org/b", files(), &[1, 2]);
    assert_eq!(db.register_of(&new, None).await.unwrap(), Some(Registered::New));
    assert_eq!(usage(&db, "org/b").await, usage(&db, "org/a").await);
    assert_eq!(db.register_of(&new, None).await.unwrap(), Some(Registered::Known));
}

/// Not as a known one, whose row is removed with the abandoned claim. In older versions the removal
/// of the last visible claim left the file.
async fn file_whose_last_claim_was_abandoned_is_registered_as_new<B: Backend>() {
    let (_place, index) = B::fresh().await;
    let db: Db = Arc::new(index.clone());
    stocked(&db).await;
    let none = usage(&db, "org/b").await;
    let of = |repo: &str| {
        let claimed = NewFile { sha256: Some(sha256(9)), ..file(50, &[term(1, 0, 2)]) };
        registration(repo, vec![claimed], &[1])
    };
    for is_same in [true, false] {
        db.register(&of("org/a")).await.unwrap();
        let abandoned = of(if is_same { "org/b" } else { "org/c" });
        let begun = db.begin_registration(&abandoned).await.unwrap();
        take(&db, begun, &abandoned, Cursor::start(&abandoned), 9).await;
        index.tamper("DELETE FROM file_repos WHERE repo = 'org/a'").await;
        db.abandon_registrations(Some(begun.id)).await.unwrap();

        // Before the sweep has deleted the rows.
        assert_eq!(db.register(&of("org/b")).await.unwrap(), Registered::New);
        clear(&db).await;
        assert!(db.find_file(file_hash(50), reader("org/b"), WHOLE).await.unwrap().is_some());
        assert_eq!(db.readers_of(file_hash(50)).await.unwrap(), [("org/b".to_owned(), true)]);
        db.remove_claims(file_hash(50), Some("org/b".to_owned()), NOW).await.unwrap();
        clear(&db).await;
        assert_eq!(usage(&db, "org/b").await, none);
    }
}

/// If it stayed, a third repository would get its terms without a record of them.
async fn file_that_only_ended_registrations_claim_is_removed(db: Db) {
    stocked(&db).await;
    let none = usage(&db, "org/b").await;
    // With two xorbs it is small, and with four it is swept in steps.
    for count in [2, 4] {
        let terms: Vec<_> = (1..=count).map(|byte| term(byte, 0, 1)).collect();
        let of = |repo: &str| registration(repo, vec![file(50, &terms)], &[]);
        db.register(&of("org/a")).await.unwrap();
        for (repo, is_abandoned) in [("org/b", false), ("org/c", true)] {
            let new = of(repo);
            let begun = db.begin_registration(&new).await.unwrap();
            take(&db, begun, &new, Cursor::start(&new), 1).await;
            if is_abandoned {
                db.abandon_registrations(Some(begun.id)).await.unwrap();
            }
        }
        let removed = db.remove_claims(file_hash(50), Some("org/a".to_owned()), NOW).await.unwrap();
        assert!(removed.is_file_removed, "{count}");
        let other = registration("org/d", vec![file(50, &[term(3, 0, 2)])], &[]);
        assert_eq!(db.register(&other).await.unwrap(), Registered::New);
        clear(&db).await;
        let found = db.find_file(file_hash(50), reader("org/d"), WHOLE).await.unwrap().unwrap();
        assert_eq!(found.terms, [term(3, 0, 2)]);
        assert_eq!(db.readers_of(file_hash(50)).await.unwrap(), [("org/d".to_owned(), false)]);
        assert_eq!(usage(&db, "org/b").await, none);
        db.remove_claims(file_hash(50), Some("org/d".to_owned()), NOW).await.unwrap();
        clear(&db).await;
    }
}

/// It could be found by it, and a commit could name it, while its terms are being deleted.
async fn removed_file_does_not_take_over_a_claimed_sha256(db: Db) {
    stocked(&db).await;
    let terms: Vec<_> = (1..=4).map(|byte| term(byte, 0, 1)).collect();
    let claiming = |repo: &str, digest: Option<u8>| {
        registration(repo, vec![NewFile { sha256: digest.map(sha256), ..file(50, &terms) }], &[])
    };
    db.register(&claiming("org/a", None)).await.unwrap();
    let ended = claiming("org/b", Some(8));
    let begun = db.begin_registration(&ended).await.unwrap();
    take(&db, begun, &ended, Cursor::start(&ended), 9).await;
    assert_eq!(db.register(&claiming("org/a", Some(9))).await.unwrap(), Registered::Added);
    assert!(db.remove_claims(file_hash(50), Some("org/a".to_owned()), NOW).await.unwrap().is_file_removed);
    let is_found = async || db.find_sha256(sha256(9), reader("org/a")).await.unwrap().is_some();
    while db.sweep_registrations(None, NOW).await.unwrap() || db.sweep_removed(NOW).await.unwrap() {
        assert!(!is_found().await);
    }
}
