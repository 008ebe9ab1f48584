//! The contract on registrations in steps.

use super::files::{file, file_hash, reader, registration, sha256, term};
use super::usage::usage;
use super::{ANY_LEN, Db, NOW, SqliteIndex, hash, put, xorb};
use crate::format::{ByteRange, ChunkHash};
use crate::index::{
    Cursor, IndexErrorKind, Limits, NewFile, OpenRegistration, Reader, Registered, Registration, Usage, XorbLife,
};
use crate::runtime::clock::Timestamp;

suite! {
    steps_are_seen_by_no_reader_before_they_are_published
    a_known_file_is_as_it_was_until_a_registration_is_published
    an_abandoned_registration_leaves_nothing_behind
    xorbs_of_a_discarded_registration_are_touched
    abandoned_claim_leaves_the_file_to_other_repositories
    an_abandoned_registration_cannot_be_published
    a_published_registration_cannot_be_abandoned
    leftovers_of_a_dead_registration_are_replaced
    a_step_that_exceeds_a_quota_changes_nothing
    a_step_without_its_xorb_changes_nothing
    unpublished_files_count_for_their_repository
    xorbs_of_an_unpublished_registration_are_not_condemned
    a_known_large_file_is_charged_in_parts
    a_removed_claim_to_a_large_file_is_credited_in_parts
    a_large_file_is_registered_again_while_its_removal_is_swept
    large_file_is_removed_with_its_last_claim
}

pub(super) const WHOLE: Option<ByteRange> = ByteRange::new(0, u64::MAX);

/// Small files, a large one, and a xorb that no file names.
pub(super) fn several(repo: &str) -> Registration {
    let small = |byte| NewFile { sha256: Some(sha256(byte)), ..file(byte, &[term(1, 0, 2)]) };
    let large = file(60, &[term(1, 0, 1), term(2, 0, 2), term(3, 1, 3), term(1, 1, 3), term(2, 1, 2)]);
    let files = vec![small(50), small(51), large, small(52)];
    Registration { dedup: vec![(ChunkHash::from_bytes([1; 32]), hash(1))], ..registration(repo, files, &[1, 2, 3, 4]) }
}

pub(super) async fn stocked(db: &Db) {
    for byte in 1..=4 {
        put(db, xorb(byte, 3)).await;
    }
}

/// Writes up to `count` steps. Returns where the next one begins; `None` if all are written.
pub(super) async fn take(
    db: &Db,
    begun: OpenRegistration,
    new: &Registration,
    from: Cursor,
    count: usize,
) -> Option<Cursor> {
    let mut next = Some(from);
    for _ in 0..count {
        let Some(from) = next else { break };
        let step = db.write_step(begun, new, from).await.unwrap();
        assert!(matches!(step.outcome, Registered::New | Registered::Known | Registered::Added), "{step:?}");
        next = step.next;
    }
    next
}

/// Sweeps finished registrations and removed files to the end.
pub(super) async fn clear(db: &Db) {
    while db.sweep_registrations(None, NOW).await.unwrap() {}
    while db.sweep_removed(NOW).await.unwrap() {}
}

/// Counts all ways in which the files of `new` are visible.
async fn seen_count(db: &Db, new: &Registration) -> usize {
    let own = reader(&new.repo);
    let mut count = 0;
    for file in &new.files {
        count += usize::from(db.find_file(file.hash, Reader::All, WHOLE).await.unwrap().is_some());
        count += usize::from(db.find_file(file.hash, own.clone(), WHOLE).await.unwrap().is_some());
        if let Some(sha256) = file.sha256 {
            count += usize::from(db.find_sha256(sha256, own.clone()).await.unwrap().is_some());
        }
        count += usize::from(db.unverified_sha256(file.hash).await.unwrap().is_some());
        count += db.readers_of(file.hash).await.unwrap().len();
    }
    let hashes = new.files.iter().map(|file| file.hash).collect();
    count += db.claimed_files(hashes, new.repo.clone()).await.unwrap().len();
    count += db.files_after(Reader::All, None, 100).await.unwrap().len();
    count += db.files_after(own, None, 100).await.unwrap().len();
    count += db.unverified_claims(ANY_LEN, None, 100).await.unwrap().len();
    count += usize::from(db.next_claimant(ANY_LEN, None).await.unwrap().is_some());
    count += db.sha256_claims_of(new.repo.clone(), ANY_LEN, None, 100).await.unwrap().len();
    count + db.file_records(None).await.unwrap().len()
}

async fn steps_are_seen_by_no_reader_before_they_are_published(db: Db) {
    stocked(&db).await;
    let new = several("org/a");
    let begun = db.begin_registration(&new).await.unwrap();
    let (mut next, mut step_count) = (Some(Cursor::start(&new)), 0);
    while let Some(from) = next {
        next = take(&db, begun, &new, from, 1).await;
        step_count += 1;
        assert_eq!(seen_count(&db, &new).await, 0, "after step {step_count}");
    }
    assert!(step_count > 6, "{step_count} steps");
    db.publish_registration(begun, Some(7)).await.unwrap();
    // 4 files are visible to two readers each, and have one repository. 3 files are found by their
    // sha256, and have an unverified one. The other numbers are the lengths of lists.
    assert_eq!(seen_count(&db, &new).await, 3 * 4 + 2 * 3 + 4 + 2 * 4 + 3 + 1 + 3 + 4);
    assert_eq!(db.store_mark().await.unwrap().last_record, Some(7));
    for file in &new.files {
        let found = db.find_file(file.hash, reader("org/a"), WHOLE).await.unwrap().unwrap();
        assert_eq!((found.raw_len, found.terms), (file.raw_len, file.terms.clone()));
    }
    clear(&db).await;
    assert_eq!(db.register(&new).await.unwrap(), Registered::Known);
}

async fn a_known_file_is_as_it_was_until_a_registration_is_published(db: Db) {
    stocked(&db).await;
    let plain = registration("org/a", vec![file(50, &[term(1, 0, 2)])], &[1]);
    db.register(&plain).await.unwrap();
    // The first registration adds a sha256 claim, the second one a claim of another repository.
    for (repo, outcome) in [("org/a", Registered::Added), ("org/b", Registered::New)] {
        let claimed = NewFile { sha256: Some(sha256(9)), ..file(50, &[term(1, 0, 2)]) };
        let new = registration(repo, vec![claimed], &[1]);
        let before = db.readers_of(file_hash(50)).await.unwrap();
        let begun = db.begin_registration(&new).await.unwrap();
        let step = db.write_step(begun, &new, Cursor::start(&new)).await.unwrap();
        assert_eq!(step.outcome, outcome);
        assert_eq!(db.readers_of(file_hash(50)).await.unwrap(), before);
        assert_eq!(db.find_sha256(sha256(9), reader(repo)).await.unwrap(), None);
        assert!(db.find_file(file_hash(50), reader("org/a"), WHOLE).await.unwrap().is_some());
        assert_eq!(step.next, None, "one small file is one step");
        db.publish_registration(begun, None).await.unwrap();
        assert!(db.find_sha256(sha256(9), reader(repo)).await.unwrap().is_some());
        clear(&db).await;
    }
}

async fn an_abandoned_registration_leaves_nothing_behind(db: Db) {
    stocked(&db).await;
    let new = several("org/a");
    for step_count in 0..9 {
        let begun = db.begin_registration(&new).await.unwrap();
        take(&db, begun, &new, Cursor::start(&new), step_count).await;
        assert_eq!(db.abandon_registrations(None).await.unwrap(), 1);
        assert_eq!(seen_count(&db, &new).await, 0, "{step_count} steps");
        clear(&db).await;
        assert_eq!(usage(&db, "org/a").await, Usage::default(), "{step_count} steps");
        let lives = db.xorb_lives(None, 100).await.unwrap();
        assert!(lives.iter().all(|XorbLife { is_referenced, .. }| !is_referenced), "{step_count} steps");
    }
    assert_eq!(db.register(&new).await.unwrap(), Registered::New);
}

async fn xorbs_of_a_discarded_registration_are_touched(db: Db) {
    stocked(&db).await;
    let new = registration("org/a", vec![file(50, &[term(1, 0, 2)]), file(51, &[term(2, 0, 2)])], &[1, 2]);
    for (is_swept, passed) in [(false, 5), (true, 6)] {
        let later = Timestamp::from_millis(NOW.as_millis() + passed);
        let begun = db.begin_registration(&new).await.unwrap();
        take(&db, begun, &new, Cursor::start(&new), 100).await;
        db.abandon_registrations(None).await.unwrap();
        if is_swept {
            while db.sweep_removed(later).await.unwrap() {}
        } else {
            assert!(!db.sweep_registrations(Some(begun.id + 1), later).await.unwrap(), "it has another number");
            while db.sweep_registrations(Some(begun.id), later).await.unwrap() {}
        }
        for life in db.xorb_lives(None, 100).await.unwrap() {
            let since = if life.hash == hash(1) || life.hash == hash(2) { later } else { NOW };
            assert_eq!(life.since, since, "{:?}", life.hash);
        }
    }
}

async fn abandoned_claim_leaves_the_file_to_other_repositories(db: Db) {
    stocked(&db).await;
    let of = |repo: &str, sha| {
        let claimed = NewFile { sha256: sha, ..file(50, &[term(1, 0, 2)]) };
        registration(repo, vec![claimed], &[1])
    };
    db.register(&of("org/a", None)).await.unwrap();
    for repo in ["org/a", "org/b"] {
        let before = (usage(&db, "org/a").await, usage(&db, "org/b").await);
        let new = of(repo, Some(sha256(9)));
        let begun = db.begin_registration(&new).await.unwrap();
        take(&db, begun, &new, Cursor::start(&new), 9).await;
        db.abandon_registrations(Some(begun.id)).await.unwrap();
        clear(&db).await;
        assert_eq!((usage(&db, "org/a").await, usage(&db, "org/b").await), before);
        assert_eq!(db.readers_of(file_hash(50)).await.unwrap(), [("org/a".to_owned(), false)]);
        assert_eq!(db.unverified_sha256(file_hash(50)).await.unwrap(), None);
    }
    // The file is removed if the other repository has removed its claim meanwhile.
    let new = of("org/b", None);
    let begun = db.begin_registration(&new).await.unwrap();
    take(&db, begun, &new, Cursor::start(&new), 9).await;
    db.remove_claims(file_hash(50), Some("org/a".to_owned()), NOW).await.unwrap();
    db.abandon_registrations(None).await.unwrap();
    clear(&db).await;
    assert!(db.find_file(file_hash(50), Reader::All, WHOLE).await.unwrap().is_none());
    let lives = db.xorb_lives(None, 100).await.unwrap();
    assert!(lives.iter().all(|life| !life.is_referenced));
}

async fn an_abandoned_registration_cannot_be_published(db: Db) {
    stocked(&db).await;
    let new = several("org/a");
    let begun = db.begin_registration(&new).await.unwrap();
    let next = take(&db, begun, &new, Cursor::start(&new), 2).await.unwrap();
    db.abandon_registrations(None).await.unwrap();
    let lost = db.write_step(begun, &new, next).await.unwrap_err();
    assert_eq!(lost.kind, IndexErrorKind::Lost);
    let lost = db.publish_registration(begun, Some(3)).await.unwrap_err();
    assert_eq!(lost.kind, IndexErrorKind::Lost);
    assert_eq!(db.store_mark().await.unwrap().last_record, None);
}

async fn a_published_registration_cannot_be_abandoned(db: Db) {
    stocked(&db).await;
    let new = several("org/a");
    let begun = db.begin_registration(&new).await.unwrap();
    assert_eq!(take(&db, begun, &new, Cursor::start(&new), 100).await, None);
    db.publish_registration(begun, None).await.unwrap();
    for id in [Some(begun.id), None] {
        assert_eq!(db.abandon_registrations(id).await.unwrap(), 0);
    }
    clear(&db).await;
    assert_eq!(usage(&db, "org/a").await.file_count, 4);
    let lost = db.publish_registration(begun, None).await.unwrap_err();
    assert_eq!(lost.kind, IndexErrorKind::Lost);
}

async fn leftovers_of_a_dead_registration_are_replaced(db: Db) {
    stocked(&db).await;
    let new = several("org/a");
    for step_count in [1, 3, 5, 100] {
        let begun = db.begin_registration(&new).await.unwrap();
        take(&db, begun, &new, Cursor::start(&new), step_count).await;
    }
    // These registrations are still open, as after a crash before any cleanup. Another repository
    // registers the same files.
    let other = several("org/b");
    let begun = db.begin_registration(&other).await.unwrap();
    assert_eq!(take(&db, begun, &other, Cursor::start(&other), 100).await, None);
    db.publish_registration(begun, None).await.unwrap();
    assert_eq!(db.readers_of(file_hash(60)).await.unwrap(), [("org/b".to_owned(), false)]);
    db.abandon_registrations(None).await.unwrap();
    clear(&db).await;
    assert_eq!(usage(&db, "org/a").await, Usage::default());
    assert_eq!(usage(&db, "org/b").await.file_count, 4);
    for file in &other.files {
        let found = db.find_file(file.hash, reader("org/b"), WHOLE).await.unwrap().unwrap();
        assert_eq!(found.terms, file.terms);
    }
}

async fn a_step_that_exceeds_a_quota_changes_nothing(db: Db) {
    stocked(&db).await;
    let mut new = several("org/a");
    new.allowance.repo = Limits { file_count: Some(2), ..Limits::default() };
    let begun = db.begin_registration(&new).await.unwrap();
    let next = take(&db, begun, &new, Cursor::start(&new), 2).await.unwrap();
    let before = usage(&db, "org/a").await;
    let refused = db.write_step(begun, &new, next).await.unwrap();
    assert!(matches!(refused.outcome, Registered::OverQuota(excess) if excess.limit == 2), "{refused:?}");
    assert_eq!(refused.next, None);
    assert_eq!(usage(&db, "org/a").await, before);
}

async fn a_step_without_its_xorb_changes_nothing(db: Db) {
    stocked(&db).await;
    let mut new = several("org/a");
    new.files.push(file(70, &[term(9, 0, 1)]));
    let begun = db.begin_registration(&new).await.unwrap();
    let mut next = Some(Cursor::start(&new));
    let refused = loop {
        let step = db.write_step(begun, &new, next.unwrap()).await.unwrap();
        if !matches!(step.outcome, Registered::New | Registered::Known) {
            break step.outcome;
        }
        next = step.next;
    };
    assert_eq!(refused, Registered::MissingXorb(hash(9)));
    assert_eq!(usage(&db, "org/a").await.file_count, 4);
}

async fn unpublished_files_count_for_their_repository(db: Db) {
    stocked(&db).await;
    let new = several("org/a");
    let begun = db.begin_registration(&new).await.unwrap();
    assert_eq!(begun.repo, Usage::default());
    take(&db, begun, &new, Cursor::start(&new), 100).await;
    let counted = usage(&db, "org/a").await;
    assert_eq!(counted.file_count, 4);
    db.publish_registration(begun, None).await.unwrap();
    assert_eq!(usage(&db, "org/a").await, counted);
}

async fn xorbs_of_an_unpublished_registration_are_not_condemned(db: Db) {
    stocked(&db).await;
    let new = several("org/a");
    let begun = db.begin_registration(&new).await.unwrap();
    take(&db, begun, &new, Cursor::start(&new), 100).await;
    let later = Timestamp::from_millis(NOW.as_millis() * 2);
    let condemned = db.condemn_xorbs(vec![hash(1), hash(2), hash(3)], later, later).await.unwrap();
    assert_eq!(condemned, []);
}

/// A registration of a large file of four xorbs, which these repositories have registered already.
pub(super) async fn shared_file(db: &Db, repos: &[&str]) -> Registration {
    stocked(db).await;
    let terms: Vec<_> = (1..=4).map(|xorb| term(xorb, 0, 2)).collect();
    let new = registration("org/b", vec![file(60, &terms)], &[1, 2, 3, 4]);
    for repo in repos {
        db.register(&Registration { repo: (*repo).to_owned(), ..new.clone() }).await.unwrap();
    }
    clear(db).await;
    new
}

async fn a_known_large_file_is_charged_in_parts(db: Db) {
    let new = shared_file(&db, &["org/a"]).await;
    let whole = usage(&db, "org/a").await;
    for abandoned_after in [Some(1), Some(2), Some(3), None] {
        let begun = db.begin_registration(&new).await.unwrap();
        let (mut next, mut charged) = (Some(Cursor::start(&new)), Vec::new());
        while let Some(from) = next
            && abandoned_after != Some(charged.len())
        {
            next = take(&db, begun, &new, from, 1).await;
            let used = usage(&db, "org/b").await;
            assert_eq!((used.file_count, used.logical_len), (1, whole.logical_len));
            charged.push(used.physical_len);
        }
        if abandoned_after.is_some() {
            db.abandon_registrations(None).await.unwrap();
            clear(&db).await;
            assert_eq!(usage(&db, "org/b").await, Usage::default());
            continue;
        }
        db.publish_registration(begun, None).await.unwrap();
        charged.dedup();
        assert!(charged.len() == 3 && charged.is_sorted(), "the claim and two parts: {charged:?}");
        assert_eq!(usage(&db, "org/b").await, whole);
    }
}

async fn a_removed_claim_to_a_large_file_is_credited_in_parts(db: Db) {
    shared_file(&db, &["org/a", "org/b"]).await;
    let whole = usage(&db, "org/b").await;
    let removed = db.remove_claims(file_hash(60), Some("org/b".to_owned()), NOW).await.unwrap();
    assert_eq!((removed.repos, removed.is_file_removed), (vec!["org/b".to_owned()], false));
    assert_eq!(usage(&db, "org/b").await, Usage { physical_len: whole.physical_len, ..Usage::default() });
    assert_eq!(db.readers_of(file_hash(60)).await.unwrap(), [("org/a".to_owned(), false)]);
    assert_eq!(db.files_after(reader("org/b"), None, 9).await.unwrap(), []);
    let again = db.remove_claims(file_hash(60), Some("org/b".to_owned()), NOW).await.unwrap();
    assert_eq!((again.repos, again.is_file_removed), (vec![], false));
    let mut charged = vec![whole.physical_len];
    while db.sweep_removed(NOW).await.unwrap() {
        charged.push(usage(&db, "org/b").await.physical_len);
    }
    charged.dedup();
    assert!(charged.len() == 3 && charged.is_sorted_by(|one, next| one > next), "two parts: {charged:?}");
    assert_eq!(usage(&db, "org/b").await, Usage::default());
    assert_eq!(usage(&db, "org/a").await, whole);
}

async fn a_large_file_is_registered_again_while_its_removal_is_swept(db: Db) {
    let new = shared_file(&db, &["org/a", "org/b"]).await;
    let whole = usage(&db, "org/b").await;
    for swept_count in 0..4 {
        db.remove_claims(file_hash(60), Some("org/b".to_owned()), NOW).await.unwrap();
        for _ in 0..swept_count {
            db.sweep_removed(NOW).await.unwrap();
        }
        let begun = db.begin_registration(&new).await.unwrap();
        assert_eq!(take(&db, begun, &new, Cursor::start(&new), 100).await, None);
        db.publish_registration(begun, None).await.unwrap();
        assert_eq!(usage(&db, "org/b").await, whole, "after {swept_count} sweeps");
        clear(&db).await;
        assert_eq!(usage(&db, "org/b").await, whole, "after {swept_count} sweeps");
        assert_eq!(db.readers_of(file_hash(60)).await.unwrap().len(), 2);
    }
}

async fn large_file_is_removed_with_its_last_claim(db: Db) {
    shared_file(&db, &["org/a", "org/b"]).await;
    for (repo, is_last) in [("org/b", false), ("org/a", true)] {
        let removed = db.remove_claims(file_hash(60), Some(repo.to_owned()), NOW).await.unwrap();
        assert_eq!(removed.is_file_removed, is_last, "{repo}");
    }
    clear(&db).await;
    for repo in ["org/a", "org/b"] {
        assert_eq!(usage(&db, repo).await, Usage::default());
    }
    assert!(db.find_file(file_hash(60), Reader::All, WHOLE).await.unwrap().is_none());
    assert!(db.xorb_lives(None, 100).await.unwrap().iter().all(|life| !life.is_referenced));
}
