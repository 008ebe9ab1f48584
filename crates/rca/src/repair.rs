//! Telling a torn header write from damage, and repairing it.
//!
//! The one write that commits an append replaces a header `old` of 10 to 16 bytes by `new`, at a
//! multiple of 0x8000, so within one sector: real disks write it whole or not at all. Should it be
//! torn nevertheless, the header is `new[..k]` followed by `old[k..]`. That can be proved, since
//! the payload of both is on the disk and so both hashes can be computed: eight bytes agree with
//! what they must be by accident once in 2⁶⁴.
//!
//! - *Metadata all old*: it is the hash at some block boundary inside the chunk, which is where
//!   the chunk ended. Go back to it.
//! - *Metadata mixed*: the size is the new one, the leading bytes are of the hash at the end, the
//!   trailing ones of the hash before the last append. Go on to the new header if at least half
//!   of the metadata is new, else back to the old one. (The append was not acknowledged,
//!   so either is right; each is proved by 32 bits of hash or more.)
//!
//! Every intermediate state of the repair is a torn header itself: it can be interrupted and
//! repeated.

use std::io::{Read, Seek};
use std::ops::Range;

use super::block::{Kind, read_head, read_payload, read_stored_hash};
use super::chunk_layer::{Chunk, Patch, Payload, Scan, SpanReader, Tail};
use super::error::Error;
use super::hash::{DIGEST_LEN, Digest, Hasher};
use super::settled::Settled;

/// How many blocks one append writes at most: a reset and a blob.
const APPEND_BLOCKS: usize = 2;

/// Finds the committed state behind a torn header; `None` if it is something else.
pub(crate) fn mend<S: Read + Seek>(source: &mut S, found: &Scan) -> Result<Option<Settled>, Error> {
    for (index, torn) in found.chunks.iter().enumerate().rev() {
        let (last, before) = (index + 1 == found.chunks.len(), &found.chunks[..index]);
        // A full chunk in front of others is not the one that an append commits, and its metadata
        // is stale by right. Unless its size is reserved: only a tear writes that, and then the
        // chunks behind it are phantoms.
        if !last && torn.field.limit().is_none_or(|limit| torn.size <= limit) {
            continue;
        }
        if let Some(settled) = all_old(source, found.file_len, before, torn)? {
            return Ok(Some(settled));
        }
        if last && found.tail == Tail::Garbage {
            return mixed(source, found.file_len, before, torn);
        }
    }
    Ok(None)
}

/// The case of old metadata: looks for the boundary that has it, whatever the size says.
fn all_old<S: Read + Seek>(
    source: &mut S,
    file_len: u64,
    before: &[Chunk],
    torn: &Chunk,
) -> Result<Option<Settled>, Error> {
    let longest = torn.field.limit().unwrap_or(u64::MAX);
    let mut spans = Scan::spans(before, file_len);
    spans.push(torn.payload_start()..torn.offset.saturating_add(longest).min(file_len));
    let mut settled = None;
    walk(source, &spans, |boundary| {
        let Some(old) = Old::at(before, torn, boundary) else { return true };
        if old.metadata.0 == *torn.metadata && old.could_be_torn_to(torn, file_len) {
            settled = Some(old.go_back(before, torn));
        }
        settled.is_none()
    })?;
    Ok(settled)
}

/// The case of mixed metadata: the payload ends where the size says, on a boundary.
fn mixed<S: Read + Seek>(
    source: &mut S,
    file_len: u64,
    before: &[Chunk],
    torn: &Chunk,
) -> Result<Option<Settled>, Error> {
    let mut spans = Scan::spans(before, file_len);
    spans.push(torn.payload_start()..torn.end().min(file_len));
    let mut boundaries: Vec<Boundary> = Vec::new();
    let ended = walk(source, &spans, |boundary| {
        if boundaries.len() > APPEND_BLOCKS {
            boundaries.remove(0);
        }
        boundaries.push(*boundary);
        true
    })?;
    let (true, Some((new, earlier))) = (ended, boundaries.split_last()) else { return Ok(None) };
    for old in earlier.iter().rev().filter_map(|boundary| Old::at(before, torn, boundary)) {
        let fresh = (1..DIGEST_LEN)
            .rev()
            .find(|k| torn.metadata[..*k] == new.digest.0[..*k] && torn.metadata[*k..] == old.metadata.0[*k..]);
        match fresh {
            Some(len) if len >= DIGEST_LEN / 2 => return Ok(Some(take_new(before, torn, new.digest))),
            Some(_) => return Ok(Some(old.go_back(before, torn))),
            None => {}
        }
    }
    Ok(None)
}

/// Takes the new header: one write, each prefix of which leaves another mixture.
fn take_new(before: &[Chunk], torn: &Chunk, digest: Digest) -> Settled {
    let repaired = Chunk { metadata: digest.0.to_vec(), ..torn.clone() };
    let patches = vec![Patch { offset: repaired.offset, bytes: repaired.header() }];
    let mut chunks = before.to_vec();
    chunks.push(repaired);
    Settled { chunks, digest: Some(digest), patches, torn: true }
}

/// The header of the torn chunk as it may have been before the append.
#[derive(Debug)]
struct Old {
    /// 0 if the chunk had not been committed.
    size: u64,
    metadata: Digest,
}

impl Old {
    /// What it was if the archive ended at `boundary`; `None` if that is not in the torn chunk.
    fn at(before: &[Chunk], torn: &Chunk, boundary: &Boundary) -> Option<Old> {
        let (metadata, start) = (boundary.digest, torn.payload_start());
        if boundary.offset > start {
            return Some(Old { size: boundary.offset - torn.offset, metadata });
        }
        // Nothing was in the chunk, so the one before was the last: is that its hash?
        let last = before.last().is_none_or(|last| metadata.0 == *last.metadata);
        (boundary.offset >= torn.offset && last).then_some(Old { size: 0, metadata })
    }

    /// Whether a prefix of some newer header over this one can be `torn`, whose metadata is old.
    ///
    /// Appends make sizes grow, and before the header is written all of the payload is in the
    /// file: so a size beyond its end has at least its last byte from the old size. (Otherwise it
    /// is a size that was damaged or a file that was cut, and is refused.)
    fn could_be_torn_to(&self, torn: &Chunk, file_len: u64) -> bool {
        let old = Chunk { size: self.size, ..torn.clone() };
        let last_byte = torn.size_bytes().last() == old.size_bytes().last();
        // An equal size would make it no tear at all: then the header is fine and something else
        // not.
        torn.size > self.size && (torn.end() <= file_len || last_byte)
    }

    /// Takes the old header: byte by byte from behind, each of which leaves a lesser mixture.
    fn go_back(&self, before: &[Chunk], torn: &Chunk) -> Settled {
        let (mut chunks, digest) = (before.to_vec(), self.metadata);
        if self.size == 0 {
            // The truncation removes the whole chunk.
            let digest = (!before.is_empty()).then_some(digest);
            return Settled { chunks, digest, patches: Vec::new(), torn: true };
        }
        let repaired = Chunk { size: self.size, metadata: digest.0.to_vec(), ..torn.clone() };
        let bytes = repaired.header().into_iter().zip(torn.header()).zip(repaired.offset..);
        let differing = bytes.filter(|((old, now), _)| old != now);
        let mut patches: Vec<_> = differing.map(|((old, _), offset)| Patch { offset, bytes: vec![old] }).collect();
        patches.reverse();
        chunks.push(repaired);
        Settled { chunks, digest: Some(digest), patches, torn: true }
    }
}

/// A place between blocks.
#[derive(Clone, Copy, Debug)]
struct Boundary {
    /// In the file, of the next block.
    offset: u64,
    /// Of the session so far.
    digest: Digest,
}

/// Visits the boundaries from the first byte on, the end included, until `visit` says `false`;
/// `true` if it has come to the end. What cannot be parsed ends it too: behind the boundary that
/// is looked for there may be anything.
fn walk<S: Read + Seek>(
    source: &mut S,
    spans: &[Range<u64>],
    mut visit: impl FnMut(&Boundary) -> bool,
) -> Result<bool, Error> {
    let mut reader = SpanReader::new(source, spans);
    let mut hash = Hasher::default();
    loop {
        let boundary = Boundary { offset: reader.offset(), digest: hash.digest() };
        if !visit(&boundary) {
            return Ok(false);
        }
        match walk_block(&mut reader, &mut hash) {
            Ok(true) => {}
            Ok(false) => return Ok(true),
            Err(e @ Error::Io { .. }) => return Err(e),
            Err(_) => return Ok(false),
        }
    }
}

/// Hashes one block; `false` at the end.
fn walk_block<P: Payload>(reader: &mut P, hash: &mut Hasher) -> Result<bool, Error> {
    let mut after = Hasher::default();
    let head = read_head(reader, |bytes| {
        hash.update(bytes);
        after.update(bytes);
    })?;
    let Some(head) = head else { return Ok(false) };
    let mut left = head.len;
    if head.kind == Kind::Reset || head.kind == Kind::ReadmeReset {
        *hash = after;
        hash.update(&read_stored_hash(reader, head)?.0);
        left = head.extra_len();
    }
    read_payload(reader, head, left, |bytes| hash.update(bytes))?;
    Ok(true)
}
