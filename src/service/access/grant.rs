//! Grants to upload one xorb (spec 5.4.2, 6.2 rule 8).
//!
//! A grant is two texts with the same contents. One lets the bytes be sent, without a token; it stands in the query of a
//! URL, which is not logged. The other is the id, for the commit; it stands in a path, which is logged here and by every
//! proxy, and so must be of no use to who reads it there: a commit takes the token of the grant's owner, too.

use sha2::{Digest, Sha256};

use super::keys::KeyRing;
use super::seal::{Purpose, open, seal};
use super::token::{Claims, Subject};
use super::{Reason, Refused, SecretText, check_expiry};
use crate::format::XorbHash;
use crate::format::reader::Reader;
use crate::runtime::fair::Tenant;

/// What a client asks for, and who it is.
#[derive(Clone, Copy, Debug)]
pub struct GrantRequest<'a> {
    /// The client's token: repository and subject are bound to the grant, so that a refreshed token will do as well.
    pub claims: &'a Claims,
    /// The xorb. Stands in the path of every later request; it is signed but not carried.
    pub xorb: XorbHash,
    /// Bytes that will be sent.
    pub body_len: u64,
    /// CRC-64/NVME of these bytes.
    pub crc64nvme: u64,
    /// Until when, in seconds since 1970.
    pub expires_unix_secs: u64,
    /// Random; what was used once is not used again.
    pub nonce: [u8; 16],
}

/// A grant as its client gets it.
#[derive(Clone, Debug)]
pub struct IssuedGrant {
    /// Names the grant when it is committed.
    pub id: SecretText,
    /// The permission to send the bytes.
    pub upload: SecretText,
}

/// A grant that is valid as far as its text tells.
///
/// Whether it was used before, it cannot tell: whoever commits an upload keeps [`Grant::nonce`] until
/// [`Grant::expires_unix_secs`] and the grace are over, and refuses it the second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Bytes to be sent.
    pub body_len: u64,
    /// CRC-64/NVME of these bytes.
    pub crc64nvme: u64,
    /// Until when, in seconds since 1970.
    pub expires_unix_secs: u64,
    /// What makes it different from every other grant.
    pub nonce: [u8; 16],
    owner: Owner,
    tenant: Tenant,
}

/// Whose grant it is: a digest, so that the id neither grows with the names nor shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner([u8; 16]);

impl Owner {
    fn of(claims: &Claims) -> Self {
        Self(digest(["zorb grant owner", claims.repo.as_signed(), subject(claims)]))
    }
}

impl Claims {
    /// Whose requests count together: those of one owner of repositories and one subject. Further repositories of an
    /// owner are no further shares.
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
/// This is for the commit; the token that it comes with is for [`Grant::check_owner`] to agree to.
///
/// # Errors
///
/// The id is not ours or not for this xorb, or expired more than [`GRACE_SECS`](super::GRACE_SECS) ago.
pub fn check_grant(ring: &KeyRing, id: &str, xorb: &XorbHash, now_unix_secs: u64) -> Result<Grant, Refused> {
    check(ring, Purpose::Grant, id, xorb, now_unix_secs)
}

/// The grant under which bytes are sent, if this text allows that for this xorb and now. There is no token: the text is
/// all there is.
///
/// # Errors
///
/// The text is not ours or not for this xorb, or expired more than [`GRACE_SECS`](super::GRACE_SECS) ago.
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
    /// Whose share its bytes are of: that of the token that asked for it.
    #[must_use]
    pub fn tenant(&self) -> Tenant {
        self.tenant
    }

    /// Whether the holder of this token is the one whom the grant was given to.
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
