#![expect(clippy::cast_possible_truncation, reason = "a test that fails may panic")]

use std::collections::{HashMap, HashSet};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{
    BatchPlan, Descriptor, FilePlan, FileTerm, Inconsistency, Plan, PlanError, Planned, Planner, Selection,
    chunk_raw_lens, place_terms, select,
};
use crate::format::shard::Term;
use crate::format::xorb::{Layout, LayoutBuilder};
use crate::format::{ByteRange, ChunkRange, XorbHash};
use crate::runtime::incarnation::Incarnation;

/// Chunk headers of 8 bytes, and payloads one byte shorter than the chunks where that is possible.
fn layout(raw_lens: &[u32]) -> Layout {
    let mut builder = LayoutBuilder::new();
    raw_lens.iter().for_each(|len| builder.push(8 + (len - 1).max(1), *len).unwrap());
    builder.finish().unwrap()
}

fn hash(byte: u8) -> XorbHash {
    XorbHash::from_bytes([byte; 32])
}

fn chunks(start: u32, end: u32) -> ChunkRange {
    ChunkRange::new(start, end).unwrap()
}

fn bytes(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

/// Xorbs, and files over them.
#[derive(Default)]
struct Store {
    layouts: HashMap<XorbHash, Layout>,
}

impl Store {
    fn of(xorbs: &[(u8, &[u32])]) -> Self {
        Self { layouts: xorbs.iter().map(|(byte, lens)| (hash(*byte), layout(lens))).collect() }
    }

    /// A file of these chunks: `(xorb, first, behind the last)`.
    fn file(&self, terms: &[(u8, u32, u32)]) -> Vec<FileTerm> {
        let term = |(xorb, start, end): &(u8, u32, u32)| {
            let chunks = chunks(*start, *end);
            let raw_len = self.layouts[&hash(*xorb)].raw_range(chunks).unwrap().byte_len() as u32;
            Term { xorb: hash(*xorb), raw_len, chunks }
        };
        place_terms(0, &terms.iter().map(term).collect::<Vec<_>>()).unwrap()
    }

    fn plan(&self, selection: &Selection<'_>) -> Result<Plan, Inconsistency> {
        let Planned { plan: BatchPlan { files, xorbs }, chunk_raw_lens: lens } =
            self.planned(&[*selection], Some(u64::MAX))?;
        let file = files.into_iter().next().unwrap();
        let expected = file.terms.iter().map(|term| chunk_raw_lens(&self.layouts[&term.xorb], term.chunks).unwrap());
        assert_eq!(lens.unwrap(), expected.collect::<Vec<_>>());
        Ok(Plan { file, xorbs })
    }

    fn batch(&self, selections: &[Selection<'_>]) -> BatchPlan {
        self.planned(selections, None).unwrap().plan
    }

    /// The plan, which is the same in runs of one xorb, of two, and of all of them.
    fn planned(&self, selections: &[Selection<'_>], detail: Option<u64>) -> Result<Planned, Inconsistency> {
        let [all, one, two] = [usize::MAX, 1, 2].map(|xorb_count| {
            let mut planner = Planner::new(selections, xorb_count, detail);
            while let Some(run) = planner.next_run() {
                assert!((1..=xorb_count).contains(&run.xorbs().count()));
                planner.plan(run, |xorb| self.layouts.get(xorb).map(|layout| (Incarnation::UNNAMED, layout)))?;
            }
            Ok(planner.finish())
        });
        assert_eq!((&one, &two), (&all, &all));
        all
    }

    /// The file's bytes, as `(xorb, raw offset in it)`.
    fn contents(&self, terms: impl IntoIterator<Item = (XorbHash, ChunkRange)>) -> Vec<(XorbHash, u64)> {
        let term = |(xorb, chunks): (XorbHash, ChunkRange)| {
            let raw = self.layouts[&xorb].raw_range(chunks).unwrap();
            (raw.start()..raw.end()).map(move |offset| (xorb, offset))
        };
        terms.into_iter().flat_map(term).collect()
    }
}

fn file_len(terms: &[FileTerm]) -> u64 {
    terms.last().map_or(0, |term| term.place.end())
}

/// Plans a range of a file and checks everything that a client depends on.
fn check(store: &Store, terms: &[FileTerm], range: Option<ByteRange>) -> Plan {
    let len = file_len(terms);
    let selection = select(terms, len, range).unwrap();
    let plan = store.plan(&selection).unwrap();
    let wanted = selection.wanted();
    assert_eq!(wanted, ByteRange::new(range.map_or(0, ByteRange::start), range.map_or(len, ByteRange::end).min(len)));
    check_file(store, terms, wanted, &plan.file);
    check_xorbs(store, &[&plan.file], &plan.xorbs);
    let again = store.plan(&select(terms, len, wanted.or(range)).unwrap()).unwrap();
    assert_eq!(again, plan, "the clamped range gives the same plan (invariant 6)");
    let mut seen = HashSet::new();
    let named: Vec<_> = selection.terms.iter().map(|term| term.xorb).filter(|xorb| seen.insert(*xorb)).collect();
    assert_eq!(plan.xorbs.iter().map(|xorb| xorb.xorb).collect::<Vec<_>>(), named);
    plan
}

/// Invariants 1, 2 and 5.
fn check_file(store: &Store, terms: &[FileTerm], wanted: Option<ByteRange>, plan: &FilePlan) {
    let Some(wanted) = wanted else {
        assert_eq!((plan.offset_into_first_range, plan.terms.len()), (0, 0));
        return;
    };
    let offset = plan.offset_into_first_range;
    assert!(offset < u64::from(plan.terms[0].raw_len));
    let first_chunk = store.layouts[&plan.terms[0].xorb]
        .raw_range(chunks(plan.terms[0].chunks.start(), plan.terms[0].chunks.start() + 1));
    assert!(offset < first_chunk.unwrap().byte_len(), "the range begins in the first chunk");
    for term in &plan.terms {
        let raw = store.layouts[&term.xorb].raw_range(term.chunks).unwrap();
        assert_eq!(u64::from(term.raw_len), raw.byte_len());
    }
    let all: u64 = plan.terms.iter().map(|term| u64::from(term.raw_len)).sum();
    assert!(all - offset >= wanted.byte_len());
    let last = plan.terms.last().unwrap();
    let last_chunk = chunks(last.chunks.end() - 1, last.chunks.end());
    let last_len = store.layouts[&last.xorb].raw_range(last_chunk).unwrap().byte_len();
    assert!(all - offset - wanted.byte_len() < last_len, "the range ends in the last chunk");

    let whole = store.contents(terms.iter().map(|term| (term.xorb, term.chunks)));
    let planned = store.contents(plan.terms.iter().map(|term| (term.xorb, term.chunks)));
    let (start, end) = (wanted.start() as usize, wanted.end() as usize);
    assert_eq!(planned[offset as usize..][..end - start], whole[start..end], "the very bytes");
}

/// Invariants 3 and 4, and that nothing is given away that no term needs.
fn check_xorbs(store: &Store, files: &[&FilePlan], xorbs: &[super::XorbPlan]) {
    let needed: HashSet<(XorbHash, u32)> = files
        .iter()
        .flat_map(|file| &file.terms)
        .flat_map(|term| (term.chunks.start()..term.chunks.end()).map(|chunk| (term.xorb, chunk)))
        .collect();
    let mut given = HashSet::new();
    for xorb in xorbs {
        assert!(!xorb.descriptors.is_empty());
        for pair in xorb.descriptors.windows(2) {
            assert!(pair[0].chunks.end() < pair[1].chunks.start(), "disjoint, ascending, not touching");
            assert!(pair[0].bytes.end() < pair[1].bytes.start());
        }
        for Descriptor { chunks, bytes } in &xorb.descriptors {
            assert_eq!(store.layouts[&xorb.xorb].serialized_range(*chunks), Some(*bytes));
            given.extend((chunks.start()..chunks.end()).map(|chunk| (xorb.xorb, chunk)));
        }
    }
    assert_eq!(given, needed, "exactly the chunks of the terms");
    for term in files.iter().flat_map(|file| &file.terms) {
        let xorb = xorbs.iter().find(|xorb| xorb.xorb == term.xorb).unwrap();
        let holds = |chunks: ChunkRange| chunks.start() <= term.chunks.start() && term.chunks.end() <= chunks.end();
        assert_eq!(xorb.descriptors.iter().filter(|descriptor| holds(descriptor.chunks)).count(), 1);
    }
}

/// Chunk ranges of the descriptors, xorb by xorb.
fn descriptors(xorbs: &[super::XorbPlan]) -> Vec<Vec<(u32, u32)>> {
    let ranges = |xorb: &super::XorbPlan| {
        xorb.descriptors.iter().map(|one| (one.chunks.start(), one.chunks.end())).collect::<Vec<_>>()
    };
    xorbs.iter().map(ranges).collect()
}

#[test]
fn one_byte_in_the_middle_takes_one_chunk() {
    let store = Store::of(&[(1, &[10, 20, 30, 40])]);
    let file = store.file(&[(1, 0, 4)]);
    let plan = check(&store, &file, Some(bytes(35, 36)));
    assert_eq!(plan.file.offset_into_first_range, 5);
    assert_eq!(plan.file.terms[0].chunks, chunks(2, 3));
    assert_eq!(plan.file.terms[0].raw_len, 30);
    assert_eq!(plan.xorbs[0].descriptors, [Descriptor { chunks: chunks(2, 3), bytes: bytes(44, 81) }]);
}

#[test]
fn a_range_that_ends_with_a_chunk_does_not_take_the_next_one() {
    let store = Store::of(&[(1, &[10, 20, 30, 40])]);
    let file = store.file(&[(1, 0, 2), (1, 2, 4)]);
    for (range, expected) in [((0, 10), vec![(0, 1)]), ((10, 30), vec![(1, 2)]), ((29, 31), vec![(1, 3)])] {
        let plan = check(&store, &file, Some(bytes(range.0, range.1)));
        assert_eq!(descriptors(&plan.xorbs), [expected]);
    }
}

#[test]
fn no_range_is_the_whole_file() {
    let store = Store::of(&[(1, &[10, 20]), (2, &[5])]);
    let file = store.file(&[(1, 1, 2), (2, 0, 1), (1, 0, 1)]);
    let plan = check(&store, &file, None);
    assert_eq!(plan.file.offset_into_first_range, 0);
    assert_eq!(descriptors(&plan.xorbs), [vec![(0, 2)], vec![(0, 1)]]);
}

#[test]
fn the_largest_range_that_can_be_written_is_the_whole_file() {
    // `bytes=0-18446744073709551615`: its exclusive end exceeds 64 bits.
    let store = Store::of(&[(1, &[10, 20])]);
    let file = store.file(&[(1, 0, 2)]);
    assert_eq!(check(&store, &file, Some(bytes(0, u64::MAX))), check(&store, &file, None));
    let last = check(&store, &file, Some(bytes(29, u64::MAX)));
    assert_eq!(last.file.offset_into_first_range, 19);
}

#[test]
fn a_range_that_begins_at_or_behind_the_end_is_past_the_end() {
    let store = Store::of(&[(1, &[10, 20])]);
    let file = store.file(&[(1, 0, 2)]);
    for start in [30, 31, 256_000_000, u64::MAX - 1] {
        let error = select(&file, 30, Some(bytes(start, u64::MAX))).unwrap_err();
        assert_eq!(error, PlanError::PastEnd { file_len: 30 });
    }
}

#[test]
fn empty_file_has_an_empty_plan_and_any_range_is_past_its_end() {
    let plan = check(&Store::default(), &[], None);
    assert_eq!((plan.file.terms.len(), plan.xorbs.len()), (0, 0));
    assert_eq!(select(&[], 0, Some(bytes(0, 1))).unwrap_err(), PlanError::PastEnd { file_len: 0 });
}

#[test]
fn two_ranges_of_one_xorb_that_lie_apart_are_two_descriptors() {
    let store = Store::of(&[(1, &[10; 10])]);
    let file = store.file(&[(1, 7, 9), (1, 0, 2)]);
    assert_eq!(descriptors(&check(&store, &file, None).xorbs), [vec![(0, 2), (7, 9)]]);
}

#[test]
fn touching_or_overlapping_ranges_of_a_xorb_merge() {
    let store = Store::of(&[(1, &[10; 10])]);
    for terms in [[(1, 2, 4), (1, 4, 6)], [(1, 4, 6), (1, 2, 4)], [(1, 2, 5), (1, 3, 6)], [(1, 3, 4), (1, 2, 6)]] {
        assert_eq!(descriptors(&check(&store, &store.file(&terms), None).xorbs), [vec![(2, 6)]]);
    }
}

#[test]
fn repeated_chunks_are_two_terms_and_one_descriptor() {
    let store = Store::of(&[(1, &[10; 10])]);
    let plan = check(&store, &store.file(&[(1, 2, 4), (1, 2, 4), (1, 2, 4)]), None);
    assert_eq!(plan.file.terms.len(), 3);
    assert_eq!(descriptors(&plan.xorbs), [vec![(2, 4)]]);
}

#[test]
fn two_ranges_with_the_same_first_chunk_are_one_descriptor() {
    // The client caches descriptors by xorb and first chunk: two with the same one would hide each
    // other.
    let store = Store::of(&[(1, &[10; 10])]);
    let plan = check(&store, &store.file(&[(1, 2, 4), (1, 2, 7)]), None);
    assert_eq!(descriptors(&plan.xorbs), [vec![(2, 7)]]);
}

#[test]
fn trimming_separates_terms_that_would_merge() {
    let store = Store::of(&[(1, &[10; 10])]);
    let file = store.file(&[(1, 0, 5), (1, 4, 9)]);
    let plan = check(&store, &file, Some(bytes(0, 51)));
    assert_eq!(descriptors(&plan.xorbs), [vec![(0, 5)]]);
    let plan = check(&store, &file, Some(bytes(20, 90)));
    assert_eq!(descriptors(&plan.xorbs), [vec![(2, 8)]]);
}

#[test]
fn files_of_a_batch_share_descriptors_and_keep_their_own() {
    let store = Store::of(&[(1, &[10; 10]), (2, &[7; 3])]);
    let files = [store.file(&[(1, 0, 2)]), store.file(&[(2, 0, 1), (1, 5, 7)]), store.file(&[(1, 1, 3)])];
    let selections: Vec<_> = files.iter().map(|file| select(file, file_len(file), None).unwrap()).collect();
    let batch = store.batch(&selections);
    check_xorbs(&store, &batch.files.iter().collect::<Vec<_>>(), &batch.xorbs);
    assert_eq!(descriptors(&batch.xorbs), [vec![(0, 3), (5, 7)], vec![(0, 1)]]);
    for (file, plan) in files.iter().zip(&batch.files) {
        assert_eq!(*plan, check(&store, file, None).file);
    }
}

#[test]
fn the_same_file_twice_in_a_batch_is_planned_twice() {
    let store = Store::of(&[(1, &[10; 10])]);
    let file = store.file(&[(1, 0, 2)]);
    let selection = select(&file, 20, None).unwrap();
    let batch = store.batch(&[selection, selection]);
    assert_eq!(batch.files[0], batch.files[1]);
    assert_eq!(descriptors(&batch.xorbs), [vec![(0, 2)]]);
    assert_eq!(store.batch(&[]), BatchPlan { files: vec![], xorbs: vec![] });
}

#[test]
fn only_the_terms_around_the_range_need_to_be_there() {
    let store = Store::of(&[(1, &[10; 10])]);
    let file = store.file(&[(1, 0, 2), (1, 5, 6), (1, 3, 4), (1, 9, 10)]);
    let range = Some(bytes(22, 33));
    let part = store.plan(&select(&file[1..3], 50, range).unwrap()).unwrap();
    assert_eq!(part, check(&store, &file, range));
}

#[test]
fn uncovered_range_is_an_inconsistency_not_a_short_response() {
    let store = Store::of(&[(1, &[10; 10])]);
    let file = store.file(&[(1, 0, 2), (1, 5, 6), (1, 3, 4), (1, 9, 10)]);
    let gap = |terms: &[FileTerm], range, offset| {
        let error = select(terms, 50, range).unwrap_err();
        assert_eq!(error, PlanError::Inconsistent(Inconsistency::Gap { offset }));
    };
    gap(&file[1..], Some(bytes(0, 50)), 0);
    gap(&file[..3], None, 40);
    gap(&[file[0], file[2], file[3]], None, 20);
    gap(&[], None, 0);
    gap(&[], Some(bytes(49, 50)), 49);
}

#[test]
fn missing_or_contradicting_layout_is_an_inconsistency() {
    let store = Store::of(&[(1, &[10; 10])]);
    let whole = |terms: &[FileTerm]| store.plan(&select(terms, file_len(terms), None).unwrap()).unwrap_err();
    let term = |xorb, end, len| FileTerm { xorb: hash(xorb), chunks: chunks(0, end), place: bytes(0, len) };
    let missing = Inconsistency::NoLayout { xorb: hash(2) };
    assert_eq!(whole(&[term(2, 1, 10)]), missing);
    for (end, term_len) in [(2, 19), (2, 21), (11, 110)] {
        let expected = Inconsistency::Term { xorb: hash(1), chunks: chunks(0, end), term_len };
        assert_eq!(whole(&[term(1, end, term_len)]), expected);
    }
}

#[test]
fn chunk_lengths_are_those_of_the_chunks_asked_for() {
    let layout = layout(&[10, 20, 30]);
    assert_eq!(chunk_raw_lens(&layout, chunks(1, 3)), Some(vec![20, 30]));
    assert_eq!(chunk_raw_lens(&layout, chunks(0, 1)), Some(vec![10]));
    assert_eq!(chunk_raw_lens(&layout, chunks(2, 4)), None);
}

#[test]
fn chunk_lengths_come_up_to_the_allowed_count_only() {
    let store = Store::of(&[(1, &[10, 20, 30]), (2, &[40, 50])]);
    let file = store.file(&[(1, 0, 3), (2, 0, 2), (1, 1, 2)]);
    // Of the first and the last term one chunk each is wanted: four in all.
    let selection = select(&file, file_len(&file), Some(bytes(59, 160))).unwrap();
    let lens = |detail| store.planned(&[selection], detail).unwrap().chunk_raw_lens;
    assert_eq!(lens(Some(4)), Some(vec![vec![30], vec![40, 50], vec![20]]));
    assert_eq!((lens(Some(3)), lens(Some(0)), lens(None)), (None, None, None));
    let nothing = select(&[], 0, None).unwrap();
    assert_eq!(store.planned(&[nothing], Some(0)).unwrap().chunk_raw_lens, Some(Vec::new()));
}

#[test]
fn terms_follow_each_other_in_the_file() {
    let terms = [(3, 5), (0, 7)].map(|(start, len)| Term { xorb: hash(1), raw_len: len, chunks: chunks(start, 9) });
    let placed = place_terms(0, &terms).unwrap();
    assert_eq!(placed.iter().map(|term| term.place).collect::<Vec<_>>(), [bytes(0, 5), bytes(5, 12)]);
    let later = place_terms(100, &terms).unwrap();
    assert_eq!(later.iter().map(|term| term.place).collect::<Vec<_>>(), [bytes(100, 105), bytes(105, 112)]);
    assert_eq!(place_terms(u64::MAX - 6, &terms), None);
    assert_eq!(place_terms(0, &[]), Some(vec![]));
}

fn random_store(rng: &mut StdRng) -> Store {
    let xorbs: Vec<(u8, Vec<u32>)> = (0..rng.random_range(1..4))
        .map(|byte| (byte, (0..rng.random_range(1..12)).map(|_| rng.random_range(1..30)).collect()))
        .collect();
    Store { layouts: xorbs.iter().map(|(byte, lens)| (hash(*byte), layout(lens))).collect() }
}

fn random_file(rng: &mut StdRng, store: &Store) -> Vec<FileTerm> {
    let xorb_count = store.layouts.len() as u8;
    let terms: Vec<(u8, u32, u32)> = (0..rng.random_range(0..8))
        .map(|_| {
            let xorb = rng.random_range(0..xorb_count);
            let count = store.layouts[&hash(xorb)].chunk_count();
            let start = rng.random_range(0..count);
            (xorb, start, rng.random_range(start + 1..=count))
        })
        .collect();
    store.file(&terms)
}

fn random_range(rng: &mut StdRng, len: u64) -> Option<ByteRange> {
    let start = rng.random_range(0..=len.saturating_sub(1));
    let end = if rng.random_bool(0.2) { u64::MAX } else { rng.random_range(start + 1..=len + 5) };
    rng.random_bool(0.9).then(|| bytes(start, end))
}

#[test]
fn random_ranges_of_random_files_keep_every_promise() {
    let mut rng = StdRng::seed_from_u64(1);
    for _ in 0..5_000 {
        let store = random_store(&mut rng);
        let file = random_file(&mut rng, &store);
        if !file.is_empty() {
            let range = random_range(&mut rng, file_len(&file));
            check(&store, &file, range);
        }
    }
}

#[test]
fn every_range_of_a_file_keeps_every_promise() {
    let store = Store::of(&[(1, &[3, 1, 4, 1, 5]), (2, &[2, 6])]);
    let file = store.file(&[(1, 3, 5), (2, 0, 2), (1, 0, 3), (1, 1, 2)]);
    let len = file_len(&file);
    for start in 0..len {
        for end in start + 1..=len + 1 {
            check(&store, &file, Some(bytes(start, end)));
        }
    }
}

#[test]
fn random_batches_keep_every_promise() {
    let mut rng = StdRng::seed_from_u64(2);
    for _ in 0..2_000 {
        let store = random_store(&mut rng);
        let files: Vec<_> = (0..rng.random_range(1..6)).map(|_| random_file(&mut rng, &store)).collect();
        let selections: Vec<_> = files.iter().map(|file| select(file, file_len(file), None).unwrap()).collect();
        let batch = store.batch(&selections);
        check_xorbs(&store, &batch.files.iter().collect::<Vec<_>>(), &batch.xorbs);
        for (file, plan) in files.iter().zip(&batch.files) {
            check_file(&store, file, ByteRange::new(0, file_len(file)), plan);
        }
    }
}

#[test]
fn range_of_a_100_gib_file_reads_layouts_of_the_range_only() {
    // Terms of 16 chunks of 64 KiB each, 1 MiB: 102 400 of them over 1600 xorbs.
    let chunk_len = 65_536;
    let one = layout(&[chunk_len; 1024]);
    let term = |index: u32| {
        let mut xorb = [0; 32];
        xorb[..4].copy_from_slice(&(index / 64).to_le_bytes());
        let start = 16 * (index % 64);
        Term { xorb: XorbHash::from_bytes(xorb), raw_len: 16 * chunk_len, chunks: chunks(start, start + 16) }
    };
    let terms = place_terms(0, &(0..102_400).map(term).collect::<Vec<_>>()).unwrap();
    let len = file_len(&terms);
    assert_eq!(len, 100 << 30);
    let start = 50 << 30;
    let selection = select(&terms, len, Some(bytes(start + 1, start + 256_000_000))).unwrap();
    let mut planner = Planner::new(&[selection], 3, None);
    let mut asked = Vec::new();
    while let Some(run) = planner.next_run() {
        asked.push(run.xorbs().count());
        planner.plan(run, |_| Some((Incarnation::UNNAMED, &one))).unwrap();
    }
    assert_eq!(asked, [3, 1]);
    let plan = planner.finish().plan;
    assert_eq!(plan.files[0].terms.len(), 245);
    assert_eq!(descriptors(&plan.xorbs), [vec![(0, 1024)], vec![(0, 1024)], vec![(0, 1024)], vec![(0, 835)]]);
}
