//! The known chunks, which need not be sent, and the xorbs that contain them.

use std::collections::{HashMap, HashSet, VecDeque};

use xet_format::shard::{CasInfo, DedupShard};
use xet_format::{ChunkHash, HmacKey, XorbHash};

/// Responses of the server that are cached, at most. Each has its own key, so a lookup blinds the
/// chunk hash once per response.
const MAX_RESPONSE_COUNT: usize = 64;

/// Chunks in all cached responses, at most. Each takes some 60 bytes.
const MAX_CHUNK_COUNT: usize = 2 << 20;

/// Where a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Which xorb, by its number in [`Known`].
    pub(super) xorb: u32,
    /// The index of the chunk in the xorb.
    pub(super) index: u32,
}

/// Chunks of xorbs that the server has, or will have before the files are registered.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The xorbs, numbered; `None` for the one that is being filled.
    xorbs: Vec<Option<XorbHash>>,
    /// The chunks that are known by their unblinded hashes.
    chunks: HashMap<ChunkHash, Place>,
    /// The cached responses of the server, the latest first.
    responses: VecDeque<Response>,
    /// The number of chunks in `responses`.
    chunk_count: usize,
    /// The chunks that were queried.
    queried_chunks: HashSet<ChunkHash>,
}

/// One response of the server: chunks by their blinded hashes.
#[derive(Debug)]
struct Response {
    key: HmacKey,
    /// Which xorbs it lists.
    xorbs: HashSet<XorbHash>,
    chunks: HashMap<ChunkHash, Place>,
}

impl Known {
    /// Numbers a xorb whose hash is not known yet.
    pub(super) fn open_xorb(&mut self) -> u32 {
        self.number(None)
    }

    /// Sets the hash of the xorb with this number.
    pub(super) fn seal_xorb(&mut self, number: u32, hash: XorbHash) {
        if let Some(xorb) = self.xorbs.get_mut(number as usize) {
            *xorb = Some(hash);
        }
    }

    /// The hash of a xorb; `None` while it is being filled.
    pub(super) fn xorb(&self, number: u32) -> Option<XorbHash> {
        self.xorbs.get(number as usize).copied().flatten()
    }

    /// Adds a chunk.
    pub(super) fn insert(&mut self, hash: ChunkHash, place: Place) {
        self.chunks.insert(hash, place);
    }

    /// Adds all chunks of a xorb, unless they are known.
    pub(super) fn insert_xorb(&mut self, xorb: &CasInfo) {
        let number = self.number(Some(xorb.hash));
        for (chunk, index) in xorb.chunks.iter().zip(0..) {
            self.chunks.entry(chunk.hash).or_insert(Place { xorb: number, index });
        }
    }

    /// Adds a response of the server, unless a cached response lists all of its xorbs. That happens
    /// because several queries in flight may find the same xorb.
    pub(super) fn insert_response(&mut self, dedup_shard: &DedupShard) {
        let xorbs: HashSet<XorbHash> = dedup_shard.xorbs.iter().map(|xorb| xorb.hash).collect();
        if self.responses.iter().any(|response| xorbs.is_subset(&response.xorbs)) {
            return;
        }
        let mut chunks = HashMap::new();
        for xorb in &dedup_shard.xorbs {
            let number = self.number(Some(xorb.hash));
            for (chunk, index) in xorb.chunks.iter().zip(0..) {
                chunks.entry(chunk.hash).or_insert(Place { xorb: number, index });
            }
        }
        self.chunk_count += chunks.len();
        self.responses.push_front(Response { key: dedup_shard.key, xorbs, chunks });
        while self.responses.len() > MAX_RESPONSE_COUNT || self.chunk_count > MAX_CHUNK_COUNT {
            let Some(oldest) = self.responses.pop_back() else { break };
            self.chunk_count -= oldest.chunks.len();
        }
    }

    /// Where a chunk is; `None` if it is unknown and must be sent.
    pub(super) fn find(&mut self, hash: &ChunkHash) -> Option<Place> {
        if let Some(place) = self.chunks.get(hash) {
            return Some(*place);
        }
        let found = self.responses.iter().find_map(|response| response.chunks.get(&response.key.blind(hash)).copied());
        if let Some(place) = found {
            // The unblinded hash is stored, so the chunk stays known if the response is evicted.
            self.chunks.insert(*hash, place);
        }
        found
    }

    /// Whether to query a chunk: if it is unknown and was not queried before. It counts as queried
    /// from now on.
    pub(super) fn should_query(&mut self, hash: &ChunkHash) -> bool {
        self.find(hash).is_none() && self.queried_chunks.insert(*hash)
    }

    /// Adds a xorb and returns its number.
    fn number(&mut self, hash: Option<XorbHash>) -> u32 {
        self.xorbs.push(hash);
        u32::try_from(self.xorbs.len() - 1).expect("fewer than 2^32 xorbs fit into memory")
    }
}
