//! The plan of a compaction. Making a plan changes nothing.
//!
//! Xorbs are read in windows, in the order of their hashes. A candidate is a xorb that may have to
//! be rewritten. For each window with candidates all terms of all files are read once, a page at a
//! time. Memory holds a bit for every chunk of the xorbs of a window, 32 MiB at most. It also holds
//! the result, which [`MAX_FOUND_COUNT`] and [`MAX_RUN_COUNT`] bound. Xorbs beyond these limits are
//! left to the next plan.

use std::collections::HashMap;

use super::super::plan::{LIFE_PAGE_COUNT, TERM_PAGE_COUNT, Tally, before};
use super::super::{GcAbort, Policy};
use super::pack::Found;
use super::{MinLive, Rewrite};
use crate::format::limits::MAX_XORB_CHUNK_COUNT;
use crate::format::{ChunkRange, FileHash, XorbHash};
use crate::index::{TermRow, XorbLife, XorbState};
use crate::runtime::clock::Timestamp;
use crate::service::Store;
use crate::service::error::StoreError;

/// Xorbs of one window: 1 KiB each at most, for the greatest number of chunks of a xorb.
const WINDOW_COUNT: usize = 32_768;

/// Maximum number of xorbs that one plan rewrites: a TiB of full ones.
const MAX_FOUND_COUNT: usize = 16_384;

/// Maximum number of runs (ranges of consecutive needed chunks) in one plan. They take 8 MiB, and
/// 32 MiB in the lookup table with which files are switched.
const MAX_RUN_COUNT: usize = 1 << 20;

/// Terms that are processed before other tasks run.
const STEP_TERM_COUNT: usize = 4096;

/// Xorbs that are not rewritten, by reason. Xorbs without any reference are not counted: a
/// collection deletes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotRewritten {
    /// Files need enough of it.
    pub needed: Tally,
    /// It was touched during the last grace period.
    pub in_grace: Tally,
    /// Its blob is known to be damaged.
    pub damaged: Tally,
    /// It would be rewritten, but this plan is full. The next plan has it.
    pub left_off: Tally,
}

/// A planned compaction.
#[derive(Clone, Debug)]
pub struct CompactionPlan {
    pub(super) made: Timestamp,
    pub(super) rewrites: Vec<Rewrite>,
    pub(super) retained: NotRewritten,
}

impl CompactionPlan {
    /// The new xorbs with their sources, always in the same order.
    #[must_use]
    pub fn rewrites(&self) -> &[Rewrite] {
        &self.rewrites
    }

    /// The xorbs that stay.
    #[must_use]
    pub const fn retained(&self) -> &NotRewritten {
        &self.retained
    }

    /// The xorbs that would be rewritten.
    #[must_use]
    pub fn old(&self) -> Tally {
        let mut tally = Tally::default();
        self.rewrites.iter().flat_map(|rewrite| &rewrite.sources).for_each(|source| tally.add(source.serialized_len));
        tally
    }

    /// The new xorbs. Their space is needed before that of the old ones is freed.
    #[must_use]
    pub fn made(&self) -> Tally {
        let mut tally = Tally::default();
        self.rewrites.iter().for_each(|rewrite| tally.add(rewrite.serialized_len));
        tally
    }

    /// Bytes that are freed when the old xorbs are deleted, less those of the new ones.
    #[must_use]
    pub fn saved_len(&self) -> u64 {
        self.old().serialized_len.saturating_sub(self.made().serialized_len)
    }
}

/// Some consecutive xorbs, in the order of their hashes.
struct Window {
    /// The window begins behind this xorb; `None` for the first window.
    after: Option<XorbHash>,
    /// The last xorb; `None` if the window extends to the last xorb of the store.
    last: Option<XorbHash>,
    /// The visible xorbs of the window, with their needed chunks; `None` if a xorb is no candidate.
    visible: HashMap<XorbHash, Option<Chunks>>,
}

/// The chunks of a xorb that files need: one bit for each chunk.
#[derive(Default)]
struct Chunks(Vec<u64>);

impl Chunks {
    /// Adds a range. Returns false if no xorb can have so many chunks.
    fn add(&mut self, chunks: ChunkRange) -> bool {
        if chunks.end() > MAX_XORB_CHUNK_COUNT {
            return false;
        }
        for chunk in chunks.start()..chunks.end() {
            let word = (chunk / 64) as usize;
            if self.0.len() <= word {
                self.0.resize(word + 1, 0);
            }
            if let Some(word) = self.0.get_mut(word) {
                *word |= 1 << (chunk % 64);
            }
        }
        true
    }

    /// The chunks as ascending ranges that neither overlap nor touch.
    fn runs(&self) -> Vec<ChunkRange> {
        let (mut runs, mut start) = (Vec::new(), None);
        let bits = self.0.iter().flat_map(|word| (0..64).map(move |bit| word >> bit & 1 == 1));
        for (is_needed, chunk) in bits.chain([false]).zip(0_u32..) {
            match (is_needed, start) {
                (true, None) => start = Some(chunk),
                (false, Some(first)) => {
                    runs.extend(ChunkRange::new(first, chunk));
                    start = None;
                }
                _ => {}
            }
        }
        runs
    }
}

impl Window {
    /// Whether this hash is in the window, even if no such xorb exists.
    fn covers(&self, xorb: &XorbHash) -> bool {
        self.after.is_none_or(|after| xorb.as_bytes() > after.as_bytes())
            && self.last.is_none_or(|last| xorb.as_bytes() <= last.as_bytes())
    }

    fn has_candidates(&self) -> bool {
        self.visible.values().any(Option::is_some)
    }

    /// Adds the chunks that these terms need. Returns the xorbs of this window that the terms name
    /// and that do not exist.
    fn take(&mut self, row: &TermRow) -> Result<Vec<XorbHash>, GcAbort> {
        let mut unknown = Vec::new();
        for term in &row.terms {
            if !self.covers(&term.xorb) {
                continue;
            }
            let Some(known) = self.visible.get_mut(&term.xorb) else {
                unknown.push(term.xorb);
                continue;
            };
            if let Some(chunks) = known
                && !chunks.add(term.chunks)
            {
                return Err(GcAbort::Chunks { xorb: term.xorb });
            }
        }
        Ok(unknown)
    }
}

impl Store {
    /// Plans a compaction as of now. Changes nothing. Reads the row of every xorb and, if any may
    /// be rewritten, the terms of every file.
    ///
    /// # Errors
    ///
    /// See [`GcAbort`].
    pub async fn plan_compaction(&self, policy: Policy, min_live: MinLive) -> Result<CompactionPlan, GcAbort> {
        let made = self.clock.now();
        self.check_gc_clock(made, self.index.last_collection().await.map_err(StoreError::from)?)?;
        let mut plan = CompactionPlan { made, rewrites: Vec::new(), retained: NotRewritten::default() };
        let idle_since = before(made, policy.grace);
        let (mut found, mut run_count, mut after) = (Vec::new(), 0_usize, None);
        loop {
            let mut window = self.read_window(&mut plan.retained, after, idle_since).await?;
            // Even without candidates the terms are read if something is to be rewritten: reading
            // them checks that the xorbs of this window exist.
            if window.has_candidates() || !found.is_empty() {
                self.read_needs(&mut window).await?;
            }
            let last = window.last;
            self.find_sparse(&mut plan.retained, window, min_live, (&mut found, &mut run_count)).await?;
            after = last;
            if after.is_none() {
                break;
            }
        }
        plan.rewrites = self.pack(found).await?;
        Ok(plan)
    }

    /// Reads the rows of the xorbs behind `after`, and counts the retained ones.
    async fn read_window(
        &self,
        retained: &mut NotRewritten,
        after: Option<XorbHash>,
        idle_since: Timestamp,
    ) -> Result<Window, GcAbort> {
        let mut window = Window { after, last: after, visible: HashMap::new() };
        let mut count = 0;
        while count < WINDOW_COUNT {
            let lives = self.index.xorb_lives(window.last, LIFE_PAGE_COUNT).await.map_err(StoreError::from)?;
            let now = self.clock.now();
            for life in &lives {
                self.check_gc_clock(now, life.since)?;
                if let XorbLife { hash, state: XorbState::Live | XorbState::Condemned, .. } = *life {
                    let chunks = consider(retained, life, idle_since).then(Chunks::default);
                    window.visible.insert(hash, chunks);
                }
            }
            count += lives.len();
            window.last = lives.last().map(|life| life.hash);
            if window.last.is_none() {
                break;
            }
            tokio::task::yield_now().await;
        }
        Ok(window)
    }

    /// Reads all terms of all files, and adds the chunks of this window that they need.
    async fn read_needs(&self, window: &mut Window) -> Result<(), GcAbort> {
        let (mut next, mut term_count) = (Some(0), 0);
        while let Some(after) = next {
            let page = self.index.term_rows(after, TERM_PAGE_COUNT).await.map_err(StoreError::from)?;
            for row in &page.rows {
                for xorb in window.take(row)? {
                    self.check_known(row.file, xorb).await?;
                }
                term_count += row.terms.len();
                if term_count >= STEP_TERM_COUNT {
                    term_count = 0;
                    tokio::task::yield_now().await;
                }
            }
            next = page.next;
        }
        Ok(())
    }

    /// A xorb that a term names may have been added since the window was read. Otherwise the index
    /// is inconsistent.
    async fn check_known(&self, file: FileHash, xorb: XorbHash) -> Result<(), GcAbort> {
        let life = self.index.find_life(xorb).await.map_err(StoreError::from)?;
        match life.map(|life| life.state) {
            Some(XorbState::Live | XorbState::Condemned) => Ok(()),
            Some(XorbState::Staged | XorbState::Deleting) | None => Err(GcAbort::Unknown { file, xorb }),
        }
    }

    /// Finds the candidates of a window of which files need a smaller share than `min_live`, up to
    /// the limits of a plan.
    async fn find_sparse(
        &self,
        retained: &mut NotRewritten,
        window: Window,
        min_live: MinLive,
        (found, run_count): (&mut Vec<Found>, &mut usize),
    ) -> Result<(), GcAbort> {
        let candidates = window.visible.into_iter().filter_map(|(xorb, chunks)| Some((xorb, chunks?.runs())));
        let mut candidates: Vec<_> = candidates.filter(|(_, runs)| !runs.is_empty()).collect();
        candidates.sort_unstable_by(|(a, _), (b, _)| a.as_bytes().cmp(b.as_bytes()));
        for (xorb, runs) in candidates {
            // The xorb was deleted meanwhile, so no file needs it.
            let Some(row) = self.index.find_xorb(xorb).await.map_err(StoreError::from)? else { continue };
            let serialized_len = row.layout.serialized_len();
            let new = Found::new(xorb, &row.layout, runs).ok_or(GcAbort::Chunks { xorb })?;
            if row.is_damaged {
                retained.damaged.add(serialized_len);
            } else if !min_live.is_above_live(new.source.live_len, serialized_len) {
                retained.needed.add(serialized_len);
            } else if found.len() >= MAX_FOUND_COUNT || *run_count + new.source.runs.len() > MAX_RUN_COUNT {
                retained.left_off.add(serialized_len);
            } else {
                *run_count += new.source.runs.len();
                found.push(new);
            }
        }
        Ok(())
    }
}

/// Whether a visible xorb is a candidate: its row must be live and referenced, and its grace period
/// over. If only the grace period prevents it, counts the xorb as retained.
fn consider(retained: &mut NotRewritten, life: &XorbLife, idle_since: Timestamp) -> bool {
    if life.state != XorbState::Live || !life.is_referenced {
        return false;
    }
    if life.since > idle_since {
        retained.in_grace.add(life.serialized_len);
        return false;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(needed: &[(u32, u32)]) -> Vec<(u32, u32)> {
        let mut chunks = Chunks::default();
        assert!(needed.iter().all(|(start, end)| chunks.add(ChunkRange::new(*start, *end).unwrap())));
        chunks.runs().iter().map(|run| (run.start(), run.end())).collect()
    }

    #[test]
    fn what_overlaps_or_touches_is_one_run_and_what_does_not_is_two() {
        for (needed, expected) in [
            (&[][..], &[][..]),
            (&[(0, 1)], &[(0, 1)]),
            (&[(5, 8), (0, 2), (1, 4)], &[(0, 4), (5, 8)]),
            (&[(5, 8), (0, 2), (2, 5)], &[(0, 8)]),
            (&[(3, 4), (3, 4)], &[(3, 4)]),
            (&[(63, 64), (64, 65), (127, 128)], &[(63, 65), (127, 128)]),
            (&[(0, 8192)], &[(0, 8192)]),
            (&[(8191, 8192), (1, 2)], &[(1, 2), (8191, 8192)]),
        ] {
            assert_eq!(runs(needed), expected, "{needed:?}");
        }
        assert!(!Chunks::default().add(ChunkRange::new(8191, 8193).unwrap()));
        assert!(!Chunks::default().add(ChunkRange::new(0, u32::MAX).unwrap()));
    }
}
