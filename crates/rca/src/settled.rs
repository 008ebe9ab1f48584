//! The committed state of an archive, which a survey finds and a repair restores.

use super::chunk_layer::{Chunk, Patch};
use super::hash::Digest;

/// Where a writer may go on.
#[derive(Debug)]
pub(crate) struct Settled {
    /// The committed chunks; the file is to be cut behind them.
    pub(crate) chunks: Vec<Chunk>,
    /// Hash of the last session; `None` without chunks, when there is no session either.
    pub(crate) digest: Option<Digest>,
    /// Writes that repair a torn header; after each of them the state can be repaired again.
    pub(crate) patches: Vec<Patch>,
    /// Whether the last header was torn.
    pub(crate) torn: bool,
}

impl Settled {
    /// The state of an archive that needs no repair.
    pub(crate) fn sound(chunks: &[Chunk], digest: Option<Digest>) -> Settled {
        Settled { chunks: chunks.to_vec(), digest, patches: Vec::new(), torn: false }
    }
}
