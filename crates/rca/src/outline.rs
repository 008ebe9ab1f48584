//! Where the sessions of an archive are, found without decompressing anything.

use std::io::{Read, Seek};

use super::error::Error;
use super::limits::{SKIP_BUFFER_LEN, STEP_LEN};
use super::reader::{ReadOptions, Reader, SessionStart};

/// The sessions of an archive. Each can be read without those before it.
///
/// [`open`](Outline::open) reads the varints of all blocks and skips their payload, with one small
/// read per blob. It hashes nothing, so trust a session only after reading it up to its
/// [`Event::Verified`].
///
/// Memory: that of a [`Reader`] and some 300 bytes per session.
///
/// [`Event::Verified`]: super::Event::Verified
#[derive(Debug)]
pub struct Outline<R> {
    reader: Reader<R>,
    sessions: Vec<SessionStart>,
    blob_count: u64,
}

impl<R: Read + Seek> Outline<R> {
    /// Finds the sessions of the archive that begins at the source's position 0.
    ///
    /// # Errors
    /// Damage to the varints or the headers, [`Error::BadOptions`], [`Error::Io`].
    pub fn open(mut source: R, options: ReadOptions) -> Result<Self, Error> {
        source.rewind().map_err(|source| Error::Io { op: "seek in", offset: 0, source })?;
        let mut reader = Reader::with_options(source, options)?.rebuffered(SKIP_BUFFER_LEN)?;
        let file_len = reader.file_len()?;
        let mut sessions = vec![reader.session_start()];
        while reader.skip_session(file_len)? {
            sessions.push(reader.session_start());
        }
        let blob_count = reader.blobs();
        Ok(Outline { reader: reader.rebuffered(STEP_LEN)?, sessions, blob_count })
    }

    /// How many sessions there are; an archive without blobs has an empty one.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// How many blobs there are in all sessions.
    #[must_use]
    pub fn blob_count(&self) -> u64 {
        self.blob_count
    }

    /// A reader at the beginning of the session `index`, counted from 0; `None` if there is no such
    /// session.
    ///
    /// Its next events are the session's blobs and then
    /// [`Event::Verified`](super::Event::Verified). After this event the reader continues with the
    /// next session.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn session(&mut self, index: usize) -> Result<Option<&mut Reader<R>>, Error> {
        let Some(start) = self.sessions.get(index) else { return Ok(None) };
        self.reader.restore(start)?;
        Ok(Some(&mut self.reader))
    }
}
