//! Access control: tokens, signed data URLs, upload grants. Pure functions of a key ring and the
//! time.
//!
//! All of them are sealed texts: `key id, payload` in the clear, and an HMAC-SHA256 over purpose,
//! context and both, in URL-safe base64. They are opaque to clients, and not secret from their
//! holder: nothing is encrypted.
//!
//! * The *purpose* prevents the use of a grant as a token, whatever its payload.
//! * The *context* is signed but not carried: the xorb that the request names. A text is invalid
//!   for another xorb.
//! * The *key id* names the key of the ring that made it, so that keys rotate while texts are in
//!   use.
//!
//! Every refusal is one [`Refused`], whose text reveals nothing; its [`Reason`] is for logs and
//! metrics. Signatures are compared in constant time. `Debug` of a type with a secret shows none.

mod data_url;
mod grant;
mod id;
mod keys;
mod refresh;
mod seal;
#[cfg(test)]
mod tests;
mod token;

use std::fmt;

use thiserror::Error;

pub use data_url::{DataUrl, MAX_URL_RANGE_COUNT, Permitted, check_data_url};
pub use grant::{Grant, GrantRequest, IssuedGrant, check_grant, check_granted_upload};
pub use id::{TokenId, TokenIdError};
pub use keys::{KeyId, KeyRing, KeyRingError, SECRET_LEN};
pub use refresh::{RefreshToken, check_refresh_token, inspect_refresh_token};
pub use token::{Claims, NameError, Repo, RepoScope, Scope, Subject, Token, check_token, inspect_token};

/// How long texts are accepted after their expiry, in seconds.
///
/// Clients check the expiry when they *begin* a request, and never refresh a token because of a
/// response (spec 5.0). Also, the clocks of two machines differ. So a text that was valid when it
/// was sent must not be refused on receipt.
pub const GRACE_SECS: u64 = 60;

/// A token, data URL signature or grant is invalid. Its holder learns no more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not valid")]
pub struct Refused {
    reason: Reason,
}

/// Why a text was refused: for logs and metrics, never for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Not one of our texts.
    Malformed,
    /// Made with a key that is not in the ring.
    UnknownKey,
    /// Altered, made for something else, or forged.
    Signature,
    /// Expired for longer than the grace period.
    Expired,
    /// A token that was revoked, or whose refresh token was.
    Revoked,
    /// Byte ranges that the URL was not made for.
    Ranges,
    /// A grant of another owner.
    Owner,
}

impl Refused {
    /// The reason: for logs and metrics only.
    #[must_use]
    pub const fn reason(self) -> Reason {
        self.reason
    }
}

impl Reason {
    /// Its name in metrics; does not change between versions.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownKey => "unknown_key",
            Self::Signature => "signature",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::Ranges => "ranges",
            Self::Owner => "owner",
        }
    }
}

impl From<Reason> for Refused {
    fn from(reason: Reason) -> Self {
        Self { reason }
    }
}

/// A text that must not get into logs: a token, a signature, the contents of the key file.
///
/// Cannot be compared: a client's text is checked by its signature, in constant time, and by
/// nothing else.
#[derive(Clone)]
pub struct SecretText(String);

impl SecretText {
    /// The text, for its recipient.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(…)")
    }
}

/// Refuses a revoked token.
fn check_revocation(ring: &KeyRing, id: TokenId) -> Result<(), Refused> {
    if ring.is_revoked(id) { Err(Reason::Revoked.into()) } else { Ok(()) }
}

/// Refuses texts that expired more than [`GRACE_SECS`] ago.
fn check_expiry(expires_unix_secs: u64, now_unix_secs: u64) -> Result<(), Refused> {
    if now_unix_secs > expires_unix_secs.saturating_add(GRACE_SECS) { Err(Reason::Expired.into()) } else { Ok(()) }
}
