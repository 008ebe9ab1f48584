//! Hashes as values of a statement, for any database.

use crate::format::{ChunkHash, FileHash, XorbHash};

/// A hash that a column has.
pub(super) trait Key: Sync {
    fn bytes(&self) -> &[u8; 32];
}

macro_rules! keys {
    ($($hash:ident)+) => {
        $(impl Key for $hash {
            fn bytes(&self) -> &[u8; 32] {
                self.as_bytes()
            }
        })+
    };
}
keys!(ChunkHash FileHash XorbHash);

/// The bytes after which a page begins. The empty string is before every hash.
pub(super) fn after_bytes<K: Key>(after: Option<K>) -> Vec<u8> {
    after.map_or(Vec::new(), |hash| hash.bytes().to_vec())
}
