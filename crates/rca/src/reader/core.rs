//! Reads the blocks of an archive: hashes them, verifies sessions and decompresses blobs.
//! [`Reader`](super::Reader) ensures that nothing is called after an error.

use std::io::{self, Read, Seek};
use std::ops::Range;

use super::{Dialect, End, ReadOptions, Session};
use crate::block::{Head, Kind, read_head, read_payload, read_stored_hash};
use crate::chunk_layer::{Layout, Mark, Payload, Unchunker};
use crate::error::Error;
use crate::hash::{DIGEST_LEN, Digest, HashRule, SessionHash};
use crate::limits::STEP_LEN;
use crate::zstd_stream::ZstdDecompressor;

/// The result of one step.
#[derive(Debug)]
pub(super) enum Step {
    Blob { name: String, offset: u64 },
    Verified(Session),
    End(End),
}

/// A reader that does not remember errors: its caller must stop after one.
#[derive(Debug)]
pub(super) struct Core<R> {
    source: Unchunker<R>,
    options: ReadOptions,
    /// The hash of the current session so far.
    hash: SessionHash,
    /// The rule that a hash matched; `None` as long as both rules match.
    rule: Option<HashRule>,
    /// Whether a reset block was `81 02`.
    readme_varint: bool,
    zstd: ZstdDecompressor,
    /// The number of the current session, from 0.
    session: u64,
    /// Whether the hash of the last session of the archive has been checked.
    closed: bool,
    /// Index of the current session's first blob.
    first_blob: u64,
    /// Blobs read to their end.
    blobs: u64,
    /// Blobs verified by the hash of their session.
    verified: u64,
    /// The blob that is being read.
    open: Option<OpenBlob>,
    /// A buffer for decompressed bytes that the caller does not get directly.
    scratch: Vec<u8>,
    /// The part of `scratch` with unread content of the open blob.
    ready: Range<usize>,
}

/// A blob block whose payload has not been read to its end.
#[derive(Clone, Copy, Debug)]
struct OpenBlob {
    head: Head,
    /// Payload bytes not yet read.
    left: u64,
    /// Whether zstd may hold output of the payload read so far.
    pending: bool,
}

/// The beginning of a session, to return to.
#[derive(Clone, Debug)]
pub(crate) struct SessionStart {
    mark: Mark,
    hash: SessionHash,
    rule: Option<HashRule>,
    session: u64,
    first_blob: u64,
}

impl<R: Read> Core<R> {
    pub(super) fn new(source: R, options: ReadOptions) -> Result<Self, Error> {
        let zstd = ZstdDecompressor::new(options.max_window_log)
            .map_err(|_| Error::BadOptions("max_window_log must be 10 to 27"))?;
        Ok(Core {
            source: Unchunker::new(source, Layout::ARCHIVE),
            options,
            hash: SessionHash::default(),
            rule: None,
            readme_varint: false,
            zstd,
            session: 0,
            closed: false,
            first_blob: 0,
            blobs: 0,
            verified: 0,
            open: None,
            scratch: Vec::new(),
            ready: 0..0,
        })
    }

    pub(super) fn blobs(&self) -> u64 {
        self.blobs
    }

    /// The index of the next blob that will be opened.
    pub(super) fn next_index(&self) -> u64 {
        self.blobs.saturating_add(u64::from(self.open.is_some()))
    }

    pub(super) fn verified(&self) -> u64 {
        self.verified
    }

    pub(super) fn session(&self) -> u64 {
        self.session
    }

    pub(super) fn dialect(&self) -> Dialect {
        if self.readme_varint || self.rule == Some(HashRule::Excluded) { Dialect::Readme } else { Dialect::Reference }
    }

    /// Digest of the current session up to here.
    pub(super) fn seal(&self) -> Digest {
        self.hash.digest()
    }

    pub(super) fn session_start(&self) -> SessionStart {
        SessionStart {
            mark: self.source.mark(),
            hash: self.hash.clone(),
            rule: self.rule,
            session: self.session,
            first_blob: self.first_blob,
        }
    }

    /// Reads up to the next blob, verified session or end; the rest of an open blob is read first.
    pub(super) fn step(&mut self) -> Result<Step, Error> {
        self.drain()?;
        loop {
            // The varint of a reset block belongs to the hash of the new session, every other
            // varint to that of the current session. The kind of the block is known only after the
            // varint was read. So the varint is added to both hashes, and `before` is the hash of
            // the current session without it.
            let before = self.hash.clone();
            let mut after = SessionHash::after_reset(self.rule);
            let hash = &mut self.hash;
            let head = read_head(&mut self.source, |bytes| {
                hash.update(bytes);
                after.update(bytes);
            })?;
            let Some(head) = head else {
                return self.finish();
            };
            match head.kind {
                Kind::Unknown => read_payload(&mut self.source, head, head.len, |bytes| hash.update(bytes))?,
                Kind::Blob => {
                    let name = self.open(head)?;
                    return Ok(Step::Blob { name, offset: head.offset });
                }
                Kind::Reset | Kind::ReadmeReset => return self.reset(head, &before, after),
            }
        }
    }

    /// Ends the session at a reset block. `before` is the hash of this session, `after` the hash of
    /// the next one, which begins with the varint of the reset block.
    fn reset(&mut self, head: Head, before: &SessionHash, mut after: SessionHash) -> Result<Step, Error> {
        let offset = head.offset;
        let stored = read_stored_hash(&mut self.source, head)?;
        after.update_stored(stored);
        let readme = head.kind == Kind::ReadmeReset;
        read_payload(&mut self.source, head, head.extra_len(), |bytes| after.update(bytes))?;
        self.rule = before.verify(stored, self.rule).map_err(|computed| {
            // The hash of an `81 02` does not match, so it is not a reset of the README's dialect.
            // In the dialect of the reference it is a short reset.
            if readme { Error::ShortReset { offset } } else { Error::ResetHashMismatch { offset, stored, computed } }
        })?;
        self.readme_varint |= readme;
        self.hash = after;
        self.zstd.reset().map_err(|source| Error::Zstd { offset, source })?;
        let done = self.close_session();
        self.session = self.session.saturating_add(1);
        Ok(Step::Verified(done))
    }

    /// The end of the archive. The first call ends the last session, later calls return the end.
    fn finish(&mut self) -> Result<Step, Error> {
        let stored = self.source.metadata().and_then(|metadata| <[u8; DIGEST_LEN]>::try_from(metadata).ok());
        if let (Some(stored), false) = (stored.map(Digest), self.closed) {
            let offset = self.source.chunk_offset();
            self.rule = self.hash.verify(stored, self.rule).map_err(|computed| Error::FinalHashMismatch {
                offset,
                stored,
                computed,
            })?;
            self.closed = true;
            return Ok(Step::Verified(self.close_session()));
        }
        Ok(Step::End(End {
            blobs: self.blobs,
            trailing_garbage: self.source.trailing_garbage().unwrap_or(false),
            dialect: self.dialect(),
        }))
    }

    /// Marks all blobs so far as verified and returns their session.
    fn close_session(&mut self) -> Session {
        let done = Session { index: self.session, blobs: self.first_blob..self.blobs };
        self.first_blob = self.blobs;
        self.verified = self.blobs;
        done
    }

    /// Begins a blob: decompresses its name and returns it.
    fn open(&mut self, head: Head) -> Result<String, Error> {
        let offset = head.offset;
        if self.zstd.is_finished() {
            read_payload(&mut self.source, head, head.len, |_| {})?;
            let source = io::Error::new(io::ErrorKind::InvalidData, "the session's frame has ended before");
            return Err(Error::Zstd { offset, source });
        }
        self.open = Some(OpenBlob { head, left: head.len, pending: false });
        let mut name = Vec::new();
        while !self.name_part(&mut name, offset)? {}
        String::from_utf8(name).or_else(|e| {
            // The reference parses the name after it has decompressed the whole blob. So if the
            // payload does not decompress either, this function reports that error instead.
            let mut scratch = self.take_scratch();
            while self.pull(&mut scratch)? > 0 {}
            Err(Error::BadUtf8Name { offset, valid_up_to: e.utf8_error().valid_up_to() })
        })
    }

    /// Decompresses once and adds the bytes before the NUL to `name`. Returns whether the NUL was
    /// found; the bytes after it are content and stay in `scratch`.
    fn name_part(&mut self, name: &mut Vec<u8>, offset: u64) -> Result<bool, Error> {
        let limit = self.options.max_name_len;
        let mut scratch = self.take_scratch();
        let len = self.pull(&mut scratch)?;
        if len == 0 {
            return Err(Error::NoNameTerminator { offset });
        }
        let nul = scratch[..len].iter().position(|byte| *byte == 0);
        let part = &scratch[..nul.unwrap_or(len)];
        if part.len() > limit.saturating_sub(name.len()) {
            return Err(Error::NameTooLong { offset, limit });
        }
        name.extend_from_slice(part);
        self.ready = nul.map_or(len, |nul| nul + 1)..len;
        self.scratch = scratch;
        Ok(nul.is_some())
    }

    /// Reads content of the open blob into `buf`. At its end returns 0 and closes the blob.
    pub(super) fn content(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        if buf.is_empty() {
            return Ok(0);
        }
        if !self.ready.is_empty() {
            let len = self.ready.len().min(buf.len());
            buf[..len].copy_from_slice(&self.scratch[self.ready.start..][..len]);
            self.ready.start += len;
            return Ok(len);
        }
        let len = self.pull(buf)?;
        if len == 0 && self.open.take().is_some() {
            self.blobs = self.blobs.saturating_add(1);
        }
        Ok(len)
    }

    /// Reads and drops the rest of the open blob, if there is one.
    fn drain(&mut self) -> Result<(), Error> {
        self.ready = 0..0;
        if self.open.is_some() {
            let mut scratch = self.take_scratch();
            while self.content(&mut scratch)? > 0 {}
            self.scratch = scratch;
        }
        Ok(())
    }

    /// Takes the scratch buffer, at its full length. The caller assigns it back to `scratch`; after
    /// an error it is not needed any more.
    fn take_scratch(&mut self) -> Vec<u8> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(STEP_LEN, 0);
        scratch
    }

    /// Decompresses some of the open blob into `buf`; 0 only at its end.
    fn pull(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        let Some(open) = &mut self.open else { return Ok(0) };
        let offset = open.head.offset;
        while open.left > 0 || open.pending {
            let input = self.source.fill(open.left)?;
            if input.is_empty() && open.left > 0 {
                return Err(Error::TruncatedBlock { offset });
            }
            let progress = match self.zstd.decompress(input, buf) {
                Ok(progress) => progress,
                Err(source) => {
                    // If the payload is also incomplete, this returns the error for that instead.
                    read_payload(&mut self.source, open.head, open.left, |_| {})?;
                    return Err(Error::Zstd { offset, source });
                }
            };
            // Bytes after the end of a frame in its block are hashed, but not decompressed.
            let consumed = if self.zstd.is_finished() { input.len() } else { progress.consumed };
            self.hash.update(&input[..consumed]);
            self.source.consume(consumed);
            open.left = open.left.saturating_sub(u64::try_from(consumed).unwrap_or(u64::MAX));
            open.pending = progress.produced == buf.len() && !self.zstd.is_finished();
            if progress.produced > 0 {
                return Ok(progress.produced);
            }
        }
        Ok(0)
    }
}

impl<R: Read + Seek> Core<R> {
    /// Moves to the beginning of the next session; to be called only between blobs. Reads only
    /// varints and reset blocks, and verifies no hash. `false` at the end.
    pub(super) fn skip_session(&mut self, file_len: u64) -> Result<bool, Error> {
        loop {
            let mut after = SessionHash::after_reset(self.rule);
            let Some(head) = read_head(&mut self.source, |bytes| after.update(bytes))? else { return Ok(false) };
            if matches!(head.kind, Kind::Reset | Kind::ReadmeReset) {
                after.update_stored(read_stored_hash(&mut self.source, head)?);
                read_payload(&mut self.source, head, head.extra_len(), |bytes| after.update(bytes))?;
                self.readme_varint |= head.kind == Kind::ReadmeReset;
                self.hash = after;
                self.session = self.session.saturating_add(1);
                self.first_blob = self.blobs;
                self.verified = self.blobs;
                return Ok(true);
            }
            if !self.source.skip(head.len)? {
                return Err(Error::TruncatedBlock { offset: head.offset });
            }
            if let (reach, Some(error)) = self.source.reach()
                && reach > file_len
            {
                return Err(error);
            }
            self.blobs = self.blobs.saturating_add(u64::from(head.kind == Kind::Blob));
        }
    }

    pub(super) fn rebuffered(self, buffer_len: usize) -> Result<Self, Error> {
        Ok(Core { source: self.source.rebuffered(buffer_len)?, ..self })
    }

    pub(super) fn file_len(&mut self) -> Result<u64, Error> {
        self.source.file_len()
    }

    /// Returns to the beginning of a session.
    pub(super) fn restore(&mut self, start: &SessionStart) -> Result<(), Error> {
        self.source.restore(&start.mark)?;
        let offset = self.source.offset();
        self.zstd.reset().map_err(|source| Error::Zstd { offset, source })?;
        self.hash = start.hash.clone();
        self.rule = start.rule;
        self.session = start.session;
        self.closed = false;
        self.first_blob = start.first_blob;
        self.blobs = start.first_blob;
        self.verified = start.first_blob;
        self.open = None;
        self.ready = 0..0;
        Ok(())
    }
}
