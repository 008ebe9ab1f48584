//! The contract on backups and restores.

use std::collections::BTreeMap;

use super::files::{file, registration, sha256, term};
use super::{ANY_LEN, Db, NOW, SqliteIndex, hash, put, xorb};
use crate::format::{ChunkHash, FileHash};
use crate::index::{
    ArchiveIndex, Claim, ClaimState, FileRecord, IndexErrorKind, NewFile, Reader, Registration, RestoredFile,
    Sha256State, XorbIndex,
};
use crate::runtime::clock::Timestamp;

suite_in_steps! {
    file_records_have_terms_repositories_and_sha256_claims
    file_records_come_in_pages_in_ascending_order_each_once
    restored_file_is_found_like_a_registered_one
    restored_file_replaces_the_existing_one
    files_without_their_xorbs_are_not_restored
}

const LATER: Timestamp = Timestamp::from_millis(1_700_000_000_001);
const LATEST: Timestamp = Timestamp::from_millis(1_700_000_000_002);

fn at(byte: u8) -> FileHash {
    FileHash::from_bytes([byte; 32])
}

/// All file records, page by page.
async fn records(db: &Db) -> Vec<FileRecord> {
    let (mut records, mut after) = (Vec::new(), None);
    loop {
        let page = db.file_records(after).await.unwrap();
        let Some(last) = page.last() else { return records };
        after = Some(last.hash);
        records.extend(page);
    }
}

fn record(byte: u8, repos: &[&str]) -> FileRecord {
    FileRecord {
        hash: at(byte),
        raw_len: 2000,
        terms: vec![term(1, 0, 2)],
        since: NOW,
        sha256: None,
        repos: repos.iter().map(|repo| (*repo).to_owned()).collect(),
        later: BTreeMap::new(),
        claimants: Vec::new(),
        owners: vec![(hash(1), "org".to_owned())],
    }
}

async fn file_records_have_terms_repositories_and_sha256_claims(db: Db) {
    put(&db, xorb(1, 3)).await;
    let states = [None, Some(Sha256State::Claimed), Some(Sha256State::Verified)];
    let mut expected = Vec::new();
    for (byte, state) in (1..).zip(states) {
        let claimed = state.map(|_| sha256(byte));
        for (repo, sha256, now) in [("org/b", claimed, NOW), ("org/a", claimed, LATER), ("org/c", None, LATEST)] {
            let new = NewFile { sha256, ..file(byte, &[term(1, 0, 2)]) };
            db.register(&Registration { now, ..registration(repo, vec![new], &[1]) }).await.unwrap();
        }
        let settled = match state {
            Some(Sha256State::Verified) => Some(ClaimState::Verified),
            _ => None,
        };
        if let (Some(sha256), Some(settled)) = (claimed, settled) {
            assert!(db.settle_claim(Claim { file: at(byte), sha256 }, settled).await.unwrap());
        }
        let claimants = match state {
            Some(Sha256State::Claimed) => vec!["org/a".to_owned(), "org/b".to_owned()],
            Some(Sha256State::Verified) | None => Vec::new(),
        };
        let repos = ["org/a", "org/b", "org/c"];
        let later = BTreeMap::from([("org/a".to_owned(), LATER), ("org/c".to_owned(), LATEST)]);
        expected.push(FileRecord { sha256: claimed.zip(state), later, claimants, ..record(byte, &repos) });
    }
    assert_eq!(records(&db).await, expected);
    assert_eq!(db.file_records(Some(at(3))).await.unwrap(), []);
}

async fn file_records_come_in_pages_in_ascending_order_each_once(db: Db) {
    put(&db, xorb(1, 3)).await;
    // More files than a page holds, and two files whose terms fill a page each.
    let mut files: Vec<NewFile> = (0..1200_u32)
        .map(|number| {
            let mut hash = [0x55; 32];
            hash[..4].copy_from_slice(&number.wrapping_mul(2_654_435_761).to_be_bytes());
            NewFile { hash: FileHash::from_bytes(hash), ..file(1, &[term(1, 0, 1)]) }
        })
        .collect();
    let many = vec![term(1, 0, 1); 100_000];
    files.extend([3, 200].map(|byte| file(byte, &many)));
    db.register(&registration("r", files.clone(), &[1])).await.unwrap();
    let first = db.file_records(None).await.unwrap();
    assert!(first.len() < 600, "{}", first.len());
    let hashes: Vec<FileHash> = records(&db).await.iter().map(|record| record.hash).collect();
    let mut expected: Vec<FileHash> = files.iter().map(|file| file.hash).collect();
    expected.sort_unstable_by_key(|hash| *hash.as_bytes());
    assert_eq!(hashes, expected);
}

async fn restored_file_is_found_like_a_registered_one(db: Db) {
    put(&db, xorb(1, 3)).await;
    let chunk = ChunkHash::from_bytes([1; 32]);
    let record = FileRecord {
        since: Timestamp::from_millis(5),
        later: BTreeMap::from([("org/b".to_owned(), Timestamp::from_millis(7))]),
        sha256: Some((sha256(8), Sha256State::Claimed)),
        claimants: vec!["org/b".to_owned()],
        ..record(9, &["org/a", "org/b"])
    };
    let restored = RestoredFile { record: record.clone(), dedup: vec![(chunk, hash(1))] };
    db.restore_files(vec![restored]).await.unwrap();
    assert_eq!(records(&db).await, [record]);
    let found = db
        .find_file(at(9), Reader::Repo("org/b".to_owned()), crate::format::ByteRange::new(0, u64::MAX))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((found.raw_len, found.terms), (2000, vec![term(1, 0, 2)]));
    for (repo, since) in [("org/a", 5), ("org/b", 7)] {
        let listed = db.files_after(Reader::Repo(repo.to_owned()), None, 9).await.unwrap();
        assert_eq!(listed[0].registered, Timestamp::from_millis(since), "{repo}");
    }
    let readers = [("org/a".to_owned(), false), ("org/b".to_owned(), true)];
    assert_eq!(db.readers_of(at(9)).await.unwrap(), readers);
    assert_eq!(db.unverified_claims(ANY_LEN, None, 9).await.unwrap(), [Claim { file: at(9), sha256: sha256(8) }]);
    assert_eq!(db.find_dedup(chunk, Some("org".to_owned()), NOW..=NOW).await.unwrap().unwrap().xorb, hash(1));
    assert_eq!(db.find_dedup(chunk, Some("other".to_owned()), NOW..=NOW).await.unwrap(), None);
}

async fn restored_file_replaces_the_existing_one(db: Db) {
    put(&db, xorb(1, 3)).await;
    let restored = |record: FileRecord| RestoredFile { record, dedup: Vec::new() };
    let verified = FileRecord { sha256: Some((sha256(8), Sha256State::Verified)), ..record(9, &["org/b"]) };
    db.restore_files(vec![restored(record(9, &["org/a"])), restored(verified.clone())]).await.unwrap();
    assert_eq!(records(&db).await, std::slice::from_ref(&verified));
    db.restore_files(vec![restored(verified.clone())]).await.unwrap();
    assert_eq!(records(&db).await, [verified]);
}

/// If one file names a missing xorb, no file of the same call is restored.
async fn files_without_their_xorbs_are_not_restored(db: Db) {
    put(&db, xorb(1, 3)).await;
    let restored = |record: FileRecord| RestoredFile { record, dedup: Vec::new() };
    let missing = FileRecord { terms: vec![term(2, 0, 2)], ..record(8, &["r"]) };
    let error = db.restore_files(vec![restored(record(9, &["r"])), restored(missing)]).await.unwrap_err();
    assert_eq!(error.kind, IndexErrorKind::Lost);
    assert_eq!(records(&db).await, []);
}

/// Methods that change the index fail.
#[tokio::test]
async fn read_only_index_reads_with_or_without_a_writer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("index.sqlite");
    assert!(SqliteIndex::open_read_only(&path).await.is_err());
    assert!(!path.exists());

    let writer = SqliteIndex::open(&path).await.unwrap();
    let db: Db = std::sync::Arc::new(writer.clone());
    put(&db, xorb(1, 3)).await;
    let reader = SqliteIndex::open_read_only(&path).await.unwrap();
    assert_eq!(reader.list_xorbs().await.unwrap(), [hash(1)]);
    put(&db, xorb(2, 3)).await;
    assert_eq!(reader.list_xorbs().await.unwrap().len(), 2);
    assert!(reader.abandon_xorb(hash(1), NOW).await.is_err());
    let restored = RestoredFile { record: record(9, &["r"]), dedup: Vec::new() };
    assert!(reader.restore_files(vec![restored]).await.is_err());
    reader.close().await;
    writer.close().await;

    let reader = SqliteIndex::open_read_only(&path).await.unwrap();
    assert_eq!(reader.list_xorbs().await.unwrap().len(), 2);
    reader.close().await;
    // The next server finds the index unchanged.
    let writer = SqliteIndex::open(&path).await.unwrap();
    assert_eq!(writer.list_xorbs().await.unwrap().len(), 2);
    writer.close().await;
}

#[tokio::test]
async fn an_index_of_another_version_or_of_something_else_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("index.sqlite");
    let index = SqliteIndex::open(&path).await.unwrap();
    index.pretend_version(999).await;
    index.close().await;
    let error = SqliteIndex::open_read_only(&path).await.unwrap_err();
    assert!(crate::runtime::telemetry::chain(&error).contains("its schema has version 999"), "{error:?}");
    let other = directory.path().join("other");
    #[expect(clippy::disallowed_methods, reason = "a test may write a file plainly")]
    std::fs::write(&other, [b'x'; 4096]).unwrap();
    assert!(SqliteIndex::open_read_only(&other).await.is_err());
}
