//! The reading of blocks: hashes, sessions, decompression. [`Reader`](super::Reader) adds what a
//! caller may do in which order.

use std::io::{self, Read, Seek};
use std::ops::Range;

use super::{Dialect, End, ReadOptions, Session};
use crate::block::{Head, Kind, read_head, read_payload, read_stored_hash};
use crate::chunk_layer::{Layout, Mark, Payload, Unchunker};
use crate::error::Error;
use crate::hash::{DIGEST_LEN, Digest, HashRule, SessionHash};
use crate::limits::STEP_LEN;
use crate::zstd_stream::ZstdDecompressor;

/// What one step has come to.
#[derive(Debug)]
pub(super) enum Step {
    Blob { name: String, offset: u64 },
    Verified(Session),
    End(End),
}

/// A reader without the memory of having failed.
#[derive(Debug)]
pub(super) struct Core<R> {
    source: Unchunker<R>,
    options: ReadOptions,
    hash: SessionHash,
    rule: Option<HashRule>,
    readme_varint: bool,
    zstd: ZstdDecompressor,
    session: u64,
    /// Whether the hash of the last session has been checked.
    closed: bool,
    /// Index of the session's first blob.
    first_blob: u64,
    blobs: u64,
    verified: u64,
    open: Option<OpenBlob>,
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
    /// zstd may hold output of the payload read so far.
    pending: bool,
}

/// A place between blobs to come back to: the beginning of a session.
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

    /// Goes on to the next thing worth telling, behind what is left of an open blob.
    pub(super) fn step(&mut self) -> Result<Step, Error> {
        self.drain()?;
        loop {
            // The hash of a session ends before the varint of the reset block behind it, and a
            // varint can be of any length: so it goes into the old hash and into a new one.
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

    fn reset(&mut self, head: Head, before: &SessionHash, mut after: SessionHash) -> Result<Step, Error> {
        let offset = head.offset;
        let stored = read_stored_hash(&mut self.source, head)?;
        after.update_stored(stored);
        let readme = head.kind == Kind::ReadmeReset;
        read_payload(&mut self.source, head, head.extra_len(), |bytes| after.update(bytes))?;
        self.rule = before.verify(stored, self.rule).map_err(|computed| {
            // If it is not the README's reset after all, it is the reference's with four bytes.
            if readme { Error::ShortReset { offset } } else { Error::ResetHashMismatch { offset, stored, computed } }
        })?;
        self.readme_varint |= readme;
        self.hash = after;
        self.zstd.reset().map_err(|source| Error::Zstd { offset, source })?;
        let done = self.close_session();
        self.session = self.session.saturating_add(1);
        Ok(Step::Verified(done))
    }

    /// The end: of the last session when first reached, then of everything.
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

    fn close_session(&mut self) -> Session {
        let done = Session { index: self.session, blobs: self.first_blob..self.blobs };
        self.first_blob = self.blobs;
        self.verified = self.blobs;
        done
    }

    /// Begins a blob: decompresses its name.
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
            // The reference looks at the name when it has all of the blob: a payload that does not
            // decompress is the graver error.
            let mut scratch = self.take_scratch();
            while self.pull(&mut scratch)? > 0 {}
            Err(Error::BadUtf8Name { offset, valid_up_to: e.utf8_error().valid_up_to() })
        })
    }

    /// Decompresses once and takes what belongs to the name; `true` if that is all of it.
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

    /// Content of the open blob; 0 at its end, which closes it.
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

    /// Reads what is left of the open blob, if there is one.
    fn drain(&mut self) -> Result<(), Error> {
        self.ready = 0..0;
        if self.open.is_some() {
            let mut scratch = self.take_scratch();
            while self.content(&mut scratch)? > 0 {}
            self.scratch = scratch;
        }
        Ok(())
    }

    /// The scratch buffer at its full length; given back by assignment, or lost with an error.
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
                    // Is all of the payload there? If not, that is the error to report.
                    read_payload(&mut self.source, open.head, open.left, |_| {})?;
                    return Err(Error::Zstd { offset, source });
                }
            };
            // Whatever follows the end of a frame in its block is ignored, but hashed.
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
    /// Goes on to the beginning of the next session; only between blobs. Reads nothing but varints
    /// and reset blocks, and believes them. `false` at the end.
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
