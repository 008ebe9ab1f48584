//! The id of a store.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Bytes of an id.
const LEN: usize = 16;

/// The id of a store: 16 random bytes, which its data directory and its index both have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreId([u8; LEN]);

/// Text that is no id of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the id of a store has 32 hexadecimal digits")]
pub struct ParseStoreIdError;

impl StoreId {
    /// The id with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; LEN]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; LEN] {
        &self.0
    }
}

impl fmt::Display for StoreId {
    /// 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl FromStr for StoreId {
    type Err = ParseStoreIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_digits = text.len() == 2 * LEN && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_digits).ok_or(ParseStoreIdError)?;
        Ok(Self(number.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_store_is_read_as_it_is_written() {
        let id = StoreId::from_bytes([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        assert_eq!(id.to_string(), "000102030405060708090a0b0c0d0eff");
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "00", "+00102030405060708090a0b0c0d0eff", "000102030405060708090a0b0c0d0effx", "é"] {
            assert_eq!(text.parse::<StoreId>(), Err(ParseStoreIdError), "{text}");
        }
    }
}
