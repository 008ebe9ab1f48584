//! The archive's hash: BLAKE2s with a digest length of 8 bytes.
//!
//! The digest length is a *parameter* of BLAKE2s and changes the whole result. So this hash is not
//! the first 8 bytes of a 32-byte digest. Test vectors: `""` gives `ef2a8b78dd80da9c`, `"abc"`
//! gives `972e9d2cd6de6402`.

use std::fmt;

use blake2::digest::consts::U8;
use blake2::{Blake2s, Digest as _};

/// Bytes of a [`Digest`], and of the metadata of an archive's chunks.
pub const DIGEST_LEN: usize = 8;

/// A session's 64-bit BLAKE2s hash.
///
/// It detects accidents, not attackers: anyone who can write the archive can recompute it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest(pub [u8; DIGEST_LEN]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// A running hash whose digest can be read without ending it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hasher(Blake2s<U8>);

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest(self.0.clone().finalize().into())
    }
}

/// How the hash of a session treats the hash bytes of the reset block it begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HashRule {
    /// They are hashed, as in the reference.
    Included,
    /// They are not hashed, as the README says.
    Excluded,
}

/// The hash of one session by both rules, as long as the rule is not known.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionHash {
    included: Hasher,
    /// `None` if both rules give the same hash, because the session does not begin with a reset
    /// block, or if the rule is known to be [`HashRule::Included`].
    excluded: Option<Hasher>,
}

impl SessionHash {
    /// The hash of a session that begins with a reset block, before any byte. `known` is the rule
    /// of the archive, if it is known.
    pub(crate) fn after_reset(known: Option<HashRule>) -> Self {
        SessionHash { included: Hasher::default(), excluded: (known != Some(HashRule::Included)).then(Hasher::default) }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.included.update(bytes);
        if let Some(excluded) = &mut self.excluded {
            excluded.update(bytes);
        }
    }

    /// Takes the 8 hash bytes of a reset block: only one rule hashes them.
    pub(crate) fn update_stored(&mut self, stored: Digest) {
        self.included.update(&stored.0);
    }

    /// The digest as the reference computes it.
    pub(crate) fn digest(&self) -> Digest {
        self.included.digest()
    }

    /// Compares the hash with a stored digest. `Ok` contains the rule by which it matches, or
    /// `known` if it matches by both. `Err` contains the hash by the rule of the reference.
    ///
    /// An archive has one rule: once the rule is `known`, a hash by the other rule is a mismatch.
    /// (To accept both would need a second hash of every byte, and no known writer mixes them.)
    pub(crate) fn verify(&self, stored: Digest, known: Option<HashRule>) -> Result<Option<HashRule>, Digest> {
        let included = self.included.digest();
        let excluded = self.excluded.as_ref().map_or(included, Hasher::digest);
        let fits = |rule, digest| digest == stored && known.is_none_or(|k| k == rule);
        if stored == included && stored == excluded {
            Ok(known)
        } else if fits(HashRule::Included, included) {
            Ok(Some(HashRule::Included))
        } else if fits(HashRule::Excluded, excluded) {
            Ok(Some(HashRule::Excluded))
        } else {
            Err(included)
        }
    }
}
