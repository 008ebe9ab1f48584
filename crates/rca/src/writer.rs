//! The blob layer, writing: blobs of any length, each committed as a whole.

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

/// How a [`Writer`] compresses, and what it may hold.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions {
    /// zstd's level; default 3, as the reference.
    pub level: i32,
    /// zstd's window, as a binary logarithm of bytes from 10 to 27; default that of the level.
    pub window_log: Option<u32>,
    /// Compressed bytes of one blob to hold in memory; default 8 MiB. A longer blob is written
    /// before its length is known, at the price of a few bytes and of reading it back.
    pub buffer_len: usize,
    /// Longest name in bytes; default 1 MiB, which is what readers accept by default.
    pub max_name_len: usize,
}

impl Default for WriteOptions {
    fn default() -> Self {
        WriteOptions { level: 3, window_log: None, buffer_len: DEFAULT_BUFFER_LEN, max_name_len: DEFAULT_MAX_NAME_LEN }
    }
}

/// Appends blobs to an archive, new or old.
///
/// When [`append`](Writer::append) returns `Ok` the blob is durable, by the storage's
/// [`sync`](Storage::sync). A crash before that leaves the archive as it was, plus garbage behind
/// its end that readers report and the next writer cuts off. See [`Chunker`] for the order of
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
/// A blob's block begins with its compressed length, known only at the end. A blob whose
/// compressed form stays within [`buffer_len`](WriteOptions::buffer_len) waits in memory. A longer
/// one is written straight into the archive behind six bytes kept free, then read back to be
/// hashed (the length comes first in the hash as well), and the length is filled in as an
/// overlong varint, which is part of the format. The alternative, a temporary file, would write
/// every such blob twice, and run out of space in a second place. Nothing of it is committed
/// before the end, so a crash between is no other than before.
///
/// Memory: zstd's state (a few MiB at level 3), `buffer_len`, and some 300 KiB.
#[derive(Debug)]
pub struct Writer<S> {
    chunker: Chunker<S>,
    options: WriteOptions,
    zstd: ZstdCompressor,
    /// Of the session so far.
    hash: Hasher,
    /// Of the session as it is committed; of the one before until the first append.
    committed: Digest,
    /// To go in front of the first append.
    reset: Option<Vec<u8>>,
    /// Compressed, not yet written bytes of the blob.
    buffer: Vec<u8>,
    /// Content on its way into zstd.
    step: Vec<u8>,
    opened: Opened,
    _lock: Lock,
}

/// What a [`Writer`] found when it opened an archive. Nothing is changed before the first append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Half-open end of what is committed, in bytes from the start of the file.
    pub committed_end: u64,
    /// Bytes behind it that belong to nothing; the first append cuts them off.
    pub garbage_len: u64,
    /// Whether the last header is a mixture of two, torn by a crash; the first append repairs it.
    pub torn_header: bool,
    /// Whether nothing is committed, and what is there is not what a first append leaves when it is
    /// interrupted: most likely it never was an archive. The first append destroys it, so the
    /// caller should not go on without being told.
    pub is_foreign: bool,
}

/// What an append has added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Bytes of the blob's content.
    pub content_len: u64,
    /// Bytes by which the archive has grown, headers included.
    pub stored_len: u64,
    /// Half-open end of the archive, in bytes from the start of the file.
    pub committed_end: u64,
}

impl<S: Storage> Writer<S> {
    /// Opens an archive to append to it; an empty storage is an empty archive.
    ///
    /// Takes the storage's lock and keeps it as long as it lives. Reads the varints of all blocks
    /// and hashes the last session, so that it does not append to damage in there. Nothing is
    /// decompressed, and the hashes of earlier sessions are left to the readers.
    ///
    /// # Errors
    /// [`Error::Locked`]; [`Error::ReadmeDialect`]; any damage that it would be wrong to cut off;
    /// [`Error::BadOptions`]; [`Error::Io`].
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
        // Now that the lock is held: another writer may have been here since.
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
        let is_foreign =
            settled.chunks.is_empty() && found.file_len > 0 && !first_append::is_left_behind(&mut storage)?;
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
    /// [`Error::NameHasNul`] and [`Error::NameTooLong`] change nothing. After any other, the state
    /// of zstd and of the hash has moved on, so this writer refuses every further append with
    /// [`Error::Poisoned`]; reopen the archive: what was committed still is.
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
    /// Blobs in sessions of their own can be found without decompressing those before: see
    /// [`Outline`].
    ///
    /// # Errors [`Error::Io`] if zstd gives no fresh state; the writer is unusable afterwards.
    pub fn begin_session(&mut self) -> Result<(), Error> {
        let offset = self.chunker.committed_end();
        if self.reset.is_none() && offset > 0 {
            self.zstd.reset().map_err(|source| Error::Io { op: "compress for", offset, source })?;
            self.reset = Some(reset_block(self.committed));
        }
        Ok(())
    }

    /// The committed sessions. Leftovers of a crash are repaired and truncated first, as by the
    /// next append.
    ///
    /// # Errors [`Error::Poisoned`], [`Error::Io`], and as [`Outline::open`].
    pub fn outline(&mut self, options: ReadOptions) -> Result<Outline<&mut S>, Error> {
        self.chunker.mend()?;
        Outline::open(self.chunker.storage(), options)
    }

    /// What was found when the archive was opened.
    pub fn opened(&self) -> Opened {
        self.opened
    }

    /// Half-open end of what is committed, in bytes from the start of the file.
    pub fn committed_end(&self) -> u64 {
        self.chunker.committed_end()
    }

    /// Gives the storage back, and the lock up.
    pub fn into_storage(self) -> S {
        self.chunker.into_storage()
    }

    fn append_block(&mut self, name: &str, content: &mut dyn Read) -> Result<u64, Error> {
        let offset = self.chunker.committed_end();
        let failed = |source| Error::Io { op: "compress for", offset, source };
        // First of all: it refuses after a failure, and until `commit` every way out is one.
        let mut append = self.chunker.begin(self.committed.0.to_vec())?;
        if let Some(reset) = self.reset.take() {
            self.hash = Hasher::default();
            self.hash.update(&reset);
            append.write(&reset)?;
        }
        let (begin, mut content_len) = (append.len(), 0_u64);
        self.buffer.clear();
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

/// Makes a block of a payload behind [`varint::PADDED_LEN`] free bytes.
fn with_shortest_len(buffer: &mut [u8]) -> &[u8] {
    let mut len = Vec::new();
    varint::encode(len_u64(buffer.len() - varint::PADDED_LEN) * 2, &mut len);
    // A payload that fits the memory has a length of at most 41 bits.
    let begin = varint::PADDED_LEN - len.len();
    buffer[begin..varint::PADDED_LEN].copy_from_slice(&len);
    &buffer[begin..]
}

/// Completes a block that was written with free bytes in place of its length.
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
