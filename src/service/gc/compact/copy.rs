//! Makes the new xorbs of a plan. For each one, it reads the needed chunks of the sources, verifies
//! them, and stores them as one xorb.

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
use crate::service::{Form, Store};

/// The result of copying from one source or from all.
enum Copied {
    /// All needed chunks were copied; this is the new xorb so far.
    All(Box<Copying>),
    /// This source cannot be copied.
    Unusable(XorbHash),
    /// Compaction is to stop.
    Stopped,
}

impl Running<'_> {
    /// Makes a new xorb, unless it exists, and records the new positions of its chunks.
    pub(super) async fn copy(&mut self, rewrite: &Rewrite) -> Result<(), StoreError> {
        let found = self.store.index.find_xorb(rewrite.hash).await?;
        if found.is_some_and(|row| !row.is_damaged) && self.endow(rewrite.hash, rewrite, &rewrite.sources).await? {
            self.done.found.add(rewrite.serialized_len);
            return Ok(());
        }
        self.store.check_headroom(rewrite.serialized_len).await?;
        let mut sources = rewrite.sources.clone();
        while !sources.is_empty() {
            match self.read_all(&sources).await? {
                Copied::Stopped => {
                    self.done.is_stopped = true;
                    return Ok(());
                }
                Copied::Unusable(xorb) => {
                    // Start again without this source, because the copy is invalid from a wrong
                    // chunk on. The new xorb then has another hash than the planned one.
                    self.verify_source(xorb).await?;
                    sources.retain(|source| source.xorb != xorb);
                }
                Copied::All(copying) => return self.publish(*copying, rewrite, &sources).await,
            }
        }
        Ok(())
    }

    /// Publishes a complete copy, and records the new positions of its chunks.
    async fn publish(&mut self, copying: Copying, rewrite: &Rewrite, sources: &[Source]) -> Result<(), StoreError> {
        // `None` would mean that no chunk was copied. But there is a source, and every source has
        // needed chunks.
        let Some(copy) = self.store.pool.run(move || copying.finish()).await? else { return Ok(()) };
        let (hash, len) = (copy.hash(), sources.iter().map(|source| source.live_len).sum());
        if self.store.publish_copy(copy, self.presence).await? && self.endow(hash, rewrite, sources).await? {
            self.done.made.add(len);
        } else {
            tracing::info!(xorb = %hash, "a target xorb of compaction is being published or deleted; the next run \
                tries again");
            self.done.failed += sources.len() as u64;
        }
        Ok(())
    }

    /// Copies the needed chunks of each source.
    async fn read_all(&self, sources: &[Source]) -> Result<Copied, StoreError> {
        let mut copying = Box::new(Copying::new(self.store));
        for source in sources {
            match self.read_source(source, copying).await? {
                Copied::All(same) => copying = same,
                other => return Ok(other),
            }
        }
        Ok(Copied::All(copying))
    }

    /// Adds the needed chunks of one source to the copy.
    async fn read_source(&self, source: &Source, mut copying: Box<Copying>) -> Result<Copied, StoreError> {
        let unusable = Ok(Copied::Unusable(source.xorb));
        let contents = self.store.index.xorb_contents(vec![source.xorb]).await?;
        let (Some(contents), Some(stored)) = (contents.into_iter().next(), self.store.find(source.xorb).await?) else {
            return unusable;
        };
        for run in &source.runs {
            let hashes = contents.chunk_hashes.get(run.start() as usize..run.end() as usize);
            let (Some(hashes), Some(bytes)) = (hashes, stored.layout().serialized_range(*run)) else { return unusable };
            let mut run = Run::new(hashes.to_vec(), bytes.byte_len());
            let mut pieces = match self.store.read(&stored, Form::Serialized, bytes).await {
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
                (taken, copying, run) = self.store.pool.run(take).await;
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

    /// Verifies a blob that could not be copied, as the scrub does. If it is damaged, the xorb is
    /// quarantined.
    async fn verify_source(&mut self, xorb: XorbHash) -> Result<(), StoreError> {
        let is_damaged = match self.presence {
            Presence::Alone => {
                let checked = self.store.check_xorb(xorb, &mut Pace::new(None)).await?;
                matches!(checked, Checked::Damaged(_))
            }
            // `check_xorb` may also update a row whose blob has another serialization. While
            // another process may be replacing the blob, the row is only marked as damaged.
            Presence::Shared => self.store.mark_if_damaged(xorb).await?,
        };
        if is_damaged {
            self.done.damaged += 1;
        } else {
            tracing::info!(%xorb, "cannot copy a xorb; the next run tries again");
            self.done.failed += 1;
        }
        Ok(())
    }

    /// Gives a new xorb the owners and the dedup chunks of its sources. From then on files can be
    /// switched to it. Returns whether it is visible and sound.
    async fn endow(&mut self, new: XorbHash, rewrite: &Rewrite, sources: &[Source]) -> Result<bool, StoreError> {
        let mut asked = Vec::new();
        for source in sources {
            asked.extend(self.store.asked_of(source).await?);
        }
        let now = self.store.clock.now();
        let is_usable = self.store.index.add_owners_and_dedup(new, rewrite.owners.clone(), asked, now).await?;
        if is_usable {
            self.moves.extend(Move::all(new, sources));
        }
        Ok(is_usable)
    }
}

impl Store {
    /// The needed chunks of a source that dedup may find.
    async fn asked_of(&self, source: &Source) -> Result<Vec<ChunkHash>, StoreError> {
        let asked: HashSet<ChunkHash> = self.index.dedup_chunks_of(source.xorb).await?.into_iter().collect();
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

/// Treats a source that cannot be read as unusable; returns other failures of the store as errors.
fn blame(xorb: XorbHash, error: ReadError) -> Result<Copied, StoreError> {
    match error {
        ReadError::Store(StoreError::Blob(error)) if is_of_blob(&error) => {}
        ReadError::Store(error) => return Err(error),
        other => tracing::debug!(%xorb, error = %chain(&other), "cannot copy a xorb"),
    }
    Ok(Copied::Unusable(xorb))
}
