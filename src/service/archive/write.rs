//! An archive that is being written: its contents so far, and appending to it.
//!
//! An appended blob is durable when the append returns. A crash leaves all blobs before it, and
//! bytes after them that the next run truncates.

use std::io::{Read, Seek};
use std::sync::atomic::Ordering;

use super::catalog::{Entries, Known, RecordDigest};
use super::counted::Counted;
use super::error::ArchiveError;
use super::pages::Page;
use super::record::{FileHead, KeysHead, Records, XorbHead, parse};
use super::{Kind, SIGNATURE_PREFIX};
use crate::rca::{Dialect, Event, Outline, ReadOptions, Reader, Storage, UnverifiedBlob, WriteOptions, Writer};

/// Contents after the last catalog at which the next one is written. After a run that was killed,
/// the next one reads about so much again, which takes seconds.
const CATALOG_EVERY_LEN: u64 = 1 << 30;

/// An archive to back up into. All of its operations block.
#[derive(Debug)]
pub struct BackupArchive<S> {
    writer: Writer<Counted<S>>,
    blob_count: u64,
    /// Entries without a catalog.
    uncatalogued: Entries,
    uncatalogued_len: u64,
    /// Whether a run that was killed has left entries without a catalog.
    has_leftovers: bool,
    /// Bytes of the archive when it was opened.
    opened_len: u64,
    /// Bytes that were read to learn its contents. Later reads are the writer's, of recently
    /// written data.
    read_len: u64,
}

impl<S: Storage> BackupArchive<S> {
    /// Opens an archive that was begun with [`empty_archive`](super::empty_archive), and reads its
    /// catalogs.
    ///
    /// Reads the varints of all blobs, the catalogs, and the sessions after the last one. Changes
    /// nothing, except that it truncates what a run that was killed has left after the end.
    ///
    /// # Errors
    ///
    /// See [`ArchiveError`].
    pub(super) fn open(storage: S) -> Result<(Self, Known), ArchiveError> {
        let mut storage = Counted::new(storage);
        let read_len = storage.read_len();
        check_signature(&mut storage)?;
        let mut writer = Writer::with_options(storage, WriteOptions::default())?;
        let opened_len = writer.committed_end();
        let mut outline = writer.outline(ReadOptions::default())?;
        let blob_count = outline.blob_count();
        let (known, uncatalogued) = read_catalogs(&mut outline)?;
        drop(outline);
        let has_leftovers = !uncatalogued.is_empty();
        let read_len = read_len.load(Ordering::Relaxed);
        let archive =
            Self { writer, blob_count, uncatalogued, uncatalogued_len: 0, has_leftovers, opened_len, read_len };
        Ok((archive, known))
    }

    /// Appends records as one blob; durable when it returns.
    pub(super) fn append(&mut self, kind: Kind, mut page: Page) -> Result<(), ArchiveError> {
        // First, so that runs that are killed repeatedly do not leave more and more to be read
        // again.
        if std::mem::take(&mut self.has_leftovers) {
            self.close()?;
        }
        let entries = std::mem::take(&mut page.entries);
        self.uncatalogued_len += page.content_len();
        self.append_blob(kind, page.into_reader())?;
        self.uncatalogued.append(entries);
        if self.uncatalogued_len >= CATALOG_EVERY_LEN { self.close() } else { Ok(()) }
    }

    /// Writes the catalog of the entries since the last one, if there are any.
    pub(super) fn close(&mut self) -> Result<(), ArchiveError> {
        if self.uncatalogued.is_empty() {
            return Ok(());
        }
        let catalog = self.uncatalogued.encode();
        self.writer.begin_session()?;
        self.append_blob(Kind::Catalog, catalog.as_slice())?;
        self.writer.begin_session()?;
        (self.uncatalogued, self.uncatalogued_len) = (Entries::default(), 0);
        Ok(())
    }

    fn append_blob(&mut self, kind: Kind, content: impl Read) -> Result<(), ArchiveError> {
        self.writer.append(&kind.name(self.blob_count), content)?;
        self.blob_count += 1;
        Ok(())
    }

    /// Bytes of the archive.
    pub(super) fn len(&self) -> u64 {
        self.writer.committed_end()
    }

    /// Bytes by which it has grown since it was opened.
    pub(super) fn added_len(&self) -> u64 {
        self.len() - self.opened_len
    }

    /// Bytes of it that were read to learn its contents.
    pub(super) const fn read_len(&self) -> u64 {
        self.read_len
    }

    /// Returns the storage, and releases the lock.
    pub fn into_storage(self) -> S {
        self.writer.into_storage().into_inner()
    }
}

/// Checks the first blob only, before anything is locked or trusted: it reveals most wrong files.
pub(super) fn check_signature<S: Read + Seek>(storage: &mut S) -> Result<(), ArchiveError> {
    let io = |source| ArchiveError::Io(crate::rca::Error::Io { op: "seek in", offset: 0, source });
    storage.rewind().map_err(io)?;
    let mut reader = Reader::new(&mut *storage)?;
    let not_ours = |reason| Err(ArchiveError::NotABackup { reason });
    match reader.next_blob() {
        Ok(Some(blob)) => check_name(blob.name()),
        // For the format, a file of two zero bytes is an empty archive, but it may be of any
        // origin.
        Ok(None) => not_ours("it has no blob and may be another kind of file"),
        Err(error) if error.is_damage() => not_ours("its first bytes are not those of an archive"),
        Err(error) => Err(error.into()),
    }
}

/// Checks the name of a backup's first blob.
fn check_name(name: &str) -> Result<(), ArchiveError> {
    match Kind::of(name) {
        Some(Kind::Signature) => Ok(()),
        _ if name.starts_with(SIGNATURE_PREFIX) => Err(ArchiveError::OtherVersion { found: name.to_owned() }),
        _ => Err(ArchiveError::NotABackup { reason: "it is an archive of something else" }),
    }
}

/// The contents of the archive, and the part of them without a catalog.
fn read_catalogs<R: Read + Seek>(outline: &mut Outline<R>) -> Result<(Known, Entries), ArchiveError> {
    let (mut known, mut last) = (Known::default(), None);
    for index in 0..outline.session_count() {
        let Some(entries) = read_catalog(outline, index)? else { continue };
        known.add(&entries);
        last = Some(index);
    }
    let mut uncatalogued = Entries::default();
    for index in last.map_or(0, |last| last + 1)..outline.session_count() {
        uncatalogued.append(read_session(outline, index)?);
    }
    known.add(&uncatalogued);
    Ok((known, uncatalogued))
}

/// The catalog of a session that has one; of other sessions only the first name is read.
fn read_catalog<R: Read + Seek>(outline: &mut Outline<R>, index: usize) -> Result<Option<Entries>, ArchiveError> {
    let Some(reader) = outline.session(index)? else { return Ok(None) };
    let entries = match reader.next_event()? {
        Event::Blob(blob) if Kind::of(blob.name()) == Some(Kind::Catalog) => {
            let name = blob.name().to_owned();
            Entries::decode(&name, blob)?
        }
        _ => return Ok(None),
    };
    finish_session(reader)?;
    Ok(Some(entries))
}

/// The entries of a session, by reading all of it.
fn read_session<R: Read + Seek>(outline: &mut Outline<R>, index: usize) -> Result<Entries, ArchiveError> {
    let mut entries = Entries::default();
    let Some(reader) = outline.session(index)? else { return Ok(entries) };
    while let Event::Blob(blob) = reader.next_event()? {
        read_blob(blob, &mut entries)?;
    }
    check_dialect(reader.dialect())?;
    Ok(entries)
}

fn finish_session<R: Read + Seek>(reader: &mut Reader<R>) -> Result<(), ArchiveError> {
    while let Event::Blob(_) = reader.next_event()? {}
    check_dialect(reader.dialect())
}

pub(super) fn check_dialect(dialect: Dialect) -> Result<(), ArchiveError> {
    if dialect == Dialect::Reference { Ok(()) } else { Err(ArchiveError::Dialect) }
}

/// Collects the entries of a blob; the contents of bodies do not matter here.
fn read_blob<R: Read>(blob: UnverifiedBlob<'_, R>, entries: &mut Entries) -> Result<(), ArchiveError> {
    let name = blob.name().to_owned();
    let kind = Kind::of(&name);
    let mut records = Records::new(&name, blob);
    match kind {
        Some(Kind::Signature) => Ok(()),
        Some(Kind::Xorbs) => {
            while let Some(head) = records.next::<XorbHead>()? {
                entries.xorbs.push(parse(&head.xorb).map_err(|reason| records.malformed(&reason))?);
            }
            Ok(())
        }
        Some(Kind::Files) => {
            while let Some(head) = records.next::<FileHead>()? {
                let file = records.file(head)?;
                let (_, digest) = super::pages::encode_with_digest(&file);
                entries.files.push((file.hash, digest));
            }
            Ok(())
        }
        Some(Kind::Keys) => {
            while let Some(KeysHead { .. }) = records.next()? {
                let text = records.body(records.body_len())?;
                entries.keys = Some(RecordDigest::of(&text));
            }
            Ok(())
        }
        // This version never writes a catalog into a session with other blobs.
        Some(Kind::Catalog) | None => Err(records.malformed("this version does not support it; use a newer zorb")),
    }
}
