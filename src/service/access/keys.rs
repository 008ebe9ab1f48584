//! The key ring: the signing keys, the revoked tokens and the accounts, and the text format of the
//! key file that contains them.
//!
//! This module reads and writes no file. `cli/keys.rs` replaces the key file durably, and running
//! servers reload it.

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

use super::accounts::Accounts;
use super::{SecretText, TokenId};

/// Length of a key's secret in bytes.
pub const SECRET_LEN: usize = 32;

/// The beginning of a line of the key file that revokes a token; the id of the token follows.
const REVOKED: &str = "revoked ";

/// How long a revocation is stored after its token has expired: 30 days. If the clock of the
/// machine that edits the file is ahead by less than that, no revocation of a valid token is
/// dropped.
const REVOCATION_MARGIN_SECS: u64 = 30 * 24 * 3600;

/// The id of a key. It is not secret: logs and the texts that the key has signed contain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(u32);

/// The accepted keys, the revoked tokens and the accounts. The newest key signs. All are in one
/// file, so that none is ever copied, restored or lost without the others.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyRing {
    /// The keys that are still accepted but do not sign any more, ascending by id.
    older: Vec<Key>,
    /// The key that signs. Its id is greater than all others.
    current: Key,
    /// The ids of the revoked tokens, by their number.
    revoked: BTreeMap<u64, TokenId>,
    accounts: Accounts,
}

/// A signing key.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) id: KeyId,
    pub(super) secret: [u8; SECRET_LEN],
}

/// Why a key file is invalid. The messages do not contain any text of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyRingError {
    /// A line is neither an id and 64 hex digits nor a revocation, nor does it describe an account
    /// that earlier lines permit.
    #[error(
        "line {line} of the key file is neither an id and {digits} hex digits, nor a revocation, user, organization or \
         member",
        digits = 2 * SECRET_LEN
    )]
    Line {
        /// Which line, from 1.
        line: usize,
    },
    /// The ids do not ascend, so it is unknown which key is the newest.
    #[error("line {line} of the key file has an id that is not above the one before")]
    Order {
        /// Which line, from 1.
        line: usize,
    },
    /// The file has no key.
    #[error("the key file has no key")]
    Empty,
}

impl KeyId {
    /// The id with this number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The id as a number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl KeyRing {
    /// A ring of one key with the number 1. The secret must come from the system's random source.
    #[must_use]
    pub fn new(secret: [u8; SECRET_LEN]) -> Self {
        Self {
            older: Vec::new(),
            current: Key { id: KeyId(1), secret },
            revoked: BTreeMap::new(),
            accounts: Accounts::default(),
        }
    }

    /// The ring with a new key that signs from now on. Texts of the other keys are still accepted.
    /// `None` if the current key has the greatest possible id.
    #[must_use]
    pub fn rotated(&self, secret: [u8; SECRET_LEN]) -> Option<Self> {
        let id = KeyId(self.current.id.0.checked_add(1)?);
        let mut older = self.older.clone();
        older.push(self.current.clone());
        Some(Self { older, current: Key { id, secret }, ..self.clone() })
    }

    /// The ring with this id revoked. With this ring, checks refuse the token or refresh token with
    /// this id, and the tokens whose `parent` it is.
    #[must_use]
    pub fn revoking(&self, id: TokenId) -> Self {
        let mut ring = self.clone();
        ring.revoked.insert(id.number(), id);
        ring
    }

    /// The ring without revocations of tokens that expired long ago.
    #[must_use]
    pub fn forgetting(&self, now_unix_secs: u64) -> Self {
        let is_needed = |id: &TokenId| id.expires_unix_secs().saturating_add(REVOCATION_MARGIN_SECS) >= now_unix_secs;
        let mut ring = self.clone();
        ring.revoked.retain(|_, id| is_needed(id));
        ring
    }

    /// The ring with these accounts instead.
    #[must_use]
    pub fn with_accounts(&self, accounts: Accounts) -> Self {
        Self { accounts, ..self.clone() }
    }

    /// The users and organizations.
    #[must_use]
    pub const fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Whether this id itself was revoked. A token is also revoked if its `parent` is, so callers
    /// check the parent, too.
    #[must_use]
    pub fn is_revoked(&self, id: TokenId) -> bool {
        self.revoked.contains_key(&id.number())
    }

    /// The number of revocations in the ring.
    #[must_use]
    pub fn revoked_count(&self) -> usize {
        self.revoked.len()
    }

    /// The ring with its current key, and at most `older_count` older keys, the newest ones. Texts
    /// that a dropped key has signed become invalid.
    #[must_use]
    pub fn retaining(&self, older_count: usize) -> Self {
        let dropped = self.older.len().saturating_sub(older_count);
        let older = self.older.iter().skip(dropped).cloned().collect();
        Self { older, ..self.clone() }
    }

    /// The id of the key that signs.
    #[must_use]
    pub const fn current_id(&self) -> KeyId {
        self.current.id
    }

    /// The ids of all accepted keys, the newest last.
    pub fn ids(&self) -> impl Iterator<Item = KeyId> + '_ {
        self.keys().map(|key| key.id)
    }

    /// Parses the text of a key file. The line of a key is its id and 64 hex digits, and the ids
    /// ascend. The line of a revocation is `revoked` and the id of a token. Those of accounts are
    /// `user NAME TOKENS_SINCE enabled`, `organization NAME` and `member ORGANIZATION USER ROLE`.
    /// Empty lines and lines that begin with `#` are skipped.
    ///
    /// # Errors
    ///
    /// The text is malformed: one malformed line makes the whole file invalid.
    pub fn parse(text: &str) -> Result<Self, KeyRingError> {
        let (mut keys, mut revoked): (Vec<Key>, _) = (Vec::new(), BTreeMap::new());
        let mut accounts = Accounts::default();
        for (content, line) in text.lines().map(str::trim).zip(1..) {
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            if let Some(id) = content.strip_prefix(REVOKED) {
                let id: TokenId = id.trim_start().parse().map_err(|_| KeyRingError::Line { line })?;
                revoked.insert(id.number(), id);
                continue;
            }
            if accounts.take_line(content).ok_or(KeyRingError::Line { line })? {
                continue;
            }
            let key = parse_line(content).ok_or(KeyRingError::Line { line })?;
            if keys.last().is_some_and(|last| last.id >= key.id) {
                return Err(KeyRingError::Order { line });
            }
            keys.push(key);
        }
        let current = keys.pop().ok_or(KeyRingError::Empty)?;
        Ok(Self { older: keys, current, revoked, accounts })
    }

    /// The text of the key file: the inverse of [`KeyRing::parse`], without comments.
    #[must_use]
    pub fn to_file_text(&self) -> SecretText {
        let line = |key: &Key| {
            let digits: String = key.secret.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{} {digits}\n", key.id)
        };
        let revoked = self.revoked.values().map(|id| format!("{REVOKED}{id}\n"));
        SecretText(self.keys().map(line).chain(revoked).chain(self.accounts.lines()).collect())
    }

    /// The key that signs.
    pub(super) const fn current(&self) -> &Key {
        &self.current
    }

    /// The accepted key with this id.
    pub(super) fn find(&self, id: KeyId) -> Option<&Key> {
        self.keys().find(|key| key.id == id)
    }

    fn keys(&self) -> impl Iterator<Item = &Key> {
        self.older.iter().chain([&self.current])
    }
}

/// Parses the line of a key; `None` if it is malformed.
fn parse_line(line: &str) -> Option<Key> {
    let (id, digits) = line.split_once(' ')?;
    // Checked separately, because `parse` also accepts a plus sign.
    let is_decimal = id.bytes().all(|byte| byte.is_ascii_digit());
    let id = if is_decimal { KeyId(id.parse().ok()?) } else { return None };
    let digits: Vec<u8> = digits
        .trim_start()
        .bytes()
        .map(|digit| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok()))
        .collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    let secret: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
    if rest.is_empty() { Some(Key { id, secret: secret.try_into().ok()? }) } else { None }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys()).finish()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}, …)", self.id)
    }
}
