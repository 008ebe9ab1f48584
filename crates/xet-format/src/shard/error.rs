//! Why bytes are not a shard, or values do not form one.

use thiserror::Error;

use crate::limits::{MAX_CHUNK_RAW_LEN, MAX_SHARD_TERM_CHUNK_COUNT, MAX_XORB_CHUNK_COUNT, MAX_XORB_RAW_LEN};
use crate::reader::{OutOfBytes, TrailingBytes};

/// Where bytes stop being a shard, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("at byte {offset}: {kind}")]
pub struct ParseError {
    /// Start of the field or record in question, in bytes from the start of the shard.
    pub offset: u64,
    /// What is wrong there.
    pub kind: Kind,
}

/// Why values cannot be written as a shard: the error that a parser would return for the bytes, or
/// a kind that exists "only when writing".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("cannot be written at byte {offset}: {kind}")]
pub struct WriteError {
    /// Where the record in question would stand, in bytes from the start of the shard.
    pub offset: u64,
    /// What is wrong with it.
    pub kind: Kind,
}

/// Classes of errors that a client may want to distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The bytes end too early.
    Truncated,
    /// The bytes are not a shard, or they contradict themselves.
    Malformed,
    /// The bytes have an unknown version or an unknown flag.
    Unsupported,
    /// A number is beyond a limit.
    Limit,
}

impl Class {
    /// Its name in metrics and responses; stable between versions.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::Malformed => "malformed",
            Self::Unsupported => "unsupported",
            Self::Limit => "limit",
        }
    }
}

/// What is wrong with a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Kind {
    /// The bytes end within a record, or before the last of the records that a header announces.
    #[error("{wanted} bytes expected, {left} left")]
    Truncated {
        /// Bytes that the record or the records have.
        wanted: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// The first 32 bytes are not those of a shard.
    #[error("not a shard: wrong tag")]
    Tag,
    /// The header's version is not 2.
    #[error("shard version {found} is not supported, only 2")]
    Version {
        /// The version that is there.
        found: u64,
    },
    /// The footer is announced with a length that no footer has.
    #[error("a footer has 0 or 200 bytes, not {found}")]
    FooterLen {
        /// The length that is announced.
        found: u64,
    },
    /// The shard has no footer, but this kind of shard needs one.
    #[error("the shard has no footer")]
    FooterAbsent,
    /// The shard has more files than a shard may have.
    #[error("a shard has at most {limit} files")]
    TooManyFiles {
        /// The limit.
        limit: usize,
    },
    /// The header announces no footer, but bytes follow the second section.
    #[error("{count} bytes after the end")]
    TrailingBytes {
        /// How many.
        count: u64,
    },
    /// The last 200 bytes are not a footer of version 1.
    #[error("footer version {found} is not supported, only 1")]
    FooterVersion {
        /// The version that is there.
        found: u64,
    },
    /// The footer states another offset than its own, so these bytes are not the whole shard.
    #[error("the footer states that it begins at byte {found}")]
    FooterOffset {
        /// The offset that it states.
        found: u64,
    },
    /// A file has an unknown flag. It is refused because the flag may announce further records.
    #[error("unknown file flags {found:#010x}")]
    FileFlags {
        /// All flags of the file.
        found: u32,
    },
    /// Some files of the shard have range hashes and some have none (spec 4.2).
    #[error("only some files have range hashes")]
    MixedVerification,
    /// The terms of the shard name more chunks than the limit. The limit bounds the work of the
    /// server, which hashes the hash of each.
    #[error("the terms name more than {MAX_SHARD_TERM_CHUNK_COUNT} chunks; spread the files over several shards")]
    TooManyTermChunks,
    /// The chunk range of a term is empty, runs backwards, or ends beyond the last chunk that a
    /// xorb can have.
    #[error("a term has chunks {start}-{end}, a xorb has at most {MAX_XORB_CHUNK_COUNT}")]
    TermChunks {
        /// Index of the first chunk.
        start: u32,
        /// Index after the last chunk.
        end: u32,
    },
    /// This number of chunks cannot have this number of bytes.
    #[error("a term of {count} chunks cannot have {raw_len} bytes")]
    TermLen {
        /// Chunks of the term.
        count: u32,
        /// Raw bytes that it states.
        raw_len: u32,
    },
    /// A file has no terms, but does not have the hash of the empty file.
    #[error("a file without terms has the hash of the empty file, not another one")]
    TermsAbsent,
    /// A xorb is listed a second time.
    #[error("duplicate xorb in the shard")]
    DuplicateXorb,
    /// A xorb has no chunk.
    #[error("a xorb without chunks")]
    XorbEmpty,
    /// A xorb has more chunks than a xorb may have.
    #[error("a xorb of {count} chunks, at most {MAX_XORB_CHUNK_COUNT} are allowed")]
    XorbChunkCount {
        /// Chunks that it states.
        count: u32,
    },
    /// A xorb has more raw bytes than a xorb may have.
    #[error("a xorb of {raw_len} bytes, at most {MAX_XORB_RAW_LEN} are allowed")]
    XorbTooLarge {
        /// Raw bytes that it states.
        raw_len: u32,
    },
    /// A xorb's raw length is not the sum of those of its chunks.
    #[error("a xorb of {stated} bytes whose chunks sum to {actual}")]
    XorbLen {
        /// Raw bytes that it states.
        stated: u32,
        /// Raw bytes of its chunks.
        actual: u32,
    },
    /// A chunk is empty or longer than a chunk may be.
    #[error("a chunk of {raw_len} bytes, 1 to {MAX_CHUNK_RAW_LEN} are allowed")]
    ChunkLen {
        /// Raw bytes that it states.
        raw_len: u32,
    },
    /// A chunk does not begin where the one before it ends.
    #[error("a chunk begins at raw byte {stated} instead of {expected}")]
    ChunkOffset {
        /// Raw offset that it states.
        stated: u32,
        /// Raw end of the chunk before.
        expected: u32,
    },
    /// Only when writing: the hash is all ones, which marks the end of a section.
    #[error("a hash of all ones would end the section")]
    BookendHash,
    /// Only when writing: a file has another number of range hashes than of terms, or more than a
    /// header can state.
    #[error("{terms} terms with {range_hashes} range hashes")]
    RangeHashCount {
        /// Terms of the file.
        terms: usize,
        /// Its range hashes.
        range_hashes: usize,
    },
    /// Only when writing: a file is listed a second time. (The parser drops the second one.)
    #[error("duplicate file in the shard")]
    DuplicateFile,
}

impl Kind {
    /// The class of the error.
    #[must_use]
    pub const fn class(self) -> Class {
        match self {
            Self::Truncated { .. } => Class::Truncated,
            Self::Version { .. } | Self::FooterVersion { .. } | Self::FileFlags { .. } => Class::Unsupported,
            Self::XorbChunkCount { .. }
            | Self::XorbTooLarge { .. }
            | Self::TooManyFiles { .. }
            | Self::TooManyTermChunks => Class::Limit,
            _ => Class::Malformed,
        }
    }

    /// Its name in metrics and responses; stable between versions.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncated { .. } => "shard_truncated",
            Self::Tag => "shard_tag",
            Self::Version { .. } => "shard_version",
            Self::FooterLen { .. } => "shard_footer_len",
            Self::FooterAbsent => "shard_footer_absent",
            Self::TooManyFiles { .. } => "shard_too_many_files",
            Self::TrailingBytes { .. } => "shard_trailing_bytes",
            Self::FooterVersion { .. } => "shard_footer_version",
            Self::FooterOffset { .. } => "shard_footer_offset",
            Self::FileFlags { .. } => "shard_file_flags",
            Self::MixedVerification => "shard_mixed_verification",
            Self::TooManyTermChunks => "shard_too_many_term_chunks",
            Self::TermChunks { .. } => "shard_term_chunks",
            Self::TermLen { .. } => "shard_term_len",
            Self::TermsAbsent => "shard_terms_absent",
            Self::DuplicateXorb => "shard_duplicate_xorb",
            Self::XorbEmpty => "shard_xorb_empty",
            Self::XorbChunkCount { .. } => "shard_xorb_chunk_count",
            Self::XorbTooLarge { .. } => "shard_xorb_too_large",
            Self::XorbLen { .. } => "shard_xorb_len",
            Self::ChunkLen { .. } => "shard_chunk_len",
            Self::ChunkOffset { .. } => "shard_chunk_offset",
            Self::BookendHash => "shard_bookend_hash",
            Self::RangeHashCount { .. } => "shard_range_hash_count",
            Self::DuplicateFile => "shard_duplicate_file",
        }
    }

    /// The error of this kind at this offset.
    pub(super) const fn at(self, offset: u64) -> ParseError {
        ParseError { offset, kind: self }
    }
}

impl ParseError {
    /// The class of the error.
    #[must_use]
    pub const fn class(&self) -> Class {
        self.kind.class()
    }
}

impl From<OutOfBytes> for ParseError {
    fn from(error: OutOfBytes) -> Self {
        Kind::Truncated { wanted: error.wanted, left: error.left }.at(error.offset)
    }
}

impl From<TrailingBytes> for ParseError {
    fn from(error: TrailingBytes) -> Self {
        Kind::TrailingBytes { count: error.count }.at(error.offset)
    }
}

impl From<ParseError> for WriteError {
    fn from(error: ParseError) -> Self {
        Self { offset: error.offset, kind: error.kind }
    }
}
