//! Distinguishes a torn header write from damage, and repairs it.
//!
//! The one write that commits an append replaces a header `old` of 10 to 16 bytes by `new`, at a
//! multiple of 0x8000, so within one sector. Real disks write a sector whole or not at all. If the
//! write is torn nevertheless, the header is `new[..k]` followed by `old[k..]`. The payloads of the
//! old and the new state are both on the disk, so both hashes can be computed and compared with the
//! torn header. Eight random bytes match a hash with probability 2⁻⁶⁴.
//!
//! A header is a size followed by the metadata, which is the hash. So there are two cases:
//!
//! - *Metadata all old*: it is the hash at some block boundary inside the chunk, and this boundary
//!   was the end of the chunk before the append. The repair restores the old header.
//! - *Metadata mixed*: the size is the new one. The first bytes of the metadata are those of the
//!   hash at the end, the others those of the hash before the last append. The repair completes the
//!   new header if at least half of the metadata is new, else it restores the old header. The
//!   append was not acknowledged, so both results are correct. Each is proved by 32 bits of hash or
//!   more.
//!
//! Every intermediate state of the repair is itself a torn header, so a repair that was interrupted
//! can be repeated.

use std::io::{Read, Seek};
use std::ops::Range;

use super::block::{Kind, read_head, read_payload, read_stored_hash};
use super::chunk_layer::{Chunk, Patch, Payload, Scan, SpanReader, Tail};
use super::error::Error;
use super::hash::{DIGEST_LEN, Digest, Hasher};
use super::settled::Settled;

/// How many blocks one append writes at most: a reset and a blob.
const APPEND_BLOCKS: usize = 2;

/// Finds the committed state of an archive with a torn header, and the writes that repair it.
/// Writes nothing itself. `None` if the damage is not a torn header.
pub(crate) fn mend<S: Read + Seek>(source: &mut S, found: &Scan) -> Result<Option<Settled>, Error> {
    for (index, torn) in found.chunks.iter().enumerate().rev() {
        let (last, before) = (index + 1 == found.chunks.len(), &found.chunks[..index]);
        // A full chunk with others after it is not the one whose header commits the last append, so
        // its metadata is old without damage. The exception is a reserved size: only a torn write
        // produces it, and then the chunks after it do not exist.
        if !last && torn.field.limit().is_none_or(|limit| torn.size <= limit) {
            continue;
        }
        if let Some(settled) = all_old(source, found.file_len, before, torn)? {
            return Ok(Some(settled));
        }
        if last && found.tail == Tail::End {
            return mixed(source, found.file_len, before, torn);
        }
    }
    Ok(None)
}

/// The case of old metadata: finds the block boundary with this hash, whatever the size field says.
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
        if old.metadata.0 == *torn.metadata && old.can_become(torn, file_len) {
            settled = Some(old.restore_old(before, torn));
        }
        settled.is_none()
    })?;
    Ok(settled)
}

/// The case of mixed metadata: the size is the new one, so the payload ends at a block boundary.
fn mixed<S: Read + Seek>(
    source: &mut S,
    file_len: u64,
    before: &[Chunk],
    torn: &Chunk,
) -> Result<Option<Settled>, Error> {
    let mut spans = Scan::spans(before, file_len);
    spans.push(torn.payload_start()..torn.end().min(file_len));
    // The last boundaries: the end, and those at which the last append can have begun.
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
        // How many bytes of the metadata are new.
        let new_len = (1..DIGEST_LEN)
            .rev()
            .find(|k| torn.metadata[..*k] == new.digest.0[..*k] && torn.metadata[*k..] == old.metadata.0[*k..]);
        match new_len {
            Some(len) if len >= DIGEST_LEN / 2 => return Ok(Some(complete_new(before, torn, new.digest))),
            Some(_) => return Ok(Some(old.restore_old(before, torn))),
            None => {}
        }
    }
    Ok(None)
}

/// Completes the new header in one write. If this write is torn, too, the header is again a mixture
/// of the old and the new one.
fn complete_new(before: &[Chunk], torn: &Chunk, digest: Digest) -> Settled {
    let repaired = Chunk { metadata: digest.0.to_vec(), ..torn.clone() };
    let patches = vec![Patch { offset: repaired.offset, bytes: repaired.header() }];
    let mut chunks = before.to_vec();
    chunks.push(repaired);
    Settled { chunks, digest: Some(digest), patches, torn: true }
}

/// A header that the torn chunk may have had before the append.
#[derive(Debug)]
struct Old {
    /// 0 if the chunk had not been committed.
    size: u64,
    metadata: Digest,
}

impl Old {
    /// The old header if the archive ended at `boundary` before the append; `None` if the boundary
    /// is not in the torn chunk.
    fn at(before: &[Chunk], torn: &Chunk, boundary: &Boundary) -> Option<Old> {
        let (metadata, start) = (boundary.digest, torn.payload_start());
        if boundary.offset > start {
            return Some(Old { size: boundary.offset - torn.offset, metadata });
        }
        // The chunk did not exist yet, so the chunk before it was the last and must have this hash.
        let last = before.last().is_none_or(|last| metadata.0 == *last.metadata);
        (boundary.offset >= torn.offset && last).then_some(Old { size: 0, metadata })
    }

    /// Whether `torn`, whose metadata is old, can be this header after an interrupted write of a
    /// newer one.
    ///
    /// Appends only make sizes grow, and all payload is in the file before the header is written.
    /// So a torn size beyond the end of the file is not the complete new size: at least its last
    /// byte is that of the old size. Otherwise the size was damaged or the file was truncated, and
    /// the archive is refused.
    fn can_become(&self, torn: &Chunk, file_len: u64) -> bool {
        let old = Chunk { size: self.size, ..torn.clone() };
        let last_byte = torn.size_bytes().last() == old.size_bytes().last();
        // If the sizes are equal, the header is not torn and the damage is elsewhere.
        torn.size > self.size && (torn.end() <= file_len || last_byte)
    }

    /// Restores the old header byte by byte, the last byte first, so that after each write the
    /// header is again a torn one, with fewer new bytes.
    fn restore_old(&self, before: &[Chunk], torn: &Chunk) -> Settled {
        let (mut chunks, digest) = (before.to_vec(), self.metadata);
        if self.size == 0 {
            // The chunk did not exist. The truncation that follows removes it.
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
    /// Offset in the file of the next block.
    offset: u64,
    /// Digest of the session up to here.
    digest: Digest,
}

/// Visits the block boundaries from the first byte to the end, until `visit` returns `false`.
/// Returns whether it has reached the end. If a block does not parse, it stops there and returns
/// `false`, not an error: any bytes may follow the boundary that the caller searches for.
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

/// Reads one block and hashes it; a reset block begins a new hash. `false` at the end.
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
