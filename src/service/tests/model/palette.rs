//! The palette of uploads and registrations: a few small xorbs that share chunks, and files with
//! more than one choice of terms. It is the same for every seed, so it is built only once.

use std::collections::{BTreeSet, HashSet};
use std::sync::LazyLock;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::format::compression::Policy;
use crate::format::shard::{CasChunk, CasInfo, FileInfo, Shard, Term, write_upload};
use crate::format::xorb::{BuiltXorb, XorbBuilder};
use crate::format::{ChunkHash, ChunkRange, FileHash, RangeHash, XorbHash, merkle};

const CHUNK_COUNT: usize = 14;
const XORB_COUNT: usize = 16;
const FILE_COUNT: usize = 24;

/// Maximum number of ways to make a file.
const RECIPE_COUNT: usize = 4;

pub(super) static PALETTE: LazyLock<Palette> = LazyLock::new(Palette::build);

pub(super) struct Palette {
    pub(super) xorbs: Vec<Xorb>,
    pub(super) files: Vec<File>,
    /// Chunks that dedup may find, once registered.
    pub(super) chunks: Vec<ChunkHash>,
}

pub(super) struct Xorb {
    pub(super) hash: XorbHash,
    /// Its two serializations: not compressed, and compressed.
    pub(super) forms: [BuiltXorb; 2],
    /// Its chunks, as indexes into the pool of all chunks.
    chunks: Vec<usize>,
}

pub(super) struct File {
    pub(super) hash: FileHash,
    pub(super) bytes: Vec<u8>,
    pub(super) recipes: Vec<Recipe>,
}

/// One way to make a file.
pub(super) struct Recipe {
    pub(super) terms: Vec<Term>,
    /// Its xorbs, each once.
    pub(super) xorbs: Vec<usize>,
    /// The verification hash of each term.
    proofs: Vec<RangeHash>,
}

/// A xorb, and the start and end of some of its chunks.
type Piece = (usize, usize, usize);

impl Palette {
    fn build() -> Self {
        let mut rng = StdRng::seed_from_u64(5);
        let pool = chunks(&mut rng);
        let mut xorbs: Vec<Xorb> = Vec::new();
        let mut hashes = HashSet::new();
        while xorbs.len() < XORB_COUNT {
            let count = rng.random_range(2..6);
            let xorb = Xorb::build((0..count).map(|_| rng.random_range(0..CHUNK_COUNT)).collect(), &pool);
            if hashes.insert(xorb.hash) {
                xorbs.push(xorb);
            }
        }
        let mut files: Vec<File> = Vec::new();
        while files.len() < FILE_COUNT {
            let pieces: Vec<Piece> = (0..rng.random_range(1..4)).map(|_| random_piece(&mut rng, &xorbs)).collect();
            let file = File::build(&pieces, &xorbs, &pool);
            if files.iter().all(|other| other.hash != file.hash) {
                files.push(file);
            }
        }
        let mut chunks: Vec<ChunkHash> = pool.iter().map(|chunk| ChunkHash::of(chunk)).collect();
        let first = files.iter().map(|file| file.recipes[0].first_chunk(&xorbs));
        let asked: HashSet<ChunkHash> =
            first.chain(chunks.iter().copied().filter(ChunkHash::is_dedup_eligible)).collect();
        chunks.retain(|chunk| asked.contains(chunk));
        Self { xorbs, files, chunks }
    }

    /// The index of this xorb in the palette.
    pub(super) fn xorb(&self, hash: &XorbHash) -> Option<usize> {
        self.xorbs.iter().position(|xorb| xorb.hash == *hash)
    }

    /// A shard with one file, made by this recipe, that also lists these xorbs.
    pub(super) fn shard(&self, file: usize, recipe: usize, listed: &[usize]) -> Vec<u8> {
        // List each xorb once, as shards do.
        let listed: BTreeSet<usize> = listed.iter().copied().collect();
        let (file, listed) = (&self.files[file], listed.iter().map(|xorb| self.xorbs[*xorb].listing()).collect());
        let Recipe { terms, proofs, .. } = &file.recipes[recipe];
        let info = FileInfo { hash: file.hash, terms: terms.clone(), range_hashes: Some(proofs.clone()), sha256: None };
        write_upload(&Shard { files: vec![info], xorbs: listed }).unwrap()
    }

    /// The files that can be made with this xorb, each with the recipe that names it.
    pub(super) fn made_of(&self, xorb: usize) -> Vec<(usize, usize)> {
        let recipes = |(file, made): (usize, &File)| -> Vec<(usize, usize)> {
            let named = made.recipes.iter().enumerate().filter(|(_, recipe)| recipe.xorbs.contains(&xorb));
            named.map(|(recipe, _)| (file, recipe)).collect()
        };
        self.files.iter().enumerate().flat_map(recipes).collect()
    }
}

/// The pool of chunks. All of them compress. The last two are eligible for dedup anywhere in a
/// file.
fn chunks(rng: &mut StdRng) -> Vec<Vec<u8>> {
    let mut pool: Vec<Vec<u8>> = Vec::new();
    for number in 0_u32.. {
        let chunk = format!("chunk {number}, ").repeat(rng.random_range(4..30)).into_bytes();
        let wants_eligible = pool.len() >= CHUNK_COUNT - 2;
        if !wants_eligible || ChunkHash::of(&chunk).is_dedup_eligible() {
            pool.push(chunk);
        }
        if pool.len() == CHUNK_COUNT {
            break;
        }
    }
    pool
}

fn random_piece(rng: &mut StdRng, xorbs: &[Xorb]) -> Piece {
    let xorb = rng.random_range(0..xorbs.len());
    let count = xorbs[xorb].chunks.len();
    let start = rng.random_range(0..count);
    (xorb, start, rng.random_range(start + 1..=count.min(start + 2)))
}

impl Xorb {
    fn build(chunks: Vec<usize>, pool: &[Vec<u8>]) -> Self {
        let forms = [Policy::None, Policy::Lz4].map(|policy| {
            let mut builder = XorbBuilder::new(policy);
            for chunk in &chunks {
                builder.push(&pool[*chunk]).unwrap();
            }
            builder.finish().unwrap()
        });
        assert_ne!(forms[0].bytes(), forms[1].bytes());
        Self { hash: forms[0].xorb().hash(), forms, chunks }
    }

    pub(super) fn raw_len(&self) -> u64 {
        self.forms[0].xorb().layout().raw_len()
    }

    fn listing(&self) -> CasInfo {
        let xorb = self.forms[0].xorb();
        let narrow = |number: u64| u32::try_from(number).unwrap();
        let chunk = |(place, hash): (crate::format::xorb::ChunkPlace, &ChunkHash)| CasChunk {
            hash: *hash,
            raw_offset: narrow(place.raw.start()),
            raw_len: narrow(place.raw.byte_len()),
            dedup_eligible: false,
        };
        let chunks = xorb.layout().chunks().zip(xorb.chunk_hashes()).map(chunk).collect();
        CasInfo { hash: self.hash, chunks, raw_len: narrow(self.raw_len()) }
    }
}

impl File {
    /// A file of these pieces, with other recipes that have the same chunks.
    fn build(pieces: &[Piece], xorbs: &[Xorb], pool: &[Vec<u8>]) -> Self {
        let mut ways = vec![pieces.to_vec()];
        for (place, (xorb, start, end)) in pieces.iter().enumerate() {
            let wanted = &xorbs[*xorb].chunks[*start..*end];
            for (other, candidate) in xorbs.iter().enumerate().filter(|(other, _)| other != xorb) {
                let starts = candidate.chunks.windows(wanted.len()).enumerate();
                let found = starts.filter(|(_, window)| *window == wanted).map(|(start, _)| start).next();
                if let Some(start) = found.filter(|_| ways.len() < RECIPE_COUNT) {
                    let mut way = pieces.to_vec();
                    way[place] = (other, start, start + wanted.len());
                    ways.push(way);
                }
            }
        }
        let parts: Vec<usize> =
            pieces.iter().flat_map(|(xorb, start, end)| &xorbs[*xorb].chunks[*start..*end]).copied().collect();
        let hashes: Vec<(ChunkHash, u64)> =
            parts.iter().map(|part| (ChunkHash::of(&pool[*part]), pool[*part].len() as u64)).collect();
        let hash = merkle::file_hash(hashes.iter().map(|(hash, len)| (hash, *len)));
        let bytes = parts.iter().flat_map(|part| &pool[*part]).copied().collect();
        Self { hash, bytes, recipes: ways.iter().map(|way| Recipe::build(way, xorbs)).collect() }
    }
}

impl File {
    /// The xorbs of all its recipes.
    pub(super) fn xorbs(&self) -> impl Iterator<Item = usize> + '_ {
        self.recipes.iter().flat_map(|recipe| &recipe.xorbs).copied()
    }
}

impl Recipe {
    fn build(pieces: &[Piece], xorbs: &[Xorb]) -> Self {
        let (mut terms, mut proofs, mut named) = (Vec::new(), Vec::new(), Vec::new());
        for (xorb, start, end) in pieces {
            let built = xorbs[*xorb].forms[0].xorb();
            let chunks = ChunkRange::new(u32::try_from(*start).unwrap(), u32::try_from(*end).unwrap()).unwrap();
            let raw = built.layout().raw_range(chunks).unwrap();
            terms.push(Term { xorb: built.hash(), raw_len: u32::try_from(raw.byte_len()).unwrap(), chunks });
            proofs.push(RangeHash::of(&built.chunk_hashes()[*start..*end]));
            if !named.contains(xorb) {
                named.push(*xorb);
            }
        }
        Self { terms, proofs, xorbs: named }
    }

    fn first_chunk(&self, xorbs: &[Xorb]) -> ChunkHash {
        let term = &self.terms[0];
        let xorb = xorbs.iter().find(|xorb| xorb.hash == term.xorb).unwrap();
        xorb.forms[0].xorb().chunk_hashes()[term.chunks.start() as usize]
    }
}
