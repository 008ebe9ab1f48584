//! Partial aggregates: what is known of a file's merkle tree from a run of its chunks (spec 1.9).
//!
//! A client that edits a file in the middle needs the new file hash without the hashes of all
//! chunks. It gets a summary of each run that does not change, and joins these with summaries of
//! the chunks that it has hashed itself. A summary is a few hundred nodes, unless the hashes of a
//! long part of the run have no cuts: one chunk that is repeated a million times is a million
//! nodes.
//!
//! A node gets a parent only if the bounds of its group do not depend on chunks outside the run. A
//! *natural cut* is a node whose hash (its last word) is divisible by 4, so that it can end a
//! group. Take three consecutive natural cuts, each 3 to 7 nodes after the one before it. Then a
//! group ends at the second of them, whatever nodes come before the first. The end of this group is
//! a *stable point*. The nodes before the first stable point of a level and after the last one get
//! no parents: they are the left and the right rest of the level. The parents of the nodes in
//! between are the level above:
//!
//! ```text
//! level 2:            [ left ]
//! level 1:      [left]        [right]
//! level 0: [left]                    [right]
//! ```
//!
//! The summary of a run does not depend on the parts that it was joined from. In the reference
//! implementation it does, and a summary joined from runs that all begin after the start of the
//! file may even be wrong there. Stock clients are not affected, because they join from the start
//! of the file.

mod parts;
#[cfg(test)]
mod tests;

use std::fmt;

use thiserror::Error;

pub use self::parts::PartsError;
use super::{FILE_SALT, Level, MEAN_CHILD_COUNT, Node, last_word, push_words};
use crate::{ChunkHash, FileHash};

/// Chunks that a [`SubtreeBuilder`] holds before it adds them to its summary.
const PENDING_COUNT: usize = 1024;

/// The hash of a node on any level: of a chunk, or of an inner node.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeHash([u8; 32]);

/// A node of a summary: it has no parent yet, or it is the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubtreeNode {
    /// Its hash.
    pub hash: NodeHash,
    /// Raw bytes of all chunks below it.
    pub raw_len: u64,
}

/// The summary of one or more consecutive chunks.
#[derive(Clone, Debug)]
pub struct Subtree {
    /// One per level, from the chunks upwards; that of the last level is not empty.
    rests: Vec<Rest>,
    at_start: bool,
    at_end: bool,
}

/// Why two summaries cannot be joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum JoinError {
    /// Nothing comes after the end of the file.
    #[error("the left run ends the file")]
    AfterEnd,
    /// Nothing comes before the start of the file.
    #[error("the right run starts the file")]
    BeforeStart,
}

/// The nodes of one level that have no parent.
///
/// If there is a level above, its nodes are the parents of the nodes between the two sides. Then
/// `left` ends at a stable point, or is empty because the run starts the file. In the same way
/// `right` begins at a stable point, or is empty because the run ends the file.
#[derive(Clone, Debug, Default)]
struct Rest {
    left: Vec<Node>,
    right: Vec<Node>,
}

/// Makes a [`Subtree`] from chunks that are given one by one.
#[derive(Clone, Debug)]
pub struct SubtreeBuilder {
    at_start: bool,
    done: Option<Subtree>,
    /// Nodes of `done`.
    done_count: usize,
    pending: Vec<Node>,
}

impl Subtree {
    /// The summary of these chunks, `(hash, raw length in bytes)`; `None` without chunks.
    ///
    /// `at_start`: the first one is the first of the file. `at_end`: the last one is the last of
    /// the file.
    #[must_use]
    pub fn of<'a>(
        chunks: impl IntoIterator<Item = (&'a ChunkHash, u64)>,
        at_start: bool,
        at_end: bool,
    ) -> Option<Self> {
        let chunks = chunks.into_iter().map(|(hash, len)| Node { hash: *hash.as_bytes(), len });
        Self::of_nodes(chunks.collect(), at_start, at_end)
    }

    fn of_nodes(chunks: Vec<Node>, at_start: bool, at_end: bool) -> Option<Self> {
        if chunks.is_empty() {
            return None;
        }
        let mut subtree = Self { rests: Vec::new(), at_start, at_end };
        subtree.raise(chunks);
        Some(subtree)
    }

    /// The summary of this run and the one that follows it.
    ///
    /// # Errors
    ///
    /// This run ends the file, or the other one starts it.
    pub fn join(&self, next: &Self) -> Result<Self, JoinError> {
        if self.at_end {
            return Err(JoinError::AfterEnd);
        }
        if next.at_start {
            return Err(JoinError::BeforeStart);
        }
        let mut joined = Self { rests: Vec::new(), at_start: self.at_start, at_end: next.at_end };
        let mut carry = Vec::new();
        for level in 0..self.rests.len().max(next.rests.len()) {
            carry = joined.join_level(self.side(level), next.side(level), &carry);
        }
        joined.raise(carry);
        Ok(joined)
    }

    /// Adds a level for these nodes, one for their parents, and so on, until no node gets a parent.
    fn raise(&mut self, nodes: Vec<Node>) {
        let mut nodes = nodes;
        while !nodes.is_empty() {
            nodes = self.push_level(stable_part(&nodes, self.at_start, self.at_end));
        }
    }

    /// Adds a level with these nodes on the left and on the right; returns the parents of those in
    /// the middle.
    fn push_level(&mut self, (left, middle, right): (&[Node], &[Node], &[Node])) -> Vec<Node> {
        self.rests.push(Rest { left: left.to_vec(), right: right.to_vec() });
        parents(middle)
    }

    /// Adds one level of the joined run from the runs `a` and `b`. Between their nodes on this
    /// level are the nodes of `carry`: the parents that joining the level below gave. Returns the
    /// same for the level above.
    fn join_level(&mut self, a: Side<'_>, b: Side<'_>, carry: &[Node]) -> Vec<Node> {
        let (at_start, at_end) = (self.at_start, self.at_end);
        match (a.has_above, b.has_above) {
            (false, false) => {
                // No node of this level has a parent yet.
                let all = [a.left, carry, b.left].concat();
                self.push_level(stable_part(&all, at_start, at_end))
            }
            // `a.right` begins and `b.left` ends at a stable point, so all nodes between get
            // parents.
            (true, true) => self.push_level((a.left, &[a.right, carry, b.left].concat(), b.right)),
            (true, false) => {
                // `a.right` begins at a stable point, so the middle begins there, too.
                let rest = [a.right, carry, b.left].concat();
                let end = if at_end { Some(rest.len()) } else { last_stable_point(&rest, true) };
                let (middle, right) = end.and_then(|end| rest.split_at_checked(end)).unwrap_or((&[], &rest));
                self.push_level((a.left, middle, right))
            }
            (false, true) => {
                // `b.left` ends at a stable point, so the middle ends there, too.
                let rest = [a.left, carry, b.left].concat();
                let start = if at_start { Some(0) } else { first_stable_point(&rest) };
                let (left, middle) = start.and_then(|start| rest.split_at_checked(start)).unwrap_or((&rest, &[]));
                self.push_level((left, middle, b.right))
            }
        }
    }

    /// The nodes of a level as joining needs them; a level that the summary lacks has none.
    fn side(&self, level: usize) -> Side<'_> {
        let above = self.rests.len().saturating_sub(1);
        let (left, right) = self.rests.get(level).map_or((&[][..], &[][..]), |rest| (&rest.left, &rest.right));
        Side { left, right, has_above: level < above }
    }

    /// Whether the run starts the file.
    #[must_use]
    pub const fn at_start(&self) -> bool {
        self.at_start
    }

    /// Whether the run ends the file.
    #[must_use]
    pub const fn at_end(&self) -> bool {
        self.at_end
    }

    /// How many nodes each level has on the left and on the right, from the chunks upwards.
    pub fn levels(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.rests.iter().map(|rest| (rest.left.len(), rest.right.len()))
    }

    /// All nodes: those on the left from the chunks upwards, then those on the right from the top
    /// downwards.
    pub fn nodes(&self) -> impl Iterator<Item = SubtreeNode> + '_ {
        let left = self.rests.iter().flat_map(|rest| &rest.left);
        let right = self.rests.iter().rev().flat_map(|rest| &rest.right);
        left.chain(right).map(|node| SubtreeNode { hash: NodeHash(node.hash), raw_len: node.len })
    }

    /// Raw bytes of the run.
    #[must_use]
    pub fn raw_len(&self) -> u64 {
        self.nodes().map(|node| node.raw_len).fold(0, u64::saturating_add)
    }

    /// The hash of the file, if this run is all of it.
    #[must_use]
    pub fn file_hash(&self) -> Option<FileHash> {
        let mut nodes = self.nodes();
        let root = if self.at_start && self.at_end { nodes.next()? } else { return None };
        if nodes.next().is_some() {
            // This happens only if a received summary is false.
            return None;
        }
        Some(FileHash::from_bytes(*blake3::keyed_hash(&FILE_SALT, &root.hash.0).as_bytes()))
    }
}

impl SubtreeBuilder {
    /// A builder that has seen no chunk. `at_start`: the first chunk pushed is the first of the
    /// file.
    #[must_use]
    pub const fn new(at_start: bool) -> Self {
        Self { at_start, done: None, done_count: 0, pending: Vec::new() }
    }

    /// Takes the next chunk: its hash and its raw length in bytes.
    pub fn push(&mut self, chunk: &ChunkHash, raw_len: u64) {
        self.pending.push(Node { hash: *chunk.as_bytes(), len: raw_len });
        // A join copies the nodes of the summary. With as many new chunks as nodes, each chunk is
        // copied a few times, however long the summary becomes.
        if self.pending.len() >= PENDING_COUNT.max(self.done_count) {
            self.flush(false);
        }
    }

    /// The nodes that the summary has at most, if it ends here.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.done_count.saturating_add(self.pending.len())
    }

    /// The summary of the chunks pushed; `None` without chunks. `at_end`: the last one is the last
    /// of the file.
    #[must_use]
    pub fn finish(mut self, at_end: bool) -> Option<Subtree> {
        if at_end && self.pending.is_empty() {
            // The last chunk was flushed before the end was known. Joining with an empty run that
            // ends the file makes the summary one that ends the file.
            let done = self.done?;
            let end = Subtree { rests: Vec::new(), at_start: false, at_end };
            return done.join(&end).ok();
        }
        self.flush(at_end);
        self.done
    }

    fn flush(&mut self, at_end: bool) {
        let pending = std::mem::take(&mut self.pending);
        let at_start = self.at_start && self.done.is_none();
        let Some(next) = Subtree::of_nodes(pending, at_start, at_end) else { return };
        self.done = match self.done.take() {
            None => Some(next),
            // No error is possible: `done` does not end the file, and `next` does not start it.
            Some(done) => done.join(&next).ok(),
        };
        let levels = self.done.iter().flat_map(Subtree::levels);
        self.done_count = levels.map(|(left, right)| left.saturating_add(right)).fold(0, usize::saturating_add);
    }
}

/// One level of one of the two runs that are joined.
#[derive(Clone, Copy, Debug)]
struct Side<'a> {
    left: &'a [Node],
    right: &'a [Node],
    /// Whether the run has a level above, whose nodes are between the two sides. If it has none,
    /// all nodes are on the left.
    has_above: bool,
}

/// Splits the nodes of a level into those before the first stable point, those that get parents,
/// and those after the last stable point. The start and the end of the file count as stable points.
fn stable_part(nodes: &[Node], at_start: bool, at_end: bool) -> (&[Node], &[Node], &[Node]) {
    let nothing = (nodes, &[][..], &[][..]);
    if nodes.len() <= 1 {
        return nothing;
    }
    let start = if at_start { Some(0) } else { first_stable_point(nodes) };
    let Some((left, rest)) = start.and_then(|start| nodes.split_at_checked(start)) else { return nothing };
    let end = if at_end { Some(rest.len()) } else { last_stable_point(rest, false) };
    let Some((middle, right)) = end.and_then(|end| rest.split_at_checked(end)) else { return nothing };
    (left, middle, right)
}

/// The number of nodes before the first stable point.
fn first_stable_point(nodes: &[Node]) -> Option<usize> {
    let mut cuts = Cuts::default();
    cut_positions(nodes).find_map(|position| cuts.push(position))
}

/// The number of nodes before the last stable point. `after_stable`: there is a stable point right
/// before the first node.
fn last_stable_point(nodes: &[Node], after_stable: bool) -> Option<usize> {
    let mut cuts = Cuts { last: after_stable.then_some((0, true)) };
    cut_positions(nodes).filter_map(|position| cuts.push(position)).last()
}

/// The natural cuts, each as the number of nodes up to and including it.
fn cut_positions(nodes: &[Node]) -> impl Iterator<Item = usize> + '_ {
    let is_cut = |node: &Node| last_word(&node.hash).is_multiple_of(MEAN_CHILD_COUNT);
    nodes.iter().zip(1..).filter_map(move |(node, position)| is_cut(node).then_some(position))
}

/// The natural cuts of a level, from left to right.
#[derive(Debug, Default)]
struct Cuts {
    /// The position of the last cut, and whether its distance to the cut before it is 3 to 7.
    last: Option<(usize, bool)>,
}

impl Cuts {
    /// Takes the next cut. Returns the cut before it if that is now known to be a stable point.
    ///
    /// Take three cuts at such distances. Whatever the place of the first cut in its group is, the
    /// second is the third to ninth node of its own group, so it ends this group. The third cut is
    /// not needed for this, but the reference requires it.
    fn push(&mut self, position: usize) -> Option<usize> {
        let before = self.last;
        let fits = before.is_some_and(|(last, _)| (3..8).contains(&position.saturating_sub(last)));
        self.last = Some((position, fits));
        before.and_then(|(last, fitted)| (fits && fitted).then_some(last))
    }
}

/// The parents of these nodes, grouped by the rule of spec 1.4.
fn parents(nodes: &[Node]) -> Vec<Node> {
    let mut level = Level::default();
    let mut parents: Vec<Node> = nodes.iter().filter_map(|node| level.push(*node)).collect();
    parents.extend(level.close());
    parents
}

impl fmt::Display for NodeHash {
    /// As every hash: 64 hex digits, each group of eight bytes reversed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = Vec::with_capacity(64);
        push_words(&self.0, &mut digits);
        f.write_str(&String::from_utf8_lossy(&digits))
    }
}

impl fmt::Debug for NodeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeHash({self})")
    }
}
