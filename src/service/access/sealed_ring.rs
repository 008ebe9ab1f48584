//! A key ring as it is stored where others can read it: encrypted and authenticated with the master
//! key of the servers.
//!
//! ```text
//! sealed := version = 1 │ nonce, 12 bytes │ ChaCha20-Poly1305 of the text of the key file
//! ```
//!
//! The nonce is random. A ring is sealed a few times a day, so no nonce occurs twice.

use std::fmt;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use thiserror::Error;

use super::keys::{KeyRing, KeyRingError, SECRET_LEN};

/// The first byte: the version of this format. There is only one.
const VERSION: u8 = 1;

/// What is authenticated beside the text, so that nothing else can be passed off as a key ring.
const LABEL: &[u8] = b"zorb key ring";

/// The key that seals key rings. All servers of a store have the same one.
#[derive(Clone)]
pub struct MasterKey([u8; SECRET_LEN]);

impl MasterKey {
    /// The key with these bytes.
    #[must_use]
    pub const fn new(secret: [u8; SECRET_LEN]) -> Self {
        Self(secret)
    }

    fn cipher(&self) -> LessSafeKey {
        LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &self.0).expect("the key has the length of the cipher"))
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(…)")
    }
}

/// Why a sealed key ring cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UnsealError {
    /// It was sealed with another master key, or it is damaged.
    #[error("the keys in the database were sealed with another master key, or they are damaged")]
    OtherKey,
    /// A newer version wrote it.
    #[error("the keys in the database were written by a newer zorb")]
    Newer,
    /// It was sealed with this key, and is no key ring.
    #[error("the keys in the database are invalid")]
    Invalid(#[source] KeyRingError),
}

/// Seals a key ring. The nonce must come from the random source of the operating system.
#[must_use]
pub fn seal_ring(key: &MasterKey, ring: &KeyRing, nonce: [u8; NONCE_LEN]) -> Vec<u8> {
    let mut text = ring.to_file_text().expose().as_bytes().to_vec();
    let nonce_of_call = Nonce::assume_unique_for_key(nonce);
    let sealed = key.cipher().seal_in_place_append_tag(nonce_of_call, Aad::from(LABEL), &mut text);
    sealed.expect("a key ring is far shorter than the limit of the cipher");
    [&[VERSION][..], &nonce, &text].concat()
}

/// Opens a sealed key ring.
///
/// # Errors
///
/// See [`UnsealError`].
pub fn open_ring(key: &MasterKey, sealed: &[u8]) -> Result<KeyRing, UnsealError> {
    let (version, rest) = sealed.split_first().ok_or(UnsealError::OtherKey)?;
    if *version != VERSION {
        return Err(UnsealError::Newer);
    }
    let (nonce, text) = rest.split_first_chunk::<NONCE_LEN>().ok_or(UnsealError::OtherKey)?;
    let mut text = text.to_vec();
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let text = key.cipher().open_in_place(nonce, Aad::from(LABEL), &mut text).map_err(|_| UnsealError::OtherKey)?;
    let text = std::str::from_utf8(text).map_err(|_| UnsealError::Invalid(KeyRingError::Empty))?;
    KeyRing::parse(text).map_err(UnsealError::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_ring_opens_with_its_key_and_shows_no_secret() {
        let (key, ring) = (MasterKey::new([3; 32]), KeyRing::new([7; 32]));
        let ring = ring.rotated([9; 32]).unwrap();
        let sealed = seal_ring(&key, &ring, [1; NONCE_LEN]);
        assert_eq!(open_ring(&key, &sealed), Ok(ring.clone()));
        assert_ne!(seal_ring(&key, &ring, [2; NONCE_LEN]), sealed);
        assert!(!sealed.windows(8).any(|bytes| bytes == b"07070707" || bytes == [7; 8]));
        assert_eq!(format!("{key:?}"), "MasterKey(…)");
    }

    #[test]
    fn every_prefix_and_every_changed_byte_is_refused() {
        let (key, ring) = (MasterKey::new([3; 32]), KeyRing::new([7; 32]));
        let sealed = seal_ring(&key, &ring, [1; NONCE_LEN]);
        for len in 0..sealed.len() {
            assert_eq!(open_ring(&key, &sealed[..len]), Err(UnsealError::OtherKey), "{len}");
        }
        for place in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[place] ^= 1;
            let expected = if place == 0 { UnsealError::Newer } else { UnsealError::OtherKey };
            assert_eq!(open_ring(&key, &changed), Err(expected), "{place}");
        }
        assert_eq!(open_ring(&MasterKey::new([4; 32]), &sealed), Err(UnsealError::OtherKey));
    }
}
