#![expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test that fails may panic")]

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use xet_core_structures::merklehash::{MerkleHash, MerkleHashSubtree};

use super::{JoinError, PartsError, Subtree, SubtreeBuilder, SubtreeNode};
use crate::ChunkHash;
use crate::merkle::file_hash;

type Chunk = (ChunkHash, u64);

/// Random chunks. Each hash is a natural cut with the probability `cut_chance`.
fn chunks(rng: &mut StdRng, count: usize, cut_chance: f64) -> Vec<Chunk> {
    let chunk = |_| {
        let mut hash: [u8; 32] = rng.random();
        hash[24] = hash[24] & !3 | if rng.random_bool(cut_chance) { 0 } else { rng.random_range(1..4) };
        (ChunkHash::from_bytes(hash), rng.random_range(1..131_073))
    };
    (0..count).map(chunk).collect()
}

fn summary(chunks: &[Chunk], at_start: bool, at_end: bool) -> Option<Subtree> {
    Subtree::of(chunks.iter().map(|(hash, len)| (hash, *len)), at_start, at_end)
}

/// The summary by the official crate.
fn theirs(chunks: &[Chunk], at_start: bool, at_end: bool) -> MerkleHashSubtree {
    let nodes: Vec<_> = chunks.iter().map(|(hash, len)| (MerkleHash::from(hash.as_bytes()), *len)).collect();
    MerkleHashSubtree::from_chunks(at_start, &nodes, at_end)
}

/// The JSON of a summary in a response (spec 1.9).
fn json(subtree: &Subtree) -> Value {
    let nodes: Vec<Value> =
        subtree.nodes().map(|node| json!({"hash": node.hash.to_string(), "size": node.raw_len})).collect();
    let levels: Vec<_> = subtree.levels().collect();
    json!({"nodes": nodes, "levels": levels, "at_start": subtree.at_start(), "at_end": subtree.at_end()})
}

fn check_whole(subtree: &Subtree, chunks: &[Chunk]) {
    assert_eq!(subtree.nodes().count(), 1, "{:?}", subtree.levels().collect::<Vec<_>>());
    assert_eq!(subtree.file_hash(), Some(file_hash(chunks.iter().map(|(hash, len)| (hash, *len)))));
    assert_eq!(subtree.raw_len(), chunks.iter().map(|(_, len)| len).sum::<u64>());
}

/// A random number of chunks, more often a small one, and a probability of natural cuts.
fn corner(rng: &mut StdRng) -> (usize, f64) {
    let count = match rng.random_range(0..4) {
        0 => rng.random_range(1..4),
        1 => rng.random_range(1..40),
        2 => rng.random_range(1..400),
        _ => rng.random_range(1..3000),
    };
    (count, [0.0, 0.1, 0.25, 0.25, 0.25, 0.6, 1.0][rng.random_range(0..7)])
}

/// The ends of random runs that `count` chunks are split into; no run is empty.
fn splits(rng: &mut StdRng, count: usize) -> Vec<usize> {
    let mut ends: Vec<usize> = (0..rng.random_range(0..12)).map(|_| rng.random_range(1..=count)).collect();
    ends.push(count);
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// Random chunks, the summaries of random runs of them, and the summary of all chunks, which is not
/// joined from the runs.
fn random_runs(rng: &mut StdRng, at_start: bool, at_end: bool) -> (Vec<Chunk>, Vec<Subtree>, Subtree) {
    let (count, chance) = corner(rng);
    let chunks = chunks(rng, count, chance);
    let mut start = 0;
    let mut runs = Vec::new();
    for end in splits(rng, count) {
        runs.push(summary(&chunks[start..end], at_start && start == 0, at_end && end == count).unwrap());
        start = end;
    }
    let whole = summary(&chunks, at_start, at_end).unwrap();
    (chunks, runs, whole)
}

fn join_in_random_order(rng: &mut StdRng, mut runs: Vec<Subtree>) -> Subtree {
    while runs.len() > 1 {
        let index = rng.random_range(0..runs.len() - 1);
        let next = runs.remove(index + 1);
        runs[index] = runs[index].join(&next).unwrap();
    }
    runs.remove(0)
}

#[test]
fn random_splits_joined_in_any_order_give_the_file_hash() {
    let mut rng = StdRng::seed_from_u64(1);
    for _ in 0..1000 {
        let (chunks, runs, _) = random_runs(&mut rng, true, true);
        check_whole(&join_in_random_order(&mut rng, runs), &chunks);
    }
}

#[test]
fn random_splits_of_a_run_join_to_the_summary_of_the_run() {
    let mut rng = StdRng::seed_from_u64(10);
    for _ in 0..1000 {
        let (at_start, at_end) = (rng.random(), rng.random());
        let (_, runs, whole) = random_runs(&mut rng, at_start, at_end);
        assert_eq!(json(&join_in_random_order(&mut rng, runs)), json(&whole));
    }
}

#[test]
fn a_run_is_summed_up_as_by_the_official_crate() {
    let mut rng = StdRng::seed_from_u64(2);
    for _ in 0..600 {
        let (count, chance) = corner(&mut rng);
        let chunks = chunks(&mut rng, count, chance);
        let (at_start, at_end) = (rng.random(), rng.random());
        let expected = serde_json::to_value(theirs(&chunks, at_start, at_end)).unwrap();
        assert_eq!(json(&summary(&chunks, at_start, at_end).unwrap()), expected);
    }
}

#[test]
fn the_official_crate_joins_our_summaries_with_its_own() {
    let mut rng = StdRng::seed_from_u64(4);
    for _ in 0..200 {
        let chunks = chunks(&mut rng, 900, 0.25);
        let (a, b) = (rng.random_range(1..400), rng.random_range(500..900));
        let gap = |chunks: &[Chunk], at_start, at_end| -> MerkleHashSubtree {
            serde_json::from_value(json(&summary(chunks, at_start, at_end).unwrap())).unwrap()
        };
        let parts =
            [gap(&chunks[..a], true, false), theirs(&chunks[a..b], false, false), gap(&chunks[b..], false, true)];
        let root = MerkleHashSubtree::merge(&parts).unwrap().final_hash().unwrap();
        assert_eq!(root.hex(), summary(&chunks, true, true).unwrap().nodes().next().unwrap().hash.to_string());
    }
}

#[test]
fn the_builder_gives_what_is_made_in_one_go() {
    let mut rng = StdRng::seed_from_u64(5);
    for count in [0, 1, 1023, 1024, 1025, 2047, 2048, 2049, 5000] {
        for chance in [0.0, 0.1, 0.25, 1.0] {
            let chunks = chunks(&mut rng, count, chance);
            for (at_start, at_end) in [(false, false), (false, true), (true, false), (true, true)] {
                let mut builder = SubtreeBuilder::new(at_start);
                chunks.iter().for_each(|(hash, len)| builder.push(hash, *len));
                let built = builder.finish(at_end).as_ref().map(json);
                let expected = summary(&chunks, at_start, at_end).as_ref().map(json);
                assert!(built == expected, "{count} chunks, cuts {chance}, {at_start}, {at_end}");
            }
        }
    }
}

#[test]
fn a_run_in_the_middle_of_a_large_file_is_a_few_hundred_nodes() {
    let mut rng = StdRng::seed_from_u64(6);
    let mut builder = SubtreeBuilder::new(false);
    for (hash, len) in chunks(&mut rng, 200_000, 0.25) {
        builder.push(&hash, len);
        assert!(builder.node_count() < 3000);
    }
    let count = builder.finish(false).unwrap().nodes().count();
    assert!(count < 1000, "{count} nodes");
}

/// In time that is in proportion to the length: if each join copied the whole summary, this would
/// copy some hundred gigabytes.
#[test]
fn a_chunk_that_is_repeated_has_a_node_for_each_time() {
    const COUNT: usize = 1 << 21;
    let mut builder = SubtreeBuilder::new(false);
    let chunk = ChunkHash::of(b"again");
    for count in 1..=COUNT {
        builder.push(&chunk, 5);
        assert_eq!(builder.node_count(), count);
    }
    assert_eq!(builder.finish(false).unwrap().nodes().count(), COUNT);
}

#[test]
fn no_chunks_have_no_summary() {
    assert!(summary(&[], true, true).is_none());
    assert!(SubtreeBuilder::new(false).finish(true).is_none());
}

#[test]
fn one_chunk_is_its_own_summary() {
    let mut rng = StdRng::seed_from_u64(7);
    let chunk = chunks(&mut rng, 1, 0.25);
    let subtree = summary(&chunk, true, false).unwrap();
    assert_eq!(subtree.levels().collect::<Vec<_>>(), [(1, 0)]);
    let node = subtree.nodes().next().unwrap();
    assert_eq!((node.hash.to_string(), node.raw_len), (chunk[0].0.to_string(), chunk[0].1));
}

#[test]
fn nothing_is_joined_before_the_start_or_after_the_end() {
    let mut rng = StdRng::seed_from_u64(8);
    let chunks = chunks(&mut rng, 30, 0.25);
    let run = |at_start, at_end| summary(&chunks, at_start, at_end).unwrap();
    assert_eq!(run(true, true).join(&run(false, true)).unwrap_err(), JoinError::AfterEnd);
    assert_eq!(run(true, false).join(&run(true, true)).unwrap_err(), JoinError::BeforeStart);
}

#[test]
fn a_run_that_is_not_the_whole_file_has_no_file_hash() {
    let mut rng = StdRng::seed_from_u64(9);
    let chunks = chunks(&mut rng, 30, 0.25);
    for (at_start, at_end) in [(false, false), (false, true), (true, false)] {
        assert_eq!(summary(&chunks, at_start, at_end).unwrap().file_hash(), None);
    }
    check_whole(&summary(&chunks, true, true).unwrap(), &chunks);
}

/// A summary that was sent: its hashes as text and back, and its parts checked.
fn sent(subtree: &Subtree) -> Subtree {
    let nodes: Vec<SubtreeNode> = subtree.nodes().collect();
    let nodes = nodes.iter().map(|node| SubtreeNode { hash: node.hash.to_string().parse().unwrap(), ..*node });
    let levels: Vec<_> = subtree.levels().collect();
    Subtree::from_parts(&nodes.collect::<Vec<_>>(), &levels, subtree.at_start(), subtree.at_end()).unwrap()
}

#[test]
fn sent_summary_is_unchanged_and_joins_to_the_file_hash() {
    let mut rng = StdRng::seed_from_u64(11);
    for _ in 0..300 {
        let (count, cut_chance) = corner(&mut rng);
        let all = chunks(&mut rng, count, cut_chance);
        let (start, end) = (rng.random_range(0..count), rng.random_range(0..count));
        let (start, end) = (start.min(end), start.max(end) + 1);
        let parts =
            [(&all[..start], true, false), (&all[start..end], start == 0, end == count), (&all[end..], false, true)];
        let parts = parts.iter().filter_map(|(chunks, at_start, at_end)| summary(chunks, *at_start, *at_end));
        let parts: Vec<Subtree> = parts.collect();
        parts.iter().for_each(|part| assert_eq!(json(&sent(part)), json(part)));
        let whole = parts.iter().map(sent).reduce(|a, b| a.join(&b).unwrap()).unwrap();
        check_whole(&whole, &all);
    }
}

#[test]
fn numbers_that_are_no_summary_are_refused() {
    let mut rng = StdRng::seed_from_u64(12);
    let whole = summary(&chunks(&mut rng, 200, 0.25), true, true).unwrap();
    let [root] = <[SubtreeNode; 1]>::try_from(whole.nodes().collect::<Vec<_>>()).unwrap();
    let check = |nodes: &[SubtreeNode], levels: &[(usize, usize)], at_start, at_end, expected| {
        assert_eq!(Subtree::from_parts(nodes, levels, at_start, at_end).map(drop), Err(expected), "{levels:?}");
    };
    check(&[root], &[], true, false, PartsError::NodeCount);
    check(&[], &[], true, false, PartsError::Top);
    check(&[root], &[(2, 0)], true, false, PartsError::NodeCount);
    check(&[root; 2], &[(1, 0)], true, false, PartsError::NodeCount);
    check(&[root; 2], &[(1, 1)], true, false, PartsError::Top);
    check(&[root], &[(0, 1), (0, 0)], true, false, PartsError::Top);
    check(&[root; 2], &[(1, 0), (1, 0)], true, false, PartsError::End);
    check(&[root; 2], &[(0, 1), (1, 0)], false, true, PartsError::End);
    check(&[root], &[(usize::MAX, usize::MAX)], false, false, PartsError::NodeCount);
    let highest = vec![(1, 0); 64];
    Subtree::from_parts(&[root; 64], &highest, false, false).unwrap();
    check(&[root; 65], &[highest, vec![(1, 0)]].concat(), false, false, PartsError::LevelCount);
}

#[test]
fn false_summary_never_joins_to_its_target_file_hash() {
    let mut rng = StdRng::seed_from_u64(13);
    let (all, other) = (chunks(&mut rng, 500, 0.25), chunks(&mut rng, 20, 0.25));
    let expected = file_hash(all.iter().map(|(hash, len)| (hash, *len)));
    let root: Vec<SubtreeNode> = summary(&all, true, true).unwrap().nodes().collect();
    // The root of the true tree on any level, instead of the summary of the start, and other chunks
    // after it.
    for top in 0..12 {
        let mut levels = vec![(0, 0); top];
        levels.push((1, 0));
        let before = Subtree::from_parts(&root, &levels, true, false).unwrap();
        let joined = before.join(&summary(&other, false, true).unwrap()).unwrap();
        assert_ne!(joined.file_hash(), Some(expected), "root on level {top}");
    }
    let before = summary(&all[..200], true, false).unwrap();
    for index in 0..before.nodes().count() {
        let mut nodes: Vec<SubtreeNode> = before.nodes().collect();
        nodes[index].raw_len += 1;
        let levels: Vec<_> = before.levels().collect();
        let before = Subtree::from_parts(&nodes, &levels, true, false).unwrap();
        let joined = before.join(&summary(&all[200..], false, true).unwrap()).unwrap();
        assert_ne!(joined.file_hash(), Some(expected), "node {index}");
    }
}
