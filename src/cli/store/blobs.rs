//! The blobs and records of a store: in its data directory, or in a bucket.

use std::sync::Arc;

use anyhow::Result;

use super::index::StoreIndex;
use super::location::StoreLocation;
use crate::blob::BlobStore;
use crate::blob::fs::FsBlobStore;
use crate::blob::records::RecordStore;
use crate::blob::records::fs::FsRecordStore;
use crate::config::{Config, S3Config};
use crate::runtime::blocking::Pool;

/// What was tried, and the finding, or why it failed.
pub(in crate::cli) type Finding = (&'static str, Result<String>);

/// The blobs and records of a store.
#[derive(Clone, Debug)]
pub(in crate::cli) struct StoreBlobs {
    pub(in crate::cli) blobs: Arc<dyn BlobStore>,
    pub(in crate::cli) records: Arc<dyn RecordStore>,
    /// Maximum number of blobs that are published at once, if the medium has one.
    pub(in crate::cli) publish_count: Option<usize>,
}

impl StoreLocation {
    /// The blobs and records of an existing store with this index, for a command that uses so many
    /// disk workers for blobs. Creates no directory, and sends nothing.
    pub(in crate::cli) fn existing_blobs(&self, index: &StoreIndex, disk_worker_count: usize) -> Result<StoreBlobs> {
        match &self.s3 {
            Some(s3) => built::existing(s3, self, index, Pool::new(disk_worker_count)),
            None => Ok(StoreBlobs {
                blobs: Arc::new(FsBlobStore::open_existing(&self.data_dir, Pool::new(disk_worker_count))),
                records: Arc::new(FsRecordStore::open_existing(&self.data_dir, Pool::new(1))),
                publish_count: None,
            }),
        }
    }

    /// Tries out the bucket. Returns what was tried, and the finding or the failure of each.
    pub(in crate::cli) async fn try_out_bucket(&self) -> Result<Vec<Finding>> {
        match &self.s3 {
            Some(s3) => built::try_out(s3, self).await,
            None => Ok(Vec::new()),
        }
    }

    /// Blobs and records in a bucket, for a command that fills a new store with this index, and
    /// uses so many disk workers for drafts. Creates the directory of the drafts. `None` if they
    /// are in the data directory.
    pub(in crate::cli) fn new_bucket(
        &self,
        index: &StoreIndex,
        disk_worker_count: usize,
    ) -> Result<Option<StoreBlobs>> {
        let Some(s3) = &self.s3 else { return Ok(None) };
        built::open(s3, self, index, Pool::new(disk_worker_count)).map(Some)
    }

    /// The blobs and records for a server with these settings, which keeps up to `open_blob_count`
    /// files open. Creates missing directories. `database` is the index if it is in a database; a
    /// bucket requires one.
    pub(in crate::cli) fn open_blobs(
        &self,
        config: &Config,
        open_blob_count: usize,
        database: Option<&StoreIndex>,
    ) -> Result<StoreBlobs> {
        let pool = || Pool::new(config.disk_workers);
        if let (Some(s3), Some(index)) = (&self.s3, database) {
            return built::open(s3, self, index, pool());
        }
        let blobs = FsBlobStore::open(&self.data_dir, pool())?
            .with_open_files(open_blob_count)
            .with_read_limit(config.max_concurrent_reads)
            .writing_directly(config.direct_writes);
        let records = FsRecordStore::open(&self.data_dir, pool())?;
        Ok(StoreBlobs { blobs: Arc::new(blobs), records: Arc::new(records), publish_count: None })
    }
}

#[cfg(feature = "s3")]
mod built {
    use std::error::Error;

    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;

    use super::{Arc, Finding, Pool, Result, S3Config, StoreBlobs, StoreIndex, StoreLocation};
    use crate::blob::records::s3::{RecordNumbers, S3RecordStore};
    use crate::blob::s3::{Bucket, BucketAddress, S3BlobStore};
    use crate::index::give_up_record;

    /// A publication has up to two parts of 8 MiB in memory.
    const PUBLISH_COUNT: usize = 8;

    /// Numbers of records from the index, which all servers of a bucket share.
    #[derive(Debug)]
    struct NumbersOfIndex(StoreIndex);

    impl RecordNumbers for NumbersOfIndex {
        fn next(&self, min: u64) -> BoxFuture<'_, Result<u64, Box<dyn Error + Send + Sync>>> {
            async move { Ok(self.0.next_record_number(min).await?) }.boxed()
        }

        fn give_up(&self, number: u64) -> BoxFuture<'_, ()> {
            async move { give_up_record(self.0.shared().as_ref(), number).await }.boxed()
        }
    }

    pub(super) fn existing(
        s3: &S3Config,
        location: &StoreLocation,
        index: &StoreIndex,
        pool: Pool,
    ) -> Result<StoreBlobs> {
        let bucket = Bucket::new(&address(s3))?;
        let blobs = S3BlobStore::open_existing(bucket.clone(), &location.scratch_dir(), pool);
        Ok(shared(blobs, bucket, index))
    }

    pub(super) fn open(s3: &S3Config, location: &StoreLocation, index: &StoreIndex, pool: Pool) -> Result<StoreBlobs> {
        let bucket = Bucket::new(&address(s3))?;
        let blobs = S3BlobStore::open(bucket.clone(), &location.scratch_dir(), pool)?;
        Ok(shared(public(blobs, s3)?, bucket, index))
    }

    pub(super) async fn try_out(s3: &S3Config, location: &StoreLocation) -> Result<Vec<Finding>> {
        let bucket = Bucket::new(&address(s3))?;
        let blobs = S3BlobStore::open_existing(bucket, &location.scratch_dir(), Pool::new(1));
        let trials = public(blobs, s3)?.try_out().await;
        Ok(trials.into_iter().map(|trial| (trial.what, trial.outcome.map_err(Into::into))).collect())
    }

    /// The same blobs, with the URL at which clients reach them, if they do.
    fn public(blobs: S3BlobStore, s3: &S3Config) -> Result<S3BlobStore> {
        match &s3.public_endpoint {
            Some(endpoint) => Ok(blobs.reached_at(endpoint, &address(s3))?),
            None => Ok(blobs),
        }
    }

    fn shared(blobs: S3BlobStore, bucket: Bucket, index: &StoreIndex) -> StoreBlobs {
        let records = Arc::new(S3RecordStore::new(bucket, Arc::new(NumbersOfIndex(index.clone()))));
        StoreBlobs { blobs: Arc::new(blobs), records, publish_count: Some(PUBLISH_COUNT) }
    }

    fn address(s3: &S3Config) -> BucketAddress {
        BucketAddress {
            endpoint: s3.endpoint.clone(),
            region: s3.region.clone(),
            bucket: s3.bucket.clone(),
            prefix: s3.prefix.clone(),
            access_key: s3.access_key.clone(),
            secret_key: s3.secret_key.expose().to_owned(),
        }
    }
}

#[cfg(not(feature = "s3"))]
mod built {
    use anyhow::bail;

    use super::{Finding, Pool, Result, S3Config, StoreBlobs, StoreIndex, StoreLocation};

    const NOT_BUILT: &str = "s3_bucket is set, and this zorb was built without S3; build it with --features \
                             postgres,s3, or unset the settings s3_…";

    pub(super) fn existing(_: &S3Config, _: &StoreLocation, _: &StoreIndex, _: Pool) -> Result<StoreBlobs> {
        bail!(NOT_BUILT)
    }

    pub(super) fn open(_: &S3Config, _: &StoreLocation, _: &StoreIndex, _: Pool) -> Result<StoreBlobs> {
        bail!(NOT_BUILT)
    }

    #[expect(clippy::unused_async, reason = "as in a program with S3")]
    pub(super) async fn try_out(_: &S3Config, _: &StoreLocation) -> Result<Vec<Finding>> {
        bail!(NOT_BUILT)
    }
}
