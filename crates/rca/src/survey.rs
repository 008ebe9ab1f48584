//! What a writer must know of an archive before it appends: where it ends, and its last hash.
//!
//! The reference takes the stored metadata on trust and puts it into a reset block, so a bad
//! archive stays bad behind every later append. We look first. Only the varints of earlier
//! sessions are read, and the payload of the last one is hashed; nothing is decompressed.

use std::io::{Read, Seek};
use std::ops::Range;

use super::block::{Kind, read_head, read_payload, read_stored_hash};
use super::chunk_layer::{Chunk, Scan, SpanReader, Tail};
use super::error::Error;
use super::hash::{DIGEST_LEN, Digest, HashRule, SessionHash};
use super::limits::SKIP_BUFFER_LEN;
use super::repair;
use super::settled::Settled;

/// Decides what is committed, by the safe rule:
///
/// - garbage is all that follows a chunk that is not full, or that begins with a size of 0 or a
///   partial header;
/// - a chunk that runs past the end of the file is garbage if the chunk before it is full and has
///   the hash of everything so far (a crash of the reference, bug B2);
/// - a header that is provably a mixture of the one before an append and the one after it is
///   repaired (see [`repair`]);
/// - everything else that is invalid is refused.
pub(crate) fn settle<S: Read + Seek>(source: &mut S, found: &Scan) -> Result<Settled, Error> {
    let error = match (&found.tail, found.chunks.split_last()) {
        (Tail::Garbage, _) => match last_digest(source, &found.chunks, found.file_len) {
            Ok(digest) => return Ok(Settled::sound(&found.chunks, digest)),
            Err(e) => e,
        },
        (Tail::PastEnd, Some((past, before))) => {
            if let Some(digest) = digest_if_sound(source, before, found.file_len)? {
                return Ok(Settled::sound(before, Some(digest)));
            }
            past.truncated()
        }
        (Tail::PastEnd, None) => Error::TruncatedChunk { offset: 0, size: 0 },
        (Tail::BadSize(chunk), _) => chunk.bad_size().unwrap_or_else(|| chunk.truncated()),
    };
    if !error.is_damage() {
        return Err(error);
    }
    repair::mend(source, found)?.ok_or(error)
}

/// The digest of non-empty `chunks` if they are a sound archive by themselves.
fn digest_if_sound<S: Read + Seek>(source: &mut S, chunks: &[Chunk], file_len: u64) -> Result<Option<Digest>, Error> {
    match last_digest(source, chunks, file_len) {
        Ok(digest) => Ok(digest),
        Err(e) if !e.is_damage() => Err(e),
        Err(_) => Ok(None),
    }
}

/// Checks the end of the archive and gives the hash of its last session.
fn last_digest<S: Read + Seek>(source: &mut S, chunks: &[Chunk], file_len: u64) -> Result<Option<Digest>, Error> {
    let Some(last) = chunks.last() else { return Ok(None) };
    let (begin, readme) = last_session(source, Scan::spans(chunks, file_len))?;
    let at = begin.first().map_or(0, |span| span.start);
    if readme {
        return Err(Error::ReadmeDialect { offset: at });
    }
    let hash = hash_session(source, &begin)?;
    let stored = last.metadata.as_slice().try_into().map(Digest);
    let stored = stored.map_err(|_| Error::BadOptions("an archive's metadata has 8 bytes"))?;
    match hash.verify(stored, None) {
        Ok(Some(HashRule::Excluded)) => Err(Error::ReadmeDialect { offset: at }),
        Ok(_) => Ok(Some(stored)),
        Err(computed) => Err(Error::FinalHashMismatch { offset: last.offset, stored, computed }),
    }
}

/// The spans of the last session, from its reset block's varint on, and whether any reset block is
/// the README's. Skips every payload.
fn last_session<S: Read + Seek>(source: &mut S, spans: Vec<Range<u64>>) -> Result<(Vec<Range<u64>>, bool), Error> {
    let mut reader = SpanReader::with_buffer(source, &spans, SKIP_BUFFER_LEN);
    let (mut begin, mut readme) = (spans, false);
    loop {
        let here = reader.rest();
        let Some(head) = read_head(&mut reader, |_| {})? else { return Ok((begin, readme)) };
        match head.kind {
            Kind::Reset => begin = here,
            Kind::ReadmeReset => (begin, readme) = (here, true),
            Kind::Blob | Kind::Unknown => {}
        }
        let len = if head.kind == Kind::ReadmeReset { DIGEST_LEN as u64 } else { head.len };
        if !reader.skip(len) {
            return Err(Error::TruncatedBlock { offset: head.offset });
        }
    }
}

/// Hashes a session that may begin with a reset block.
fn hash_session<S: Read + Seek>(source: &mut S, spans: &[Range<u64>]) -> Result<SessionHash, Error> {
    let mut reader = SpanReader::new(source, spans);
    let mut hash = SessionHash::after_reset(None);
    loop {
        let Some(head) = read_head(&mut reader, |bytes| hash.update(bytes))? else { return Ok(hash) };
        let mut left = head.len;
        if head.kind == Kind::Reset {
            hash.update_stored(read_stored_hash(&mut reader, head)?);
            left = head.extra_len();
        }
        read_payload(&mut reader, head, left, |bytes| hash.update(bytes))?;
    }
}
