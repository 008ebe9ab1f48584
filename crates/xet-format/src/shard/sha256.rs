//! The sha256 that a client claims for a file.

use std::fmt;
use std::str::FromStr;

use crate::ParseHashError;

/// An ordinary sha256, as git-lfs and hubs know it. Its text form is ordinary hex.
///
/// A shard does **not** contain these 32 bytes as they are. Clients parse the *hex* as if it were
/// the text form of a protocol hash, so each group of eight bytes is reversed in a shard
/// (spec 4.2). Only this module reverses them.
///
/// ```
/// use xet_format::shard::Sha256;
///
/// let hex = "1307990e6ba5ca145eb35e99182a9bec46531bc54ddf656a602c780fa0240dee";
/// let sha256: Sha256 = hex.parse().unwrap();
/// assert_eq!(sha256.as_digest()[..4], [0x13, 0x07, 0x99, 0x0e]);
/// assert_eq!(sha256.to_string(), hex);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sha256([u8; 32]);

impl Sha256 {
    /// The value with these 32 bytes, in the ordinary order.
    #[must_use]
    pub const fn from_digest(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    /// The 32 bytes, in the ordinary order.
    #[must_use]
    pub const fn as_digest(&self) -> &[u8; 32] {
        &self.0
    }

    /// The value that stands in a shard as these bytes.
    pub(super) fn from_swapped(stored: [u8; 32]) -> Self {
        Self(swap_words(stored))
    }

    /// The bytes that stand in a shard for this value.
    pub(super) fn to_swapped(self) -> [u8; 32] {
        swap_words(self.0)
    }
}

/// Reverses every group of eight bytes.
fn swap_words(mut bytes: [u8; 32]) -> [u8; 32] {
    for word in bytes.as_chunks_mut::<8>().0 {
        word.reverse();
    }
    bytes
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256({self})")
    }
}

impl FromStr for Sha256 {
    type Err = ParseHashError;

    /// Reads 64 hex digits of either case; anything else is refused.
    fn from_str(text: &str) -> Result<Self, ParseHashError> {
        // Parsing the text as a protocol hash reverses each group of eight bytes. `from_swapped`
        // reverses them back.
        crate::XorbHash::from_str(text).map(|hash| Self::from_swapped(*hash.as_bytes()))
    }
}
