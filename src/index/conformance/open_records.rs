//! The contract on open records with one server: those that later ones have overtaken.

use super::hub::{commit, repo};
use super::{Db, SqliteIndex};
use crate::format::StoreId;
use crate::index::RepoKind;

suite! {
    overtaken_records_are_open_until_they_are_applied
    closed_records_are_not_open
    record_is_open_until_its_change_is_made
    taken_records_leave_the_skipped_ones_open
    no_record_up_to_the_last_considered_one_is_open
    refused_change_opens_no_record
}

async fn open(db: &Db) -> Vec<u64> {
    db.abandoned_records().await.unwrap()
}

async fn last(db: &Db) -> Option<u64> {
    db.store_mark().await.unwrap().last_record
}

/// Applies a record.
async fn apply(db: &Db, seq: u64) {
    db.take_records(vec![seq]).await.unwrap();
}

async fn create(db: &Db, record: u64) -> Option<i64> {
    let created = db.create_hub_repo(repo(RepoKind::Model, "bert"), commit(1, None), Vec::new(), Vec::new(), record);
    created.await.unwrap()
}

async fn overtaken_records_are_open_until_they_are_applied(db: Db) {
    assert_eq!((open(&db).await, last(&db).await), (vec![], None));
    apply(&db, 0).await;
    assert_eq!((open(&db).await, last(&db).await), (vec![], Some(0)));
    apply(&db, 4).await;
    assert_eq!((open(&db).await, last(&db).await), (vec![1, 2, 3], Some(4)));
    apply(&db, 5).await;
    apply(&db, 2).await;
    apply(&db, 2).await;
    assert_eq!((open(&db).await, last(&db).await), (vec![1, 3], Some(5)));
    // A change marks its record in the same way.
    let number = create(&db, 8).await.unwrap();
    assert_eq!((open(&db).await, last(&db).await), (vec![1, 3, 6, 7], Some(8)));
    assert!(db.set_hub_repo_private(number, true, 3).await.unwrap());
    assert_eq!((open(&db).await, last(&db).await), (vec![1, 6, 7], Some(8)));
}

async fn closed_records_are_not_open(db: Db) {
    // The first record counts as skipped, too.
    for closed in [1, 2, 6] {
        db.close_record(closed).await.unwrap();
    }
    apply(&db, 3).await;
    assert_eq!(open(&db).await, [0]);
    // Closed after a later record was applied: the next transaction notices.
    apply(&db, 5).await;
    db.close_record(4).await.unwrap();
    apply(&db, 8).await;
    assert_eq!((open(&db).await, last(&db).await), (vec![0, 7], Some(8)));
    for closed in [0, 7] {
        db.close_record(closed).await.unwrap();
    }
    apply(&db, 7).await;
    assert_eq!((open(&db).await, last(&db).await), (vec![], Some(8)));
}

async fn record_is_open_until_its_change_is_made(db: Db) {
    let states = async |seqs: [u64; 4]| {
        let mut states = Vec::new();
        for seq in seqs {
            states.push(db.is_record_open(seq).await.unwrap().unwrap());
        }
        states
    };
    assert_eq!(states([0, 1, 2, 3]).await, [true; 4], "none was applied");
    apply(&db, 2).await;
    apply(&db, 0).await;
    for _ in 0..2 {
        assert_eq!(states([0, 1, 2, 3]).await, [false, true, false, true]);
        // The question changes nothing.
        assert_eq!((open(&db).await, last(&db).await), (vec![1], Some(2)));
    }
    db.give_up_record(1).await.unwrap();
    assert_eq!(open(&db).await, [1]);
}

async fn taken_records_leave_the_skipped_ones_open(db: Db) {
    db.take_records(vec![6, 1, 3]).await.unwrap();
    assert_eq!((open(&db).await, last(&db).await), (vec![0, 2, 4, 5], Some(6)));
    db.take_records(vec![5, 2, 7]).await.unwrap();
    assert_eq!((open(&db).await, last(&db).await), (vec![0, 4], Some(7)));
    db.take_records(Vec::new()).await.unwrap();
    assert_eq!((open(&db).await, last(&db).await), (vec![0, 4], Some(7)));
}

async fn no_record_up_to_the_last_considered_one_is_open(db: Db) {
    let id = StoreId::from_bytes([1; 16]);
    apply(&db, 3).await;
    apply(&db, 6).await;
    assert_eq!(open(&db).await, [0, 1, 2, 4, 5]);
    db.set_store(id, None).await.unwrap();
    assert_eq!((open(&db).await, last(&db).await), (vec![0, 1, 2, 4, 5], Some(6)));
    db.set_store(id, Some(4)).await.unwrap();
    assert_eq!((open(&db).await, last(&db).await), (vec![5], Some(6)));
    db.set_store(id, Some(9)).await.unwrap();
    assert_eq!((open(&db).await, last(&db).await), (vec![], Some(9)));
    assert_eq!(db.store_mark().await.unwrap().id, Some(id));
}

async fn refused_change_opens_no_record(db: Db) {
    assert!(create(&db, 0).await.is_some());
    assert_eq!(create(&db, 5).await, None);
    assert_eq!((open(&db).await, last(&db).await), (vec![], Some(0)));
}
