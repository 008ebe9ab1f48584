//! The card of a repository: the text of its README.md, of which the clients read the metadata.

use futures_util::TryStreamExt;

use super::{HubError, OpenRepo};
use crate::format::ByteRange;
use crate::index::HubCommit;
use crate::runtime::telemetry::chain;
use crate::service::Server;

/// Bytes of a README.md that are read: the longest metadata, and the lines around them.
const MAX_CARD_LEN: u64 = (64 << 10) + 16;

impl Server {
    /// The beginning of the README.md of a commit; `None` if there is none, or it cannot be read.
    /// A repository must be found although its card is damaged.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn hub_card(&self, open: &OpenRepo, commit: &HubCommit) -> Result<Option<Vec<u8>>, HubError> {
        let file = match self.find_hub_file(open, commit, "README.md").await {
            Ok(found) => found.file,
            Err(HubError::NoEntry { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(range) = ByteRange::new(0, file.len.min(MAX_CARD_LEN)) else { return Ok(None) };
        let read = async { self.read_file(file, range).await?.try_collect::<Vec<_>>().await };
        match read.await {
            Ok(pieces) => Ok(Some(pieces.concat())),
            Err(error) => {
                tracing::warn!(repo = %open.repo.storage_name, error = %chain(&error), "cannot read a card");
                Ok(None)
            }
        }
    }
}
