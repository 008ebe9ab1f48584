//! The hashes of the protocol, one type per meaning, and their text form (spec 1.1 to 1.3, 1.6,
//! 1.7).
//!
//! All of them are 32 bytes. Their text form is **not** plain hex. The bytes are read as four
//! little-endian 64-bit words and each word is printed as 16 hex digits, so every group of eight
//! bytes appears reversed:
//!
//! ```
//! use xet_format::XorbHash;
//!
//! let bytes: [u8; 32] = std::array::from_fn(|i| i as u8); // 00 01 02 … 1f
//! let hash = XorbHash::from_bytes(bytes);
//! let text = "07060504030201000f0e0d0c0b0a090817161514131211101f1e1d1c1b1a1918";
//! assert_eq!(hash.to_string(), text);
//! assert_eq!(hash.to_string().parse(), Ok(hash));
//! assert!("00".parse::<XorbHash>().is_err());
//! ```
//!
//! The types do not convert into each other. A xorb of one chunk has the same 32 bytes as the hash
//! of this chunk. Even then a caller gets the xorb hash from [`merkle`](super::merkle).

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Key of the chunk hash (spec 1.2, `DATA_KEY`).
const DATA_KEY: [u8; 32] = [
    0x66, 0x97, 0xf5, 0x77, 0x5b, 0x95, 0x50, 0xde, 0x31, 0x35, 0xcb, 0xac, 0xa5, 0x97, 0x18, 0x1c, 0x9d, 0xe4, 0x21,
    0x10, 0x9b, 0xeb, 0x2b, 0x58, 0xb4, 0xd0, 0xb0, 0x4b, 0x93, 0xad, 0xf2, 0x29,
];

/// Key of the range hash (spec 1.2, term verification).
const VERIFICATION_KEY: [u8; 32] = [
    0x7f, 0x18, 0x57, 0xd6, 0xce, 0x56, 0xed, 0x66, 0x12, 0x7f, 0xf9, 0x13, 0xe7, 0xa5, 0xc3, 0xf3, 0xa4, 0xcd, 0x26,
    0xd5, 0xb5, 0xdb, 0x49, 0xe6, 0x41, 0x24, 0x98, 0x7f, 0x28, 0xfb, 0x94, 0xc3,
];

/// Why a text is not the text form of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParseHashError {
    /// The text does not have 64 characters.
    #[error("a hash has 64 hex digits, this has {count} characters")]
    Count {
        /// Characters of the text.
        count: usize,
    },
    /// A character is not a hex digit.
    #[error("a hash has hex digits only; character {index} is not one")]
    Digit {
        /// Which character, from 0.
        index: usize,
    },
}

macro_rules! hash_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name([u8; 32]);

        impl $name {
            /// The hash with these raw bytes, as they stand in binary formats.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            /// The raw bytes, as they stand in binary formats.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt_words(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = ParseHashError;

            /// Reads 64 hex digits of either case; anything else is refused.
            fn from_str(text: &str) -> Result<Self, ParseHashError> {
                parse_words(text).map(Self)
            }
        }
    };
}

hash_type! {
    /// Identity of a xorb: the aggregate over its chunks (spec 1.4). Independent of how the chunks
    /// are compressed.
    XorbHash
}
hash_type! {
    /// Identity of a chunk: the keyed hash of its raw bytes (spec 1.3).
    ChunkHash
}
hash_type! {
    /// Identity of a file: the aggregate over its chunks, hashed once more with a salt (spec 1.5).
    /// All zero for the empty file.
    FileHash
}
hash_type! {
    /// Proof that a client knows all chunk hashes of a term (spec 1.6).
    RangeHash
}

impl ChunkHash {
    /// The hash of a chunk with these raw bytes (spec 1.3).
    #[must_use]
    pub fn of(raw: &[u8]) -> Self {
        Self(*blake3::keyed_hash(&DATA_KEY, raw).as_bytes())
    }

    /// Whether clients may ask for this chunk in the global deduplication index (spec 1.8, rule b).
    #[must_use]
    pub fn is_dedup_eligible(&self) -> bool {
        last_word(&self.0).is_multiple_of(1024)
    }
}

impl FileHash {
    /// The hash of the empty file (spec 1.5).
    pub const EMPTY: Self = Self([0; 32]);
}

impl RangeHash {
    /// The proof for these chunks, in order (spec 1.6).
    #[must_use]
    pub fn of(chunks: &[ChunkHash]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(&VERIFICATION_KEY);
        for chunk in chunks {
            hasher.update(chunk.as_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }
}

/// A key that blinds the chunk hashes of a deduplication response (spec 1.7): only a client that
/// has a chunk can recognize its blinded hash. The `Debug` form does not show the key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HmacKey([u8; 32]);

impl HmacKey {
    /// The key that means that the chunk hashes are not blinded.
    pub const NONE: Self = Self([0; 32]);

    /// The key with these raw bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The raw bytes, as they stand in a shard's footer.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The chunk hash blinded with this key, as in deduplication responses; unchanged under
    /// [`HmacKey::NONE`].
    #[must_use]
    pub fn blind(&self, chunk: &ChunkHash) -> ChunkHash {
        if *self == Self::NONE {
            return *chunk;
        }
        ChunkHash(*blake3::keyed_hash(&self.0, chunk.as_bytes()).as_bytes())
    }
}

impl fmt::Debug for HmacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HmacKey(…)")
    }
}

/// The last of the four words as a number. The rules of the form "hash mod n" use this number
/// (spec 1.1).
pub(super) fn last_word(hash: &[u8; 32]) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = *hash;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// The digit for a number below 16.
fn hex_digit(number: u8) -> u8 {
    b"0123456789abcdef".get(usize::from(number)).copied().unwrap_or(b'?')
}

/// Bytes in the order in which the text form shows them.
fn display_order(hash: &[u8; 32]) -> impl Iterator<Item = u8> + '_ {
    hash.chunks_exact(8).flat_map(|word| word.iter().rev().copied())
}

/// Writes the text form.
fn fmt_words(hash: &[u8; 32], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // File names and `ETag`s contain this text, so it is made for every request. `{:02x}` for each
    // byte took a tenth of the CPU time of a request for one chunk.
    let mut digits = [0; 64];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(display_order(hash)) {
        pair.copy_from_slice(&[byte >> 4, byte & 15].map(hex_digit));
    }
    f.write_str(str::from_utf8(&digits).map_err(|_| fmt::Error)?)
}

/// Reads the text form.
pub(super) fn parse_words(text: &str) -> Result<[u8; 32], ParseHashError> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return Err(ParseHashError::Count { count: text.chars().count() });
    }
    let mut hash = [0; 32];
    for (word_index, (word, digits)) in hash.chunks_exact_mut(8).zip(digits.chunks_exact(16)).enumerate() {
        for (byte_index, (byte, pair)) in word.iter_mut().rev().zip(digits.chunks_exact(2)).enumerate() {
            for (digit_index, digit) in pair.iter().enumerate() {
                let value = char::from(*digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
                let Some(value) = value else {
                    // A word has 16 digits, a byte has 2.
                    let index = [word_index << 4, byte_index << 1, digit_index].iter().sum();
                    return Err(ParseHashError::Digit { index });
                };
                *byte = *byte << 4 | value;
            }
        }
    }
    Ok(hash)
}

/// Appends the text form to `out`. The text that a merkle node hashes contains it once per child,
/// so this avoids the slower `fmt`.
pub(super) fn push_words(hash: &[u8; 32], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in display_order(hash) {
        for nibble in [byte >> 4, byte & 15] {
            out.extend(DIGITS.get(usize::from(nibble)));
        }
    }
}
