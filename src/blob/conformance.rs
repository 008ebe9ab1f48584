//! The contract of [`BlobStore`] as a test suite. Every implementation must pass all of it.

use std::sync::Arc;

use futures_util::StreamExt;

use super::fs::FsBlobStore;
use super::memory::MemoryBlobStore;
use super::{BlobErrorKind, BlobKey, BlobStore};
use crate::format::{ByteRange, XorbHash};
use crate::runtime::blocking::Pool;
use crate::runtime::incarnation::Incarnation;

type Store = Arc<dyn BlobStore>;

/// Runs each case on fresh stores: in memory, on disk in three configurations, and in a bucket.
macro_rules! suite {
    ($($case:ident)*) => {
        mod memory {
            $(#[tokio::test] async fn $case() { super::$case(super::Arc::new(super::MemoryBlobStore::new())).await; })*
        }
        mod fs {
            $(#[tokio::test] async fn $case() {
                let directory = tempfile::tempdir().unwrap();
                let store = super::FsBlobStore::open(directory.path(), super::Pool::new(2)).unwrap();
                super::$case(super::Arc::new(store)).await;
            })*
        }
        mod fs_writing_directly {
            $(#[tokio::test] async fn $case() {
                let directory = tempfile::tempdir().unwrap();
                let store = super::FsBlobStore::open(directory.path(), super::Pool::new(2)).unwrap().writing_directly(true);
                super::$case(super::Arc::new(store)).await;
            })*
        }
        mod fs_keeping_files_open {
            $(#[tokio::test] async fn $case() {
                let directory = tempfile::tempdir().unwrap();
                let store = super::FsBlobStore::open(directory.path(), super::Pool::new(2)).unwrap().with_open_files(2);
                super::$case(super::Arc::new(store)).await;
            })*
        }
        #[cfg(feature = "s3")]
        mod s3 {
            $(#[tokio::test] async fn $case() {
                let test = super::super::s3::test_bucket::TestBucket::start().await;
                super::$case(super::Arc::new(test.blobs())).await;
            })*
        }
    };
}

suite! {
    a_published_blob_is_read_back_in_any_range
    draft_is_invisible_until_published_and_removed_when_dropped
    a_read_past_the_end_is_an_error_and_never_short
    second_publication_replaces_the_blob_but_not_for_readers
    incarnations_of_a_xorb_are_separate_blobs
    deletion_of_a_missing_blob_succeeds
    each_read_returns_the_last_published_blob
    blob_of_several_pieces_and_an_odd_length_is_read_whole
    probing_leaves_nothing_behind
    long_blob_is_read_whole
}

fn key(byte: u8) -> BlobKey {
    BlobKey::new(XorbHash::from_bytes([byte; 32]), Incarnation::from_number(7))
}

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

async fn put(store: &Store, key: BlobKey, bytes: &[u8]) {
    let mut draft = store.draft().unwrap();
    draft.write(bytes).unwrap();
    draft.publish(key).await.unwrap();
}

async fn get(store: &Store, key: BlobKey, range: ByteRange) -> Result<Vec<u8>, BlobErrorKind> {
    let mut stream = store.read(key, range).await.map_err(|error| error.kind)?.expect("the blob exists");
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await {
        bytes.extend_from_slice(&piece.map_err(|error| error.kind)?);
    }
    Ok(bytes)
}

async fn a_published_blob_is_read_back_in_any_range(store: Store) {
    put(&store, key(1), b"0123456789").await;
    for start in 0..10_usize {
        for end in start + 1..=10 {
            let expected = b"0123456789"[start..end].to_vec();
            assert_eq!(get(&store, key(1), range(start as u64, end as u64)).await, Ok(expected), "{start}-{end}");
        }
    }
    assert_eq!(store.head(key(1)).await.unwrap(), Some(10));
    assert_eq!(store.list().await.unwrap(), [key(1)]);
}

async fn draft_is_invisible_until_published_and_removed_when_dropped(store: Store) {
    let mut draft = store.draft().unwrap();
    draft.write(b"bytes").unwrap();
    assert_eq!(store.list().await.unwrap(), []);
    drop(draft);
    assert_eq!(store.remove_stray_drafts().await.unwrap(), 0);
    assert!(store.read(key(1), range(0, 1)).await.unwrap().is_none());
    assert_eq!(store.head(key(1)).await.unwrap(), None);
}

async fn a_read_past_the_end_is_an_error_and_never_short(store: Store) {
    put(&store, key(1), b"0123456789").await;
    for (start, end) in [(0, 11), (9, 11), (10, 11), (11, 12), (5, u64::MAX)] {
        assert_eq!(get(&store, key(1), range(start, end)).await, Err(BlobErrorKind::Corrupt), "{start}-{end}");
    }
}

/// A read that began before the second publication continues with the first blob.
async fn second_publication_replaces_the_blob_but_not_for_readers(store: Store) {
    put(&store, key(1), b"first").await;
    let mut reader = store.read(key(1), range(0, 5)).await.unwrap().unwrap();
    put(&store, key(1), b"other").await;
    assert_eq!(reader.next().await.unwrap().unwrap(), "first");
    assert_eq!(get(&store, key(1), range(0, 5)).await, Ok(b"other".to_vec()));
}

async fn incarnations_of_a_xorb_are_separate_blobs(store: Store) {
    let hash = key(1).xorb_hash();
    let other = BlobKey::new(hash, Incarnation::from_number(u64::MAX));
    let unnamed = BlobKey::new(hash, Incarnation::UNNAMED);
    for (key, bytes) in [(unnamed, b"older"), (key(1), b"first"), (other, b"other"), (key(2), b"xorbs")] {
        put(&store, key, bytes).await;
    }
    let mut listed = store.list_of(hash).await.unwrap();
    listed.sort_unstable_by_key(BlobKey::incarnation);
    assert_eq!(listed, [unnamed, key(1), other]);
    assert_eq!(store.list().await.unwrap().len(), 4);
    assert!(store.delete(key(1)).await.unwrap());
    assert_eq!(get(&store, unnamed, range(0, 5)).await, Ok(b"older".to_vec()));
    assert_eq!(get(&store, other, range(0, 5)).await, Ok(b"other".to_vec()));
    assert_eq!(store.head(key(1)).await.unwrap(), None);
}

async fn deletion_of_a_missing_blob_succeeds(store: Store) {
    assert!(!store.delete(key(1)).await.unwrap());
    put(&store, key(1), b"bytes").await;
    assert!(store.delete(key(1)).await.unwrap());
    assert!(!store.delete(key(1)).await.unwrap());
    assert!(store.read(key(1), range(0, 1)).await.unwrap().is_none());
}

async fn each_read_returns_the_last_published_blob(store: Store) {
    for round in 0..3_u8 {
        for byte in [1, 2, 3] {
            put(&store, key(byte), &[byte, round, 1]).await;
            assert_eq!(get(&store, key(byte), range(0, 3)).await, Ok(vec![byte, round, 1]));
            put(&store, key(byte), &[byte, round, 2]).await;
            assert_eq!(get(&store, key(byte), range(1, 3)).await, Ok(vec![round, 2]));
        }
        for byte in [1, 2, 3] {
            assert!(store.delete(key(byte)).await.unwrap());
            assert!(store.read(key(byte), range(0, 1)).await.unwrap().is_none());
        }
    }
}

async fn blob_of_several_pieces_and_an_odd_length_is_read_whole(store: Store) {
    // Just over 2 MiB, so several pieces and blocks, written in portions of an odd length.
    let bytes: Vec<u8> = (0..2_100_001_u32).map(|i| (i % 251) as u8).collect();
    let mut draft = store.draft().unwrap();
    for portion in bytes.chunks(65_537) {
        draft.write(portion).unwrap();
    }
    draft.publish(key(2)).await.unwrap();
    assert_eq!(get(&store, key(2), range(0, 2_100_001)).await.as_deref(), Ok(&bytes[..]));
    assert_eq!(get(&store, key(2), range(1_048_575, 1_048_578)).await.as_deref(), Ok(&bytes[1_048_575..1_048_578]));
}

/// So long that a bucket gets it in parts.
async fn long_blob_is_read_whole(store: Store) {
    let bytes: Vec<u8> = (0..17_000_001_u32).map(|i| (i % 251) as u8).collect();
    put(&store, key(3), &bytes).await;
    assert_eq!(store.head(key(3)).await.unwrap(), Some(17_000_001));
    assert!(get(&store, key(3), range(0, 17_000_001)).await.is_ok_and(|read| read == bytes));
    assert_eq!(get(&store, key(3), range(8_388_600, 8_388_616)).await.as_deref(), Ok(&bytes[8_388_600..8_388_616]));
}

async fn probing_leaves_nothing_behind(store: Store) {
    store.probe().await.unwrap();
    assert_eq!(store.remove_stray_drafts().await.unwrap(), 0);
}

#[tokio::test]
async fn drafts_of_a_dead_process_are_removed_at_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let store = FsBlobStore::open(directory.path(), Pool::new(1)).unwrap();
    let mut draft = store.draft().unwrap();
    draft.write(b"bytes").unwrap();
    std::mem::forget(draft);
    assert_eq!(store.remove_stray_drafts().await.unwrap(), 1);
    assert_eq!(store.remove_stray_drafts().await.unwrap(), 0);
}

/// A cached open file is not read after another process has replaced or removed it.
#[tokio::test]
async fn open_file_is_not_read_after_another_process_replaced_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = FsBlobStore::open(directory.path(), Pool::new(1)).unwrap().with_open_files(2);
    let (store, other): (Store, Store) = (Arc::new(store.clone()), Arc::new(store.with_open_files(0)));
    put(&store, key(1), b"first").await;
    assert_eq!(get(&store, key(1), range(0, 5)).await, Ok(b"first".to_vec()));
    put(&other, key(1), b"other").await;
    assert_eq!(get(&store, key(1), range(0, 5)).await, Ok(b"other".to_vec()));
    assert!(other.delete(key(1)).await.unwrap());
    assert!(store.read(key(1), range(0, 1)).await.unwrap().is_none());
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a test may link a file without the store")]
async fn replaced_file_with_another_hard_link_is_not_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let store: Store = Arc::new(FsBlobStore::open(directory.path(), Pool::new(1)).unwrap().with_open_files(2));
    put(&store, key(1), b"first").await;
    assert_eq!(get(&store, key(1), range(0, 5)).await, Ok(b"first".to_vec()));
    let name = key(1).to_string();
    // A snapshot by hard links creates such a link.
    std::fs::hard_link(directory.path().join("xorbs").join(&name[..2]).join(&name), directory.path().join("link"))
        .unwrap();
    put(&store, key(1), b"other").await;
    assert_eq!(get(&store, key(1), range(0, 5)).await, Ok(b"other".to_vec()));
}
