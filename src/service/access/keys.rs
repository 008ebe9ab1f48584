//! The signing keys and the revoked tokens: values, and the text of the key file.
//!
//! Nothing is read or written here. `cli/keys.rs` replaces the file durably, and servers reload it.

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

use super::{SecretText, TokenId};

/// Bytes of a key's secret.
pub const SECRET_LEN: usize = 32;

/// The prefix of a line of the key file that revokes a token.
const REVOKED: &str = "revoked ";

/// How long a revocation is stored after its token has expired, in seconds: 30 days. The clock of
/// the machine that edits the file may be that far ahead.
const REVOCATION_MARGIN_SECS: u64 = 30 * 24 * 3600;

/// The id of a key. Shown in texts that it has signed, and in logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(u32);

/// The accepted keys, and the signing one: the newest. They are stored with the revoked tokens, so
/// that a change, a restore or a loss affects both.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyRing {
    /// Ascending by id.
    older: Vec<Key>,
    current: Key,
    /// By number.
    revoked: BTreeMap<u64, TokenId>,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) id: KeyId,
    pub(super) secret: [u8; SECRET_LEN],
}

/// Why a key file cannot be used. Reveals none of its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyRingError {
    /// A line is neither an id and 64 hex digits nor a revocation.
    #[error("line {line} of the key file is neither an id and {digits} hex digits nor a revocation", digits = 2 * SECRET_LEN)]
    Line {
        /// Which line, from 1.
        line: usize,
    },
    /// Ids do not ascend, so the newest key is unknown.
    #[error("line {line} of the key file has an id that is not above the one before")]
    Order {
        /// Which line, from 1.
        line: usize,
    },
    /// There is no key.
    #[error("the key file has no key")]
    Empty,
}

impl KeyId {
    /// The id with this number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Its number.
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
    pub const fn new(secret: [u8; SECRET_LEN]) -> Self {
        Self { older: Vec::new(), current: Key { id: KeyId(1), secret }, revoked: BTreeMap::new() }
    }

    /// The ring with a new key that signs from now on. The others are still accepted.
    ///
    /// `None` when the numbers are used up.
    #[must_use]
    pub fn rotated(&self, secret: [u8; SECRET_LEN]) -> Option<Self> {
        let id = KeyId(self.current.id.0.checked_add(1)?);
        let mut older = self.older.clone();
        older.push(self.current.clone());
        Some(Self { older, current: Key { id, secret }, revoked: self.revoked.clone() })
    }

    /// The ring that no longer accepts the token with this id, nor tokens that a refresh token with
    /// this id has made.
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

    /// Whether the token with this id was revoked.
    #[must_use]
    pub fn is_revoked(&self, id: TokenId) -> bool {
        self.revoked.contains_key(&id.number())
    }

    /// How many tokens are revoked.
    #[must_use]
    pub fn revoked_count(&self) -> usize {
        self.revoked.len()
    }

    /// The ring with no more than this many older keys. Texts that others have signed are not
    /// accepted any more.
    #[must_use]
    pub fn retaining(&self, older_count: usize) -> Self {
        let dropped = self.older.len().saturating_sub(older_count);
        let older = self.older.iter().skip(dropped).cloned().collect();
        Self { older, current: self.current.clone(), revoked: self.revoked.clone() }
    }

    /// The key that signs.
    #[must_use]
    pub const fn current_id(&self) -> KeyId {
        self.current.id
    }

    /// All keys that are accepted, the newest last.
    pub fn ids(&self) -> impl Iterator<Item = KeyId> + '_ {
        self.keys().map(|key| key.id)
    }

    /// Reads a key file: a number and 64 hex digits per line, numbers ascending; `revoked` and the
    /// id of a token for each revoked one. Empty lines and `#` are skipped.
    ///
    /// # Errors
    ///
    /// The text is malformed. A part of a key ring is never returned.
    pub fn parse(text: &str) -> Result<Self, KeyRingError> {
        let (mut keys, mut revoked): (Vec<Key>, _) = (Vec::new(), BTreeMap::new());
        for (content, line) in text.lines().map(str::trim).zip(1..) {
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            if let Some(id) = content.strip_prefix(REVOKED) {
                let id: TokenId = id.trim_start().parse().map_err(|_| KeyRingError::Line { line })?;
                revoked.insert(id.number(), id);
                continue;
            }
            let key = parse_line(content).ok_or(KeyRingError::Line { line })?;
            if keys.last().is_some_and(|last| last.id >= key.id) {
                return Err(KeyRingError::Order { line });
            }
            keys.push(key);
        }
        let current = keys.pop().ok_or(KeyRingError::Empty)?;
        Ok(Self { older: keys, current, revoked })
    }

    /// The ring as [`KeyRing::parse`] reads it.
    #[must_use]
    pub fn to_file_text(&self) -> SecretText {
        let line = |key: &Key| {
            let digits: String = key.secret.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{} {digits}\n", key.id)
        };
        let revoked = self.revoked.values().map(|id| format!("{REVOKED}{id}\n"));
        SecretText(self.keys().map(line).chain(revoked).collect())
    }

    pub(super) const fn current(&self) -> &Key {
        &self.current
    }

    pub(super) fn find(&self, id: KeyId) -> Option<&Key> {
        self.keys().find(|key| key.id == id)
    }

    fn keys(&self) -> impl Iterator<Item = &Key> {
        self.older.iter().chain([&self.current])
    }
}

fn parse_line(line: &str) -> Option<Key> {
    let (id, digits) = line.split_once(' ')?;
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
