//! Later runs: they add only new entries, and read little.

use super::support::{SharedFile, TestStore, assert_same, mixed, noise, rng};
use crate::blob::BlobStore;
use crate::index::{ClaimState, XorbIndex};
use crate::rca::{Event, Outline, ReadOptions};

#[tokio::test]
async fn a_run_after_which_nothing_has_come_changes_no_byte() {
    let (store, archive, mut rng) = (TestStore::new().await, SharedFile::archive(), rng());
    let xorb = mixed(&mut rng, 9);
    store.add_xorb(&xorb).await;
    store.add_file("org/a", &[(&xorb, 0, 9)], Some(1)).await;
    store.back_up(&archive).await.unwrap();
    let before = archive.bytes();
    let done = store.back_up(&archive).await.unwrap();
    assert_eq!((done.xorb_count, done.file_count, done.added_len), (0, 0, 0));
    assert_eq!(archive.bytes(), before);
}

#[tokio::test]
async fn second_run_appends_new_data_and_reads_little_of_the_first() {
    let (store, archive, mut rng) = (TestStore::new().await, SharedFile::archive(), rng());
    for _ in 0..4 {
        let xorb = noise(&mut rng, 10 << 20);
        store.add_xorb(&xorb).await;
        store.add_file("org/a", &[(&xorb, 0, 160)], None).await;
    }
    store.back_up(&archive).await.unwrap();
    let first_len = archive.len();
    assert!(first_len > 40 << 20);

    let new = noise(&mut rng, 2 << 20);
    store.add_xorb(&new).await;
    store.add_file("org/a", &[(&new, 0, 32)], None).await;
    archive.take_read_len_in(0, 0);
    let done = store.back_up(&archive).await.unwrap();
    assert_eq!((done.xorb_count, done.file_count), (1, 1));
    let added = archive.len() - first_len;
    assert!(((2 << 20)..(2 << 20) + 20_000).contains(&added), "{added}");
    // The run reads a page for the varint of each of six blobs, twice: by the writer and by the
    // outline. Of each of three sessions it reads the name of its first blob, in buffers of 128
    // KiB. It also reads the catalog.
    let read_len = archive.take_read_len_in(0, first_len);
    assert!(read_len < 1 << 20, "{read_len} of {first_len}");
    assert!(done.archive_read_len < 1 << 20, "{done:?}");
    let copy = TestStore::new().await;
    copy.restore(&archive).await.unwrap();
    assert_same(&store, &copy).await;
}

#[tokio::test]
async fn changed_file_is_written_again_and_the_last_record_counts() {
    let (store, archive, mut rng) = (TestStore::new().await, SharedFile::archive(), rng());
    let xorb = mixed(&mut rng, 4);
    store.add_xorb(&xorb).await;
    let file = store.add_file("org/a", &[(&xorb, 0, 4)], Some(1)).await;
    store.back_up(&archive).await.unwrap();
    store.add_file("org/b", &[(&xorb, 0, 4)], None).await;
    assert_eq!(store.back_up(&archive).await.unwrap().file_count, 1);
    store.settle(file, 1, ClaimState::Verified).await;
    assert_eq!(store.back_up(&archive).await.unwrap().file_count, 1);
    assert_eq!(store.back_up(&archive).await.unwrap().file_count, 0);
    let copy = TestStore::new().await;
    assert_eq!(copy.restore(&archive).await.unwrap().file_count, 3);
    assert_same(&store, &copy).await;
}

#[tokio::test]
async fn run_resumes_from_every_sync_where_the_last_one_may_stop() {
    let (store, mut rng) = (TestStore::new().await, rng());
    let xorbs: Vec<_> = (0..3).map(|_| noise(&mut rng, 9 << 20)).collect();
    for xorb in &xorbs {
        store.add_xorb(xorb).await;
        store.add_file("org/a", &[(xorb, 0, 144)], None).await;
    }
    let watched = SharedFile::archive();
    watched.keep_snapshots();
    store.back_up(&watched).await.unwrap();
    let snapshots = watched.take_snapshots();
    assert!(snapshots.len() > 8, "{}", snapshots.len());
    for (index, snapshot) in snapshots.into_iter().enumerate() {
        let archive = SharedFile::of(snapshot);
        // It is readable as it is, and what it has is whole.
        let partial = TestStore::new().await;
        let had = partial.restore(&archive).await.unwrap();
        let done = store.back_up(&archive).await.unwrap();
        assert_eq!(had.xorb_count + done.xorb_count, 3, "{index}");
        assert_eq!(had.file_count + done.file_count, 3, "{index}");
        let copy = TestStore::new().await;
        copy.restore(&archive).await.unwrap();
        assert_same(&store, &copy).await;
        // The next run finds a catalog and need not read the data after it again.
        archive.take_read_len_in(0, 0);
        assert_eq!(store.back_up(&archive).await.unwrap().added_len, 0, "{index}");
        assert!(archive.take_read_len_in(0, u64::MAX) < 2 << 20, "{index}");
    }
}

#[tokio::test]
async fn an_outline_finds_catalogs_in_sessions_of_their_own() {
    let (store, archive, mut rng) = (TestStore::new().await, SharedFile::archive(), rng());
    for _ in 0..3 {
        store.add_xorb(&mixed(&mut rng, 3)).await;
        store.back_up(&archive).await.unwrap();
    }
    let mut outline = Outline::open(archive.handle(), ReadOptions::default()).unwrap();
    let mut first_names = Vec::new();
    for index in 0..outline.session_count() {
        let reader = outline.session(index).unwrap().unwrap();
        let Event::Blob(blob) = reader.next_event().unwrap() else { panic!("session {index} is empty") };
        first_names.push(blob.name().to_owned());
    }
    let expected = ["zorb-backup/1", "xorbs/1", "catalog/2", "xorbs/3", "catalog/4", "xorbs/5", "catalog/6"];
    assert_eq!(first_names, expected);
    assert_eq!(outline.blob_count(), 7);
}

#[tokio::test]
async fn deleted_xorb_stays_in_the_archive_without_harm() {
    let (store, archive, mut rng) = (TestStore::new().await, SharedFile::archive(), rng());
    let (retained, gone) = (mixed(&mut rng, 2), mixed(&mut rng, 2));
    store.add_xorb(&retained).await;
    store.add_xorb(&gone).await;
    store.back_up(&archive).await.unwrap();
    // As a store that never had it: nothing deletes live rows yet.
    let smaller = TestStore::new().await;
    smaller.add_xorb(&retained).await;
    assert_eq!(smaller.back_up(&archive).await.unwrap().added_len, 0);
    store.blobs.delete(store.blobs.key_of(gone.hash())).await.unwrap();
    assert_eq!(store.back_up(&archive).await.unwrap().problem_count, 0, "what the archive has is not read again");
    let copy = TestStore::new().await;
    assert_eq!(copy.restore(&archive).await.unwrap().xorb_count, 2);
    assert_eq!(copy.index.totals().await.unwrap().xorb_count, 2);
}
