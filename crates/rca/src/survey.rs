//! Finds what a writer must know of an archive before it appends: where it ends, and the hash of
//! its last session.
//!
//! The reference copies the stored metadata into a reset block without a check. So a damaged
//! archive stays damaged after every later append. This crate checks the last session first. It
//! reads only the varints of earlier sessions and hashes the payload of the last one. It
//! decompresses nothing.

use std::io::{Read, Seek};
use std::ops::Range;

use super::block::{Kind, read_head, read_payload, read_stored_hash};
use super::chunk_layer::{Chunk, Scan, SpanReader, Tail};
use super::error::Error;
use super::hash::{DIGEST_LEN, Digest, HashRule, SessionHash};
use super::limits::SKIP_BUFFER_LEN;
use super::repair;
use super::settled::Settled;

/// Finds the committed state, by the safe rule of `docs/spec/rca-notes.md`:
///
/// - Bytes after a chunk that is not full are garbage. After a full chunk, so are a header with
///   size 0 and what follows it, and less than a header.
/// - A header that is provably a mixture of the header before an append and the header after it can
///   be repaired (see [`repair`]).
/// - A chunk that runs past the end of the file is garbage if the chunks before it are a sound
///   archive by themselves, and it has no complete blob. A crash of the reference leaves such a
///   chunk (bug B2). With a complete blob, the chunk was committed before, and the file was
///   truncated.
/// - Everything else that is invalid is refused.
pub(crate) fn settle<S: Read + Seek>(source: &mut S, found: &Scan) -> Result<Settled, Error> {
    let error = match (&found.tail, found.chunks.split_last()) {
        (Tail::End, _) => match last_digest(source, &found.chunks, found.file_len) {
            Ok(digest) => return Ok(Settled::sound(&found.chunks, digest)),
            Err(e) => e,
        },
        (Tail::PastEnd, Some((past, before))) => {
            if let Some(digest) = digest_if_sound(source, before, found.file_len)? {
                // The repair comes first, because a torn size may run past the end of the file,
                // too.
                if let Some(repaired) = repair::mend(source, found)? {
                    return Ok(repaired);
                }
                if !has_complete_blob(source, past, found.file_len)? {
                    return Ok(Settled::sound(before, Some(digest)));
                }
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

/// Whether a chunk that begins with a block has a complete blob before the end of the file.
fn has_complete_blob<S: Read + Seek>(source: &mut S, chunk: &Chunk, file_len: u64) -> Result<bool, Error> {
    let payload = chunk.payload_start()..file_len.max(chunk.payload_start());
    let mut reader = SpanReader::with_buffer(source, std::slice::from_ref(&payload), SKIP_BUFFER_LEN);
    loop {
        let head = match read_head(&mut reader, |_| {}) {
            Ok(Some(head)) => head,
            Err(e) if !e.is_damage() => return Err(e),
            Ok(None) | Err(_) => return Ok(false),
        };
        if !reader.skip(head.len) {
            return Ok(false);
        }
        // A hole of zeros reads as empty blobs, which no writer writes.
        if head.kind == Kind::Blob && head.len > 0 {
            return Ok(true);
        }
    }
}

/// The digest of the last session of `chunks`; `None` if they are not a sound archive by
/// themselves, or if there are none.
fn digest_if_sound<S: Read + Seek>(source: &mut S, chunks: &[Chunk], file_len: u64) -> Result<Option<Digest>, Error> {
    match last_digest(source, chunks, file_len) {
        Ok(digest) => Ok(digest),
        Err(e) if !e.is_damage() => Err(e),
        Err(_) => Ok(None),
    }
}

/// Checks the last session against the metadata of the last chunk, and returns its hash; `None`
/// without chunks.
fn last_digest<S: Read + Seek>(source: &mut S, chunks: &[Chunk], file_len: u64) -> Result<Option<Digest>, Error> {
    let Some(last) = chunks.last() else { return Ok(None) };
    let (session_spans, has_readme_reset) = last_session(source, Scan::spans(chunks, file_len))?;
    let at = session_spans.first().map_or(0, |span| span.start);
    if has_readme_reset {
        return Err(Error::ReadmeDialect { offset: at });
    }
    let hash = hash_session(source, &session_spans)?;
    let stored = last.metadata.as_slice().try_into().map(Digest);
    let stored = stored.map_err(|_| Error::BadOptions("an archive's metadata has 8 bytes"))?;
    match hash.verify(stored, None) {
        Ok(Some(HashRule::Excluded)) => Err(Error::ReadmeDialect { offset: at }),
        Ok(_) => Ok(Some(stored)),
        Err(computed) => Err(Error::FinalHashMismatch { offset: last.offset, stored, computed }),
    }
}

/// The file ranges of the last session's payload, from the varint of its reset block on, and
/// whether any reset block of the archive is the README's. Skips the payload of every block.
fn last_session<S: Read + Seek>(source: &mut S, spans: Vec<Range<u64>>) -> Result<(Vec<Range<u64>>, bool), Error> {
    let mut reader = SpanReader::with_buffer(source, &spans, SKIP_BUFFER_LEN);
    let (mut session_spans, mut has_readme_reset) = (spans, false);
    loop {
        let here = reader.rest();
        let Some(head) = read_head(&mut reader, |_| {})? else { return Ok((session_spans, has_readme_reset)) };
        match head.kind {
            Kind::Reset => session_spans = here,
            Kind::ReadmeReset => (session_spans, has_readme_reset) = (here, true),
            Kind::Blob | Kind::Unknown => {}
        }
        let len = if head.kind == Kind::ReadmeReset { DIGEST_LEN as u64 } else { head.len };
        if !reader.skip(len) {
            return Err(Error::TruncatedBlock { offset: head.offset });
        }
    }
}

/// Hashes a session, which may begin with a reset block.
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
