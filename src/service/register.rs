//! Registration of files: a shard's claims are proven against the index, then entered, all or none (spec 7.3).
//!
//! No blob is opened. What a shard says is compared with what was verified when its xorbs were uploaded: that they
//! exist, which chunks they have, that each term lies within its xorb and has the length it says, that the client
//! knows the chunk hashes of every term, and that the chunks of all terms hash to the file. Hence the one line that
//! must be true: nobody with a write token can change what another file reads.
//!
//! Terms are proven in runs, so that memory is bounded by the layouts of a run, not by the file.

mod proof;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::time::Instant;

use self::proof::FileProof;
use super::Cas;
use super::access::{Claims, RepoScope};
use super::contents::{Contents, file_count, runs};
use super::error::StoreError;
use super::possession::single_chunks;
use super::quota::OverQuota;
use crate::format::shard::{CasInfo, FileInfo, ParseError, Sha256, Shard, Term, parse, write_upload};
use crate::format::{ChunkHash, ChunkRange, FileHash, XorbHash};
use crate::index::{Claim, ClaimState, NewFile, Registered, Registration, XorbContents};
use crate::runtime::fair::Tenant;

/// Xorb blocks that are proven at once: as many layouts are held, of 41 bytes per chunk.
const BATCH_COUNT: usize = 64;

/// What stock clients write where they have not computed one, as for the empty file. It claims nothing: taken for a
/// claim it would be false, and the second push of the file would be refused.
const UNKNOWN_SHA256: Sha256 = Sha256::from_digest([0; 32]);

/// How long a registration may wait until it is known whether an older claim, which contradicts its own, is false.
const CONFLICT_WAIT: Duration = Duration::from_secs(10);

/// What became of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisteredShard {
    /// Whether it told anything that was not known.
    pub was_new: bool,
}

/// Why a shard was refused. Nothing of it was entered then.
#[derive(Debug, Error)]
pub enum RegisterError {
    /// The bytes are no shard.
    #[error(transparent)]
    Malformed(#[from] ParseError),
    /// A xorb that it names is not there.
    #[error("xorb {xorb} is not stored")]
    MissingXorb {
        /// Which xorb.
        xorb: XorbHash,
    },
    /// The blob of a xorb that it names is known to be damaged.
    #[error("xorb {xorb} is damaged")]
    DamagedXorb {
        /// Which xorb.
        xorb: XorbHash,
    },
    /// What it says of a xorb is not what the xorb is.
    #[error("xorb {xorb} has other chunks than the shard states")]
    OtherChunks {
        /// Which xorb.
        xorb: XorbHash,
    },
    /// A term names chunks that its xorb does not have, or says another length.
    #[error("term {term} of file {file} does not match chunks {chunks} of xorb {xorb} in length")]
    Term {
        /// Which file.
        file: FileHash,
        /// Which of its terms, from 0.
        term: usize,
        /// The xorb that it names.
        xorb: XorbHash,
        /// The chunks that it names.
        chunks: ChunkRange,
    },
    /// The client did not show that it knows the chunks of a term.
    #[error("the verification hash of term {term} of file {file} is missing or wrong")]
    NoProof {
        /// Which file.
        file: FileHash,
        /// Which of its terms, from 0.
        term: usize,
        /// The xorb that it names.
        xorb: XorbHash,
    },
    /// The terms make another file.
    #[error("the terms hash to file {actual}, not {claimed}")]
    FileHash {
        /// The hash in the shard.
        claimed: FileHash,
        /// The hash of the terms.
        actual: FileHash,
    },
    /// The file is known with another sha256.
    #[error("file {file} has another sha256")]
    OtherSha256 {
        /// Which file.
        file: FileHash,
        /// Whether the file was read and has that one. If not, that will happen soon.
        is_verified: bool,
    },
    /// There would be more than there may be.
    #[error(transparent)]
    OverQuota(OverQuota),
    /// The store failed.
    #[error("the shard could not be registered")]
    Store(#[from] StoreError),
}

impl Cas {
    /// Registers the files of a shard for whoever holds these claims; returns when they can be read.
    ///
    /// # Errors
    ///
    /// See [`RegisterError`].
    pub async fn register(&self, claims: &Claims, shard: Bytes) -> Result<RegisteredShard, RegisterError> {
        let tenant = claims.tenant();
        let proves_possession = claims.repo != RepoScope::All;
        let parsed = self.verify_pool.run_for(tenant, move || parse(&shard)).await?;
        // Before anything is read or hashed for it: a shard may have half a million files.
        self.check_quota(&claims.repo, &parsed.files).await?;
        let read = move || {
            // What is kept of it are its files, which their repository is charged for.
            let Shard { files, xorbs } = parsed;
            let files = Shard { files, xorbs: Vec::new() };
            let kept = write_upload(&files).expect("a shard that was parsed can be written");
            let parsed = Shard { xorbs, ..files };
            let terms = parsed.files.iter().flat_map(|file| &file.terms);
            let named = distinct(terms.clone().map(|term| term.xorb), &parsed.xorbs);
            let single = if proves_possession { single_chunks(terms, &parsed.xorbs) } else { HashSet::new() };
            (parsed, (named, single), Bytes::from(kept))
        };
        let (Shard { files, xorbs }, (named, single), kept) = self.verify_pool.run_for(tenant, read).await;
        let domain = domain(&claims.repo);
        // Before anything that it says of its xorbs is compared with what they are.
        self.prove_possession(single, &domain).await?;
        let mut registration = Registration {
            repo: claims.repo.to_string(),
            files: Vec::with_capacity(files.len()),
            xorbs: named,
            dedup: Vec::new(),
            now: self.clock.now(),
            allowance: self.quotas.allowance(&claims.repo),
        };
        if let Err(error) = self.prove_shard(tenant, files, xorbs, &mut registration).await {
            return Err(if proves_possession { self.veiled(error, &domain).await? } else { error });
        }
        self.enter(tenant, registration, &domain, kept).await
    }

    /// Proves what a shard says of its xorbs and files, and enters it into the registration.
    async fn prove_shard(
        &self,
        tenant: Tenant,
        files: Vec<FileInfo>,
        xorbs: Vec<CasInfo>,
        registration: &mut Registration,
    ) -> Result<(), RegisterError> {
        let mut xorbs = xorbs.into_iter();
        while xorbs.len() > 0 {
            let batch = xorbs.by_ref().take(BATCH_COUNT).collect();
            registration.dedup.extend(self.prove_xorbs(tenant, batch).await?);
        }
        // Small files share xorbs: what is known of those is not read again for each.
        let mut contents = Contents::default();
        let mut files = files.into_iter();
        while files.len() > 0 {
            let count = file_count(files.as_slice()).max(1);
            let some = files.by_ref().take(count).collect();
            let (proven, first);
            (proven, first, contents) = self.prove_files(tenant, some, contents).await?;
            registration.files.extend(proven);
            registration.dedup.extend(first);
        }
        // In the order of their index. In the order of the files each would be in a page of its own.
        registration.dedup.sort_unstable_by_key(|(chunk, _)| *chunk.as_bytes());
        Ok(())
    }

    /// Proves files whose terms are one run together, or a single file of any length.
    async fn prove_files(
        &self,
        tenant: Tenant,
        mut files: Vec<FileInfo>,
        contents: Contents,
    ) -> Result<(Vec<NewFile>, Vec<(ChunkHash, XorbHash)>, Contents), RegisterError> {
        if let [_] = files.as_slice()
            && let Some(file) = files.pop()
        {
            let (file, first, contents) = self.prove_file(tenant, file, contents).await?;
            return Ok((vec![file], first.into_iter().collect(), contents));
        }
        let terms: Vec<Term> = files.iter().flat_map(|file| &file.terms).copied().collect();
        let contents = self.contents(contents, &terms).await?;
        let prove = move || {
            let (mut proven, mut firsts) = (Vec::with_capacity(files.len()), Vec::with_capacity(files.len()));
            for file in files {
                let range_hashes = file.range_hashes.as_deref().unwrap_or_default();
                let proof = FileProof::new(file.hash).take(&file.terms, range_hashes, &contents)?;
                let (file, first) = proof.finish(file)?;
                proven.push(file);
                firsts.extend(first);
            }
            Ok::<_, RegisterError>((proven, firsts, contents))
        };
        self.verify_pool.run_for(tenant, prove).await
    }

    /// Compares what a shard says of these xorbs with what they are; returns their chunks that clients may ask for.
    pub(super) async fn prove_xorbs(
        &self,
        tenant: Tenant,
        xorbs: Vec<CasInfo>,
    ) -> Result<Vec<(ChunkHash, XorbHash)>, RegisterError> {
        let contents = self.whole_contents(xorbs.iter().map(|xorb| xorb.hash)).await?;
        let prove = move || xorbs.iter().map(|xorb| prove_xorb(xorb, &contents)).collect::<Result<Vec<_>, _>>();
        Ok(self.verify_pool.run_for(tenant, prove).await?.into_iter().flatten().collect())
    }

    /// Enters what was proven. Whoever was first to claim a sha256 may have lied, so before one that came later is
    /// refused, the file is read.
    async fn enter(
        &self,
        tenant: Tenant,
        registration: Registration,
        domain: &str,
        shard: Bytes,
    ) -> Result<RegisteredShard, RegisterError> {
        let (registration, deadline) = (Arc::new(registration), Instant::now() + CONFLICT_WAIT);
        loop {
            let (file, sha256) = match self.enter_once(tenant, &registration, domain.to_owned(), shard.clone()).await? {
                Registered::New => return Ok(RegisteredShard { was_new: true }),
                Registered::Added | Registered::Known => return Ok(RegisteredShard { was_new: false }),
                Registered::MissingXorb(xorb) => return Err(RegisterError::MissingXorb { xorb }),
                // To acknowledge a file that nobody can read would be a lie.
                Registered::DamagedXorb(xorb) => return Err(RegisterError::DamagedXorb { xorb }),
                Registered::OverQuota(excess) => {
                    self.metrics.quota_refused.inc();
                    return Err(RegisterError::OverQuota(OverQuota::new(
                        &registration.repo,
                        &registration.allowance,
                        excess,
                    )));
                }
                Registered::OtherSha256 { file, unverified: Some(sha256) } => (file, sha256),
                Registered::OtherSha256 { file, unverified: None } => {
                    return Err(RegisterError::OtherSha256 { file, is_verified: true });
                }
            };
            match self.settle_before(Claim { file, sha256 }, deadline).await {
                Some(ClaimState::False { .. }) => {}
                settled => return Err(RegisterError::OtherSha256 { file, is_verified: settled.is_some() }),
            }
        }
    }

    /// Proves one file; returns it, its first chunk with the xorb that has it, and what is known of its last xorbs.
    pub(super) async fn prove_file(
        &self,
        tenant: Tenant,
        file: FileInfo,
        mut contents: Contents,
    ) -> Result<(NewFile, Option<(ChunkHash, XorbHash)>, Contents), RegisterError> {
        let mut proof = FileProof::new(file.hash);
        let mut range_hashes = file.range_hashes.as_deref().unwrap_or_default();
        for terms in runs(&file.terms) {
            contents = self.contents(contents, terms).await?;
            let (proofs, rest) = range_hashes.split_at(terms.len().min(range_hashes.len()));
            range_hashes = rest;
            let (terms, proofs) = (terms.to_vec(), proofs.to_vec());
            let take = move || (proof.take(&terms, &proofs, &contents), contents);
            let taken;
            (taken, contents) = self.verify_pool.run_for(tenant, take).await;
            proof = taken?;
        }
        let (file, first) = proof.finish(file)?;
        Ok((file, first, contents))
    }

    /// The record, and the transactions of the index, in a task that is not interrupted when the client goes away.
    async fn enter_once(
        &self,
        tenant: Tenant,
        registration: &Arc<Registration>,
        domain: String,
        shard: Bytes,
    ) -> Result<Registered, StoreError> {
        let registration = Arc::clone(registration);
        let permit = match registration.is_short() {
            true => None,
            false => Some(self.long_registrations.enter(tenant, 1).await?),
        };
        self.uninterrupted(|cas| async move {
            // Not until the client goes away, which ends nothing here.
            let _permit = permit;
            let noted = cas.note_registration(&registration, domain, shard).await?;
            let registered = cas.write_registration(tenant, &registration, Some(noted.number())).await;
            if registration.files.iter().any(|file| file.sha256.is_some()) {
                // Also where that failed: it may have been done all the same.
                cas.unsettled.ring();
            }
            match &registered {
                Ok(Registered::New | Registered::Added) | Err(_) => noted.keep(),
                Ok(
                    Registered::Known
                    | Registered::MissingXorb(_)
                    | Registered::DamagedXorb(_)
                    | Registered::OverQuota(_)
                    | Registered::OtherSha256 { .. },
                ) => noted.withdraw().await,
            }
            registered
        })
        .await
    }
}

/// Within which walls deduplication may mention what these claims upload: everything of one owner, the part of a
/// repository's name before its last slash.
pub(super) fn domain(repo: &RepoScope) -> String {
    repo.owner().to_owned()
}

/// The walls within which these claims are told of what is stored; `None` where there are none, for who may read
/// everything.
pub(super) fn walls(repo: &RepoScope) -> Option<String> {
    (*repo != RepoScope::All).then(|| domain(repo))
}

pub(super) fn distinct(terms: impl Iterator<Item = XorbHash>, xorbs: &[CasInfo]) -> Vec<XorbHash> {
    let mut seen = HashSet::new();
    terms.chain(xorbs.iter().map(|xorb| xorb.hash)).filter(|hash| seen.insert(*hash)).collect()
}

/// Compares what a shard says of a xorb with what the xorb is; returns its chunks that clients may ask for.
fn prove_xorb(
    claimed: &CasInfo,
    contents: &HashMap<XorbHash, XorbContents>,
) -> Result<Vec<(ChunkHash, XorbHash)>, RegisterError> {
    let xorb = claimed.hash;
    let stored = contents.get(&xorb).ok_or(RegisterError::MissingXorb { xorb })?;
    let is_same = stored.chunk_hashes.len() == claimed.chunks.len()
        && stored.layout.raw_len() == u64::from(claimed.raw_len)
        && stored.layout.chunks().zip(&stored.chunk_hashes).zip(&claimed.chunks).all(|((place, hash), claim)| {
            claim.hash == *hash
                && u64::from(claim.raw_offset) == place.raw.start()
                && u64::from(claim.raw_len) == place.raw.byte_len()
        });
    if !is_same {
        return Err(RegisterError::OtherChunks { xorb });
    }
    let asked_for = claimed.chunks.iter().filter(|chunk| chunk.hash.is_dedup_eligible());
    Ok(asked_for.map(|chunk| (chunk.hash, xorb)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_before_the_last_slash_and_star_is_its_own() {
        for (repo, owner) in [
            ("models/acme/bert", "models/acme"),
            ("acme/bert", "acme"),
            ("bert", "bert"),
            ("*", "*"),
            ("*/bert", "*/bert"),
        ] {
            assert_eq!(domain(&repo.parse().unwrap()), owner, "{repo}");
        }
    }
}
