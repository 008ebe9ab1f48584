//! Refresh tokens: with a refresh token, a client obtains access tokens of one repository, scope
//! and subject. A refresh token permits nothing else.
//!
//! A client that runs for longer than its access token is valid uses a refresh token to request the
//! next access token. A refresh token is valid for longer than an access token, so it must permit
//! less. It is refused wherever an access token is required, and is accepted by one route only.

use super::claims::parse_claims;
use super::keys::{KeyId, KeyRing};
use super::seal::{Purpose, open, seal};
use super::{Claims, Reason, Refused, SecretText, Token, TokenId, check_expiry, check_revocation};
use crate::format::reader::Reader;

/// The prefix of every refresh token. It is longer than the prefix of an access token, `zorb_`, so
/// that people see which kind they have. Code distinguishes the two by their purpose.
const PREFIX: &str = "zorb_refresh_";

/// A parsed refresh token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefreshToken {
    /// The id of the refresh token. Revoking this id also revokes every token that the refresh
    /// token has made.
    pub id: TokenId,
    /// Scope, repository and subject of the tokens that it makes. The two times are those of the
    /// refresh token itself.
    pub claims: Claims,
    /// How long each token that it makes is valid, in seconds. But no token is valid for longer
    /// than the refresh token.
    pub token_secs: u64,
}

impl RefreshToken {
    /// A refresh token with these claims. The number must come from the random source of the
    /// operating system.
    #[must_use]
    pub const fn new(claims: Claims, token_secs: u64, number: u64) -> Self {
        Self { id: TokenId::new(number, claims.expires_unix_secs), claims, token_secs }
    }

    /// The signed text of the refresh token.
    #[must_use]
    pub fn issue(&self, ring: &KeyRing) -> SecretText {
        let mut payload = self.claims.to_payload();
        payload.extend_from_slice(&self.id.number().to_le_bytes());
        payload.extend_from_slice(&self.token_secs.to_le_bytes());
        let sealed = seal(ring, Purpose::RefreshToken, &[], &payload);
        SecretText(format!("{PREFIX}{}", sealed.expose()))
    }

    /// A new access token with the repository, scope and subject of this refresh token. The number
    /// must come from the random source of the operating system.
    #[must_use]
    pub fn make(&self, now_unix_secs: u64, number: u64) -> Token {
        let expires_unix_secs = now_unix_secs.saturating_add(self.token_secs).min(self.claims.expires_unix_secs);
        let claims = Claims { expires_unix_secs, ..self.claims.clone() };
        Token { ancestors: vec![self.id], ..Token::new(claims, number) }
    }
}

/// The contents of a refresh token, if it is valid now.
///
/// # Errors
///
/// The text was not signed with a key of the ring, it is not a refresh token, it expired more than
/// [`GRACE_SECS`](super::GRACE_SECS) ago, it was revoked, or its user was disabled.
pub fn check_refresh_token(ring: &KeyRing, token: &str, now_unix_secs: u64) -> Result<RefreshToken, Refused> {
    let (_, token) = inspect_refresh_token(ring, token)?;
    check_expiry(token.claims.expires_unix_secs, now_unix_secs)?;
    check_revocation(ring, token.id)?;
    ring.accounts().admit(token.claims.clone())?;
    Ok(token)
}

/// The contents of a refresh token and the id of its signing key, even if the refresh token has
/// expired or was revoked. Not for access control.
///
/// # Errors
///
/// The text was not signed with a key of the ring, or it is not a refresh token.
pub fn inspect_refresh_token(ring: &KeyRing, token: &str) -> Result<(KeyId, RefreshToken), Refused> {
    let text = token.strip_prefix(PREFIX).ok_or(Reason::Malformed)?;
    let (key_id, payload) = open(ring, Purpose::RefreshToken, &[], text)?;
    let token = parse(&payload).ok_or(Reason::Malformed)?;
    Ok((key_id, token))
}

fn parse(payload: &[u8]) -> Option<RefreshToken> {
    let mut reader = Reader::new(payload);
    let claims = parse_claims(&mut reader)?;
    let number = reader.u64().ok()?;
    let token_secs = reader.u64().ok()?;
    reader.finish().ok()?;
    Some(RefreshToken::new(claims, token_secs, number))
}
