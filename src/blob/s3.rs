//! Blobs as objects of an S3 bucket.
//!
//! ```text
//! <prefix>/xorbs/ee/eea2…7632.<16 hex>   one object per blob, by the first two digits of its hash
//! <prefix>/store                         the id of the store (`records/s3.rs`)
//! <scratch>/<32 hex>                     drafts, in a local directory
//! ```
//!
//! A draft is a local file, because a body is as slow as its client, and S3 takes whole objects.
//! The file is not synced: nothing is acknowledged before the S3 store has the object. A crash
//! leaves the file until the next start, and in the bucket what `s3/bucket.rs` says.
//!
//! Needed of the S3 store: an object that was put is read from then on, a deleted one is not, and a
//! list has what was there before it began. zorb uses no conditions, versions or renames.

mod address;
mod bucket;
mod direct;
mod draft;
#[cfg(test)]
pub(super) mod test_bucket;
#[cfg(test)]
mod tests;
mod trial;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt, try_unfold};
use object_store::{GetOptions, GetRange};
use tokio::time::timeout;

pub use self::address::BucketAddress;
pub(super) use self::address::failed;
pub use self::bucket::Bucket;
pub(super) use self::bucket::STORE_OBJECT;
use self::direct::PublicBucket;
use self::draft::S3Draft;
pub use self::trial::Trial;
use super::{BlobError, BlobErrorKind, BlobKey, BlobStore, BlobStream, DirectUrls, Draft, free_len_of};
use crate::format::{ByteRange, XorbHash};
use crate::runtime::blocking::Pool;
use crate::runtime::durable::{TempFile, clear_directory, count_temp_files, create_directory};
use crate::runtime::incarnation::Incarnation;
use crate::runtime::outage::Outage;

/// The directory of the blobs.
const XORBS: &str = "xorbs";

/// Maximum time of a probe, which load balancers wait for.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a read continues after an error without having read a byte since the last one. The
/// client has then repeated each request itself, for up to 20 seconds.
const MAX_FRUITLESS: u32 = 2;

/// A bucket as a [`BlobStore`].
#[derive(Clone, Debug)]
pub struct S3BlobStore {
    bucket: Bucket,
    /// The directory of drafts.
    scratch: PathBuf,
    pool: Pool,
    /// The bucket as clients reach it, if they do.
    public: Option<PublicBucket>,
}

impl S3BlobStore {
    /// Opens the store in `bucket`, with drafts in the directory `scratch`, which is created if it
    /// is missing. Blocks, and sends nothing.
    ///
    /// # Errors
    ///
    /// The directory cannot be created.
    pub fn open(bucket: Bucket, scratch: &Path, pool: Pool) -> Result<Self, BlobError> {
        create_directory(scratch).map_err(|error| BlobError::io("create the scratch directory", None, error))?;
        Ok(Self::open_existing(bucket, scratch, pool))
    }

    /// Opens the store in `bucket` for reading. Creates no directory, and sends nothing.
    #[must_use]
    pub fn open_existing(bucket: Bucket, scratch: &Path, pool: Pool) -> Self {
        Self { bucket, scratch: scratch.to_owned(), pool, public: None }
    }

    /// The same store, whose bucket clients reach at this URL. Sends nothing.
    ///
    /// # Errors
    ///
    /// The address is invalid.
    pub fn reached_at(self, endpoint: &str, address: &BucketAddress) -> Result<Self, BlobError> {
        let public = BucketAddress { endpoint: endpoint.to_owned(), ..address.clone() };
        let public = PublicBucket::new(self.bucket.clone(), &public)?;
        Ok(Self { public: Some(public), ..self })
    }

    /// Runs this work on the pool, in the scratch directory.
    async fn in_scratch<T, F>(&self, op: &'static str, work: F) -> Result<T, BlobError>
    where
        T: Send + 'static,
        F: FnOnce(&Path) -> io::Result<T> + Send + 'static,
    {
        let scratch = self.scratch.clone();
        self.pool.run(move || work(&scratch)).await.map_err(|error| BlobError::io(op, None, error))
    }

    async fn list_names(&self, directory: &str) -> Result<Vec<BlobKey>, BlobError> {
        let names = self.bucket.list("list blobs", directory, None, "", usize::MAX).await?;
        // An object whose name is not that of a blob does not belong to the store, and is ignored.
        Ok(names.iter().filter_map(|name| key_of(name)).collect())
    }
}

/// The name of the object of a blob.
fn name(key: BlobKey) -> String {
    let name = key.to_string();
    let (directory, _) = name.split_at(2);
    format!("{XORBS}/{directory}/{name}")
}

/// The key of the blob in the object of this name; `None` if it is no blob.
fn key_of(object: &str) -> Option<BlobKey> {
    let key = BlobKey::parse(object.rsplit('/').next()?)?;
    (name(key) == object).then_some(key)
}

fn of_blob(key: BlobKey) -> impl FnOnce(BlobError) -> BlobError {
    move |error| BlobError { key: Some(key), ..error }
}

impl BlobStore for S3BlobStore {
    fn draft(&self) -> Result<Box<dyn Draft>, BlobError> {
        let file = TempFile::create(&self.scratch).map_err(|error| BlobError::io("begin a draft", None, error))?;
        Ok(Box::new(S3Draft::new(file, self.clone())))
    }

    fn read(&self, key: BlobKey, range: ByteRange) -> BoxFuture<'_, Result<Option<BlobStream>, BlobError>> {
        async move {
            let first = request(&self.bucket, key, range, range.start()).await;
            let Some(body) = first.map_err(of_blob(key))? else { return Ok(None) };
            let reader = S3Reader { bucket: self.bucket.clone(), key, range, at: range.start(), body, fruitless: 0 };
            Ok(Some(stream(reader)))
        }
        .boxed()
    }

    fn head(&self, key: BlobKey) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        async move { self.bucket.head("look up", &name(key)).await.map_err(of_blob(key)) }.boxed()
    }

    fn delete(&self, key: BlobKey) -> BoxFuture<'_, Result<bool, BlobError>> {
        async move { self.bucket.delete("delete", &name(key)).await.map_err(of_blob(key)) }.boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        self.list_names(XORBS).boxed()
    }

    fn list_group(&self, group: u8) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        async move { self.list_names(&format!("{XORBS}/{group:02x}")).await }.boxed()
    }

    fn list_of(&self, hash: XorbHash) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        let first = name(BlobKey::new(hash, Incarnation::UNNAMED));
        async move {
            let (directory, _) = first.rsplit_once('/').unwrap_or_default();
            // The list begins after a name, so after a shorter one than the first.
            let before = &first[..first.len() - 1];
            let names = self.bucket.list("list blobs of a xorb", directory, Some(before), before, usize::MAX).await?;
            Ok(names.iter().filter_map(|name| key_of(name)).filter(|key| key.xorb_hash() == hash).collect())
        }
        .boxed()
    }

    fn draft_count(&self) -> BoxFuture<'_, Result<usize, BlobError>> {
        self.in_scratch("list the scratch directory", count_temp_files).boxed()
    }

    fn remove_stray_drafts(&self) -> BoxFuture<'_, Result<usize, BlobError>> {
        self.in_scratch("remove stray drafts from the scratch directory", clear_directory).boxed()
    }

    /// Writes to the scratch directory, and reads from the bucket. It writes no object, because
    /// load balancers call this every few seconds, and S3 stores charge for each object.
    fn probe(&self) -> BoxFuture<'_, Result<(), BlobError>> {
        async move {
            let write = |scratch: &Path| TempFile::create(scratch)?.write(b"probe");
            self.in_scratch("write to the scratch directory", write).await?;
            let op = "look up the store";
            timeout(PROBE_TIMEOUT, self.bucket.check_store(op)).await.unwrap_or_else(|error| {
                let source = Box::new(error);
                Err(BlobError { op, key: None, kind: BlobErrorKind::Outage(Outage::ObjectStore), source })
            })
        }
        .boxed()
    }

    /// Free bytes of the scratch directory. The length of a bucket has no limit that S3 can tell.
    fn free_len(&self) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        async move { self.in_scratch("query the free space", free_len_of).await.map(Some) }.boxed()
    }

    fn direct(&self) -> Option<&dyn DirectUrls> {
        self.public.as_ref().map(|public| public as &dyn DirectUrls)
    }
}

/// An object whose `range` is read from front to back.
struct S3Reader {
    bucket: Bucket,
    key: BlobKey,
    range: ByteRange,
    /// The offset of the next byte.
    at: u64,
    body: Body,
    /// Number of errors since the last byte.
    fruitless: u32,
}

/// The rest of a response, and the offset after its last byte.
struct Body {
    bytes: BoxStream<'static, object_store::Result<bytes::Bytes>>,
    end: u64,
}

/// Requests the bytes of `range` from the offset `at`; `None` if the object does not exist. The
/// response may end earlier, if the object does.
async fn request(bucket: &Bucket, key: BlobKey, range: ByteRange, at: u64) -> Result<Option<Body>, BlobError> {
    let options = GetOptions { range: Some(GetRange::Bounded(at..range.end())), ..GetOptions::default() };
    match bucket.get("read", &name(key), options).await {
        Ok(Some(found)) => Ok(Some(Body { end: found.range.end, bytes: found.into_stream() })),
        Ok(None) => Ok(None),
        // If the object ends before the range begins, the response is an error, too.
        Err(error) => match bucket.head("look up", &name(key)).await {
            Ok(Some(len)) if len < range.end() => Err(BlobError::short(key, range, len)),
            _ => Err(error),
        },
    }
}

/// Streams the bytes of a reader. If the S3 store closes the connection, because the client of this
/// stream is slow for example, the reader continues with another request.
fn stream(reader: S3Reader) -> BlobStream {
    try_unfold(reader, |mut reader| async move {
        loop {
            if reader.at == reader.range.end() {
                return Ok(None);
            }
            let error = match reader.body.bytes.next().await {
                Some(Ok(piece)) if piece.is_empty() => continue,
                Some(Ok(piece)) => {
                    reader.at += piece.len() as u64;
                    reader.fruitless = 0;
                    // A response of another length is not what was asked for.
                    if reader.at > reader.range.end() {
                        return Err(BlobError::short(reader.key, reader.range, reader.range.end()));
                    }
                    return Ok(Some((piece, reader)));
                }
                Some(Err(error)) => of_blob(reader.key)(failed("read", error)),
                // The object ends here, according to the head of the response.
                None if reader.at >= reader.body.end => {
                    return Err(BlobError::short(reader.key, reader.range, reader.at));
                }
                // The response was cut. That says nothing about the object.
                None => {
                    let cut = Box::new(io::Error::from(io::ErrorKind::UnexpectedEof));
                    let kind = BlobErrorKind::Outage(Outage::ObjectStore);
                    BlobError { op: "read", key: Some(reader.key), kind, source: cut }
                }
            };
            if reader.fruitless == MAX_FRUITLESS {
                return Err(error);
            }
            reader.fruitless += 1;
            let next = request(&reader.bucket, reader.key, reader.range, reader.at).await;
            let Some(body) = next.map_err(of_blob(reader.key))? else { return Err(error) };
            reader.body = body;
        }
    })
    .boxed()
}
