//! Assigns needed chunks to new xorbs. From the same xorbs and files it always makes the same new
//! xorbs, so that the next run finds those of an interrupted run.

use std::collections::{BTreeMap, HashMap};

use super::super::GcAbort;
use super::{Rewrite, Source};
use crate::format::limits::{MAX_XORB_CHUNK_COUNT, MAX_XORB_RAW_LEN, MAX_XORB_SERIALIZED_LEN};
use crate::format::merkle::Aggregator;
use crate::format::xorb::Layout;
use crate::format::{ChunkRange, XorbHash};
use crate::index::XorbContents;
use crate::service::Store;
use crate::service::error::StoreError;

/// Sources whose chunk hashes are in memory at once: 330 KiB each at most.
const BATCH_COUNT: usize = 64;

/// A xorb that is to be rewritten.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) source: Source,
    /// Raw bytes of the needed chunks.
    raw_len: u64,
}

impl Found {
    /// The needed chunks of a xorb; `None` where the xorb does not have them.
    pub(super) fn new(xorb: XorbHash, layout: &Layout, runs: Vec<ChunkRange>) -> Option<Self> {
        let (mut live_len, mut raw_len) = (0_u64, 0_u64);
        for run in &runs {
            live_len = live_len.saturating_add(layout.serialized_range(*run)?.byte_len());
            raw_len = raw_len.saturating_add(layout.raw_range(*run)?.byte_len());
        }
        Some(Self { source: Source { xorb, serialized_len: layout.serialized_len(), live_len, runs }, raw_len })
    }

    fn chunk_count(&self) -> u32 {
        self.source.runs.iter().map(|run| run.count()).sum()
    }
}

/// The sources of one new xorb, and their sums.
#[derive(Debug, Default)]
struct Load {
    found: Vec<Found>,
    serialized_len: u64,
    raw_len: u64,
    chunk_count: u32,
}

impl Load {
    /// Whether the needed chunks of another source fit, too. An empty load takes any source,
    /// because its chunks were in one xorb before.
    fn takes(&self, found: &Found) -> bool {
        self.found.is_empty()
            || (self.serialized_len.saturating_add(found.source.live_len) <= MAX_XORB_SERIALIZED_LEN
                && self.raw_len.saturating_add(found.raw_len) <= MAX_XORB_RAW_LEN
                && self.chunk_count.saturating_add(found.chunk_count()) <= MAX_XORB_CHUNK_COUNT)
    }

    fn push(&mut self, found: Found) {
        self.serialized_len = self.serialized_len.saturating_add(found.source.live_len);
        self.raw_len = self.raw_len.saturating_add(found.raw_len);
        self.chunk_count = self.chunk_count.saturating_add(found.chunk_count());
        self.found.push(found);
    }
}

/// Distributes the found xorbs to new xorbs, in the given order. The needed chunks of an old xorb
/// stay together, so that the old xorb is replaced as a whole or not at all.
fn loads(found: Vec<Found>) -> Vec<Load> {
    let mut loads: Vec<Load> = Vec::new();
    for found in found {
        match loads.last_mut() {
            Some(last) if last.takes(&found) => last.push(found),
            _ => {
                let mut load = Load::default();
                load.push(found);
                loads.push(load);
            }
        }
    }
    loads
}

impl Store {
    /// Packs needed chunks into new xorbs, in the order of the hashes' bytes. Xorbs with different
    /// owners are not mixed.
    pub(super) async fn pack(&self, found: Vec<Found>) -> Result<Vec<Rewrite>, GcAbort> {
        let mut owners: HashMap<XorbHash, Vec<String>> = HashMap::new();
        let hashes = found.iter().map(|found| found.source.xorb).collect();
        for (xorb, owner) in self.index.owners_of(hashes).await.map_err(StoreError::from)? {
            owners.entry(xorb).or_default().push(owner);
        }
        let mut groups: BTreeMap<Vec<String>, Vec<Found>> = BTreeMap::new();
        for found in found {
            let owners = owners.remove(&found.source.xorb).unwrap_or_default();
            groups.entry(owners).or_default().push(found);
        }
        let mut rewrites = Vec::new();
        for (owners, found) in groups {
            for load in loads(found) {
                let Load { found, serialized_len, chunk_count, .. } = load;
                let sources: Vec<Source> = found.into_iter().map(|found| found.source).collect();
                let hash = self.hash_of(&sources).await?;
                rewrites.push(Rewrite { hash, serialized_len, chunk_count, sources, owners: owners.clone() });
            }
        }
        Ok(rewrites)
    }

    /// The hash of a xorb that has the needed chunks of these sources, in this order.
    async fn hash_of(&self, sources: &[Source]) -> Result<XorbHash, GcAbort> {
        let mut aggregator = Aggregator::new();
        for batch in sources.chunks(BATCH_COUNT) {
            let hashes = batch.iter().map(|source| source.xorb).collect();
            let contents = self.index.xorb_contents(hashes).await.map_err(StoreError::from)?;
            let contents: HashMap<XorbHash, XorbContents> =
                contents.into_iter().map(|contents| (contents.hash, contents)).collect();
            let batch = batch.to_vec();
            let push = move || {
                for Source { xorb, runs, .. } in &batch {
                    let pushed = contents.get(xorb).and_then(|contents| push(&mut aggregator, contents, runs));
                    pushed.ok_or(GcAbort::Chunks { xorb: *xorb })?;
                }
                Ok::<_, GcAbort>(aggregator)
            };
            aggregator = self.pool.run(push).await?;
        }
        Ok(aggregator.xorb_hash())
    }
}

/// Adds these chunks of a xorb to the aggregator; `None` if the xorb does not have them.
fn push(aggregator: &mut Aggregator, contents: &XorbContents, runs: &[ChunkRange]) -> Option<()> {
    for run in runs {
        let places = contents.layout.chunks_in(*run)?;
        let hashes = contents.chunk_hashes.get(run.start() as usize..run.end() as usize)?;
        places.zip(hashes).for_each(|(place, hash)| aggregator.push(hash, place.raw.byte_len()));
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(byte: u8, serialized_len: u64, raw_len: u64, chunk_count: u32) -> Found {
        let runs = vec![ChunkRange::new(3, 3 + chunk_count).unwrap()];
        let xorb = XorbHash::from_bytes([byte; 32]);
        Found { source: Source { xorb, serialized_len: 2 * serialized_len, live_len: serialized_len, runs }, raw_len }
    }

    fn counts(found: Vec<Found>) -> Vec<usize> {
        loads(found).iter().map(|load| load.found.len()).collect()
    }

    #[test]
    fn a_new_xorb_is_full_at_each_limit_and_not_before() {
        let half = (MAX_XORB_SERIALIZED_LEN / 2, MAX_XORB_RAW_LEN / 2, MAX_XORB_CHUNK_COUNT / 2);
        for (more, expected) in
            [((0, 0, 0), &[2][..]), ((1, 0, 0), &[1, 1]), ((0, 1, 0), &[1, 1]), ((0, 0, 1), &[1, 1])]
        {
            let second = found(2, half.0 + more.0, half.1 + more.1, half.2 + more.2);
            assert_eq!(counts(vec![found(1, half.0, half.1, half.2), second]), expected, "{more:?}");
        }
        let small = |byte| found(byte, 1, 1, 1);
        assert_eq!(counts((0..100).map(small).collect()), [100]);
        // A single source is accepted even if its serialization is longer than the limit.
        let longest = found(1, MAX_XORB_SERIALIZED_LEN + 9, MAX_XORB_RAW_LEN, 7);
        assert_eq!(counts(vec![small(0), longest, small(2), small(3)]), [1, 1, 2]);
        assert_eq!(counts(Vec::new()), [0; 0]);
    }
}
