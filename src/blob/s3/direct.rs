//! Signed URLs with which clients read ranges of blobs from the S3 store.
//!
//! The signature is about the object, the time, and the header `Range`. So a URL opens one range,
//! if the S3 store compares the headers of a request with the signature. All known ones do, but one
//! that did not would open the whole object to everybody who may read a part of it. So
//! [`check`](DirectUrls::check) tries other ranges, before the first URL is made.
//!
//! A URL reveals the id of the key, the bucket and the name of the object, and nothing secret.
//! Nothing can end it early but another key of the bucket.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::{HeaderValue, RANGE};
use http::{Method, StatusCode, Uri};
use object_store::aws::AmazonS3;
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody};
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use thiserror::Error;

use super::address::{BucketAddress, MAX_SILENCE, failed, limited, unavailable};
use super::bucket::{Bucket, STORE_OBJECT};
use super::name;
use crate::blob::{BlobError, BlobErrorKind, BlobKey, DirectUrls};
use crate::format::ByteRange;

const CHECK: &str = "check signed URLs";

/// Lifetime of the URLs of a check.
const CHECK_LIFE: Duration = Duration::from_secs(300);

/// The range of the object `store` for which the URL of a check is signed.
const SIGNED: &str = "bytes=0-7";

/// Values of the header `Range` that the URL of a check must not open: a longer range, another one,
/// two, the whole object, and none.
const UNSIGNED: [Option<&str>; 5] =
    [Some("bytes=0-8"), Some("bytes=1-7"), Some("bytes=0-7,9-9"), Some("bytes=0-"), None];

/// URLs of a bucket as clients reach it.
#[derive(Clone, Debug)]
pub(super) struct PublicBucket {
    bucket: Bucket,
    endpoint: String,
    /// Signs for the host that clients reach, and sends nothing.
    signer: AmazonS3,
    /// Sends the requests of a check.
    http: HttpClient,
}

impl PublicBucket {
    /// The bucket as clients reach it at this address. Sends nothing.
    pub(super) fn new(bucket: Bucket, address: &BucketAddress) -> Result<Self, BlobError> {
        let (signer, http) = (address.client(MAX_SILENCE)?, BucketAddress::keyless_client()?);
        Ok(Self { bucket, endpoint: address.endpoint.clone(), signer, http })
    }

    /// The URL of the S3 store for clients.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(super) const fn signer(&self) -> &AmazonS3 {
        &self.signer
    }

    pub(super) fn path(&self, name: &str) -> Path {
        self.bucket.path(name)
    }

    /// The status of the S3 store for a URL with this header `Range`.
    pub(super) async fn status(&self, url: &Uri, range: Option<&str>) -> Result<StatusCode, BlobError> {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = url.clone();
        if let Some(range) = range.and_then(|range| HeaderValue::from_str(range).ok()) {
            request.headers_mut().insert(RANGE, range);
        }
        let sent = async {
            let response = self.http.execute(request).await;
            response
                .map_err(|source| failed(CHECK, object_store::Error::Generic { store: "S3", source: Box::new(source) }))
        };
        limited(CHECK, sent).await.map(|response| response.status())
    }

    /// Checks URLs of an object that exists. They are signed for the endpoint of the server,
    /// because clients may reach the S3 store by a name that leads nowhere from here.
    pub(super) async fn check_with(&self, name: &str) -> Result<(), BlobError> {
        let url = sign(self.bucket.signer(), &self.bucket.path(name), SIGNED, CHECK_LIFE);
        let url: Option<Uri> = url.and_then(|url| url.parse().ok());
        let url = url.ok_or_else(|| unsuitable(Unsuitable::Unsigned))?;
        match self.status(&url, Some(SIGNED)).await? {
            StatusCode::PARTIAL_CONTENT => {}
            status if status.is_server_error() => {
                return Err(unavailable(CHECK, Box::new(Unsuitable::Refused { status })));
            }
            status => return Err(unsuitable(Unsuitable::Refused { status })),
        }
        for range in UNSIGNED {
            let status = self.status(&url, range).await?;
            if status.is_server_error() {
                return Err(unavailable(CHECK, Box::new(Unsuitable::Refused { status })));
            }
            if !status.is_client_error() {
                return Err(unsuitable(Unsuitable::Opened { range: range.unwrap_or("none"), status }));
            }
        }
        Ok(())
    }
}

/// Signs a URL for `GET` of an object with this header `Range`.
pub(super) fn sign(signer: &AmazonS3, object: &Path, range: &str, life: Duration) -> Option<String> {
    let options = SignedUrlOptions::new().with_signed_header(RANGE, HeaderValue::from_str(range).ok()?);
    // Does not wait: the key is in memory.
    let signed = signer.signed_url_opts(Method::GET, object, life, &options).now_or_never()?;
    signed.inspect_err(|error| tracing::warn!(%error, "cannot sign a URL of the S3 store")).ok().map(String::from)
}

impl DirectUrls for PublicBucket {
    fn sign(&self, key: BlobKey, range: ByteRange, life: Duration) -> Option<String> {
        let header = format!("bytes={}-{}", range.start(), range.last());
        sign(&self.signer, &self.bucket.path(&name(key)), &header, life)
    }

    fn check(&self) -> BoxFuture<'_, Result<(), BlobError>> {
        self.check_with(STORE_OBJECT).boxed()
    }
}

fn unsuitable(why: Unsuitable) -> BlobError {
    BlobError { op: CHECK, key: None, kind: BlobErrorKind::Other, source: Box::new(why) }
}

/// Why clients cannot read from this S3 store.
#[derive(Debug, Error)]
enum Unsuitable {
    #[error("no URL can be signed with this key")]
    Unsigned,
    #[error("the S3 store responds to a URL with a signed range with {status} instead of 206")]
    Refused { status: StatusCode },
    #[error(
        "a URL that is signed for one range was not refused for another one ({range}): the S3 store responds with {status}, \
         so clients would read what they may not; unset s3_public_endpoint"
    )]
    Opened { range: &'static str, status: StatusCode },
}
