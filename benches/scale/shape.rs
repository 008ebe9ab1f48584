//! What a generated store is made of. Everything follows from the number of a xorb, a file or a chunk, so that nothing has
//! to be kept to be checked or asked for later.

use zorb::format::compression::Scheme;
use zorb::format::shard::{Sha256, Term};
use zorb::format::xorb::{Layout, LayoutBuilder};
use zorb::format::{ChunkHash, ChunkRange, FileHash, XorbHash};
use zorb::index::NewFile;

/// Chunks of every xorb: those of a full one.
pub(crate) const CHUNK_COUNT: u32 = 1024;

/// Raw bytes of a chunk on average. Two neighbours, the first of which has an even index, have twice that together.
pub(crate) const CHUNK_LEN: u32 = 64 << 10;

/// Files for each xorb.
const FILES_PER_XORB: u64 = 10;

/// Neighbours among xorbs that belong to one owner, and that its files share.
pub(crate) const OWNER_XORB_COUNT: u64 = 1000;

/// Files of a common repository.
const REPO_FILE_COUNT: u64 = 1000;

/// The repository that has three files, however large the store is.
pub(crate) const SMALL_REPO: &str = "tiny/one";

/// One xorb in so many is garbage.
const GARBAGE: u64 = 50;

/// Terms of the file of 100 GiB, each a whole xorb.
const GIANT_TERM_COUNT: u64 = 1600;

/// How chunks are compressed.
pub(crate) const SCHEME: Scheme = Scheme::Lz4;

/// The chunk of a xorb that clients may ask for beside the first ones of files. Odd, so that no file begins with it.
const ASKED_CHUNK: u32 = 511;

/// Some chunks of a xorb, in whole pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) xorb: u64,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Piece {
    pub(crate) fn term(self) -> Term {
        let chunks = ChunkRange::new(self.start, self.end).unwrap();
        Term { xorb: xorb_hash(self.xorb), raw_len: (self.end - self.start) * CHUNK_LEN, chunks }
    }

    pub(crate) fn first_chunk(self) -> ChunkHash {
        chunk_hash(self.xorb, self.start)
    }
}

/// A store of so many xorbs, and ten times as many files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) xorb_count: u64,
    /// One owner's xorbs in so many have all their chunk hashes, the others that of their first chunk only.
    pub(crate) stride: u64,
}

impl Shape {
    /// A store in which about so many xorbs have all their chunk hashes.
    pub(crate) fn new(xorb_count: u64, whole_count: u64) -> Self {
        Self { xorb_count, stride: xorb_count.div_ceil(whole_count.clamp(1, xorb_count)) }
    }

    pub(crate) const fn file_count(self) -> u64 {
        self.xorb_count * FILES_PER_XORB
    }

    /// Xorbs that files refer to.
    pub(crate) const fn needed_count(self) -> u64 {
        self.xorb_count - self.xorb_count / GARBAGE
    }

    /// The number of the xorb that is the nth of those that files refer to.
    pub(crate) const fn needed(self, nth: u64) -> u64 {
        let nth = nth % self.needed_count();
        nth + nth / (GARBAGE - 1)
    }

    /// Whether the index has all chunk hashes of this xorb.
    pub(crate) const fn is_whole(self, xorb: u64) -> bool {
        (xorb / OWNER_XORB_COUNT).is_multiple_of(self.stride)
    }

    /// Those that files refer to and that have all their chunk hashes.
    pub(crate) fn whole_xorbs(self) -> Vec<u64> {
        (0..self.needed_count()).map(|nth| self.needed(nth)).filter(|xorb| self.is_whole(*xorb)).collect()
    }

    /// The hashes that the index has of a xorb's chunks.
    pub(crate) fn chunk_hashes(self, xorb: u64) -> Vec<ChunkHash> {
        let count = if self.is_whole(xorb) { CHUNK_COUNT } else { 1 };
        (0..count).map(|chunk| chunk_hash(xorb, chunk)).collect()
    }

    /// The file with this number. File 0 has 100 GiB.
    pub(crate) fn file(self, number: u64) -> NewFile {
        let terms: Vec<Term> = self.pieces(number).into_iter().map(Piece::term).collect();
        let raw_len = terms.iter().map(|term| u64::from(term.raw_len)).sum();
        NewFile { hash: file_hash(number), raw_len, terms, sha256: sha256_of(number) }
    }

    /// What the file is made of. Most files are a part of one xorb, some go on in the next one, a few consist of pieces of
    /// their owner's xorbs, and one in 10 000 is large.
    pub(crate) fn pieces(self, number: u64) -> Vec<Piece> {
        let dice = mix(number ^ (6 << 56));
        let home = number * self.needed_count() / self.file_count();
        let whole = |nth| Piece { xorb: self.needed(nth), start: 0, end: CHUNK_COUNT };
        let part = |xorb, at: u64| {
            let dice = mix(dice ^ at);
            // Even on both ends, so that their length is known.
            let start = narrow(dice % 400) * 2;
            Piece { xorb, start, end: start + 2 + narrow(dice / 400 % 50) * 2 }
        };
        if number == 0 {
            return (0..GIANT_TERM_COUNT).map(whole).collect();
        }
        if number % 10_000 == 5000 {
            return (home..home + 600).map(whole).collect();
        }
        let at_home = self.needed(home);
        match dice % 100 {
            0..80 => vec![part(at_home, 0)],
            80..95 => vec![part(at_home, 0), part(self.needed(home + 1), 1)],
            _ => (0..3 + dice / 100 % 14).map(|at| part(self.neighbour(at_home, mix(dice ^ (at << 8))), at)).collect(),
        }
    }

    /// One of the xorbs of the same owner that files refer to.
    fn neighbour(self, xorb: u64, dice: u64) -> u64 {
        let first = xorb / OWNER_XORB_COUNT * OWNER_XORB_COUNT;
        let count = OWNER_XORB_COUNT.min(self.xorb_count - first);
        let found = first + dice % count;
        if is_garbage(found) { found - 1 } else { found }
    }

    /// Who has registered a file: its repository, which made the claim of its sha256, and for some another one.
    pub(crate) fn repos(self, number: u64) -> Vec<String> {
        if number + 3 >= self.file_count() {
            return vec![SMALL_REPO.to_owned()];
        }
        let repo = number / REPO_FILE_COUNT;
        let mut repos = vec![format!("owner{}/model-{repo}", repo / 10)];
        if number.is_multiple_of(10) {
            repos.push(format!("mirrors/all-{}", number / 100_000));
        }
        repos
    }
}

/// Whether no file refers to this xorb.
pub(crate) const fn is_garbage(xorb: u64) -> bool {
    xorb % GARBAGE == GARBAGE - 1
}

/// Within which walls a xorb was uploaded.
pub(crate) fn domain(xorb: u64) -> String {
    format!("owner{}", xorb / OWNER_XORB_COUNT)
}

pub(crate) fn xorb_hash(xorb: u64) -> XorbHash {
    XorbHash::from_bytes(bytes(1, xorb))
}

pub(crate) fn chunk_hash(xorb: u64, chunk: u32) -> ChunkHash {
    ChunkHash::from_bytes(bytes(2, xorb * u64::from(CHUNK_COUNT) + u64::from(chunk)))
}

pub(crate) fn asked_chunk(xorb: u64) -> ChunkHash {
    chunk_hash(xorb, ASKED_CHUNK)
}

pub(crate) fn file_hash(number: u64) -> FileHash {
    FileHash::from_bytes(bytes(3, number))
}

/// The sha256 that a file has, or is said to have; some have none.
pub(crate) fn sha256_of(number: u64) -> Option<Sha256> {
    (number % 10 < 7).then(|| Sha256::from_digest(bytes(4, number)))
}

/// Whether the sha256 of a file was verified, if it has one.
pub(crate) const fn is_verified(number: u64) -> bool {
    number % 1000 != 500
}

/// A hash that nothing in any store has.
pub(crate) fn unknown(number: u64) -> [u8; 32] {
    bytes(5, number)
}

pub(crate) fn crc64(xorb: u64) -> u64 {
    mix(xorb ^ 0x6372_6336)
}

pub(crate) fn layout(xorb: u64) -> Layout {
    let mut layout = LayoutBuilder::new();
    for pair in 0..u64::from(CHUNK_COUNT / 2) {
        let more = narrow(mix((xorb << 9) ^ pair) % u64::from(CHUNK_LEN / 2));
        for raw_len in [CHUNK_LEN + more, CHUNK_LEN - more] {
            layout.push(8 + raw_len / 16 * 15, raw_len).unwrap();
        }
    }
    layout.finish().unwrap()
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap()
}

/// 32 bytes that look random.
fn bytes(kind: u64, number: u64) -> [u8; 32] {
    let mut bytes = [0; 32];
    let mut word = mix(number ^ (kind << 56));
    for part in bytes.as_chunks_mut::<8>().0 {
        word = mix(word);
        *part = word.to_le_bytes();
    }
    bytes
}

/// The step of splitmix64: different for different numbers.
pub(crate) const fn mix(number: u64) -> u64 {
    let mut word = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
