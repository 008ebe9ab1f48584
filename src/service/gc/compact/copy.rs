//! Makes new xorbs: the needed chunks of old ones are read, proven and stored under the new hash.

use std::collections::{HashMap, HashSet};

use futures_util::StreamExt;

use super::execute::Running;
use super::{Move, Rewrite, Source};
use crate::format::{ChunkHash, XorbHash};
use crate::index::XorbContents;
use crate::runtime::telemetry::chain;
use crate::service::error::{ReadError, StoreError};
use crate::service::fsck::Presence;
use crate::service::scrub::Checked;
use crate::service::upload::{CopyError, Copying, Run};
use crate::service::verify::{Pace, is_of_blob};
use crate::service::{Cas, Form};

/// The result of an attempt to copy.
enum Copied {
    /// All of it was copied.
    All(Box<Copying>),
    /// This source cannot be copied.
    Unusable(XorbHash),
    /// It was stopped.
    Stopped,
}

impl Running<'_> {
    /// Makes a new xorb, unless it exists, and records the new places of its chunks.
    pub(super) async fn copy(&mut self, rewrite: &Rewrite) -> Result<(), StoreError> {
        let found = self.cas.index.find_xorb(rewrite.hash).await?;
        if found.is_some_and(|row| !row.is_damaged) && self.endow(rewrite.hash, rewrite, &rewrite.sources).await? {
            self.done.found.add(rewrite.serialized_len);
            return Ok(());
        }
        self.cas.check_headroom(rewrite.serialized_len).await?;
        let mut sources = rewrite.sources.clone();
        while !sources.is_empty() {
            match self.read_all(&sources).await? {
                Copied::Stopped => {
                    self.done.is_stopped = true;
                    return Ok(());
                }
                Copied::Unusable(xorb) => {
                    // The others again from the beginning: nothing after a bad record can be
                    // decoded.
                    self.verify_source(xorb).await?;
                    sources.retain(|source| source.xorb != xorb);
                }
                Copied::All(copying) => return self.publish(*copying, rewrite, &sources).await,
            }
        }
        Ok(())
    }

    async fn publish(&mut self, copying: Copying, rewrite: &Rewrite, sources: &[Source]) -> Result<(), StoreError> {
        // Every source has chunks, and all of them were copied.
        let Some(copy) = self.cas.verify_pool.run(move || copying.finish()).await? else { return Ok(()) };
        let (hash, len) = (copy.hash(), sources.iter().map(|source| source.live_len).sum());
        if self.cas.publish_copy(copy, self.presence).await? && self.endow(hash, rewrite, sources).await? {
            self.done.made.add(len);
        } else {
            tracing::info!(xorb = %hash, "a target xorb of compaction is being published or deleted; the next run \
                tries again");
            self.done.failed += sources.len() as u64;
        }
        Ok(())
    }

    /// Reads the needed chunks of each source.
    async fn read_all(&self, sources: &[Source]) -> Result<Copied, StoreError> {
        let mut copying = Box::new(Copying::new(self.cas));
        for source in sources {
            match self.read_source(source, copying).await? {
                Copied::All(same) => copying = same,
                other => return Ok(other),
            }
        }
        Ok(Copied::All(copying))
    }

    async fn read_source(&self, source: &Source, mut copying: Box<Copying>) -> Result<Copied, StoreError> {
        let unusable = Ok(Copied::Unusable(source.xorb));
        let contents = self.cas.index.xorb_contents(vec![source.xorb]).await?;
        let (Some(contents), Some(stored)) = (contents.into_iter().next(), self.cas.find(source.xorb).await?) else {
            return unusable;
        };
        for run in &source.runs {
            let hashes = contents.chunk_hashes.get(run.start() as usize..run.end() as usize);
            let (Some(hashes), Some(bytes)) = (hashes, stored.layout().serialized_range(*run)) else { return unusable };
            let mut run = Run::new(hashes.to_vec(), bytes.byte_len());
            let mut pieces = match self.cas.read(&stored, Form::Serialized, bytes).await {
                Ok(pieces) => pieces,
                Err(error) => return blame(source.xorb, error),
            };
            while let Some(piece) = pieces.next().await {
                let piece = match piece {
                    Ok(piece) => piece,
                    Err(error) => return blame(source.xorb, error),
                };
                if !self.pace.next().await {
                    return Ok(Copied::Stopped);
                }
                let take = move || (copying.take(&mut run, &piece), copying, run);
                let taken;
                (taken, copying, run) = self.cas.verify_pool.run(take).await;
                match taken {
                    Ok(()) => {}
                    Err(CopyError::Altered) => return unusable,
                    Err(CopyError::Store(error)) => return Err(error),
                }
            }
            if !run.is_over() {
                return unusable;
            }
        }
        Ok(Copied::All(copying))
    }

    /// Verifies a blob that could not be copied, as the scrub does: if it is damaged, it is not
    /// read from now on.
    async fn verify_source(&mut self, xorb: XorbHash) -> Result<(), StoreError> {
        let is_damaged = match self.presence {
            Presence::Alone => {
                let checked = self.cas.check_xorb(xorb, &mut Pace::new(None)).await?;
                matches!(checked, Checked::Damaged(_))
            }
            // Only the process that may replace blobs updates the row's serialization.
            Presence::Shared => self.cas.mark_if_damaged(xorb).await?,
        };
        if is_damaged {
            self.done.damaged += 1;
        } else {
            tracing::info!(%xorb, "cannot copy a xorb; the next run tries again");
            self.done.failed += 1;
        }
        Ok(())
    }

    /// Gives a new xorb the owners and the dedup chunks of its sources. From then on it can replace
    /// its sources. Returns whether it is visible and sound.
    async fn endow(&mut self, new: XorbHash, rewrite: &Rewrite, sources: &[Source]) -> Result<bool, StoreError> {
        let mut asked = Vec::new();
        for source in sources {
            asked.extend(self.cas.asked_of(source).await?);
        }
        let now = self.cas.clock.now();
        let is_fit = self.cas.index.endow_xorb(new, rewrite.owners.clone(), asked, now).await?;
        if is_fit {
            self.moves.extend(Move::all(new, sources));
        }
        Ok(is_fit)
    }
}

impl Cas {
    /// Needed chunks of a source that dedup may find.
    async fn asked_of(&self, source: &Source) -> Result<Vec<ChunkHash>, StoreError> {
        let asked: HashSet<ChunkHash> = self.index.asked_chunks(source.xorb).await?.into_iter().collect();
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let contents: HashMap<XorbHash, XorbContents> =
            self.index.xorb_contents(vec![source.xorb]).await?.into_iter().map(|xorb| (xorb.hash, xorb)).collect();
        let hashes = contents.get(&source.xorb).map(|xorb| xorb.chunk_hashes.as_slice()).unwrap_or_default();
        let needed = source.runs.iter().filter_map(|run| hashes.get(run.start() as usize..run.end() as usize));
        Ok(needed.flatten().filter(|chunk| asked.contains(*chunk)).copied().collect())
    }
}

/// Separates a source that cannot be read from a store that cannot.
fn blame(xorb: XorbHash, error: ReadError) -> Result<Copied, StoreError> {
    match error {
        ReadError::Store(StoreError::Blob(error)) if is_of_blob(&error) => {}
        ReadError::Store(error) => return Err(error),
        other => tracing::debug!(%xorb, error = %chain(&other), "cannot copy a xorb"),
    }
    Ok(Copied::Unusable(xorb))
}
