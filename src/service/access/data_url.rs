//! URLs of xorb data that carry their own authority (spec 5.10, 6.2 rule 2).

use super::keys::KeyRing;
use super::seal::{Purpose, open, seal};
use super::{Reason, Refused, SecretText, check_expiry};
use crate::format::reader::Reader;
use crate::format::{ByteRange, XorbHash};
use crate::runtime::fair::Tenant;
use crate::runtime::incarnation::Incarnation;

/// Ranges of one URL, at most.
///
/// A signature with so many is below 6000 characters, and the `Range` header with all of them below
/// 5000. Both pass through proxies that allow 8 KiB. A plan with more descriptors of a xorb has
/// several URLs for it (spec 5.1, 8).
pub const MAX_URL_RANGE_COUNT: usize = 256;

/// What follows the number of the blob.
const VERSION: u8 = 1;

/// Bytes of a range in a signature.
const RANGE_LEN: u64 = 16;

/// A data URL's permission: to download these ranges of this xorb, each alone or all together in
/// this order.
#[derive(Clone, Copy, Debug)]
pub struct DataUrl<'a> {
    /// The xorb. Must be in the URL, too: it is signed but not carried.
    pub xorb: XorbHash,
    /// The blob of it that the ranges are of.
    pub incarnation: Incarnation,
    /// Byte ranges of the serialized xorb.
    pub ranges: &'a [ByteRange],
    /// Until when, in seconds since 1970.
    pub expires_unix_secs: u64,
    /// The tenant that its downloads count for. The URL has its number, which reveals nothing
    /// without the name.
    pub tenant: Tenant,
}

impl DataUrl<'_> {
    /// The signature for the URL; it contains everything but the xorb. `None` for no range, or more
    /// than [`MAX_URL_RANGE_COUNT`].
    #[must_use]
    pub fn sign(&self, ring: &KeyRing) -> Option<SecretText> {
        if !(1..=MAX_URL_RANGE_COUNT).contains(&self.ranges.len()) {
            return None;
        }
        let mut payload = self.expires_unix_secs.to_le_bytes().to_vec();
        payload.extend_from_slice(&self.tenant.number().to_le_bytes());
        payload.extend_from_slice(&self.incarnation.number().to_le_bytes());
        // Older URLs have no number of a blob: with this byte no payload of theirs is as long.
        payload.push(VERSION);
        for range in self.ranges {
            payload.extend_from_slice(&range.start().to_le_bytes());
            payload.extend_from_slice(&range.end().to_le_bytes());
        }
        Some(seal(ring, Purpose::DataUrl, self.xorb.as_bytes(), &payload))
    }
}

/// The contents of a URL that permits a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permitted {
    /// When it expires, in seconds since 1970.
    pub expires_unix_secs: u64,
    /// The tenant that the download counts for; unknown in URLs of older servers.
    pub tenant: Option<Tenant>,
    /// The blob that the ranges are of. URLs of older servers are of the one without a number.
    pub incarnation: Incarnation,
}

/// The contents of a URL, if it permits a request: `requested` are the ranges of its `Range`
/// header, in the order of the header.
///
/// # Errors
///
/// The signature is not ours or not for this xorb, or it expired more than
/// [`GRACE_SECS`](super::GRACE_SECS) ago. Or the ranges are neither a signed one nor all of them in
/// their order. No range at all is refused, too: that would be the whole xorb.
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

fn parse_payload(payload: &[u8]) -> Option<(Permitted, Vec<ByteRange>)> {
    let mut reader = Reader::new(payload);
    let expires_unix_secs = reader.u64().ok()?;
    // URLs of older servers have the ranges here, 16 bytes each, or behind the tenant: the length
    // distinguishes them.
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
