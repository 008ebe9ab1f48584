//! Errors, each with its place in the file and a stable code.

use std::io;

use super::hash::Digest;

/// Why an archive could not be read or written.
///
/// [`code`](Error::code) is stable and meant for programs. [`offset`](Error::offset) counts the
/// bytes of the archive file, chunk headers included. `Display` does not include the source:
/// [`source`](std::error::Error::source) returns it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A chunk's size field says less than the length of its own header.
    #[error("the chunk at byte {offset} has size {size}, less than its header of {header_len} bytes")]
    BadChunkSize {
        /// First byte of the chunk's header.
        offset: u64,
        /// The size field.
        size: u64,
        /// Bytes of size field and metadata.
        header_len: u64,
    },
    /// The file ends before the chunk does.
    #[error("the chunk at byte {offset} has size {size}, but the file ends before that")]
    TruncatedChunk {
        /// First byte of the chunk's header.
        offset: u64,
        /// The size field; `u64::MAX` stands for every size beyond 64 bits.
        size: u64,
    },
    /// The chunks end inside a varint.
    #[error("the archive ends inside the varint at byte {offset}")]
    TruncatedVarint {
        /// First byte of the varint.
        offset: u64,
    },
    /// The chunks end inside the payload of a block.
    #[error("the archive ends inside the block at byte {offset}")]
    TruncatedBlock {
        /// First byte of the block.
        offset: u64,
    },
    /// A reset block is too short for a hash.
    #[error("the reset block at byte {offset} is too short for a hash")]
    ShortReset {
        /// First byte of the block.
        offset: u64,
    },
    /// The hash in a reset block is not the hash of the session before the block.
    #[error("the reset block at byte {offset} stores hash {stored}, the session before it has {computed}")]
    ResetHashMismatch {
        /// First byte of the block.
        offset: u64,
        /// The hash that the block stores.
        stored: Digest,
        /// The hash of the bytes, by the rule of the reference.
        computed: Digest,
    },
    /// The metadata of the last chunk is not the hash of the last session.
    #[error("the chunk at byte {offset} stores hash {stored}, the last session has {computed}")]
    FinalHashMismatch {
        /// First byte of the chunk's header.
        offset: u64,
        /// The hash in the metadata.
        stored: Digest,
        /// The hash of the bytes, by the rule of the reference.
        computed: Digest,
    },
    /// A blob's payload does not continue the zstd frame of its session.
    #[error("the blob at byte {offset} does not decompress")]
    Zstd {
        /// First byte of the block.
        offset: u64,
        /// The error of zstd.
        source: io::Error,
    },
    /// A decompressed blob has no NUL, which would end its name.
    #[error("the blob at byte {offset} has no end of name")]
    NoNameTerminator {
        /// First byte of the block.
        offset: u64,
    },
    /// A blob's name is not UTF-8.
    #[error("the blob at byte {offset} has a name that is not UTF-8 from its byte {valid_up_to} on")]
    BadUtf8Name {
        /// First byte of the block.
        offset: u64,
        /// Leading bytes of the name that are valid.
        valid_up_to: usize,
    },
    /// A blob's name is longer than the options allow; the format has no limit.
    #[error("the blob at byte {offset} has a name of more than {limit} bytes")]
    NameTooLong {
        /// First byte of the block; when appending, where the block would have begun.
        offset: u64,
        /// The limit in bytes.
        limit: usize,
    },
    /// The names of all blobs together are longer than the options allow.
    #[error("the names up to the blob at byte {offset} are more than {limit} bytes in total")]
    ListingTooLong {
        /// First byte of the block.
        offset: u64,
        /// The limit in bytes.
        limit: usize,
    },
    /// The archive has changed since it was verified.
    #[error("the blob at byte {offset} is not the one that was verified: the archive has changed")]
    Changed {
        /// First byte of the block as it was verified.
        offset: u64,
    },
    /// The reader has reported an error before and cannot continue after it.
    #[error("reading stopped at an earlier error")]
    Stopped,
    /// A name to append contains a NUL. A reader would take the NUL for the end of the name.
    #[error("a name to append has a NUL at its byte {at}")]
    NameHasNul {
        /// Offset of the NUL in the name.
        at: usize,
    },
    /// A blob to append is too long for one block: its compressed form reaches 2 TiB.
    #[error("the blob that begins at byte {offset} is too large for one block")]
    BlobTooLong {
        /// Where the block begins.
        offset: u64,
    },
    /// An earlier append of this writer failed. The caller must reopen the archive.
    #[error("an earlier append failed, the archive must be reopened")]
    Poisoned,
    /// Another writer has the lock of the archive.
    #[error("another writer has the archive open")]
    Locked,
    /// An archive to create is not empty.
    #[error("the archive to create exists and has {len} bytes")]
    NotEmpty {
        /// Its length in bytes.
        len: u64,
    },
    /// The archive is in the README's dialect. An append would be in the dialect of the reference
    /// and mix both, so it is refused.
    #[error("the session that begins at byte {offset} is in the README's dialect, which is only read")]
    ReadmeDialect {
        /// First byte of the session's reset block.
        offset: u64,
    },
    /// The settings contradict the format or each other; the text says how.
    #[error("{0}")]
    BadOptions(&'static str),
    /// The content of a blob to append could not be read.
    #[error("the content of a blob to append cannot be read")]
    Content {
        /// The error of the caller's reader.
        source: io::Error,
    },
    /// The archive itself could not be read or written.
    #[error("cannot {op} the archive at byte {offset}")]
    Io {
        /// The operation that failed, as the message continues after "cannot".
        op: &'static str,
        /// Where in the file the operation began; 0 if it concerns the whole file.
        offset: u64,
        /// The error of the store.
        source: io::Error,
    },
}

impl Error {
    /// The stable name of the kind of error, in snake case.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Error::BadChunkSize { .. } => "bad_chunk_size",
            Error::TruncatedChunk { .. } => "truncated_chunk",
            Error::TruncatedVarint { .. } => "truncated_varint",
            Error::TruncatedBlock { .. } => "truncated_block",
            Error::ShortReset { .. } => "short_reset",
            Error::ResetHashMismatch { .. } => "reset_hash_mismatch",
            Error::FinalHashMismatch { .. } => "final_hash_mismatch",
            Error::Zstd { .. } => "zstd_error",
            Error::NoNameTerminator { .. } => "no_name_terminator",
            Error::BadUtf8Name { .. } => "bad_utf8_name",
            Error::NameTooLong { .. } => "name_too_long",
            Error::ListingTooLong { .. } => "listing_too_long",
            Error::Changed { .. } => "changed",
            Error::Stopped => "stopped",
            Error::NameHasNul { .. } => "name_has_nul",
            Error::BlobTooLong { .. } => "blob_too_long",
            Error::Poisoned => "poisoned",
            Error::Locked => "locked",
            Error::NotEmpty { .. } => "not_empty",
            Error::ReadmeDialect { .. } => "readme_dialect",
            Error::BadOptions(_) => "bad_options",
            Error::Content { .. } => "content",
            Error::Io { .. } => "io",
        }
    }

    /// Offset in the archive file, in bytes from its start; `None` if the error has no place.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        match *self {
            Error::BadChunkSize { offset, .. }
            | Error::TruncatedChunk { offset, .. }
            | Error::TruncatedVarint { offset }
            | Error::TruncatedBlock { offset }
            | Error::ShortReset { offset }
            | Error::ResetHashMismatch { offset, .. }
            | Error::FinalHashMismatch { offset, .. }
            | Error::Zstd { offset, .. }
            | Error::NoNameTerminator { offset }
            | Error::BadUtf8Name { offset, .. }
            | Error::NameTooLong { offset, .. }
            | Error::ListingTooLong { offset, .. }
            | Error::Changed { offset }
            | Error::BlobTooLong { offset }
            | Error::ReadmeDialect { offset }
            | Error::Io { offset, .. } => Some(offset),
            Error::Stopped
            | Error::NameHasNul { .. }
            | Error::Poisoned
            | Error::Locked
            | Error::NotEmpty { .. }
            | Error::BadOptions(_)
            | Error::Content { .. } => None,
        }
    }

    /// Whether the error means that the bytes of the archive are damaged. `false` for errors of I/O
    /// or of the caller, and for a limit that was exceeded.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Error::BadChunkSize { .. }
                | Error::TruncatedChunk { .. }
                | Error::TruncatedVarint { .. }
                | Error::TruncatedBlock { .. }
                | Error::ShortReset { .. }
                | Error::ResetHashMismatch { .. }
                | Error::FinalHashMismatch { .. }
                | Error::Zstd { .. }
                | Error::NoNameTerminator { .. }
                | Error::BadUtf8Name { .. }
        )
    }

    /// The error inside an [`io::Error`] that an [`io::Read`] of this crate has returned.
    ///
    /// # Errors
    /// Returns `error` itself if it does not contain an error of this crate.
    pub fn from_io(error: io::Error) -> Result<Error, io::Error> {
        error.downcast::<Error>()
    }
}

impl From<Error> for io::Error {
    /// The result contains the whole error, so that [`Error::from_io`] can return it.
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Io { source, .. } | Error::Content { source } => source.kind(),
            _ => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, error)
    }
}
