//! The contract on names of blobs: no name is lost or used twice.

use super::files::{file, registration, term};
use super::{Db, NOW, SqliteIndex, hash, put, xorb};
use crate::format::xorb::LayoutBuilder;
use crate::index::{DeadObject, IndexErrorKind, NewXorb, ObjectSums, Registered, Staging, Ticket, Totals};
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

suite! {
    a_row_names_the_blob_of_the_upload_that_staged_it
    shorter_blob_replaces_the_old_one_which_becomes_dead
    a_replacement_needs_its_ticket_and_a_pending_name
    a_dead_object_is_listed_after_its_time_and_forgotten_once
    dead_objects_are_listed_by_pages_in_order_of_names
    damaged_blob_is_not_read_once_replaced
    adoption_of_a_dead_blob_takes_its_name_back
    times_of_objects_in_the_future_are_set_back
}

fn after(secs: u64) -> Timestamp {
    Timestamp::from_millis(NOW.as_millis() + secs * 1000)
}

/// The same xorb in a shorter serialization: 9 bytes per chunk.
fn short(byte: u8, chunk_count: u8) -> NewXorb {
    let mut layout = LayoutBuilder::new();
    for chunk in 1..=chunk_count {
        layout.push(9, u32::from(chunk) * 2).unwrap();
    }
    NewXorb { crc64: 55, layout: layout.finish().unwrap(), ..xorb(byte, chunk_count) }
}

async fn name(db: &Db, byte: u8) -> Incarnation {
    db.incarnation_of(hash(byte)).await.unwrap().unwrap()
}

/// Replaces a visible xorb; returns the names before and after.
async fn replace(db: &Db, byte: u8, now: Timestamp) -> (Incarnation, Incarnation) {
    let (before, ticket) = (name(db, byte).await, Ticket::random());
    db.stage_xorb(hash(byte), ticket, now).await.unwrap();
    db.begin_object(hash(byte), ticket.incarnation(), 27, now).await.unwrap();
    db.replace_xorb(short(byte, 3), ticket, ticket.incarnation(), now).await.unwrap();
    (before, ticket.incarnation())
}

async fn a_row_names_the_blob_of_the_upload_that_staged_it(db: Db) {
    let (first, second) = (Ticket::random(), Ticket::random());
    db.stage_xorb(hash(1), first, NOW).await.unwrap();
    assert_eq!(name(&db, 1).await, first.incarnation());
    assert_eq!(db.object_sums().await.unwrap(), ObjectSums::default());
    // The name of the first upload becomes a dead object, because its blob may exist.
    db.stage_xorb(hash(1), second, after(1)).await.unwrap();
    assert_eq!(name(&db, 1).await, second.incarnation());
    let dead = DeadObject { hash: hash(1), incarnation: first.incarnation(), len: 0 };
    assert_eq!(db.dead_objects(after(1), None, 9).await.unwrap(), [dead]);
    assert_eq!(db.find_replaced(hash(1), first.incarnation()).await.unwrap(), None);
    db.publish_xorb(xorb(1, 3), second, after(1)).await.unwrap();
    let row = db.find_xorb(hash(1)).await.unwrap().unwrap();
    assert_eq!(row.incarnation, second.incarnation());
    // A later upload of the live xorb changes the ticket, but not the name.
    db.stage_xorb(hash(1), Ticket::random(), after(2)).await.unwrap();
    assert_eq!(name(&db, 1).await, second.incarnation());
    let names = vec![
        (hash(1), first.incarnation()),
        (hash(1), second.incarnation()),
        (hash(1), Incarnation::UNNAMED),
        (hash(2), second.incarnation()),
    ];
    assert_eq!(db.unknown_names(names.clone()).await.unwrap(), names[2..]);
    assert!(!db.mark_object_dead(hash(1), second.incarnation(), 30, NOW).await.unwrap(), "a row has the name");
}

async fn shorter_blob_replaces_the_old_one_which_becomes_dead(db: Db) {
    put(&db, xorb(1, 3)).await;
    let new = registration("org/a", vec![file(9, &[term(1, 0, 3)])], &[1]);
    assert_eq!(db.register(&new).await.unwrap(), Registered::New);
    let charged = db.repo_usage("org/a".to_owned()).await.unwrap().physical_len;
    let generation = db.generation().await.unwrap();
    let (old, replacement) = replace(&db, 1, after(5)).await;
    let row = db.find_xorb(hash(1)).await.unwrap().unwrap();
    assert_eq!((row.incarnation, row.crc64, &row.layout), (replacement, 55, &short(1, 3).layout));
    assert_eq!((row.replaced_at, row.is_damaged), (None, false));
    assert_eq!(db.totals().await.unwrap(), Totals { xorb_count: 1, serialized_len: 27, raw_len: 12 });
    assert_eq!(db.repo_usage("org/a".to_owned()).await.unwrap().physical_len, charged - 3);
    assert_eq!(db.generation().await.unwrap(), generation, "the old blob can still be read");
    let replaced = db.find_replaced(hash(1), old).await.unwrap().unwrap();
    assert_eq!((replaced.incarnation, replaced.crc64, replaced.layout), (old, xorb(1, 3).crc64, xorb(1, 3).layout));
    assert_eq!(db.find_replaced(hash(1), replacement).await.unwrap(), None);
    assert_eq!(db.object_sums().await.unwrap(), ObjectSums { count: 1, len: 30 });
}

async fn a_replacement_needs_its_ticket_and_a_pending_name(db: Db) {
    put(&db, xorb(1, 3)).await;
    let (first, second) = (Ticket::random(), Ticket::random());
    let replace = async |ticket: Ticket, named: Ticket| {
        let replaced = db.replace_xorb(short(1, 3), ticket, named.incarnation(), NOW).await;
        replaced.map_err(|error| error.kind)
    };
    db.stage_xorb(hash(1), first, NOW).await.unwrap();
    assert_eq!(replace(first, first).await, Err(IndexErrorKind::Lost), "the name is not a pending object");
    db.begin_object(hash(1), first.incarnation(), 27, NOW).await.unwrap();
    db.stage_xorb(hash(1), second, NOW).await.unwrap();
    assert_eq!(replace(first, first).await, Err(IndexErrorKind::Lost), "another upload has the ticket");
    // Only a pending object is abandoned: the second call finds the object dead.
    assert_eq!(db.abandon_objects(NOW, after(1)).await.unwrap(), 1);
    assert_eq!(db.abandon_objects(after(9), after(9)).await.unwrap(), 0);
    assert_eq!(replace(second, first).await, Err(IndexErrorKind::Lost), "the object is dead");
    assert_eq!(db.find_xorb(hash(1)).await.unwrap().unwrap().layout, xorb(1, 3).layout);
    db.begin_object(hash(1), second.incarnation(), 27, NOW).await.unwrap();
    assert_eq!(replace(second, second).await, Ok(()));
    assert_eq!(name(&db, 1).await, second.incarnation());
}

async fn a_dead_object_is_listed_after_its_time_and_forgotten_once(db: Db) {
    put(&db, xorb(1, 3)).await;
    let (old, new) = replace(&db, 1, after(5)).await;
    let dead = DeadObject { hash: hash(1), incarnation: old, len: 30 };
    assert_eq!(db.dead_objects(after(4), None, 9).await.unwrap(), []);
    assert_eq!(db.dead_objects(after(5), None, 9).await.unwrap(), [dead]);
    assert_eq!(db.dead_objects(after(5), None, 0).await.unwrap(), []);
    assert!(!db.forget_object(hash(1), new).await.unwrap());
    assert!(db.forget_object(hash(1), old).await.unwrap());
    assert!(!db.forget_object(hash(1), old).await.unwrap());
    assert_eq!(db.object_sums().await.unwrap(), ObjectSums::default());
    db.begin_object(hash(2), new, 7, NOW).await.unwrap();
    assert!(!db.forget_object(hash(2), new).await.unwrap(), "the object is pending");
}

async fn dead_objects_are_listed_by_pages_in_order_of_names(db: Db) {
    let names = [(1, 3), (1, 9), (2, 1), (3, 1)].map(|(byte, number)| (hash(byte), Incarnation::from_number(number)));
    // The times are in another order.
    for (at, (hash, incarnation)) in names.iter().rev().enumerate() {
        db.mark_object_dead(*hash, *incarnation, 30, after(at as u64)).await.unwrap();
    }
    let (mut found, mut last) = (Vec::new(), None);
    loop {
        let page = db.dead_objects(after(9), last, 1).await.unwrap();
        let Some(object) = page.first() else { break };
        last = Some((object.hash, object.incarnation));
        found.extend(last);
    }
    assert_eq!(found, names);
    assert_eq!(db.dead_objects(after(9), Some(names[1]), 9).await.unwrap().len(), 2);
}

async fn damaged_blob_is_not_read_once_replaced(db: Db) {
    put(&db, xorb(1, 3)).await;
    let seen = db.find_health(hash(1)).await.unwrap().unwrap();
    assert!(db.mark_damaged(seen, NOW).await.unwrap());
    let generation = db.generation().await.unwrap();
    let (old, _) = replace(&db, 1, after(5)).await;
    assert!(db.generation().await.unwrap() > generation);
    assert_eq!(db.find_replaced(hash(1), old).await.unwrap(), None);
    assert!(!db.find_xorb(hash(1)).await.unwrap().unwrap().is_damaged);

    put(&db, xorb(2, 3)).await;
    let ticket = Ticket::random();
    db.stage_xorb(hash(2), ticket, NOW).await.unwrap();
    db.describe_xorb_again(short(2, 3), ticket, after(2)).await.unwrap();
    assert!(db.find_xorb(hash(2)).await.unwrap().unwrap().replaced_at.is_some());
    let (old, _) = replace(&db, 2, after(5)).await;
    // The replaced blob can be read, but not with plans from before its description was corrected.
    assert_eq!(db.find_replaced(hash(2), old).await.unwrap().unwrap().replaced_at, Some(after(2)));
    assert_eq!(db.find_xorb(hash(2)).await.unwrap().unwrap().replaced_at, None);
}

async fn adoption_of_a_dead_blob_takes_its_name_back(db: Db) {
    let name = Incarnation::from_number(7);
    assert!(db.mark_object_dead(hash(1), name, 30, NOW).await.unwrap());
    assert!(db.adopt_xorb(xorb(1, 3), name, Ticket::random(), NOW).await.unwrap());
    assert_eq!(db.find_xorb(hash(1)).await.unwrap().unwrap().incarnation, name);
    assert_eq!(db.dead_objects(after(9), None, 9).await.unwrap(), []);
    assert_eq!(db.stage_xorb(hash(1), Ticket::random(), NOW).await.unwrap(), Staging::Live { serialized_len: 30 });
}

async fn times_of_objects_in_the_future_are_set_back(db: Db) {
    let name = Incarnation::from_number(7);
    db.mark_object_dead(hash(1), name, 30, after(100)).await.unwrap();
    db.set_objects_back(after(5)).await.unwrap();
    assert_eq!(db.dead_objects(after(4), None, 9).await.unwrap(), []);
    assert_eq!(db.dead_objects(after(5), None, 9).await.unwrap().len(), 1);
}
