//! The contract of [`RecordStore`] as a test suite. Every implementation must pass all of it.
#![expect(clippy::disallowed_methods, reason = "a test puts files where they do not belong")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::join_all;

use super::fs::FsRecordStore;
use super::memory::MemoryRecordStore;
use super::{MAX_RECORD_LEN, PAGE_COUNT, RecordStore, Seq};
use crate::blob::BlobErrorKind;
use crate::format::StoreId;
use crate::runtime::blocking::Pool;

type Store = Arc<dyn RecordStore>;

/// Runs each case on fresh stores, in memory, on disk and in a bucket.
macro_rules! suite {
    ($($case:ident)*) => {
        mod memory {
            $(#[tokio::test] async fn $case() { super::$case(super::Arc::new(super::MemoryRecordStore::new())).await; })*
        }
        mod fs {
            $(#[tokio::test] async fn $case() {
                let directory = tempfile::tempdir().unwrap();
                super::$case(super::Arc::new(super::open(directory.path()))).await;
            })*
        }
        #[cfg(feature = "s3")]
        mod s3 {
            $(#[tokio::test] async fn $case() {
                let is_new = stringify!($case) == "store_id_is_set_only_once";
                let test = crate::blob::s3::test_bucket::TestBucket::new(is_new).await;
                super::$case(super::Arc::new(test.records())).await;
            })*
        }
    };
}

suite! {
    record_reads_back_equal_even_if_empty
    numbers_ascend_and_a_list_has_them_in_order
    records_appended_at_once_get_different_numbers
    removed_record_is_not_found_and_can_be_removed_again
    pages_of_a_list_have_all_records
    record_above_the_maximum_length_is_refused
    store_is_complete_only_after_it_was_marked
    store_id_is_set_only_once
    numbers_continue_after_a_reserved_one
}

async fn store_id_is_set_only_once(store: Store) {
    let id = StoreId::from_bytes([7; 16]);
    assert_eq!(store.store_id().await.unwrap(), None);
    store.set_store_id(id).await.unwrap();
    assert_eq!(store.store_id().await.unwrap(), Some(id));
    store.set_store_id(StoreId::from_bytes([8; 16])).await.unwrap_err();
    assert_eq!(store.store_id().await.unwrap(), Some(id));
}

async fn numbers_continue_after_a_reserved_one(store: Store) {
    store.reserve_through(Seq::new(41));
    store.reserve_through(Seq::new(3));
    let seq = store.append("a".into()).await.unwrap();
    assert!(seq > Seq::new(41), "{seq}");
    store.remove(seq).await.unwrap();
    assert!(store.append("a".into()).await.unwrap() > seq);
    store.reserve_through(Seq::new(1 << 40));
    assert!(store.append("a".into()).await.unwrap() > Seq::new(1 << 40));
}

fn open(directory: &Path) -> FsRecordStore {
    FsRecordStore::open(directory, Pool::new(4)).unwrap()
}

async fn append(store: &Store, text: &str) -> Seq {
    store.append(text.to_owned().into()).await.unwrap()
}

async fn all(store: &Store) -> Vec<Seq> {
    let mut all: Vec<Seq> = Vec::new();
    loop {
        let page = store.list(all.last().copied()).await.unwrap();
        if page.is_empty() {
            return all;
        }
        all.extend(page);
    }
}

async fn record_reads_back_equal_even_if_empty(store: Store) {
    for text in ["record", ""] {
        let seq = append(&store, text).await;
        assert_eq!(store.read(seq).await.unwrap().as_deref(), Some(text.as_bytes()));
    }
    assert_eq!(store.read(Seq::new(7)).await.unwrap(), None);
    assert_eq!(store.read(Seq::new(u64::MAX)).await.unwrap(), None);
}

async fn numbers_ascend_and_a_list_has_them_in_order(store: Store) {
    assert_eq!((all(&store).await, store.last().await.unwrap()), (vec![], None));
    let mut seqs = Vec::new();
    for text in ["a", "b", "c"] {
        seqs.push(append(&store, text).await);
    }
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
    assert_eq!(all(&store).await, seqs);
    assert_eq!(store.last().await.unwrap(), Some(seqs[2]));
    assert_eq!(store.list(Some(seqs[0])).await.unwrap(), seqs[1..]);
    assert_eq!(store.list(Some(Seq::new(u64::MAX))).await.unwrap(), []);
}

async fn records_appended_at_once_get_different_numbers(store: Store) {
    let texts: Vec<String> = (0..50).map(|index| index.to_string()).collect();
    let seqs = join_all(texts.iter().map(|text| append(&store, text))).await;
    assert_eq!(seqs.iter().collect::<BTreeSet<_>>().len(), 50);
    for (seq, text) in seqs.into_iter().zip(texts) {
        assert_eq!(store.read(seq).await.unwrap().unwrap(), text);
    }
}

async fn removed_record_is_not_found_and_can_be_removed_again(store: Store) {
    let (first, second) = (append(&store, "a").await, append(&store, "b").await);
    assert!(store.remove(first).await.unwrap());
    assert!(!store.remove(first).await.unwrap());
    assert!(!store.remove(Seq::new(1 << 40)).await.unwrap());
    assert_eq!(store.read(first).await.unwrap(), None);
    assert_eq!(all(&store).await, [second]);
    assert!(append(&store, "c").await > second);
}

async fn pages_of_a_list_have_all_records(store: Store) {
    let seqs = join_all((0..PAGE_COUNT + 10).map(|_| append(&store, ""))).await;
    assert_eq!(store.list(None).await.unwrap().len(), PAGE_COUNT);
    assert_eq!(all(&store).await.len(), seqs.len());
    // A directory whose records were all removed does not end the list.
    let early: Vec<Seq> = seqs.iter().copied().filter(|seq| seq.number() < 4096).collect();
    join_all(early.iter().map(|seq| store.remove(*seq))).await;
    assert_eq!(all(&store).await.len(), seqs.len() - early.len());
}

async fn record_above_the_maximum_length_is_refused(store: Store) {
    let refused = store.append(vec![0; usize::try_from(MAX_RECORD_LEN).unwrap() + 1].into()).await;
    assert_eq!(refused.unwrap_err().kind, BlobErrorKind::Corrupt);
    assert_eq!(all(&store).await, []);
}

async fn store_is_complete_only_after_it_was_marked(store: Store) {
    append(&store, "a").await;
    assert!(!store.is_complete().await.unwrap());
    for _ in 0..2 {
        store.set_complete().await.unwrap();
        assert!(store.is_complete().await.unwrap());
    }
    assert_eq!(all(&store).await.len(), 1);
}

#[tokio::test]
async fn numbers_continue_after_restart_and_other_processes() {
    let directory = tempfile::tempdir().unwrap();
    let (first, other) = (open(directory.path()), open(directory.path()));
    let a = first.append("a".into()).await.unwrap();
    let b = other.append("b".into()).await.unwrap();
    let c = first.append("c".into()).await.unwrap();
    let d = open(directory.path()).append("d".into()).await.unwrap();
    assert!(a < b && b < c && c < d, "{a} {b} {c} {d}");
    for (seq, text) in [(a, "a"), (b, "b"), (c, "c"), (d, "d")] {
        assert_eq!(first.read(seq).await.unwrap().unwrap(), text);
    }
}

#[tokio::test]
async fn missing_store_is_empty_and_reading_does_not_create_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = FsRecordStore::open_existing(directory.path(), Pool::new(1));
    assert_eq!((store.list(None).await.unwrap(), store.last().await.unwrap()), (vec![], None));
    assert!(!store.is_complete().await.unwrap());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    // An existing record is read, and a new one gets a greater number.
    let seq = open(directory.path()).append("a".into()).await.unwrap();
    assert_eq!(store.list(None).await.unwrap(), [seq]);
    assert!(store.append("b".into()).await.unwrap() > seq);
}

#[tokio::test]
async fn foreign_files_stay_and_an_empty_first_directory_is_skipped() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let seq = store.append("a".into()).await.unwrap();
    let shards = directory.path().join("shards");
    std::fs::write(shards.join("README"), "").unwrap();
    std::fs::write(shards.join("0000000000000/notes"), "").unwrap();
    std::fs::create_dir(shards.join("0000000000007")).unwrap();
    let store = open(directory.path());
    assert_eq!(store.list(None).await.unwrap(), [seq]);
    assert_eq!(store.last().await.unwrap(), Some(seq));
}

#[tokio::test]
async fn file_too_long_for_a_record_is_an_error_before_allocation() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let seq = store.append("a".into()).await.unwrap();
    let path = directory.path().join(format!("shards/0000000000000/{seq}"));
    std::fs::File::options().write(true).open(path).unwrap().set_len(1 << 40).unwrap();
    assert!(store.read(seq).await.is_err());
}
