//! Grants to upload one xorb (spec 5.4.2, 6.2 rule 8): a client with a token requests a grant,
//! sends the bytes under it, and then commits it, which publishes the xorb.
//!
//! A grant is two signed texts with the same payload and different purposes. The *upload text*
//! permits sending the bytes, without a token. It is in the query of a URL, which is not logged.
//! The *id* names the grant in the request that commits it. The id is in the path of that request,
//! which this server and every proxy log. So the id must be worthless alone: the commit also needs
//! a token of the grant's owner, which is its repository and subject.

use sha2::{Digest, Sha256};

use super::claims::Claims;
use super::keys::KeyRing;
use super::repos::{RepoScope, Subject};
use super::seal::{Purpose, open, seal};
use super::{Reason, Refused, SecretText, check_expiry};
use crate::format::XorbHash;
use crate::format::reader::Reader;
use crate::runtime::fair::Tenant;

/// A request for a grant.
#[derive(Clone, Copy, Debug)]
pub struct GrantRequest<'a> {
    /// The claims of the token that requests the grant. The grant is bound to their repository and
    /// subject, not to the token, so the client may commit with a newer token.
    pub claims: &'a Claims,
    /// The xorb to be uploaded. Its hash is signed but not contained in the texts, because the path
    /// of each later request contains it.
    pub xorb: XorbHash,
    /// The number of bytes that will be sent.
    pub body_len: u64,
    /// CRC-64/NVME of these bytes.
    pub crc64nvme: u64,
    /// When the grant expires, in seconds since 1970.
    pub expires_unix_secs: u64,
    /// A random number that no other grant has.
    pub nonce: [u8; 16],
}

/// The two texts of a grant, as the client receives them.
#[derive(Clone, Debug)]
pub struct IssuedGrant {
    /// The id, for the commit.
    pub id: SecretText,
    /// The upload text, for sending the bytes.
    pub upload: SecretText,
}

/// The contents of a valid text of a grant.
///
/// The text does not show whether the grant was used before. So the commit records [`Grant::nonce`]
/// in the index until the grant is no longer accepted, and bytes that are sent under a recorded
/// grant are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The number of bytes to be sent.
    pub body_len: u64,
    /// CRC-64/NVME of these bytes.
    pub crc64nvme: u64,
    /// When the grant expires, in seconds since 1970.
    pub expires_unix_secs: u64,
    /// The random number that distinguishes this grant from every other one.
    pub nonce: [u8; 16],
    owner: Owner,
    tenant: Tenant,
}

/// The repository and subject of a grant, as one digest. The texts of a grant contain the digest
/// instead of the names, so that they neither grow with the names nor reveal them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner([u8; 16]);

impl Owner {
    fn of(claims: &Claims) -> Self {
        Self(digest(["zorb grant owner", claims.repo.as_signed(), subject(claims)]))
    }
}

impl Claims {
    /// The tenant of these claims: the owner of the repository, together with the subject. All
    /// repositories of an owner are one tenant, so that more repositories do not give an owner a
    /// greater share of the server. The owner of a Hub repository is its namespace, whatever its
    /// kind. A user is one tenant for own and for public repositories, with whatever token.
    #[must_use]
    pub fn tenant(&self) -> Tenant {
        let subject = subject(self);
        let namespace = match &self.repo {
            RepoScope::Account(account) => Some(account.name().as_str()),
            // A user reads many of these.
            RepoScope::Public(_) => Some(subject),
            RepoScope::Namespace(namespace) => Some(namespace.name()),
            RepoScope::One(repo) => hub_namespace(repo.as_str()),
            RepoScope::All => None,
        };
        let owner = match namespace {
            // With a space, so that it is no name of a repository.
            Some(namespace) => format!(" {}", namespace.to_ascii_lowercase()),
            None => self.repo.owner().to_owned(),
        };
        Tenant::new(u64::from_le_bytes(digest(["zorb tenant", &owner, subject])))
    }
}

/// The namespace of a Hub repository with this storage name; `None` for other repositories.
fn hub_namespace(name: &str) -> Option<&str> {
    let mut parts = name.split('/');
    let (kind, namespace, _) = (parts.next()?, parts.next()?, parts.next()?);
    (matches!(kind, "models" | "datasets" | "spaces") && parts.next().is_none()).then_some(namespace)
}

/// The name of the subject; empty if the claims have none, because no name is empty.
fn subject(claims: &Claims) -> &str {
    claims.subject.as_ref().map_or("", Subject::as_str)
}

/// The first `LEN` bytes of the SHA-256 of these parts.
fn digest<const LEN: usize>(parts: [&str; 3]) -> [u8; LEN] {
    let mut hasher = Sha256::new();
    // A zero byte marks the end of each part, because names contain no control characters.
    for part in parts {
        hasher.update(part.as_bytes());
        hasher.update([0]);
    }
    let digest: [u8; 32] = hasher.finalize().into();
    std::array::from_fn(|index| digest.get(index).copied().unwrap_or_default())
}

impl GrantRequest<'_> {
    /// Makes the two texts of the grant.
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

/// The contents of the grant with this id, for the commit, if the id is for this xorb and valid
/// now. The caller must also check the token of the request with [`Grant::check_owner`].
///
/// # Errors
///
/// The id was not signed with a key of the ring, is not for this xorb, or expired more than
/// [`GRACE_SECS`](super::GRACE_SECS) ago.
pub fn check_grant(ring: &KeyRing, id: &str, xorb: &XorbHash, now_unix_secs: u64) -> Result<Grant, Refused> {
    check(ring, Purpose::Grant, id, xorb, now_unix_secs)
}

/// The contents of the grant with this upload text, if the text is for this xorb and valid now. The
/// request that sends the bytes has no token, so nothing else is checked.
///
/// # Errors
///
/// The text was not signed with a key of the ring, is not for this xorb, or expired more than
/// [`GRACE_SECS`](super::GRACE_SECS) ago.
pub fn check_granted_upload(
    ring: &KeyRing,
    upload: &str,
    xorb: &XorbHash,
    now_unix_secs: u64,
) -> Result<Grant, Refused> {
    check(ring, Purpose::GrantedUpload, upload, xorb, now_unix_secs)
}

/// See [`check_grant`] and [`check_granted_upload`].
fn check(ring: &KeyRing, purpose: Purpose, text: &str, xorb: &XorbHash, now_unix_secs: u64) -> Result<Grant, Refused> {
    let (_, payload) = open(ring, purpose, xorb.as_bytes(), text)?;
    let grant = parse_payload(&payload).ok_or(Reason::Malformed)?;
    check_expiry(grant.expires_unix_secs, now_unix_secs)?;
    Ok(grant)
}

impl Grant {
    /// The tenant that the sent bytes count for: the one whose token requested the grant.
    #[must_use]
    pub fn tenant(&self) -> Tenant {
        self.tenant
    }

    /// Checks that a token with these claims has the repository and subject of the grant.
    ///
    /// # Errors
    ///
    /// The claims have another repository or another subject.
    pub fn check_owner(&self, claims: &Claims) -> Result<(), Refused> {
        if self.owner == Owner::of(claims) { Ok(()) } else { Err(Reason::Owner.into()) }
    }
}

/// Parses the payload that [`GrantRequest::issue`] makes.
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
