//! The low-water mark: writes are refused while less space is free than the operator reserves.
//!
//! Checked before a body is read, at most once per second. Transfers under way continue, so the
//! disk may fall below the mark by their length. The rest is for the index, for deletions and for
//! the operator to free space.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Cas;
use super::error::StoreError;
use crate::blob::BlobStore;

/// How long a response of the file system is valid. An upload takes milliseconds at least: in a
/// second, uploads do not fill the reserve of a useful mark.
const VALID_FOR: Duration = Duration::from_secs(1);

/// The space to reserve, and the free space as it was last seen.
#[derive(Debug, Default)]
pub(super) struct Headroom {
    min_free_len: u64,
    seen: Mutex<Option<(Instant, Option<u64>)>>,
}

impl Cas {
    /// The same store, which refuses writes while less than this many bytes are free. To be called
    /// once, before its first use.
    #[must_use]
    pub fn with_min_free(mut self, min_free_len: u64) -> Self {
        self.parts_mut().headroom = Arc::new(Headroom { min_free_len, seen: Mutex::default() });
        self
    }

    /// Bytes that are free, as of a second ago at most; `None` where the file system does not say.
    ///
    /// # Errors
    ///
    /// The file system does not respond.
    pub async fn free_len(&self) -> Result<Option<u64>, StoreError> {
        self.headroom.free_len(self.blobs.as_ref()).await
    }

    /// Checks that there is disk headroom for this many bytes more.
    ///
    /// # Errors
    ///
    /// [`StoreError::LowSpace`] where there is not, or the file system does not respond.
    pub async fn check_headroom(&self, len: u64) -> Result<(), StoreError> {
        let min_free_len = self.headroom.min_free_len;
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

impl Headroom {
    async fn free_len(&self, blobs: &dyn BlobStore) -> Result<Option<u64>, StoreError> {
        // Held while the file system is queried: requests that arrive meanwhile share the result.
        let mut seen = self.seen.lock().await;
        match *seen {
            Some((at, free_len)) if at.elapsed() < VALID_FOR => Ok(free_len),
            _ => {
                let free_len = blobs.free_len().await?;
                *seen = Some((Instant::now(), free_len));
                Ok(free_len)
            }
        }
    }
}
