//! Compaction: rewrites xorbs of which files need only a small part, so that the rest can be
//! deleted.
//!
//! A collection deletes only whole xorbs, so one needed chunk retains all of a xorb.
//! [`Store::plan_compaction`] finds xorbs whose share of needed bytes is below a limit, and plans
//! new xorbs of their needed chunks. [`Store::compact`] makes the new xorbs and switches the files
//! to them. A file keeps its hash, and a term its length and its bytes. Only the xorb that the term
//! names changes, and the indexes of the chunks there. The old xorbs are left to the collection,
//! which deletes them after the whole grace period. Until then the old and the new xorbs exist, so
//! compaction takes space first and frees more later.
//!
//! # Invariants
//!
//! * A reader of a file gets its old terms or its new ones, and both are valid during the grace
//!   period.
//! * A new xorb is verified like an upload, chunk by chunk against the rows of the old xorbs. It is
//!   durable and live before a term names it. Before a file is switched, its hash is computed from
//!   its new terms, and must be the same.
//! * The sources of a new xorb all have the same owners, which become its owners. So dedup scopes
//!   do not change.
//! * A file is switched in one transaction, only if its terms are still those from which the new
//!   terms were made. Before the transaction, a record of its new terms is durable, so that the
//!   index can be rebuilt after the old xorbs are deleted.
//!
//! The order of steps: first the new xorbs are made one by one. Each becomes durable and live, and
//! is endowed, which means that it gets the owners and dedup chunks of its sources. Then files are
//! switched, some at a time. When an old xorb loses its last file, its grace period begins. A crash
//! leaves new xorbs without references. The next compaction finds them when it makes the same plan,
//! or a collection deletes them. A crash may also leave a record of terms that were not switched;
//! it is valid, since the old and the new xorbs exist. The next run tries again what has failed.
//!
//! When anything is inconsistent, nothing is rewritten, as in a collection. Only xorbs that were
//! not touched during the grace period are rewritten, so that xorbs in use are not rewritten
//! repeatedly. Only the process that may delete blobs of a store compacts it.
//!
//! When the URLs of a download expire, the client requests the reconstruction again. Stock clients
//! fail if the new reconstruction differs. So a download that outlives its URLs must be restarted
//! if the file was switched meanwhile.

mod copy;
mod execute;
mod pack;
mod plan;
mod switch;

pub use self::execute::Compacted;
pub use self::plan::{CompactionPlan, NotRewritten};
use crate::format::shard::Term;
use crate::format::{ChunkRange, XorbHash};
#[cfg(doc)]
use crate::service::Store;

/// The share of needed bytes below which a xorb is rewritten; more than 0 and at most 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MinLive(f64);

impl MinLive {
    /// This share; `None` where it is out of range.
    #[must_use]
    pub fn new(share: f64) -> Option<Self> {
        (share > 0.0 && share <= 1.0).then_some(Self(share))
    }

    /// The share, from 0 to 1.
    #[must_use]
    pub const fn share(self) -> f64 {
        self.0
    }

    /// Whether a xorb of `serialized_len` bytes is rewritten when `live_len` of them are needed.
    fn is_above_live(self, live_len: u64, serialized_len: u64) -> bool {
        // A xorb is shorter than 2^32 bytes. If its row states more, the row is wrong, and the xorb
        // is not rewritten.
        let (Ok(live), Ok(all)) = (u32::try_from(live_len), u32::try_from(serialized_len)) else { return false };
        live < all && f64::from(live) < self.0 * f64::from(all)
    }
}

/// An old xorb, and the part of it that is copied to a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The old xorb.
    pub xorb: XorbHash,
    /// Bytes of its blob.
    pub serialized_len: u64,
    /// Bytes of it that files need.
    pub live_len: u64,
    /// The needed chunks as runs (ranges of consecutive chunks), ascending, neither overlapping nor
    /// touching.
    pub runs: Vec<ChunkRange>,
}

/// A new xorb, and the old xorbs whose needed chunks it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The new xorb.
    pub hash: XorbHash,
    /// Bytes of its blob.
    pub serialized_len: u64,
    /// Its chunks.
    pub chunk_count: u32,
    /// Its sources, in this order; all runs of a source are together.
    pub sources: Vec<Source>,
    /// The owners of every source: all sources have the same.
    owners: Vec<String>,
}

/// The new positions of chunks of an old xorb.
#[derive(Clone, Debug)]
struct Move {
    to: XorbHash,
    /// Runs of the old xorb, ascending. With each, the index of its first chunk in the new xorb.
    runs: Vec<(ChunkRange, u32)>,
}

impl Move {
    /// The moves of sources that were copied in this order.
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

    /// The term of the new xorb with the same chunks. `None` if these chunks were not copied in one
    /// run.
    fn of(&self, term: &Term) -> Option<Term> {
        let run_count = self.runs.partition_point(|(run, _)| run.start() <= term.chunks.start());
        let (run, start) = self.runs.get(run_count.checked_sub(1)?)?;
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
        assert!(half.is_above_live(49, 100) && !half.is_above_live(50, 100) && !half.is_above_live(51, 100));
        let all = MinLive::new(1.0).unwrap();
        assert!(all.is_above_live(99, 100) && !all.is_above_live(100, 100) && !all.is_above_live(101, 100));
    }
}
