//! The registration log: a durable record of every registration and removal beside the index. The
//! index can be rebuilt from blobs and these records alone.
//!
//! A registration with new content is a record, with the files that are new to their repository,
//! which is charged for them. Every removal is one, too. They are in [`RecordStore`], and only
//! [`rebuild`] and the pruning of obsolete ones read them. The xorb list of a shard is not in its
//! record: blobs have the same data. Dedup by xorbs that no file needs is not worth a record that
//! no repository is charged for.
//!
//! Order of effects: record durable → transaction of the index → response. So everything
//! acknowledged has its record. A crash between the first two leaves a record that was not
//! acknowledged. A rebuilt index may have it: absent or whole, as for uploads. The same holds for a
//! failed transaction with an unknown outcome. A registration that turned out to be known, or was
//! refused, leaves no record. If its removal fails, that is logged and marked in the index before
//! the response, so that no start applies the record. Only a rebuild tries the registration again,
//! without quotas. It is refused again, or succeeds because no other reason to refuse it is left.
//!
//! Records of one file are in the order in which the index applied them. The writer of a record
//! holds the file's lock until the transaction is over, or the last one of a registration in steps.
//!
//! Not recorded are: uploads of xorbs without a registration (they are unreachable), upload times,
//! spent grants, leases, and the verification of sha256 claims. Blobs, and the hashes in records,
//! reveal their own damage. A damaged record of a removal cannot be applied, which is reported.

mod agree;
mod backfill;
mod half_deleted;
mod prune;
mod rebuild;
mod record;
mod replay;
mod tail;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;

pub use self::agree::{Agreed, Gap, has_anything};
pub use self::prune::{Pruned, Pruning};
pub use self::rebuild::{RebuildError, Rebuilt};
use self::record::{Record, Registered};
pub use self::tail::Tail;
use super::Cas;
use super::error::StoreError;
use super::file_locks::FileLock;
use super::register::distinct;
use crate::blob::records::{RecordStore, Seq};
use crate::format::shard::{Shard, parse_stored, write_upload};
use crate::format::{FileHash, XorbHash};
use crate::index::{Index, Registration};
use crate::runtime::telemetry::chain;

/// A record that was appended before its change is made. To be held until the change is made, or
/// not.
#[derive(Debug)]
#[must_use = "the lock excludes other changes to these files"]
pub struct AppendedRecord {
    records: Arc<dyn RecordStore>,
    index: Arc<dyn Index>,
    seq: Seq,
    _lock: FileLock,
}

impl AppendedRecord {
    /// The number of the record, for the transaction that applies it.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.seq.number()
    }

    /// The change was made, or its outcome is unknown.
    pub fn retain(self) {}

    /// The change was not made, or changed nothing. If the record cannot be removed, the index is
    /// told that it was considered. Else the next start would apply a refused registration.
    pub async fn roll_back(self) {
        let Err(error) = self.records.remove(self.seq).await else { return };
        tracing::warn!(record = %self.seq, error = %chain(&error), "cannot roll back the record of a failed operation");
        if let Err(error) = self.pass_over().await {
            tracing::warn!(record = %self.seq, error = %chain(&error), "cannot mark the record of a failed operation \
                as considered; the next start may apply it");
        }
    }

    /// Marks the record as considered, in the index. Only if it still exists, since a start expects
    /// the last one that the index has considered.
    async fn pass_over(&self) -> Result<(), StoreError> {
        if self.records.read(self.seq).await?.is_some()
            && let Some(id) = self.index.store_mark().await?.id
        {
            self.index.set_store(id, Some(self.seq.number())).await?;
        }
        Ok(())
    }
}

impl Cas {
    /// Appends the record of a registration. Whether it is made is then up to the index.
    pub(super) async fn append_registration(
        &self,
        registration: &Registration,
        domain: String,
        shard: Bytes,
    ) -> Result<AppendedRecord, StoreError> {
        let lock = self.file_locks.lock(registration.files.iter().map(|file| file.hash)).await;
        let (named, shard) = self.what_is_new(registration, shard).await?;
        let owned = self.index.owned_xorbs(named.clone(), domain.clone()).await?;
        let owned: HashSet<XorbHash> = owned.into_iter().collect();
        let places = named.iter().zip(0..).filter(|(xorb, _)| owned.contains(xorb));
        let places: Vec<u32> = places.map(|(_, place)| place).collect();
        let owners = if places.is_empty() { BTreeMap::new() } else { BTreeMap::from([(domain, places)]) };
        let (at, repos) = (registration.now, vec![registration.repo.clone()]);
        self.append(lock, Record::Register(Registered { at, repos, owners, origin: None, shard })).await
    }

    /// The shard of a registration without the files that its repository has already, and the xorbs
    /// of the remaining files. To be called while the locks of its files are held.
    async fn what_is_new(
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
        Ok((named, self.verify_pool.run(write).await))
    }

    /// Appends the record of a removal of a file from one repository, or from all. To be called
    /// before the transaction of the index; when that has removed nothing, the record must be
    /// rolled back.
    ///
    /// # Errors
    ///
    /// The record could not be written. The removal must not be done then, since a rebuilt index
    /// would not have it.
    pub async fn append_removal(&self, file: FileHash, repo: Option<String>) -> Result<AppendedRecord, StoreError> {
        let lock = self.file_locks.lock([file]).await;
        self.append(lock, Record::Remove { at: self.clock.now(), file, repo }).await
    }

    /// Appends the record of new terms for registered files: those of this shard, with their
    /// verification hashes. `new` are those of their xorbs whose owners no record has. To be called
    /// before the transaction of the index that switches them, and when the xorbs are stored.
    ///
    /// # Errors
    ///
    /// The record could not be written. The terms must not be switched then: the old xorbs may be
    /// deleted afterwards, and a rebuilt index would need them.
    pub async fn append_terms(&self, shard: &Shard, new: Vec<XorbHash>) -> Result<AppendedRecord, StoreError> {
        let lock = self.file_locks.lock(shard.files.iter().map(|file| file.hash)).await;
        let named = distinct(shard.files.iter().flat_map(|file| &file.terms).map(|term| term.xorb), &[]);
        let owners = places_of(self.index.owners_of(new).await?, &named);
        let shard = write_upload(shard).expect("terms that the index has are those of a shard").into();
        self.append(lock, Record::Terms { at: self.clock.now(), owners, shard }).await
    }

    async fn append(&self, lock: FileLock, record: Record) -> Result<AppendedRecord, StoreError> {
        let record = self.verify_pool.run(move || record.encode()).await;
        let seq = self.records.append(record).await?;
        let (records, index) = (Arc::clone(&self.records), Arc::clone(&self.index));
        Ok(AppendedRecord { records, index, seq, _lock: lock })
    }
}

/// The owners of a record with their xorbs; places outside the list are left out.
fn owners_of<'a>(
    owners: &'a BTreeMap<String, Vec<u32>>,
    xorbs: &'a [XorbHash],
) -> impl Iterator<Item = (&'a String, XorbHash)> {
    let xorb = |place: &u32| xorbs.get(usize::try_from(*place).ok()?).copied();
    owners.iter().flat_map(move |(domain, places)| places.iter().filter_map(xorb).map(move |xorb| (domain, xorb)))
}

/// The inverse: for each owner the places of its xorbs in the list.
fn places_of(owners: impl IntoIterator<Item = (XorbHash, String)>, xorbs: &[XorbHash]) -> BTreeMap<String, Vec<u32>> {
    let places: HashMap<XorbHash, u32> = xorbs.iter().copied().zip(0..).collect();
    let mut found: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for (xorb, domain) in owners {
        found.entry(domain).or_default().extend(places.get(&xorb));
    }
    found.into_iter().map(|(domain, places)| (domain, places.into_iter().collect())).collect()
}
