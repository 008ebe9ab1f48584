//! The id of a token: for logs and revocations.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use thiserror::Error;

/// Bytes of an id: a number, an expiry, a check.
const LEN: usize = 14;

/// The latest expiry that an id holds, in five bytes.
const MAX_EXPIRY: u64 = (1 << 40) - 1;

/// The id of a token. Not a secret: it permits nothing.
///
/// It contains the expiry of its token, so that every process knows how long to store a revocation.
/// Its last byte is a check: a mistyped id would revoke nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenId {
    number: u64,
    expires_unix_secs: u64,
}

/// A text is not the id of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a token id, which has {} hex digits; `zorb token inspect` shows it", 2 * LEN)]
pub struct TokenIdError;

impl TokenId {
    /// The id with this number, which must come from the system's random source, of a token that
    /// expires then.
    #[must_use]
    pub const fn new(number: u64, expires_unix_secs: u64) -> Self {
        let is_near = expires_unix_secs < MAX_EXPIRY;
        Self { number, expires_unix_secs: if is_near { expires_unix_secs } else { MAX_EXPIRY } }
    }

    /// Distinguishes it from every other id.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.number
    }

    /// When its token expires, in seconds since 1970.
    #[must_use]
    pub const fn expires_unix_secs(self) -> u64 {
        self.expires_unix_secs
    }

    fn bytes(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let parts =
            self.number.to_be_bytes().into_iter().chain(self.expires_unix_secs.to_be_bytes().into_iter().skip(3));
        for (place, byte) in bytes.iter_mut().zip(parts) {
            *place = byte;
        }
        let [content @ .., check] = &mut bytes;
        let digest = Sha256::new().chain_update("zorb token id").chain_update(content).finalize();
        *check = digest.first().copied().unwrap_or_default();
        bytes
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for TokenId {
    type Err = TokenIdError;

    fn from_str(text: &str) -> Result<Self, TokenIdError> {
        if text.len() != 2 * LEN || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(TokenIdError);
        }
        let part = |from, to| text.get(from..to).and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let id = part(0, 16).zip(part(16, 26)).map(|(number, expiry)| Self::new(number, expiry)).ok_or(TokenIdError)?;
        if id.to_string().eq_ignore_ascii_case(text) { Ok(id) } else { Err(TokenIdError) }
    }
}
