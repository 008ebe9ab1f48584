//! Reads the blobs of an archive: in one pass, from any source, with bounded memory.

mod core;

use std::io::{self, Read, Seek};
use std::ops::Range;

pub(super) use self::core::SessionStart;
use self::core::{Core, Step};
use super::error::Error;
use super::hash::Digest;
use super::limits::{DEFAULT_MAX_LISTING_LEN, DEFAULT_MAX_NAME_LEN, MAX_WINDOW_LOG};

/// Bounds on the memory that an untrusted archive can make a reader allocate.
///
/// The memory of a [`Reader`] is at most `1 << max_window_log` + `max_name_len` + some 600 KiB,
/// whatever the lengths of the blobs. The window has the size that the zstd frame states, which is
/// 2 MiB in archives of this crate with default options.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Largest zstd window, as a binary logarithm of bytes from 10 to 27; default 27.
    pub max_window_log: u32,
    /// Longest name in bytes; default 1 MiB.
    pub max_name_len: usize,
    /// Largest sum of name lengths in bytes in an [`Archive`](super::Archive); default 256 MiB.
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
    /// As the reference implementation does: a reset is `81 04`, and its hash bytes are hashed. An
    /// archive without a reset block fits both dialects and counts as this one.
    Reference,
    /// As the README says, in at least one respect: a reset is `81 02`, or its hash bytes are not
    /// hashed.
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

/// What a [`Reader`] has reached.
#[derive(Debug)]
pub enum Event<'a, R> {
    /// A blob. Its hash has not been checked yet.
    Blob(UnverifiedBlob<'a, R>),
    /// The hash of a session matched: its blobs are what the writer wrote.
    Verified(Session),
    /// The clean end of the archive; everything before it has been verified.
    End(End),
}

/// The blobs that one hash covers and that share one zstd state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Number of the session, from 0. A reset block begins the next session.
    pub index: u64,
    /// Indexes of its blobs among all blobs of the archive, from 0; may be empty.
    pub blobs: Range<u64>,
}

/// What is known when the end was reached without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Blobs in the archive.
    pub blobs: u64,
    /// Whether garbage follows the end: bytes of an interrupted append. This is not an error.
    pub trailing_garbage: bool,
    /// The dialect that was found.
    pub dialect: Dialect,
}

/// Reads an archive from its first byte on, from any reader, pipes included.
///
/// A hash covers a whole session, so it can be checked only after the blobs of the session were
/// streamed. Therefore a reader returns an [`UnverifiedBlob`] for each blob, and
/// [`Event::Verified`] after the last blob of the session. A caller that must not use wrong bytes
/// buffers them until this event, or uses [`Archive`](super::Archive) on a seekable source.
///
/// After the first error every call returns [`Error::Stopped`]. [`verified`](Reader::verified) and
/// [`blobs`](Reader::blobs) then tell how many blobs were verified or read before it.
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
    /// [`Error::BadOptions`] if zstd cannot allocate its state.
    pub fn new(source: R) -> Result<Self, Error> {
        Reader::with_options(source, ReadOptions::default())
    }

    /// A reader with these limits. `source` must be at the first byte of the archive. It needs no
    /// buffer of its own, because it is read in steps of 128 KiB.
    ///
    /// # Errors
    /// [`Error::BadOptions`] for a window outside the limits, or if zstd cannot allocate its state.
    pub fn with_options(source: R, options: ReadOptions) -> Result<Self, Error> {
        Ok(Reader { core: Core::new(source, options)?, stage: Stage::Reading })
    }

    /// Moves to the next blob, verified session or end. The unread rest of the blob before is
    /// decompressed and dropped, because the next blob may refer to it.
    ///
    /// After the end, every call returns the end again.
    ///
    /// # Errors
    /// Any error for which [`Error::is_damage`] is `true`, [`Error::NameTooLong`], [`Error::Io`].
    /// After an error: [`Error::Stopped`].
    pub fn next_event(&mut self) -> Result<Event<'_, R>, Error> {
        match self.step()? {
            Step::Blob { name, offset } => Ok(Event::Blob(self.blob(name, offset))),
            Step::Verified(session) => Ok(Event::Verified(session)),
            Step::End(end) => Ok(Event::End(end)),
        }
    }

    /// Moves to the next blob; `None` at the end, where all blobs are verified.
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

    /// How many blobs were read to their end, verified or not. So it is also the index of the blob
    /// that is being read, or if none is, of the next one.
    pub fn blobs(&self) -> u64 {
        self.core.blobs()
    }

    /// How many blobs, from the first on, are verified by the hash of their session.
    pub fn verified(&self) -> u64 {
        self.core.verified()
    }

    /// The dialect found so far.
    pub fn dialect(&self) -> Dialect {
        self.core.dialect()
    }

    /// What is known of the end; `None` if it was not reached without an error.
    pub fn end(&self) -> Option<End> {
        match self.stage {
            Stage::Ended(end) => Some(end),
            Stage::Reading | Stage::Stopped => None,
        }
    }

    /// The beginning of the session, to return to. To be called only before the first block of the
    /// session is read.
    pub(super) fn session_start(&self) -> SessionStart {
        self.core.session_start()
    }

    /// The session that is being read, from 0; `None` after its end or an error.
    pub(super) fn session(&self) -> Option<u64> {
        matches!(self.stage, Stage::Reading).then(|| self.core.session())
    }

    /// The index that the next blob event will have, if one comes.
    pub(super) fn next_index(&self) -> u64 {
        self.core.next_index()
    }

    /// Does a step of [`Core`], unless the reader has stopped or is at the end.
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
    /// Moves to the beginning of the next session without reading this one; `false` at the end.
    /// To be called only before the first block of a session is read.
    pub(super) fn skip_session(&mut self, file_len: u64) -> Result<bool, Error> {
        self.core.skip_session(file_len).inspect_err(|_| self.stage = Stage::Stopped)
    }

    /// The same reader at the same place, with a buffer of this length.
    pub(super) fn rebuffered(self, buffer_len: usize) -> Result<Self, Error> {
        Ok(Reader { core: self.core.rebuffered(buffer_len)?, stage: self.stage })
    }

    pub(super) fn file_len(&mut self) -> Result<u64, Error> {
        self.core.file_len()
    }

    /// Seeks to the beginning of a session. Reading continues there as if the reader had read
    /// everything before, except that the hash of the session before is not checked again.
    pub(super) fn restore(&mut self, start: &SessionStart) -> Result<(), Error> {
        self.core.restore(start).inspect_err(|_| self.stage = Stage::Stopped)?;
        self.stage = Stage::Reading;
        Ok(())
    }
}

/// A blob whose hash has not been checked yet.
///
/// Damage may have changed its content. Trust it only after an [`Event::Verified`] whose range
/// contains [`index`](UnverifiedBlob::index).
#[derive(Debug)]
pub struct UnverifiedBlob<'a, R> {
    reader: &'a mut Reader<R>,
    name: String,
    index: u64,
    session: u64,
    offset: u64,
}

impl<R: Read> UnverifiedBlob<'_, R> {
    /// Its name, valid UTF-8 without NUL. It may be empty, may occur several times, and may be an
    /// unsafe path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its index among all blobs of the archive, from 0.
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
    /// Those of [`Reader::next_event`]. After an error the reader stops.
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
