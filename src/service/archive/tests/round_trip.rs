//! A restored store equals the backed-up one.

use std::sync::Arc;

use super::support::{Reported, SharedFile, TestStore, assert_same, brimful, mixed, rng};
use crate::format::FileHash;
use crate::format::limits::MAX_XORB_SERIALIZED_LEN;
use crate::format::shard::Sha256;
use crate::index::{ClaimState, FileIndex, Reader};
use crate::runtime::clock::Timestamp;
use crate::service::access::KeyRing;

/// Every xorb, file, repository and sha256.
#[tokio::test]
async fn restored_store_equals_the_first() {
    let mut rng = rng();
    let store = TestStore::new().await;
    let (a, b, c) = (mixed(&mut rng, 40), mixed(&mut rng, 1), mixed(&mut rng, 7));
    for xorb in [&a, &b, &c] {
        store.add_xorb(xorb).await;
    }
    let claimed = store.add_file("org/a", &[(&a, 0, 40), (&b, 0, 1), (&a, 3, 9)], Some(1)).await;
    store.add_file("org/b", &[(&a, 0, 40), (&b, 0, 1), (&a, 3, 9)], None).await;
    let verified = store.add_file("*", &[(&b, 0, 1)], Some(2)).await;
    store.settle(verified, 2, ClaimState::Verified).await;
    let corrected = store.add_file("other/c", &[(&a, 5, 6)], Some(3)).await;
    store.settle(corrected, 3, ClaimState::False { actual: Sha256::from_digest([9; 32]) }).await;
    assert_eq!(store.add_file("org/a", &[], None).await, FileHash::EMPTY);

    let archive = SharedFile::archive();
    let done = store.back_up(&archive).await.unwrap();
    assert_eq!((done.xorb_count, done.file_count, done.problem_count), (3, 4, 0));
    assert_eq!((done.left_out_count, done.waiting_count, done.added_keys), (0, 0, false));
    assert_eq!(done.archive_len, archive.len());

    let copy = TestStore::new().await;
    let restored = copy.restore(&archive).await.unwrap();
    assert_eq!((restored.xorb_count, restored.file_count), (3, 4));
    assert!(restored.keys.is_none() && !restored.trailing_garbage);
    assert_same(&store, &copy).await;
    let reader = || Reader::Repo("org/b".to_owned());
    assert!(copy.index.find_file(claimed, reader(), None).await.unwrap().is_some());
    assert!(copy.index.find_file(corrected, reader(), None).await.unwrap().is_none());
}

#[tokio::test]
async fn dedup_of_a_restored_file_is_as_before_for_its_owner_only() {
    let (store, mut rng) = (TestStore::new().await, rng());
    let (a, b) = (mixed(&mut rng, 5), mixed(&mut rng, 5));
    store.add_xorb(&a).await;
    store.add_xorb(&b).await;
    store.add_file("org/a", &[(&a, 2, 4)], None).await;
    let archive = SharedFile::archive();
    store.back_up(&archive).await.unwrap();
    let copy = TestStore::new().await;
    copy.restore(&archive).await.unwrap();
    let (first, second) = (a.xorb().chunk_hashes()[2], a.xorb().chunk_hashes()[3]);
    let lease = Timestamp::from_millis(0);
    let find = |chunk, domain: &str| copy.index.find_dedup(chunk, Some(domain.to_owned()), lease..=lease);
    assert_eq!(find(first, "org").await.unwrap().unwrap().xorb, a.xorb().hash());
    assert_eq!(find(first, "other").await.unwrap(), None);
    assert_eq!(find(second, "org").await.unwrap().is_some(), second.is_dedup_eligible());
    assert_eq!(find(b.xorb().chunk_hashes()[0], "org").await.unwrap(), None);
}

#[tokio::test]
async fn empty_store_round_trips_to_an_empty_store() {
    let (store, copy, archive) = (TestStore::new().await, TestStore::new().await, SharedFile::archive());
    let before = archive.bytes();
    let done = store.back_up(&archive).await.unwrap();
    assert_eq!((done.xorb_count, done.file_count, done.added_len), (0, 0, 0));
    assert_eq!(archive.bytes(), before);
    let restored = copy.restore(&archive).await.unwrap();
    assert_eq!((restored.xorb_count, restored.file_count), (0, 0));
    assert_same(&store, &copy).await;
}

#[tokio::test]
async fn a_xorb_that_is_longer_than_64_mib_when_serialized_comes_back() {
    let (store, copy, archive, mut rng) =
        (TestStore::new().await, TestStore::new().await, SharedFile::archive(), rng());
    let full = brimful(&mut rng);
    assert!(full.bytes().len() as u64 > MAX_XORB_SERIALIZED_LEN);
    store.add_xorb(&full).await;
    store.back_up(&archive).await.unwrap();
    copy.restore(&archive).await.unwrap();
    assert_same(&store, &copy).await;
}

#[tokio::test]
async fn keys_are_archived_only_on_request_and_the_last_ones_count() {
    let (store, archive) = (TestStore::new().await, SharedFile::archive());
    let (ring, watch) = (KeyRing::new([9; 32]), Arc::new(Reported::default()));
    store.back_up(&archive).await.unwrap();
    assert!(TestStore::new().await.restore(&archive).await.unwrap().keys.is_none());
    for keys in [&ring, &ring.rotated([8; 32]).unwrap()] {
        assert!(store.back_up_with(&archive, Some(keys), &watch).await.unwrap().added_keys);
        let len = archive.len();
        assert!(!store.back_up_with(&archive, Some(keys), &watch).await.unwrap().added_keys);
        assert_eq!(archive.len(), len);
        assert_eq!(TestStore::new().await.restore(&archive).await.unwrap().keys.as_ref(), Some(keys));
    }
}
