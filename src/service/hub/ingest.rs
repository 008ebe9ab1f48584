//! Bytes that a client sends in a commit become Xet files: they are cut, packed into xorbs, stored
//! and registered by the same verbs as those of Xet clients.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::iter;

use super::HubError;
use crate::format::chunker::Chunker;
use crate::format::compression::Policy;
use crate::format::limits::MAX_XORB_SERIALIZED_LEN;
use crate::format::merkle::Aggregator;
use crate::format::shard::{FileInfo, Shard, Term, write_upload};
use crate::format::xorb::{BuiltXorb, XorbBuilder};
use crate::format::{ChunkHash, ChunkRange, FileHash, RangeHash, XorbHash};
use crate::git::ObjectId;
use crate::index::HubBlob;
use crate::service::access::Claims;
use crate::service::{BodyError, Server, Upload};

/// Files that were packed.
struct Packed {
    blobs: Vec<HubBlob>,
    files: Vec<FileInfo>,
    xorbs: Vec<BuiltXorb>,
}

/// Packs files one after another; equal chunks are packed once.
struct Packing {
    builder: XorbBuilder,
    full: Vec<BuiltXorb>,
    places: HashMap<ChunkHash, Place>,
}

/// Where a chunk is: the number of its xorb, and its index there.
#[derive(Clone, Copy)]
struct Place {
    xorb: usize,
    index: u32,
}

/// A term whose xorb has no hash yet.
struct OpenTerm {
    xorb: usize,
    start: u32,
    raw_len: u64,
    hashes: Vec<ChunkHash>,
}

impl Server {
    /// Stores these contents as regular files. After `Ok` they are durable, and the repository of
    /// the claims may read them.
    pub(super) async fn ingest(
        self: &Arc<Self>,
        claims: &Claims,
        contents: Vec<Vec<u8>>,
    ) -> Result<Vec<HubBlob>, HubError> {
        if contents.is_empty() {
            return Ok(Vec::new());
        }
        let tenant = claims.tenant();
        let Packed { blobs, files, xorbs } = self.store.pool.run_for(tenant, move || pack(&contents)).await?;
        for xorb in xorbs {
            let (bytes, verified) = xorb.into_parts();
            let declared_len = Some(bytes.len() as u64);
            let body = iter([Ok::<_, BodyError>(Bytes::from(bytes))]);
            let claimed = verified.hash();
            self.upload(Upload { claims, claimed, max_len: MAX_XORB_SERIALIZED_LEN, declared_len, body }).await?;
        }
        if !files.is_empty() {
            let shard = Shard { files, xorbs: Vec::new() };
            let shard = write_upload(&shard).map_err(|error| HubError::Invalid(format!("Too many files: {error}.")))?;
            self.register(claims, Bytes::from(shard)).await?;
        }
        Ok(blobs)
    }
}

/// Packs these contents. Blocks.
fn pack(contents: &[Vec<u8>]) -> Result<Packed, HubError> {
    let mut packing = Packing { builder: XorbBuilder::new(Policy::Predict), full: Vec::new(), places: HashMap::new() };
    let (mut blobs, mut open) = (Vec::with_capacity(contents.len()), Vec::new());
    let mut seen = HashSet::new();
    for bytes in contents {
        let (hash, terms) = packing.add_file(bytes)?;
        let id = ObjectId::of_blob(bytes)?;
        blobs.push(HubBlob { id, len: bytes.len() as u64, sha256: None, file: hash });
        // A shard has each file once, and the empty file needs no registration.
        if !terms.is_empty() && seen.insert(hash) {
            open.push((hash, terms));
        }
    }
    let Packing { builder, mut full, .. } = packing;
    full.extend(builder.finish());
    let hashes: Vec<XorbHash> = full.iter().map(|xorb| xorb.xorb().hash()).collect();
    let files = open.into_iter().map(|(hash, terms)| {
        let range_hashes = Some(terms.iter().map(|term| RangeHash::of(&term.hashes)).collect());
        let terms: Option<Vec<Term>> = terms.iter().map(|term| term.named(&hashes)).collect();
        Some(FileInfo { hash, terms: terms?, range_hashes, sha256: None })
    });
    let files: Option<Vec<FileInfo>> = files.collect();
    let files = files.ok_or_else(|| HubError::Invalid("A file has too many chunks.".to_owned()))?;
    Ok(Packed { blobs, files, xorbs: full })
}

impl Packing {
    /// Adds the chunks of a file.
    fn add_file(&mut self, bytes: &[u8]) -> Result<(FileHash, Vec<OpenTerm>), HubError> {
        let (mut chunker, mut aggregator) = (Chunker::new(), Aggregator::default());
        let mut terms: Vec<OpenTerm> = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let end = chunker.next_boundary(rest).unwrap_or(rest.len());
            let (chunk, after) = rest.split_at(end);
            rest = after;
            let (place, hash) = self.add_chunk(chunk)?;
            let raw_len = chunk.len() as u64;
            aggregator.push(&hash, raw_len);
            match terms.last_mut() {
                Some(last) if last.xorb == place.xorb && last.end() == place.index => {
                    last.raw_len += raw_len;
                    last.hashes.push(hash);
                }
                _ => terms.push(OpenTerm { xorb: place.xorb, start: place.index, raw_len, hashes: vec![hash] }),
            }
        }
        Ok((aggregator.file_hash(), terms))
    }

    fn add_chunk(&mut self, raw: &[u8]) -> Result<(Place, ChunkHash), HubError> {
        let hash = ChunkHash::of(raw);
        if let Some(place) = self.places.get(&hash) {
            return Ok((*place, hash));
        }
        if self.builder.push(raw).is_err() {
            // The xorb is full: a new one has space for any chunk.
            let full = std::mem::replace(&mut self.builder, XorbBuilder::new(Policy::Predict));
            self.full.extend(full.finish());
            self.builder.push(raw).map_err(|error| HubError::Invalid(format!("A chunk cannot be packed: {error}.")))?;
        }
        let place = Place { xorb: self.full.len(), index: self.builder.chunk_count().saturating_sub(1) };
        self.places.insert(hash, place);
        Ok((place, hash))
    }
}

impl OpenTerm {
    /// The index after its last chunk.
    fn end(&self) -> u32 {
        self.start.saturating_add(u32::try_from(self.hashes.len()).unwrap_or(u32::MAX))
    }

    fn named(&self, xorbs: &[XorbHash]) -> Option<Term> {
        let raw_len = u32::try_from(self.raw_len).ok()?;
        Some(Term { xorb: *xorbs.get(self.xorb)?, raw_len, chunks: ChunkRange::new(self.start, self.end())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_share_a_xorb_and_equal_ones_are_packed_once() {
        let long: Vec<u8> = (0..400_000_u32).flat_map(|n| (n.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
        let contents = vec![b"one".to_vec(), Vec::new(), long.clone(), b"one".to_vec()];
        let packed = pack(&contents).unwrap();
        assert_eq!(packed.xorbs.len(), 1);
        assert_eq!(packed.files.len(), 2, "the empty file and the repeated one are left out");
        assert_eq!(packed.blobs[0], packed.blobs[3]);
        assert_eq!((packed.blobs[1].file, packed.blobs[1].len), (FileHash::EMPTY, 0));
        assert_eq!(packed.files[1].raw_len(), long.len() as u64);
        assert_eq!(packed.xorbs[0].xorb().layout().raw_len(), (long.len() + 3) as u64);
    }

    #[test]
    fn more_chunks_than_a_xorb_can_have_go_into_two_xorbs() {
        let contents: Vec<Vec<u8>> = (0..9000_u32).map(|n| n.to_le_bytes().to_vec()).collect();
        let packed = pack(&contents).unwrap();
        let counts: Vec<u32> = packed.xorbs.iter().map(|xorb| xorb.xorb().layout().chunk_count()).collect();
        assert_eq!(counts, [8192, 808]);
        assert_eq!(packed.files.len(), 9000);
        let shard = Shard { files: packed.files, xorbs: Vec::new() };
        assert!(write_upload(&shard).is_ok());
    }
}
