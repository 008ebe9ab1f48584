//! The number that distinguishes the blobs that a xorb has had over time. It makes the name of each
//! blob unique.

use std::fmt;

/// The second part of a blob's name, after the hash of its xorb.
///
/// Each upload that publishes a blob uses a new incarnation. So a late write or deletion of a
/// stopped process cannot hit the blob of another upload. Blobs of older versions of zorb have
/// [`Incarnation::UNNAMED`]: their name is the hash alone, and no new blob gets such a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(u64);

impl Incarnation {
    /// The incarnation of blobs whose name is the hash alone.
    pub const UNNAMED: Self = Self(0);

    /// The incarnation with this number.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Parses the text of [`Display`](fmt::Display): 16 lowercase hexadecimal digits. Refuses 16
    /// zeros, because [`UNNAMED`](Self::UNNAMED) is not part of a name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let number = (text.len() == 16 && text.bytes().all(is_hex)).then(|| u64::from_str_radix(text, 16));
        number?.ok().filter(|number| *number != 0).map(Self)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_back_and_nothing_else_is_taken() {
        for number in [1, 0xfe, u64::MAX] {
            let name = Incarnation::from_number(number);
            assert_eq!(Incarnation::parse(&name.to_string()), Some(name));
        }
        for text in ["", "1", "0000000000000000", "00000000000000FE", "+000000000000001", "00000000000000001"] {
            assert_eq!(Incarnation::parse(text), None, "{text}");
        }
    }
}
