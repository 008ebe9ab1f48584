//! Signed URLs of xorb data (spec 5.10, 6.2 rule 2). A data URL permits downloading some byte
//! ranges of one xorb without a token. Its *signature*, a signed text in the query, contains the
//! ranges.

use super::keys::KeyRing;
use super::seal::{Purpose, open, seal};
use super::{Reason, Refused, SecretText, check_expiry};
use crate::format::reader::Reader;
use crate::format::{ByteRange, XorbHash};
use crate::runtime::fair::Tenant;
use crate::runtime::incarnation::Incarnation;

/// Maximum number of ranges of one URL.
///
/// With this number of ranges, the signature has less than 6000 characters, and a `Range` header
/// with all of them has less than 5000. Both pass through proxies that allow 8 KiB. The plan of a
/// file that needs more ranges of a xorb contains several URLs for this xorb (spec 5.1, 8).
pub const MAX_URL_RANGE_COUNT: usize = 256;

/// The byte after the incarnation in the payload. URLs of older servers do not have this byte: see
/// [`DataUrl::sign`].
const VERSION: u8 = 1;

/// Length of a range in the payload: two `u64`.
const RANGE_LEN: u64 = 16;

/// The contents of a data URL to be signed. The URL permits requests for one of the ranges, or for
/// all of them in this order.
#[derive(Clone, Copy, Debug)]
pub struct DataUrl<'a> {
    /// The xorb. Its hash is signed but not contained in the payload, because the path of the URL
    /// contains it.
    pub xorb: XorbHash,
    /// Which blob of the xorb the ranges are for: another blob has its chunks at other offsets.
    pub incarnation: Incarnation,
    /// Byte ranges of the serialized xorb.
    pub ranges: &'a [ByteRange],
    /// When the URL expires, in seconds since 1970.
    pub expires_unix_secs: u64,
    /// The tenant that the downloads count for. A tenant is a digest, so the URL does not reveal
    /// any names.
    pub tenant: Tenant,
}

impl DataUrl<'_> {
    /// Makes the signature for the URL. `None` if there are no ranges, or more than
    /// [`MAX_URL_RANGE_COUNT`].
    #[must_use]
    pub fn sign(&self, ring: &KeyRing) -> Option<SecretText> {
        if !(1..=MAX_URL_RANGE_COUNT).contains(&self.ranges.len()) {
            return None;
        }
        let mut payload = self.expires_unix_secs.to_le_bytes().to_vec();
        payload.extend_from_slice(&self.tenant.number().to_le_bytes());
        payload.extend_from_slice(&self.incarnation.number().to_le_bytes());
        // URLs of older servers have neither an incarnation nor this byte. Without the byte, the
        // tenant and the incarnation would be as long as a range, and `parse_payload` would take
        // them for one.
        payload.push(VERSION);
        for range in self.ranges {
            payload.extend_from_slice(&range.start().to_le_bytes());
            payload.extend_from_slice(&range.end().to_le_bytes());
        }
        Some(seal(ring, Purpose::DataUrl, self.xorb.as_bytes(), &payload))
    }
}

/// The contents of a data URL that permits a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permitted {
    /// When the URL expires, in seconds since 1970.
    pub expires_unix_secs: u64,
    /// The tenant that the download counts for; `None` in some URLs of older servers.
    pub tenant: Option<Tenant>,
    /// Which blob of the xorb the ranges are for. URLs of older servers do not say it: they are for
    /// the blob without a number in its name.
    pub incarnation: Incarnation,
}

/// The contents of the data URL with this signature, if it permits a request. `requested` are the
/// ranges of the request's `Range` header, in the order of the header.
///
/// # Errors
///
/// The signature was not made with a key of the ring, is for another xorb, or expired more than
/// [`GRACE_SECS`](super::GRACE_SECS) ago. Or `requested` is neither one of the signed ranges nor
/// all of them in their order. A request without ranges is refused, too, because its response would
/// be the whole xorb.
pub fn check_data_url(
    ring: &KeyRing,
    xorb: &XorbHash,
    signature: &str,
    requested: &[ByteRange],
    now_unix_secs: u64,
) -> Result<Permitted, Refused> {
    let (_, payload) = open(ring, Purpose::DataUrl, xorb.as_bytes(), signature)?;
    let (permitted, signed) = parse_payload(&payload).ok_or(Reason::Malformed)?;
    check_expiry(permitted.expires_unix_secs, now_unix_secs)?;
    let is_allowed = match requested {
        [] => false,
        [one] => signed.contains(one),
        all => signed == all,
    };
    if is_allowed { Ok(permitted) } else { Err(Reason::Ranges.into()) }
}

/// Inverse of [`DataUrl::sign`], also for URLs of older servers: the contents and the signed
/// ranges.
fn parse_payload(payload: &[u8]) -> Option<(Permitted, Vec<ByteRange>)> {
    let mut reader = Reader::new(payload);
    let expires_unix_secs = reader.u64().ok()?;
    // There are three forms. In the oldest one, the ranges follow the expiry; in the next one, they
    // follow a tenant (8 bytes); in the current one, they follow a tenant, an incarnation and a
    // byte (17 bytes). A range has 16 bytes, so the length of the rest modulo 16 is 0, 8 or 1.
    let surplus_len = reader.left() % RANGE_LEN;
    let tenant = if surplus_len == 0 { None } else { Some(Tenant::new(reader.u64().ok()?)) };
    let mut incarnation = Incarnation::UNNAMED;
    if surplus_len == 1 {
        incarnation = Incarnation::from_number(reader.u64().ok()?);
        if reader.u8().ok()? != VERSION {
            return None;
        }
    }
    let mut ranges = Vec::new();
    while !reader.is_at_end() {
        ranges.push(ByteRange::new(reader.u64().ok()?, reader.u64().ok()?)?);
    }
    Some((Permitted { expires_unix_secs, tenant, incarnation }, ranges))
}
