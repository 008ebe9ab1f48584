//! The blob layer, reading: one pass, any source, bounded memory.

mod core;

use std::io::{self, Read, Seek};
use std::ops::Range;

pub(super) use self::core::SessionStart;
use self::core::{Core, Step};
use super::error::Error;
use super::hash::Digest;
use super::limits::{DEFAULT_MAX_LISTING_LEN, DEFAULT_MAX_NAME_LEN, MAX_WINDOW_LOG};

/// Bounds on what an untrusted archive can make a reader hold.
///
/// The memory of a [`Reader`] is at most `1 << max_window_log` (only if a frame asks for it; ours
/// ask for 2 MiB) + `max_name_len` + some 600 KiB, whatever the blobs' lengths.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Largest zstd window, as a binary logarithm of bytes from 10 to 27; default 27.
    pub max_window_log: u32,
    /// Longest name in bytes; default 1 MiB.
    pub max_name_len: usize,
    /// Sum of name lengths in bytes that an [`Archive`](super::Archive) may hold; default 256 MiB.
    pub max_listing_len: usize,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions {
            max_window_log: MAX_WINDOW_LOG,
            max_name_len: DEFAULT_MAX_NAME_LEN,
            max_listing_len: DEFAULT_MAX_LISTING_LEN,
        }
    }
}

/// How an archive's reset blocks are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// As the reference implementation does: `81 04`, and the hash bytes are hashed. An archive
    /// without anything that would tell (no reset block) counts as this.
    Reference,
    /// As the README's text says, in at least one respect: `81 02`, or the hash bytes are left out
    /// of the hash.
    Readme,
}

impl Dialect {
    /// `reference` or `readme`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Dialect::Reference => "reference",
            Dialect::Readme => "readme",
        }
    }
}

/// What a [`Reader`] has come to.
#[derive(Debug)]
pub enum Event<'a, R> {
    /// A blob, not yet covered by a hash that was checked.
    Blob(UnverifiedBlob<'a, R>),
    /// The hash of a session was right: its blobs are what the writer wrote.
    Verified(Session),
    /// The clean end of the archive; everything before it has been verified.
    End(End),
}

/// Blobs that one hash covers, and that share one zstd state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// 0-based; a reset block begins the next one.
    pub index: u64,
    /// Its blobs, counted from 0 over the whole archive, half-open; may be empty.
    pub blobs: Range<u64>,
}

/// What is known at a clean end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Blobs in the archive.
    pub blobs: u64,
    /// Whether bytes follow that belong to nothing: an append that was interrupted. No error.
    pub trailing_garbage: bool,
    /// The dialect met.
    pub dialect: Dialect,
}

/// Reads an archive from its first byte on, from any reader, pipes included.
///
/// Blobs are streamed *before* the hash that covers them can be checked, because it covers the
/// whole session; hence [`UnverifiedBlob`] and the later [`Event::Verified`]. A caller that must
/// not see wrong bytes buffers them until then, or uses [`Archive`](super::Archive) on a seekable
/// source.
///
/// The first error ends the reading: every later call returns [`Error::Stopped`].
/// [`verified`](Reader::verified) and [`blobs`](Reader::blobs) still tell how far it was valid.
///
/// ```
/// # let mut writer = rca::Writer::open(std::io::Cursor::new(Vec::new()))?;
/// # writer.append("a name", &b"some content"[..])?;
/// # let archive = writer.into_storage().into_inner();
/// let mut reader = rca::Reader::new(archive.as_slice())?;
/// while let Some(mut blob) = reader.next_blob()? {
///     let (name, mut content) = (blob.name().to_owned(), Vec::new());
///     std::io::copy(&mut blob, &mut content)?;
///     assert_eq!((name.as_str(), content.as_slice()), ("a name", &b"some content"[..]));
/// }
/// assert_eq!(reader.verified(), 1); // only now is it known that the content was right
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Reader<R> {
    core: Core<R>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Reading,
    Ended(End),
    Stopped,
}

impl<R: Read> Reader<R> {
    /// A reader with the default limits.
    ///
    /// # Errors
    /// [`Error::BadOptions`] if zstd gives no state.
    pub fn new(source: R) -> Result<Self, Error> {
        Reader::with_options(source, ReadOptions::default())
    }

    /// A reader with its own limits. `source` is at the first byte of the archive; it is read in
    /// steps of 128 KiB and needs no buffer of its own.
    ///
    /// # Errors
    /// [`Error::BadOptions`] for a window outside the limits.
    pub fn with_options(source: R, options: ReadOptions) -> Result<Self, Error> {
        Ok(Reader { core: Core::new(source, options)?, stage: Stage::Reading })
    }

    /// Goes on to the next blob, verified session or end. What the caller has not read of the
    /// blob before is decompressed and dropped: the next one may refer to it.
    ///
    /// Behind the end it is the end again.
    ///
    /// # Errors
    /// Any that [`Error::is_damage`], [`Error::NameTooLong`], [`Error::Io`]; then
    /// [`Error::Stopped`].
    pub fn next_event(&mut self) -> Result<Event<'_, R>, Error> {
        match self.step()? {
            Step::Blob { name, offset } => Ok(Event::Blob(self.blob(name, offset))),
            Step::Verified(session) => Ok(Event::Verified(session)),
            Step::End(end) => Ok(Event::End(end)),
        }
    }

    /// Goes on to the next blob, or `None` at the clean end, when all of them are verified.
    ///
    /// # Errors
    /// As [`next_event`](Reader::next_event).
    pub fn next_blob(&mut self) -> Result<Option<UnverifiedBlob<'_, R>>, Error> {
        loop {
            match self.step()? {
                Step::Blob { name, offset } => return Ok(Some(self.blob(name, offset))),
                Step::Verified(_) => {}
                Step::End(_) => return Ok(None),
            }
        }
    }

    /// Blobs that were read to their end, verified or not. A blob that is being read has this
    /// index; if none is, the next one has it.
    pub fn blobs(&self) -> u64 {
        self.core.blobs()
    }

    /// How many blobs, from the first on, are covered by a hash that was right.
    pub fn verified(&self) -> u64 {
        self.core.verified()
    }

    /// The dialect as far as it has shown.
    pub fn dialect(&self) -> Dialect {
        self.core.dialect()
    }

    /// What is known of the end; `None` before a clean one.
    pub fn end(&self) -> Option<End> {
        match self.stage {
            Stage::Ended(end) => Some(end),
            Stage::Reading | Stage::Stopped => None,
        }
    }

    /// The beginning of the session; only right before its first block.
    pub(super) fn session_start(&self) -> SessionStart {
        self.core.session_start()
    }

    /// The session that is being read, from 0; `None` behind its end or an error.
    pub(super) fn session(&self) -> Option<u64> {
        matches!(self.stage, Stage::Reading).then(|| self.core.session())
    }

    /// The index that the next blob event will have, if one comes.
    pub(super) fn next_index(&self) -> u64 {
        self.core.next_index()
    }

    fn step(&mut self) -> Result<Step, Error> {
        match self.stage {
            Stage::Stopped => return Err(Error::Stopped),
            Stage::Ended(end) => return Ok(Step::End(end)),
            Stage::Reading => {}
        }
        let step = self.core.step().inspect_err(|_| self.stage = Stage::Stopped)?;
        if let Step::End(end) = &step {
            self.stage = Stage::Ended(*end);
        }
        Ok(step)
    }

    fn blob(&mut self, name: String, offset: u64) -> UnverifiedBlob<'_, R> {
        let (index, session) = (self.core.blobs(), self.core.session());
        UnverifiedBlob { reader: self, name, index, session, offset }
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Goes on to the beginning of the next session without reading this one; `false` at the end.
    /// Only right before the first block of a session.
    pub(super) fn skip_session(&mut self, file_len: u64) -> Result<bool, Error> {
        self.core.skip_session(file_len).inspect_err(|_| self.stage = Stage::Stopped)
    }

    /// The same place, reading so many bytes at once.
    pub(super) fn rebuffered(self, buffer_len: usize) -> Result<Self, Error> {
        Ok(Reader { core: self.core.rebuffered(buffer_len)?, stage: self.stage })
    }

    pub(super) fn file_len(&mut self) -> Result<u64, Error> {
        self.core.file_len()
    }

    /// Goes back, or on, to the beginning of a session. What follows is read as if it had been
    /// reached from there, except that the hash in front of it is not checked again.
    pub(super) fn restore(&mut self, start: &SessionStart) -> Result<(), Error> {
        self.core.restore(start).inspect_err(|_| self.stage = Stage::Stopped)?;
        self.stage = Stage::Reading;
        Ok(())
    }
}

/// A blob whose bytes no hash has been checked for yet.
///
/// Its content is what the archive says, which damage may have changed: it is to be trusted only
/// when [`Event::Verified`] has come with a range that holds [`index`](UnverifiedBlob::index).
#[derive(Debug)]
pub struct UnverifiedBlob<'a, R> {
    reader: &'a mut Reader<R>,
    name: String,
    index: u64,
    session: u64,
    offset: u64,
}

impl<R: Read> UnverifiedBlob<'_, R> {
    /// Its name. May be empty, may repeat, may be a path that leads anywhere: not checked.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its place among all blobs, from 0.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The session it belongs to, from 0.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// Offset in the file of the first byte of its block.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads content into `buf`; 0 at its end (or if `buf` is empty). The length is not known
    /// before the end.
    ///
    /// # Errors
    /// As [`Reader::next_event`]; the reader stops.
    pub fn read_content(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        if matches!(self.reader.stage, Stage::Stopped) {
            return Err(Error::Stopped);
        }
        self.reader.core.content(buf).inspect_err(|_| self.reader.stage = Stage::Stopped)
    }

    /// Digest of the session up to here; after the blob's end it covers all of the blob.
    pub(super) fn seal(&self) -> Digest {
        self.reader.core.seal()
    }
}

/// The same as [`read_content`](UnverifiedBlob::read_content), with the [`Error`] inside the
/// [`io::Error`].
impl<R: Read> Read for UnverifiedBlob<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.read_content(buf)?)
    }
}
