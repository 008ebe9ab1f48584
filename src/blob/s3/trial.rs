//! Tries out what an S3 store can do, with objects of its own below `check/`.
//!
//! It needs no store in the bucket, and touches nothing of one. A trial that is killed leaves up to
//! two objects of at most 9 MiB, or the parts of one, which nothing reads.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use futures_util::{FutureExt, TryFutureExt, TryStreamExt};
use http::{StatusCode, Uri, header};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};
use tokio::time::sleep;

use super::S3BlobStore;
use super::address::{failed, limited};
use super::bucket::{Bucket, PART_LEN};
use super::direct::{PublicBucket, sign};
use crate::blob::BlobError;

/// The directory of the objects of a trial.
const DIRECTORY: &str = "check";

/// Length of the larger object: it is sent in two parts.
const LONG_LEN: u64 = PART_LEN + (1 << 20);

/// Maximum time until the S3 store refuses a URL that was valid for a second.
const MAX_EXPIRY: Duration = Duration::from_secs(10);

const PAUSE: Duration = Duration::from_millis(500);

/// What was tried, and how it ended.
#[derive(Debug)]
pub struct Trial {
    /// What was tried, for people.
    pub what: &'static str,
    /// The finding, or why it failed.
    pub outcome: Result<String, BlobError>,
}

impl S3BlobStore {
    /// Tries out the S3 store. The trials end with the first one that fails.
    pub async fn try_out(&self) -> Vec<Trial> {
        let bucket = &self.bucket;
        let name = format!("{DIRECTORY}/{:032x}", rand::random::<u128>());
        let long = format!("{name}-long");
        let mut trials: Vec<(&'static str, BoxFuture<'_, Result<String, BlobError>>)> = vec![
            ("write and read an object", write_and_read(bucket, &name, 100).boxed()),
            ("write and read an object in parts", write_and_read(bucket, &long, LONG_LEN).boxed()),
            ("read a range", read_range(bucket, &name).boxed()),
            ("list objects", list(bucket, &name, &long).boxed()),
        ];
        if let Some(public) = &self.public {
            trials.push(("clients reach the S3 store", reach(public, &name).boxed()));
            trials.push(("signed URLs open their range only", check_signed(bucket, public, &name).boxed()));
            trials.push(("signed URLs expire", expire(public, &name).boxed()));
        }
        trials.push(("delete objects", delete(bucket, [&name, &long]).boxed()));
        let mut tried = Vec::new();
        for (what, trial) in trials {
            tried.push(Trial { what, outcome: trial.await });
            if tried.last().is_some_and(|trial| trial.outcome.is_err()) {
                // What was written is removed as far as that is possible.
                let _ = delete(bucket, [&name, &long]).await;
                break;
            }
        }
        tried
    }
}

/// The bytes of an object of this length.
fn bytes(len: u64) -> Bytes {
    (0..len).map(|at| u8::try_from(at % 251).unwrap_or_default()).collect::<Vec<_>>().into()
}

async fn write_and_read(bucket: &Bucket, name: &str, len: u64) -> Result<String, BlobError> {
    bucket.put("write an object", name, &bytes(len)).await?;
    let read = get(bucket, name, 0..len).await?;
    if read == bytes(len) { Ok(format!("{len} bytes")) } else { Err(wrong("the bytes that are read are others")) }
}

async fn read_range(bucket: &Bucket, name: &str) -> Result<String, BlobError> {
    let read = get(bucket, name, 10..20).await?;
    if read == bytes(100)[10..20] { Ok("10 bytes".to_owned()) } else { Err(wrong("another range is read")) }
}

async fn get(bucket: &Bucket, name: &str, range: std::ops::Range<u64>) -> Result<Bytes, BlobError> {
    let path = bucket.path(name);
    let read = bucket.signer().get_range(&path, range);
    limited("read an object", read.map(|read| read.map_err(|error| failed("read an object", error)))).await
}

async fn list(bucket: &Bucket, name: &str, long: &str) -> Result<String, BlobError> {
    let list = async |after: Option<&Path>| {
        let directory = bucket.path(DIRECTORY);
        let found = match after {
            Some(after) => bucket.signer().list_with_offset(Some(&directory), after),
            None => bucket.signer().list(Some(&directory)),
        };
        let names: Result<Vec<Path>, Error> = found.map_ok(|object| object.location).try_collect().await;
        names.map_err(|error| failed("list objects", error))
    };
    let (first, second) = (bucket.path(name), bucket.path(long));
    let all = list(None).await?;
    if !all.is_sorted() || !all.contains(&first) || !all.contains(&second) {
        return Err(wrong("the list lacks an object that was written before, or is not sorted"));
    }
    let rest = list(Some(&first)).await?;
    if rest.contains(&first) || !rest.contains(&second) {
        return Err(wrong("the list does not begin after the name that was asked for"));
    }
    Ok("sorted, and complete after a write".to_owned())
}

async fn check_signed(bucket: &Bucket, public: &PublicBucket, name: &str) -> Result<String, BlobError> {
    // At the URL of the server, and at that of clients.
    for signer in [bucket.signer(), public.signer()] {
        public.check_with(signer, name).await?;
    }
    Ok("other ranges are refused".to_owned())
}

async fn reach(public: &PublicBucket, name: &str) -> Result<String, BlobError> {
    let url = signed(public, name, Duration::from_secs(60))?;
    match public.status(&url, &[(header::RANGE, RANGE)]).await? {
        StatusCode::PARTIAL_CONTENT => Ok(format!("{} responds to this machine", public.endpoint())),
        status => Err(wrong_status(status)),
    }
}

async fn expire(public: &PublicBucket, name: &str) -> Result<String, BlobError> {
    let url = signed(public, name, Duration::from_secs(1))?;
    let mut waited = Duration::ZERO;
    loop {
        match public.status(&url, &[(header::RANGE, RANGE)]).await? {
            StatusCode::FORBIDDEN => return Ok("403: clients request new ones".to_owned()),
            status if status.is_client_error() => {
                return Ok(format!("{status}: a download that needs over an hour for 256 MB ends"));
            }
            StatusCode::PARTIAL_CONTENT if waited < MAX_EXPIRY => {
                sleep(PAUSE).await;
                waited += PAUSE;
            }
            status => return Err(wrong_status(status)),
        }
    }
}

/// The range of the URLs here.
const RANGE: &str = "bytes=0-9";

fn signed(public: &PublicBucket, name: &str, life: Duration) -> Result<Uri, BlobError> {
    let url = sign(public.signer(), &public.path(name), RANGE, life);
    url.and_then(|url| url.parse().ok()).ok_or_else(|| wrong("no URL can be signed"))
}

async fn delete(bucket: &Bucket, names: [&str; 2]) -> Result<String, BlobError> {
    let op = "delete an object";
    // Both, also if the first one cannot be deleted.
    let deleted = join_all(names.map(async |name| {
        let path = bucket.path(name);
        limited(op, bucket.signer().delete(&path).map_err(|error| failed(op, error))).await
    }));
    for deleted in deleted.await {
        deleted?;
    }
    for name in names {
        match bucket.signer().head(&bucket.path(name)).await {
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(failed(op, error)),
            Ok(_) => return Err(wrong("an object is there after it was deleted")),
        }
    }
    Ok("gone".to_owned())
}

fn wrong(reason: &'static str) -> BlobError {
    failed("try out the S3 store", Error::Generic { store: "S3", source: io::Error::other(reason).into() })
}

fn wrong_status(status: StatusCode) -> BlobError {
    let reason = io::Error::other(format!("the S3 store responds to a signed URL with {status}"));
    failed("try out the S3 store", Error::Generic { store: "S3", source: reason.into() })
}
