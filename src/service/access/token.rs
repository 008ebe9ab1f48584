//! Access tokens: signed texts with a repository, a scope, a subject and an expiry. The server
//! stores none of them; revocations are in [`keys`](super::keys).

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use thiserror::Error;

use super::keys::{KeyId, KeyRing};
use super::seal::{Purpose, open, seal};
use super::{Reason, Refused, SecretText, TokenId, check_expiry, check_revocation};
use crate::format::reader::Reader;

/// The prefix of every token, so that scanners for leaked secrets find it.
const PREFIX: &str = "zorb_";

/// The permissions of a token. Each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Reading files.
    Read,
    /// Uploading xorbs and shards, too.
    Write,
    /// Running the server, too.
    Admin,
}

/// The contents of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// Its permissions.
    pub scope: Scope,
    /// Its repositories.
    pub repo: RepoScope,
    /// Its holder, if named.
    pub subject: Option<Subject>,
    /// When it was made, in seconds since 1970.
    pub issued_unix_secs: u64,
    /// Until when it is valid, in seconds since 1970.
    pub expires_unix_secs: u64,
}

/// A token, read: its contents and its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its id.
    pub id: TokenId,
    /// The refresh token that it was made by.
    pub parent: Option<TokenId>,
    /// Its contents.
    pub claims: Claims,
}

/// The repositories of a token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RepoScope {
    /// All, now and later. Written `*`.
    All,
    /// This one.
    One(Repo),
}

/// Why a text is not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// The text is empty or too long.
    #[error("a name has 1 to {MAX_NAME_LEN} bytes, this has {len}")]
    Len {
        /// Bytes that it has.
        len: usize,
    },
    /// The text has a space or a control character.
    #[error("a name has neither spaces nor control characters")]
    Character,
    /// The text has another meaning.
    #[error("`*` stands for all repositories and is not a name")]
    Reserved,
}

/// Bytes of a name, at most: its length is one byte in a token.
const MAX_NAME_LEN: usize = 255;

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                check_name(text).map(|()| Self(text.to_owned()))
            }
        }
    };
}

name_type! {
    /// The name of a repository: any text of 1 to 255 bytes without spaces and control characters,
    /// but for `*`.
    Repo
}
name_type! {
    /// The name of a token's holder, by the same rules.
    Subject
}

fn check_name(text: &str) -> Result<(), NameError> {
    if !(1..=MAX_NAME_LEN).contains(&text.len()) {
        return Err(NameError::Len { len: text.len() });
    }
    if text.chars().any(|character| character.is_control() || character.is_whitespace()) {
        return Err(NameError::Character);
    }
    if text == "*" { Err(NameError::Reserved) } else { Ok(()) }
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

impl RepoScope {
    /// Whether it includes this repository.
    #[must_use]
    pub fn covers(&self, repo: &Repo) -> bool {
        match self {
            Self::All => true,
            Self::One(one) => one == repo,
        }
    }

    /// Its owner: the part of the name before the last slash, or all of a name without one. `*` is
    /// the owner of uploads with tokens for all repositories, and of nothing else.
    #[must_use]
    pub fn owner(&self) -> &str {
        let Self::One(repo) = self else { return "*" };
        let owner = repo.as_str().rsplit_once('/').map(|(owner, _)| owner).filter(|owner| *owner != "*");
        owner.unwrap_or(repo.as_str())
    }

    /// Its form in a token: no name is empty, so the empty text stands for all.
    pub(super) fn as_signed(&self) -> &str {
        match self {
            Self::All => "",
            Self::One(repo) => repo.as_str(),
        }
    }
}

impl fmt::Display for RepoScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::One(repo) => repo.fmt(f),
        }
    }
}

impl FromStr for RepoScope {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if text == "*" { Ok(Self::All) } else { text.parse().map(Self::One) }
    }
}

impl Claims {
    /// Everything, everywhere, for ever: for any client of a server without authentication.
    pub const UNRESTRICTED: Self = Self {
        scope: Scope::Admin,
        repo: RepoScope::All,
        subject: None,
        issued_unix_secs: 0,
        expires_unix_secs: u64::MAX,
    };

    /// Whether operations that need that scope are allowed.
    #[must_use]
    pub fn allow(&self, needed: Scope) -> bool {
        self.scope >= needed
    }

    /// The beginning of every text with these claims.
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
    /// A token with these claims. The number must come from the system's random source.
    #[must_use]
    pub const fn new(claims: Claims, number: u64) -> Self {
        Self { id: TokenId::new(number, claims.expires_unix_secs), parent: None, claims }
    }

    /// Its text.
    #[must_use]
    pub fn issue(&self, ring: &KeyRing) -> SecretText {
        let mut payload = self.claims.to_payload();
        payload.extend_from_slice(&self.id.number().to_le_bytes());
        if let Some(parent) = self.parent {
            payload.extend_from_slice(&parent.number().to_le_bytes());
            payload.extend_from_slice(&parent.expires_unix_secs().to_le_bytes());
        }
        let sealed = seal(ring, Purpose::Token, &[], &payload);
        SecretText(format!("{PREFIX}{}", sealed.expose()))
    }
}

/// A length in one byte, and the text. Names are never longer than 255 bytes.
fn push_text(out: &mut Vec<u8>, text: &str) {
    out.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
    out.extend(text.bytes().take(MAX_NAME_LEN));
}

/// The contents of a token, if it is valid now.
///
/// # Errors
///
/// It is not ours, expired more than [`GRACE_SECS`](super::GRACE_SECS) ago, or was revoked, or its
/// refresh token was.
pub fn check_token(ring: &KeyRing, token: &str, now_unix_secs: u64) -> Result<Token, Refused> {
    let (_, token) = inspect_token(ring, token)?;
    check_expiry(token.claims.expires_unix_secs, now_unix_secs)?;
    check_revocation(ring, token.id)?;
    token.parent.map_or(Ok(()), |parent| check_revocation(ring, parent))?;
    Ok(token)
}

/// The contents of a token and its signing key, even if it has expired or was revoked. Not for
/// access control.
///
/// # Errors
///
/// It is not ours.
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
        // Older versions wrote no number: it follows from the rest.
        let digest: [u8; 32] = Sha256::digest(payload).into();
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

pub(super) fn parse_claims(reader: &mut Reader<'_>) -> Option<Claims> {
    let scope = Scope::from_byte(reader.u8().ok()?)?;
    let issued_unix_secs = reader.u64().ok()?;
    let expires_unix_secs = reader.u64().ok()?;
    let repo = match take_text(reader)? {
        "" => RepoScope::All,
        name => RepoScope::One(name.parse().ok()?),
    };
    let subject = match take_text(reader)? {
        "" => None,
        name => Some(name.parse().ok()?),
    };
    Some(Claims { scope, repo, subject, issued_unix_secs, expires_unix_secs })
}

fn take_text<'a>(reader: &mut Reader<'a>) -> Option<&'a str> {
    let len = reader.u8().ok()?;
    std::str::from_utf8(reader.take(len.into()).ok()?).ok()
}
