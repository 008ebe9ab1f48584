//! A bucket of an S3 store: sends requests, and decides what an error means.
//!
//! * An object that was put is stored whole or not at all. After an error of a request that could
//!   have stored it, its tag decides: each [`Bucket::put`] has a random tag, and an object with
//!   this tag is its own.
//! * A response "not found" counts only if the object `store` is there. Without that object the
//!   bucket is another one, or empty, and nothing is known about the requested object.
//! * Error texts have the name of an object and the response of the S3 store, never a key.
//!
//! A crash in `put` can leave an object that was not acknowledged, or parts of an unfinished
//! upload, which only a lifecycle rule of the bucket removes (`AbortIncompleteMultipartUpload`).

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, ready};
use futures_util::stream::{FuturesUnordered, StreamExt, TryStreamExt};
use futures_util::{FutureExt, TryFutureExt};
use object_store::aws::{AmazonS3, AmazonS3Builder, Checksum};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, BackoffConfig, ClientOptions, Error, GetOptions, GetResult, MultipartUpload, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, RetryConfig,
};
use thiserror::Error;

use crate::blob::{BlobError, BlobErrorKind};
use crate::runtime::outage::Outage;

/// An object of at most this many bytes is put with one request, a longer one in parts of this
/// length. S3 takes no part below 5 MiB, and a xorb of 64 MiB has 8 parts.
pub(crate) const PART_LEN: u64 = 8 << 20;

/// Number of parts of one object under way at once. Each is in memory.
const PARTS_UNDER_WAY: usize = 2;

/// A request ends after this silence of the S3 store. There is no total time, because a response
/// is as slow as the client for which it is read.
const MAX_SILENCE: Duration = Duration::from_secs(30);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A failed request is repeated up to four times within 20 seconds. This is short enough that a
/// client still waits for its response.
const RETRY_COUNT: usize = 4;
const RETRY_TIMEOUT: Duration = Duration::from_secs(20);

/// Idle connections that are kept, and for how long. S3 stores close idle connections after some
/// 20 seconds.
const IDLE_CONNECTION_COUNT: usize = 64;
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// The object that every store has: its id.
pub(crate) const STORE_OBJECT: &str = "store";

/// The metadata of an object that says which `put` stored it.
const TAG: &str = "zorb-put";

/// Where a bucket is, and with which key to open it.
#[derive(Clone, PartialEq, Eq)]
pub struct BucketAddress {
    /// URL of the S3 store, without the bucket.
    pub endpoint: String,
    /// The region of the bucket.
    pub region: String,
    /// The name of the bucket.
    pub bucket: String,
    /// What the names of all objects begin with, without a slash at the end; may be empty.
    pub prefix: String,
    /// The id of the key.
    pub access_key: String,
    /// The secret part of the key.
    pub secret_key: String,
}

impl fmt::Debug for BucketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BucketAddress({self})")
    }
}

impl fmt::Display for BucketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.bucket, self.endpoint)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, ", prefix {}", self.prefix) }
    }
}

/// A bucket, or the part of it whose names begin with a prefix. Clones share the connections.
#[derive(Clone, Debug)]
pub struct Bucket {
    s3: Arc<AmazonS3>,
    prefix: Path,
}

/// The bytes of a new object.
pub(crate) trait Source: Send + Sync {
    /// The number of bytes.
    fn total_len(&self) -> u64;

    /// A part of the bytes.
    fn part(&self, range: Range<u64>) -> BoxFuture<'_, io::Result<Bytes>>;
}

impl Source for Bytes {
    fn total_len(&self) -> u64 {
        Self::len(self) as u64
    }

    fn part(&self, range: Range<u64>) -> BoxFuture<'_, io::Result<Bytes>> {
        let at = |offset| usize::try_from(offset).unwrap_or(usize::MAX).min(Self::len(self));
        ready(Ok(self.slice(at(range.start)..at(range.end)))).boxed()
    }
}

impl Bucket {
    /// Prepares to use this bucket. Sends nothing.
    ///
    /// # Errors
    ///
    /// The address is invalid.
    pub fn new(address: &BucketAddress) -> Result<Self, BlobError> {
        // The process has one provider of TLS. If it was installed before, this changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = ClientOptions::new()
            .with_timeout_disabled()
            .with_read_timeout(MAX_SILENCE)
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_pool_idle_timeout(IDLE_TIMEOUT)
            .with_pool_max_idle_per_host(IDLE_CONNECTION_COUNT)
            .with_allow_http(true)
            .with_http1_only();
        // Over plain HTTP the bytes are signed. Over TLS they are not, which saves a SHA-256 of
        // all bytes; the S3 store checks their CRC.
        let is_encrypted = address.endpoint.starts_with("https://");
        let backoff = BackoffConfig { init_backoff: Duration::from_millis(100), ..BackoffConfig::default() };
        let built = AmazonS3Builder::new()
            .with_endpoint(&address.endpoint)
            .with_region(&address.region)
            .with_bucket_name(&address.bucket)
            .with_access_key_id(&address.access_key)
            .with_secret_access_key(&address.secret_key)
            .with_allow_http(true)
            .with_unsigned_payload(is_encrypted)
            // Single deletions are part of every S3 store.
            .with_disable_bulk_delete(true)
            .with_checksum_algorithm(Checksum::CRC64NVME)
            .with_retry(RetryConfig { backoff, max_retries: RETRY_COUNT, retry_timeout: RETRY_TIMEOUT })
            .with_client_options(client)
            .build();
        let s3 = built.map_err(|error| failed("open the bucket", error))?;
        let prefix = Path::parse(&address.prefix).map_err(|error| failed("open the bucket", error.into()))?;
        Ok(Self { s3: Arc::new(s3), prefix })
    }

    /// The path of an object of this name, which may have slashes.
    fn path(&self, name: &str) -> Path {
        self.prefix.parts().chain(Path::from(name).parts()).collect()
    }

    /// The name of an object that a list has.
    fn name<'a>(&self, path: &'a Path) -> Option<&'a str> {
        let prefix = self.prefix.as_ref();
        let name = path.as_ref().strip_prefix(prefix)?;
        if prefix.is_empty() { Some(name) } else { name.strip_prefix('/') }
    }

    /// Stores an object. After `Ok` it is durable as far as the S3 store keeps its promise, and has
    /// exactly these bytes. After an error it may or may not be stored.
    pub(crate) async fn put(&self, op: &'static str, name: &str, source: &dyn Source) -> Result<(), BlobError> {
        let path = self.path(name);
        let tag = format!("{:032x}", rand::random::<u128>());
        let attributes: Attributes = [(Attribute::Metadata(TAG.into()), tag.clone())].into_iter().collect();
        let stored = if source.total_len() <= PART_LEN {
            self.put_whole(&path, source, attributes).await
        } else {
            self.put_in_parts(&path, source, attributes).await
        };
        match stored {
            Ok(()) => Ok(()),
            Err(Unstored::Certainly(error)) => Err(failed(op, error)),
            // The response was lost, or a repeated request has met the first one.
            Err(Unstored::Perhaps(error)) => match self.s3.get_opts(&path, head()).await {
                Ok(found) if found.attributes.get(&Attribute::Metadata(TAG.into())).is_some_and(|of| **of == *tag) => {
                    Ok(())
                }
                _ => Err(failed(op, error)),
            },
        }
    }

    async fn put_whole(&self, path: &Path, source: &dyn Source, attributes: Attributes) -> Result<(), Unstored> {
        let bytes = source.part(0..source.total_len()).map_err(read_failed).await?;
        let options = PutOptions { attributes, ..PutOptions::default() };
        self.s3.put_opts(path, bytes.into(), options).await.map(drop).map_err(Unstored::Perhaps)
    }

    async fn put_in_parts(&self, path: &Path, source: &dyn Source, attributes: Attributes) -> Result<(), Unstored> {
        let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
        let mut upload = self.s3.put_multipart_opts(path, options).await.map_err(Unstored::Certainly)?;
        let sent = send_parts(upload.as_mut(), source).await;
        if let Err(error) = sent {
            // Never after an attempt to complete the upload. Garage and SeaweedFS can end such an
            // upload as aborted although it was acknowledged as complete.
            if let Err(error) = upload.abort().await {
                tracing::debug!(%error, "parts of an upload to S3 are left for the lifecycle rule of the bucket");
            }
            return Err(error);
        }
        upload.complete().await.map(drop).map_err(Unstored::Perhaps)
    }

    /// Requests an object, or a part of it. `None` if it does not exist.
    pub(crate) async fn get(
        &self,
        op: &'static str,
        name: &str,
        options: GetOptions,
    ) -> Result<Option<GetResult>, BlobError> {
        match self.s3.get_opts(&self.path(name), options).await {
            Ok(found) => Ok(Some(found)),
            Err(Error::NotFound { source, .. }) => self.confirm_missing(op, source).await.map(|()| None),
            Err(error) => Err(failed(op, error)),
        }
    }

    /// Length of an object in bytes; `None` if it does not exist.
    pub(crate) async fn head(&self, op: &'static str, name: &str) -> Result<Option<u64>, BlobError> {
        Ok(self.get(op, name, head()).await?.map(|found| found.meta.size))
    }

    /// Checks that the bucket has a store, and so is the bucket of the store that was opened.
    async fn confirm_missing(
        &self,
        op: &'static str,
        source: Box<dyn StdError + Send + Sync>,
    ) -> Result<(), BlobError> {
        match self.s3.get_opts(&self.path(STORE_OBJECT), head()).await {
            Ok(_) => Ok(()),
            Err(Error::NotFound { .. }) => Err(unavailable(op, Box::new(NoStore { source }))),
            Err(error) => Err(failed(op, error)),
        }
    }

    /// Like [`get`](Self::get) of the whole object, for one whose absence says nothing about
    /// others.
    pub(crate) async fn find(&self, op: &'static str, name: &str) -> Result<Option<GetResult>, BlobError> {
        match self.s3.get_opts(&self.path(name), GetOptions::default()).await {
            Ok(found) => Ok(Some(found)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed(op, error)),
        }
    }

    /// Removes an object. Returns whether it existed.
    pub(crate) async fn delete(&self, op: &'static str, name: &str) -> Result<bool, BlobError> {
        // S3 does not say whether it has deleted something.
        match self.s3.get_opts(&self.path(name), head()).await {
            Err(Error::NotFound { .. }) => return Ok(false),
            found => found.map_err(|error| failed(op, error))?,
        };
        match self.s3.delete(&self.path(name)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(true),
            Err(error) => Err(failed(op, error)),
        }
    }

    /// Names of the objects whose names begin with `directory` and a slash, ascending: those after
    /// the name `after`, at most `count`.
    pub(crate) async fn list(
        &self,
        op: &'static str,
        directory: &str,
        after: Option<&str>,
        count: usize,
    ) -> Result<Vec<String>, BlobError> {
        let prefix = self.path(directory);
        let found = match after {
            Some(after) => self.s3.list_with_offset(Some(&prefix), &self.path(after)),
            None => self.s3.list(Some(&prefix)),
        };
        let names =
            found.take(count).try_filter_map(|object| ready(Ok(self.name(&object.location).map(str::to_owned))));
        names.try_collect().await.map_err(|error| failed(op, error))
    }

    /// The next part of the names after `directory` and a slash, up to the next slash, ascending.
    pub(crate) async fn list_directories(&self, op: &'static str, directory: &str) -> Result<Vec<String>, BlobError> {
        let found = self.s3.list_with_delimiter(Some(&self.path(directory))).await;
        let found = found.map_err(|error| failed(op, error))?;
        let mut names: Vec<String> =
            found.common_prefixes.iter().filter_map(|path| path.filename().map(str::to_owned)).collect();
        names.sort_unstable();
        Ok(names)
    }
}

/// Sends all parts, two at a time.
async fn send_parts(upload: &mut dyn MultipartUpload, source: &dyn Source) -> Result<(), Unstored> {
    let mut under_way = FuturesUnordered::new();
    let mut start = 0;
    while start < source.total_len() {
        let end = source.total_len().min(start + PART_LEN);
        let bytes = source.part(start..end).map_err(read_failed).await?;
        under_way.push(upload.put_part(bytes.into()));
        if under_way.len() == PARTS_UNDER_WAY {
            under_way.try_next().await.map_err(Unstored::Certainly)?;
        }
        start = end;
    }
    under_way.try_collect().await.map_err(Unstored::Certainly)
}

/// Why an object was not stored, as far as is known.
enum Unstored {
    Certainly(Error),
    Perhaps(Error),
}

fn read_failed(error: io::Error) -> Unstored {
    Unstored::Certainly(Error::Generic { store: "scratch file", source: Box::new(error) })
}

/// Asks for the metadata of an object only.
fn head() -> GetOptions {
    GetOptions { head: true, ..GetOptions::default() }
}

/// An error of the S3 client. All of them may be temporary.
pub(crate) fn failed(op: &'static str, source: Error) -> BlobError {
    unavailable(op, Box::new(source))
}

fn unavailable(op: &'static str, source: Box<dyn StdError + Send + Sync>) -> BlobError {
    BlobError { op, key: None, kind: BlobErrorKind::Outage(Outage::ObjectStore), source }
}

/// A bucket without a store.
#[derive(Debug, Error)]
#[error("the bucket has no object {STORE_OBJECT}: it is another bucket, or it was emptied")]
struct NoStore {
    #[source]
    source: Box<dyn StdError + Send + Sync>,
}
