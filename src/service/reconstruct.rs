//! Makes the plan of a download from the terms of a file and a byte range (spec 5.1 to 5.3). Does
//! no I/O.
//!
//! Planning has two steps, so that only needed layouts are loaded. [`select`] finds the terms that
//! a range touches, in logarithmic time. A [`Planner`] does the rest in runs, and the caller looks
//! up the layouts of each run. Clients depend on these properties, and every plan has them (spec
//! 5.1):
//!
//! 1. Terms are in file order. The first and the last are trimmed to the chunks that the range
//!    needs, and the range begins within the first of these chunks.
//! 2. Only the last term extends beyond the end of the range, and all of them together cover the
//!    range.
//! 3. Every term lies within one descriptor of its xorb.
//! 4. Descriptors of a xorb are ascending, neither overlap nor touch, and every chunk in them is
//!    needed by a term.
//! 5. The raw length of a term is that of its chunks.
//! 6. The same terms, range and layouts give the same plan, because a client that requests fresh
//!    URLs compares the new plan with the old one.

mod planner;
#[cfg(test)]
mod tests;

use thiserror::Error;

pub use self::planner::{Planned, Planner, Run};
use crate::format::shard::Term;
use crate::format::xorb::Layout;
use crate::format::{ByteRange, ChunkRange, XorbHash};
use crate::runtime::incarnation::Incarnation;

/// A term of a registered file and its place in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileTerm {
    /// The xorb.
    pub xorb: XorbHash,
    /// Its chunks that the term names.
    pub chunks: ChunkRange,
    /// Its byte range in the file.
    pub place: ByteRange,
}

/// The terms that a range touches, and the range within the file.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'t> {
    terms: &'t [FileTerm],
    /// `None` for the whole of the empty file.
    wanted: Option<ByteRange>,
}

/// The plan of a range of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The terms.
    pub file: FilePlan,
    /// The places of their chunks, in the order in which the terms first name the xorbs.
    pub xorbs: Vec<XorbPlan>,
}

/// The plan of ranges of several files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    /// The terms of each file, in the order of the files.
    pub files: Vec<FilePlan>,
    /// The places of all chunks, in the order in which the terms first name the xorbs.
    pub xorbs: Vec<XorbPlan>,
}

/// The terms for a range of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlan {
    /// Raw bytes of the first term that are before the range.
    pub offset_into_first_range: u64,
    /// The terms, trimmed.
    pub terms: Vec<PlannedTerm>,
}

/// A term of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedTerm {
    /// The xorb.
    pub xorb: XorbHash,
    /// Its chunks that the term names.
    pub chunks: ChunkRange,
    /// Raw bytes of these chunks.
    pub raw_len: u32,
}

/// The parts of one xorb to download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XorbPlan {
    /// The xorb.
    pub xorb: XorbHash,
    /// The blob that the byte ranges are for.
    pub incarnation: Incarnation,
    /// At least one; ascending, and neither overlapping nor touching.
    pub descriptors: Vec<Descriptor>,
}

/// Consecutive chunks of a xorb, to be downloaded in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The chunks.
    pub chunks: ChunkRange,
    /// Their records in the serialized xorb.
    pub bytes: ByteRange,
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// The range begins at or after the end of the file. Clients probe with such ranges, and expect
    /// this error.
    #[error("the range begins after the end of the file, which has {file_len} bytes")]
    PastEnd {
        /// Bytes of the file.
        file_len: u64,
    },
    /// The rows of the index contradict each other; no client is at fault.
    #[error("index inconsistent")]
    Inconsistent(#[source] Inconsistency),
}

/// How terms and layouts contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Inconsistency {
    /// The given terms do not cover the file from here on.
    #[error("no term at byte {offset} of the file")]
    Gap {
        /// The first byte of the file that no term covers.
        offset: u64,
    },
    /// A term's xorb has no layout.
    #[error("no layout of xorb {xorb}")]
    NoLayout {
        /// The xorb.
        xorb: XorbHash,
    },
    /// A term's chunks are not in its xorb, or have another length than the term.
    #[error("chunks {chunks} of xorb {xorb} are not {term_len} bytes")]
    Term {
        /// The xorb.
        xorb: XorbHash,
        /// The chunks.
        chunks: ChunkRange,
        /// Bytes of the term in the file.
        term_len: u64,
    },
}

/// Terms of a file with their places. The first begins at byte `start` of the file. `None` where
/// the offsets exceed `u64`.
#[must_use]
pub fn place_terms(start: u64, terms: &[Term]) -> Option<Vec<FileTerm>> {
    let mut end = start;
    let place = |term: &Term| {
        let start = end;
        end = end.checked_add(term.raw_len.into())?;
        Some(FileTerm { xorb: term.xorb, chunks: term.chunks, place: ByteRange::new(start, end)? })
    };
    terms.iter().map(place).collect()
}

/// Finds the terms that contain these bytes of a file, or all of it.
///
/// `terms` are in order. The terms around the range are enough, so that a large file need not be
/// loaded whole. The part of the range after the end of the file is left out.
///
/// # Errors
///
/// The range begins after the end, or `terms` do not cover it.
pub fn select(terms: &[FileTerm], file_len: u64, range: Option<ByteRange>) -> Result<Selection<'_>, PlanError> {
    let wanted = match range {
        None => ByteRange::new(0, file_len),
        Some(range) => {
            let within = ByteRange::new(range.start(), range.end().min(file_len));
            Some(within.ok_or(PlanError::PastEnd { file_len })?)
        }
    };
    let Some(wanted) = wanted else { return Ok(Selection { terms: &[], wanted: None }) };
    let first = terms.partition_point(|term| term.place.end() <= wanted.start());
    let end = terms.partition_point(|term| term.place.start() < wanted.end());
    let touched = terms.get(first..end).unwrap_or_default();

    let mut covered = wanted.start();
    for (term, index) in touched.iter().zip(0_usize..) {
        let start = term.place.start();
        let follows = if index == 0 { start <= covered } else { start == covered };
        if !follows {
            return Err(PlanError::Inconsistent(Inconsistency::Gap { offset: covered }));
        }
        covered = term.place.end();
    }
    if covered < wanted.end() {
        return Err(PlanError::Inconsistent(Inconsistency::Gap { offset: covered }));
    }
    Ok(Selection { terms: touched, wanted: Some(wanted) })
}

impl Selection<'_> {
    /// The part of the range that is within the file. `None` for the whole of the empty file.
    #[must_use]
    pub const fn wanted(&self) -> Option<ByteRange> {
        self.wanted
    }

    /// The terms that contain it, in order and not trimmed.
    #[must_use]
    pub const fn terms(&self) -> &[FileTerm] {
        self.terms
    }
}

/// The raw length of each of these chunks, for clients that request them. `None` if the xorb does
/// not have these chunks.
#[must_use]
pub fn chunk_raw_lens(layout: &Layout, chunks: ChunkRange) -> Option<Vec<u32>> {
    layout.chunks_in(chunks)?.map(|chunk| u32::try_from(chunk.raw.byte_len()).ok()).collect()
}
