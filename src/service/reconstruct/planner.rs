//! Planning in runs of xorbs, so that only the layouts of one run are in memory, whatever the size
//! of the file.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use super::{
    BatchPlan, Descriptor, FilePlan, FileTerm, Inconsistency, PlannedTerm, Selection, XorbPlan, chunk_raw_lens,
};
use crate::format::xorb::Layout;
use crate::format::{ByteRange, ChunkRange, XorbHash};
use crate::runtime::incarnation::Incarnation;

/// Plans ranges of one or several files. The chunk ranges of a xorb are merged. All terms that name
/// a xorb are in one run, so the plan does not depend on the length of runs.
#[derive(Debug)]
pub struct Planner {
    files: Vec<FileDraft>,
    /// The runs to plan, in the order in which the terms first name the xorbs.
    runs: VecDeque<Run>,
    xorbs: Vec<XorbPlan>,
    /// Number of chunks whose lengths may still be returned. `None` if lengths were not requested,
    /// or there are too many chunks.
    detail: Option<u64>,
}

/// Xorbs that are planned together.
#[derive(Debug, Default)]
pub struct Run {
    xorbs: Vec<RunXorb>,
    /// The number of terms, and of their chunks.
    term_count: usize,
    chunk_count: usize,
}

#[derive(Debug)]
struct RunXorb {
    xorb: XorbHash,
    /// The terms that name it: the index of the file, and that of the term in its selection.
    terms: Vec<(usize, usize)>,
}

#[derive(Debug)]
struct FileDraft {
    wanted: Option<ByteRange>,
    offset_into_first_range: u64,
    terms: Vec<TermDraft>,
}

#[derive(Debug)]
struct TermDraft {
    term: FileTerm,
    /// The trimmed term, and the lengths of its chunks where requested.
    planned: Option<(PlannedTerm, Vec<u32>)>,
}

/// A plan, and for each term of all its files the raw lengths of its chunks where requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The plan.
    pub plan: BatchPlan,
    /// The lengths.
    pub chunk_raw_lens: Option<Vec<Vec<u32>>>,
}

impl Run {
    /// The xorbs, each once.
    pub fn xorbs(&self) -> impl Iterator<Item = XorbHash> + '_ {
        self.xorbs.iter().map(|xorb| xorb.xorb)
    }
}

impl Planner {
    /// A planner for these ranges, with at most `xorb_count` xorbs in a run. The lengths of chunks
    /// are returned if there are at most `detail` of them.
    #[must_use]
    pub fn new(selections: &[Selection<'_>], xorb_count: usize, detail: Option<u64>) -> Self {
        let (mut runs, mut places) = (VecDeque::<Run>::new(), HashMap::new());
        for (selection, file) in selections.iter().zip(0..) {
            for (term, index) in selection.terms.iter().zip(0..) {
                let (run, xorb) = match places.entry(term.xorb) {
                    Entry::Occupied(place) => *place.get(),
                    Entry::Vacant(place) => {
                        if runs.back().is_none_or(|run| run.xorbs.len() >= xorb_count) {
                            runs.push_back(Run::default());
                        }
                        let last = runs.len() - 1;
                        runs[last].xorbs.push(RunXorb { xorb: term.xorb, terms: Vec::new() });
                        *place.insert((last, runs[last].xorbs.len() - 1))
                    }
                };
                let chunk_count = usize::try_from(term.chunks.count()).unwrap_or(usize::MAX);
                runs[run].term_count += 1;
                runs[run].chunk_count = runs[run].chunk_count.saturating_add(chunk_count);
                runs[run].xorbs[xorb].terms.push((file, index));
            }
        }
        let draft = |selection: &Selection<'_>| FileDraft {
            wanted: selection.wanted,
            offset_into_first_range: 0,
            terms: selection.terms.iter().map(|term| TermDraft { term: *term, planned: None }).collect(),
        };
        Self { files: selections.iter().map(draft).collect(), runs, xorbs: Vec::new(), detail }
    }

    /// The next run, to be given to [`plan`](Self::plan); `None` where everything is planned.
    pub fn next_run(&mut self) -> Option<Run> {
        self.runs.pop_front()
    }

    /// The number of terms.
    #[must_use]
    pub fn term_count(&self) -> usize {
        self.files.iter().map(|file| file.terms.len()).sum()
    }

    /// The amount of work of a run: its xorbs and terms, or xorbs and chunks if lengths are
    /// requested.
    #[must_use]
    pub fn item_count(&self, run: &Run) -> usize {
        let part_count = if self.detail.is_some() { run.chunk_count } else { run.term_count };
        run.xorbs.len().saturating_add(part_count)
    }

    /// Plans a run. `layouts` is called for each of its xorbs.
    ///
    /// # Errors
    ///
    /// A layout is missing or contradicts a term.
    pub fn plan<'l>(
        &mut self,
        run: Run,
        layouts: impl Fn(&XorbHash) -> Option<(Incarnation, &'l Layout)>,
    ) -> Result<(), Inconsistency> {
        for RunXorb { xorb, terms } in run.xorbs {
            let (incarnation, layout) = layouts(&xorb).ok_or(Inconsistency::NoLayout { xorb })?;
            let mut needed = Vec::with_capacity(terms.len());
            for place in terms {
                needed.push(self.plan_term(place, layout)?);
            }
            let descriptor = |chunks: ChunkRange| {
                // Never `None`: `plan_term` has found all these chunks in the layout.
                let bytes = layout.serialized_range(chunks);
                let inconsistent = Inconsistency::Term { xorb, chunks, term_len: 0 };
                Ok(Descriptor { chunks, bytes: bytes.ok_or(inconsistent)? })
            };
            let descriptors = merge(needed).into_iter().map(descriptor).collect::<Result<_, _>>()?;
            self.xorbs.push(XorbPlan { xorb, incarnation, descriptors });
        }
        Ok(())
    }

    /// Plans a term; returns its needed chunks.
    fn plan_term(&mut self, (file, index): (usize, usize), layout: &Layout) -> Result<ChunkRange, Inconsistency> {
        let file = &mut self.files[file];
        let TermDraft { term, planned } = &mut file.terms[index];
        let term_len = term.place.byte_len();
        let inconsistent = Inconsistency::Term { xorb: term.xorb, chunks: term.chunks, term_len };
        let trimmed = file.wanted.and_then(|wanted| trim(term, wanted, layout));
        let (trimmed, offset) = trimmed.ok_or(inconsistent)?;
        if index == 0 {
            file.offset_into_first_range = offset;
        }
        self.detail = self.detail.and_then(|left| left.checked_sub(trimmed.chunks.count().into()));
        let raw_lens = match self.detail {
            Some(_) => chunk_raw_lens(layout, trimmed.chunks).ok_or(inconsistent)?,
            None => Vec::new(),
        };
        *planned = Some((trimmed, raw_lens));
        Ok(trimmed.chunks)
    }

    /// The plan. To be called when all runs are planned.
    #[must_use]
    pub fn finish(self) -> Planned {
        let mut chunk_raw_lens = self.detail.map(|_| Vec::new());
        let mut files = Vec::with_capacity(self.files.len());
        for draft in self.files {
            let mut terms = Vec::with_capacity(draft.terms.len());
            for term in draft.terms {
                let (term, raw_lens) = term.planned.expect("every term is in a run");
                terms.push(term);
                if let Some(all) = &mut chunk_raw_lens {
                    all.push(raw_lens);
                }
            }
            files.push(FilePlan { offset_into_first_range: draft.offset_into_first_range, terms });
        }
        Planned { plan: BatchPlan { files, xorbs: self.xorbs }, chunk_raw_lens }
    }
}

/// The needed part of a term, in whole chunks, and how many of its bytes are before the range.
///
/// `None` where the term's chunks do not have its length.
fn trim(term: &FileTerm, wanted: ByteRange, layout: &Layout) -> Option<(PlannedTerm, u64)> {
    let raw = layout.raw_range(term.chunks)?;
    if raw.byte_len() != term.place.byte_len() {
        return None;
    }
    let in_xorb = |offset: u64| raw.start().checked_add(offset.checked_sub(term.place.start())?);
    let start = in_xorb(wanted.start().max(term.place.start()))?;
    let end = in_xorb(wanted.end().min(term.place.end()))?;
    let chunks = layout.chunks_of_raw(ByteRange::new(start, end)?)?;
    let trimmed = layout.raw_range(chunks)?;
    let raw_len = u32::try_from(trimmed.byte_len()).ok()?;
    Some((PlannedTerm { xorb: term.xorb, chunks, raw_len }, start.checked_sub(trimmed.start())?))
}

/// These chunks as ascending ranges that neither overlap nor touch. No chunk is added.
fn merge(mut ranges: Vec<ChunkRange>) -> Vec<ChunkRange> {
    ranges.sort_unstable_by_key(|range| (range.start(), range.end()));
    let mut merged: Vec<ChunkRange> = Vec::new();
    for range in ranges {
        let joined = match merged.last() {
            Some(last) if range.start() <= last.end() => ChunkRange::new(last.start(), last.end().max(range.end())),
            _ => None,
        };
        if joined.is_some() {
            merged.pop();
        }
        merged.push(joined.unwrap_or(range));
    }
    merged
}
