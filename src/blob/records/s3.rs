//! Records as objects of an S3 bucket.
//!
//! ```text
//! <prefix>/shards/0000000000100/000000000010002a   one object per record, 4096 numbers per directory
//! <prefix>/complete                                empty; marks the records as complete
//! <prefix>/store                                   the id of the store, 32 hexadecimal digits
//! ```
//!
//! S3 has no exclusive creation that all stores implement, so the numbers come from elsewhere: from
//! [`RecordNumbers`], which never gives the same number twice, to any process. So a request of a
//! dead process that arrives late replaces no record.
//!
//! A crash leaves a record that was not acknowledged, or none, and a number without a record. So
//! does an error of the S3 store: then [`RecordNumbers::give_up`] is told the number.

use std::error::Error as StdError;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use object_store::GetOptions;

use super::{BlobError, MAX_RECORD_LEN, PAGE_COUNT, RecordStore, Seq};
use crate::blob::BlobErrorKind;
use crate::blob::s3::{Bucket, STORE_OBJECT, failed};
use crate::format::StoreId;
use crate::runtime::outage::Outage;

/// The directory of the records.
const SHARDS: &str = "shards";

/// The object that marks the records as complete.
const COMPLETE: &str = "complete";

/// The number of hexadecimal digits in the name of a record that are the directory.
const DIGIT_COUNT_OF_GROUP: usize = 13;

/// Maximum number of bytes that are read of the object with the id.
const MAX_STORE_ID_LEN: u64 = 64;

/// The source of the numbers of records, for all processes that append to a store.
pub trait RecordNumbers: fmt::Debug + Send + Sync + 'static {
    /// A number, at least `min`. It is greater than each that was returned before, to any process,
    /// and no later call returns it.
    fn next(&self, min: u64) -> BoxFuture<'_, Result<u64, Box<dyn StdError + Send + Sync>>>;

    /// The record with this number was refused or its response was lost. So it may be stored, now
    /// or later, and must be removed.
    fn give_up(&self, number: u64) -> BoxFuture<'_, ()>;
}

/// A bucket as a [`RecordStore`].
#[derive(Clone, Debug)]
pub struct S3RecordStore {
    bucket: Bucket,
    numbers: Arc<dyn RecordNumbers>,
    /// No new record has a number below this one.
    reserved: Arc<AtomicU64>,
}

impl S3RecordStore {
    /// The store in `bucket`, with numbers from `numbers`. Sends nothing.
    #[must_use]
    pub fn new(bucket: Bucket, numbers: Arc<dyn RecordNumbers>) -> Self {
        Self { bucket, numbers, reserved: Arc::default() }
    }

    /// Takes a number that no other record has or will have.
    async fn take_number(&self) -> Result<Seq, BlobError> {
        let taken = self.numbers.next(self.reserved.load(Ordering::Acquire)).await;
        let failed = |source| BlobError {
            op: "take a number for a record",
            key: None,
            kind: BlobErrorKind::Outage(Outage::Database),
            source,
        };
        taken.map(Seq::new).map_err(failed)
    }
}

/// The name of the object of a record.
fn name(seq: Seq) -> String {
    let name = seq.to_string();
    let (group, _) = name.split_at(DIGIT_COUNT_OF_GROUP);
    format!("{SHARDS}/{group}/{name}")
}

/// The number of the record in an object of this name; `None` if it is no record.
fn number(object: &str) -> Option<Seq> {
    let (_, digits) = object.rsplit_once('/')?;
    let seq = u64::from_str_radix(digits, 16).ok().map(Seq::new)?;
    (name(seq) == object).then_some(seq)
}

impl RecordStore for S3RecordStore {
    fn append(&self, record: Bytes) -> BoxFuture<'_, Result<Seq, BlobError>> {
        let op = "append a record";
        async move {
            if record.len() as u64 > MAX_RECORD_LEN {
                return Err(BlobError::too_long(op, record.len() as u64));
            }
            let seq = self.take_number().await?;
            if let Err(error) = self.bucket.put(op, &name(seq), &record).await {
                self.numbers.give_up(seq.number()).await;
                return Err(error.of_record(seq));
            }
            Ok(seq)
        }
        .boxed()
    }

    fn list(&self, after: Option<Seq>) -> BoxFuture<'_, Result<Vec<Seq>, BlobError>> {
        async move {
            let after = after.map(name);
            let names = self.bucket.list("list records", SHARDS, after.as_deref(), "", PAGE_COUNT).await?;
            Ok(names.iter().filter_map(|name| number(name)).collect())
        }
        .boxed()
    }

    fn last(&self) -> BoxFuture<'_, Result<Option<Seq>, BlobError>> {
        async move {
            let op = "look for the last record";
            for group in self.bucket.list_directories(op, SHARDS).await?.into_iter().rev() {
                let names = self.bucket.list(op, &format!("{SHARDS}/{group}"), None, "", usize::MAX).await?;
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
            let found = self.bucket.get(op, &name(seq), GetOptions::default()).await;
            let Some(found) = found.map_err(|error| error.of_record(seq))? else { return Ok(None) };
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
        async move { Ok(self.bucket.head("look for the mark complete", COMPLETE).await?.is_some()) }.boxed()
    }

    fn set_complete(&self) -> BoxFuture<'_, Result<(), BlobError>> {
        async move { self.bucket.put("make the mark complete", COMPLETE, &Bytes::new()).await }.boxed()
    }

    fn store_id(&self) -> BoxFuture<'_, Result<Option<StoreId>, BlobError>> {
        let op = "read the id of the store";
        async move {
            let Some(found) = self.bucket.read_store(op).await? else {
                // Fails if there is no such bucket: a start must not take that for a new store.
                self.bucket.list(op, SHARDS, None, "", 1).await?;
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
