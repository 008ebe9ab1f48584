//! Access control: access tokens, refresh tokens, signed data URLs and upload grants. Nothing is
//! stored here: a check depends only on the text, the request, the key ring and the time.
//!
//! A token, a refresh token and the signature of a data URL or of an upload URL are each a *signed
//! text*; a grant is two signed texts. A signed text consists of a key id, a payload and an
//! HMAC-SHA256, in URL-safe base64 (`access/seal.rs`). Clients treat it as opaque. Only a token for
//! a public repository is encrypted: the holder of any other text can decode and read the payload.
//!
//! * The *key id* names the key that made the signature. So texts of older keys stay valid when a
//!   new key begins to sign.
//! * The *payload* is what the text grants, and until when.
//! * The *purpose* is signed but not contained in the text. A grant is never valid as a token,
//!   whatever its payload is, because their purposes differ.
//! * The *context* is signed but not contained in the text. For data URLs and grants it is the hash
//!   of the xorb, which the path of the request contains. So the text is invalid for another xorb.
//!   For upload URLs it is the sha256 and the length of the file. Tokens have an empty context.
//!
//! Every failed check returns [`Refused`]. Its message is always the same, so it reveals nothing to
//! the client; its [`Reason`] is for logs and metrics. Signatures are compared in constant time.
//! `Debug` of a type with a secret does not show the secret.

mod account;
mod accounts;
mod claims;
mod data_url;
mod grant;
mod id;
mod keys;
mod refresh;
mod repos;
mod seal;
#[cfg(feature = "s3")]
mod sealed_ring;
#[cfg(test)]
mod tests;
mod token;

use std::fmt;

use thiserror::Error;

pub use account::{Account, AccountName, AccountNameError, Role, RoleError};
pub use accounts::{AccountError, Accounts, User};
pub use claims::{Claims, Scope};
pub use data_url::{DataUrl, MAX_URL_RANGE_COUNT, Permitted, check_data_url};
pub use grant::{Grant, GrantRequest, IssuedGrant, check_grant, check_granted_upload};
pub use id::{TokenId, TokenIdError};
pub use keys::{KeyId, KeyRing, KeyRingError, SECRET_LEN};
pub use refresh::{RefreshToken, check_refresh_token, inspect_refresh_token};
pub use repos::{NameError, Namespace, PublicRepo, Repo, RepoScope, Subject};
#[cfg(feature = "s3")]
pub use sealed_ring::{MasterKey, UnsealError, open_ring, seal_ring};
pub use token::{MAX_ANCESTOR_COUNT, Token, check_file_upload, check_token, inspect_token};

/// How long a text is accepted after its expiry, in seconds.
///
/// A text that was valid when the client sent it must not be refused because it expired on the way,
/// or because the two clocks differ. Clients check the expiry when they *begin* a request, and they
/// do not refresh a token when a response refuses it (spec 5.0).
pub const GRACE_SECS: u64 = 60;

/// A text is invalid, or does not permit the request. The client does not learn why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not valid")]
pub struct Refused {
    reason: Reason,
}

/// Why a request was refused: for logs, never for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The text does not have the format of the expected kind.
    Malformed,
    /// The text names a key that is not in the ring.
    UnknownKey,
    /// The signature is wrong: the text was altered or forged, or made for another purpose or
    /// context.
    Signature,
    /// The text expired more than [`GRACE_SECS`] ago.
    Expired,
    /// The token was revoked, or one was from which it was made or for which it was issued.
    Revoked,
    /// The request asks for byte ranges that the URL does not permit.
    Ranges,
    /// The user of the token does not exist or was disabled, or the token is older than the last
    /// revocation of all tokens of the user.
    Account,
    /// The grant was made for another repository or subject than those of the token.
    Owner,
    /// The request has no token, or an `Authorization` header of another kind.
    Missing,
    /// The URL is for a blob that was replaced and deleted since, or whose offsets were corrected.
    Replaced,
    /// The scope of the token does not include the request.
    Scope,
    /// The token does not permit this in this repository, or is for some repositories only.
    Repo,
    /// The token is only for routes of the Hub.
    Route,
}

impl Refused {
    /// The reason, for logs only.
    #[must_use]
    pub const fn reason(self) -> Reason {
        self.reason
    }
}

impl Reason {
    /// The name of the reason in logs. A name does not change between versions.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownKey => "unknown_key",
            Self::Signature => "signature",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::Ranges => "ranges",
            Self::Account => "account",
            Self::Owner => "owner",
            Self::Missing => "missing",
            Self::Replaced => "replaced",
            Self::Scope => "scope",
            Self::Repo => "repository",
            Self::Route => "route",
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
/// The type has no `PartialEq`, so that no code compares secrets byte by byte, which is not in
/// constant time. A text from a client is only checked by its signature.
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

/// Refuses a token or refresh token whose id was revoked.
fn check_revocation(ring: &KeyRing, id: TokenId) -> Result<(), Refused> {
    if ring.is_revoked(id) { Err(Reason::Revoked.into()) } else { Ok(()) }
}

/// Refuses a text that expired more than [`GRACE_SECS`] ago.
fn check_expiry(expires_unix_secs: u64, now_unix_secs: u64) -> Result<(), Refused> {
    if now_unix_secs > expires_unix_secs.saturating_add(GRACE_SECS) { Err(Reason::Expired.into()) } else { Ok(()) }
}
