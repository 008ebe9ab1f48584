//! The optional footer after the chunks of a xorb (spec 3.5): writes it, and checks it field by
//! field.
//!
//! ```text
//! version 1, n chunks: 96 + 40 n bytes            version 0, n chunks: 64 + 36 n bytes
//!   "XETBLOB"  1  xorb hash                         "XETBLOB"  0  xorb hash  n
//!   "XBLBHSH"  0  n  n × chunk hash                 n × serialized end
//!   "XBLBBND"  1  n  n × serialized end             n × chunk hash
//!                    n × raw end                    16 bytes
//!   n  two section offsets  16 bytes                length of the above
//!   length of the above
//! ```
//!
//! The 16 bytes may have any value: clients put a nonce there, which distinguishes uploads of one
//! xorb. Every other byte of a footer follows from the chunks. So a footer is never *parsed*: when
//! it begins, the expected bytes are computed, and the received bytes are compared with them. No
//! length or count of a received footer is trusted, and the memory depends only on the chunks
//! received.
//!
//! Old clients send a footer, current clients send none. It is neither stored nor served.

use std::fmt;

use thiserror::Error;

use super::verified::VerifiedXorb;
use crate::range::ChunkRange;

/// The first bytes of a footer. No chunk header begins with them, because the first byte of a chunk
/// header is its version, which is 0.
pub(super) const IDENT: [u8; 7] = *b"XETBLOB";

const HASHES_IDENT: [u8; 7] = *b"XBLBHSH";
const HASHES_VERSION: u8 = 0;
const BOUNDARIES_IDENT: [u8; 7] = *b"XBLBBND";
const BOUNDARIES_VERSION: u8 = 1;
const NONCE_LEN: u32 = 16;

/// Why the bytes after the chunks are not the footer of these chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FooterError {
    /// A version that does not exist yet.
    #[error("footer version {found} is not supported, only 0 and 1")]
    Version {
        /// The version that is there.
        found: u8,
    },
    /// A section of a version that does not exist yet.
    #[error("{field} of the footer is not {expected}, the only supported value")]
    SectionVersion {
        /// Which section's version.
        field: FooterField,
        /// The version that is supported.
        expected: u8,
    },
    /// A field does not match the chunks.
    #[error("{field} of the footer does not match the chunks")]
    Mismatch {
        /// The first such field.
        field: FooterField,
    },
    /// The body goes on after the footer.
    #[error("bytes follow the footer")]
    TrailingBytes,
}

/// A field of a footer, with the index of the chunk where there is one per chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FooterField {
    /// The seven bytes that a footer begins with.
    Ident,
    /// The version of the footer.
    Version,
    /// The hash of the xorb.
    XorbHash,
    /// The seven bytes that the section of hashes begins with.
    HashesIdent,
    /// The version of the section of hashes.
    HashesVersion,
    /// One of the up to three numbers of chunks.
    ChunkCount,
    /// The hash of a chunk.
    ChunkHash(u32),
    /// The seven bytes that the section of boundaries begins with.
    BoundariesIdent,
    /// The version of the section of boundaries.
    BoundariesVersion,
    /// Where a chunk's record ends.
    SerializedEnd(u32),
    /// Where a chunk's raw bytes end.
    RawEnd(u32),
    /// Where the section of hashes begins, from the end.
    HashesOffset,
    /// Where the section of boundaries begins, from the end.
    BoundariesOffset,
    /// The 16 bytes that may have any value.
    Nonce,
    /// The length of the footer before this last field.
    InfoLen,
}

impl fmt::Display for FooterField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ident => f.write_str("the tag"),
            Self::Version => f.write_str("the version"),
            Self::XorbHash => f.write_str("the xorb hash"),
            Self::HashesIdent => f.write_str("the tag of the hash section"),
            Self::HashesVersion => f.write_str("the version of the hash section"),
            Self::ChunkCount => f.write_str("a chunk count"),
            Self::ChunkHash(index) => write!(f, "the hash of chunk {index}"),
            Self::BoundariesIdent => f.write_str("the tag of the boundary section"),
            Self::BoundariesVersion => f.write_str("the version of the boundary section"),
            Self::SerializedEnd(index) => write!(f, "the serialized end of chunk {index}"),
            Self::RawEnd(index) => write!(f, "the raw end of chunk {index}"),
            Self::HashesOffset => f.write_str("the offset of the hash section"),
            Self::BoundariesOffset => f.write_str("the offset of the boundary section"),
            Self::Nonce => f.write_str("the nonce"),
            Self::InfoLen => f.write_str("the length"),
        }
    }
}

/// The known versions of a footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V0,
    V1,
}

impl Version {
    pub(super) const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::V0),
            1 => Some(Self::V1),
            _ => None,
        }
    }

    const fn as_byte(self) -> u8 {
        match self {
            Self::V0 => 0,
            Self::V1 => 1,
        }
    }

    /// Bytes of the footer of a xorb with this many chunks.
    pub(super) fn footer_len(self, chunk_count: u32) -> u64 {
        let (fixed, per_chunk) = match self {
            Self::V0 => (64, 36),
            Self::V1 => (96, 40),
        };
        u64::from(chunk_count).saturating_mul(per_chunk).saturating_add(fixed)
    }

    /// The fields of the footer, in order.
    fn fields(self, chunk_count: u32) -> impl Iterator<Item = FooterField> {
        use FooterField::{
            BoundariesIdent, BoundariesOffset, BoundariesVersion, ChunkCount, ChunkHash, HashesIdent, HashesOffset,
            HashesVersion, Ident, InfoLen, Nonce, RawEnd, SerializedEnd, XorbHash,
        };
        let (head, hashes_first, middle, raw_count, tail): (&[_], _, &[_], _, &[_]) = match self {
            Self::V0 => (&[Ident, FooterField::Version, XorbHash, ChunkCount], false, &[], 0, &[Nonce, InfoLen]),
            Self::V1 => (
                &[Ident, FooterField::Version, XorbHash, HashesIdent, HashesVersion, ChunkCount],
                true,
                &[BoundariesIdent, BoundariesVersion, ChunkCount],
                chunk_count,
                &[ChunkCount, HashesOffset, BoundariesOffset, Nonce, InfoLen],
            ),
        };
        let per_chunk = move |is_hash: bool| {
            (0..chunk_count).map(move |index| if is_hash { ChunkHash(index) } else { SerializedEnd(index) })
        };
        head.iter()
            .copied()
            .chain(per_chunk(hashes_first))
            .chain(middle.iter().copied())
            .chain(per_chunk(!hashes_first))
            .chain((0..raw_count).map(RawEnd))
            .chain(tail.iter().copied())
    }
}

/// Appends the footer of version 1 that belongs to this xorb, with a nonce of zeros.
pub fn write_v1(xorb: &VerifiedXorb, out: &mut Vec<u8>) {
    write(Version::V1, xorb, out);
}

/// Appends a footer of either version.
pub(super) fn write(version: Version, xorb: &VerifiedXorb, out: &mut Vec<u8>) {
    for field in version.fields(xorb.layout().chunk_count()) {
        write_field(field, version, xorb, out);
    }
}

fn write_field(field: FooterField, version: Version, xorb: &VerifiedXorb, out: &mut Vec<u8>) {
    let count = xorb.layout().chunk_count();
    let put_u32 = |number: u64, out: &mut Vec<u8>| {
        out.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
    };
    let per_chunk = |fixed: u64, len: u64| u64::from(count).saturating_mul(len).saturating_add(fixed);
    let up_to = |index: u32| ChunkRange::new(0, index.saturating_add(1));
    match field {
        FooterField::Ident => out.extend_from_slice(&IDENT),
        FooterField::Version => out.push(version.as_byte()),
        FooterField::XorbHash => out.extend_from_slice(xorb.hash().as_bytes()),
        FooterField::HashesIdent => out.extend_from_slice(&HASHES_IDENT),
        FooterField::HashesVersion => out.push(HASHES_VERSION),
        FooterField::ChunkCount => put_u32(count.into(), out),
        FooterField::ChunkHash(index) => {
            if let Some(hash) = xorb.chunk_hashes().get(index as usize) {
                out.extend_from_slice(hash.as_bytes());
            }
        }
        FooterField::BoundariesIdent => out.extend_from_slice(&BOUNDARIES_IDENT),
        FooterField::BoundariesVersion => out.push(BOUNDARIES_VERSION),
        FooterField::SerializedEnd(index) => {
            let range = up_to(index).and_then(|chunks| xorb.layout().serialized_range(chunks));
            put_u32(range.map_or(0, |range| range.end()), out);
        }
        FooterField::RawEnd(index) => {
            let range = up_to(index).and_then(|chunks| xorb.layout().raw_range(chunks));
            put_u32(range.map_or(0, |range| range.end()), out);
        }
        // Both offsets count the bytes from the tag of the section to the end of the nonce.
        FooterField::HashesOffset => put_u32(per_chunk(52, 40), out),
        FooterField::BoundariesOffset => put_u32(per_chunk(40, 8), out),
        FooterField::Nonce => out.extend_from_slice(&[0; NONCE_LEN as usize]),
        FooterField::InfoLen => put_u32(version.footer_len(count).saturating_sub(4), out),
    }
}

/// Bytes of a field.
const fn field_len(field: FooterField) -> u32 {
    match field {
        FooterField::Ident | FooterField::HashesIdent | FooterField::BoundariesIdent => 7,
        FooterField::Version | FooterField::HashesVersion | FooterField::BoundariesVersion => 1,
        FooterField::XorbHash | FooterField::ChunkHash(_) => 32,
        FooterField::ChunkCount
        | FooterField::SerializedEnd(_)
        | FooterField::RawEnd(_)
        | FooterField::HashesOffset
        | FooterField::BoundariesOffset
        | FooterField::InfoLen => 4,
        FooterField::Nonce => NONCE_LEN,
    }
}

/// Compares a footer that arrives in pieces with the footer that follows from the chunks.
pub(super) struct FooterCheck {
    version: Version,
    chunk_count: u32,
    expected: Vec<u8>,
    /// Bytes compared so far.
    have: usize,
}

impl FooterCheck {
    /// A check of the footer of this xorb. It begins with the bytes after the tag and the version,
    /// which the caller has checked.
    pub(super) fn new(version: Version, xorb: &VerifiedXorb) -> Self {
        let chunk_count = xorb.layout().chunk_count();
        let len = usize::try_from(version.footer_len(chunk_count)).unwrap_or(usize::MAX);
        let mut expected = Vec::with_capacity(len);
        write(version, xorb, &mut expected);
        let have = field_len(FooterField::Ident).saturating_add(field_len(FooterField::Version));
        Self { version, chunk_count, expected, have: have as usize }
    }

    /// Compares the next bytes. An error is returned with its offset from the start of the footer.
    pub(super) fn push(&mut self, piece: &[u8]) -> Result<(), (u64, FooterError)> {
        let expected = self.expected.get(self.have..).unwrap_or_default();
        let differs = piece
            .iter()
            .zip(expected)
            .zip(self.have..)
            .position(|((byte, expected), offset)| byte != expected && !self.is_nonce(offset));
        if let Some(index) = differs {
            return Err(self.error_at(self.have.saturating_add(index)));
        }
        if piece.len() > expected.len() {
            return Err((self.expected.len() as u64, FooterError::TrailingBytes));
        }
        self.have = self.have.saturating_add(piece.len());
        Ok(())
    }

    /// Bytes received, and bytes that the footer must have.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.have as u64, self.expected.len() as u64)
    }

    /// Whether the byte at this offset of the footer belongs to the nonce.
    fn is_nonce(&self, offset: usize) -> bool {
        let end = self.expected.len().saturating_sub(field_len(FooterField::InfoLen) as usize);
        (end.saturating_sub(NONCE_LEN as usize)..end).contains(&offset)
    }

    /// The error for a wrong byte: it names the field with this byte. The number is the offset at
    /// which the field begins.
    fn error_at(&self, wrong: usize) -> (u64, FooterError) {
        let mut start: u64 = 0;
        for field in self.version.fields(self.chunk_count) {
            let end = start.saturating_add(field_len(field).into());
            if (wrong as u64) < end {
                let error = match field {
                    FooterField::HashesVersion => FooterError::SectionVersion { field, expected: HASHES_VERSION },
                    FooterField::BoundariesVersion => {
                        FooterError::SectionVersion { field, expected: BOUNDARIES_VERSION }
                    }
                    _ => FooterError::Mismatch { field },
                };
                return (start, error);
            }
            start = end;
        }
        (start, FooterError::TrailingBytes)
    }
}
