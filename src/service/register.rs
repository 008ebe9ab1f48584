//! Registration of files: a shard's statements are proven against the index, then entered, all or
//! none (spec 7.3).
//!
//! No blob is opened. The shard is compared with the index rows, which were verified when its xorbs
//! were uploaded. The comparison proves these statements:
//!
//! * The xorbs exist, with these chunks.
//! * Each term lies within its xorb and has the stated length.
//! * The client knows the chunk hashes of every term.
//! * The chunks of all terms hash to the file.
//!
//! Hence the invariant: no write token can change what readers of another file receive.
//!
//! Terms are proven in runs, so that the layouts of one run bound the memory, not the length of the
//! file.

mod proof;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

pub(super) use self::proof::FirstChunk;
use super::access::{Claims, RepoScope};
use super::contents::{Contents, file_count};
use super::error::{OverQuota, RegisterError, StoreError};
use super::possession::single_chunks;
use super::registering::Registering;
use super::scope::domain;
use super::{ReceivedShard, Server, Store};
use crate::format::shard::{CasInfo, FileInfo, RECORD_LEN, Sha256, Shard, parse, write_upload};
use crate::format::{ChunkHash, XorbHash};
use crate::index::{Claim, ClaimState, IndexErrorKind, Registered, Registration, XorbContents};
use crate::runtime::fair::{Permit, Tenant};

/// Xorbs of a shard that are proven at once. Their layouts are in memory, at 41 bytes per chunk.
const BATCH_COUNT: usize = 64;

/// Files in at most so many xorbs are written in the order of their hashes. In more xorbs they are
/// written as the shard lists them: a client may list files of one xorb one after another, and each
/// batch of sorted files would name most of the xorbs.
const SORTED_XORB_COUNT: usize = 64;

/// Stock clients write a digest of zeros if they have not computed one, as for the empty file. It
/// is not taken as a claim, because the claim would be false, and the next push of the file would
/// be refused.
const UNKNOWN_SHA256: Sha256 = Sha256::from_digest([0; 32]);

/// How long a registration may wait for the verification of an older claim that contradicts its
/// own.
const CONFLICT_WAIT: Duration = Duration::from_secs(10);

/// What a registration holds until it has ended: the budget of its shard, and the mark without
/// which a deletion of its repository would be completed.
type Held = (Option<Permit>, Registering);

/// The result of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisteredShard {
    /// Whether at least one file was new to its repository.
    pub was_new: bool,
}

impl Server {
    /// Registers the files of a shard for the holder of these claims; returns when they can be
    /// read. A write that has begun continues when the caller is dropped, and holds the budget of
    /// the shard until it ends.
    ///
    /// # Errors
    ///
    /// See [`RegisterError`].
    pub async fn register(
        self: &Arc<Self>,
        claims: &Claims,
        shard: ReceivedShard,
    ) -> Result<RegisteredShard, RegisterError> {
        let ReceivedShard { bytes, budget } = shard;
        let registering = self.begin_registering(&claims.repo).await?;
        let tenant = claims.tenant();
        let must_possess = claims.repo != RepoScope::All;
        let entry_count = usize::try_from(bytes.len() as u64 / RECORD_LEN).unwrap_or(usize::MAX);
        let parsed = self.store.compute_for(tenant, entry_count, move || parse(&bytes)).await?;
        // The quota is checked before anything is read or hashed, because a shard may have half a
        // million files.
        self.check_quota(&claims.repo, &parsed.files).await?;
        let prepare = move || {
            // The record contains only the files, which count towards the quota of the repository,
            // and not the list of xorbs.
            let Shard { files, xorbs } = parsed;
            let files = Shard { files, xorbs: Vec::new() };
            let recorded = write_upload(&files).expect("a shard that was parsed can be written");
            let parsed = Shard { xorbs, ..files };
            let terms = parsed.files.iter().flat_map(|file| &file.terms);
            let named = distinct(terms.clone().map(|term| term.xorb), &parsed.xorbs);
            let single = if must_possess { single_chunks(terms, &parsed.xorbs) } else { HashSet::new() };
            (parsed, (named, single), Bytes::from(recorded))
        };
        let (Shard { files, xorbs }, (named, single), recorded) =
            self.store.compute_for(tenant, entry_count, prepare).await;
        let domain = domain(&claims.repo);
        // Possession is proven before the shard's statements about xorbs are compared with their
        // rows, so that errors tell nothing about xorbs of others.
        let unproven = self.store.unproven_xorbs(single, &domain, claims.user.as_ref()).await?;
        let mut registration = Registration {
            repo: claims.repo.to_string(),
            files: Vec::with_capacity(files.len()),
            xorbs: named,
            dedup: Vec::new(),
            now: self.store.clock.now(),
            allowance: self.quotas.allowance(&claims.repo),
        };
        if let Err(error) = self.store.prove_shard(tenant, (files, xorbs), unproven, &mut registration).await {
            return Err(if must_possess { self.store.hide_foreign_xorbs(error, &domain).await? } else { error });
        }
        self.enter(tenant, registration, &domain, (recorded, Arc::new((budget, registering)))).await
    }
}

impl Store {
    /// Proves the xorbs and files of a shard, and enters them into the registration. The shard
    /// names each of the `unproven` xorbs, so it is refused if there is one.
    async fn prove_shard(
        &self,
        tenant: Tenant,
        (files, xorbs): (Vec<FileInfo>, Vec<CasInfo>),
        unproven: HashSet<XorbHash>,
        registration: &mut Registration,
    ) -> Result<(), RegisterError> {
        let some_unproven = unproven.iter().next().copied();
        let mut xorbs = xorbs.into_iter();
        while xorbs.len() > 0 {
            let batch = xorbs.by_ref().take(BATCH_COUNT).collect();
            registration.dedup.extend(self.prove_xorbs(tenant, batch, &unproven).await?);
        }
        // Small files share xorbs: `contents` caches the rows across batches.
        let mut contents = Contents::without(unproven);
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
        if let Some(xorb) = some_unproven {
            return Err(RegisterError::MissingXorb { xorb });
        }
        // Write the chunks and files in the order of their tables. In the order of the shard, each
        // row would touch another page.
        let (is_short, in_few) = (registration.is_short(), registration.xorbs.len() <= SORTED_XORB_COUNT);
        let mut dedup = std::mem::take(&mut registration.dedup);
        let mut files = std::mem::take(&mut registration.files);
        let sort = move || {
            dedup.sort_unstable_by_key(|(chunk, _)| *chunk.as_bytes());
            if in_few {
                // Stable: the first of two entries of a file decides.
                files.sort_by_key(|file| *file.hash.as_bytes());
            }
            (dedup, files)
        };
        // A few are sorted in less time than it takes to wake a worker.
        (registration.dedup, registration.files) =
            if is_short { sort() } else { self.pool.run_for(tenant, sort).await };
        Ok(())
    }

    /// Compares these xorbs of a shard with their rows. Those that are `unproven` count as missing.
    /// Returns the chunks of them that dedup may find.
    pub(super) async fn prove_xorbs(
        &self,
        tenant: Tenant,
        xorbs: Vec<CasInfo>,
        unproven: &HashSet<XorbHash>,
    ) -> Result<Vec<(ChunkHash, XorbHash)>, RegisterError> {
        let wanted = xorbs.iter().map(|xorb| xorb.hash).filter(|xorb| !unproven.contains(xorb));
        let contents = self.whole_contents(wanted).await?;
        let chunk_count = xorbs.iter().map(|xorb| xorb.chunks.len()).sum();
        let prove = move || xorbs.iter().map(|xorb| prove_xorb(xorb, &contents)).collect::<Result<Vec<_>, _>>();
        Ok(self.compute_for(tenant, chunk_count, prove).await?.into_iter().flatten().collect())
    }
}

impl Server {
    /// Enters a proven registration into the index. The first claim of a sha256 may be a lie, so
    /// the file is read before a later claim is refused.
    async fn enter(
        self: &Arc<Self>,
        tenant: Tenant,
        registration: Registration,
        domain: &str,
        recorded: (Bytes, Arc<Held>),
    ) -> Result<RegisteredShard, RegisterError> {
        let (registration, deadline) = (Arc::new(registration), Instant::now() + CONFLICT_WAIT);
        loop {
            let entered = self.enter_once(tenant, &registration, domain.to_owned(), recorded.clone()).await?;
            let (file, sha256) = match entered {
                Registered::New => return Ok(RegisteredShard { was_new: true }),
                Registered::Added | Registered::Known => return Ok(RegisteredShard { was_new: false }),
                Registered::MissingXorb(xorb) => return Err(RegisterError::MissingXorb { xorb }),
                // Success would acknowledge a file that cannot be read.
                Registered::DamagedXorb(xorb) => return Err(RegisterError::DamagedXorb { xorb }),
                Registered::OverQuota(excess) => {
                    self.store.metrics.quota_refused.inc();
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
                // The older claim was false and no longer counts, so try again.
                Some(ClaimState::False { .. }) => {}
                settled => return Err(RegisterError::OtherSha256 { file, is_verified: settled.is_some() }),
            }
        }
    }

    /// Appends the record and writes the index, in a task that continues when the client
    /// disconnects.
    async fn enter_once(
        self: &Arc<Self>,
        tenant: Tenant,
        registration: &Arc<Registration>,
        domain: String,
        (recorded, held): (Bytes, Arc<Held>),
    ) -> Result<Registered, StoreError> {
        let registration = Arc::clone(registration);
        let permit = match registration.is_short() {
            true => None,
            false => Some(self.permits.long_registrations.enter(tenant, 1).await?),
        };
        let server = Arc::clone(self);
        self.uninterrupted(async move {
            // They are moved into the task, because a disconnect does not end the work.
            let _permit = permit;
            let appended = server.store.append_registration(&registration, domain, recorded).await?;
            let appended = appended.holding(held);
            let registered = server.write_registration(tenant, &registration, Some(appended.number())).await;
            if registration.files.iter().any(|file| file.sha256.is_some()) {
                // Notify also after an error, because the transaction may have been committed.
                server.unsettled.notify();
            }
            let is_registered = matches!(registered, Ok(Registered::New | Registered::Added | Registered::Known));
            let retained = match is_registered {
                true => {
                    server.retain_unneeded(&registration.repo, registration.files.iter().map(|file| file.hash)).await
                }
                false => Ok(()),
            };
            match &registered {
                // It was abandoned before its publication, or waited in vain, so it was not made.
                Err(StoreError::Index(error))
                    if matches!(error.kind, IndexErrorKind::Lost | IndexErrorKind::InProgress) =>
                {
                    appended.roll_back().await;
                }
                Err(_) => {
                    appended.retain_unknown().await;
                }
                Ok(Registered::New | Registered::Added) => appended.retain(),
                Ok(
                    Registered::Known
                    | Registered::MissingXorb(_)
                    | Registered::DamagedXorb(_)
                    | Registered::OverQuota(_)
                    | Registered::OtherSha256 { .. },
                ) => appended.roll_back().await,
            }
            // Without this, a sweep may remove a claim that was acknowledged just now.
            retained?;
            registered
        })
        .await
    }
}

/// The xorbs of these terms, then the listed xorbs, each once.
pub(super) fn distinct(terms: impl Iterator<Item = XorbHash>, xorbs: &[CasInfo]) -> Vec<XorbHash> {
    let mut seen = HashSet::new();
    terms.chain(xorbs.iter().map(|xorb| xorb.hash)).filter(|hash| seen.insert(*hash)).collect()
}

/// Compares a xorb of a shard with its row. Returns the chunks of it that dedup may find.
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
