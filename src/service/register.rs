//! Registration of files: a shard's statements are proven against the index, then entered, all or
//! none (spec 7.3).
//!
//! No blob is opened. The shard is compared with the index rows, which were verified when its xorbs
//! were uploaded:
//!
//! * The xorbs exist, with these chunks.
//! * Each term lies within its xorb and has the stated length.
//! * The client knows the chunk hashes of every term.
//! * The chunks of all terms hash to the file.
//!
//! Hence the invariant: no write token can change what another file reads.
//!
//! Terms are proven in runs, so that the layouts of a run bound the memory, not the file.

mod proof;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::time::Instant;

pub(super) use self::proof::FirstChunk;
use super::Cas;
use super::access::{Claims, RepoScope};
use super::contents::{Contents, file_count};
use super::error::StoreError;
use super::possession::single_chunks;
use super::quota::OverQuota;
use crate::format::shard::{CasInfo, FileInfo, ParseError, Sha256, Shard, parse, write_upload};
use crate::format::{ChunkHash, ChunkRange, FileHash, XorbHash};
use crate::index::{Claim, ClaimState, Registered, Registration, XorbContents};
use crate::runtime::fair::Tenant;

/// Xorb blocks that are proven at once: as many layouts are in memory, at 41 bytes per chunk.
const BATCH_COUNT: usize = 64;

/// Stock clients write this where they have not computed a digest, as for the empty file. It claims
/// nothing: as a claim it would be false, and the second push of the file would be refused.
const UNKNOWN_SHA256: Sha256 = Sha256::from_digest([0; 32]);

/// How long a registration may wait for the verification of an older claim that contradicts its
/// own.
const CONFLICT_WAIT: Duration = Duration::from_secs(10);

/// The result of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisteredShard {
    /// Whether it has anything that was not registered.
    pub was_new: bool,
}

/// Why a shard was refused. None of it was entered then.
#[derive(Debug, Error)]
pub enum RegisterError {
    /// The bytes are not a shard.
    #[error(transparent)]
    Malformed(#[from] ParseError),
    /// A xorb that it names does not exist.
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
    /// Its xorb has other chunks or lengths.
    #[error("xorb {xorb} has other chunks than the shard states")]
    OtherChunks {
        /// Which xorb.
        xorb: XorbHash,
    },
    /// A term names chunks that its xorb does not have, or states another length.
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
    /// The client did not prove that it knows the chunks of a term.
    #[error("the verification hash of term {term} of file {file} is missing or wrong")]
    NoProof {
        /// Which file.
        file: FileHash,
        /// Which of its terms, from 0.
        term: usize,
        /// The xorb that it names.
        xorb: XorbHash,
    },
    /// The terms hash to another file.
    #[error("the terms hash to file {actual}, not {claimed}")]
    FileHash {
        /// The hash in the shard.
        claimed: FileHash,
        /// The hash of the terms.
        actual: FileHash,
    },
    /// The file is registered with another sha256.
    #[error("file {file} has another sha256")]
    OtherSha256 {
        /// Which file.
        file: FileHash,
        /// Whether the file was read and has that digest. If not, it will be read soon.
        is_verified: bool,
    },
    /// The registration would exceed a quota.
    #[error(transparent)]
    OverQuota(OverQuota),
    /// The store failed.
    #[error("the shard could not be registered")]
    Store(#[from] StoreError),
}

impl Cas {
    /// Registers the files of a shard for the holder of these claims; returns when they can be
    /// read.
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
            // Only its files are retained, which their repository is charged for.
            let Shard { files, xorbs } = parsed;
            let files = Shard { files, xorbs: Vec::new() };
            let retained = write_upload(&files).expect("a shard that was parsed can be written");
            let parsed = Shard { xorbs, ..files };
            let terms = parsed.files.iter().flat_map(|file| &file.terms);
            let named = distinct(terms.clone().map(|term| term.xorb), &parsed.xorbs);
            let single = if proves_possession { single_chunks(terms, &parsed.xorbs) } else { HashSet::new() };
            (parsed, (named, single), Bytes::from(retained))
        };
        let (Shard { files, xorbs }, (named, single), retained) = self.verify_pool.run_for(tenant, read).await;
        let domain = domain(&claims.repo);
        // Before anything that it states of its xorbs is compared with their rows.
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
        self.enter(tenant, registration, &domain, retained).await
    }

    /// Proves the xorbs and files of a shard, and enters them into the registration.
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
        // Small files share xorbs: rows that were read are not read again for each.
        let mut contents = Contents::default();
        let mut files = files.into_iter();
        while files.len() > 0 {
            let count = file_count(files.as_slice()).max(1);
            let some = files.by_ref().take(count).collect();
            let proven;
            (proven, contents) = self.prove_files(tenant, some, contents).await?;
            for (file, first) in proven {
                registration.files.push(file);
                registration.dedup.extend(first);
            }
        }
        // In the order of their index: in that of the files each would touch a page of its own.
        let is_short = registration.is_short();
        let mut dedup = std::mem::take(&mut registration.dedup);
        let sort = move || {
            dedup.sort_unstable_by_key(|(chunk, _)| *chunk.as_bytes());
            dedup
        };
        // A few are sorted in less time than it takes to wake a worker.
        registration.dedup = if is_short { sort() } else { self.verify_pool.run_for(tenant, sort).await };
        Ok(())
    }

    /// Compares these xorbs of a shard with their rows; returns their chunks that dedup may find.
    pub(super) async fn prove_xorbs(
        &self,
        tenant: Tenant,
        xorbs: Vec<CasInfo>,
    ) -> Result<Vec<(ChunkHash, XorbHash)>, RegisterError> {
        let contents = self.whole_contents(xorbs.iter().map(|xorb| xorb.hash)).await?;
        let prove = move || xorbs.iter().map(|xorb| prove_xorb(xorb, &contents)).collect::<Result<Vec<_>, _>>();
        Ok(self.verify_pool.run_for(tenant, prove).await?.into_iter().flatten().collect())
    }

    /// Enters what was proven. The first claim of a sha256 may be a lie, so the file is read before
    /// a later claim is refused.
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
                // Acknowledging an unreadable file would be a lie.
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

    /// Writes the record and the transactions of the index, in a task that a disconnect does not
    /// interrupt.
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
            // Moved into the task, since a disconnect does not end the work.
            let _permit = permit;
            let appended = cas.append_registration(&registration, domain, shard).await?;
            let registered = cas.write_registration(tenant, &registration, Some(appended.number())).await;
            if registration.files.iter().any(|file| file.sha256.is_some()) {
                // Also after an error: the transaction may have been committed.
                cas.unsettled.notify();
            }
            match &registered {
                Ok(Registered::New | Registered::Added) | Err(_) => appended.retain(),
                Ok(
                    Registered::Known
                    | Registered::MissingXorb(_)
                    | Registered::DamagedXorb(_)
                    | Registered::OverQuota(_)
                    | Registered::OtherSha256 { .. },
                ) => appended.roll_back().await,
            }
            registered
        })
        .await
    }
}

/// The dedup scope of uploads with these claims: all repositories of one owner, which is the
/// repository's name before its last slash.
pub(super) fn domain(repo: &RepoScope) -> String {
    repo.owner().to_owned()
}

/// The scope within which these claims may learn of stored data; `None` for tokens of all
/// repositories, which have no limit.
pub(super) fn dedup_scope(repo: &RepoScope) -> Option<String> {
    (*repo != RepoScope::All).then(|| domain(repo))
}

pub(super) fn distinct(terms: impl Iterator<Item = XorbHash>, xorbs: &[CasInfo]) -> Vec<XorbHash> {
    let mut seen = HashSet::new();
    terms.chain(xorbs.iter().map(|xorb| xorb.hash)).filter(|hash| seen.insert(*hash)).collect()
}

/// Compares a xorb of a shard with its row; returns its chunks that dedup may find.
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
