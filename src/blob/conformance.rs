//! The contract of [`BlobStore`] as a suite; every store runs all of it.

use std::sync::Arc;

use futures_util::StreamExt;

use super::fs::FsBlobStore;
use super::memory::MemoryBlobStore;
use super::{BlobErrorKind, BlobKey, BlobStore};
use crate::format::{ByteRange, XorbHash};
use crate::runtime::blocking::Pool;
use crate::runtime::incarnation::Incarnation;

type Store = Arc<dyn BlobStore>;

/// Runs every case on a fresh store each, in memory and on disk.
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
                let store = super::FsBlobStore::open(directory.path(), super::Pool::new(2)).unwrap().keeping_open(2);
                super::$case(super::Arc::new(store)).await;
            })*
        }
    };
}

suite! {
    a_published_blob_is_read_back_in_any_range
    a_draft_is_invisible_until_published_and_gone_when_dropped
    a_read_past_the_end_is_an_error_and_never_short
    publishing_twice_keeps_the_last_and_readers_their_blob
    incarnations_of_a_xorb_are_blobs_of_their_own
    deleting_what_is_not_there_is_a_success
    read_replaced_deleted_and_published_again_reads_the_last
    a_blob_of_several_pieces_and_an_odd_length_is_whole
    probing_leaves_nothing_behind
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

async fn a_draft_is_invisible_until_published_and_gone_when_dropped(store: Store) {
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

/// Running readers go on with the first blob.
async fn publishing_twice_keeps_the_last_and_readers_their_blob(store: Store) {
    put(&store, key(1), b"first").await;
    let mut reader = store.read(key(1), range(0, 5)).await.unwrap().unwrap();
    put(&store, key(1), b"other").await;
    assert_eq!(reader.next().await.unwrap().unwrap(), "first");
    assert_eq!(get(&store, key(1), range(0, 5)).await, Ok(b"other".to_vec()));
}

async fn incarnations_of_a_xorb_are_blobs_of_their_own(store: Store) {
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

async fn deleting_what_is_not_there_is_a_success(store: Store) {
    assert!(!store.delete(key(1)).await.unwrap());
    put(&store, key(1), b"bytes").await;
    assert!(store.delete(key(1)).await.unwrap());
    assert!(!store.delete(key(1)).await.unwrap());
    assert!(store.read(key(1), range(0, 1)).await.unwrap().is_none());
}

async fn read_replaced_deleted_and_published_again_reads_the_last(store: Store) {
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

async fn a_blob_of_several_pieces_and_an_odd_length_is_whole(store: Store) {
    // Two pieces of 1 MiB and a bit, written in odd portions.
    let bytes: Vec<u8> = (0..2_100_001_u32).map(|i| (i % 251) as u8).collect();
    let mut draft = store.draft().unwrap();
    for portion in bytes.chunks(65_537) {
        draft.write(portion).unwrap();
    }
    draft.publish(key(2)).await.unwrap();
    assert_eq!(get(&store, key(2), range(0, 2_100_001)).await.as_deref(), Ok(&bytes[..]));
    assert_eq!(get(&store, key(2), range(1_048_575, 1_048_578)).await.as_deref(), Ok(&bytes[1_048_575..1_048_578]));
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

/// Nor after another process removed it.
#[tokio::test]
async fn open_file_is_not_read_after_another_process_replaced_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = FsBlobStore::open(directory.path(), Pool::new(1)).unwrap().keeping_open(2);
    let (store, other): (Store, Store) = (Arc::new(store.clone()), Arc::new(store.keeping_open(0)));
    put(&store, key(1), b"first").await;
    assert_eq!(get(&store, key(1), range(0, 5)).await, Ok(b"first".to_vec()));
    put(&other, key(1), b"other").await;
    assert_eq!(get(&store, key(1), range(0, 5)).await, Ok(b"other".to_vec()));
    assert!(other.delete(key(1)).await.unwrap());
    assert!(store.read(key(1), range(0, 1)).await.unwrap().is_none());
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a name that is given behind the back of the store")]
async fn replaced_file_with_another_hard_link_is_not_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let store: Store = Arc::new(FsBlobStore::open(directory.path(), Pool::new(1)).unwrap().keeping_open(2));
    put(&store, key(1), b"first").await;
    assert_eq!(get(&store, key(1), range(0, 5)).await, Ok(b"first".to_vec()));
    let name = key(1).to_string();
    // As a snapshot by hard links does.
    std::fs::hard_link(directory.path().join("xorbs").join(&name[..2]).join(&name), directory.path().join("link"))
        .unwrap();
    put(&store, key(1), b"other").await;
    assert_eq!(get(&store, key(1), range(0, 5)).await, Ok(b"other".to_vec()));
}
