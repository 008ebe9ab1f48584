//! Appends blobs of any length to an archive, each committed as a whole.

use std::io::{self, Read, SeekFrom};

use super::block::reset_block;
use super::chunk_layer::{Append, Chunker, Layout, Payload, SpanReader, scan};
use super::error::Error;
use super::first_append;
use super::hash::{Digest, Hasher};
use super::limits::{DEFAULT_BUFFER_LEN, DEFAULT_MAX_NAME_LEN, STEP_LEN};
use super::outline::Outline;
use super::reader::ReadOptions;
use super::storage::{Lock, Storage};
use super::survey::settle;
use super::varint;
use super::zstd_stream::ZstdCompressor;

/// How a [`Writer`] compresses, and how much memory it may use.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions {
    /// zstd's level; default 3, as in the reference.
    pub level: i32,
    /// zstd's window, as a binary logarithm of bytes from 10 to 27; default: that of the level.
    pub window_log: Option<u32>,
    /// Compressed bytes of one blob to hold in memory; default 8 MiB. A longer blob is written
    /// before its length is known. This costs a few bytes of archive, and the blob is read back.
    pub buffer_len: usize,
    /// Longest name in bytes; default 1 MiB, which is what readers accept by default.
    pub max_name_len: usize,
}

impl Default for WriteOptions {
    fn default() -> Self {
        WriteOptions { level: 3, window_log: None, buffer_len: DEFAULT_BUFFER_LEN, max_name_len: DEFAULT_MAX_NAME_LEN }
    }
}

/// Appends blobs to a new or an existing archive.
///
/// When [`append`](Writer::append) returns `Ok` the blob is durable, by the storage's
/// [`sync`](Storage::sync). A crash before that leaves the archive as it was, plus garbage after
/// its end that readers report and the next writer truncates. See [`Chunker`] for the order of
/// writes.
///
/// ```
/// use std::io::Cursor;
///
/// let mut writer = rca::Writer::open(Cursor::new(Vec::new()))?; // or a file
/// writer.append("first", &b"some content"[..])?;
/// let end = writer.committed_end();
/// writer.append("second", &b"some content, and more"[..])?;
/// assert!(writer.committed_end() > end);
/// # Ok::<(), rca::Error>(())
/// ```
///
/// A blob's block begins with its compressed length, which is known only at the end. So a blob
/// waits in memory as long as its compressed form is within
/// [`buffer_len`](WriteOptions::buffer_len). A longer blob is written into the archive after six
/// reserved bytes. At its end the length is filled in there, as an overlong varint, which the
/// format allows. The blob is read back and hashed only then, because the hash covers the length
/// before the rest. The alternative, a temporary file, would write every such blob twice, and could
/// run out of space on a second file system. The blob is committed only at the end, so a crash
/// before the commit leaves only garbage.
///
/// Memory: zstd's state (a few MiB at level 3), `buffer_len`, and some 300 KiB.
#[derive(Debug)]
pub struct Writer<S> {
    chunker: Chunker<S>,
    options: WriteOptions,
    zstd: ZstdCompressor,
    /// The hash of the current session so far.
    hash: Hasher,
    /// The hash in the archive: of the current session, or before its first append, of the session
    /// before it.
    committed: Digest,
    /// The reset block to write before the first blob of this session.
    reset: Option<Vec<u8>>,
    /// Compressed bytes of the blob that are not written yet.
    buffer: Vec<u8>,
    /// A buffer for content that was read and is compressed next.
    step: Vec<u8>,
    opened: Opened,
    _lock: Lock,
}

/// What a [`Writer`] found when it opened an archive. Nothing is changed before the first append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Offset in the file after the last committed byte.
    pub committed_end: u64,
    /// Bytes of garbage after `committed_end`; the first append truncates them.
    pub garbage_len: u64,
    /// Whether a crash has torn the write of a header, so that it is a mixture of two headers. The
    /// first append repairs it.
    pub torn_header: bool,
    /// Whether nothing is committed and the file is not one that an interrupted first append
    /// leaves. Then it most likely never was an archive. The first append destroys the file, so the
    /// caller should ask the user before.
    pub is_foreign: bool,
}

/// What an append has added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Bytes of the blob's content.
    pub content_len: u64,
    /// Bytes by which the archive has grown, headers included.
    pub stored_len: u64,
    /// Offset in the file after the last committed byte.
    pub committed_end: u64,
}

impl<S: Storage> Writer<S> {
    /// Opens an archive to append to it; an empty storage is an empty archive.
    ///
    /// Takes the storage's lock and holds it until the writer is dropped. Reads the varints of all
    /// blocks and checks the hash of the last session, so that it does not append to a damaged
    /// archive. It decompresses nothing, and only readers check the hashes of earlier sessions.
    ///
    /// # Errors
    /// [`Error::Locked`]; [`Error::ReadmeDialect`]; any damage that is not garbage or a torn
    /// header; [`Error::BadOptions`]; [`Error::Io`].
    pub fn open(storage: S) -> Result<Self, Error> {
        Writer::with_options(storage, WriteOptions::default())
    }

    /// As [`open`](Writer::open), but the storage must be empty.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], and as [`open`](Writer::open).
    pub fn create(mut storage: S, options: WriteOptions) -> Result<Self, Error> {
        let len = storage.seek(SeekFrom::End(0)).map_err(|source| Error::Io { op: "seek in", offset: 0, source })?;
        if len > 0 {
            return Err(Error::NotEmpty { len });
        }
        let writer = Writer::with_options(storage, options)?;
        // Checked again now that the lock is held: another writer may have appended before that.
        match writer.opened.committed_end.saturating_add(writer.opened.garbage_len) {
            0 => Ok(writer),
            len => Err(Error::NotEmpty { len }),
        }
    }

    /// As [`open`](Writer::open), with options.
    ///
    /// # Errors
    /// As [`open`](Writer::open).
    pub fn with_options(mut storage: S, options: WriteOptions) -> Result<Self, Error> {
        let zstd = ZstdCompressor::new(options.level, options.window_log)
            .map_err(|_| Error::BadOptions("level or window_log is not one of zstd's"))?;
        let lock = storage.try_lock().map_err(|source| Error::Io { op: "lock", offset: 0, source })?;
        let lock = lock.ok_or(Error::Locked)?;
        let found = scan(&mut storage, Layout::ARCHIVE)?;
        let settled = settle(&mut storage, &found)?;
        let torn_header = settled.torn;
        let is_foreign = settled.chunks.is_empty()
            && found.file_len > 0
            && !first_append::is_interrupted_first_append(&mut storage)?;
        let chunker = Chunker::resume(storage, Layout::ARCHIVE, &settled.chunks, found.file_len, settled.patches);
        let committed_end = chunker.committed_end();
        let garbage_len = found.file_len.saturating_sub(committed_end);
        Ok(Writer {
            chunker,
            options,
            zstd,
            hash: Hasher::default(),
            committed: settled.digest.unwrap_or_else(|| Hasher::default().digest()),
            reset: settled.digest.map(reset_block),
            buffer: Vec::new(),
            step: Vec::new(),
            opened: Opened { committed_end, garbage_len, torn_header, is_foreign },
            _lock: lock,
        })
    }

    /// Appends a blob and commits it. The content is read to its end, in steps of 128 KiB.
    ///
    /// # Errors
    /// [`Error::NameHasNul`] and [`Error::NameTooLong`] change nothing. After any other error the
    /// state of zstd and of the hash no longer matches the archive, so every further append fails
    /// with [`Error::Poisoned`]. Reopen the archive then. Committed blobs are not affected.
    pub fn append(&mut self, name: &str, mut content: impl Read) -> Result<Appended, Error> {
        let (offset, limit) = (self.chunker.committed_end(), self.options.max_name_len);
        if let Some(at) = name.bytes().position(|byte| byte == 0) {
            return Err(Error::NameHasNul { at });
        }
        if name.len() > limit {
            return Err(Error::NameTooLong { offset, limit });
        }
        let content_len = self.append_block(name, &mut content)?;
        let committed_end = self.chunker.committed_end();
        Ok(Appended { content_len, stored_len: committed_end.saturating_sub(offset), committed_end })
    }

    /// Ends the session: the next append begins a new one, with its own hash and a fresh zstd
    /// state. Writes nothing by itself, and does nothing if the session has no blob yet.
    ///
    /// A reader can find a session without decompressing the sessions before it: see [`Outline`].
    ///
    /// # Errors
    /// [`Error::Io`] if zstd cannot reset its state; the writer must not be used afterwards.
    pub fn begin_session(&mut self) -> Result<(), Error> {
        let offset = self.chunker.committed_end();
        if self.reset.is_none() && offset > 0 {
            self.zstd.reset().map_err(|source| Error::Io { op: "compress for", offset, source })?;
            self.reset = Some(reset_block(self.committed));
        }
        Ok(())
    }

    /// The committed sessions. First repairs a torn header and truncates garbage, as the next
    /// append would.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Io`], and as [`Outline::open`].
    pub fn outline(&mut self, options: ReadOptions) -> Result<Outline<&mut S>, Error> {
        self.chunker.mend()?;
        Outline::open(self.chunker.storage(), options)
    }

    /// What was found when the archive was opened.
    pub fn opened(&self) -> Opened {
        self.opened
    }

    /// Offset in the file after the last committed byte.
    pub fn committed_end(&self) -> u64 {
        self.chunker.committed_end()
    }

    /// Returns the storage and releases the lock.
    pub fn into_storage(self) -> S {
        self.chunker.into_storage()
    }

    /// Writes the block of a blob, after a reset block if it begins a session, and commits it.
    fn append_block(&mut self, name: &str, content: &mut dyn Read) -> Result<u64, Error> {
        let offset = self.chunker.committed_end();
        let failed = |source| Error::Io { op: "compress for", offset, source };
        // This is first, because it fails if an earlier append has failed. It also makes every
        // later append fail if this function returns before `commit`.
        let mut append = self.chunker.begin(self.committed.0.to_vec())?;
        if let Some(reset) = self.reset.take() {
            self.hash = Hasher::default();
            self.hash.update(&reset);
            append.write(&reset)?;
        }
        let (begin, mut content_len) = (append.len(), 0_u64);
        self.buffer.clear();
        // The length of the block goes into these bytes when it is known.
        self.buffer.resize(varint::PADDED_LEN, 0);
        self.zstd.compress(name.as_bytes(), &mut self.buffer).map_err(failed)?;
        self.zstd.compress(b"\0", &mut self.buffer).map_err(failed)?;
        self.step.resize(STEP_LEN, 0);
        loop {
            let len = read_some(content, &mut self.step)?;
            if len == 0 {
                break;
            }
            content_len = content_len.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
            self.zstd.compress(&self.step[..len], &mut self.buffer).map_err(failed)?;
            if self.buffer.len() > self.options.buffer_len {
                append.write(&self.buffer)?;
                self.buffer.clear();
            }
        }
        self.zstd.flush(&mut self.buffer).map_err(failed)?;
        if append.len() > begin {
            // A part of the block is in the file already.
            append.write(&self.buffer)?;
            fill_in_len(&mut append, begin, &mut self.hash)?;
        } else {
            let block = with_shortest_len(&mut self.buffer);
            self.hash.update(block);
            append.write(block)?;
        }
        let digest = self.hash.digest();
        append.commit(&digest.0)?;
        self.committed = digest;
        Ok(content_len)
    }
}

/// Makes a block of a payload that follows [`varint::PADDED_LEN`] reserved bytes: puts the varint
/// right before the payload, and returns both without the reserved bytes that are left.
fn with_shortest_len(buffer: &mut [u8]) -> &[u8] {
    let mut len = Vec::new();
    varint::encode(len_u64(buffer.len() - varint::PADDED_LEN) * 2, &mut len);
    // A payload in memory is shorter than 2⁴¹ bytes, so its varint fits the reserved bytes.
    let begin = varint::PADDED_LEN - len.len();
    buffer[begin..varint::PADDED_LEN].copy_from_slice(&len);
    &buffer[begin..]
}

/// Completes the block at byte `begin` of the append, which was written with reserved bytes in
/// place of its length: hashes the block and fills in the length.
fn fill_in_len<S: Storage>(append: &mut Append<'_, S>, begin: u64, hash: &mut Hasher) -> Result<(), Error> {
    let payload = begin + len_u64(varint::PADDED_LEN);
    let too_long = Error::BlobTooLong { offset: append.offset() };
    let len = (append.len() - payload).checked_mul(2).and_then(varint::encode_padded).ok_or(too_long)?;
    hash.update(&len);
    let spans = append.spans_from(payload);
    let mut reader = SpanReader::new(append.storage(), &spans);
    loop {
        let bytes = reader.fill(u64::MAX)?;
        if bytes.is_empty() {
            break;
        }
        hash.update(bytes);
        let step = bytes.len();
        reader.consume(step);
    }
    append.overwrite(begin, &len)
}

/// Reads content into `buf`, and retries interrupted reads.
fn read_some(content: &mut dyn Read, buf: &mut [u8]) -> Result<usize, Error> {
    loop {
        match content.read(buf) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map_err(|source| Error::Content { source }),
        }
    }
}

fn len_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
