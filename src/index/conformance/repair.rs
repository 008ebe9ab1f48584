//! The contract on checks of the index, and on its repair.

use std::sync::Arc;

use super::backends::{Backend, TestIndex};
use super::files::{file, file_hash, registration, term};
use super::{Db, NOW, SqliteIndex, hash, put, xorb};
use crate::format::ChunkRange;
use crate::index::{
    FaultPage, FileFault, FutureTimes, Index, IndexErrorKind, NewXorb, Registered, Staging, Ticket, Totals,
    TotalsError, XorbHealth, XorbState,
};
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

suite! {
    rowless_blob_is_adopted_once
    unfinished_row_takes_the_name_of_a_pending_object
    rows_are_paged_by_hash
    consistent_index_has_no_faults
    future_times_are_set_back_by_page_and_no_others
}

suite_with_hooks! {
    cut_columns_are_inconsistent_before_and_behind_the_cut
    missing_and_surplus_references_are_found_and_rebuilt
    missing_xorb_is_lost_to_its_files_and_back_when_adopted
    a_dangling_reference_is_one_too_many
    terms_that_do_not_parse_are_told_and_left
    totals_are_repaired_while_xorbs_come_and_go
}

/// A blob whose xorb has a row is not adopted.
async fn rowless_blob_is_adopted_once(db: Db) {
    let orphan = NewXorb { owner: None, ..xorb(1, 3) };
    assert!(db.adopt_xorb(orphan.clone(), Incarnation::UNNAMED, Ticket::random(), NOW).await.unwrap());
    assert!(!db.adopt_xorb(orphan.clone(), Incarnation::UNNAMED, Ticket::random(), NOW).await.unwrap());
    let found = db.find_xorb(hash(1)).await.unwrap().unwrap();
    assert_eq!((found.layout, found.crc64), (orphan.layout, orphan.crc64));
    assert_eq!(db.find_chunks(hash(1)).await.unwrap().unwrap().hashes, orphan.chunk_hashes);
    assert_eq!(db.totals().await.unwrap(), Totals { xorb_count: 1, serialized_len: 30, raw_len: 12 });
    assert_eq!(db.find_health(hash(1)).await.unwrap().unwrap().verified_at, Some(NOW));

    // The row of xorb 3 belongs to an upload that is being published.
    db.stage_xorb(hash(3), Ticket::random(), NOW).await.unwrap();
    assert!(!db.adopt_xorb(xorb(3, 1), Incarnation::UNNAMED, Ticket::random(), NOW).await.unwrap());
    assert_eq!(db.totals_drift().await.unwrap(), TotalsError::default());
}

async fn unfinished_row_takes_the_name_of_a_pending_object(db: Db) {
    put(&db, xorb(1, 3)).await;
    db.stage_xorb(hash(2), Ticket::random(), NOW).await.unwrap();
    let name = async |byte| db.incarnation_of(hash(byte)).await.unwrap().unwrap();
    let (live, staged, ticket) = (name(1).await, name(2).await, Ticket::random());
    // A visible row is not changed, nor one without a pending object or with another name.
    db.begin_object(hash(1), ticket.incarnation(), 30, NOW).await.unwrap();
    assert!(!db.restore_xorb(xorb(1, 3), live, ticket, NOW).await.unwrap());
    assert!(!db.restore_xorb(xorb(2, 4), staged, ticket, NOW).await.unwrap());
    db.begin_object(hash(2), ticket.incarnation(), 40, NOW).await.unwrap();
    assert!(!db.restore_xorb(xorb(2, 4), live, ticket, NOW).await.unwrap());
    assert_eq!(db.totals().await.unwrap().xorb_count, 1);

    assert!(db.restore_xorb(xorb(2, 4), staged, ticket, NOW).await.unwrap());
    assert!(!db.restore_xorb(xorb(2, 4), staged, ticket, NOW).await.unwrap());
    assert_eq!(name(2).await, ticket.incarnation());
    db.condemn_xorbs(vec![hash(1)], NOW, NOW).await.unwrap();
    db.begin_deletions(vec![hash(1)], NOW, NOW).await.unwrap();
    assert!(db.restore_xorb(xorb(1, 3), live, ticket, NOW).await.unwrap());
    for (byte, count, former) in [(1, 3, live), (2, 4, staged)] {
        let found = db.find_xorb(hash(byte)).await.unwrap().unwrap();
        assert_eq!((found.layout, found.incarnation), (xorb(byte, count).layout, ticket.incarnation()));
        let chunks = db.find_chunks(hash(byte)).await.unwrap().unwrap();
        assert_eq!(chunks.hashes, xorb(byte, count).chunk_hashes);
        assert!(db.unknown_names(vec![(hash(byte), former)]).await.unwrap().is_empty());
    }
    // The former names are dead objects, and the new ones are objects no longer.
    assert_eq!(db.object_sums().await.unwrap().count, 2);
    assert_eq!(db.totals_drift().await.unwrap(), TotalsError::default());
}

async fn rows_are_paged_by_hash(db: Db) {
    for byte in [4, 2, 9] {
        put(&db, xorb(byte, 1)).await;
    }
    db.stage_xorb(hash(5), Ticket::random(), NOW).await.unwrap();
    let hashes = |page: Vec<crate::index::XorbHealth>| page.iter().map(|xorb| xorb.hash).collect::<Vec<_>>();
    assert_eq!(hashes(db.health_after(None, 2).await.unwrap()), [hash(2), hash(4)]);
    assert_eq!(hashes(db.health_after(Some(hash(4)), 2).await.unwrap()), [hash(9)]);
    assert_eq!(hashes(db.health_after(Some(hash(9)), 2).await.unwrap()), []);
}

async fn consistent_index_has_no_faults(db: Db) {
    put(&db, xorb(1, 3)).await;
    db.register(&registration("org/a", vec![file(1, &[term(1, 0, 2)]), file(2, &[])], &[1])).await.unwrap();
    let page = db.faulty_files(None).await.unwrap();
    assert_eq!(page, FaultPage { faults: Vec::new(), file_count: 2, last: Some(file_hash(2)) });
    assert_eq!(db.faulty_files(page.last).await.unwrap(), FaultPage::default());
    assert_eq!(db.totals_drift().await.unwrap(), TotalsError::default());
    assert!(!db.rebuild_references(file_hash(1)).await.unwrap());
    assert!(!db.rebuild_references(file_hash(7)).await.unwrap());
}

fn after(secs: u64) -> Timestamp {
    Timestamp::from_millis(NOW.as_millis() + secs * 1000)
}

async fn health(db: &Db, byte: u8) -> XorbHealth {
    db.find_health(hash(byte)).await.unwrap().unwrap()
}

async fn future_times_are_set_back_by_page_and_no_others(db: Db) {
    for byte in 1..=6 {
        put(&db, xorb(byte, 3)).await;
    }
    assert_eq!(db.future_times(NOW).await.unwrap(), FutureTimes::default());
    // Xorbs 1 to 4 were touched, condemned, verified and replaced in the future; xorb 5 is leased
    // until the future, which is no fault.
    assert!(db.renew_xorb(hash(1), None, after(50)).await.unwrap());
    assert_eq!(db.condemn_xorbs(vec![hash(2)], NOW, after(60)).await.unwrap(), [hash(2)]);
    assert!(db.mark_sound(health(&db, 3).await, after(70)).await.unwrap());
    assert!(db.mark_damaged(health(&db, 4).await, NOW).await.unwrap());
    let ticket = Ticket::random();
    assert_eq!(db.stage_xorb(hash(4), ticket, NOW).await.unwrap(), Staging::Damaged);
    db.describe_xorb_again(NewXorb { crc64: 7, ..xorb(4, 3) }, ticket, after(80)).await.unwrap();
    let mut new = registration("org/a", vec![file(1, &[])], &[5]);
    let chunk = crate::format::ChunkHash::from_bytes([5; 32]);
    new.dedup = vec![(chunk, hash(5))];
    assert_eq!(db.register(&new).await.unwrap(), Registered::New);
    assert!(db.find_dedup(chunk, None, after(500)..=after(500)).await.unwrap().is_some());
    db.record_collection(after(90)).await.unwrap();

    let found = FutureTimes { xorb_count: 4, has_collection: true, latest: Some(after(90)) };
    assert_eq!(db.future_times(after(10)).await.unwrap(), found);
    let found = FutureTimes { xorb_count: 2, has_collection: true, latest: Some(after(90)) };
    assert_eq!(db.future_times(after(60)).await.unwrap(), found);
    assert_eq!(db.future_times(after(90)).await.unwrap(), FutureTimes::default());
    let generation = db.generation().await.unwrap();
    let mut pages = Vec::new();
    let mut last = None;
    loop {
        last = db.clamp_times(last, 4, after(10), after(1)).await.unwrap();
        let Some(hash) = last else { break };
        pages.push(hash);
    }
    assert_eq!(pages, [hash(4), hash(6)]);
    let found = FutureTimes { xorb_count: 0, has_collection: true, latest: Some(after(90)) };
    assert_eq!(db.future_times(after(10)).await.unwrap(), found);
    db.set_collection_back(after(1)).await.unwrap();
    assert_eq!(db.future_times(after(10)).await.unwrap(), FutureTimes::default());
    assert_eq!(db.last_collection().await.unwrap(), after(1));
    let lives = db.xorb_lives(None, 10).await.unwrap();
    let since: Vec<Timestamp> = lives.iter().map(|life| life.since).collect();
    assert_eq!(since, [after(1), after(1), NOW, after(1), NOW, NOW]);
    assert!(lives.iter().all(|life| life.state == XorbState::Live));
    assert_eq!(lives[4].lease_until, after(500), "a lease is not changed");
    // The time of the last verification is unknown, so it is deleted.
    assert_eq!((health(&db, 3).await.verified_at, health(&db, 6).await.verified_at), (None, Some(NOW)));
    assert_eq!(db.find_xorb(hash(4)).await.unwrap().unwrap().replaced_at, Some(after(1)));
    assert!(db.generation().await.unwrap() > generation, "servers cache the time of a replacement");
    assert_eq!(db.totals_drift().await.unwrap(), TotalsError::default());
    // A time in the past does not change.
    db.set_collection_back(after(5)).await.unwrap();
    assert_eq!(db.last_collection().await.unwrap(), after(1));
}

async fn tampered<B: Backend>(sql: &str) -> (B::Place, B::Index) {
    let (place, index) = B::fresh().await;
    let db: Db = Arc::new(index.clone());
    for byte in 1..=3 {
        put(&db, xorb(byte, 3)).await;
    }
    let terms = [term(1, 0, 2), term(2, 0, 1), term(1, 1, 2)];
    let new = registration("org/a", vec![file(1, &terms), file(2, &[term(3, 0, 1)])], &[1, 2, 3]);
    assert_eq!(db.register(&new).await.unwrap(), Registered::New);
    index.tamper(sql).await;
    (place, index)
}

fn fault(byte: u8) -> FileFault {
    let file = file_hash(byte);
    FileFault { file, lost: Vec::new(), unreferenced: Vec::new(), surplus_count: 0, is_unreadable: false }
}

async fn cut_columns_are_inconsistent_before_and_behind_the_cut<B: Backend>() {
    for sql in [
        "UPDATE xorbs SET layout = x'01' WHERE id = 1",
        "UPDATE xorbs SET layout = substr(layout, 1, 16) WHERE id = 1",
        "UPDATE xorbs SET layout = CAST(layout || x'00' AS BLOB) WHERE id = 1",
        "UPDATE xorb_chunks SET hashes = substr(hashes, 1, 64) WHERE xorb_id = 1",
        "UPDATE xorb_chunks SET hashes = x'' WHERE xorb_id = 1",
    ] {
        let (_place, index) = tampered::<B>(sql).await;
        for (start, end) in [(0, 1), (0, 3), (1, 2), (2, 3), (3, 4), (5, 9)] {
            let chunks = ChunkRange::new(start, end).unwrap();
            let error = as_dyn(&index).xorb_parts(vec![(hash(2), chunks), (hash(1), chunks)]).await.unwrap_err();
            assert_eq!(error.kind, IndexErrorKind::Inconsistent, "{sql}: {chunks}");
        }
    }
}

async fn missing_and_surplus_references_are_found_and_rebuilt<B: Backend>() {
    let sql = "DELETE FROM xorb_files WHERE file_id = 1 AND xorb_id = 2; INSERT INTO xorb_files VALUES (3, 1)";
    let (_place, index) = tampered::<B>(sql).await;
    let faults = faulty_files_now(&index).await;
    assert_eq!(faults, [FileFault { unreferenced: vec![hash(2)], surplus_count: 1, ..fault(1) }]);
    // A condemned xorb that gets a reference must become live, so that GC does not delete it.
    index.tamper("UPDATE xorbs SET state = 2 WHERE id = 2").await;
    assert!(as_dyn(&index).rebuild_references(file_hash(1)).await.unwrap());
    assert_eq!(faulty_files_now(&index).await, []);
    assert_eq!(as_dyn(&index).affected_files(hash(3), 5).await.unwrap().files, [file_hash(2)]);
    // State 9 is forbidden, so this fails unless the xorb is live again.
    index.tamper("UPDATE xorbs SET state = CASE state WHEN 1 THEN 1 ELSE 9 END WHERE id = 2").await;
}

async fn missing_xorb_is_lost_to_its_files_and_back_when_adopted<B: Backend>() {
    let (_place, index) =
        tampered::<B>("DELETE FROM xorb_files WHERE xorb_id = 2; DELETE FROM xorbs WHERE id = 2").await;
    assert_eq!(faulty_files_now(&index).await, [FileFault { lost: vec![hash(2)], ..fault(1) }]);
    assert!(!as_dyn(&index).rebuild_references(file_hash(1)).await.unwrap());
    let drift = as_dyn(&index).totals_drift().await.unwrap();
    assert_eq!(drift, TotalsError { xorb_count: -1, serialized_len: -30, raw_len: -12 });
    as_dyn(&index).repair_totals(drift).await.unwrap();
    assert!(as_dyn(&index).adopt_xorb(xorb(2, 3), Incarnation::UNNAMED, Ticket::random(), NOW).await.unwrap());
    assert_eq!(faulty_files_now(&index).await, [FileFault { unreferenced: vec![hash(2)], ..fault(1) }]);
    assert!(as_dyn(&index).rebuild_references(file_hash(1)).await.unwrap());
    assert_eq!(faulty_files_now(&index).await, []);
    assert_eq!(as_dyn(&index).totals_drift().await.unwrap(), TotalsError::default());
}

async fn a_dangling_reference_is_one_too_many<B: Backend>() {
    let (_place, index) = tampered::<B>("INSERT INTO xorb_files VALUES (99, 2)").await;
    assert_eq!(faulty_files_now(&index).await, [FileFault { surplus_count: 1, ..fault(2) }]);
    assert!(as_dyn(&index).rebuild_references(file_hash(2)).await.unwrap());
    assert_eq!(faulty_files_now(&index).await, []);
}

async fn terms_that_do_not_parse_are_told_and_left<B: Backend>() {
    let (_place, index) = tampered::<B>("UPDATE file_terms SET terms = zeroblob(44) WHERE file_id = 2").await;
    assert_eq!(faulty_files_now(&index).await, [FileFault { is_unreadable: true, ..fault(2) }]);
    assert!(!as_dyn(&index).rebuild_references(file_hash(2)).await.unwrap());
}

async fn totals_are_repaired_while_xorbs_come_and_go<B: Backend>() {
    let (_place, index) =
        tampered::<B>("UPDATE totals SET xorb_count = xorb_count + 5, serialized_len = 7, raw_len = raw_len - 1").await;
    let drift = as_dyn(&index).totals_drift().await.unwrap();
    assert_eq!(drift, TotalsError { xorb_count: -5, serialized_len: 83, raw_len: 1 });
    let db: Db = Arc::new(index.clone());
    put(&db, xorb(4, 3)).await;
    let totals = db.repair_totals(drift).await.unwrap();
    assert_eq!(totals, Totals { xorb_count: 4, serialized_len: 120, raw_len: 48 });
    assert_eq!(db.totals_drift().await.unwrap(), TotalsError::default());
}

fn as_dyn(index: &impl Index) -> &dyn Index {
    index
}

async fn faulty_files_now(index: &impl Index) -> Vec<FileFault> {
    as_dyn(index).faulty_files(None).await.unwrap().faults
}
