//! The format of all signed texts: makes them and checks their signatures.
//!
//! ```text
//! text   := base64url without padding( signed │ HMAC-SHA256, 32 bytes )
//! signed := version = 1 │ key id, u32 LE │ payload
//!         | version = 2 │ key id, u32 LE │ nonce, 12 bytes │ ChaCha20-Poly1305( padded )
//! padded := length of the payload, u16 LE │ payload │ zeros to 640 bytes
//!
//! HMAC over: label of the purpose │ 0 │ length of the context, u64 LE │ context │ signed
//! ```
//!
//! Purpose, context and payload are explained in [`access`](super). The MAC is the *signature* of
//! the text. This module knows neither what the payload contains nor when a text expires: the
//! callers parse the payload and check the expiry.
//!
//! A text of version 2 is *hidden*: only the server can read its payload, and all hidden texts have
//! one length. Its key and its nonce are MACs under the key of the signature: the nonce over the
//! payload, so that it differs for different payloads.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use sha2::Sha256;

use super::keys::{Key, KeyId, KeyRing};
use super::{Reason, Refused, SecretText};
use crate::format::reader::Reader;

/// The first byte of a decoded text: whether its holder can read the payload.
const READABLE: u8 = 1;
const HIDDEN: u8 = 2;

/// Bytes of a hidden payload with its length and padding. The longest payload of a token has 617:
/// two names of 255 and five ancestors (`MAX_PAYLOAD_LEN` in `token.rs`).
pub(super) const HIDDEN_LEN: usize = 640;

/// The labels of the key and the nonce of hidden payloads. No purpose has one of them.
const HIDDEN_KEY: &[u8] = b"zorb hidden key";
const HIDDEN_NONCE: &[u8] = b"zorb hidden nonce";

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
    sign(ring.current(), purpose, context, READABLE, payload)
}

/// The same with a payload that only the server can read, of any length up to 638 bytes: a longer
/// one panics.
pub(super) fn seal_hidden(ring: &KeyRing, purpose: Purpose, context: &[u8], payload: &[u8]) -> SecretText {
    let key = ring.current();
    let nonce = mac(key, HIDDEN_NONCE, purpose.label(), payload).finalize().into_bytes();
    let nonce: [u8; NONCE_LEN] = *nonce.first_chunk().expect("a MAC is longer than a nonce");
    let len = u16::try_from(payload.len()).ok().filter(|len| usize::from(*len) <= HIDDEN_LEN - 2);
    let len = len.expect("the payload of a token has at most 617 bytes").to_le_bytes();
    let mut padded = [&len[..], payload].concat();
    padded.resize(HIDDEN_LEN, 0);
    let sealed = cipher(key).seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut padded);
    sealed.expect("a payload is far shorter than the limit of the cipher");
    sign(key, purpose, context, HIDDEN, &[&nonce[..], &padded].concat())
}

/// The signed text with these bytes after version and key.
fn sign(key: &Key, purpose: Purpose, context: &[u8], version: u8, body: &[u8]) -> SecretText {
    let mut bytes = vec![version];
    bytes.extend_from_slice(&key.id.number().to_le_bytes());
    bytes.extend_from_slice(body);
    let mac = mac(key, purpose.label(), context, &bytes).finalize().into_bytes();
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
    mac(key, purpose.label(), context, parts.signed).verify_slice(parts.mac).map_err(|_| Reason::Signature)?;
    let payload = if parts.version == READABLE { Some(parts.body.to_vec()) } else { unhide(key, parts.body) };
    Ok((key.id, payload.ok_or(Reason::Malformed)?))
}

/// The payload of a hidden text, whose signature was checked; `None` if no server has made it.
fn unhide(key: &Key, body: &[u8]) -> Option<Vec<u8>> {
    let (nonce, sealed) = body.split_first_chunk::<NONCE_LEN>()?;
    let mut padded = sealed.to_vec();
    let padded = cipher(key).open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::empty(), &mut padded).ok()?;
    let (len, rest) = padded.split_first_chunk()?;
    Some(rest.get(..u16::from_le_bytes(*len).into())?.to_vec())
}

/// The cipher of hidden payloads.
fn cipher(key: &Key) -> LessSafeKey {
    let secret = mac(key, HIDDEN_KEY, &[], &[]).finalize().into_bytes();
    LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &secret).expect("a MAC has the length of a key"))
}

/// The parts of a decoded text.
struct Parts<'a> {
    version: u8,
    key_id: KeyId,
    /// The payload; in a hidden text its nonce and cipher text.
    body: &'a [u8],
    /// All bytes before the MAC: version, key id and body.
    signed: &'a [u8],
    mac: &'a [u8],
}

/// Splits a decoded text; `None` if it is too short or has an unknown version.
fn split(bytes: &[u8]) -> Option<Parts<'_>> {
    let mut reader = Reader::new(bytes);
    let signed = reader.take(reader.left().checked_sub(MAC_LEN)?).ok()?;
    let mac = reader.take(MAC_LEN).ok()?;
    let mut reader = Reader::new(signed);
    let version = reader.u8().ok()?;
    if ![READABLE, HIDDEN].contains(&version) {
        return None;
    }
    let key_id = KeyId::new(reader.u32().ok()?);
    Some(Parts { version, key_id, body: reader.take(reader.left()).ok()?, signed, mac })
}

/// The MAC of these `signed` bytes, before it is finalized or verified. No two texts of different
/// label or context have the same bytes under the MAC. The zero byte marks the end of the label,
/// and the length before the context marks the end of the context.
fn mac(key: &Key, label: &[u8], context: &[u8], signed: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(&key.secret).expect("HMAC takes keys of any length");
    mac.update(label);
    mac.update(&[0]);
    mac.update(&(context.len() as u64).to_le_bytes());
    mac.update(context);
    mac.update(signed);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> KeyRing {
        KeyRing::new([0; 32])
    }

    fn decoded(text: &SecretText) -> Vec<u8> {
        BASE64_URL_SAFE_NO_PAD.decode(text.expose()).unwrap()
    }

    #[test]
    fn hidden_payload_shows_nothing_and_not_its_length() {
        let payloads = ["".to_owned(), "models/a/b".repeat(5), "models/a/b".repeat(63), "b".repeat(HIDDEN_LEN - 2)];
        for payload in payloads {
            let text = seal_hidden(&ring(), Purpose::Token, b"", payload.as_bytes());
            assert_eq!(decoded(&text).len(), 1 + 4 + 12 + HIDDEN_LEN + 16 + 32, "{payload}");
            assert!(
                !decoded(&text).windows(4).any(|bytes| [&b"mode"[..], b"bbbb", &[0; 4]].contains(&bytes)),
                "{payload}"
            );
            assert_eq!(open(&ring(), Purpose::Token, b"", text.expose()).unwrap().1, payload.as_bytes());
        }
    }

    #[test]
    fn hidden_payloads_have_nothing_in_common_unless_equal() {
        let sealed = |purpose, payload: &[u8]| decoded(&seal_hidden(&ring(), purpose, b"", payload))[5..].to_vec();
        let one = sealed(Purpose::Token, b"models/a/b");
        assert_eq!(sealed(Purpose::Token, b"models/a/b"), one);
        for other in [sealed(Purpose::Token, b"models/a/c"), sealed(Purpose::FileUpload, b"models/a/b")] {
            let same = one.iter().zip(&other).filter(|(one, other)| one == other).count();
            assert!(same < 20, "{same} of {} bytes", one.len());
        }
    }

    #[test]
    fn hidden_text_that_is_altered_anywhere_is_refused() {
        let text = seal_hidden(&ring(), Purpose::Token, b"", b"payload");
        let bytes = decoded(&text);
        for place in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[place] ^= 1;
            for altered in [&altered[..], &bytes[..place]] {
                let altered = BASE64_URL_SAFE_NO_PAD.encode(altered);
                assert!(open(&ring(), Purpose::Token, b"", &altered).is_err(), "{place}");
            }
        }
        for (purpose, context) in [(Purpose::Token, &b"other"[..]), (Purpose::RefreshToken, b"")] {
            assert!(open(&ring(), purpose, context, text.expose()).is_err(), "{purpose:?}");
        }
    }

    /// As a server with another format would make them: the signature is right.
    #[test]
    fn signed_text_with_no_hidden_payload_is_malformed() {
        let ring = ring();
        let sealed = decoded(&seal_hidden(&ring, Purpose::Token, b"", b"payload"));
        let body = &sealed[5..sealed.len() - 32];
        for len in 0..body.len() {
            let text = sign(ring.current(), Purpose::Token, b"", HIDDEN, &body[..len]);
            let refused = open(&ring, Purpose::Token, b"", text.expose()).unwrap_err();
            assert_eq!(refused.reason(), Reason::Malformed, "{len}");
        }
        // More bytes are declared than there are.
        let nonce = [7; NONCE_LEN];
        for mut padded in [vec![1, 0], vec![255; HIDDEN_LEN], vec![0]] {
            let nonce_of_call = Nonce::assume_unique_for_key(nonce);
            cipher(ring.current()).seal_in_place_append_tag(nonce_of_call, Aad::empty(), &mut padded).unwrap();
            let text = sign(ring.current(), Purpose::Token, b"", HIDDEN, &[&nonce[..], &padded].concat());
            assert!(open(&ring, Purpose::Token, b"", text.expose()).is_err(), "{padded:?}");
        }
    }

    /// A known result that was computed independently, with Python. A change of the format would
    /// invalidate the tokens of clients during an update.
    #[test]
    fn format_of_a_hidden_text_does_not_change() {
        let text = seal_hidden(&ring(), Purpose::Token, b"", b"payload");
        assert_eq!(&text.expose()[..KNOWN_BEGIN.len()], KNOWN_BEGIN);
        assert_eq!(&text.expose()[text.expose().len() - KNOWN_END.len()..], KNOWN_END);
    }

    const KNOWN_BEGIN: &str = "AgEAAADkvY7Ttg8Qipz--Q1MoFhw0LNQvLip4kaK_ZqC49IZokFv6cBmRmpO";
    /// The signature, which is over everything before it.
    const KNOWN_END: &str = "cSsxrCFptbITf_byg-MsZvo317hgURHV7owOlmGl61N";
}
