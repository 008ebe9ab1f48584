//! Removes the claims of a repository to files that no commit has. Several at once: each waits for
//! the disk several times.

use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::{DROP_COUNT, HubError, Sweep, is_old};
use crate::format::FileHash;
use crate::service::StoreError;
use crate::service::store_locks::FileChange;

/// Claims that are removed at once: while one waits for its record, another one changes the index.
/// A client that writes meanwhile waits for so many more transactions, of some milliseconds each.
const CONCURRENT_COUNT: usize = 4;

/// What became of the claim to a listed file.
#[derive(Clone, Copy, Debug)]
enum ClaimEnd {
    /// It was left: the file is being registered, or was registered again.
    Left,
    /// There was none.
    Missing,
    /// It was removed.
    Removed,
}

impl Sweep<'_> {
    /// Removes the claims to those of these files that no commit has.
    pub(super) async fn drop_claims(&mut self, old: Vec<FileHash>) -> Result<bool, HubError> {
        let repo = self.repo;
        for some in old.chunks(DROP_COUNT) {
            let lock = self.server.lock_hub_repo(&repo.storage_name).await?;
            if !self.refresh_marks().await? {
                return Ok(false);
            }
            let unmarked: Vec<FileHash> = some.iter().copied().filter(|file| !self.marks.has_file(file)).collect();
            let sweep = &*self;
            let dropping = stream::iter(unmarked).map(async |file| (file, sweep.drop_claim(file).await));
            // Each to its end, also after an error: a claim and its record belong together.
            let results: Vec<_> = dropping.buffer_unordered(CONCURRENT_COUNT).collect().await;
            let mut ended = Vec::with_capacity(results.len());
            for (file, result) in results {
                match result? {
                    ClaimEnd::Left => continue,
                    ClaimEnd::Missing => {}
                    ClaimEnd::Removed => self.swept.claim_count += 1,
                }
                ended.push(file);
            }
            // A client that registers one of them meanwhile takes it from the list itself.
            self.server.store.index.set_unneeded_files(repo.id, ended, None).await?;
            drop(lock);
            if !self.pace.next().await {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes the claim to a file, unless it was registered again since it was listed. A file that
    /// is being registered now is left for the next sweep: a long registration holds its lock for
    /// long, and this task holds that of the repository.
    async fn drop_claim(&self, file: FileHash) -> Result<ClaimEnd, HubError> {
        let (store, repo) = (&self.server.store, self.repo);
        let lock = match store.lock_files([file], FileChange::Other, Duration::ZERO).await {
            Ok(lock) => lock,
            Err(StoreError::Busy(_)) => return Ok(ClaimEnd::Left),
            Err(error) => return Err(error.into()),
        };
        let since = store.index.file_unneeded_since(repo.id, file).await?;
        if !since.is_some_and(|since| is_old(since, self.now())) {
            return Ok(ClaimEnd::Left);
        }
        if !store.drop_locked_claim(lock, file, &repo.storage_name).await? {
            return Ok(ClaimEnd::Missing);
        }
        store.metrics.hub.swept_files.inc();
        Ok(ClaimEnd::Removed)
    }
}
