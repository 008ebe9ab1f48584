//! The format of all signed texts: makes them and checks their signatures.
//!
//! ```text
//! text   := base64url without padding( signed │ HMAC-SHA256, 32 bytes )
//! signed := version = 1 │ key id, u32 LE │ payload
//!
//! HMAC over: label of the purpose │ 0 │ length of the context, u64 LE │ context │ signed
//! ```
//!
//! Purpose, context and payload are explained in [`access`](super). The MAC is the *signature* of
//! the text. This module knows neither what the payload contains nor when a text expires: the
//! callers parse the payload and check the expiry.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::keys::{Key, KeyId, KeyRing};
use super::{Reason, Refused, SecretText};
use crate::format::reader::Reader;

/// The first byte of a decoded text: the version of this format. There is only one.
const VERSION: u8 = 1;

/// Length of a signature in bytes.
const MAC_LEN: u64 = 32;

/// Maximum length of a text in characters. Longer texts are refused without decoding them. The
/// longest valid text is the signature of a data URL with
/// [`MAX_URL_RANGE_COUNT`](super::MAX_URL_RANGE_COUNT) ranges, which has less than 6000 characters.
const MAX_TEXT_LEN: usize = 8192;

/// What a text is for. The purpose is signed, so a text is invalid for every other purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// An access token.
    Token,
    /// A refresh token: obtains tokens, and permits nothing else.
    RefreshToken,
    /// The signature in a data URL.
    DataUrl,
    /// The id of a grant. The request that commits the grant needs it, and a token.
    Grant,
    /// The upload text of a grant: permits any holder to send the bytes, without a token.
    GrantedUpload,
    /// The signature in the URL to which one file is sent as a whole.
    FileUpload,
}

impl Purpose {
    /// The first bytes under the MAC. Labels must not contain a zero byte: see [`mac`].
    const fn label(self) -> &'static [u8] {
        match self {
            Self::Token => b"zorb token",
            Self::RefreshToken => b"zorb refresh token",
            Self::DataUrl => b"zorb data url",
            Self::Grant => b"zorb grant",
            Self::GrantedUpload => b"zorb granted upload",
            Self::FileUpload => b"zorb file upload",
        }
    }
}

/// The text with this payload, signed with the current key.
pub(super) fn seal(ring: &KeyRing, purpose: Purpose, context: &[u8], payload: &[u8]) -> SecretText {
    let key = ring.current();
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&key.id.number().to_le_bytes());
    bytes.extend_from_slice(payload);
    let mac = mac(key, purpose, context, &bytes).finalize().into_bytes();
    bytes.extend_from_slice(&mac);
    SecretText(BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

/// Checks the format and the signature of a text. Returns the id of the key that signed it, and its
/// payload.
pub(super) fn open(ring: &KeyRing, purpose: Purpose, context: &[u8], text: &str) -> Result<(KeyId, Vec<u8>), Refused> {
    if text.len() > MAX_TEXT_LEN {
        return Err(Reason::Malformed.into());
    }
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| Reason::Malformed)?;
    let parts = split(&bytes).ok_or(Reason::Malformed)?;
    let key = ring.find(parts.key_id).ok_or(Reason::UnknownKey)?;
    // `verify_slice` compares in constant time, so that the duration does not reveal how much of a
    // forged MAC is right.
    mac(key, purpose, context, parts.signed).verify_slice(parts.mac).map_err(|_| Reason::Signature)?;
    Ok((key.id, parts.payload.to_vec()))
}

/// The parts of a decoded text.
struct Parts<'a> {
    key_id: KeyId,
    payload: &'a [u8],
    /// All bytes before the MAC: version, key id and payload.
    signed: &'a [u8],
    mac: &'a [u8],
}

/// Splits a decoded text; `None` if it is too short or has another version.
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

/// The MAC of a text with these `signed` bytes, before it is finalized or verified. No two texts of
/// different purpose or context have the same bytes under the MAC. The zero byte marks the end of
/// the label, and the length before the context marks the end of the context.
fn mac(key: &Key, purpose: Purpose, context: &[u8], signed: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(&key.secret).expect("HMAC takes keys of any length");
    mac.update(purpose.label());
    mac.update(&[0]);
    mac.update(&(context.len() as u64).to_le_bytes());
    mac.update(context);
    mac.update(signed);
    mac
}
