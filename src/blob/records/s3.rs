//! Records as objects of an S3 bucket.
//!
//! ```text
//! <prefix>/shards/0000000000100/000000000010002a   one object per record, 4096 numbers per directory
//! <prefix>/blocks/0000000000100000.<16 hex>        a block of numbers that a process has taken
//! <prefix>/complete                                empty; marks the records as complete
//! <prefix>/store                                   the id of the store, 32 hexadecimal digits
//! ```
//!
//! S3 has no exclusive creation that all stores implement, so numbers are unique by other means. A
//! process takes a block of 2^20 numbers before its first append, and another one when the block is
//! used up. It puts an object with the first number and a random one, and then lists all such
//! objects. If another one has numbers in common, the block is given up. Of two processes, at least
//! one sees the object of the other. So a number is used by one process only, also if a request of
//! a dead process arrives late.
//!
//! Numbers of a later process are greater, because its block comes after every block and record
//! that it finds. For that, one process at a time must append; `cli` holds a lock.
//!
//! A crash leaves a record that was not acknowledged, or none, and a block without records.

use std::error::Error as StdError;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use object_store::GetOptions;
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

/// The directory of blocks of numbers.
const BLOCKS: &str = "blocks";

/// Number of numbers in a block. So a process takes few blocks, and 2^64 numbers are enough for
/// 2^44 starts.
const BLOCK_COUNT: u64 = 1 << 20;

/// A bucket as a [`RecordStore`].
#[derive(Clone, Debug)]
pub struct S3RecordStore {
    bucket: Bucket,
    /// The numbers of the block that are not used yet; empty before the first append.
    next: Arc<Mutex<Range<u64>>>,
    /// No new record has a number below this one.
    reserved: Arc<AtomicU64>,
}

impl S3RecordStore {
    /// The store in `bucket`. Sends nothing.
    #[must_use]
    pub fn new(bucket: Bucket) -> Self {
        Self { bucket, next: Arc::new(Mutex::new(0..0)), reserved: Arc::default() }
    }

    /// Takes a number that no other record has or will have.
    async fn take_number(&self) -> Result<Seq, BlobError> {
        let mut next = self.next.lock().await;
        let first = next.start.max(self.reserved.load(Ordering::Acquire));
        if first >= next.end {
            *next = self.take_block(first).await?;
        } else {
            next.start = first;
        }
        let seq = Seq::new(next.start);
        next.start = seq.next().number();
        Ok(seq)
    }

    /// Takes a block of numbers, all of them at least `min`, for this process alone.
    async fn take_block(&self, min: u64) -> Result<Range<u64>, BlobError> {
        let op = "take numbers for records";
        loop {
            let last_record = self.last().await?.map_or(0, |seq| seq.next().number());
            let blocks = self.bucket.list(op, BLOCKS, None, "", usize::MAX).await?;
            let last_block =
                blocks.iter().filter_map(|name| block(name)).max().map_or(0, |last| last.saturating_add(BLOCK_COUNT));
            let start = min.max(last_record).max(last_block);
            let own = format!("{BLOCKS}/{}.{:016x}", Seq::new(start), rand::random::<u64>());
            self.bucket.put(op, &own, &Bytes::new()).await?;
            // All blocks are listed, not only those of this number: another process may have begun
            // at a number within this block.
            let others = self.bucket.list(op, BLOCKS, None, "", usize::MAX).await?;
            let end = start.saturating_add(BLOCK_COUNT);
            let is_free = |other: &String| {
                block(other).is_none_or(|other| other >= end || other.saturating_add(BLOCK_COUNT) <= start)
            };
            if others.iter().all(|other| *other == own || is_free(other)) {
                return Ok(start..end);
            }
        }
    }
}

/// The first number of the block in an object of this name; `None` if it is no block.
fn block(name: &str) -> Option<u64> {
    let (digits, _) = name.strip_prefix(BLOCKS)?.strip_prefix('/')?.split_once('.')?;
    u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == DIGIT_COUNT)
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
            self.bucket.put(op, &name(seq), &record).await.map_err(|error| error.of_record(seq))?;
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
