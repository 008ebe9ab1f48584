//! Who may do what: tokens, signed data URLs, upload grants. Pure functions of a key ring and the time.
//!
//! All of them are sealed texts: `key id, payload` in the clear, and an HMAC-SHA256 over purpose, context and both, in
//! URL-safe base64. They are opaque to clients, and not secret from their holder: nothing is encrypted.
//!
//! * The *purpose* keeps a grant from being taken for a token, whatever its payload.
//! * The *context* is signed but not carried: the xorb that the request names. A text is of no use for another one.
//! * The *key id* says with which key of the ring it was made, so that keys rotate while texts are under way.
//!
//! What is refused is refused with one [`Refused`], whose text says nothing; its [`Reason`] is for logs and metrics.
//! Signatures are compared in constant time. `Debug` of whatever holds a secret shows none.

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

/// How long something is accepted after it has expired, in seconds.
///
/// Clients look at the expiry when they *begin* a request, and never refresh a token because of an answer (spec 5.0);
/// and the clocks of two machines differ. So what was valid when it was sent must not be refused on arrival.
pub const GRACE_SECS: u64 = 60;

/// A token, data URL signature or grant is not valid. Its holder learns no more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not valid")]
pub struct Refused {
    reason: Reason,
}

/// Why something was refused: for logs and metrics, never for the one who was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Not one of our texts at all.
    Malformed,
    /// Made with a key that is not in the ring, or not any more.
    UnknownKey,
    /// Altered, made for something else, or forged.
    Signature,
    /// Expired for longer than the grace.
    Expired,
    /// A token that was revoked, or was made by a refresh token that was.
    Revoked,
    /// Byte ranges that the URL was not made for.
    Ranges,
    /// A grant that was given to somebody else.
    Owner,
}

impl Refused {
    /// Why: for logs and metrics only.
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
/// Cannot be compared: what a client sends is checked by its signature, in constant time, and by nothing else.
#[derive(Clone)]
pub struct SecretText(String);

impl SecretText {
    /// The text, to be given to the one it is for.
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

/// Refuses a token that is on the list of the ring.
fn check_revocation(ring: &KeyRing, id: TokenId) -> Result<(), Refused> {
    if ring.is_revoked(id) { Err(Reason::Revoked.into()) } else { Ok(()) }
}

/// Refuses what expired more than [`GRACE_SECS`] ago.
fn check_expiry(expires_unix_secs: u64, now_unix_secs: u64) -> Result<(), Refused> {
    if now_unix_secs > expires_unix_secs.saturating_add(GRACE_SECS) { Err(Reason::Expired.into()) } else { Ok(()) }
}
