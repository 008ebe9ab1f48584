//! Operations that end so late that their rows have changed meanwhile.

use std::time::Duration;

use super::{Moment, Setup, read, upload, xorb};
use crate::blob::{BlobError, BlobKey, BlobStore, BlobStream, Draft};
use crate::format::ByteRange;
use crate::format::compression::Policy as Compression;
use crate::index::sqlite::SqliteIndex;
use crate::index::{Collect, XorbIndex};
use crate::runtime::clock::{Clock, Timestamp};
use crate::service::UploadError;
use crate::service::gc::{Action, MIN_CONDEMNED, MIN_GRACE, Pace, Policy};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::blob::memory::MemoryBlobStore;

/// How far the deletion of a row is when the late blob of its upload appears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deletion {
    /// The row is in `Deleting`; the blob will be deleted.
    Begun,
    /// The row is in `Deleting`; the deleting process has found no blob.
    BlobGone,
    /// The row was deleted.
    Over,
}

/// A blob store that publishes blobs only after the deletion of their row has begun.
#[derive(Debug)]
struct SlowBlobs {
    blobs: MemoryBlobStore,
    index: SqliteIndex,
    deletion: Deletion,
}

#[derive(Debug)]
struct SlowDraft {
    draft: Box<dyn Draft>,
    index: SqliteIndex,
    deletion: Deletion,
}

impl BlobStore for SlowBlobs {
    fn draft(&self) -> Result<Box<dyn Draft>, BlobError> {
        let (draft, index) = (self.blobs.draft()?, self.index.clone());
        Ok(Box::new(SlowDraft { draft, index, deletion: self.deletion }))
    }

    fn read(&self, key: BlobKey, range: ByteRange) -> BoxFuture<'_, Result<Option<BlobStream>, BlobError>> {
        self.blobs.read(key, range)
    }

    fn head(&self, key: BlobKey) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        self.blobs.head(key)
    }

    fn delete(&self, key: BlobKey) -> BoxFuture<'_, Result<bool, BlobError>> {
        self.blobs.delete(key)
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        self.blobs.list()
    }

    fn remove_stray_drafts(&self) -> BoxFuture<'_, Result<usize, BlobError>> {
        self.blobs.remove_stray_drafts()
    }

    fn free_len(&self) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        self.blobs.free_len()
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), BlobError>> {
        self.blobs.probe()
    }
}

impl Draft for SlowDraft {
    fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.draft.write(bytes)
    }

    fn flush(&mut self) -> Result<(), BlobError> {
        self.draft.flush()
    }

    fn into_bytes(self: Box<Self>) -> Result<Vec<u8>, BlobError> {
        self.draft.into_bytes()
    }

    fn publish(self: Box<Self>, key: BlobKey) -> BoxFuture<'static, Result<(), BlobError>> {
        let Self { draft, index, deletion } = *self;
        async move {
            // A collection abandons the row a day later. There is no blob yet that it could delete.
            let end = Timestamp::from_millis(u64::MAX >> 1);
            let abandoned = index.abandon_xorbs(vec![key.xorb_hash()], end, Timestamp::from_millis(0)).await.unwrap();
            assert_eq!(abandoned, [key.xorb_hash()]);
            if deletion == Deletion::Over {
                assert!(index.forget_xorb(key.xorb_hash()).await.unwrap());
            }
            draft.publish(key).await
        }
        .boxed()
    }
}

#[tokio::test]
async fn upload_of_an_abandoned_row_leaves_no_orphan_blob() {
    for deletion in [Deletion::Begun, Deletion::BlobGone, Deletion::Over] {
        let setup = Setup::new().await;
        let server = setup.process_over(SlowBlobs { blobs: setup.blobs.clone(), index: setup.index.clone(), deletion });
        let xorb = xorb("late", Compression::Lz4);
        let hash = xorb.xorb().hash();
        assert!(matches!(upload(&server, &xorb).await, Err(UploadError::Store(_))), "{deletion:?}");
        match deletion {
            // The deleting process continues, and deletes the blob if there is one.
            Deletion::Begun => {
                for key in setup.blobs.list_of(hash).await.unwrap() {
                    setup.blobs.delete(key).await.unwrap();
                }
            }
            Deletion::BlobGone | Deletion::Over => {}
        }
        setup.index.forget_xorb(hash).await.unwrap();
        setup.clock.advance(Duration::from_secs(25 * 3600));
        let policy = Policy::new(MIN_GRACE, MIN_CONDEMNED).unwrap();
        setup.process().store.collect_garbage(policy, &Pace::default()).await.unwrap();
        assert_eq!(setup.blobs.list().await.unwrap(), [], "{deletion:?}");
        assert_eq!(setup.index.unfinished_xorbs().await.unwrap(), [], "{deletion:?}");
    }
}

#[tokio::test]
async fn old_plan_does_not_delete_a_xorb_that_was_uploaded_again() {
    let setup = Setup::new().await;
    let (server, xorb) = (setup.process(), xorb("back", Compression::Lz4));
    let policy = Policy::new(MIN_GRACE, MIN_CONDEMNED).unwrap();
    setup.faults.arm_at("publish_xorb", Moment::Before);
    upload(&server, &xorb).await.unwrap_err();
    setup.faults.disarm();
    let hash = xorb.xorb().hash();
    setup.index.abandon_xorb(hash, setup.clock.now()).await.unwrap();
    let plan = server.store.plan_collection(policy).await.unwrap();
    assert!(matches!(plan.xorbs()[0].action, Action::Finish { .. }));
    assert_eq!(server.store.collect(plan.clone(), &Pace::default()).await.deleted.count, 1);
    assert!(upload(&server, &xorb).await.unwrap().was_inserted);
    let again = server.store.collect(plan, &Pace::default()).await;
    assert_eq!((again.deleted.count, again.spared), (0, 1));
    assert_eq!(read(&server, &xorb).await.unwrap().as_deref(), Some(xorb.bytes()));
}
