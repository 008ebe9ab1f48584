//! Refresh tokens: they make tokens of one repository and scope, and permit nothing else.
//!
//! A client that runs for longer than its token is valid requests another one. The refresh token
//! for that is valid for longer, and so must be worth less. It is refused wherever a token is
//! required, and is sent to one route only.

use super::keys::{KeyId, KeyRing};
use super::seal::{Purpose, open, seal};
use super::token::parse_claims;
use super::{Claims, Reason, Refused, SecretText, Token, TokenId, check_expiry, check_revocation};
use crate::format::reader::Reader;

/// The prefix of every refresh token. It is longer than that of a token, so that people see what
/// they hold.
const PREFIX: &str = "zorb_refresh_";

/// A refresh token, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefreshToken {
    /// Its id. Revoking it revokes every token that it has made.
    pub id: TokenId,
    /// The contents of its tokens except for their times, and its own times.
    pub claims: Claims,
    /// How long each of its tokens is valid, in seconds; none is valid for longer than itself.
    pub token_secs: u64,
}

impl RefreshToken {
    /// A refresh token. The number must come from the system's random source.
    #[must_use]
    pub const fn new(claims: Claims, token_secs: u64, number: u64) -> Self {
        Self { id: TokenId::new(number, claims.expires_unix_secs), claims, token_secs }
    }

    /// Its text.
    #[must_use]
    pub fn issue(&self, ring: &KeyRing) -> SecretText {
        let mut payload = self.claims.to_payload();
        payload.extend_from_slice(&self.id.number().to_le_bytes());
        payload.extend_from_slice(&self.token_secs.to_le_bytes());
        let sealed = seal(ring, Purpose::RefreshToken, &[], &payload);
        SecretText(format!("{PREFIX}{}", sealed.expose()))
    }

    /// A token of its repository, scope and subject. The number must come from the system's random
    /// source.
    #[must_use]
    pub fn make(&self, now_unix_secs: u64, number: u64) -> Token {
        let expires_unix_secs = now_unix_secs.saturating_add(self.token_secs).min(self.claims.expires_unix_secs);
        let claims = Claims { issued_unix_secs: now_unix_secs, expires_unix_secs, ..self.claims.clone() };
        Token { parent: Some(self.id), ..Token::new(claims, number) }
    }
}

/// The contents of a refresh token, if it is valid now.
///
/// # Errors
///
/// It is not ours, is not a refresh token, expired more than [`GRACE_SECS`](super::GRACE_SECS) ago,
/// or was revoked.
pub fn check_refresh_token(ring: &KeyRing, token: &str, now_unix_secs: u64) -> Result<RefreshToken, Refused> {
    let (_, token) = inspect_refresh_token(ring, token)?;
    check_expiry(token.claims.expires_unix_secs, now_unix_secs)?;
    check_revocation(ring, token.id)?;
    Ok(token)
}

/// The contents of a refresh token and its signing key, even if it has expired or was revoked.
///
/// # Errors
///
/// It is not ours, or is not a refresh token.
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
