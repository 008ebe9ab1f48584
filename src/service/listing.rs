//! Lists of stored files and xorbs, a page at a time.

use thiserror::Error;

use super::Server;
use super::access::{Claims, RepoScope};
use super::error::StoreError;
use super::scope::reader;
use crate::format::{FileHash, XorbHash};
pub use crate::index::{FileEntry, XorbEntry};

/// Maximum entries of a page.
pub const MAX_PAGE_COUNT: u32 = 1000;

/// Consecutive entries of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<E> {
    /// The entries.
    pub entries: Vec<E>,
    /// Whether the page has the maximum number of entries, so that more may follow.
    pub is_full: bool,
}

/// Why xorbs were not listed.
#[derive(Debug, Error)]
pub enum ListError {
    /// Xorbs belong to no repository, so a token of one repository may not list them.
    #[error("listing xorbs requires access to all repositories")]
    OneRepository,
    /// The index failed.
    #[error("the index cannot be read")]
    Store(#[from] StoreError),
}

impl Server {
    /// The files that the token with these claims may read, ordered by hash: those after
    /// `after`, at most `count` and at most [`MAX_PAGE_COUNT`].
    ///
    /// # Errors
    ///
    /// The index cannot be read.
    pub async fn list_files(
        &self,
        claims: &Claims,
        after: Option<FileHash>,
        count: u32,
    ) -> Result<Page<FileEntry>, StoreError> {
        if matches!(claims.repo, RepoScope::Public(_)) {
            // Its revisions say which files it has. Here are also those that none has any more.
            return Ok(page(Vec::new(), 1));
        }
        let count = count.clamp(1, MAX_PAGE_COUNT);
        Ok(page(self.store.index.files_after(reader(claims), after, count).await?, count))
    }

    /// The xorbs of the store, in the order and with the limits of
    /// [`list_files`](Self::list_files). Requires a token for all repositories.
    ///
    /// # Errors
    ///
    /// See [`ListError`].
    pub async fn list_xorbs(
        &self,
        claims: &Claims,
        after: Option<XorbHash>,
        count: u32,
    ) -> Result<Page<XorbEntry>, ListError> {
        if claims.repo != RepoScope::All {
            return Err(ListError::OneRepository);
        }
        let count = count.clamp(1, MAX_PAGE_COUNT);
        let entries = self.store.index.xorbs_after(after, count).await.map_err(StoreError::from)?;
        Ok(page(entries, count))
    }
}

fn page<E>(entries: Vec<E>, count: u32) -> Page<E> {
    let is_full = entries.len() as u64 >= count.into();
    Page { entries, is_full }
}
