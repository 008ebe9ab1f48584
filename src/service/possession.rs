//! What a registration may learn of xorbs that its owner has not uploaded (spec 6.2, rule 9):
//! nothing, unless it proves to know their chunks.
//!
//! A verification hash is made of chunk hashes, and a xorb of one chunk has the hash of that chunk.
//! So the hash of such a xorb is all that a proof takes, and reconstructions and dedup responses
//! tell it in clear. Hence the proof counts only for owners that have uploaded the xorb. The sha256
//! of its bytes is no proof either: pointer files have it in clear. The bytes themselves are one,
//! and the way to show them is an upload. Uploads for this reason are rare. Only a file that is
//! alone in its session and smaller than a chunk makes such a xorb. And only a client that
//! remembers it from another owner names it.
//!
//! For all other xorbs of other owners, a wrong statement is reported as a missing xorb.

use std::collections::HashSet;

use super::Cas;
use super::error::StoreError;
use super::register::RegisterError;
use crate::format::XorbHash;
use crate::format::shard::{CasInfo, Term};

/// Xorbs that are listed with a single chunk, or whose first chunk alone is a term. Any other term
/// has a xorb of more than one chunk, or is false, so its xorb need not be read.
pub(super) fn single_chunks<'t>(terms: impl Iterator<Item = &'t Term>, xorbs: &[CasInfo]) -> HashSet<XorbHash> {
    let listed = xorbs.iter().filter(|xorb| xorb.chunks.len() == 1).map(|xorb| xorb.hash);
    terms.filter(|term| term.chunks.end() == 1).map(|term| term.xorb).chain(listed).collect()
}

impl Cas {
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

    /// The error as this domain may see it: every error about a xorb of other owners becomes a
    /// missing xorb.
    pub(super) async fn veiled(&self, error: RegisterError, domain: &str) -> Result<RegisterError, StoreError> {
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
