//! Where a bucket is, how requests to it are sent, and what an error of the client means.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, Checksum};
use object_store::client::{HttpClient, HttpConnector, ReqwestConnector};
use object_store::{BackoffConfig, ClientOptions, Error, RetryConfig};
use tokio::time::timeout;

use crate::blob::{BlobError, BlobErrorKind};
use crate::runtime::outage::Outage;

/// A request ends after this silence of the S3 store. There is no total time, because a response
/// is as slow as the client for which it is read.
pub(super) const MAX_SILENCE: Duration = Duration::from_secs(30);

/// The same for requests with a body: the S3 store is silent until it has the whole body. With 16
/// parts of 8 MiB under way this is enough for an uplink of 6 Mbit/s.
pub(super) const MAX_SILENCE_OF_PUT: Duration = Duration::from_secs(180);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time of a request for metadata, or of a deletion, with its repetitions.
const MAX_TIME: Duration = Duration::from_secs(60);

/// A failed request is repeated up to four times within 20 seconds. This is short enough that a
/// client still waits for its response.
const RETRY_COUNT: usize = 4;
const RETRY_TIMEOUT: Duration = Duration::from_secs(20);

/// Idle connections that are kept, and for how long. S3 stores close idle connections after some
/// 20 seconds.
const IDLE_CONNECTION_COUNT: usize = 64;
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

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

impl BucketAddress {
    /// A client of this bucket, whose requests end after this silence. Sends nothing.
    pub(super) fn client(&self, max_silence: Duration) -> Result<AmazonS3, BlobError> {
        // Over plain HTTP the bytes are signed. Over TLS they are not, which saves a SHA-256 of
        // all bytes; the S3 store checks their CRC.
        let is_encrypted = self.endpoint.starts_with("https://");
        let backoff = BackoffConfig { init_backoff: Duration::from_millis(100), ..BackoffConfig::default() };
        let built = AmazonS3Builder::new()
            .with_endpoint(&self.endpoint)
            .with_region(&self.region)
            .with_bucket_name(&self.bucket)
            .with_access_key_id(&self.access_key)
            .with_secret_access_key(&self.secret_key)
            .with_allow_http(true)
            .with_unsigned_payload(is_encrypted)
            // Single deletions are part of every S3 store.
            .with_disable_bulk_delete(true)
            .with_checksum_algorithm(Checksum::CRC64NVME)
            .with_retry(RetryConfig { backoff, max_retries: RETRY_COUNT, retry_timeout: RETRY_TIMEOUT })
            .with_client_options(options(max_silence))
            .build();
        built.map_err(|error| failed("open the bucket", error))
    }

    /// A client for requests that need no key. Sends nothing.
    pub(super) fn keyless_client() -> Result<HttpClient, BlobError> {
        let http = ReqwestConnector::default().connect(&options(MAX_SILENCE));
        http.map_err(|error| failed("open the bucket", error))
    }
}

/// How requests are sent: they end after this silence.
fn options(max_silence: Duration) -> ClientOptions {
    ClientOptions::new()
        .with_timeout_disabled()
        .with_read_timeout(max_silence)
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_pool_idle_timeout(IDLE_TIMEOUT)
        .with_pool_max_idle_per_host(IDLE_CONNECTION_COUNT)
        .with_allow_http(true)
        .with_http1_only()
}

/// Ends a request with a short response after a while.
pub(super) async fn limited<T>(
    op: &'static str,
    request: impl Future<Output = Result<T, BlobError>>,
) -> Result<T, BlobError> {
    timeout(MAX_TIME, request).await.unwrap_or_else(|error| Err(unavailable(op, Box::new(error))))
}

/// An error of the S3 client. All of them may be temporary.
pub(crate) fn failed(op: &'static str, source: Error) -> BlobError {
    unavailable(op, Box::new(source))
}

pub(super) fn unavailable(op: &'static str, source: Box<dyn StdError + Send + Sync>) -> BlobError {
    BlobError { op, key: None, kind: BlobErrorKind::Outage(Outage::ObjectStore), source }
}
