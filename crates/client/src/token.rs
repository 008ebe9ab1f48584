//! The token that is sent to a server.

use std::fmt;
use std::str::FromStr;

use reqwest::header::HeaderValue;
use thiserror::Error;

/// An access token. `Debug` does not show it, and neither do our errors.
#[derive(Clone)]
pub struct Token(HeaderValue);

/// A text that is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a token is one word of printable ASCII characters")]
pub struct ParseTokenError;

impl Token {
    pub(super) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl FromStr for Token {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, ParseTokenError> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ParseTokenError);
        }
        let mut header = HeaderValue::from_str(&format!("Bearer {text}")).map_err(|_| ParseTokenError)?;
        // The HTTP library does not log sensitive headers.
        header.set_sensitive(true);
        Ok(Self(header))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}
