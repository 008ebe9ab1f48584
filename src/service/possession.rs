//! What a registration is told of xorbs that its owner has not uploaded (spec 6.2, rule 9): nothing, unless it proves to know
//! their chunks.
//!
//! A verification hash is made of chunk hashes, and a xorb of one chunk has the hash of that chunk: the hash of such a xorb,
//! which reconstructions and responses of deduplication tell in clear, is all that a proof takes. So it counts only for owners
//! who have uploaded it, and the sha256 of its bytes is no proof either: pointer files have that in clear. The bytes
//! themselves are one, and the way to show them is an upload. It hardly ever comes to that: only a file that is alone in its
//! session and smaller than a chunk makes such a xorb, and only a client that remembers it from another owner names it.
//!
//! Of all other xorbs of others, a wrong statement is told like a xorb that does not exist.

use std::collections::HashSet;

use super::Cas;
use super::error::StoreError;
use super::register::RegisterError;
use crate::format::XorbHash;
use crate::format::shard::{CasInfo, Term};

/// The xorbs that are listed with a single chunk, or of which terms want the first chunk alone. Of other terms it is known that
/// their xorbs have more than one chunk, or that what they say is false: a thousand reads saved.
pub(super) fn single_chunks<'t>(terms: impl Iterator<Item = &'t Term>, xorbs: &[CasInfo]) -> HashSet<XorbHash> {
    let listed = xorbs.iter().filter(|xorb| xorb.chunks.len() == 1).map(|xorb| xorb.hash);
    terms.filter(|term| term.chunks.end() == 1).map(|term| term.xorb).chain(listed).collect()
}

impl Cas {
    /// Proves that this domain has uploaded the xorbs of one chunk among these, which are the [`single_chunks`] of a shard.
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
            // Not told apart from a xorb that is not there.
            Some(xorb) => Err(RegisterError::MissingXorb { xorb: *xorb }),
        }
    }

    /// What this domain is told of an error: one about a xorb that it has not uploaded says that there is no such xorb,
    /// whatever is wrong.
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
