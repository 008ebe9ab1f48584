//! The hash of a local file.

use std::io::{self, Read};

use xet_format::chunker::Chunker;
use xet_format::merkle::Aggregator;
use xet_format::{ChunkHash, FileHash};

/// Bytes that are read at once.
const PIECE_LEN: usize = 1 << 20;

/// The hash of a file. It cuts the file into chunks like a stock client, so the hash is the one
/// under which such a client registers the file. It blocks.
///
/// # Errors
///
/// `source` cannot be read.
pub fn hash_reader(mut source: impl Read) -> io::Result<FileHash> {
    let (mut chunker, mut aggregator) = (Chunker::new(), Aggregator::new());
    let (mut buffer, mut chunk) = (vec![0; PIECE_LEN], Vec::new());
    loop {
        let len = match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let mut piece = buffer.get(..len).unwrap_or_default();
        while let Some((taken, rest)) = chunker.next_boundary(piece).and_then(|end| piece.split_at_checked(end)) {
            chunk.extend_from_slice(taken);
            aggregator.push(&ChunkHash::of(&chunk), chunk.len() as u64);
            chunk.clear();
            piece = rest;
        }
        chunk.extend_from_slice(piece);
    }
    if !chunk.is_empty() {
        aggregator.push(&ChunkHash::of(&chunk), chunk.len() as u64);
    }
    Ok(aggregator.file_hash())
}
