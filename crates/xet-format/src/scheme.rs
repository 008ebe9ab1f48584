//! The compression schemes of a chunk (spec 3.2), by their names and numbers.

use std::fmt;

/// How the payload of a chunk is compressed. The value 99 of the reference ("auto") is not among
/// them: it is a setting of clients and never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Not compressed: payload and raw length are equal.
    None,
    /// One LZ4 frame.
    Lz4,
    /// The bytes regrouped by their position modulo 4, then one LZ4 frame.
    ByteGroupedLz4,
}

impl Scheme {
    /// The scheme with this value in a chunk header, if there is one.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::None),
            1 => Some(Self::Lz4),
            2 => Some(Self::ByteGroupedLz4),
            _ => None,
        }
    }

    /// The value of the scheme in a chunk header.
    #[must_use]
    pub const fn as_byte(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Lz4 => 1,
            Self::ByteGroupedLz4 => 2,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::ByteGroupedLz4 => "bg4-lz4",
        })
    }
}
