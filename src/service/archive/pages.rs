//! The records of a blob of the archive, in memory before they are written. The records are not
//! copied into one buffer, because a page may have many MiB.

use std::io::{self, Read};
use std::mem::take;

use super::catalog::{Entries, RecordDigest};
use super::record::{XorbHead, encode_file, frame};
use crate::format::XorbHash;
use crate::format::xorb::Unpacked;
use crate::index::FileRecord;

/// Records that will be one blob of the archive, and their entries for the next catalog.
#[derive(Debug, Default)]
pub(super) struct Page {
    /// The bytes of the records; a record may have several parts.
    parts: Vec<Vec<u8>>,
    len: u64,
    pub(super) entries: Entries,
}

impl Page {
    /// Length of the records so far in bytes.
    pub(super) const fn content_len(&self) -> u64 {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds the record of a xorb.
    pub(super) fn push_xorb(&mut self, hash: XorbHash, unpacked: Unpacked) {
        let Unpacked { table, contents } = unpacked;
        let chunks = u32::try_from(table.len() / crate::format::xorb::UNPACKED_ENTRY_LEN).unwrap_or(u32::MAX);
        let head = XorbHead { xorb: hash.to_string(), chunks };
        self.push(frame(&head, (table.len() + contents.len()) as u64));
        self.push(table);
        self.push(contents);
        self.entries.xorbs.push(hash);
    }

    /// Adds the record of a file. `encoded` and `digest` are from [`encode_with_digest`].
    pub(super) fn push_file(&mut self, file: &FileRecord, encoded: Vec<u8>, digest: RecordDigest) {
        self.push(encoded);
        self.entries.files.push((file.hash, digest));
    }

    /// Adds the record of the keys: its head, and its body, which is `text`.
    pub(super) fn push_keys(&mut self, head: Vec<u8>, text: &str, digest: RecordDigest) {
        self.push(head);
        self.push(text.as_bytes().to_vec());
        self.entries.keys = Some(digest);
    }

    /// Adds the record of a part of a Hub repository.
    pub(super) fn push_hub(&mut self, encoded: Vec<u8>) {
        self.push(encoded);
    }

    fn push(&mut self, part: Vec<u8>) {
        self.len += part.len() as u64;
        self.parts.push(part);
    }

    /// A reader of all records. It frees each part after reading it.
    pub(super) fn into_reader(self) -> impl Read {
        PageReader { parts: self.parts.into_iter(), part: Vec::new(), at: 0 }
    }
}

/// The record of a file, and the digest of the record.
pub(super) fn encode_with_digest(file: &FileRecord) -> (Vec<u8>, RecordDigest) {
    let encoded = encode_file(file);
    let digest = RecordDigest::of(&encoded);
    (encoded, digest)
}

/// See [`Page::into_reader`].
struct PageReader {
    parts: std::vec::IntoIter<Vec<u8>>,
    /// The current part.
    part: Vec<u8>,
    /// The number of bytes of `part` that were read.
    at: usize,
}

impl Read for PageReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.at == self.part.len() {
            drop(take(&mut self.part));
            let Some(next) = self.parts.next() else { return Ok(0) };
            (self.part, self.at) = (next, 0);
        }
        let len = buf.len().min(self.part.len() - self.at);
        buf[..len].copy_from_slice(&self.part[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}
