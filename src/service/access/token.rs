//! Access tokens, called *tokens* for short: signed texts with a repository, a scope, a subject and
//! an expiry. The server does not store tokens. It stores revocations, in [`keys`](super::keys).

use std::fmt;

use sha2::{Digest, Sha256 as Hasher};

use super::keys::{KeyId, KeyRing};
use super::repos::{MAX_NAME_LEN, Repo, RepoScope, Subject};
use super::seal::{Purpose, open, seal};
use super::{Reason, Refused, SecretText, TokenId, check_expiry, check_revocation};
use crate::format::reader::Reader;
use crate::format::shard::Sha256;

/// The prefix of every token, by which scanners for leaked secrets recognize a token.
const PREFIX: &str = "zorb_";

/// The permissions of a token. Each scope includes the scopes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Read files.
    Read,
    /// Read files, and upload xorbs and shards.
    Write,
    /// All of these, and administrate the server.
    Admin,
}

/// The claims of a token: which repositories its holder may use, in what way, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The permissions.
    pub scope: Scope,
    /// The repositories that the permissions are for.
    pub repo: RepoScope,
    /// The name of the holder; `None` if the token was made without one.
    pub subject: Option<Subject>,
    /// When the token was made, in seconds since 1970.
    pub issued_unix_secs: u64,
    /// When the token expires, in seconds since 1970.
    pub expires_unix_secs: u64,
}

/// A parsed token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The id of the token.
    pub id: TokenId,
    /// The id of the refresh token that made this token; `None` if none did.
    pub parent: Option<TokenId>,
    /// The claims of the token.
    pub claims: Claims,
}

impl Scope {
    const fn as_byte(self) -> u8 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
            Self::Admin => 3,
        }
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Read),
            2 => Some(Self::Write),
            3 => Some(Self::Admin),
            _ => None,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        })
    }
}

impl Claims {
    /// All permissions for all repositories, without expiry. A server without authentication gives
    /// these claims to every client.
    pub const UNRESTRICTED: Self = Self {
        scope: Scope::Admin,
        repo: RepoScope::All,
        subject: None,
        issued_unix_secs: 0,
        expires_unix_secs: u64::MAX,
    };

    /// Whether the claims allow operations that need this scope.
    #[must_use]
    pub fn allow(&self, needed: Scope) -> bool {
        self.scope >= needed
    }

    /// The claims in binary form: the first part of the payload of a token or refresh token.
    pub(super) fn to_payload(&self) -> Vec<u8> {
        let mut payload = vec![self.scope.as_byte()];
        payload.extend_from_slice(&self.issued_unix_secs.to_le_bytes());
        payload.extend_from_slice(&self.expires_unix_secs.to_le_bytes());
        push_text(&mut payload, self.repo.as_signed());
        push_text(&mut payload, self.subject.as_ref().map_or("", Subject::as_str));
        payload
    }
}

impl Token {
    /// A token with these claims. The number must come from the random source of the operating
    /// system.
    #[must_use]
    pub const fn new(claims: Claims, number: u64) -> Self {
        Self { id: TokenId::new(number, claims.expires_unix_secs), parent: None, claims }
    }

    /// The signed text of the token.
    #[must_use]
    pub fn issue(&self, ring: &KeyRing) -> SecretText {
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
        if let Some(parent) = self.parent {
            payload.extend_from_slice(&parent.number().to_le_bytes());
            payload.extend_from_slice(&parent.expires_unix_secs().to_le_bytes());
        }
        payload
    }
}

/// Appends the length of the text in one byte, and the text. All texts here are names, which have
/// at most 255 bytes.
fn push_text(out: &mut Vec<u8>, text: &str) {
    out.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
    out.extend(text.bytes().take(MAX_NAME_LEN));
}

/// The contents of a token, if it is valid now.
///
/// # Errors
///
/// The text is not a token that a key of the ring has signed, or it expired more than
/// [`GRACE_SECS`](super::GRACE_SECS) ago. Or the token was revoked, or the refresh token that made
/// it was revoked.
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

/// Refuses a token that has expired or was revoked.
fn check_validity(ring: &KeyRing, token: Token, now_unix_secs: u64) -> Result<Token, Refused> {
    check_expiry(token.claims.expires_unix_secs, now_unix_secs)?;
    check_revocation(ring, token.id)?;
    token.parent.map_or(Ok(()), |parent| check_revocation(ring, parent))?;
    Ok(token)
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
    if !reader.is_at_end() {
        token.parent = Some(TokenId::new(reader.u64().ok()?, reader.u64().ok()?));
    }
    reader.finish().ok()?;
    Some(token)
}

/// Inverse of [`Claims::to_payload`].
pub(super) fn parse_claims(reader: &mut Reader<'_>) -> Option<Claims> {
    let scope = Scope::from_byte(reader.u8().ok()?)?;
    let issued_unix_secs = reader.u64().ok()?;
    let expires_unix_secs = reader.u64().ok()?;
    let repo = match take_text(reader)? {
        "" => RepoScope::All,
        // A text that is not empty, and cannot be `*`.
        name => name.parse::<Repo>().ok()?.as_str().parse().ok()?,
    };
    let subject = match take_text(reader)? {
        "" => None,
        name => Some(name.parse().ok()?),
    };
    Some(Claims { scope, repo, subject, issued_unix_secs, expires_unix_secs })
}

/// Inverse of [`push_text`].
fn take_text<'a>(reader: &mut Reader<'a>) -> Option<&'a str> {
    let len = reader.u8().ok()?;
    std::str::from_utf8(reader.take(len.into()).ok()?).ok()
}
