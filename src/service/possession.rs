//! Proof that a client has what its files refer to, where its verification hashes prove nothing (spec 6.2, rule 9).
//!
//! A verification hash is made of chunk hashes, and a xorb of one chunk has the hash of that chunk. Xorb hashes are told
//! in clear, in reconstructions and in answers of deduplication, so whoever has seen that one could claim the chunk for
//! a file of its own and read it. Such a xorb counts only for owners who have uploaded it, and in files whose sha256 is
//! right: those are read before they are registered. It hardly ever comes to that: only a file that is alone in its
//! session and smaller than a chunk makes such a xorb, and only somebody who sends it again for another owner, with a
//! client that remembers it, refers to it there.

use std::collections::HashSet;

use sha2::{Digest, Sha256 as Hasher};

use super::Cas;
use super::download::Proof;
use super::error::StoreError;
use super::register::RegisterError;
use crate::format::XorbHash;
use crate::format::shard::{Sha256, Term};
use crate::index::NewFile;
use crate::runtime::fair::Tenant;
use crate::runtime::telemetry::chain;

/// Bytes of a file that are read for such a proof, at most: some seconds of work for one registration.
const MAX_READ_LEN: u64 = 1 << 30;

/// The xorbs of which terms want the first chunk alone. Of other terms it is known that their xorbs have more than one chunk: a
/// look at a thousand places saved.
pub(super) fn first_chunks<'t>(terms: impl Iterator<Item = &'t Term>) -> HashSet<XorbHash> {
    terms.filter(|term| term.chunks.end() == 1).map(|term| term.xorb).collect()
}

impl Cas {
    /// Proves that whoever registers these files, whose terms lie within their xorbs, for this domain has the single chunks
    /// that they refer to. `candidates` are the [`first_chunks`] of their terms.
    pub(super) async fn prove_possession(
        &self,
        tenant: Tenant,
        files: &[NewFile],
        candidates: HashSet<XorbHash>,
        domain: &str,
    ) -> Result<(), RegisterError> {
        if candidates.is_empty() {
            return Ok(());
        }
        let foreign = self.index.foreign_single_chunks(candidates.into_iter().collect(), domain.to_owned()).await;
        let foreign: HashSet<XorbHash> = foreign.map_err(StoreError::from)?.into_iter().collect();
        for file in files {
            let Some(term) = file.terms.iter().find(|term| foreign.contains(&term.xorb)) else { continue };
            // Not told apart from a xorb that is not there.
            let unproven = RegisterError::MissingXorb { xorb: term.xorb };
            let claimed = file.sha256.filter(|_| file.raw_len <= MAX_READ_LEN);
            if claimed.is_none() || claimed != self.sha256_of_terms(tenant, file).await {
                tracing::debug!(file = %file.hash, xorb = %term.xorb, "a single chunk of somebody else's is not proven");
                return Err(unproven);
            }
        }
        // From now on they are theirs as well. Not those that only a listing names: that proves nothing.
        for xorb in foreign {
            self.index.share_xorb(xorb, domain.to_owned()).await.map_err(StoreError::from)?;
        }
        Ok(())
    }

    /// The sha256 of what these terms make; `None` where they cannot be read.
    async fn sha256_of_terms(&self, tenant: Tenant, file: &NewFile) -> Option<Sha256> {
        let _turn = self.walks.wait(tenant, 1).await;
        let mut hasher = Hasher::new();
        for term in &file.terms {
            hasher = match self.hash_term(file.hash, term, Proof::Chunks, hasher).await {
                Ok(hasher) => hasher,
                Err(error) => {
                    tracing::warn!(file = %file.hash, error = %chain(&error), "a file cannot be read for its registration");
                    return None;
                }
            };
        }
        Some(Sha256::from_digest(hasher.finalize().into()))
    }
}
