//! The contract on marks of damage, on repairs of blobs, and on the order of verification.

use super::backends::{Backend, TestIndex};
use super::files::{WHOLE, file, file_hash, reader, registration, term};
use super::{Db, NOW, SqliteIndex, hash, put, xorb};
use crate::format::ChunkHash;
use crate::format::compression::Scheme;
use crate::format::xorb::LayoutBuilder;
use crate::index::{
    AffectedFiles, HealthSums, IndexErrorKind, NewFile, NewXorb, Registered, SpentGrant, Staging, Ticket, Totals,
};
use crate::runtime::clock::Timestamp;

suite! {
    upload_counts_as_verification_and_the_oldest_is_due_first
    damaged_xorb_is_marked_and_counts_as_absent_for_uploads
    a_mark_hits_only_the_row_that_was_seen
    repair_describes_another_serialization_and_keeps_sums
    repair_under_an_old_ticket_changes_nothing
    repair_in_the_same_serialization_sets_no_replaced_at
    invisible_xorb_is_neither_due_nor_marked
    known_file_of_a_damaged_xorb_is_not_acknowledged_again
    a_xorb_names_the_files_that_need_it_up_to_a_limit
}

suite_with_hooks! {
    unverified_xorb_is_due_first_and_heal_repairs_its_row
}

fn after(secs: u64) -> Timestamp {
    Timestamp::from_millis(NOW.as_millis() + secs * 1000)
}

/// The xorb in another serialization: every serialized chunk is three bytes longer.
fn other(byte: u8, chunk_count: u8) -> NewXorb {
    let mut layout = LayoutBuilder::new();
    for chunk in 1..=chunk_count {
        layout.push(11 + u32::from(chunk), u32::from(chunk) * 2).unwrap();
    }
    let schemes = vec![Scheme::from_byte(0).unwrap(); chunk_count.into()];
    NewXorb { crc64: 77, layout: layout.finish().unwrap(), schemes, ..xorb(byte, chunk_count) }
}

async fn mark(db: &Db, byte: u8) {
    let seen = db.find_health(hash(byte)).await.unwrap().unwrap();
    assert!(db.mark_damaged(seen, NOW).await.unwrap());
}

async fn due(db: &Db, before: Timestamp) -> Vec<u8> {
    let due = db.due_xorbs(before, 10).await.unwrap();
    due.iter().map(|xorb| xorb.hash.as_bytes()[0]).collect()
}

async fn upload_counts_as_verification_and_the_oldest_is_due_first(db: Db) {
    for byte in [3, 1, 2] {
        let ticket = Ticket::random();
        db.stage_xorb(hash(byte), ticket, NOW).await.unwrap();
        db.publish_xorb(xorb(byte, 2), ticket, after(byte.into())).await.unwrap();
    }
    assert_eq!(due(&db, after(1)).await, [0; 0]);
    assert_eq!(due(&db, after(3)).await, [1, 2]);
    assert_eq!(due(&db, after(9)).await, [1, 2, 3]);
    assert_eq!(db.health_sums().await.unwrap(), HealthSums { damaged_count: 0, oldest: Some(after(1)) });
    let seen = db.find_health(hash(1)).await.unwrap().unwrap();
    assert_eq!((seen.serialized_len, seen.crc64, seen.damaged_at), (19, u64::MAX - 1, None));
    assert!(db.mark_sound(seen, after(8)).await.unwrap());
    assert_eq!(due(&db, after(9)).await, [2, 3, 1]);
    assert_eq!(db.due_xorbs(after(9), 2).await.unwrap().len(), 2);
}

async fn damaged_xorb_is_marked_and_counts_as_absent_for_uploads(db: Db) {
    put(&db, xorb(1, 3)).await;
    put(&db, xorb(2, 3)).await;
    let mut new = registration("org/a", vec![file(9, &[])], &[1, 2]);
    new.dedup = vec![(ChunkHash::from_bytes([1; 32]), hash(1))];
    assert_eq!(db.register(&new).await.unwrap(), Registered::New);
    let chunk = ChunkHash::from_bytes([1; 32]);
    assert!(db.find_dedup(chunk, None, NOW..=NOW).await.unwrap().is_some());
    mark(&db, 1).await;

    assert!(db.find_xorb(hash(1)).await.unwrap().unwrap().is_damaged);
    assert!(!db.find_xorb(hash(2)).await.unwrap().unwrap().is_damaged);
    assert!(!db.renew_xorb(hash(1), None, NOW).await.unwrap());
    assert_eq!(db.find_dedup(chunk, None, NOW..=NOW).await.unwrap(), None);
    assert_eq!(db.register(&new).await.unwrap(), Registered::DamagedXorb(hash(1)));
    assert_eq!(db.stage_xorb(hash(1), Ticket::random(), NOW).await.unwrap(), Staging::Damaged);
    assert_eq!(db.health_sums().await.unwrap().damaged_count, 1);
    assert_eq!(db.damaged_after(None, 10).await.unwrap().len(), 1);
    assert_eq!(db.damaged_after(Some(hash(1)), 10).await.unwrap(), []);
    assert_eq!(due(&db, after(1)).await, [2]);
    // If a check finds the blob sound again, everything is as before.
    let seen = db.find_health(hash(1)).await.unwrap().unwrap();
    assert!(db.mark_sound(seen, NOW).await.unwrap());
    assert_eq!(db.register(&new).await.unwrap(), Registered::Known);
    assert!(db.find_dedup(chunk, None, NOW..=NOW).await.unwrap().is_some());
}

async fn a_mark_hits_only_the_row_that_was_seen(db: Db) {
    put(&db, xorb(1, 3)).await;
    let seen = db.find_health(hash(1)).await.unwrap().unwrap();
    // The xorb was uploaded again since `seen`, so a result for `seen` no longer applies.
    let staged = db.stage_xorb(hash(1), Ticket::random(), NOW).await.unwrap();
    assert_eq!(staged, Staging::Live { serialized_len: 30 });
    assert!(!db.mark_damaged(seen, NOW).await.unwrap());
    assert!(!db.mark_sound(seen, after(5)).await.unwrap());
    let seen = db.find_health(hash(1)).await.unwrap().unwrap();
    assert_eq!((seen.damaged_at, seen.verified_at), (None, Some(NOW)));
    assert!(db.mark_damaged(seen, after(1)).await.unwrap());
    assert!(!db.mark_damaged(seen, after(2)).await.unwrap());
    assert_eq!(db.find_health(hash(1)).await.unwrap().unwrap().damaged_at, Some(after(1)));
}

/// The sums are those over all visible xorbs.
async fn repair_describes_another_serialization_and_keeps_sums(db: Db) {
    put(&db, xorb(1, 3)).await;
    assert_eq!(db.register(&registration("org/a", vec![file(9, &[])], &[1])).await.unwrap(), Registered::New);
    mark(&db, 1).await;
    let (seen, ticket) = (db.find_health(hash(1)).await.unwrap().unwrap(), Ticket::random());
    assert_eq!(db.stage_xorb(hash(1), ticket, NOW).await.unwrap(), Staging::Damaged);
    let grant = SpentGrant { nonce: [4; 16], expires: NOW };
    let new = NewXorb { grant: Some(grant), owner: Some("other".to_owned()), ..other(1, 3) };
    db.describe_xorb_again(new.clone(), ticket, after(2)).await.unwrap();

    let row = db.find_xorb(hash(1)).await.unwrap().unwrap();
    assert_eq!((row.crc64, row.layout, row.is_damaged), (77, new.layout.clone(), false));
    assert_eq!(row.replaced_at, Some(after(2)));
    let chunks = db.find_chunks(hash(1)).await.unwrap().unwrap();
    assert_eq!((chunks.hashes, chunks.schemes), (new.chunk_hashes, new.schemes));
    assert_eq!(db.totals().await.unwrap(), Totals { xorb_count: 1, serialized_len: 39, raw_len: 12 });
    assert!(db.is_grant_spent([4; 16]).await.unwrap());
    assert!(db.renew_xorb(hash(1), Some("other".to_owned()), NOW).await.unwrap());
    assert!(db.renew_xorb(hash(1), Some("org".to_owned()), NOW).await.unwrap());
    let repaired = db.find_health(hash(1)).await.unwrap().unwrap();
    assert_eq!((repaired.damaged_at, repaired.verified_at), (None, Some(after(2))));
    // Results of checks before the repair are obsolete, and so is the ticket that the repair used.
    assert!(!db.mark_damaged(seen, NOW).await.unwrap());
    assert!(!db.mark_damaged(crate::index::XorbHealth { ticket, ..repaired }, NOW).await.unwrap());
    assert_eq!(db.describe_xorb_again(other(1, 3), ticket, NOW).await.unwrap_err().kind, IndexErrorKind::Lost);
}

/// Its stored terms stay, so that it cannot be read, whatever sound xorbs the client names.
async fn known_file_of_a_damaged_xorb_is_not_acknowledged_again(db: Db) {
    put(&db, xorb(1, 3)).await;
    put(&db, xorb(2, 3)).await;
    let first = registration("org/a", vec![file(9, &[term(1, 0, 2)])], &[]);
    assert_eq!(db.register(&first).await.unwrap(), Registered::New);
    mark(&db, 1).await;
    let other = NewFile { hash: file_hash(9), ..file(9, &[term(2, 0, 2)]) };
    for repo in ["org/a", "org/b"] {
        let again = registration(repo, vec![other.clone()], &[]);
        assert_eq!(db.register(&again).await.unwrap(), Registered::DamagedXorb(hash(1)), "{repo}");
    }
    assert!(db.find_file(file_hash(9), reader("org/b"), WHOLE).await.unwrap().is_none());
    let beside = registration("org/b", vec![file(8, &[term(2, 0, 2)])], &[]);
    assert_eq!(db.register(&beside).await.unwrap(), Registered::New, "other files can be registered");
    let ticket = Ticket::random();
    assert_eq!(db.stage_xorb(hash(1), ticket, NOW).await.unwrap(), Staging::Damaged);
    db.describe_xorb_again(xorb(1, 3), ticket, after(2)).await.unwrap();
    let again = registration("org/b", vec![other], &[]);
    assert_eq!(db.register(&again).await.unwrap(), Registered::New);
}

async fn repair_under_an_old_ticket_changes_nothing(db: Db) {
    put(&db, xorb(1, 3)).await;
    mark(&db, 1).await;
    let (first, second) = (Ticket::random(), Ticket::random());
    db.stage_xorb(hash(1), first, NOW).await.unwrap();
    db.stage_xorb(hash(1), second, NOW).await.unwrap();
    assert_eq!(db.describe_xorb_again(other(1, 3), first, NOW).await.unwrap_err().kind, IndexErrorKind::Lost);
    assert!(db.find_xorb(hash(1)).await.unwrap().unwrap().is_damaged);
    assert_eq!(db.totals().await.unwrap().serialized_len, 30);
    db.describe_xorb_again(other(1, 3), second, NOW).await.unwrap();
    assert!(!db.find_xorb(hash(1)).await.unwrap().unwrap().is_damaged);
}

async fn repair_in_the_same_serialization_sets_no_replaced_at(db: Db) {
    put(&db, xorb(1, 3)).await;
    mark(&db, 1).await;
    let ticket = Ticket::random();
    db.stage_xorb(hash(1), ticket, NOW).await.unwrap();
    db.describe_xorb_again(xorb(1, 3), ticket, after(1)).await.unwrap();
    assert_eq!(db.find_xorb(hash(1)).await.unwrap().unwrap().replaced_at, None);
    // An equal CRC does not suffice: an uploader can choose bytes with a given CRC. The layout is
    // compared, too.
    mark(&db, 1).await;
    let ticket = Ticket::random();
    db.stage_xorb(hash(1), ticket, NOW).await.unwrap();
    db.describe_xorb_again(NewXorb { crc64: xorb(1, 3).crc64, ..other(1, 3) }, ticket, after(2)).await.unwrap();
    assert_eq!(db.find_xorb(hash(1)).await.unwrap().unwrap().replaced_at, Some(after(2)));
}

async fn invisible_xorb_is_neither_due_nor_marked(db: Db) {
    let ticket = Ticket::random();
    db.stage_xorb(hash(1), ticket, NOW).await.unwrap();
    assert_eq!(db.find_health(hash(1)).await.unwrap(), None);
    assert_eq!(due(&db, after(1)).await, [0; 0]);
    db.publish_xorb(xorb(1, 1), ticket, NOW).await.unwrap();
    let seen = db.find_health(hash(1)).await.unwrap().unwrap();
    db.stage_xorb(hash(2), ticket, NOW).await.unwrap();
    let staged = crate::index::XorbHealth { hash: hash(2), ..seen };
    assert!(!db.mark_damaged(staged, NOW).await.unwrap());
    assert!(!db.mark_sound(staged, NOW).await.unwrap());
    assert_eq!(db.describe_xorb_again(other(2, 1), ticket, NOW).await.unwrap_err().kind, IndexErrorKind::Lost);
}

async fn a_xorb_names_the_files_that_need_it_up_to_a_limit(db: Db) {
    put(&db, xorb(1, 3)).await;
    assert_eq!(db.affected_files(hash(1), 5).await.unwrap(), AffectedFiles::default());
    let terms = [super::files::term(1, 0, 2)];
    for byte in 1..=3 {
        db.register(&registration("org/a", vec![file(byte, &terms)], &[1])).await.unwrap();
    }
    let hit = db.affected_files(hash(1), 2).await.unwrap();
    assert_eq!(hit, AffectedFiles { files: vec![file_hash(1), file_hash(2)], count: 3 });
}

/// The row does not parse.
async fn unverified_xorb_is_due_first_and_heal_repairs_its_row<B: Backend>() {
    let (_place, index) = B::fresh().await;
    let db: Db = std::sync::Arc::new(index.clone());
    put(&db, xorb(1, 3)).await;
    put(&db, xorb(2, 3)).await;
    index.tamper("UPDATE xorbs SET verified_at = NULL, layout = x'00' WHERE hash = x'0202020202020202020202020202020202020202020202020202020202020202'").await;
    assert_eq!(due(&db, after(1)).await, [2, 1]);
    assert_eq!(db.health_sums().await.unwrap().oldest, None);
    assert_eq!(db.find_xorb(hash(2)).await.unwrap_err().kind, IndexErrorKind::Inconsistent);
    let seen = db.find_health(hash(2)).await.unwrap().unwrap();
    db.describe_xorb_again(other(2, 3), seen.ticket, after(1)).await.unwrap();
    assert_eq!(db.find_xorb(hash(2)).await.unwrap().unwrap().layout, other(2, 3).layout);
}
