//! The card of a repository: the text of its README.md, of which the clients read the metadata.

use std::sync::Arc;

use futures_util::TryStreamExt;

use super::{HubError, OpenRepo};
use crate::format::ByteRange;
use crate::index::HubCommit;
use crate::runtime::telemetry::chain;
use crate::service::Server;

/// Maximum length of the metadata in bytes. Those of the largest models have 10 KiB.
pub(crate) const MAX_METADATA_LEN: usize = 64 << 10;

/// Bytes of a README.md that are read: the longest metadata, and the lines around them.
const MAX_CARD_LEN: u64 = MAX_METADATA_LEN as u64 + 16;

impl Server {
    /// The metadata of the README.md of a commit, as YAML; empty if it has none. `None` without a
    /// README.md, or if it cannot be read: a repository must be found although its card is damaged.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn hub_card(&self, open: &OpenRepo, commit: &HubCommit) -> Result<Option<Arc<str>>, HubError> {
        // Also with the metadata in memory: the caller may have lost the claim to the file.
        let file = match self.find_hub_file(open, commit, "README.md").await {
            Ok(found) => found.file,
            Err(HubError::NoEntry { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let hash = file.hash;
        if let Some(known) = self.store.cards.get(&hash) {
            return Ok(Some(known));
        }
        let Some(range) = ByteRange::new(0, file.len.min(MAX_CARD_LEN)) else { return Ok(None) };
        let read = async { self.read_file(file, range).await?.try_collect::<Vec<_>>().await };
        let bytes = match read.await {
            Ok(pieces) => pieces.concat(),
            Err(error) => {
                tracing::warn!(repo = %open.repo.storage_name, error = %chain(&error), "cannot read a card");
                return Ok(None);
            }
        };
        // It is cut where no metadata can be any more, perhaps in the middle of a character.
        let text = String::from_utf8_lossy(&bytes);
        let metadata: Arc<str> = metadata_of(&text).unwrap_or_default().into();
        self.store.cards.insert(hash, Arc::clone(&metadata));
        Ok(Some(metadata))
    }
}

/// The text between a line `---` at the beginning of a card and the next such line.
#[must_use]
pub fn metadata_of(card: &str) -> Option<&str> {
    let text = card.trim_start_matches('\u{feff}').trim_start();
    let (first, rest) = text.split_once('\n')?;
    if first.trim_end() != "---" {
        return None;
    }
    let mut len = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return rest.get(..len);
        }
        len += line.len();
    }
    None
}
