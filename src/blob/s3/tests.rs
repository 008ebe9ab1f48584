//! What an S3 store does that a disk does not: responses that are lost, cut or wrong, and buckets
//! that are not there.

use futures_util::StreamExt;
use zorb_fake_s3::{FakeS3, Fault, Op};

use super::test_bucket::{NAME, TestBucket};
use super::{Bucket, S3BlobStore, name};
use crate::blob::records::{RecordStore, Seq};
use crate::blob::{BlobError, BlobErrorKind, BlobKey, BlobStore};
use crate::format::{ByteRange, XorbHash};
use crate::runtime::incarnation::Incarnation;
use crate::runtime::outage::Outage;
use crate::runtime::telemetry::chain;

/// The client sends a request once, and repeats it so often.
const ATTEMPTS: usize = 5;

const LOST: BlobErrorKind = BlobErrorKind::Outage(Outage::ObjectStore);

fn key() -> BlobKey {
    BlobKey::new(XorbHash::from_bytes([1; 32]), Incarnation::from_number(7))
}

fn bytes(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

async fn put(store: &S3BlobStore, bytes: &[u8]) -> Result<(), BlobError> {
    let mut draft = store.draft().unwrap();
    for portion in bytes.chunks(1 << 20) {
        draft.write(portion).unwrap();
    }
    draft.flush().unwrap();
    draft.publish(key()).await
}

async fn get(store: &S3BlobStore, start: u64, end: u64) -> Result<Option<Vec<u8>>, BlobError> {
    let Some(mut stream) = store.read(key(), ByteRange::new(start, end).unwrap()).await? else { return Ok(None) };
    let mut read = Vec::new();
    while let Some(piece) = stream.next().await {
        read.extend_from_slice(&piece?);
    }
    Ok(Some(read))
}

/// A store, and its server, whose next requests fail in this way.
async fn failing(op: Op, fault: Fault, count: usize) -> (TestBucket, S3BlobStore) {
    let test = TestBucket::fake().await;
    test.server().fail(op, fault, count);
    let store = test.blobs();
    (test, store)
}

#[tokio::test]
async fn a_blob_whose_response_was_lost_is_published() {
    let (test, store) = failing(Op::Put, Fault::DoneBut(500), ATTEMPTS).await;
    put(&store, b"bytes").await.unwrap();
    assert_eq!(test.server().forgive(), 0, "every attempt was met by the fault");
    assert_eq!(get(&store, 0, 5).await.unwrap().unwrap(), b"bytes");
}

#[tokio::test]
async fn a_refused_blob_is_an_outage_and_is_not_there() {
    let (test, store) = failing(Op::Put, Fault::Refused(503), ATTEMPTS).await;
    assert_eq!(put(&store, b"bytes").await.unwrap_err().kind, LOST);
    assert_eq!((get(&store, 0, 5).await.unwrap(), store.list().await.unwrap()), (None, vec![]));
    assert_eq!(store.draft_count().await.unwrap(), 0, "the scratch file is removed");
    // The next attempt succeeds.
    put(&store, b"bytes").await.unwrap();
    assert_eq!(test.server().count(Op::Put), ATTEMPTS + 2, "with the id of the store");
}

#[tokio::test]
async fn a_refused_blob_does_not_pass_for_an_older_one_of_its_name() {
    let (test, store) = failing(Op::Put, Fault::Refused(500), ATTEMPTS).await;
    test.server().put_object(NAME, &test.name(&name(key())), b"wrong".to_vec());
    assert_eq!(put(&store, b"bytes").await.unwrap_err().kind, LOST);
    assert_eq!(get(&store, 0, 5).await.unwrap().unwrap(), b"wrong");
}

#[tokio::test]
async fn a_request_that_fails_once_is_repeated() {
    for op in [Op::Put, Op::Get, Op::Head, Op::List, Op::Delete, Op::Begin, Op::Part] {
        let (test, store) = failing(op, Fault::Refused(500), 1).await;
        let blob = bytes(9 << 20);
        put(&store, if op == Op::Put { b"bytes" } else { &blob }).await.unwrap();
        assert!(get(&store, 0, 5).await.unwrap().is_some());
        assert!(store.head(key()).await.unwrap().is_some());
        assert_eq!(store.list().await.unwrap(), [key()]);
        assert!(store.delete(key()).await.unwrap());
        assert_eq!(test.server().forgive(), 0, "{op:?} was met by the fault");
    }
}

#[tokio::test]
async fn a_long_blob_is_sent_in_parts_and_read_whole() {
    let (test, store) = failing(Op::Part, Fault::Refused(500), 1).await;
    let blob = bytes((20 << 20) + 1);
    put(&store, &blob).await.unwrap();
    assert_eq!((test.server().count(Op::Begin), test.server().count(Op::Part)), (1, 4));
    assert_eq!(get(&store, 0, blob.len() as u64).await.unwrap().unwrap(), blob);
    assert_eq!(store.head(key()).await.unwrap(), Some(blob.len() as u64));
}

#[tokio::test]
async fn an_upload_whose_part_fails_is_aborted() {
    let (test, store) = failing(Op::Part, Fault::Refused(500), 4 * ATTEMPTS * ATTEMPTS).await;
    assert_eq!(put(&store, &bytes(9 << 20)).await.unwrap_err().kind, LOST);
    assert_eq!((test.server().unfinished_uploads(), store.list().await.unwrap()), (0, vec![]));
    assert_eq!(test.server().count(Op::Complete), 0);
}

#[tokio::test]
async fn an_upload_that_was_completed_is_never_aborted() {
    // The first response is lost, and the repeated request finds no upload.
    let (test, store) = failing(Op::Complete, Fault::DoneBut(500), 1).await;
    let blob = bytes(9 << 20);
    put(&store, &blob).await.unwrap();
    assert_eq!(get(&store, 0, blob.len() as u64).await.unwrap().unwrap(), blob);
    assert_eq!((test.server().count(Op::Complete), test.server().count(Op::Abort)), (2, 0));

    let (test, store) = failing(Op::Complete, Fault::Refused(500), 2 * ATTEMPTS).await;
    assert_eq!(put(&store, &blob).await.unwrap_err().kind, LOST);
    assert_eq!((get(&store, 0, 1).await.unwrap(), test.server().count(Op::Abort)), (None, 0));
    assert_eq!(test.server().unfinished_uploads(), 1, "left for the rule of the bucket");
}

#[tokio::test]
async fn a_read_goes_on_where_a_response_was_cut() {
    let blob = bytes(3_000_001);
    for cut in [0, 1, 100_000, 999_999] {
        let test = TestBucket::fake().await;
        let store = test.blobs();
        put(&store, &blob).await.unwrap();
        test.server().fail(Op::Get, Fault::CutAfter(cut), 3);
        assert_eq!(get(&store, 5, 3_000_000).await.unwrap().unwrap(), blob[5..3_000_000], "cut after {cut}");
        assert_eq!(test.server().forgive(), 0);
    }
}

#[tokio::test]
async fn a_read_that_is_always_cut_ends_with_an_error() {
    let test = TestBucket::fake().await;
    let store = test.blobs();
    put(&store, &bytes(100)).await.unwrap();
    test.server().fail(Op::Get, Fault::CutAfter(0), 1000);
    assert_eq!(get(&store, 0, 100).await.unwrap_err().kind, LOST);
    assert!(test.server().forgive() > 900, "it gave up early");
}

/// Some proxies and gateways ignore ranges.
#[tokio::test]
async fn a_whole_object_for_a_range_is_an_error_and_never_other_bytes() {
    let test = TestBucket::fake().await;
    let store = test.blobs();
    put(&store, &bytes(100)).await.unwrap();
    test.server().fail(Op::Get, Fault::Whole, 1000);
    assert_eq!(get(&store, 10, 20).await.unwrap_err().kind, LOST);
}

#[tokio::test]
async fn an_object_that_lost_its_end_is_corrupt() {
    let test = TestBucket::fake().await;
    let store = test.blobs();
    put(&store, &bytes(100)).await.unwrap();
    test.server().put_object(NAME, &test.name(&name(key())), bytes(60));
    assert_eq!(get(&store, 0, 60).await.unwrap().unwrap(), bytes(60));
    for (start, end) in [(0, 100), (59, 61), (60, 61), (70, 80)] {
        assert_eq!(get(&store, start, end).await.unwrap_err().kind, BlobErrorKind::Corrupt, "{start}-{end}");
    }
}

/// Otherwise a scrub of an emptied bucket would mark every xorb as damaged.
#[tokio::test]
async fn nothing_counts_as_missing_in_a_bucket_without_a_store() {
    let test = TestBucket::fake().await;
    let store = test.blobs();
    assert_eq!((store.head(key()).await.unwrap(), get(&store, 0, 1).await.unwrap()), (None, None));
    test.server().remove_object(NAME, &test.name("store"));
    for error in [store.head(key()).await.unwrap_err(), get(&store, 0, 1).await.unwrap_err()] {
        assert!(error.kind == LOST && chain(&error).contains("the bucket has no object store"), "{}", chain(&error));
    }
    assert_eq!(store.probe().await.unwrap_err().kind, LOST);
    assert_eq!(store.delete(key()).await.unwrap_err().kind, LOST);
    // The store of another bucket, which has appeared behind this name.
    test.server().put_object(NAME, &test.name("store"), b"07070707070707070707070707070707".to_vec());
    for error in [store.head(key()).await.unwrap_err(), store.probe().await.unwrap_err()] {
        assert!(error.kind == LOST && chain(&error).contains("it is another bucket"), "{}", chain(&error));
    }
    test.server().remove_bucket(NAME);
    assert_eq!(store.list_group(1).await.unwrap_err().kind, LOST);
    assert_eq!(test.records().store_id().await.unwrap_err().kind, LOST);
    assert_eq!(test.records().last().await.unwrap_err().kind, LOST);
}

#[tokio::test]
async fn a_wrong_key_is_an_outage_whose_text_has_no_secret() {
    let test = TestBucket::fake().await;
    let mut address = test.address().clone();
    address.access_key = "another-key".to_owned();
    address.secret_key = "hunter2".to_owned();
    let bucket = Bucket::new(&address).unwrap();
    let error = bucket.head("look up", "store").await.unwrap_err();
    assert!(error.kind == LOST && !format!("{error:?} {address:?} {bucket:?}").contains("hunter2"), "{error:?}");
    let listed = bucket.list("list blobs", "xorbs", None, "", 1).await.unwrap_err();
    assert!(chain(&listed).contains("InvalidAccessKeyId"), "{}", chain(&listed));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_an_outage() {
    let test = TestBucket::fake().await;
    let mut address = test.address().clone();
    address.endpoint = FakeS3::start().url().to_owned();
    let bucket = Bucket::new(&address).unwrap();
    assert_eq!(bucket.head("look up", "store").await.unwrap_err().kind, LOST);
}

#[tokio::test]
async fn a_draft_is_a_scratch_file_until_it_is_published_or_dropped() {
    let test = TestBucket::fake().await;
    let store = test.blobs();
    for ends in ["drop", "publish", "bytes"] {
        let mut draft = store.draft().unwrap();
        draft.write(b"bytes").unwrap();
        assert_eq!(store.draft_count().await.unwrap(), 1);
        match ends {
            "drop" => drop(draft),
            "publish" => draft.publish(key()).await.unwrap(),
            _ => assert_eq!(draft.into_bytes().unwrap(), b"bytes"),
        }
        assert_eq!(store.draft_count().await.unwrap(), 0, "{ends}");
    }
    std::mem::forget(store.draft().unwrap());
    assert_eq!(test.blobs().remove_stray_drafts().await.unwrap(), 1);
}

#[tokio::test]
async fn a_record_whose_response_was_lost_is_appended_once() {
    let test = TestBucket::fake().await;
    let records = test.records();
    let first = records.append("first".into()).await.unwrap();
    test.server().fail(Op::Put, Fault::DoneBut(500), ATTEMPTS);
    let seq = records.append("record".into()).await.unwrap();
    assert_eq!(records.list(None).await.unwrap(), [first, seq]);
    test.server().fail(Op::Put, Fault::Refused(500), ATTEMPTS);
    assert_eq!(records.append("record".into()).await.unwrap_err().kind, LOST);
    assert!(records.append("record".into()).await.unwrap() > seq);
}

/// A refused registration removes its record. The late request of that removal, or of the record,
/// must meet no other record.
#[tokio::test]
async fn number_of_a_removed_record_is_not_used_again() {
    let test = TestBucket::fake().await;
    let (dead, next) = (test.records(), test.records());
    let removed = dead.append("removed".into()).await.unwrap();
    assert!(dead.remove(removed).await.unwrap());
    let first = next.append("next".into()).await.unwrap();
    let late = dead.append("late".into()).await.unwrap();
    assert!(removed < first && first < late, "{removed} {first} {late}");
    next.reserve_through(Seq::new(1000));
    assert_eq!(next.append("reserved".into()).await.unwrap(), Seq::new(1001));
    assert!(dead.append("later".into()).await.unwrap() > Seq::new(1001));
}
