//! Grants to upload one xorb (spec 5.4.2, 6.2 rule 8).
//!
//! A grant is two texts with the same contents. One permits sending the bytes, without a token; it
//! is in the query of a URL, which is not logged. The other is the id, for the commit. It is in a
//! path, which this server and every proxy log, so it must be worthless by itself. A commit needs
//! the token of the grant's owner, too.

use sha2::{Digest, Sha256};

use super::keys::KeyRing;
use super::seal::{Purpose, open, seal};
use super::token::{Claims, Subject};
use super::{Reason, Refused, SecretText, check_expiry};
use crate::format::XorbHash;
use crate::format::reader::Reader;
use crate::runtime::fair::Tenant;

/// The contents of a requested grant, and its client.
#[derive(Clone, Copy, Debug)]
pub struct GrantRequest<'a> {
    /// The client's token. Its repository and subject are bound to the grant, so a refreshed token
    /// works as well.
    pub claims: &'a Claims,
    /// The xorb. It is in the path of every later request; it is signed but not carried.
    pub xorb: XorbHash,
    /// Bytes that will be sent.
    pub body_len: u64,
    /// CRC-64/NVME of these bytes.
    pub crc64nvme: u64,
    /// Until when, in seconds since 1970.
    pub expires_unix_secs: u64,
    /// Random, and never used twice.
    pub nonce: [u8; 16],
}

/// A grant as issued to its client.
#[derive(Clone, Debug)]
pub struct IssuedGrant {
    /// Names the grant when it is committed.
    pub id: SecretText,
    /// The permission to send the bytes.
    pub upload: SecretText,
}

/// A grant that is valid by its text.
///
/// The text does not show whether it was used before. The commit stores [`Grant::nonce`] until
/// [`Grant::expires_unix_secs`] and the grace period are over, and refuses it the second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Bytes to be sent.
    pub body_len: u64,
    /// CRC-64/NVME of these bytes.
    pub crc64nvme: u64,
    /// Until when, in seconds since 1970.
    pub expires_unix_secs: u64,
    /// Distinguishes it from every other grant.
    pub nonce: [u8; 16],
    owner: Owner,
    tenant: Tenant,
}

/// The owner of a grant: a digest, so that the id neither grows with the names nor reveals them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner([u8; 16]);

impl Owner {
    fn of(claims: &Claims) -> Self {
        Self(digest(["zorb grant owner", claims.repo.as_signed(), subject(claims)]))
    }
}

impl Claims {
    /// The tenant of these claims: one owner of repositories and one subject. More repositories of
    /// an owner give it no more shares.
    #[must_use]
    pub fn tenant(&self) -> Tenant {
        Tenant::new(u64::from_le_bytes(digest(["zorb tenant", self.repo.owner(), subject(self)])))
    }
}

fn subject(claims: &Claims) -> &str {
    claims.subject.as_ref().map_or("", Subject::as_str)
}

/// The first bytes of a SHA-256 of these parts.
fn digest<const LEN: usize>(parts: [&str; 3]) -> [u8; LEN] {
    let mut hasher = Sha256::new();
    // Names have no control characters: a zero byte ends each.
    for part in parts {
        hasher.update(part.as_bytes());
        hasher.update([0]);
    }
    let digest: [u8; 32] = hasher.finalize().into();
    std::array::from_fn(|index| digest.get(index).copied().unwrap_or_default())
}

impl GrantRequest<'_> {
    /// The two texts of the grant.
    #[must_use]
    pub fn issue(&self, ring: &KeyRing) -> IssuedGrant {
        let mut payload = Vec::new();
        payload.extend_from_slice(&self.expires_unix_secs.to_le_bytes());
        payload.extend_from_slice(&self.body_len.to_le_bytes());
        payload.extend_from_slice(&self.crc64nvme.to_le_bytes());
        payload.extend_from_slice(&self.nonce);
        payload.extend_from_slice(&Owner::of(self.claims).0);
        payload.extend_from_slice(&self.claims.tenant().number().to_le_bytes());
        let sealed = |purpose| seal(ring, purpose, self.xorb.as_bytes(), &payload);
        IssuedGrant { id: sealed(Purpose::Grant), upload: sealed(Purpose::GrantedUpload) }
    }
}

/// The grant with this id, if it is for this xorb and valid now.
///
/// For the commit; [`Grant::check_owner`] checks the token of the request.
///
/// # Errors
///
/// The id is not ours or not for this xorb, or expired more than [`GRACE_SECS`](super::GRACE_SECS)
/// ago.
pub fn check_grant(ring: &KeyRing, id: &str, xorb: &XorbHash, now_unix_secs: u64) -> Result<Grant, Refused> {
    check(ring, Purpose::Grant, id, xorb, now_unix_secs)
}

/// The grant for sending bytes, if this text permits that for this xorb and now. There is no token:
/// the text alone decides.
///
/// # Errors
///
/// The text is not ours or not for this xorb, or expired more than
/// [`GRACE_SECS`](super::GRACE_SECS) ago.
pub fn check_granted_upload(
    ring: &KeyRing,
    upload: &str,
    xorb: &XorbHash,
    now_unix_secs: u64,
) -> Result<Grant, Refused> {
    check(ring, Purpose::GrantedUpload, upload, xorb, now_unix_secs)
}

fn check(ring: &KeyRing, purpose: Purpose, text: &str, xorb: &XorbHash, now_unix_secs: u64) -> Result<Grant, Refused> {
    let (_, payload) = open(ring, purpose, xorb.as_bytes(), text)?;
    let grant = parse_payload(&payload).ok_or(Reason::Malformed)?;
    check_expiry(grant.expires_unix_secs, now_unix_secs)?;
    Ok(grant)
}

impl Grant {
    /// The tenant that its bytes count for: that of the requesting token.
    #[must_use]
    pub fn tenant(&self) -> Tenant {
        self.tenant
    }

    /// Checks that this token belongs to the owner of the grant.
    ///
    /// # Errors
    ///
    /// Another repository, or another subject.
    pub fn check_owner(&self, claims: &Claims) -> Result<(), Refused> {
        if self.owner == Owner::of(claims) { Ok(()) } else { Err(Reason::Owner.into()) }
    }
}

fn parse_payload(payload: &[u8]) -> Option<Grant> {
    let mut reader = Reader::new(payload);
    let grant = Grant {
        expires_unix_secs: reader.u64().ok()?,
        body_len: reader.u64().ok()?,
        crc64nvme: reader.u64().ok()?,
        nonce: reader.array().ok()?,
        owner: Owner(reader.array().ok()?),
        tenant: Tenant::new(reader.u64().ok()?),
    };
    reader.finish().ok()?;
    Some(grant)
}
