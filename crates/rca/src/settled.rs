//! The committed state of an archive, which a survey finds and a repair restores.

use super::chunk_layer::{Chunk, Patch};
use super::hash::Digest;

/// Where a writer may continue.
#[derive(Debug)]
pub(crate) struct Settled {
    /// The committed chunks; the first append truncates the file after them.
    pub(crate) chunks: Vec<Chunk>,
    /// Hash of the last session; `None` without chunks, because then there is no session.
    pub(crate) digest: Option<Digest>,
    /// Writes that repair a torn header, in order. A crash between two of them leaves a state that
    /// can be repaired again.
    pub(crate) patches: Vec<Patch>,
    /// Whether a header was torn.
    pub(crate) torn: bool,
}

impl Settled {
    /// The state of an archive that needs no repair.
    pub(crate) fn sound(chunks: &[Chunk], digest: Option<Digest>) -> Settled {
        Settled { chunks: chunks.to_vec(), digest, patches: Vec::new(), torn: false }
    }
}
