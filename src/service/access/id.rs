//! The id of a token or refresh token, for logs and revocations.
//!
//! ```text
//! 28 hex digits: number, u64 BE │ expiry in seconds since 1970, 5 bytes BE │ check byte
//! ```

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use thiserror::Error;

/// Bytes of an id: number, expiry, check byte.
const LEN: usize = 14;

/// The latest expiry that fits into the five bytes of an id. A later expiry is stored as this one.
const MAX_EXPIRY: u64 = (1 << 40) - 1;

/// The id of a token or refresh token. The id is not a secret, because it permits nothing.
///
/// The id contains the expiry of its token. So a process that revokes the id knows how long the
/// revocation must be stored, without the token itself. The check byte detects a mistyped id, whose
/// revocation would have no effect.
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
    /// The id of a token with this expiry. The number must come from the random source of the
    /// operating system, so that no two tokens have the same number.
    #[must_use]
    pub const fn new(number: u64, expires_unix_secs: u64) -> Self {
        let is_near = expires_unix_secs < MAX_EXPIRY;
        Self { number, expires_unix_secs: if is_near { expires_unix_secs } else { MAX_EXPIRY } }
    }

    /// The random number that distinguishes this id from every other one.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.number
    }

    /// When the token expires, in seconds since 1970; at most what five bytes can express.
    #[must_use]
    pub const fn expires_unix_secs(self) -> u64 {
        self.expires_unix_secs
    }

    /// The id in its binary form, with the check byte.
    fn bytes(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        // `new` ensures that the first three bytes of the expiry are zero.
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
        // Compares the check byte: the text of the parsed id has the right one.
        if id.to_string().eq_ignore_ascii_case(text) { Ok(id) } else { Err(TokenIdError) }
    }
}
