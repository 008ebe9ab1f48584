//! Damaged stores and archives.

use std::io::Cursor;
use std::sync::Arc;

use rand::RngExt;

use super::support::{Reported, SharedFile, TestStore, Xorb, assert_same, mixed, noise, rng};
use crate::blob::BlobStore;
use crate::format::xorb::Unpacker;
use crate::format::{ChunkRange, FileHash, XorbHash};
use crate::index::FileRecord;
use crate::rca::Writer;
use crate::service::archive::pages::{Page, encode_with_digest};
use crate::service::archive::{ArchiveError, BackupError, RestoreError, empty_archive};

/// The blob may be damaged or missing; the rest is archived.
#[tokio::test]
async fn bad_blob_is_reported_and_left_out_with_its_files() {
    let (store, archive, mut rng) = (TestStore::new().await, SharedFile::archive(), rng());
    let xorbs: Vec<Xorb> = (0..5).map(|_| mixed(&mut rng, 4)).collect();
    for xorb in &xorbs {
        store.add_xorb(xorb).await;
        store.add_file("org/a", &[(xorb, 0, 4)], None).await;
    }
    store.add_file("org/a", &[(&xorbs[3], 0, 1), (&xorbs[0], 0, 1)], None).await;
    let keys: Vec<_> = xorbs.iter().map(|xorb| store.blobs.key_of(xorb.hash())).collect();
    let key = |index: usize| keys[index];
    let mut altered = xorbs[0].bytes().to_vec();
    altered[20] ^= 1;
    store.blobs.damage(key(0), altered);
    store.blobs.damage(key(1), xorbs[1].bytes()[..xorbs[1].bytes().len() - 1].to_vec());
    store.blobs.delete(key(2)).await.unwrap();

    let watch = Arc::new(Reported::default());
    let done = store.back_up_with(&archive, None, &watch).await.unwrap();
    assert_eq!((done.xorb_count, done.file_count, done.problem_count), (2, 2, 3));
    assert_eq!((done.left_out_count, done.waiting_count), (4, 0));
    let reported = watch.0.lock().unwrap().clone();
    for xorb in &xorbs[..3] {
        assert_eq!(reported.iter().filter(|text| text.contains(&xorb.hash().to_string())).count(), 1, "{reported:?}");
    }
    let copy = TestStore::new().await;
    assert_eq!(copy.restore(&archive).await.unwrap().xorb_count, 2);
    // The next run after the repair adds the xorbs.
    for (key, xorb) in keys.iter().zip(&xorbs).take(3) {
        store.blobs.damage(*key, xorb.bytes().to_vec());
    }
    let done = store.back_up(&archive).await.unwrap();
    assert_eq!((done.xorb_count, done.file_count, done.problem_count), (3, 4, 0));
}

#[tokio::test]
async fn blob_with_another_valid_chunk_is_reported_with_the_chunk() {
    let (store, archive, mut rng) = (TestStore::new().await, SharedFile::archive(), rng());
    let xorb = noise(&mut rng, 200_000);
    store.add_xorb(&xorb).await;
    let mut other = xorb.bytes().to_vec();
    other[2 * (65536 + 8) + 100] ^= 1;
    store.blobs.damage(store.blobs.key_of(xorb.hash()), other);
    let watch = Arc::new(Reported::default());
    assert_eq!(store.back_up_with(&archive, None, &watch).await.unwrap().problem_count, 1);
    assert!(watch.0.lock().unwrap()[0].contains("chunk 2 of xorb"), "{watch:?}");
}

/// Except where no reader uses the flipped bit.
#[tokio::test]
async fn archive_with_a_flipped_bit_is_not_restored() {
    let (store, archive, mut rng) = (TestStore::new().await, SharedFile::archive(), rng());
    for _ in 0..2 {
        let xorb = mixed(&mut rng, 3);
        store.add_xorb(&xorb).await;
        store.add_file("org/a", &[(&xorb, 0, 3)], Some(1)).await;
        store.back_up(&archive).await.unwrap();
    }
    let sound = archive.bytes();
    for _ in 0..60 {
        let (at, bit) = (rng.random_range(0..sound.len()), rng.random_range(0..8));
        let mut bytes = sound.clone();
        bytes[at] ^= 1 << bit;
        let copy = TestStore::new().await;
        if let Ok(restored) = copy.restore(&SharedFile::of(bytes)).await {
            // Every chunk of the archive begins with a hash, but only that of the last chunk is
            // used.
            let is_unread = sound.len() > 0x8000 && (2..10).contains(&at);
            assert!(is_unread, "bit {bit} of byte {at}: {restored:?}");
            assert_same(&store, &copy).await;
        }
    }
}

/// The backup is refused.
#[tokio::test]
async fn backup_into_a_damaged_session_or_catalog_changes_nothing() {
    let (store, archive, mut rng) = (TestStore::new().await, SharedFile::archive(), rng());
    store.add_xorb(&mixed(&mut rng, 3)).await;
    store.back_up(&archive).await.unwrap();
    store.add_xorb(&mixed(&mut rng, 3)).await;
    let sound = archive.bytes();
    // The catalog is all of the last session.
    for back in 1..20 {
        let mut bytes = sound.clone();
        let at = bytes.len() - back;
        bytes[at] ^= 0x10;
        let archive = SharedFile::of(bytes.clone());
        let error = store.back_up(&archive).await.unwrap_err();
        assert!(matches!(error, BackupError::Archive(ArchiveError::Damaged(_))), "{error:?}");
        assert_eq!(archive.bytes(), bytes);
    }
}

/// An archive whose blobs have these names and contents.
fn archive_of(blobs: &[(&str, &[u8])]) -> SharedFile {
    let mut writer = Writer::open(Cursor::new(Vec::new())).unwrap();
    for (name, content) in blobs {
        writer.append(name, *content).unwrap();
    }
    SharedFile::of(writer.into_storage().into_inner())
}

#[tokio::test]
async fn a_file_that_is_no_backup_is_refused_by_both_and_not_touched() {
    let store = TestStore::new().await;
    let zeros = [0; 5000];
    let cases: [(SharedFile, &str); 7] = [
        (SharedFile::of(b"somebody's letter, long enough to be anything".to_vec()), "not a zorb backup"),
        // In the RCA format this is an empty archive.
        (SharedFile::of(zeros.to_vec()), "not a zorb backup"),
        (SharedFile::of([&zeros[..2], b"a picture"].concat()), "not a zorb backup"),
        (SharedFile::of(Vec::new()), "not a zorb backup"),
        (archive_of(&[("photos/1", b"x")]), "not a zorb backup"),
        (archive_of(&[("zorb-backup/2", b"x")]), "another format version"),
        (SharedFile::of(vec![0xff; 100]), "not a zorb backup"),
    ];
    for (index, (archive, expected)) in cases.into_iter().enumerate() {
        let before = archive.bytes();
        let refused = store.back_up(&archive).await.unwrap_err();
        let BackupError::Archive(error) = refused else { panic!("{index}: {refused:?}") };
        assert!(error.to_string().contains(expected), "{index}: {error}");
        let refused = TestStore::new().await.restore(&archive).await.unwrap_err();
        let RestoreError::Archive { source, .. } = refused else { panic!("{index}: {refused:?}") };
        assert!(source.to_string().contains(expected), "{index}: {source}");
        assert_eq!(archive.bytes(), before, "{index}");
    }
}

#[tokio::test]
async fn unknown_blob_is_an_error_and_not_skipped() {
    let unknown = archive_of(&[("zorb-backup/1", b""), ("thumbnails/1", b"x")]);
    let refused = TestStore::new().await.restore(&unknown).await.unwrap_err();
    assert!(matches!(refused, RestoreError::Archive { source: ArchiveError::Malformed { .. }, .. }), "{refused:?}");
    let refused = TestStore::new().await.back_up(&unknown).await.unwrap_err();
    assert!(matches!(refused, BackupError::Archive(ArchiveError::Malformed { .. })), "{refused:?}");
}

fn xorb_page(hash: XorbHash, xorb: &Xorb) -> Vec<u8> {
    let mut unpacker = Unpacker::new(0);
    unpacker.push(xorb.bytes()).unwrap();
    let (_, unpacked) = unpacker.finish().unwrap();
    page(|page| page.push_xorb(hash, unpacked))
}

fn page(fill: impl FnOnce(&mut Page)) -> Vec<u8> {
    let (mut page, mut bytes) = (Page::default(), Vec::new());
    fill(&mut page);
    std::io::Read::read_to_end(&mut page.into_reader(), &mut bytes).unwrap();
    bytes
}

fn file_page(record: &FileRecord) -> Vec<u8> {
    let (encoded, digest) = encode_with_digest(record);
    page(|page| page.push_file(record, encoded, digest))
}

async fn restore_of(xorbs: &[u8], files: &[u8]) -> RestoreError {
    let archive = archive_of(&[("zorb-backup/1", b""), ("xorbs/1", xorbs), ("files/2", files)]);
    TestStore::new().await.restore(&archive).await.unwrap_err()
}

#[tokio::test]
async fn what_an_archive_says_of_itself_is_not_believed_but_computed() {
    let (store, mut rng) = (TestStore::new().await, rng());
    let (a, b) = (mixed(&mut rng, 3), mixed(&mut rng, 3));
    store.add_xorb(&a).await;
    store.add_file("org/a", &[(&a, 0, 3)], None).await;
    let record = store.records().await.remove(0);
    let good = xorb_page(a.hash(), &a);

    let error = restore_of(&xorb_page(b.hash(), &a), b"").await;
    assert!(matches!(error, RestoreError::OtherXorb { named, actual } if named == b.hash() && actual == a.hash()));
    let error = restore_of(b"", &file_page(&record)).await;
    assert!(matches!(error, RestoreError::Term { term: 0, .. }), "{error:?}");
    let other_name = FileRecord { hash: FileHash::from_bytes([7; 32]), ..record.clone() };
    assert!(matches!(restore_of(&good, &file_page(&other_name)).await, RestoreError::OtherFile { .. }));
    let other_len = FileRecord { raw_len: record.raw_len + 1, ..record.clone() };
    assert!(matches!(restore_of(&good, &file_page(&other_len)).await, RestoreError::OtherFile { .. }));
    let mut past_the_end = record.clone();
    past_the_end.terms[0].chunks = ChunkRange::new(0, 4).unwrap();
    assert!(matches!(restore_of(&good, &file_page(&past_the_end)).await, RestoreError::Term { .. }));
    let mut longer = record.clone();
    longer.terms[0].raw_len += 1;
    assert!(matches!(restore_of(&good, &file_page(&longer)).await, RestoreError::Term { .. }));
}

#[tokio::test]
async fn records_that_make_no_sense_are_refused_at_every_length() {
    let mut rng = rng();
    let xorb = mixed(&mut rng, 3);
    let good = xorb_page(xorb.hash(), &xorb);
    let head_len = usize::try_from(u32::from_le_bytes(good[..4].try_into().unwrap())).unwrap();
    let is_malformed =
        |error: &RestoreError| matches!(error, RestoreError::Archive { source: ArchiveError::Malformed { .. }, .. });
    let table_end = 12 + head_len + 12;
    for len in (1..table_end + 3).chain([good.len() - 1]) {
        let error = restore_of(&good[..len], b"").await;
        assert!(is_malformed(&error), "{len}: {error:?}");
    }
    let mut extra = good.clone();
    extra.push(0);
    assert!(is_malformed(&restore_of(&extra, b"").await));
    let mut huge_head = good.clone();
    huge_head[..4].fill(0xff);
    assert!(is_malformed(&restore_of(&huge_head, b"").await));
    let mut huge_body = good.clone();
    huge_body[4..12].fill(0xff);
    assert!(is_malformed(&restore_of(&huge_body, b"").await));
    let scheme = 12 + head_len;
    let mut bad_scheme = good.clone();
    bad_scheme[scheme] = 3;
    assert!(is_malformed(&restore_of(&bad_scheme, b"").await));
    for body in [&b"{}"[..], b"{\"xorb\":\"00\",\"chunks\":1}", b"[1]", b""] {
        let record = [&u32::try_from(body.len()).unwrap().to_le_bytes()[..], &[0; 8], body].concat();
        assert!(is_malformed(&restore_of(&record, b"").await), "{body:?}");
    }
    // Nor does it panic where a catalog or keys are expected.
    for name in ["catalog/1", "keys/1", "files/1"] {
        let archive = archive_of(&[("zorb-backup/1", b""), (name, &good)]);
        assert!(is_malformed(&TestStore::new().await.restore(&archive).await.unwrap_err()), "{name}");
        assert!(TestStore::new().await.back_up(&archive).await.is_err(), "{name}");
    }
}

#[tokio::test]
async fn an_archive_begins_with_a_letter_that_says_what_it_is() {
    let bytes = empty_archive().unwrap();
    let mut reader = crate::rca::Reader::new(Cursor::new(bytes)).unwrap();
    let mut blob = reader.next_blob().unwrap().unwrap();
    assert_eq!(blob.name(), "zorb-backup/1");
    let mut letter = String::new();
    std::io::Read::read_to_string(&mut blob, &mut letter).unwrap();
    let letter: serde_json::Value = serde_json::from_str(&letter).unwrap();
    assert_eq!(letter["format"], "zorb-backup/1");
}
