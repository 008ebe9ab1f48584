//! Access tokens, called *tokens* for short: signed texts with a repository, a scope, a subject and
//! an expiry. The server does not store tokens. It stores revocations, in [`keys`](super::keys).

use sha2::{Digest, Sha256 as Hasher};

use super::claims::parse_claims;
use super::keys::{KeyId, KeyRing};
use super::repos::MAX_NAME_LEN;
use super::seal::{HIDDEN_LEN, Purpose, open, seal, seal_hidden};
use super::{Claims, Reason, Refused, RepoScope, SecretText, TokenId, check_expiry, check_revocation};
use crate::format::reader::Reader;
use crate::format::shard::Sha256;

/// The prefix of every token, by which scanners for leaked secrets recognize a token.
const PREFIX: &str = "zorb_";

/// Maximum ancestors of a token. Clients of the Hub have two: they ask for a token for a transfer
/// with the token of their user, which a refresh token may have made.
pub const MAX_ANCESTOR_COUNT: usize = 5;

/// The longest payload: scope, two times, two names with their lengths, a number, the ancestors.
const MAX_PAYLOAD_LEN: usize = 1 + 16 + 2 * (1 + MAX_NAME_LEN) + 8 + 16 * MAX_ANCESTOR_COUNT;

// It fits into a hidden text, with its length.
const _: () = assert!(MAX_PAYLOAD_LEN + 2 <= HIDDEN_LEN);

/// A parsed token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The id of the token.
    pub id: TokenId,
    /// The ids of the tokens whose revocation revokes this one: first that of the refresh token or
    /// of the first token for which one was issued, last that for which this one was issued. At
    /// most [`MAX_ANCESTOR_COUNT`].
    pub ancestors: Vec<TokenId>,
    /// The claims of the token.
    pub claims: Claims,
}

impl Token {
    /// A token with these claims. The number must come from the random source of the operating
    /// system.
    #[must_use]
    pub const fn new(claims: Claims, number: u64) -> Self {
        Self { id: TokenId::new(number, claims.expires_unix_secs), ancestors: Vec::new(), claims }
    }

    /// The first of its ancestors.
    #[must_use]
    pub fn parent(&self) -> Option<TokenId> {
        self.ancestors.first().copied()
    }

    /// The signed text of the token. One for a public repository is hidden: its holder knows the
    /// repository by its name, and the storage name tells of other repositories.
    #[must_use]
    pub fn issue(&self, ring: &KeyRing) -> SecretText {
        let seal = if matches!(self.claims.repo, RepoScope::Public(_)) { seal_hidden } else { seal };
        let sealed = seal(ring, Purpose::Token, &[], &self.to_payload());
        SecretText(format!("{PREFIX}{}", sealed.expose()))
    }

    /// The signature of a URL to which this file may be sent as a whole, in the name of this token.
    /// It permits nothing else. The URL ends with the token, or at `expires_unix_secs`.
    #[must_use]
    pub fn sign_file_upload(
        &self,
        ring: &KeyRing,
        (sha256, len): (&Sha256, u64),
        expires_unix_secs: u64,
    ) -> SecretText {
        let payload = [expires_unix_secs.to_le_bytes().as_slice(), &self.to_payload()].concat();
        seal(ring, Purpose::FileUpload, &file_context(sha256, len), &payload)
    }

    fn to_payload(&self) -> Vec<u8> {
        let mut payload = self.claims.to_payload();
        payload.extend_from_slice(&self.id.number().to_le_bytes());
        for ancestor in &self.ancestors {
            payload.extend_from_slice(&ancestor.number().to_le_bytes());
            payload.extend_from_slice(&ancestor.expires_unix_secs().to_le_bytes());
        }
        payload
    }
}

/// The contents of a token, if it is valid now.
///
/// # Errors
///
/// The text is not a token that a key of the ring has signed, or it expired more than
/// [`GRACE_SECS`](super::GRACE_SECS) ago. Or the token was revoked, or one of its ancestors was, or
/// its user was disabled.
pub fn check_token(ring: &KeyRing, token: &str, now_unix_secs: u64) -> Result<Token, Refused> {
    let (_, token) = inspect_token(ring, token)?;
    check_validity(ring, token, now_unix_secs)
}

/// The token in whose name this file may be sent, if the signature of the URL is valid now.
///
/// # Errors
///
/// As for [`check_token`]. Or the signature is for another file or length.
pub fn check_file_upload(
    ring: &KeyRing,
    signature: &str,
    (sha256, len): (&Sha256, u64),
    now_unix_secs: u64,
) -> Result<Token, Refused> {
    let (_, payload) = open(ring, Purpose::FileUpload, &file_context(sha256, len), signature)?;
    let (expires_unix_secs, payload) = payload.split_first_chunk().ok_or(Reason::Malformed)?;
    check_expiry(u64::from_le_bytes(*expires_unix_secs), now_unix_secs)?;
    let token = parse_token(payload).ok_or(Reason::Malformed)?;
    check_validity(ring, token, now_unix_secs)
}

/// The file of an upload URL, as it is signed: its sha256 and its length. The path and the query of
/// the URL contain them.
fn file_context(sha256: &Sha256, len: u64) -> Vec<u8> {
    [sha256.as_digest().as_slice(), &len.to_le_bytes()].concat()
}

/// Refuses a token that has expired or was revoked, or whose user was disabled. The claims of a
/// user get the namespaces of the user.
fn check_validity(ring: &KeyRing, token: Token, now_unix_secs: u64) -> Result<Token, Refused> {
    check_expiry(token.claims.expires_unix_secs, now_unix_secs)?;
    check_revocation(ring, token.id)?;
    token.ancestors.iter().try_for_each(|ancestor| check_revocation(ring, *ancestor))?;
    Ok(Token { claims: ring.accounts().admit(token.claims)?, ..token })
}

/// The contents of a token and the id of its signing key, even if the token has expired or was
/// revoked. Not for access control.
///
/// # Errors
///
/// The text is not a token that a key of the ring has signed.
pub fn inspect_token(ring: &KeyRing, token: &str) -> Result<(KeyId, Token), Refused> {
    let text = token.strip_prefix(PREFIX).ok_or(Reason::Malformed)?;
    let (key_id, payload) = open(ring, Purpose::Token, &[], text)?;
    let token = parse_token(&payload).ok_or(Reason::Malformed)?;
    Ok((key_id, token))
}

fn parse_token(payload: &[u8]) -> Option<Token> {
    let mut reader = Reader::new(payload);
    let claims = parse_claims(&mut reader)?;
    if reader.is_at_end() {
        // Older versions of zorb wrote no number. The number for the id is derived from the
        // payload, so that such a token can be revoked, too.
        let digest: [u8; 32] = Hasher::digest(payload).into();
        let (number, _) = digest.split_first_chunk()?;
        return Some(Token::new(claims, u64::from_le_bytes(*number)));
    }
    let mut token = Token::new(claims, reader.u64().ok()?);
    while !reader.is_at_end() && token.ancestors.len() < MAX_ANCESTOR_COUNT {
        token.ancestors.push(TokenId::new(reader.u64().ok()?, reader.u64().ok()?));
    }
    reader.finish().ok()?;
    Some(token)
}
