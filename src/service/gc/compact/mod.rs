//! Compaction: xorbs of which files need only a little are rewritten, so that the rest of them can go.
//!
//! A collection takes whole xorbs, and one chunk that a file needs keeps all of a xorb. [`Cas::plan_compaction`] finds
//! the xorbs of which files need less than a share of the bytes, and says which new xorbs would have what is needed of
//! them; [`Cas::compact`] does it. Files keep their hashes, and terms their lengths and chunks: only in which xorb a term
//! finds them changes, and from which chunk on. The old xorbs are left to the collection, which takes them when nobody has
//! needed them for the whole grace. Until then both are there: it takes room first and gives it back three weeks later.
//!
//! # What is true
//!
//! * Whoever reads a file gets its old terms or its new ones, and both are true, for as long as the grace lasts.
//! * A new xorb has been verified like an upload, chunk by chunk against what the index says of the old ones, and is
//!   durable and live before a term names it. Before a file is switched, its hash is computed anew from its new terms.
//! * New xorbs have chunks of such old ones only that the same owners have uploaded, and these are their owners: what
//!   deduplication tells whom stays as it is.
//! * A file is switched in one transaction, if it still is what it was when its new terms were made. Before that, a record
//!   of its new terms is durable, from which an index can be made again when the old xorbs are gone.
//!
//! The steps are in this order: new xorbs one by one, each durable, live and endowed; then files, some at a time; old xorbs
//! that have lost their last file are touched by that. A crash leaves new xorbs that no file refers to, which the next
//! compaction finds when it plans the same again, or a collection takes; and a record of terms that were not switched, which
//! is as true as the others. What fails is left for the next run.
//!
//! What happens in doubt is nothing, as in a collection. Only xorbs that nobody has touched for the grace are rewritten, so
//! that what is in use is not rewritten again and again. One process at a time does this to a store: the one that may
//! delete blobs.
//!
//! Clients that download for longer than their URLs live ask for the plan again, and stock clients give up when that is
//! another one: such a download has to be started again where its file was switched meanwhile.

mod copy;
mod execute;
mod pack;
mod plan;
mod switch;

pub use self::execute::Compacted;
pub use self::plan::{CompactionPlan, KeptWhole};
use crate::format::shard::Term;
use crate::format::{ChunkRange, XorbHash};
#[cfg(doc)]
use crate::service::Cas;

/// The share of a xorb's bytes below which it is rewritten; more than 0 and at most 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MinLive(f64);

impl MinLive {
    /// This share; `None` where it is none.
    #[must_use]
    pub fn new(share: f64) -> Option<Self> {
        (share > 0.0 && share <= 1.0).then_some(Self(share))
    }

    /// The share, from 0 to 1.
    #[must_use]
    pub const fn share(self) -> f64 {
        self.0
    }

    /// Whether a xorb of so many bytes is rewritten of which so many are needed.
    fn is_missed_by(self, live_len: u64, serialized_len: u64) -> bool {
        // Xorbs are shorter than 2^32 bytes; one that is not is left alone.
        let (Ok(live), Ok(all)) = (u32::try_from(live_len), u32::try_from(serialized_len)) else { return false };
        live < all && f64::from(live) < self.0 * f64::from(all)
    }
}

/// What a new xorb takes of an old one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The old xorb.
    pub xorb: XorbHash,
    /// Bytes of its blob.
    pub serialized_len: u64,
    /// Bytes of it that files need.
    pub live_len: u64,
    /// Which chunks these are: ascending, and neither overlapping nor touching.
    pub runs: Vec<ChunkRange>,
}

/// A xorb that is to be made of what files need of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The new xorb.
    pub hash: XorbHash,
    /// Bytes of its blob.
    pub serialized_len: u64,
    /// Its chunks.
    pub chunk_count: u32,
    /// What it is made of, in this order; all runs of a source are together.
    pub sources: Vec<Source>,
    /// Who has uploaded each of the sources.
    owners: Vec<String>,
}

/// Where chunks of an old xorb are now.
#[derive(Clone, Debug)]
struct Move {
    to: XorbHash,
    /// Runs of the old xorb, ascending, and the chunk of the new one with which each begins.
    runs: Vec<(ChunkRange, u32)>,
}

impl Move {
    /// The moves of sources that were copied one after the other.
    fn all(to: XorbHash, sources: &[Source]) -> impl Iterator<Item = (XorbHash, Self)> + '_ {
        let mut next = 0_u32;
        sources.iter().map(move |source| {
            let place = |run: &ChunkRange| {
                let start = next;
                next = next.saturating_add(run.count());
                (*run, start)
            };
            (source.xorb, Self { to, runs: source.runs.iter().map(place).collect() })
        })
    }

    /// The same chunks by the new xorb; `None` where they were not copied.
    fn of(&self, term: &Term) -> Option<Term> {
        let behind = self.runs.partition_point(|(run, _)| run.start() <= term.chunks.start());
        let (run, start) = self.runs.get(behind.checked_sub(1)?)?;
        if run.end() < term.chunks.end() {
            return None;
        }
        let start = start.checked_add(term.chunks.start().checked_sub(run.start())?)?;
        let chunks = ChunkRange::new(start, start.checked_add(term.chunks.count())?)?;
        Some(Term { xorb: self.to, raw_len: term.raw_len, chunks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u32, end: u32) -> ChunkRange {
        ChunkRange::new(start, end).unwrap()
    }

    #[test]
    fn a_term_is_moved_when_all_of_it_is_in_one_run() {
        let (old, new) = (XorbHash::from_bytes([1; 32]), XorbHash::from_bytes([2; 32]));
        let source = |xorb, runs: &[(u32, u32)]| {
            let runs = runs.iter().map(|(start, end)| range(*start, *end)).collect();
            Source { xorb, serialized_len: 100, live_len: 10, runs }
        };
        let sources = [source(XorbHash::from_bytes([9; 32]), &[(5, 8)]), source(old, &[(2, 4), (6, 9)])];
        let moves: Vec<_> = Move::all(new, &sources).collect();
        assert_eq!(moves[1].0, old);
        for (before, after) in [
            ((2, 4), Some((3, 5))),
            ((2, 3), Some((3, 4))),
            ((3, 4), Some((4, 5))),
            ((6, 9), Some((5, 8))),
            ((8, 9), Some((7, 8))),
            ((0, 1), None),
            ((1, 3), None),
            ((3, 5), None),
            ((3, 7), None),
            ((4, 6), None),
            ((8, 10), None),
            ((9, 10), None),
        ] {
            let term = Term { xorb: old, raw_len: 7, chunks: range(before.0, before.1) };
            let moved = after.map(|(start, end)| Term { xorb: new, raw_len: 7, chunks: range(start, end) });
            assert_eq!(moves[1].1.of(&term), moved, "{before:?}");
        }
    }

    #[test]
    fn a_xorb_is_rewritten_below_the_share_and_not_at_it() {
        assert!([0.0, -0.5, 1.01, f64::NAN, f64::INFINITY].iter().all(|share| MinLive::new(*share).is_none()));
        let half = MinLive::new(0.5).unwrap();
        assert!(half.is_missed_by(49, 100) && !half.is_missed_by(50, 100) && !half.is_missed_by(51, 100));
        let all = MinLive::new(1.0).unwrap();
        assert!(all.is_missed_by(99, 100) && !all.is_missed_by(100, 100) && !all.is_missed_by(101, 100));
    }
}
