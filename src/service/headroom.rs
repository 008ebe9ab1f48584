//! Disk headroom: writes are refused while less space is free than the operator reserves.
//!
//! Free space is checked before a body is read, and queried at most once per second. Transfers that
//! have begun continue, so the free space may fall below the reserve by the length of these
//! transfers. The reserve serves the index, deletions, and the operator who frees space.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Store;
use super::error::StoreError;
use crate::blob::BlobStore;

/// How long the known free space is valid. In one second, uploads cannot fill a reserve of useful
/// size.
const VALID_FOR: Duration = Duration::from_secs(1);

/// The space to reserve, and the free space as it was last seen.
#[derive(Debug)]
pub(super) struct Headroom {
    min_free_len: u64,
    seen: Mutex<Option<(Instant, Option<u64>)>>,
}

impl Store {
    /// The free bytes, queried a second ago at most; `None` if the file system does not report
    /// them.
    ///
    /// # Errors
    ///
    /// The file system does not respond.
    pub async fn free_len(&self) -> Result<Option<u64>, StoreError> {
        self.headroom.free_len(self.blobs.as_ref()).await
    }

    /// Checks that this many bytes can be written without using the reserve.
    ///
    /// # Errors
    ///
    /// [`StoreError::LowSpace`] if too little space is free, or the file system does not respond.
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
    /// Reserves this many bytes: writes are refused while fewer bytes are free.
    pub(super) fn new(min_free_len: u64) -> Self {
        Self { min_free_len, seen: Mutex::default() }
    }

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
