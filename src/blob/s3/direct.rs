//! Signed URLs with which clients read ranges of blobs from the S3 store.
//!
//! The signature is about the object, the time, and the header `Range`. So a URL opens one range,
//! if the S3 store compares the headers of a request with the signature, and does not ignore
//! `Range` because of another header. An S3 store without these properties would open the whole
//! object to everybody who may read a part of it. So [`check`](DirectUrls::check) tries both,
//! before the first URL is made.
//!
//! A URL reveals the id of the key, the bucket and the name of the object, and nothing secret.
//! Nothing can end it early but the deletion of that key in the S3 store.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::{HeaderName, HeaderValue, IF_RANGE, RANGE};
use http::{Method, StatusCode, Uri};
use object_store::aws::AmazonS3;
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody};
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use thiserror::Error;
use tokio::time::sleep;

use super::address::{BucketAddress, MAX_SILENCE, failed, limited, unavailable};
use super::bucket::{Bucket, STORE_OBJECT};
use super::name;
use crate::blob::{BlobError, BlobErrorKind, BlobKey, DirectUrls};
use crate::format::ByteRange;
use crate::runtime::outage::Outage;

const CHECK: &str = "check signed URLs";

/// Lifetime of the URLs of a check.
const CHECK_LIFE: Duration = Duration::from_secs(300);

/// How often a check is tried while the S3 store does not process its requests, and the pause
/// between two attempts.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

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

    /// The status of the S3 store for a URL with these headers.
    pub(super) async fn status(&self, url: &Uri, headers: &[(HeaderName, &str)]) -> Result<StatusCode, BlobError> {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = url.clone();
        for (name, value) in headers {
            if let Ok(value) = HeaderValue::from_str(value) {
                request.headers_mut().insert(name, value);
            }
        }
        let sent = async {
            let response = self.http.execute(request).await;
            response
                .map_err(|source| failed(CHECK, object_store::Error::Generic { store: "S3", source: Box::new(source) }))
        };
        limited(CHECK, sent).await.map(|response| response.status())
    }

    /// Checks URLs of an object that exists, signed with `signer`.
    pub(super) async fn check_with(&self, signer: &AmazonS3, name: &str) -> Result<(), BlobError> {
        let url = sign(signer, &self.bucket.path(name), SIGNED, CHECK_LIFE);
        let url: Option<Uri> = url.and_then(|url| url.parse().ok());
        let url = url.ok_or_else(|| unsuitable(Unsuitable::Unsigned))?;
        match self.status(&url, &[(RANGE, SIGNED)]).await? {
            StatusCode::PARTIAL_CONTENT => {}
            StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::OK => {
                return Err(unsuitable(Unsuitable::Refused));
            }
            status => return Err(unavailable(CHECK, Box::new(Unclear { status }))),
        }
        for range in UNSIGNED {
            let headers = range.map(|range| (RANGE, range));
            match self.status(&url, headers.as_slice()).await? {
                StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {}
                status if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE => {
                    return Err(unsuitable(Unsuitable::Opened { with: range.unwrap_or("no header Range") }));
                }
                status => return Err(unavailable(CHECK, Box::new(Unclear { status }))),
            }
        }
        // By RFC 9110 a server ignores `Range` if this condition fails. No signature can forbid a
        // header.
        match self.status(&url, &[(RANGE, SIGNED), (IF_RANGE, "\"zorb\"")]).await? {
            StatusCode::PARTIAL_CONTENT
            | StatusCode::BAD_REQUEST
            | StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::PRECONDITION_FAILED => Ok(()),
            status if status.is_success() => Err(unsuitable(Unsuitable::Opened { with: "the header If-Range" })),
            status => Err(unavailable(CHECK, Box::new(Unclear { status }))),
        }
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

    /// Signs for the endpoint of the server, because clients may reach the S3 store by a name that
    /// leads nowhere from here. Repeats what the S3 store did not process.
    fn check(&self) -> BoxFuture<'_, Result<(), BlobError>> {
        async move {
            let mut attempt = 1;
            loop {
                match self.check_with(self.bucket.signer(), STORE_OBJECT).await {
                    Err(error) if error.kind == BlobErrorKind::Outage(Outage::ObjectStore) && attempt < ATTEMPTS => {
                        attempt += 1;
                        sleep(PAUSE).await;
                    }
                    checked => return checked,
                }
            }
        }
        .boxed()
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
    #[error("the S3 store does not send the range for which a URL is signed")]
    Refused,
    #[error(
        "a URL that is signed for one range opens another one ({with}), so clients would read what they may not; unset \
         s3_public_endpoint"
    )]
    Opened { with: &'static str },
}

/// A response that says neither that a request was refused nor that it was not.
#[derive(Debug, Error)]
#[error("the S3 store responds to a signed URL with {status}")]
struct Unclear {
    status: StatusCode,
}
