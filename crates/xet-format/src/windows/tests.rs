#![expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test that fails may panic")]

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{ChunkWindows, WindowBuilder, is_stable_len};
use crate::merkle::file_hash;
use crate::merkle::subtree::Subtree;
use crate::{ByteRange, ChunkHash, RangeHash};

/// The smallest stable length.
const STABLE: u32 = 16_384;

type Chunk = (ChunkHash, u32);

/// A file as segments of chunks, and the range hash of each.
struct File {
    segments: Vec<(RangeHash, Vec<Chunk>)>,
}

impl File {
    /// Segments of chunks of these lengths.
    fn of(segments: &[&[u32]]) -> Self {
        let mut count: u64 = 0;
        let mut chunk = |raw_len: &u32| {
            count += 1;
            (ChunkHash::of(&count.to_le_bytes()), *raw_len)
        };
        let segments = segments.iter().map(|lens| lens.iter().map(&mut chunk).collect::<Vec<_>>());
        let hash = |chunks: &[Chunk]| RangeHash::of(&chunks.iter().map(|(hash, _)| *hash).collect::<Vec<_>>());
        Self { segments: segments.map(|chunks| (hash(&chunks), chunks)).collect() }
    }

    fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.segments.iter().flat_map(|(_, chunks)| chunks)
    }

    fn len(&self) -> u64 {
        self.chunks().map(|(_, len)| u64::from(*len)).sum()
    }

    fn windows(&self, dirty: &[(u64, u64)]) -> Option<ChunkWindows> {
        let dirty: Vec<_> = dirty.iter().map(|(start, end)| ByteRange::new(*start, *end).unwrap()).collect();
        let mut builder = WindowBuilder::new(&dirty, self.len())?;
        for (hash, chunks) in &self.segments {
            builder.push_segment(*hash, chunks.iter().map(|(hash, len)| (hash, *len)));
        }
        builder.finish()
    }
}

fn check_windows(file: &File, dirty: &[(u64, u64)], expected: &[(u64, u64)]) {
    let response = file.windows(dirty).unwrap();
    let windows: Vec<_> = response.windows.iter().map(|window| (window.start(), window.end())).collect();
    assert_eq!(windows, expected);
    assert_eq!(response.gaps.len(), expected.len() + 1);
}

/// A file of segments with one chunk each, so that windows end independently of segments.
fn fine(count: usize, len: u32) -> File {
    File::of(&vec![&[len][..]; count])
}

const S: u64 = STABLE as u64;

#[test]
fn a_window_goes_on_over_two_stable_chunks() {
    check_windows(&fine(6, STABLE), &[(1, S + 1)], &[(0, 4 * S)]);
}

#[test]
fn a_change_within_the_settling_chunks_starts_settling_anew() {
    check_windows(&fine(8, STABLE), &[(1, S + 1), (3 * S + 7, 3 * S + 42)], &[(0, 6 * S)]);
}

#[test]
fn a_window_ends_with_the_file_at_the_latest() {
    check_windows(&fine(6, STABLE), &[(4 * S, 6 * S)], &[(4 * S, 6 * S)]);
    check_windows(&fine(4, 131_072), &[(0, 131_072)], &[(0, 4 * 131_072)]);
    check_windows(&fine(4, 8_192), &[(0, 1)], &[(0, 4 * 8_192)]);
}

#[test]
fn changes_that_are_far_apart_have_windows_of_their_own() {
    check_windows(&fine(20, STABLE), &[(0, S), (14 * S, 15 * S)], &[(0, 3 * S), (14 * S, 17 * S)]);
}

#[test]
fn window_that_settles_where_the_next_begins_merges_with_it() {
    check_windows(&fine(20, STABLE), &[(0, S), (3 * S, 4 * S)], &[(0, 6 * S)]);
    check_windows(&fine(20, STABLE), &[(0, S), (4 * S, 5 * S)], &[(0, 3 * S), (4 * S, 7 * S)]);
}

#[test]
fn one_stable_chunk_is_not_enough_and_two_must_be_adjacent() {
    let lens = [STABLE, 8_192, STABLE, 131_072, STABLE, 122_880, STABLE, 122_879, 9_000];
    let ends: Vec<u64> = lens
        .iter()
        .scan(0, |end, len| {
            Some({
                *end += u64::from(*len);
                *end
            })
        })
        .collect();
    let segments: Vec<&[u32]> = lens.chunks(1).collect();
    check_windows(&File::of(&segments), &[(0, 1)], &[(0, ends[7])]);
}

#[test]
fn stable_length_is_between_two_minimums_and_max_minus_min() {
    let stable = [1, 16_383, 16_384, 122_879, 122_880, 131_072].map(is_stable_len);
    assert_eq!(stable, [false, false, true, true, false, false]);
}

#[test]
fn window_settling_in_a_segment_extends_to_its_end() {
    let file = File::of(&[&[STABLE; 2], &[STABLE; 10], &[STABLE; 3]]);
    check_windows(&file, &[(0, 2 * S)], &[(0, 12 * S)]);
    let response = file.windows(&[(0, 2 * S)]).unwrap();
    assert_eq!(response.gap_verification, [file.segments[2].0]);
}

#[test]
fn window_settling_at_a_segment_end_leaves_out_the_next() {
    let file = File::of(&[&[STABLE; 2], &[STABLE; 2], &[STABLE; 3]]);
    check_windows(&file, &[(0, 2 * S)], &[(0, 4 * S)]);
}

#[test]
fn change_in_a_settled_segment_keeps_the_window_open() {
    let file = File::of(&[&[STABLE; 10], &[STABLE; 10]]);
    check_windows(&file, &[(0, S), (9 * S, 10 * S)], &[(0, 20 * S)]);
    check_windows(&file, &[(0, S), (7 * S, 8 * S)], &[(0, 10 * S)]);
}

#[test]
fn changes_are_clamped_and_may_be_unordered_and_overlap() {
    let file = fine(20, STABLE);
    let dirty = [(19 * S, u64::MAX), (5 * S, 6 * S), (5 * S - 1, 5 * S + 1), (5 * S, 5 * S + 1)];
    check_windows(&file, &dirty, &[(4 * S, 8 * S), (19 * S, 20 * S)]);
}

#[test]
fn changes_beyond_the_end_are_no_changes() {
    assert!(fine(2, STABLE).windows(&[(2 * S, 3 * S)]).is_none());
    assert!(fine(2, STABLE).windows(&[]).is_none());
    assert!(fine(0, STABLE).windows(&[(0, 1)]).is_none(), "the empty file");
}

#[test]
fn a_change_of_everything_leaves_two_gaps_of_nothing() {
    let response = fine(3, STABLE).windows(&[(0, u64::MAX)]).unwrap();
    assert_eq!((response.total_chunks, response.file_len, response.windows.len()), (3, 3 * S, 1));
    assert!(response.gaps.iter().all(Option::is_none) && response.gaps.len() == 2);
    assert_eq!(response.gap_verification, []);
}

#[test]
fn first_gap_starts_the_file_and_last_gap_ends_it() {
    let response = fine(30, STABLE).windows(&[(5 * S, 6 * S), (15 * S, 16 * S)]).unwrap();
    let flags = response.gaps.iter().flatten().map(|gap| (gap.at_start(), gap.at_end()));
    assert_eq!(flags.collect::<Vec<_>>(), [(true, false), (false, false), (false, true)]);
}

#[test]
fn segments_that_are_not_as_long_as_the_file_have_no_response() {
    let mut builder = WindowBuilder::new(&[ByteRange::new(0, 1).unwrap()], 10).unwrap();
    builder.push_segment(RangeHash::of(&[]), [(&ChunkHash::of(b""), 9)]);
    assert!(builder.finish().is_none());
}

/// The windows by the rules of the module, computed chunk by chunk without optimization.
fn expected_windows(file: &File, dirty: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut chunks = Vec::new(); // (start, end, is dirty, is stable, is the last of its segment)
    let mut start = 0;
    for (_, segment) in &file.segments {
        for (index, (_, len)) in segment.iter().enumerate() {
            let end = start + u64::from(*len);
            let is_dirty = dirty.iter().any(|(from, to)| *from < end && start < *to);
            chunks.push((start, end, is_dirty, (16_384..122_880).contains(len), index + 1 == segment.len()));
            start = end;
        }
    }
    let mut windows = Vec::new();
    let mut next = 0;
    while let Some(first) = (next..chunks.len()).find(|index| chunks[*index].2) {
        let is_end = |index: usize| {
            let settled = |at: usize| at > first && [at - 1, at].iter().all(|at| !chunks[*at].2 && chunks[*at].3);
            let segment_start = (0..index).rev().find(|at| chunks[*at].4).map_or(0, |at| at + 1);
            let quiet = |from: usize| (from..=index).all(|at| !chunks[at].2);
            let end_of_segment = (segment_start..=index).any(|at| settled(at) && quiet(at));
            let next_is_dirty = chunks.get(index + 1).is_some_and(|chunk| chunk.2);
            chunks[index].4 && end_of_segment && !next_is_dirty
        };
        let last = (first..chunks.len()).find(|index| is_end(*index)).unwrap_or(chunks.len() - 1);
        windows.push((chunks[first].0, chunks[last].1));
        next = last + 1;
    }
    windows
}

fn random_file(rng: &mut StdRng) -> File {
    let len = |rng: &mut StdRng| match rng.random_range(0..8) {
        0 => rng.random_range(1..16_384),
        1 => rng.random_range(122_880..=131_072),
        _ => rng.random_range(16_384..122_880),
    };
    let segments: Vec<Vec<u32>> =
        (0..rng.random_range(1..30)).map(|_| (0..rng.random_range(1..15)).map(|_| len(rng)).collect()).collect();
    File::of(&segments.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

#[test]
fn random_changes_get_rule_windows_and_gaps_give_file_hash() {
    let mut rng = StdRng::seed_from_u64(1);
    for _ in 0..500 {
        let file = random_file(&mut rng);
        let dirty: Vec<(u64, u64)> = (0..rng.random_range(1..5))
            .map(|_| (rng.random_range(0..file.len()), rng.random_range(1..300_000)))
            .map(|(start, len)| (start, start + len))
            .collect();
        check_windows(&file, &dirty, &expected_windows(&file, &dirty));
        check_whole(&file, &file.windows(&dirty).unwrap());
    }
}

/// Checks what a client relies on: gaps and windows joined in order are the file, and the range
/// hashes are those of the segments outside the windows.
fn check_whole(file: &File, response: &ChunkWindows) {
    let mut start = 0;
    let places: Vec<(u64, u64, Chunk)> = file
        .chunks()
        .map(|chunk| {
            let end = start + u64::from(chunk.1);
            (std::mem::replace(&mut start, end), end, *chunk)
        })
        .collect();
    let mut joined: Option<Subtree> = None;
    let mut add = |part: Option<Subtree>| {
        let Some(part) = part else { return };
        joined = Some(joined.take().map_or_else(|| part.clone(), |joined| joined.join(&part).unwrap()));
    };
    for (index, gap) in response.gaps.iter().enumerate() {
        add(gap.clone());
        let Some(window) = response.windows.get(index) else { continue };
        let inside = places.iter().filter(|(start, end, _)| window.start() <= *start && *end <= window.end());
        let chunks: Vec<Chunk> = inside.map(|(_, _, chunk)| *chunk).collect();
        assert_eq!(chunks.iter().map(|(_, len)| u64::from(*len)).sum::<u64>(), window.byte_len(), "whole chunks");
        let at_start = window.start() == 0;
        add(Subtree::of(
            chunks.iter().map(|(hash, len)| (hash, u64::from(*len))),
            at_start,
            window.end() == file.len(),
        ));
    }
    let expected = file_hash(file.chunks().map(|(hash, len)| (hash, u64::from(*len))));
    assert_eq!(joined.unwrap().file_hash(), Some(expected));

    let mut end = 0;
    let mut kept = Vec::new();
    for (hash, chunks) in &file.segments {
        let start = end;
        end += chunks.iter().map(|(_, len)| u64::from(*len)).sum::<u64>();
        if !response.windows.iter().any(|window| window.start() < end && start < window.end()) {
            kept.push(*hash);
        }
    }
    assert_eq!(response.gap_verification, kept);
    assert_eq!(response.total_chunks, places.len() as u64);
}
