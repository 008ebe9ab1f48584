//! What a registration may learn about xorbs that its owner has not uploaded (spec 6.2, rule 9). It
//! learns nothing, unless it proves that it knows their chunks.
//!
//! A verification hash is made of chunk hashes, and a xorb of one chunk has the hash of that chunk.
//! So for a xorb of one chunk, the hash of the xorb is enough to make a proof. Reconstructions
//! contain this hash in clear text. Hence such a proof counts only for owners that have uploaded
//! the xorb. The sha256 of the bytes is no proof either, because pointer files contain it. Only the
//! bytes prove possession, so other owners have to upload them.
//!
//! But a client that remembers a xorb from another owner names it without an upload, and does not
//! upload it after the refusal. So a user's token makes its owner one of the xorb, too, if the xorb
//! has an owner whose repositories the user may write: the user can read what it contains. This
//! happens when one short file is uploaded to repositories of several kinds or namespaces.
//!
//! A xorb without such a proof is treated as one that does not exist, in each step of the
//! registration. So a shard with several xorbs gets the same error, about the same xorb, whether it
//! exists or not. If a shard states something wrong about any other xorb of another owner, the
//! error is the same as for a missing xorb. What is not hidden is time: a lookup of a xorb with an
//! owner takes longer.

use std::collections::HashSet;

use super::Store;
use super::access::Account;
use super::error::RegisterError;
use super::error::StoreError;
use crate::format::XorbHash;
use crate::format::shard::{CasInfo, Term};

/// Xorbs of other owners that a user's registration shares at most. Each is a transaction. A client
/// makes one xorb of one chunk per session that uploads a single short file.
const MAX_SHARED_COUNT: usize = if cfg!(test) { 4 } else { 1000 };

/// The xorbs that may have a single chunk: they are listed with one, or a term names only their
/// first chunk. Any other term names a later chunk. So its xorb has more chunks, or the term is
/// wrong, and the check is not needed.
pub(super) fn single_chunks<'t>(terms: impl Iterator<Item = &'t Term>, xorbs: &[CasInfo]) -> HashSet<XorbHash> {
    let listed = xorbs.iter().filter(|xorb| xorb.chunks.len() == 1).map(|xorb| xorb.hash);
    terms.filter(|term| term.chunks.end() == 1).map(|term| term.xorb).chain(listed).collect()
}

impl Store {
    /// The xorbs of one chunk among these, the [`single_chunks`] of a shard, that this domain has
    /// not uploaded. If the user may write to an owner that has uploaded one, adds the domain to
    /// its owners, as if the user had uploaded it again. Then the record of the registration has
    /// the owner, so that a rebuild finds the proof.
    pub(super) async fn unproven_xorbs(
        &self,
        candidates: HashSet<XorbHash>,
        domain: &str,
        user: Option<&Account>,
    ) -> Result<HashSet<XorbHash>, StoreError> {
        if candidates.is_empty() {
            return Ok(candidates);
        }
        let foreign = self.index.foreign_single_chunks(candidates.into_iter().collect(), domain.to_owned()).await?;
        let mut foreign: HashSet<XorbHash> = foreign.into_iter().collect();
        if foreign.len() > MAX_SHARED_COUNT {
            return Ok(foreign);
        }
        for owner in user.into_iter().flat_map(Account::written_owners).filter(|owner| owner != domain) {
            if foreign.is_empty() {
                break;
            }
            for xorb in self.index.owned_xorbs(foreign.iter().copied().collect(), owner).await? {
                self.index.share_xorb(xorb, domain.to_owned()).await?;
                foreign.remove(&xorb);
            }
        }
        Ok(foreign)
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
