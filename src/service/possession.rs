//! What a registration may learn about xorbs that its owner has not uploaded (spec 6.2, rule 9). It
//! learns nothing, unless it proves that it knows their chunks.
//!
//! A verification hash is made of chunk hashes, and a xorb of one chunk has the hash of that chunk.
//! So for a xorb of one chunk, the hash of the xorb is enough to make a proof. Reconstructions
//! contain this hash in clear text. Hence such a proof counts only for owners that have uploaded
//! the xorb. The sha256 of the bytes is no proof either, because pointer files contain it. Only the
//! bytes prove possession, so other owners have to upload them. Such uploads are rare, for two
//! reasons. Only a session with a single file smaller than a chunk makes a xorb of one chunk. And
//! only a client that remembers the xorb from another owner names it without an upload.
//!
//! If a shard states something wrong about any other xorb of another owner, the error is the same
//! as for a missing xorb.

use std::collections::HashSet;

use super::Store;
use super::error::RegisterError;
use super::error::StoreError;
use crate::format::XorbHash;
use crate::format::shard::{CasInfo, Term};

/// The xorbs that may have a single chunk: they are listed with one, or a term names only their
/// first chunk. Any other term names a later chunk. So its xorb has more chunks, or the term is
/// wrong, and the check is not needed.
pub(super) fn single_chunks<'t>(terms: impl Iterator<Item = &'t Term>, xorbs: &[CasInfo]) -> HashSet<XorbHash> {
    let listed = xorbs.iter().filter(|xorb| xorb.chunks.len() == 1).map(|xorb| xorb.hash);
    terms.filter(|term| term.chunks.end() == 1).map(|term| term.xorb).chain(listed).collect()
}

impl Store {
    /// Proves that this domain has uploaded the xorbs of one chunk among these, the
    /// [`single_chunks`] of a shard.
    pub(super) async fn prove_possession(
        &self,
        candidates: HashSet<XorbHash>,
        domain: &str,
    ) -> Result<(), RegisterError> {
        if candidates.is_empty() {
            return Ok(());
        }
        let foreign = self.index.foreign_single_chunks(candidates.into_iter().collect(), domain.to_owned()).await;
        match foreign.map_err(StoreError::from)?.first() {
            None => Ok(()),
            // Deliberately the same as for a missing xorb.
            Some(xorb) => Err(RegisterError::MissingXorb { xorb: *xorb }),
        }
    }

    /// The error as this domain may see it. Every error about a xorb that the domain has not
    /// uploaded becomes a missing xorb.
    pub(super) async fn hide_foreign_xorbs(
        &self,
        error: RegisterError,
        domain: &str,
    ) -> Result<RegisterError, StoreError> {
        let (RegisterError::OtherChunks { xorb }
        | RegisterError::Term { xorb, .. }
        | RegisterError::NoProof { xorb, .. }) = error
        else {
            return Ok(error);
        };
        let is_owned = !self.index.owned_xorbs(vec![xorb], domain.to_owned()).await?.is_empty();
        Ok(if is_owned { error } else { RegisterError::MissingXorb { xorb } })
    }
}
