//! Ids of git objects.

use std::fmt;
use std::str::FromStr;

use gix_object::Kind;
use thiserror::Error;

use crate::ObjectError;

/// The id of a git object: the SHA-1 of its kind, its length and its bytes. The text form is 40 hex
/// digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId([u8; 20]);

/// A text is not 40 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("an object id has 40 hex digits")]
pub struct ParseIdError;

impl ObjectId {
    /// The id with these raw bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 20]) -> Self {
        Self(bytes)
    }

    /// The raw bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 20] {
        &self.0
    }

    /// The id of a blob with these contents.
    ///
    /// # Errors
    ///
    /// [`ObjectError::Collision`].
    pub fn of_blob(contents: &[u8]) -> Result<Self, ObjectError> {
        Self::of(Kind::Blob, contents)
    }

    /// The id of an object of this kind with these bytes.
    pub(crate) fn of(kind: Kind, bytes: &[u8]) -> Result<Self, ObjectError> {
        Self::detected(gix_object::compute_hash(gix_hash::Kind::Sha1, kind, bytes))
    }

    /// The id, unless the hasher found blocks of a collision attack. It has no other error.
    fn detected<E>(hashed: Result<gix_hash::ObjectId, E>) -> Result<Self, ObjectError> {
        let id = hashed.map_err(|_| ObjectError::Collision)?;
        Self::from_gix(&id).ok_or(ObjectError::Collision)
    }

    pub(crate) fn from_gix(id: &gix_hash::oid) -> Option<Self> {
        id.as_bytes().try_into().ok().map(Self)
    }

    pub(crate) const fn to_gix(self) -> gix_hash::ObjectId {
        gix_hash::ObjectId::Sha1(self.0)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectId({self})")
    }
}

impl FromStr for ObjectId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let id = gix_hash::ObjectId::from_hex(text.as_bytes()).map_err(|_| ParseIdError)?;
        Self::from_gix(&id).ok_or(ParseIdError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first 320 bytes of both files of <https://shattered.io>, which have the same SHA-1.
    const COLLISION: [&[u8; 320]; 2] =
        [include_bytes!("../testdata/sha1-collision-1"), include_bytes!("../testdata/sha1-collision-2")];

    /// The hasher is the one that makes ids. Whole objects cannot be tested: they begin with their
    /// kind and length, and no collision with such a beginning is known.
    #[test]
    fn collision_of_sha_1_is_detected() {
        for contents in COLLISION {
            let hashed = |bytes: &[u8]| {
                let mut hasher = gix_hash::hasher(gix_hash::Kind::Sha1);
                hasher.update(bytes);
                hasher.try_finalize()
            };
            let error = hashed(contents).unwrap_err().to_string();
            assert!(error.contains("f92d74e3874587aaf443d1db961d4e26dde13e9c"), "both have the same SHA-1: {error}");
            assert_eq!(ObjectId::detected(hashed(contents)), Err(ObjectError::Collision));
            // Also with other bytes after it, as in the two files.
            assert!(hashed(&[&contents[..], b"the rest"].concat()).is_err());
            let before = contents.len() - 1;
            assert!(ObjectId::detected(hashed(&contents[..before])).is_ok(), "the last block is not whole");
        }
    }

    #[test]
    fn files_that_collide_without_a_header_are_two_blobs() {
        let ids = COLLISION.map(|contents| ObjectId::of_blob(contents).unwrap().to_string());
        assert_eq!(ids, ["6e98aef8bba6ff517f5b164d7418c5e2a6cf90c9", "ef380704685cc8e54de9bc13556d1ff7026ec0cc"]);
    }

    #[test]
    fn id_of_a_blob_is_that_of_git_and_survives_its_text() {
        let id = ObjectId::of_blob(b"").unwrap();
        assert_eq!(id.to_string(), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn only_40_hex_digits_are_an_id() {
        let id = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";
        for len in 0..id.len() {
            assert_eq!(id[..len].parse::<ObjectId>(), Err(ParseIdError), "{len} digits");
        }
        assert!(format!("{id}0").parse::<ObjectId>().is_err());
        assert!(id.replace('e', "g").parse::<ObjectId>().is_err());
        // An id of SHA-256 is no id of these repositories.
        assert!("0".repeat(64).parse::<ObjectId>().is_err());
    }
}
