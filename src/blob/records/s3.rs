//! Records as objects of an S3 bucket.
//!
//! ```text
//! <prefix>/shards/0000000000100/000000000010002a   one object per record, 4096 numbers per directory
//! <prefix>/complete                                empty; marks the records as complete
//! <prefix>/store                                   the id of the store, 32 hexadecimal digits
//! ```
//!
//! S3 has no exclusive creation that all stores implement, so numbers are unique by other means.
//! One process at a time appends; `cli` holds a lock for that. A request of a process that died
//! can still arrive later. So a process begins 2^20 numbers after the last record that it finds,
//! and never uses a number that a process before it could have used.
//!
//! A crash leaves a record that was not acknowledged, or none.

use std::error::Error as StdError;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;

use super::{BlobError, MAX_RECORD_LEN, PAGE_COUNT, RecordStore, Seq};
use crate::blob::BlobErrorKind;
use crate::blob::s3::{Bucket, STORE_OBJECT, failed};
use crate::format::StoreId;

/// The directory of the records.
const SHARDS: &str = "shards";

/// The object that marks the records as complete.
const COMPLETE: &str = "complete";

/// The number of hexadecimal digits in the name of a record, and of those that are the directory.
const DIGIT_COUNT: usize = 16;
const DIGIT_COUNT_OF_GROUP: usize = 13;

/// Maximum number of bytes that are read of the object with the id.
const MAX_STORE_ID_LEN: u64 = 64;

/// A process begins so many numbers after the last record. A process before it has fewer requests
/// under way, and 2^64 numbers are enough for 2^44 starts.
const FIRST_STEP: u64 = 1 << 20;

/// A bucket as a [`RecordStore`].
#[derive(Clone, Debug)]
pub struct S3RecordStore {
    bucket: Bucket,
    /// The number that the next record gets; `None` before the first append has looked for the last
    /// record.
    next: Arc<Mutex<Option<Seq>>>,
    /// No new record has a number below this one.
    reserved: Arc<AtomicU64>,
}

impl S3RecordStore {
    /// The store in `bucket`. Sends nothing.
    #[must_use]
    pub fn new(bucket: Bucket) -> Self {
        Self { bucket, next: Arc::default(), reserved: Arc::default() }
    }

    /// Takes a number that no other record has or will have.
    async fn take_number(&self) -> Result<Seq, BlobError> {
        let mut next = self.next.lock().await;
        let seq = match *next {
            Some(seq) => seq,
            None => Seq::new(self.last().await?.map_or(0, Seq::number).saturating_add(FIRST_STEP)),
        };
        let seq = seq.max(Seq::new(self.reserved.load(Ordering::Acquire)));
        *next = Some(seq.next());
        Ok(seq)
    }
}

/// The name of the object of a record.
fn name(seq: Seq) -> String {
    let name = seq.to_string();
    let (group, _) = name.split_at(DIGIT_COUNT_OF_GROUP);
    format!("{SHARDS}/{group}/{name}")
}

/// The number of the record in an object of this name; `None` if it is no record.
fn number(name: &str) -> Option<Seq> {
    let (_, name) = name.rsplit_once('/')?;
    let is_number = name.len() == DIGIT_COUNT && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_number.then(|| u64::from_str_radix(name, 16).ok().map(Seq::new)).flatten()
}

impl RecordStore for S3RecordStore {
    fn append(&self, record: Bytes) -> BoxFuture<'_, Result<Seq, BlobError>> {
        let op = "append a record";
        async move {
            if record.len() as u64 > MAX_RECORD_LEN {
                return Err(BlobError::too_long(op, record.len() as u64));
            }
            let seq = self.take_number().await?;
            self.bucket.put(op, &name(seq), &record).await.map_err(|error| error.of_record(seq))?;
            Ok(seq)
        }
        .boxed()
    }

    fn list(&self, after: Option<Seq>) -> BoxFuture<'_, Result<Vec<Seq>, BlobError>> {
        async move {
            let after = after.map(name);
            let names = self.bucket.list("list records", SHARDS, after.as_deref(), PAGE_COUNT).await?;
            Ok(names.iter().filter_map(|name| number(name)).collect())
        }
        .boxed()
    }

    fn last(&self) -> BoxFuture<'_, Result<Option<Seq>, BlobError>> {
        async move {
            let op = "look for the last record";
            for group in self.bucket.list_directories(op, SHARDS).await?.into_iter().rev() {
                let names = self.bucket.list(op, &format!("{SHARDS}/{group}"), None, usize::MAX).await?;
                if let Some(last) = names.iter().filter_map(|name| number(name)).max() {
                    return Ok(Some(last));
                }
            }
            Ok(None)
        }
        .boxed()
    }

    fn read(&self, seq: Seq) -> BoxFuture<'_, Result<Option<Bytes>, BlobError>> {
        let op = "read a record";
        async move {
            let Some(found) = self.bucket.find(op, &name(seq)).await.map_err(|error| error.of_record(seq))? else {
                return Ok(None);
            };
            // The client ends a response that is longer than its length says.
            if found.meta.size > MAX_RECORD_LEN {
                return Err(BlobError::too_long(op, found.meta.size).of_record(seq));
            }
            let read = found.bytes().await;
            read.map(Some).map_err(|error| failed(op, error).of_record(seq))
        }
        .boxed()
    }

    fn remove(&self, seq: Seq) -> BoxFuture<'_, Result<bool, BlobError>> {
        async move {
            let removed = self.bucket.delete("remove a record", &name(seq)).await;
            removed.map_err(|error| error.of_record(seq))
        }
        .boxed()
    }

    fn is_complete(&self) -> BoxFuture<'_, Result<bool, BlobError>> {
        async move { Ok(self.bucket.find("look for the mark complete", COMPLETE).await?.is_some()) }.boxed()
    }

    fn set_complete(&self) -> BoxFuture<'_, Result<(), BlobError>> {
        async move { self.bucket.put("make the mark complete", COMPLETE, &Bytes::new()).await }.boxed()
    }

    fn store_id(&self) -> BoxFuture<'_, Result<Option<StoreId>, BlobError>> {
        let op = "read the id of the store";
        async move {
            let Some(found) = self.bucket.find(op, STORE_OBJECT).await? else {
                // Fails if there is no such bucket: a start must not take that for a new store.
                self.bucket.list(op, SHARDS, None, 1).await?;
                return Ok(None);
            };
            let invalid = |source: Box<dyn StdError + Send + Sync>| BlobError {
                op,
                key: None,
                kind: BlobErrorKind::Corrupt,
                source,
            };
            if found.meta.size > MAX_STORE_ID_LEN {
                return Err(invalid("the object is too long for an id".into()));
            }
            let bytes = found.bytes().await.map_err(|error| failed(op, error))?;
            let text = std::str::from_utf8(&bytes).map_err(|error| invalid(error.into()))?;
            text.trim_end().parse().map(Some).map_err(|error: <StoreId as FromStr>::Err| invalid(error.into()))
        }
        .boxed()
    }

    fn set_store_id(&self, id: StoreId) -> BoxFuture<'_, Result<(), BlobError>> {
        let op = "write the id of the store";
        async move {
            if self.store_id().await?.is_some() {
                let source = "the bucket has an id".into();
                return Err(BlobError { op, key: None, kind: BlobErrorKind::Other, source });
            }
            self.bucket.put(op, STORE_OBJECT, &Bytes::from(format!("{id}\n"))).await
        }
        .boxed()
    }

    fn reserve_through(&self, seq: Seq) {
        self.reserved.fetch_max(seq.next().number(), Ordering::AcqRel);
    }
}
