//! Claims: what the holder of a token may do, and their form in the payload of a token or refresh
//! token.

use std::fmt;
use std::net::IpAddr;

use super::account::{Account, Role};
use super::repos::{MAX_NAME_LEN, RepoScope, Subject};
use crate::format::reader::Reader;

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
    /// When the token was made, in seconds since 1970. If the server made it for another token,
    /// when that one was made, so that a revocation of all tokens until a time includes it.
    pub issued_unix_secs: u64,
    /// When the token expires, in seconds since 1970.
    pub expires_unix_secs: u64,
    /// The user that the subject names, with the current roles. Not a part of the token: a check
    /// sets it. `None` in the token of a user, whose repositories are these.
    pub user: Option<Account>,
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

impl From<Role> for Scope {
    fn from(role: Role) -> Self {
        match role {
            Role::Read => Self::Read,
            Role::Write => Self::Write,
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

/// The beginning of the subject of a client without a token.
const ADDRESS: &str = "address:";

impl Claims {
    /// All permissions for all repositories, without expiry. A server without authentication gives
    /// these claims to every client.
    pub const UNRESTRICTED: Self = Self {
        scope: Scope::Admin,
        repo: RepoScope::All,
        subject: None,
        issued_unix_secs: 0,
        expires_unix_secs: u64::MAX,
        user: None,
    };

    /// Those of a client without a token, on a server that shows public repositories of the Hub to
    /// everybody: it reads these. The subject, which no user has, makes it a tenant.
    #[must_use]
    pub fn anonymous(client: Option<IpAddr>, now_unix_secs: u64) -> Self {
        let repo = RepoScope::Account(Account::anonymous());
        let subject = client.and_then(|client| format!("{ADDRESS}{client}").parse().ok());
        Self { scope: Scope::Read, repo, subject, issued_unix_secs: now_unix_secs, ..Self::UNRESTRICTED }
    }

    /// Whether these are the claims of a token for transfers that such a client has got.
    #[must_use]
    pub fn are_of_anonymous(&self) -> bool {
        let has_no_user = |subject: &Subject| subject.as_str().starts_with(ADDRESS);
        matches!(self.repo, RepoScope::Public(_)) && self.subject.as_ref().is_some_and(has_no_user)
    }

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

/// Appends the length of the text in one byte, and the text. All texts here are names, which have
/// at most 255 bytes.
fn push_text(out: &mut Vec<u8>, text: &str) {
    out.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
    out.extend(text.bytes().take(MAX_NAME_LEN));
}

/// Inverse of [`Claims::to_payload`].
pub(super) fn parse_claims(reader: &mut Reader<'_>) -> Option<Claims> {
    let scope = Scope::from_byte(reader.u8().ok()?)?;
    let issued_unix_secs = reader.u64().ok()?;
    let expires_unix_secs = reader.u64().ok()?;
    let repo = RepoScope::parse_signed(take_text(reader)?)?;
    let subject = match take_text(reader)? {
        "" => None,
        name => Some(name.parse().ok()?),
    };
    Some(Claims { scope, repo, subject, issued_unix_secs, expires_unix_secs, user: None })
}

/// Inverse of [`push_text`].
fn take_text<'a>(reader: &mut Reader<'a>) -> Option<&'a str> {
    let len = reader.u8().ok()?;
    std::str::from_utf8(reader.take(len.into()).ok()?).ok()
}
