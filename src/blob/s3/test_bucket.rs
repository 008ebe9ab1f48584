//! A bucket for one test: in the S3 store of the test process, or, if the variable `ZORB_TEST_S3`
//! has its URL, in a real one (`tests/garage.sh`).

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use tempfile::TempDir;
use zorb_fake_s3::{ACCESS_KEY, FakeS3, REGION, SECRET_KEY};

use super::{Bucket, BucketAddress, S3BlobStore};
use crate::blob::records::RecordStore;
use crate::blob::records::s3::{RecordNumbers, S3RecordStore};
use crate::format::StoreId;
use crate::runtime::blocking::Pool;

/// The name of the bucket in the S3 store of the test process.
pub(in crate::blob) const NAME: &str = "store";

#[derive(Debug)]
pub(in crate::blob) struct TestBucket {
    /// `None` with a real S3 store.
    server: Option<FakeS3>,
    address: BucketAddress,
    scratch: TempDir,
    numbers: Arc<Numbers>,
}

/// The numbers of the records of all processes of a store.
#[derive(Debug, Default)]
struct Numbers(AtomicU64);

impl RecordNumbers for Numbers {
    fn next(&self, min: u64) -> BoxFuture<'_, Result<u64, Box<dyn Error + Send + Sync>>> {
        self.0.fetch_max(min, Ordering::SeqCst);
        ready(Ok(self.0.fetch_add(1, Ordering::SeqCst))).boxed()
    }

    fn give_up(&self, _: u64) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }
}

impl TestBucket {
    /// An empty bucket, or an unused prefix of one.
    fn empty() -> Self {
        match std::env::var("ZORB_TEST_S3") {
            Ok(real) => Self::of(None, real_address(&real)),
            Err(_) => Self::empty_fake(),
        }
    }

    fn empty_fake() -> Self {
        let server = FakeS3::start();
        server.create_bucket(NAME);
        let address = BucketAddress {
            endpoint: server.url().to_owned(),
            region: REGION.to_owned(),
            bucket: NAME.to_owned(),
            prefix: "a/store".to_owned(),
            access_key: ACCESS_KEY.to_owned(),
            secret_key: SECRET_KEY.to_owned(),
        };
        Self::of(Some(server), address)
    }

    fn of(server: Option<FakeS3>, address: BucketAddress) -> Self {
        Self { server, address, scratch: tempfile::tempdir().unwrap(), numbers: Arc::default() }
    }

    /// A bucket of a store, or an empty one.
    pub(in crate::blob) async fn new(is_empty: bool) -> Self {
        if is_empty { Self::empty() } else { Self::start().await }
    }

    /// A bucket of a store.
    pub(in crate::blob) async fn start() -> Self {
        Self::empty().with_id().await
    }

    /// The same, never in a real S3 store, for a test that needs its faults.
    pub(in crate::blob) async fn fake() -> Self {
        Self::empty_fake().with_id().await
    }

    async fn with_id(self) -> Self {
        self.records().set_store_id(StoreId::from_bytes([7; 16])).await.unwrap();
        self
    }

    pub(in crate::blob) fn server(&self) -> &FakeS3 {
        self.server.as_ref().expect("the test uses the S3 store of the test process")
    }

    pub(in crate::blob) fn address(&self) -> &BucketAddress {
        &self.address
    }

    pub(in crate::blob) fn bucket(&self) -> Bucket {
        Bucket::new(&self.address).unwrap()
    }

    pub(in crate::blob) fn blobs(&self) -> S3BlobStore {
        S3BlobStore::open(self.bucket(), self.scratch(), Pool::new(2)).unwrap()
    }

    pub(in crate::blob) fn records(&self) -> S3RecordStore {
        S3RecordStore::new(self.bucket(), Arc::clone(&self.numbers) as Arc<dyn RecordNumbers>)
    }

    pub(in crate::blob) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// The name in the bucket of an object of the store.
    pub(in crate::blob) fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.address.prefix)
    }
}

/// The address in a variable, `URL REGION BUCKET ACCESS_KEY SECRET_KEY`.
fn real_address(text: &str) -> BucketAddress {
    let words: Vec<&str> = text.split(' ').collect();
    let [endpoint, region, bucket, access_key, secret_key] = words[..] else { panic!("ZORB_TEST_S3 has five words") };
    BucketAddress {
        endpoint: endpoint.to_owned(),
        region: region.to_owned(),
        bucket: bucket.to_owned(),
        prefix: format!("tests/{:016x}", rand::random::<u64>()),
        access_key: access_key.to_owned(),
        secret_key: secret_key.to_owned(),
    }
}
