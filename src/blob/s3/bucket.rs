//! A bucket of an S3 store: sends requests, and decides what an error means.
//!
//! * An object that was put is stored whole or not at all. After an error of a request that could
//!   have stored it, its tag decides: each [`Bucket::put`] has a random tag, and an object with
//!   this tag is its own.
//! * A response "not found" counts only if the object `store` is there, and is the one of the first
//!   look. Otherwise the bucket is another one, or empty, and nothing is known about the requested
//!   object.
//! * Error texts have the name of an object and the response of the S3 store, never a key.
//!
//! A crash in `put` can leave an object that was not acknowledged, or parts of an unfinished
//! upload, which only a lifecycle rule of the bucket removes (`AbortIncompleteMultipartUpload`).

use std::error::Error as StdError;
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures_util::future::{BoxFuture, ready};
use futures_util::stream::{FuturesUnordered, StreamExt, TryStreamExt};
use futures_util::{FutureExt, TryFutureExt};
use object_store::aws::AmazonS3;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, GetOptions, GetResult, MultipartUpload, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions,
};
use thiserror::Error;

use super::address::{BucketAddress, MAX_SILENCE, MAX_SILENCE_OF_PUT, failed, limited, unavailable};
use crate::blob::BlobError;

/// An object of at most this many bytes is put with one request, a longer one in parts of this
/// length. S3 takes no part below 5 MiB, and a xorb of 64 MiB has 8 parts.
pub(crate) const PART_LEN: u64 = 8 << 20;

/// Number of parts of one object under way at once. Each is in memory.
const PARTS_UNDER_WAY: usize = 2;

/// The object that every store has: its id.
pub(crate) const STORE_OBJECT: &str = "store";

/// The metadata of an object that says which `put` stored it.
const TAG: &str = "zorb-put";

/// A bucket, or the part of it whose names begin with a prefix. Clones share the connections.
#[derive(Clone, Debug)]
pub struct Bucket {
    s3: Arc<AmazonS3>,
    /// The client of requests that have a body.
    puts: Arc<AmazonS3>,
    prefix: Path,
    /// The tag of the object `store`, as it was when this process looked first.
    store: Arc<OnceLock<Option<String>>>,
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
        let prefix = Path::parse(&address.prefix).map_err(|error| failed("open the bucket", error.into()))?;
        let s3 = Arc::new(address.client(MAX_SILENCE)?);
        Ok(Self { s3, puts: Arc::new(address.client(MAX_SILENCE_OF_PUT)?), prefix, store: Arc::default() })
    }

    /// The client that signs for the server itself.
    pub(super) fn signer(&self) -> &AmazonS3 {
        &self.s3
    }

    /// The path of an object of this name, which may have slashes.
    pub(super) fn path(&self, name: &str) -> Path {
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
            Err(Unstored::Perhaps(error)) => {
                let find = async { self.s3.get_opts(&path, head()).await.map_err(|error| failed(op, error)) };
                match limited(op, find).await {
                    Ok(found) if tag_of(&found) == Some(tag) => Ok(()),
                    _ => Err(failed(op, error)),
                }
            }
        }
    }

    async fn put_whole(&self, path: &Path, source: &dyn Source, attributes: Attributes) -> Result<(), Unstored> {
        let bytes = source.part(0..source.total_len()).map_err(read_failed).await?;
        let options = PutOptions { attributes, ..PutOptions::default() };
        self.puts.put_opts(path, bytes.into(), options).await.map(drop).map_err(Unstored::Perhaps)
    }

    async fn put_in_parts(&self, path: &Path, source: &dyn Source, attributes: Attributes) -> Result<(), Unstored> {
        let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
        let mut upload = self.puts.put_multipart_opts(path, options).await.map_err(Unstored::Certainly)?;
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
            Err(Error::NotFound { .. }) => self.check_store(op).await.map(|()| None),
            Err(error) => Err(failed(op, error)),
        }
    }

    /// Length of an object in bytes; `None` if it does not exist.
    pub(crate) async fn head(&self, op: &'static str, name: &str) -> Result<Option<u64>, BlobError> {
        let found = limited(op, self.get(op, name, head())).await?;
        Ok(found.map(|found| found.meta.size))
    }

    /// Checks that the bucket has the store that it had when this process looked first.
    pub(crate) async fn check_store(&self, op: &'static str) -> Result<(), BlobError> {
        let path = self.path(STORE_OBJECT);
        let checked = async {
            match self.s3.get_opts(&path, head()).await {
                Ok(found) if self.is_same_store(&found) => Ok(()),
                Ok(_) => Err(unavailable(op, Box::new(OtherStore))),
                Err(Error::NotFound { source, .. }) => Err(unavailable(op, Box::new(NoStore { source }))),
                Err(error) => Err(failed(op, error)),
            }
        };
        limited(op, checked).await
    }

    fn is_same_store(&self, found: &GetResult) -> bool {
        let tag = tag_of(found);
        *self.store.get_or_init(|| tag.clone()) == tag
    }

    /// Requests the object with the id of the store; `None` if the bucket has none.
    pub(crate) async fn read_store(&self, op: &'static str) -> Result<Option<GetResult>, BlobError> {
        match self.s3.get_opts(&self.path(STORE_OBJECT), GetOptions::default()).await {
            Ok(found) if self.is_same_store(&found) => Ok(Some(found)),
            Ok(_) => Err(unavailable(op, Box::new(OtherStore))),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed(op, error)),
        }
    }

    /// Removes an object. Returns whether it existed.
    pub(crate) async fn delete(&self, op: &'static str, name: &str) -> Result<bool, BlobError> {
        // S3 does not say whether it has deleted something.
        if self.head(op, name).await?.is_none() {
            return Ok(false);
        }
        let path = self.path(name);
        let deleted = async {
            match self.s3.delete(&path).await {
                Err(Error::NotFound { .. }) => self.check_store(op).await,
                deleted => deleted.map_err(|error| failed(op, error)),
            }
        };
        limited(op, deleted).await.map(|()| true)
    }

    /// Names of the objects whose names begin with `directory` and a slash, ascending: those after
    /// the name `after`, at most `count`, up to the first one that does not begin with `begin`.
    pub(crate) async fn list(
        &self,
        op: &'static str,
        directory: &str,
        after: Option<&str>,
        begin: &str,
        count: usize,
    ) -> Result<Vec<String>, BlobError> {
        let prefix = self.path(directory);
        let found = match after {
            Some(after) => self.s3.list_with_offset(Some(&prefix), &self.path(after)),
            None => self.s3.list(Some(&prefix)),
        };
        let names =
            found.take(count).try_filter_map(|object| ready(Ok(self.name(&object.location).map(str::to_owned))));
        let names = names.try_take_while(|name| ready(Ok(name.starts_with(begin))));
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

/// Which `put` has stored this object, if it was one.
fn tag_of(found: &GetResult) -> Option<String> {
    found.attributes.get(&Attribute::Metadata(TAG.into())).map(|tag| tag.to_string())
}

/// Asks for the metadata of an object only.
fn head() -> GetOptions {
    GetOptions { head: true, ..GetOptions::default() }
}

/// A bucket with another store than before.
#[derive(Debug, Error)]
#[error("the object {STORE_OBJECT} of the bucket is another one than at the start: it is another bucket")]
struct OtherStore;

/// A bucket without a store.
#[derive(Debug, Error)]
#[error("the bucket has no object {STORE_OBJECT}: it is another bucket, or it was emptied")]
struct NoStore {
    #[source]
    source: Box<dyn StdError + Send + Sync>,
}
