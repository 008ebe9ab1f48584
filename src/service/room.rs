//! The low-water mark: what takes room is refused while there is less free than the operator wants to keep.
//!
//! Looked at before a body is read, at most once per second. What is under way already goes on, so that the disk may
//! get below the mark by as much; what is left then is for the index, for deletions and for whoever has to make room.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Cas;
use super::error::StoreError;
use crate::blob::BlobStore;

/// How long an answer of the file system is good for. An upload takes some milliseconds at least; in a second of them
/// nobody fills what a mark of some use keeps free.
const GOOD_FOR: Duration = Duration::from_secs(1);

/// What is to be kept free, and what was free when somebody looked.
#[derive(Debug, Default)]
pub(super) struct Room {
    min_free_len: u64,
    seen: Mutex<Option<(Instant, Option<u64>)>>,
}

impl Cas {
    /// The same store, which takes nothing while less than this many bytes are free. To be said once, before its first
    /// use.
    #[must_use]
    pub fn keep_free(mut self, min_free_len: u64) -> Self {
        self.parts_mut().room = Arc::new(Room { min_free_len, seen: Mutex::default() });
        self
    }

    /// Bytes that are free, as of a second ago at most; `None` where there is no telling.
    ///
    /// # Errors
    ///
    /// The file system does not answer.
    pub async fn free_len(&self) -> Result<Option<u64>, StoreError> {
        self.room.free_len(self.blobs.as_ref()).await
    }

    /// Whether there is room for this many bytes more.
    ///
    /// # Errors
    ///
    /// [`StoreError::LowSpace`] where there is not, or the file system does not answer.
    pub async fn check_room(&self, len: u64) -> Result<(), StoreError> {
        let min_free_len = self.room.min_free_len;
        if min_free_len == 0 {
            return Ok(());
        }
        match self.free_len().await? {
            Some(free_len) if free_len < min_free_len.saturating_add(len) => {
                Err(StoreError::LowSpace { free_len, min_free_len })
            }
            _ => Ok(()),
        }
    }
}

impl Room {
    async fn free_len(&self, blobs: &dyn BlobStore) -> Result<Option<u64>, StoreError> {
        // Held while looking: who comes meanwhile gets the same answer.
        let mut seen = self.seen.lock().await;
        match *seen {
            Some((at, free_len)) if at.elapsed() < GOOD_FOR => Ok(free_len),
            _ => {
                let free_len = blobs.free_len().await?;
                *seen = Some((Instant::now(), free_len));
                Ok(free_len)
            }
        }
    }
}
