//! Partial files: an interrupted pull leaves the received chunks, and the next run continues after
//! them.
//!
//! A partial file has a second file beside it, the notes. A note is the hash and the length of one
//! chunk. When a run continues, it reads and hashes each chunk again. It truncates both files
//! before the first chunk that does not match its note. A note does not prove that its chunk
//! belongs to the file: the file's hash proves that when the file is complete.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};

use crate::client::Sink;
use crate::format::limits::MAX_CHUNK_RAW_LEN;
use crate::format::{ChunkHash, FileHash};
use crate::runtime::durable::PartialFile;

/// Length of a note: the hash of the chunk in 32 bytes, and its length in 4 bytes, little-endian.
const NOTE_LEN: usize = 36;

/// A file that is being received, with its notes.
#[derive(Debug)]
pub(super) struct Partial(PartialFile);

/// The id by which the next run finds the partial file. It depends on the hash of the file and on
/// its final name.
pub(super) fn partial_id(file: FileHash, name: &str) -> String {
    let short = |text: String| text.chars().take(16).collect::<String>();
    format!("{}-{}", short(file.to_string()), short(ChunkHash::of(name.as_bytes()).to_string()))
}

impl Partial {
    pub(super) fn new(file: PartialFile) -> Self {
        Self(file)
    }

    /// Renames the file, which is complete and verified, to its final name.
    pub(super) fn publish(self, name: &OsStr) -> io::Result<()> {
        self.0.publish(name)
    }

    /// Sets the permission bits of the file.
    pub(super) fn set_mode(&mut self, mode: u32) -> io::Result<()> {
        self.0.set_mode(mode)
    }

    /// Removes the partial file, because its data may be wrong.
    pub(super) fn discard(self) {
        self.0.discard();
    }
}

impl Sink for Partial {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write(bytes)
    }

    fn restart(&mut self) -> io::Result<()> {
        let (data, notes) = self.0.files();
        truncate(notes, 0)?;
        truncate(data, 0)
    }

    fn written(&mut self, chunks: &[(ChunkHash, u64)]) -> io::Result<()> {
        let mut text = Vec::with_capacity(chunks.len() * NOTE_LEN);
        for (hash, len) in chunks {
            text.extend_from_slice(hash.as_bytes());
            text.extend_from_slice(&u32::try_from(*len).map_err(io::Error::other)?.to_le_bytes());
        }
        self.0.files().1.write_all(&text)
    }

    fn resume(&mut self) -> io::Result<Vec<(ChunkHash, u64)>> {
        let (data, notes) = self.0.files();
        data.rewind()?;
        notes.rewind()?;
        let chunks = verified(data, notes)?;
        truncate(notes, (chunks.len() * NOTE_LEN) as u64)?;
        truncate(data, chunks.iter().map(|(_, len)| len).sum())?;
        Ok(chunks)
    }
}

/// Reads the files from the beginning, and returns the chunks before the first one that does not
/// match its note.
fn verified(data: &File, notes: &File) -> io::Result<Vec<(ChunkHash, u64)>> {
    let (mut data, mut notes) = (BufReader::with_capacity(1 << 20, data), BufReader::new(notes));
    let mut chunks = Vec::new();
    let (mut note, mut raw) = ([0; NOTE_LEN], Vec::new());
    while read_all(&mut notes, &mut note)? {
        let (hash, len) = note.split_at(32);
        let hash = ChunkHash::from_bytes(hash.try_into().expect("a note begins with 32 bytes"));
        let len = u32::from_le_bytes(len.try_into().expect("4 bytes are left"));
        if len == 0 || len > MAX_CHUNK_RAW_LEN {
            break;
        }
        raw.resize(len as usize, 0);
        if !read_all(&mut data, &mut raw)? || ChunkHash::of(&raw) != hash {
            break;
        }
        chunks.push((hash, u64::from(len)));
    }
    Ok(chunks)
}

/// Fills the buffer. Returns `false` if the source ends before the buffer is full.
fn read_all(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match source.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Sets the length of the file, and the position to its end.
fn truncate(file: &mut File, len: u64) -> io::Result<()> {
    file.set_len(len)?;
    file.seek(SeekFrom::Start(len)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_chunk_that_mismatches_its_note_ends_the_reuse() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        let open = || Partial::new(PartialFile::open_beside(&path, "id").unwrap().unwrap());
        let chunks: Vec<Vec<u8>> = (1..=3_u8).map(|byte| vec![byte; 100_000]).collect();
        let notes: Vec<_> = chunks.iter().map(|chunk| (ChunkHash::of(chunk), chunk.len() as u64)).collect();
        let mut first = open();
        for (chunk, note) in chunks.iter().zip(&notes) {
            first.write(chunk).unwrap();
            first.written(std::slice::from_ref(note)).unwrap();
        }
        // Bytes of an incomplete chunk and of an incomplete note, as a crash leaves them.
        first.write(b"rest").unwrap();
        first.0.files().1.write_all(&[7; 9]).unwrap();
        drop(first);
        assert_eq!(open().resume().unwrap(), notes);
        let data = File::options().write(true).open(directory.path().join(".zorb-id.part")).unwrap();
        assert_eq!(data.metadata().unwrap().len(), 300_000);
        std::os::unix::fs::FileExt::write_at(&data, b"!", 150_000).unwrap();
        let mut again = open();
        assert_eq!(again.resume().unwrap(), notes[..1]);
        again.write(&chunks[1]).unwrap();
        again.written(&notes[1..2]).unwrap();
        drop(again);
        assert_eq!(open().resume().unwrap(), notes[..2]);
    }
}
