//! Reads a seekable archive in two passes: verifies all of it, then streams verified blobs.

use std::io::{self, Read, Seek};

use super::error::Error;
use super::hash::Digest;
use super::limits::STEP_LEN;
use super::reader::{Dialect, End, Event, ReadOptions, Reader, SessionStart, UnverifiedBlob};

/// An archive that was read and verified once, with the list of its blobs.
///
/// Memory: that of a [`Reader`], the names, and some 100 bytes per blob and per session.
#[derive(Debug)]
pub struct Archive<R> {
    reader: Reader<R>,
    sessions: Vec<SessionStart>,
    verified: Vec<Entry>,
    unverified: Vec<Entry>,
    end: Option<End>,
    damage: Option<Error>,
}

/// One blob of an [`Archive`].
#[derive(Clone, Debug)]
pub struct Entry {
    name: String,
    offset: u64,
    length: u64,
    session: u64,
    /// Digest of the session up to the blob's end, to detect later that the file has changed.
    seal: Digest,
}

impl Entry {
    /// Its name: any UTF-8 without NUL. It may be an unsafe path, because nothing checks it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Offset in the file of the first byte of its block.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of its content.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The session that contains the blob, counted from 0. To read the blob, the session is
    /// decompressed up to it.
    #[must_use]
    pub fn session(&self) -> u64 {
        self.session
    }
}

impl<R: Read + Seek> Archive<R> {
    /// Reads the archive from the source's position 0 to its end or to the first damage. Damage is
    /// not an error here: [`damage`](Archive::damage) returns it.
    ///
    /// # Errors
    /// Only errors for which [`is_damage`](Error::is_damage) is `false`: [`Error::Io`],
    /// [`Error::NameTooLong`], [`Error::ListingTooLong`], [`Error::BadOptions`].
    pub fn open(mut source: R, options: ReadOptions) -> Result<Self, Error> {
        source.rewind().map_err(|source| Error::Io { op: "seek in", offset: 0, source })?;
        let reader = Reader::with_options(source, options)?;
        let sessions = vec![reader.session_start()];
        let (verified, unverified) = (Vec::new(), Vec::new());
        let mut archive = Archive { reader, sessions, verified, unverified, end: None, damage: None };
        match archive.list(options.max_listing_len) {
            Ok(end) => archive.end = Some(end),
            Err(e) if e.is_damage() => archive.damage = Some(e),
            Err(e) => return Err(e),
        }
        Ok(archive)
    }

    /// The blobs of all sessions whose hash matched, in order. Names may repeat.
    pub fn verified(&self) -> &[Entry] {
        &self.verified
    }

    /// The blobs after the verified ones that could be read completely before the damage, but not
    /// be verified. Only a [`Reader`] can read their content.
    pub fn unverified(&self) -> &[Entry] {
        &self.unverified
    }

    /// What was found at the end of the archive; `None` if there is damage.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// The damage at which the first pass stopped; `None` if it reached the end.
    pub fn damage(&self) -> Option<&Error> {
        self.damage.as_ref()
    }

    /// As [`damage`](Archive::damage), but by value: closes the archive.
    #[must_use]
    pub fn into_damage(self) -> Option<Error> {
        self.damage
    }

    /// The dialect that was found.
    pub fn dialect(&self) -> Dialect {
        self.reader.dialect()
    }

    /// Streams the verified blob at `index`; `None` beyond the last.
    ///
    /// If blobs are read in ascending order, nothing is decompressed twice. Otherwise the session
    /// of the blob is decompressed from its start.
    ///
    /// # Errors
    /// [`Error::Io`]. If the file was changed since [`open`](Archive::open): [`Error::Changed`] or
    /// any damage.
    pub fn blob(&mut self, index: usize) -> Result<Option<VerifiedBlob<'_, R>>, Error> {
        let Some(entry) = self.verified.get(index) else { return Ok(None) };
        let changed = || Error::Changed { offset: entry.offset };
        let index = u64::try_from(index).unwrap_or(u64::MAX);
        let ahead = self.reader.session() == Some(entry.session) && self.reader.next_index() <= index;
        if !ahead {
            let start = usize::try_from(entry.session).ok().and_then(|session| self.sessions.get(session));
            self.reader.restore(start.ok_or_else(changed)?)?;
        }
        while self.reader.next_index() < index {
            let Event::Blob(_) = self.reader.next_event()? else { return Err(changed()) };
        }
        match self.reader.next_event()? {
            Event::Blob(blob) if blob.offset() == entry.offset && blob.name() == entry.name => {
                Ok(Some(VerifiedBlob { blob, entry, read_len: 0 }))
            }
            _ => Err(changed()),
        }
    }

    /// The first pass: lists the blobs and verifies the sessions, up to the end or an error.
    fn list(&mut self, limit: usize) -> Result<End, Error> {
        let (mut sink, mut names_len) = (vec![0; STEP_LEN], 0_usize);
        loop {
            let blob = match self.reader.next_event()? {
                Event::Blob(blob) => blob,
                Event::Verified(_) => {
                    self.verified.append(&mut self.unverified);
                    self.sessions.push(self.reader.session_start());
                    continue;
                }
                Event::End(end) => return Ok(end),
            };
            names_len = names_len.saturating_add(blob.name().len());
            if names_len > limit {
                return Err(Error::ListingTooLong { offset: blob.offset(), limit });
            }
            self.unverified.push(read_entry(blob, &mut sink)?);
        }
    }
}

/// Reads a blob to its end and makes its entry.
fn read_entry<R: Read>(mut blob: UnverifiedBlob<'_, R>, sink: &mut [u8]) -> Result<Entry, Error> {
    let mut length = 0_u64;
    loop {
        match blob.read_content(sink)? {
            0 => break,
            len => length = length.saturating_add(u64::try_from(len).unwrap_or(u64::MAX)),
        }
    }
    let (offset, session, seal) = (blob.offset(), blob.session(), blob.seal());
    Ok(Entry { name: blob.name().to_owned(), offset, length, session, seal })
}

/// A blob that was verified when the [`Archive`] was opened.
///
/// If the file was changed since, the content never seems complete: a read fails with
/// [`Error::Changed`] or with the damage found, at the latest when the content ends.
#[derive(Debug)]
pub struct VerifiedBlob<'a, R> {
    blob: UnverifiedBlob<'a, R>,
    entry: &'a Entry,
    read_len: u64,
}

impl<R: Read> VerifiedBlob<'_, R> {
    /// The blob's entry in the list of the archive.
    pub fn entry(&self) -> &Entry {
        self.entry
    }

    /// Reads content into `buf`; 0 at its end (or if `buf` is empty).
    ///
    /// # Errors
    /// As [`Archive::blob`].
    pub fn read_content(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        let len = self.blob.read_content(buf)?;
        self.read_len = self.read_len.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
        let ended = len == 0 && !buf.is_empty();
        if self.read_len > self.entry.length
            || ended && (self.read_len != self.entry.length || self.blob.seal() != self.entry.seal)
        {
            return Err(Error::Changed { offset: self.entry.offset });
        }
        Ok(len)
    }
}

/// The same as [`read_content`](VerifiedBlob::read_content), with the [`Error`] inside the
/// [`io::Error`].
impl<R: Read> Read for VerifiedBlob<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.read_content(buf)?)
    }
}
