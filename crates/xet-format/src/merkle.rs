//! Aggregation of chunk hashes into xorb and file hashes (spec 1.4, 1.5).
//!
//! [`Aggregator`] takes the chunks one by one and holds at most nine nodes per level, so hashing a
//! file of any size needs a few KiB. The specification builds one level after the other, and this
//! code builds all levels at the same time. The hash is the same, because the rule that ends a
//! group depends only on the nodes of this group so far.

pub mod subtree;

use super::hash::{ChunkHash, FileHash, XorbHash, last_word, push_words};

/// Key of an inner node (spec 1.2).
const NODE_KEY: [u8; 32] = [
    0x01, 0x7e, 0xc5, 0xc7, 0xa5, 0x47, 0x29, 0x96, 0xfd, 0x94, 0x66, 0x66, 0xb4, 0x8a, 0x02, 0xe6, 0x5d, 0xdd, 0x53,
    0x6f, 0x37, 0xc7, 0x6d, 0xd2, 0xf8, 0x63, 0x52, 0xe6, 0x4a, 0x53, 0x71, 0x3f,
];

/// Salt of the file hash: the protocol's default of 32 zero bytes (spec 1.2).
const FILE_SALT: [u8; 32] = [0; 32];

/// Children of one node, at most (spec 1.4).
const MAX_CHILD_COUNT: usize = 9;

/// Children of one node, at least, except for the last node of a level (spec 1.4).
const MIN_CHILD_COUNT: usize = 3;

/// Mean number of children: a hash whose last word is divisible by this number ends its group, if
/// the group has at least [`MIN_CHILD_COUNT`] nodes (spec 1.4).
const MEAN_CHILD_COUNT: u64 = 4;

/// Aggregates `(chunk hash, raw length)` pairs given in order.
#[derive(Clone, Debug, Default)]
pub struct Aggregator {
    levels: Vec<Level>,
}

/// The open group of one level of the tree.
#[derive(Clone, Debug, Default)]
struct Level {
    open: Vec<Node>,
    /// Whether a group of this level was closed already, so that the next level has a node.
    has_parent: bool,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    hash: [u8; 32],
    len: u64,
}

impl Aggregator {
    /// An aggregator that has seen no chunk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next chunk: its hash and its raw length in bytes.
    pub fn push(&mut self, chunk: &ChunkHash, raw_len: u64) {
        self.push_node(0, Node { hash: *chunk.as_bytes(), len: raw_len });
    }

    /// The hash of a xorb that consists of these chunks. All zero without chunks.
    #[must_use]
    pub fn xorb_hash(self) -> XorbHash {
        XorbHash::from_bytes(self.root().unwrap_or([0; 32]))
    }

    /// The hash of a file that consists of these chunks. [`FileHash::EMPTY`] without chunks.
    #[must_use]
    pub fn file_hash(self) -> FileHash {
        match self.root() {
            None => FileHash::EMPTY,
            Some(root) => FileHash::from_bytes(*blake3::keyed_hash(&FILE_SALT, &root).as_bytes()),
        }
    }

    /// Adds a node at level `from`. If it ends a group, adds the parent of the group to the next
    /// level, and so on.
    fn push_node(&mut self, from: usize, node: Node) {
        let mut node = node;
        for level in self.levels.iter_mut().skip(from) {
            match level.push(node) {
                None => return,
                Some(parent) => node = parent,
            }
        }
        self.levels.push(Level { open: vec![node], has_parent: false });
    }

    /// Closes the open group of each level from the bottom up. A level that consists of one node
    /// only is the root.
    fn root(mut self) -> Option<[u8; 32]> {
        let mut index = 0;
        loop {
            let level = self.levels.get_mut(index)?;
            if let ([root], false) = (level.open.as_slice(), level.has_parent) {
                return Some(root.hash);
            }
            let rest = level.close();
            index = index.saturating_add(1);
            if let Some(parent) = rest {
                self.push_node(index, parent);
            }
        }
    }
}

impl Level {
    /// Adds a node to the open group. If the node ends the group, returns the group's parent.
    fn push(&mut self, node: Node) -> Option<Node> {
        self.open.push(node);
        let cut = self.open.len() >= MIN_CHILD_COUNT && last_word(&node.hash).is_multiple_of(MEAN_CHILD_COUNT);
        if cut || self.open.len() == MAX_CHILD_COUNT { self.close() } else { None }
    }

    /// Ends the open group, whatever its size, and returns its parent; `None` if it is empty.
    fn close(&mut self) -> Option<Node> {
        if self.open.is_empty() {
            return None;
        }
        // At most 88 bytes per child: 64 digits of its hash, " : ", up to 20 digits, and "\n".
        let mut text = Vec::with_capacity(self.open.len().saturating_mul(88));
        let mut len: u64 = 0;
        for child in &self.open {
            push_words(&child.hash, &mut text);
            text.extend_from_slice(b" : ");
            text.extend_from_slice(child.len.to_string().as_bytes());
            text.push(b'\n');
            len = len.saturating_add(child.len);
        }
        self.open.clear();
        self.has_parent = true;
        Some(Node { hash: *blake3::keyed_hash(&NODE_KEY, &text).as_bytes(), len })
    }
}

/// The hash of a xorb with these chunks: `(hash, raw length in bytes)`, in order (spec 1.4).
#[must_use]
pub fn xorb_hash<'a>(chunks: impl IntoIterator<Item = (&'a ChunkHash, u64)>) -> XorbHash {
    collect(chunks).xorb_hash()
}

/// The hash of a file with these chunks: `(hash, raw length in bytes)`, in order (spec 1.5).
#[must_use]
pub fn file_hash<'a>(chunks: impl IntoIterator<Item = (&'a ChunkHash, u64)>) -> FileHash {
    collect(chunks).file_hash()
}

fn collect<'a>(chunks: impl IntoIterator<Item = (&'a ChunkHash, u64)>) -> Aggregator {
    let mut aggregator = Aggregator::new();
    for (hash, raw_len) in chunks {
        aggregator.push(hash, raw_len);
    }
    aggregator
}
