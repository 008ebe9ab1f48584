//! The contract on registrations in steps while other methods change the same files and limits.

use super::files::{file, file_hash, reader, registration, term};
use super::steps::{WHOLE, clear, several, stocked, take};
use super::usage::usage;
use super::{Db, NOW, SqliteIndex, hash};
use crate::format::shard::Term;
use crate::index::{Cursor, FileSwitch, IndexErrorKind, Limits, Registered, RunSwitch, Switched};

suite! {
    registration_that_lost_rows_to_another_cannot_be_published
    compaction_sees_no_file_of_an_unpublished_registration
    each_step_must_fit_the_limit_after_removals
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
