//! Signed texts.
//!
//! ```text
//! base64url( version = 1 │ key id, 4 bytes LE │ payload │ HMAC-SHA256, 32 bytes )
//! HMAC over: purpose │ 0 │ length of context, 8 bytes LE │ context │ version │ key id │ payload
//! ```

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::keys::{Key, KeyId, KeyRing};
use super::{Reason, Refused, SecretText};
use crate::format::reader::Reader;

/// The only version.
const VERSION: u8 = 1;

/// Bytes of a signature.
const MAC_LEN: u64 = 32;

/// Characters of a text, at most. The longest of our texts is a data URL of
/// [`MAX_URL_RANGE_COUNT`](super::MAX_URL_RANGE_COUNT) ranges, below 6000; longer ones are not even
/// decoded.
const MAX_TEXT_LEN: usize = 8192;

/// The purpose of a text. A text for one purpose is not valid for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Token,
    /// Makes tokens, and permits nothing else.
    RefreshToken,
    DataUrl,
    /// The id of a grant: for its commit, which takes a token as well.
    Grant,
    /// Permits any holder to send the bytes of a grant.
    GrantedUpload,
}

impl Purpose {
    const fn label(self) -> &'static [u8] {
        match self {
            Self::Token => b"zorb token",
            Self::RefreshToken => b"zorb refresh token",
            Self::DataUrl => b"zorb data url",
            Self::Grant => b"zorb grant",
            Self::GrantedUpload => b"zorb granted upload",
        }
    }
}

/// Signs a payload with the current key.
pub(super) fn seal(ring: &KeyRing, purpose: Purpose, context: &[u8], payload: &[u8]) -> SecretText {
    let key = ring.current();
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&key.id.number().to_le_bytes());
    bytes.extend_from_slice(payload);
    let mac = mac(key, purpose, context, &bytes).finalize().into_bytes();
    bytes.extend_from_slice(&mac);
    SecretText(BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

/// Checks a signature; returns the key and the payload.
pub(super) fn open(ring: &KeyRing, purpose: Purpose, context: &[u8], text: &str) -> Result<(KeyId, Vec<u8>), Refused> {
    if text.len() > MAX_TEXT_LEN {
        return Err(Reason::Malformed.into());
    }
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| Reason::Malformed)?;
    let parts = split(&bytes).ok_or(Reason::Malformed)?;
    let key = ring.find(parts.key_id).ok_or(Reason::UnknownKey)?;
    // In constant time.
    mac(key, purpose, context, parts.signed).verify_slice(parts.mac).map_err(|_| Reason::Signature)?;
    Ok((key.id, parts.payload.to_vec()))
}

struct Parts<'a> {
    key_id: KeyId,
    payload: &'a [u8],
    /// All but the signature.
    signed: &'a [u8],
    mac: &'a [u8],
}

fn split(bytes: &[u8]) -> Option<Parts<'_>> {
    let mut reader = Reader::new(bytes);
    let signed = reader.take(reader.left().checked_sub(MAC_LEN)?).ok()?;
    let mac = reader.take(MAC_LEN).ok()?;
    let mut reader = Reader::new(signed);
    if reader.u8().ok()? != VERSION {
        return None;
    }
    let key_id = KeyId::new(reader.u32().ok()?);
    Some(Parts { key_id, payload: reader.take(reader.left()).ok()?, signed, mac })
}

/// The signed bytes are unambiguous: labels have no zero byte, and the context has its length in
/// front.
fn mac(key: &Key, purpose: Purpose, context: &[u8], signed: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(&key.secret).expect("HMAC takes keys of any length");
    mac.update(purpose.label());
    mac.update(&[0]);
    mac.update(&(context.len() as u64).to_le_bytes());
    mac.update(context);
    mac.update(signed);
    mac
}
