//! The contract on garbage collection and on removed files.

use std::collections::BTreeSet;

use super::files::{file, file_hash, reader, registration, sha256, term};
use super::{ANY_LEN, Db, NOW, SQLITE, SqliteIndex, hash, is_live, migrator, put, xorb};
use crate::format::{ByteRange, ChunkHash, FileHash};
use crate::index::{
    Collect, KnownSha256, NewFile, Reader, Registered, RemovedClaims, Staging, Ticket, Totals, XorbIndex, XorbLife,
    XorbState,
};
use crate::runtime::clock::Timestamp;

suite_in_steps! {
    idle_xorb_is_condemned_then_deleted_and_invisible
    referenced_xorb_is_neither_condemned_nor_deleted
    xorb_that_was_touched_in_time_or_leased_is_not_condemned
    a_condemned_xorb_lives_again_after_every_touch
    a_time_in_the_past_does_not_make_a_xorb_older
    only_staged_xorbs_that_are_old_are_given_up
    generation_grows_only_when_a_xorb_becomes_invisible
    collection_time_is_recorded_and_never_goes_back
    lives_and_terms_are_listed_in_pages_without_a_gap
    file_ends_with_its_last_claim_and_stays_for_other_claims
    removed_file_is_not_found_and_can_be_registered_again
    xorbs_of_a_removed_file_are_touched_with_their_last_ref
    xorbs_are_touched_as_of_removal_though_the_clock_went_back
    a_sha256_that_only_one_repository_claims_goes_with_its_claim
    large_removed_file_is_swept_in_steps
}

const WHOLE: Option<ByteRange> = ByteRange::new(0, u64::MAX);

pub(super) fn after(millis: u64) -> Timestamp {
    Timestamp::from_millis(NOW.as_millis() + millis)
}

pub(super) async fn life(db: &Db, byte: u8) -> XorbLife {
    db.find_life(hash(byte)).await.unwrap().unwrap()
}

async fn state(db: &Db, byte: u8) -> XorbState {
    life(db, byte).await.state
}

/// A xorb condemned at `after(10)`.
pub(super) async fn condemned(db: &Db, byte: u8) {
    put(db, xorb(byte, 3)).await;
    assert_eq!(db.condemn_xorbs(vec![hash(byte)], NOW, after(10)).await.unwrap(), [hash(byte)]);
}

pub(super) async fn sweep(db: &Db, now: Timestamp) {
    while db.sweep_removed(now).await.unwrap() {}
}

async fn idle_xorb_is_condemned_then_deleted_and_invisible(db: Db) {
    put(&db, xorb(2, 5)).await;
    let before = db.totals().await.unwrap();
    condemned(&db, 1).await;
    let both = db.totals().await.unwrap();
    assert_eq!((both.xorb_count, life(&db, 1).await.since), (2, after(10)));
    assert!(db.find_xorb(hash(1)).await.unwrap().is_some(), "a condemned xorb is visible");
    // Xorb 1 was condemned at 10, so it is not deleted with a limit of 9. Xorb 2 is live.
    assert_eq!(db.begin_deletions(vec![hash(1), hash(2)], after(9), after(20)).await.unwrap(), []);
    assert_eq!(db.begin_deletions(vec![hash(1), hash(2)], after(10), after(20)).await.unwrap(), [hash(1)]);
    assert_eq!(db.begin_deletions(vec![hash(1), hash(2)], after(10), after(20)).await.unwrap(), []);
    assert_eq!(db.find_xorb(hash(1)).await.unwrap(), None);
    assert_eq!(db.totals().await.unwrap(), before);
    assert_eq!(db.unfinished_xorbs().await.unwrap(), [(hash(1), XorbState::Deleting)]);
    assert_eq!(db.stage_xorb(hash(1), Ticket::random(), after(20)).await.unwrap(), Staging::Deleting);
    assert!(!db.renew_xorb(hash(1), None, after(20)).await.unwrap());
    assert_eq!(state(&db, 1).await, XorbState::Deleting);
    assert!(db.forget_xorb(hash(1)).await.unwrap());
    assert_eq!(db.find_life(hash(1)).await.unwrap(), None);
    put(&db, xorb(1, 3)).await;
    assert_eq!(db.totals().await.unwrap(), both);
}

async fn referenced_xorb_is_neither_condemned_nor_deleted(db: Db) {
    put(&db, xorb(1, 3)).await;
    db.register(&registration("r", vec![file(9, &[term(1, 0, 1)])], &[1])).await.unwrap();
    assert!(life(&db, 1).await.is_referenced);
    assert_eq!(db.condemn_xorbs(vec![hash(1)], after(1000), after(2000)).await.unwrap(), []);
    // A registration makes a condemned xorb live, even if its time is before the condemnation.
    condemned(&db, 2).await;
    db.register(&registration("r", vec![file(8, &[term(2, 0, 1)])], &[2])).await.unwrap();
    assert_eq!(db.begin_deletions(vec![hash(2)], after(1000), after(2000)).await.unwrap(), []);
    assert_eq!((state(&db, 1).await, state(&db, 2).await), (XorbState::Live, XorbState::Live));
    assert_eq!(db.condemn_xorbs(vec![hash(2)], after(1000), after(2000)).await.unwrap(), []);
}

async fn xorb_that_was_touched_in_time_or_leased_is_not_condemned(db: Db) {
    put(&db, xorb(1, 3)).await;
    let before = Timestamp::from_millis(NOW.as_millis() - 1);
    assert_eq!(db.condemn_xorbs(vec![hash(1)], before, after(10)).await.unwrap(), []);

    let chunk = ChunkHash::from_bytes([1; 32]);
    let mut new = registration("org/a", Vec::new(), &[1]);
    new.dedup.push((chunk, hash(1)));
    db.register(&new).await.unwrap();
    let lease = |until| db.find_dedup(chunk, Some("org".to_owned()), until..=until);
    assert!(lease(after(50)).await.unwrap().is_some());
    assert!(lease(after(30)).await.unwrap().is_some());
    assert_eq!(life(&db, 1).await.lease_until, after(50), "the longer lease counts");
    assert_eq!(db.condemn_xorbs(vec![hash(1)], NOW, after(49)).await.unwrap(), []);
    assert_eq!(db.condemn_xorbs(vec![hash(1)], NOW, after(50)).await.unwrap(), [hash(1)]);
    // A lease makes a condemned xorb live, and protects it in both steps.
    assert!(lease(after(100)).await.unwrap().is_some());
    assert_eq!(state(&db, 1).await, XorbState::Live);
    assert_eq!(db.condemn_xorbs(vec![hash(1)], after(50), after(99)).await.unwrap(), []);
    assert_eq!(db.condemn_xorbs(vec![hash(1)], after(50), after(100)).await.unwrap(), [hash(1)]);
    assert_eq!(db.begin_deletions(vec![hash(1)], after(100), after(99)).await.unwrap(), []);
    assert_eq!(db.begin_deletions(vec![hash(1)], after(100), after(100)).await.unwrap(), [hash(1)]);
    assert_eq!(lease(after(200)).await.unwrap(), None, "a xorb that is being deleted is not leased");
}

async fn a_condemned_xorb_lives_again_after_every_touch(db: Db) {
    for touch in 0..4 {
        let byte = touch + 1;
        condemned(&db, byte).await;
        match touch {
            0 => assert!(is_live(db.stage_xorb(hash(byte), Ticket::random(), after(20)).await.unwrap())),
            1 => assert!(db.renew_xorb(hash(byte), None, after(20)).await.unwrap()),
            2 => assert!(db.renew_xorb(hash(byte), Some("org".to_owned()), after(20)).await.unwrap()),
            _ => {
                let named = registration("r", Vec::new(), &[byte]);
                let named = crate::index::Registration { now: after(20), ..named };
                assert_eq!(db.register(&named).await.unwrap(), Registered::Known);
            }
        }
        let life = life(&db, byte).await;
        assert_eq!((life.state, life.since), (XorbState::Live, after(20)), "touch {touch}");
        assert_eq!(db.begin_deletions(vec![hash(byte)], after(1000), after(1000)).await.unwrap(), []);
        assert_eq!(db.condemn_xorbs(vec![hash(byte)], after(19), after(1000)).await.unwrap(), []);
    }
}

async fn a_time_in_the_past_does_not_make_a_xorb_older(db: Db) {
    let (epoch, ticket) = (Timestamp::from_millis(0), Ticket::random());
    db.stage_xorb(hash(1), ticket, NOW).await.unwrap();
    db.publish_xorb(xorb(1, 3), ticket, epoch).await.unwrap();
    db.stage_xorb(hash(1), ticket, epoch).await.unwrap();
    db.renew_xorb(hash(1), None, epoch).await.unwrap();
    let named = registration("r", vec![file(9, &[term(1, 0, 1)])], &[1]);
    db.register(&crate::index::Registration { now: epoch, ..named }).await.unwrap();
    db.remove_claims(file_hash(9), None, epoch).await.unwrap();
    sweep(&db, epoch).await;
    assert_eq!(life(&db, 1).await.since, NOW);
    db.condemn_xorbs(vec![hash(1)], NOW, epoch).await.unwrap();
    assert_eq!(life(&db, 1).await.since, NOW);
    db.begin_deletions(vec![hash(1)], NOW, epoch).await.unwrap();
    assert_eq!((state(&db, 1).await, life(&db, 1).await.since), (XorbState::Deleting, NOW));
}

async fn only_staged_xorbs_that_are_old_are_given_up(db: Db) {
    let ticket = Ticket::random();
    db.stage_xorb(hash(1), ticket, NOW).await.unwrap();
    db.stage_xorb(hash(2), ticket, after(1)).await.unwrap();
    put(&db, xorb(3, 3)).await;
    let all = || vec![hash(1), hash(2), hash(3), hash(4)];
    assert_eq!(db.abandon_xorbs(all(), NOW, after(50)).await.unwrap(), [hash(1)]);
    let states = [state(&db, 1).await, state(&db, 2).await, state(&db, 3).await];
    assert_eq!(states, [XorbState::Deleting, XorbState::Staged, XorbState::Live]);
    db.publish_xorb(xorb(1, 3), ticket, after(60)).await.unwrap_err();
    db.publish_xorb(xorb(2, 3), ticket, after(60)).await.unwrap();
    assert_eq!(db.condemn_xorbs(all(), NOW, after(60)).await.unwrap(), [hash(3)]);
}

async fn generation_grows_only_when_a_xorb_becomes_invisible(db: Db) {
    let before = db.generation().await.unwrap();
    condemned(&db, 1).await;
    db.renew_xorb(hash(1), None, NOW).await.unwrap();
    db.condemn_xorbs(vec![hash(1)], after(10), after(10)).await.unwrap();
    assert_eq!(db.begin_deletions(vec![hash(1)], NOW, after(20)).await.unwrap(), []);
    db.stage_xorb(hash(2), Ticket::random(), NOW).await.unwrap();
    db.abandon_xorbs(vec![hash(2)], NOW, NOW).await.unwrap();
    assert_eq!(db.generation().await.unwrap(), before);
    assert_eq!(db.begin_deletions(vec![hash(1)], after(10), after(20)).await.unwrap(), [hash(1)]);
    let hidden = db.generation().await.unwrap();
    assert!(hidden > before);
    db.forget_xorb(hash(1)).await.unwrap();
    assert_eq!(db.generation().await.unwrap(), hidden);
}

async fn collection_time_is_recorded_and_never_goes_back(db: Db) {
    assert_eq!(db.last_collection().await.unwrap(), Timestamp::from_millis(0));
    db.record_collection(after(5)).await.unwrap();
    db.record_collection(NOW).await.unwrap();
    assert_eq!(db.last_collection().await.unwrap(), after(5));
}

async fn lives_and_terms_are_listed_in_pages_without_a_gap(db: Db) {
    for byte in [4, 1, 3] {
        put(&db, xorb(byte, 3)).await;
    }
    db.stage_xorb(hash(2), Ticket::random(), NOW).await.unwrap();
    let files = vec![file(8, &[term(1, 0, 1), term(3, 0, 1), term(1, 1, 2)]), file(9, &[term(4, 0, 1)])];
    db.register(&registration("r", files, &[1, 3, 4])).await.unwrap();
    for limit in 1..6 {
        let (mut lives, mut last) = (Vec::new(), None);
        loop {
            let page = db.xorb_lives(last, limit).await.unwrap();
            assert!(page.len() <= limit as usize);
            let Some(end) = page.last() else { break };
            last = Some(end.hash);
            lives.extend(page);
        }
        let seen: Vec<_> = lives.iter().map(|life| (life.hash, life.state, life.is_referenced)).collect();
        let (live, staged) = (XorbState::Live, XorbState::Staged);
        assert_eq!(
            seen,
            [(hash(1), live, true), (hash(2), staged, false), (hash(3), live, true), (hash(4), live, true)]
        );
        assert_eq!((lives[0].serialized_len, lives[1].serialized_len), (xorb(1, 3).layout.serialized_len(), 0));

        let (mut runs, mut next) = (Vec::new(), Some(0));
        while let Some(after) = next {
            let page = db.term_runs(after, limit).await.unwrap();
            runs.extend(page.runs.into_iter().map(|run| (run.file, run.xorbs)));
            next = page.next;
        }
        assert_eq!(runs, [(file_hash(8), vec![hash(1), hash(3)]), (file_hash(9), vec![hash(4)])], "limit {limit}");
    }
}

async fn file_ends_with_its_last_claim_and_stays_for_other_claims(db: Db) {
    put(&db, xorb(1, 3)).await;
    for repo in ["a", "b", "c"] {
        db.register(&registration(repo, vec![file(9, &[term(1, 0, 1)])], &[1])).await.unwrap();
    }
    let remove = |byte, repo: Option<&str>| db.remove_claims(file_hash(byte), repo.map(str::to_owned), after(1));
    assert_eq!(remove(8, Some("a")).await.unwrap(), RemovedClaims::default());
    assert_eq!(remove(8, None).await.unwrap(), RemovedClaims::default());
    assert_eq!(remove(9, Some("stranger")).await.unwrap(), RemovedClaims::default());
    let one = RemovedClaims { repos: vec!["a".to_owned()], is_file_removed: false };
    assert_eq!(remove(9, Some("a")).await.unwrap(), one);
    assert_eq!(remove(9, Some("a")).await.unwrap(), RemovedClaims::default());
    assert_eq!(db.find_file(file_hash(9), reader("a"), WHOLE).await.unwrap(), None);
    assert_eq!(db.find_file(file_hash(9), reader("b"), WHOLE).await.unwrap().unwrap().terms.len(), 1);
    assert!(!db.sweep_removed(after(1)).await.unwrap());
    let rest = RemovedClaims { repos: vec!["b".to_owned(), "c".to_owned()], is_file_removed: true };
    assert_eq!(remove(9, None).await.unwrap(), rest);
    assert_eq!(remove(9, None).await.unwrap(), RemovedClaims::default());
    sweep(&db, after(1)).await;
    assert!(db.find_xorb(hash(1)).await.unwrap().is_some(), "removing a file removes no xorb");
}

async fn removed_file_is_not_found_and_can_be_registered_again(db: Db) {
    put(&db, xorb(1, 3)).await;
    let claimed = || NewFile { sha256: Some(sha256(1)), ..file(9, &[term(1, 0, 1)]) };
    db.register(&registration("a", vec![claimed()], &[1])).await.unwrap();
    let removed = db.remove_claims(file_hash(9), Some("a".to_owned()), after(1)).await.unwrap();
    assert!(removed.is_file_removed);

    let is_invisible = async || {
        for all in [Reader::All, reader("a")] {
            assert_eq!(db.find_file(file_hash(9), all.clone(), WHOLE).await.unwrap(), None);
            assert_eq!(db.files_after(all.clone(), None, 10).await.unwrap(), []);
            assert_eq!(db.find_sha256(sha256(1), all).await.unwrap(), None);
        }
        assert_eq!(db.unverified_claims(ANY_LEN, None, 10).await.unwrap(), []);
        assert_eq!(db.file_records(None).await.unwrap(), []);
        assert_eq!(db.term_runs(0, 10).await.unwrap().runs, []);
    };
    is_invisible().await;
    assert!(life(&db, 1).await.is_referenced, "the removed file references its xorb until the sweep");
    // The same file is registered as a new one, even with another sha256.
    let again = NewFile { sha256: Some(sha256(2)), ..claimed() };
    assert_eq!(db.register(&registration("a", vec![again], &[1])).await.unwrap(), Registered::New);
    sweep(&db, after(1)).await;
    assert!(life(&db, 1).await.is_referenced);
    assert_eq!(db.find_file(file_hash(9), reader("a"), WHOLE).await.unwrap().unwrap().terms.len(), 1);
    let known = KnownSha256 { file: file_hash(9), raw_len: 1000, is_verified: false };
    assert_eq!(db.find_sha256(sha256(2), reader("a")).await.unwrap(), Some(known));
    db.remove_claims(file_hash(9), None, after(1)).await.unwrap();
    sweep(&db, after(1)).await;
    is_invisible().await;
    assert!(!life(&db, 1).await.is_referenced);
}

async fn xorbs_of_a_removed_file_are_touched_with_their_last_ref(db: Db) {
    for byte in [1, 2, 3] {
        put(&db, xorb(byte, 3)).await;
    }
    let files = vec![file(8, &[term(1, 0, 1), term(2, 0, 1)]), file(9, &[term(2, 0, 1)])];
    db.register(&registration("r", files, &[1, 2])).await.unwrap();
    db.remove_claims(file_hash(8), None, after(5)).await.unwrap();
    sweep(&db, after(7)).await;
    let lives = [life(&db, 1).await, life(&db, 2).await, life(&db, 3).await];
    assert_eq!(lives.map(|life| life.since), [after(7), NOW, NOW]);
    assert_eq!(lives.map(|life| life.is_referenced), [false, true, false]);
    assert_eq!(db.condemn_xorbs(vec![hash(1), hash(2), hash(3)], after(6), after(50)).await.unwrap(), [hash(3)]);
}

async fn xorbs_are_touched_as_of_removal_though_the_clock_went_back(db: Db) {
    put(&db, xorb(1, 3)).await;
    db.register(&registration("r", vec![file(8, &[term(1, 0, 1)])], &[1])).await.unwrap();
    db.remove_claims(file_hash(8), None, after(9)).await.unwrap();
    sweep(&db, after(5)).await;
    assert_eq!(life(&db, 1).await.since, after(9));
}

async fn a_sha256_that_only_one_repository_claims_goes_with_its_claim(db: Db) {
    put(&db, xorb(1, 3)).await;
    let claimed = |sha256| NewFile { sha256, ..file(9, &[term(1, 0, 1)]) };
    let register = async |repo: &str, sha256| {
        db.register(&registration(repo, vec![claimed(sha256)], &[1])).await.unwrap();
    };
    let remove = async |repo: &str| {
        let removed = db.remove_claims(file_hash(9), Some(repo.to_owned()), NOW).await.unwrap();
        assert_eq!((removed.repos.len(), removed.is_file_removed), (1, false));
    };
    let claim_count = async || db.unverified_claims(ANY_LEN, None, 10).await.unwrap().len();
    register("silent", None).await;
    register("a", Some(sha256(1))).await;
    register("b", Some(sha256(1))).await;
    remove("a").await;
    assert_eq!(claim_count().await, 1, "b has claimed it, too");
    remove("b").await;
    assert_eq!(claim_count().await, 0);
    // After that, another repository can claim another sha256.
    register("c", Some(sha256(2))).await;
    assert_eq!(claim_count().await, 1);
    // A verified sha256 is a fact about the file, and stays.
    let claim = db.unverified_claims(ANY_LEN, None, 1).await.unwrap()[0];
    db.settle_claim(claim, crate::index::ClaimState::Verified).await.unwrap();
    remove("c").await;
    let known = KnownSha256 { file: file_hash(9), raw_len: 1000, is_verified: true };
    assert_eq!(db.find_sha256(sha256(2), reader("silent")).await.unwrap(), Some(known));
}

async fn large_removed_file_is_swept_in_steps(db: Db) {
    const COUNT: u16 = 300;
    let xorb_hash = |number: u16| {
        let mut bytes = [7; 32];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        crate::format::XorbHash::from_bytes(bytes)
    };
    for number in 0..COUNT {
        put(&db, crate::index::NewXorb { hash: xorb_hash(number), ..xorb(1, 3) }).await;
    }
    // 66 runs of up to 512 terms, which together name all xorbs.
    let terms: Vec<_> = (0..33_500)
        .map(|index| crate::format::shard::Term { xorb: xorb_hash(index % COUNT), ..term(1, 0, 1) })
        .collect();
    let mut new = registration("r", vec![file(9, &terms)], &[]);
    new.xorbs = (0..COUNT).map(xorb_hash).collect();
    db.register(&new).await.unwrap();
    db.remove_claims(file_hash(9), None, after(1)).await.unwrap();
    let referenced = async || {
        let lives = db.xorb_lives(None, 1000).await.unwrap();
        let counted: BTreeSet<_> = lives.iter().map(|life| (life.is_referenced, life.since.as_millis())).collect();
        (lives.iter().filter(|life| life.is_referenced).count(), counted)
    };
    let (fresh, touched) = ((true, NOW.as_millis()), (false, after(3).as_millis()));
    assert_eq!(referenced().await, (300, BTreeSet::from([fresh])));
    assert!(db.sweep_removed(after(3)).await.unwrap());
    assert_eq!(referenced().await, (300, BTreeSet::from([fresh])), "terms go first");
    assert!(db.sweep_removed(after(3)).await.unwrap());
    let (left, seen) = referenced().await;
    assert!((1..300).contains(&left), "{left} references are left");
    assert_eq!(seen, BTreeSet::from([fresh, touched]));
    sweep(&db, after(3)).await;
    assert_eq!(referenced().await, (0, BTreeSet::from([touched])));
    assert!(!db.sweep_removed(after(3)).await.unwrap());
    let all: Vec<_> = (0..COUNT).map(xorb_hash).collect();
    assert_eq!(db.condemn_xorbs(all.clone(), after(3), after(3)).await.unwrap().len(), 300);
    assert_eq!(db.begin_deletions(all.clone(), after(3), after(3)).await.unwrap().len(), 300);
    for xorb in all {
        assert!(db.forget_xorb(xorb).await.unwrap());
    }
    assert_eq!(db.totals().await.unwrap(), Totals::default());
    assert_eq!(db.find_file(FileHash::from_bytes([9; 32]), Reader::All, WHOLE).await.unwrap(), None);
}

#[tokio::test]
async fn database_of_an_older_schema_keeps_its_leases() {
    use sqlx::{Connection, SqliteConnection, raw_sql};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("index.sqlite");
    let old: Vec<_> = SQLITE.iter().filter(|(version, ..)| *version < 6).copied().collect();
    let mut connection = SqliteConnection::connect(&format!("sqlite://{}?mode=rwc", path.display())).await.unwrap();
    migrator(&old).run(&mut connection).await.unwrap();
    let xorb = |byte: u8| format!("(X'{}', 1, 0, 0, 9, 8, 7, X'0000000900000008')", format!("{byte:02x}").repeat(32));
    let insert = format!(
        "INSERT INTO xorbs (hash, state, since, ticket, serialized_len, raw_len, crc64, layout) VALUES {}, {}; \
         INSERT INTO xorb_domains (xorb_id, domain, lease_until) VALUES (1, 'a', 5), (1, 'b', 7), (2, 'a', 0);",
        xorb(1),
        xorb(2)
    );
    raw_sql(sqlx::AssertSqlSafe(insert)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();

    let index = SqliteIndex::open(&path).await.unwrap();
    let lives = index.xorb_lives(None, 10).await.unwrap();
    let leases: Vec<_> = lives.iter().map(|life| life.lease_until.as_millis()).collect();
    assert_eq!(leases, [7, 0]);
    assert!(index.share_xorb(hash(2), "b".to_owned()).await.unwrap());
    index.close().await;
}
