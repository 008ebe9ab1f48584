//! Shards as clients upload them, true or spoilt on purpose.

use sha2::Digest;
use zorb::format::shard::{CasChunk, CasInfo, FileInfo, Sha256, Shard, Term, write_upload};
use zorb::format::{ChunkHash, ChunkRange, FileHash, RangeHash, merkle};

use super::Xorb;

/// A shard with one file.
#[derive(Clone, Debug)]
pub struct UploadShard {
    pub shard: Shard,
}

/// What git and hubs know these bytes by.
pub fn sha256_of(contents: &[u8]) -> Sha256 {
    Sha256::from_digest(sha2::Sha256::digest(contents).into())
}

/// The shard of a file that consists of chunks [start, end) of a xorb; it lists the xorb, too.
pub fn upload_shard(xorb: &Xorb, start: u32, end: u32) -> UploadShard {
    shard_of(&[(xorb, start, end)])
}

/// The shard of a file that consists of runs of chunks; it lists their xorbs, too.
pub fn shard_of(runs: &[(&Xorb, u32, u32)]) -> UploadShard {
    let mut chunks: Vec<(ChunkHash, u64)> = Vec::new();
    let (mut terms, mut proofs, mut xorbs): (Vec<Term>, Vec<RangeHash>, Vec<CasInfo>) = Default::default();
    for (xorb, start, end) in runs {
        let inside = *start as usize..*end as usize;
        let hashes = &xorb.verified.chunk_hashes()[inside.clone()];
        let places: Vec<_> = xorb.verified.layout().chunks().collect();
        let lens = places[inside].iter().map(|place| place.raw.byte_len());
        chunks.extend(hashes.iter().copied().zip(lens.clone()));
        let raw_len = u32::try_from(lens.sum::<u64>()).unwrap();
        terms.push(Term { xorb: xorb.verified.hash(), raw_len, chunks: ChunkRange::new(*start, *end).unwrap() });
        proofs.push(RangeHash::of(hashes));
        if !xorbs.iter().any(|known| known.hash == xorb.verified.hash()) {
            xorbs.push(cas_info(xorb));
        }
    }
    let hash = merkle::file_hash(chunks.iter().map(|(hash, len)| (hash, *len)));
    let file = FileInfo { hash, terms, range_hashes: Some(proofs), sha256: None };
    UploadShard { shard: Shard { files: vec![file], xorbs } }
}

fn cas_info(xorb: &Xorb) -> CasInfo {
    let chunk = |(place, hash): (zorb::format::xorb::ChunkPlace, &ChunkHash)| CasChunk {
        hash: *hash,
        raw_offset: u32::try_from(place.raw.start()).unwrap(),
        raw_len: u32::try_from(place.raw.byte_len()).unwrap(),
        dedup_eligible: false,
    };
    let layout = xorb.verified.layout();
    CasInfo {
        hash: xorb.verified.hash(),
        chunks: layout.chunks().zip(xorb.verified.chunk_hashes()).map(chunk).collect(),
        raw_len: u32::try_from(layout.raw_len()).unwrap(),
    }
}

impl UploadShard {
    pub fn bytes(&self) -> Vec<u8> {
        write_upload(&self.shard).expect("the shard is well-formed")
    }

    pub fn file_hash(&self) -> String {
        self.shard.files[0].hash.to_string()
    }

    pub fn with_term_len(mut self, more: u32) -> Self {
        self.shard.files[0].terms[0].raw_len += more;
        self
    }

    pub fn with_wrong_proof(mut self) -> Self {
        self.shard.files[0].range_hashes.as_mut().unwrap()[0] = RangeHash::from_bytes([7; 32]);
        self
    }

    pub fn with_wrong_hash(mut self) -> Self {
        self.shard.files[0].hash = FileHash::from_bytes([7; 32]);
        self
    }

    pub fn claiming(mut self, sha256: Sha256) -> Self {
        self.shard.files[0].sha256 = Some(sha256);
        self
    }

    /// With a claim that is not true.
    pub fn with_sha256(self, byte: u8) -> Self {
        self.claiming(Sha256::from_digest([byte; 32]))
    }
}

/// A shard of so many files, each of some consecutive chunks of this xorb, and their hashes. A xorb of n chunks has as many
/// as n·(n+1)/2 of them.
pub fn many_files(xorb: &Xorb, count: usize) -> (Vec<u8>, Vec<FileHash>) {
    let hashes = xorb.verified.chunk_hashes();
    let lens: Vec<u64> = xorb.verified.layout().chunks().map(|place| place.raw.byte_len()).collect();
    let ranges = (1..=hashes.len()).flat_map(|len| (0..=hashes.len() - len).map(move |start| (start, start + len)));
    let file = |(start, end): (usize, usize)| {
        let range = ChunkRange::new(u32::try_from(start).unwrap(), u32::try_from(end).unwrap()).unwrap();
        let raw_len = u32::try_from(lens[start..end].iter().sum::<u64>()).unwrap();
        FileInfo {
            hash: merkle::file_hash(hashes[start..end].iter().zip(lens[start..end].iter().copied())),
            terms: vec![Term { xorb: xorb.verified.hash(), raw_len, chunks: range }],
            range_hashes: Some(vec![RangeHash::of(&hashes[start..end])]),
            sha256: None,
        }
    };
    let files: Vec<FileInfo> = ranges.take(count).map(file).collect();
    assert_eq!(files.len(), count, "the xorb has too few chunks");
    let hashes = files.iter().map(|file| file.hash).collect();
    (write_upload(&Shard { files, xorbs: Vec::new() }).unwrap(), hashes)
}
