//! Files of a repository that the server reads itself: the card, which is the README.md of which
//! clients read the metadata, and the `.gitignore`.

use std::sync::Arc;

use futures_util::TryStreamExt;

use super::{HubError, OpenRepo};
use crate::format::ByteRange;
use crate::git::MAX_IGNORE_LEN;
use crate::index::HubCommit;
use crate::runtime::telemetry::chain;
use crate::service::Server;
use crate::service::file_bytes::RegisteredFile;

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
        let Some(file) = self.find_file_of(open, commit, "README.md").await? else { return Ok(None) };
        let hash = file.hash;
        if let Some(known) = self.store.cards.get(&hash) {
            return Ok(Some(known));
        }
        let Some(bytes) = self.read_start(open, file, MAX_CARD_LEN).await else { return Ok(None) };
        // It is cut where no metadata can be any more, perhaps in the middle of a character.
        let text = String::from_utf8_lossy(&bytes);
        let metadata: Arc<str> = metadata_of(&text).unwrap_or_default().into();
        self.store.cards.insert(hash, Arc::clone(&metadata));
        Ok(Some(metadata))
    }

    /// The text of the `.gitignore` of a commit; `None` if there is none, or it cannot be read.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn hub_gitignore(&self, open: &OpenRepo, commit: &HubCommit) -> Result<Option<String>, HubError> {
        let Some(file) = self.find_file_of(open, commit, ".gitignore").await? else { return Ok(None) };
        // One byte more, by which a longer one is known.
        let bytes = self.read_start(open, file, MAX_IGNORE_LEN as u64 + 1).await;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// The contents of a file of a commit; `None` if there is none.
    async fn find_file_of(
        &self,
        open: &OpenRepo,
        commit: &HubCommit,
        path: &str,
    ) -> Result<Option<RegisteredFile>, HubError> {
        match self.find_hub_file(open, commit, path).await {
            Ok(found) => Ok(Some(found.file)),
            Err(HubError::NoEntry { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The beginning of a file; `None` if it is empty or cannot be read.
    async fn read_start(&self, open: &OpenRepo, file: RegisteredFile, max_len: u64) -> Option<Vec<u8>> {
        let range = ByteRange::new(0, file.len.min(max_len))?;
        let read = async { self.read_file(file, range).await?.try_collect::<Vec<_>>().await };
        match read.await {
            Ok(pieces) => Some(pieces.concat()),
            Err(error) => {
                tracing::warn!(repo = %open.repo.storage_name, error = %chain(&error), "cannot read a file of a revision");
                None
            }
        }
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
