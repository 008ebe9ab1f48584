//! SHA-256 as hex, because the recorded results identify contents by it.

use sha2::Digest;

/// Computes the hash of bytes that are passed in pieces.
pub(super) struct Sha256(sha2::Sha256);

impl Sha256 {
    pub(super) fn new() -> Self {
        Self(sha2::Sha256::new())
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn hex(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(bytes);
    hash.hex()
}
