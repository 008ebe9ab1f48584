//! Names that are used once: a number that distinguishes the blobs that a key had over time.

use std::fmt;

/// The part of a blob's name that is used once.
///
/// A blob with this name is written once and never replaced. So a late write or deletion of a
/// stopped process cannot hit the blob of another upload. Blobs of older versions have
/// [`Incarnation::UNNAMED`]: their name is the hash alone, and no new blob gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(u64);

impl Incarnation {
    /// That of blobs whose name has no such part.
    pub const UNNAMED: Self = Self(0);

    /// From its number.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// From the text of [`Display`](fmt::Display): 16 lowercase hexadecimal digits, not all zero.
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
