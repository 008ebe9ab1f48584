//! Terms of files, in runs: each row has a run of up to 512 terms, and the byte of the file where
//! the run begins.

use super::files::pack_terms;
use crate::format::shard::Term;

/// Terms of one row, at most: six pages of the database. With terms of 1 MiB they cover half a GiB
/// of the file.
const RUN_COUNT: usize = 512;

/// A row of terms.
#[derive(Clone, Copy, Debug)]
pub(super) struct TermRun<'t> {
    pub(super) file_id: i64,
    /// Byte of the file where its terms begin.
    start: u64,
    terms: &'t [Term],
}

/// The rows of a file, in order.
pub(super) fn runs(file_id: i64, terms: &[Term]) -> impl Iterator<Item = TermRun<'_>> {
    terms.chunks(RUN_COUNT).scan(0_u64, move |next, terms| {
        let start = *next;
        *next = terms.iter().fold(start, |start, term| start.saturating_add(term.raw_len.into()));
        Some(TermRun { file_id, start, terms })
    })
}

impl TermRun<'_> {
    /// The column `start`.
    pub(super) const fn start(&self) -> i64 {
        self.start.cast_signed()
    }

    /// The column `terms`.
    pub(super) fn packed(&self) -> Vec<u8> {
        pack_terms(self.terms)
    }
}
