//! The registration log: a durable record of every registration and removal beside the index. The
//! index can be rebuilt from blobs and these records alone.
//!
//! A registration with new content has a record, which contains the files that are new to their
//! repository. A removal has a record, and so does each change of a Hub repository ([`hub`]).
//! Records are in a [`RecordStore`](crate::blob::records::RecordStore). [`rebuild`] replays them, a
//! start and GC compare the index with them, and pruning removes obsolete ones. The xorb list of a
//! shard is not recorded, because the blobs have the same data. Also, a record with a xorb list and
//! no files would take disk space that no quota limits. A rebuild makes those chunks of the named
//! xorbs findable that are eligible for global deduplication.
//!
//! Order of effects: record durable → transaction of the index → response. So everything
//! acknowledged has its record. A crash between the first two effects leaves a record whose change
//! was not acknowledged. A rebuilt index may contain this change, as a whole or not at all, as for
//! uploads. The same holds for a failed transaction with an unknown outcome. When a registration
//! has added nothing or was refused, its record is removed. If the removal fails, the failure is
//! logged. Before the response, the index then marks the record as considered, so that no start
//! applies it. Only a rebuild then tries the registration again, without quotas.
//!
//! The index knows which records are open: those whose changes were not made, also if it has
//! applied later ones. With one server a start applies the records that a crash has left open, or
//! the end of the process while the index did not respond ([`Store::agree`]). With several servers
//! those of a server that has ended, and those that could not be removed or may be stored after an
//! error, are removed within seconds ([`Store::settle_ended`]).
//!
//! Records of one file are in the order in which the index applied them. The writer of a record
//! holds the file's lock until its transaction, or the last step of the registration, is over and
//! its outcome is known. The same holds for the changes of a Hub repository, with the lock of its
//! name.
//!
//! Not recorded are: uploads of xorbs without a registration, upload times, spent grants, leases,
//! and the verification of sha256 claims. Damage of blobs and of records is detected by their
//! hashes. A rebuild reports a damaged record and cannot apply it, not even the record of a
//! removal.

mod agree;
mod appended;
mod backfill;
mod half_deleted;
mod hub;
mod prune;
mod rebuild;
mod rebuilt;
mod record;
mod replay;
mod set_back;
mod settle;
mod tail;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

pub use self::agree::{Gap, Reconciled, check_owner, has_anything};
pub use self::appended::AppendedRecord;
pub(super) use self::appended::UnknownOutcomes;
pub(super) use self::hub::HubChange;
pub use self::prune::{Pruned, Pruning};
pub use self::rebuilt::{RebuildError, Rebuilt};
use self::record::{Record, Registered};
pub use self::settle::AbandonedRecords;
pub use self::tail::Tail;
use super::Store;
use super::error::StoreError;
use super::permits::PATIENCE;
use super::register::distinct;
use super::store_locks::{FileChange, LockedFiles};
use crate::blob::records::Seq;
use crate::format::shard::{Shard, parse_stored, write_upload};
use crate::format::{FileHash, XorbHash};
use crate::index::Registration;

impl Store {
    /// Appends the record of a registration. The index then decides whether the registration is
    /// made.
    pub(super) async fn append_registration(
        &self,
        registration: &Registration,
        domain: String,
        shard: Bytes,
    ) -> Result<AppendedRecord, StoreError> {
        let files = registration.files.iter().map(|file| file.hash);
        let lock = self.lock_files(files, FileChange::Register, PATIENCE).await?;
        let (named, shard) = self.without_known_files(registration, shard).await?;
        let owned = self.index.owned_xorbs(named.clone(), domain.clone()).await?;
        let owned: HashSet<XorbHash> = owned.into_iter().collect();
        let places = named.iter().zip(0..).filter(|(xorb, _)| owned.contains(xorb));
        let places: Vec<u32> = places.map(|(_, place)| place).collect();
        let owners = if places.is_empty() { BTreeMap::new() } else { BTreeMap::from([(domain, places)]) };
        let (at, repos) = (registration.now, vec![registration.repo.clone()]);
        self.append(lock, Record::Register(Registered { at, repos, owners, origin: None, shard })).await
    }

    /// The shard of a registration without the files that its repository has claimed already, and
    /// the xorbs of the remaining files. The caller holds the locks of its files.
    async fn without_known_files(
        &self,
        registration: &Registration,
        shard: Bytes,
    ) -> Result<(Vec<XorbHash>, Bytes), StoreError> {
        let files = registration.files.iter().map(|file| file.hash).collect();
        let claimed = self.index.claimed_files(files, registration.repo.clone()).await?;
        let claimed: HashMap<FileHash, bool> = claimed.into_iter().collect();
        let is_known = |file: FileHash, has_sha256: bool| {
            claimed.get(&file).is_some_and(|is_sha256_known| *is_sha256_known || !has_sha256)
        };
        let new = registration.files.iter().filter(|file| !is_known(file.hash, file.sha256.is_some()));
        let named = distinct(new.clone().flat_map(|file| &file.terms).map(|term| term.xorb), &[]);
        let new: HashSet<FileHash> = new.map(|file| file.hash).collect();
        if new.len() == registration.files.len() {
            return Ok((named, shard));
        }
        let write = move || {
            let mut shard = parse_stored(&shard).expect("this program has written it");
            shard.files.retain(|file| new.contains(&file.hash));
            Bytes::from(write_upload(&shard).expect("a shard that was parsed can be written"))
        };
        Ok((named, self.pool.run(write).await))
    }

    /// Appends the record of a removal of a file from one repository, or from all. To be called
    /// before the transaction of the index. If that removes nothing, the caller rolls the record
    /// back.
    ///
    /// # Errors
    ///
    /// The record could not be written. Then the file must not be removed, since a rebuilt index
    /// would still have it.
    pub async fn append_removal(&self, file: FileHash, repo: Option<String>) -> Result<AppendedRecord, StoreError> {
        let lock = self.lock_files([file], FileChange::Other, PATIENCE).await?;
        self.append(lock, Record::Remove { at: self.clock.now(), file, repo }).await
    }

    /// Appends the record of a removal that was made already, with the lock of the file that was
    /// taken before.
    ///
    /// # Errors
    ///
    /// The record could not be written. Then a rebuilt index would still have the claim.
    pub(super) async fn append_made_removal(
        &self,
        lock: LockedFiles,
        file: FileHash,
        repo: String,
    ) -> Result<(), StoreError> {
        let appended = self.append(lock, Record::Remove { at: self.clock.now(), file, repo: Some(repo) }).await?;
        appended.retain_applied().await
    }

    /// Appends the record of new terms for registered files: the files of this shard, with their
    /// verification hashes. `new` are the new xorbs, whose owners are recorded. To be called when
    /// the xorbs are stored, before the transaction of the index that switches the files.
    ///
    /// # Errors
    ///
    /// The record could not be written. Then the terms must not be switched: the old xorbs may be
    /// deleted afterwards, and a rebuilt index would need them.
    pub async fn append_terms(&self, shard: &Shard, new: Vec<XorbHash>) -> Result<AppendedRecord, StoreError> {
        let files = shard.files.iter().map(|file| file.hash);
        let lock = self.lock_files(files, FileChange::Other, PATIENCE).await?;
        let named = distinct(shard.files.iter().flat_map(|file| &file.terms).map(|term| term.xorb), &[]);
        let owners = places_of(self.index.owners_of(new).await?, &named);
        let shard = write_upload(shard).expect("terms that the index has are those of a shard").into();
        self.append(lock, Record::Terms { at: self.clock.now(), owners, shard }).await
    }

    async fn append(&self, lock: LockedFiles, record: Record) -> Result<AppendedRecord, StoreError> {
        let record = self.pool.run(move || record.encode()).await;
        let seq = self.records.append(record).await?;
        Ok(self.appended(seq, Vec::new(), Some(lock)))
    }

    fn appended(&self, seq: Seq, earlier: Vec<Seq>, lock: Option<LockedFiles>) -> AppendedRecord {
        let (records, index) = (Arc::clone(&self.records), Arc::clone(&self.index));
        let appended = AppendedRecord::new(records, index, Arc::clone(&self.unknown_outcomes), seq, earlier);
        match lock {
            Some(lock) => appended.holding(lock),
            None => appended,
        }
    }
}

/// The owners of a record with their xorbs; indexes outside the list are left out.
fn owners_of<'a>(
    owners: &'a BTreeMap<String, Vec<u32>>,
    xorbs: &'a [XorbHash],
) -> impl Iterator<Item = (&'a String, XorbHash)> {
    let xorb = |place: &u32| xorbs.get(usize::try_from(*place).ok()?).copied();
    owners.iter().flat_map(move |(domain, places)| places.iter().filter_map(xorb).map(move |xorb| (domain, xorb)))
}

/// The inverse of [`owners_of`]: for each owner the indexes of its xorbs in the list.
fn places_of(owners: impl IntoIterator<Item = (XorbHash, String)>, xorbs: &[XorbHash]) -> BTreeMap<String, Vec<u32>> {
    let places: HashMap<XorbHash, u32> = xorbs.iter().copied().zip(0..).collect();
    let mut found: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for (xorb, domain) in owners {
        found.entry(domain).or_default().extend(places.get(&xorb));
    }
    found.into_iter().map(|(domain, places)| (domain, places.into_iter().collect())).collect()
}
