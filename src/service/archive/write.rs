//! Opens an archive for a backup, and appends blobs to it.
//!
//! A blob is durable when [`append`](BackupArchive::append) returns `Ok`. A crash during an append
//! leaves all earlier blobs. It may leave a part of the new one after the end of the archive, which
//! the next run truncates.

use std::io::{Read, Seek};
use std::sync::atomic::Ordering;

use super::catalog::{Entries, Known, RecordDigest};
use super::counted::Counted;
use super::error::ArchiveError;
use super::hub::HubHead;
use super::pages::Page;
use super::record::{FileHead, KeysHead, MAX_KEYS_LEN, Records, XorbHead, parse};
use super::{Kind, SIGNATURE_PREFIX};
use crate::rca::{Dialect, Event, Outline, ReadOptions, Reader, Storage, UnverifiedBlob, WriteOptions, Writer};

/// A catalog is written after this length of contents. The length bounds how much the next run must
/// read again after a run that was killed. To read it takes seconds.
const CATALOG_EVERY_LEN: u64 = 1 << 30;

/// An archive to which a backup is appended. All operations block.
#[derive(Debug)]
pub struct BackupArchive<S> {
    writer: Writer<Counted<S>>,
    blob_count: u64,
    /// The entries of records that are in no catalog yet.
    uncatalogued: Entries,
    /// The length of these records, as far as this run has appended them.
    uncatalogued_len: u64,
    /// Whether a run that was killed has left entries that are in no catalog.
    has_leftovers: bool,
    /// Length of the archive in bytes when it was opened.
    opened_len: u64,
    /// Number of bytes that `open` has read. Later reads of the writer are not counted.
    read_len: u64,
}

impl<S: Storage> BackupArchive<S> {
    /// Opens an archive that was begun with [`empty_archive`](super::empty_archive). Locks it until
    /// it is dropped. Returns it, and what it contains.
    ///
    /// Reads the length of every blob, the catalogs, and the sessions after the last catalog.
    /// Changes nothing, except that it truncates the bytes after the end of the archive.
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

    /// Appends the records of a page as one blob, which is durable when this returns `Ok`. May also
    /// append a catalog, before or after the blob.
    pub(super) fn append(&mut self, kind: Kind, mut page: Page) -> Result<(), ArchiveError> {
        // The catalog for the leftovers is written first. Otherwise, runs that are killed
        // repeatedly would leave more and more records that every later run must read again.
        if std::mem::take(&mut self.has_leftovers) {
            self.close()?;
        }
        let entries = std::mem::take(&mut page.entries);
        self.uncatalogued_len += page.content_len();
        self.append_blob(kind, page.into_reader())?;
        self.uncatalogued.append(entries);
        if self.uncatalogued_len >= CATALOG_EVERY_LEN { self.close() } else { Ok(()) }
    }

    /// Writes a catalog of the entries since the last catalog, if there are any. To be called at
    /// the end of a run, and whenever a catalog is due.
    pub(super) fn close(&mut self) -> Result<(), ArchiveError> {
        if self.uncatalogued.is_empty() {
            return Ok(());
        }
        let catalog = self.uncatalogued.encode();
        // The catalog is alone in its session, so that it can be read without other data.
        self.writer.begin_session()?;
        self.append_blob(Kind::Catalog, catalog.as_slice())?;
        self.writer.begin_session()?;
        (self.uncatalogued, self.uncatalogued_len) = (Entries::default(), 0);
        Ok(())
    }

    /// Appends a blob with the name for its kind and its place.
    fn append_blob(&mut self, kind: Kind, content: impl Read) -> Result<(), ArchiveError> {
        self.writer.append(&kind.name(self.blob_count), content)?;
        self.blob_count += 1;
        Ok(())
    }

    /// Length of the archive in bytes.
    pub(super) fn len(&self) -> u64 {
        self.writer.committed_end()
    }

    /// Number of bytes by which the archive has grown since it was opened.
    pub(super) fn added_len(&self) -> u64 {
        self.len() - self.opened_len
    }

    /// Number of bytes of the archive that were read to learn what it contains.
    pub(super) const fn read_len(&self) -> u64 {
        self.read_len
    }

    /// Returns the storage, and releases the lock.
    pub fn into_storage(self) -> S {
        self.writer.into_storage().into_inner()
    }
}

/// Checks that the first blob of a file is that of a backup. A writer locks the file and may
/// truncate it, so this check comes first: it detects most files of other kinds.
pub(super) fn check_signature<S: Read + Seek>(storage: &mut S) -> Result<(), ArchiveError> {
    let io = |source| ArchiveError::Io(crate::rca::Error::Io { op: "seek in", offset: 0, source });
    storage.rewind().map_err(io)?;
    let mut reader = Reader::new(&mut *storage)?;
    let not_ours = |reason| Err(ArchiveError::NotABackup { reason });
    match reader.next_blob() {
        Ok(Some(blob)) => check_name(blob.name()),
        // In the RCA format, any file that begins with two zero bytes is an empty archive. So this
        // file may be of any kind.
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

/// What the archive contains, and which of these entries are in no catalog.
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

/// The catalog of a session; `None` if the session has other blobs. Of such a session, only the
/// name of the first blob is read.
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

/// The entries of a session that has no catalog. Reads the whole session.
fn read_session<R: Read + Seek>(outline: &mut Outline<R>, index: usize) -> Result<Entries, ArchiveError> {
    let mut entries = Entries::default();
    let Some(reader) = outline.session(index)? else { return Ok(entries) };
    while let Event::Blob(blob) = reader.next_event()? {
        read_blob(blob, &mut entries)?;
    }
    check_dialect(reader.dialect())?;
    Ok(entries)
}

/// Reads to the end of a session, which verifies its hash.
fn finish_session<R: Read + Seek>(reader: &mut Reader<R>) -> Result<(), ArchiveError> {
    while let Event::Blob(_) = reader.next_event()? {}
    check_dialect(reader.dialect())
}

/// Refuses an archive in another dialect of the format than zorb writes.
pub(super) fn check_dialect(dialect: Dialect) -> Result<(), ArchiveError> {
    if dialect == Dialect::Reference { Ok(()) } else { Err(ArchiveError::Dialect) }
}

/// Adds the entries of a blob to `entries`. Skips the bodies of xorbs.
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
        Some(Kind::Hub) => {
            while let Some(head) = records.next::<HubHead>()? {
                if let HubHead::Refs { storage_name, digest, .. } = head {
                    let digest = RecordDigest::from_hex(&digest);
                    let digest = digest.ok_or_else(|| records.malformed("a digest in it is not a number"))?;
                    entries.hub.insert(storage_name, digest);
                }
            }
            Ok(())
        }
        Some(Kind::Keys) => {
            while let Some(KeysHead { .. }) = records.next()? {
                let text = records.whole_body(MAX_KEYS_LEN)?;
                entries.keys = Some(RecordDigest::of(&text));
            }
            Ok(())
        }
        // zorb writes a catalog as the only blob of its session, and `read_catalog` reads it. So no
        // catalog can be here.
        Some(Kind::Catalog) | None => Err(records.malformed("this version does not support it; use a newer zorb")),
    }
}
