//! Reads files once from front to back, cuts them into chunks and hashes the chunks. Everything
//! here blocks.

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sha2::Digest;
use xet_format::ChunkHash;
use xet_format::chunker::Chunker;
use xet_format::shard::Sha256;

/// Bytes that are read at once.
const PIECE_LEN: usize = 1 << 20;

/// Bytes of chunks in one block, about. Two blocks are in memory: one is being read while the
/// chunks of the other are added to xorbs.
const BLOCK_LEN: usize = 8 << 20;

/// Files that end in one block, at most, so that a push of many small files shows progress, too.
const BLOCK_FILE_COUNT: usize = 1024;

/// Reads the files of a push, a block at a time.
#[derive(Debug)]
pub(super) struct Scanner {
    paths: VecDeque<PathBuf>,
    open: Option<OpenFile>,
    buffer: Vec<u8>,
}

/// Some chunks of some files, in order.
#[derive(Debug, Default)]
pub(super) struct Block {
    pub(super) events: Vec<Event>,
    len: usize,
    file_count: usize,
}

/// A chunk or the end of a file.
#[derive(Debug)]
pub(super) enum Event {
    /// The next chunk of the current file.
    Chunk {
        hash: ChunkHash,
        raw: Vec<u8>,
        /// Whether it is the first chunk of the file.
        is_first: bool,
    },
    /// The current file ends, and the next one begins. After an error the chunks of the current
    /// file must not be used.
    End(Result<Sha256, ScanError>),
}

/// Why a file was not read.
#[derive(Debug)]
pub(super) enum ScanError {
    Read(io::Error),
    Changed,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    before: Metadata,
    chunker: Chunker,
    chunk: Vec<u8>,
    sha256: sha2::Sha256,
    len: u64,
    is_begun: bool,
}

impl Scanner {
    pub(super) fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths: paths.into(), open: None, buffer: vec![0; PIECE_LEN] }
    }

    /// The next block; an empty one at the end of all files.
    pub(super) fn next_block(&mut self) -> Block {
        let mut block = Block::default();
        while block.len < BLOCK_LEN && block.file_count < BLOCK_FILE_COUNT {
            if self.open.is_none() {
                let Some(path) = self.paths.pop_front() else { break };
                match OpenFile::new(&path) {
                    Ok(file) => self.open = Some(file),
                    Err(error) => block.end(Err(ScanError::Read(error))),
                }
                continue;
            }
            let Some(file) = &mut self.open else { break };
            match file.read(&mut self.buffer, &mut block) {
                Ok(true) => {}
                Ok(false) => block.end(self.open.take().map_or(Err(ScanError::Changed), OpenFile::finish)),
                Err(error) => {
                    self.open = None;
                    block.end(Err(ScanError::Read(error)));
                }
            }
        }
        block
    }
}

impl Block {
    fn push(&mut self, raw: Vec<u8>, is_first: bool) {
        self.len += raw.len();
        self.events.push(Event::Chunk { hash: ChunkHash::of(&raw), raw, is_first });
    }

    fn end(&mut self, result: Result<Sha256, ScanError>) {
        self.file_count += 1;
        self.events.push(Event::End(result));
    }
}

impl OpenFile {
    fn new(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let before = file.metadata()?;
        if !before.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Self {
            file,
            before,
            chunker: Chunker::new(),
            chunk: Vec::new(),
            sha256: sha2::Sha256::new(),
            len: 0,
            is_begun: false,
        })
    }

    /// Reads the next bytes and adds the chunks that end in them to the block. Returns `false` at
    /// the end of the file.
    fn read(&mut self, buffer: &mut [u8], block: &mut Block) -> io::Result<bool> {
        let len = match self.file.read(buffer) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(error),
        };
        let mut piece = buffer.get(..len).unwrap_or_default();
        self.sha256.update(piece);
        self.len += len as u64;
        while let Some((taken, rest)) = self.chunker.next_boundary(piece).and_then(|end| piece.split_at_checked(end)) {
            self.chunk.extend_from_slice(taken);
            self.give_chunk(block);
            piece = rest;
        }
        self.chunk.extend_from_slice(piece);
        if len == 0 && !self.chunk.is_empty() {
            self.give_chunk(block);
        }
        Ok(len > 0)
    }

    /// Adds the current chunk, which is complete, to the block.
    fn give_chunk(&mut self, block: &mut Block) {
        let mut raw = std::mem::take(&mut self.chunk);
        raw.shrink_to_fit();
        block.push(raw, !self.is_begun);
        self.is_begun = true;
    }

    /// Ends the file. Returns an error if the file has changed since it was opened.
    ///
    /// The hashes would be those of the bytes that were read. But these bytes may be a mixture of
    /// two states of the file, which the user did not ask to store.
    fn finish(self) -> Result<Sha256, ScanError> {
        let after = self.file.metadata().map_err(ScanError::Read)?;
        let state = |metadata: &Metadata| (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
        if state(&self.before) != state(&after) || self.len != after.len() {
            return Err(ScanError::Changed);
        }
        Ok(Sha256::from_digest(self.sha256.finalize().into()))
    }
}

#[cfg(test)]
mod tests;
