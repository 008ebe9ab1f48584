//! The contract on lists.

use super::files::{file, file_hash, reader, registration, sha256, term};
use super::{Db, NOW, SqliteIndex, hash, put, xorb};
use crate::index::{Claim, ClaimState, FileEntry, Reader, Registered, Registration, Ticket, XorbEntry};
use crate::runtime::clock::Timestamp;

suite_in_steps! {
    files_are_listed_by_hash_to_their_readers_only
    long_page_has_each_file_and_xorb_once
    list_shows_the_claimed_sha256_and_later_the_true_one
    list_shows_when_the_repository_itself_registered_a_file
    xorbs_are_listed_when_readers_may_see_them
}

async fn files_are_listed_by_hash_to_their_readers_only(db: Db) {
    put(&db, xorb(1, 3)).await;
    for (repo, bytes) in [("org/a", [0xf0, 3, 1]), ("org/b", [2, 3, 0x80])] {
        let files = bytes.iter().map(|byte| file(*byte, &[term(1, 0, 2)])).collect();
        assert_eq!(db.register(&registration(repo, files, &[1])).await.unwrap(), Registered::New);
    }
    let list = async |reader: Reader, after: Option<u8>, limit| -> Vec<u8> {
        let files = db.files_after(reader, after.map(file_hash), limit).await.unwrap();
        files.iter().map(|file| file.hash.as_bytes()[0]).collect()
    };
    assert_eq!(list(Reader::All, None, 10).await, [1, 2, 3, 0x80, 0xf0]);
    assert_eq!(list(Reader::All, None, 2).await, [1, 2]);
    assert_eq!(list(Reader::All, Some(2), 2).await, [3, 0x80]);
    assert_eq!(list(Reader::All, Some(0xf0), 2).await, [0; 0]);
    assert_eq!(list(reader("org/a"), None, 10).await, [1, 3, 0xf0]);
    assert_eq!(list(reader("org/b"), Some(1), 2).await, [2, 3]);
    assert_eq!(list(reader("org/c"), None, 10).await, [0; 0]);
    let first = db.files_after(Reader::All, None, 1).await.unwrap();
    assert_eq!(first, [FileEntry { hash: file_hash(1), raw_len: 2000, sha256: None, registered: NOW }]);
}

/// SQLite reads a page in parts of 100.
async fn long_page_has_each_file_and_xorb_once(db: Db) {
    let bytes: Vec<u8> = (1..=250).collect();
    for byte in &bytes {
        put(&db, xorb(*byte, 1)).await;
    }
    let files = bytes.iter().map(|byte| file(*byte, &[term(1, 0, 1)])).collect();
    db.register(&registration("org/a", files, &[1])).await.unwrap();
    for (after, limit) in [(0_u8, 1000), (0, 250), (0, 100), (0, 101), (0, 200), (50, 200), (51, 200), (151, 99)] {
        let expected: Vec<u8> = bytes.iter().copied().filter(|byte| *byte > after).take(limit as usize).collect();
        for reader in [Reader::All, reader("org/a")] {
            let files = db.files_after(reader, Some(file_hash(after)), limit).await.unwrap();
            let listed: Vec<u8> = files.iter().map(|file| file.hash.as_bytes()[0]).collect();
            assert_eq!(listed, expected, "{limit} after {after}");
        }
        let xorbs = db.xorbs_after(Some(hash(after)), limit).await.unwrap();
        let listed: Vec<u8> = xorbs.iter().map(|xorb| xorb.hash.as_bytes()[0]).collect();
        assert_eq!(listed, expected, "{limit} after {after}");
    }
}

async fn list_shows_the_claimed_sha256_and_later_the_true_one(db: Db) {
    put(&db, xorb(1, 3)).await;
    let mut claimed = file(1, &[term(1, 0, 2)]);
    claimed.sha256 = Some(sha256(7));
    db.register(&registration("org/a", vec![claimed], &[1])).await.unwrap();
    let same = file(1, &[term(1, 0, 2)]);
    db.register(&registration("org/b", vec![same], &[1])).await.unwrap();
    let shown = async |reader| db.files_after(reader, None, 1).await.unwrap()[0].sha256;
    // Until the sha256 is verified, only the repository that claims it sees it.
    assert_eq!(shown(reader("org/a")).await, Some(sha256(7)));
    assert_eq!((shown(reader("org/b")).await, shown(Reader::All).await), (None, None));
    let claim = Claim { file: file_hash(1), sha256: sha256(7) };
    assert!(db.settle_claim(claim, ClaimState::False { actual: sha256(8) }).await.unwrap());
    assert_eq!((shown(reader("org/b")).await, shown(Reader::All).await), (Some(sha256(8)), Some(sha256(8))));
}

/// The time of another repository would tell that it has the file.
async fn list_shows_when_the_repository_itself_registered_a_file(db: Db) {
    put(&db, xorb(1, 3)).await;
    let later = |secs: u64| Timestamp::from_millis(NOW.as_millis() + 1000 * secs);
    let register = async |repo, secs| {
        let new = registration(repo, vec![file(1, &[term(1, 0, 2)])], &[1]);
        db.register(&Registration { now: later(secs), ..new }).await.unwrap();
    };
    let shown = async |reader| db.files_after(reader, None, 1).await.unwrap()[0].registered;
    register("org/a", 0).await;
    register("org/b", 1).await;
    // The file is known, so this changes nothing.
    register("org/b", 2).await;
    assert_eq!([shown(reader("org/a")).await, shown(reader("org/b")).await], [later(0), later(1)]);
    assert_eq!(shown(Reader::All).await, later(0));
    db.remove_claims(file_hash(1), Some("org/b".to_owned()), later(3)).await.unwrap();
    register("org/b", 4).await;
    db.remove_claims(file_hash(1), Some("org/a".to_owned()), later(5)).await.unwrap();
    assert_eq!(shown(reader("org/b")).await, later(4));
}

async fn xorbs_are_listed_when_readers_may_see_them(db: Db) {
    for (byte, count) in [(0xee, 3), (1, 7), (5, 1)] {
        put(&db, xorb(byte, count)).await;
    }
    db.stage_xorb(hash(2), Ticket::random(), NOW).await.unwrap();
    let all = db.xorbs_after(None, 10).await.unwrap();
    assert_eq!(all.iter().map(|xorb| xorb.hash).collect::<Vec<_>>(), [hash(1), hash(5), hash(0xee)]);
    // Chunk number n has a header of 8 bytes and n bytes, which are 2 n raw bytes.
    let expected = XorbEntry { hash: hash(1), chunk_count: 7, serialized_len: 7 * 8 + 28, raw_len: 56 };
    assert_eq!(db.xorbs_after(None, 1).await.unwrap(), [expected]);
    assert_eq!(db.xorbs_after(Some(hash(1)), 10).await.unwrap(), all[1..]);
}
