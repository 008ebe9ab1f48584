//! What was registered and removed, kept beside the index, so that the index can be made again from blobs and these
//! records alone.
//!
//! Every registration that told something new is a record, with its files that were new to their repository, which is
//! charged for them; every removal is one, too. They are in [`RecordStore`], and nobody reads them but [`rebuild`] and the
//! pruning of those that say nothing any more. What a shard lists of xorbs is not in its record: blobs say as much, and
//! deduplication by xorbs that no file needs is not worth a record that nobody is charged for.
//!
//! Order of effects: record durable → transaction of the index → answer. So whatever was acknowledged has its record. What
//! a crash between the two leaves is the record of something that was not acknowledged, and a rebuilt index may have it:
//! absent or whole, as for uploads. The same goes for a transaction that failed without telling whether it was done. A
//! registration that turned out to be known, or was refused, leaves no record; should removing it fail, that is logged,
//! and a rebuild tries that registration again and finds what the first one found, or that nothing is against it any more.
//!
//! Records of one file are in the order in which the index saw them: whoever writes one holds the file's lock until
//! the transaction is over, or the last one of a registration in steps.
//!
//! What is not kept: uploads of xorbs that no registration has named since (nobody could reach them), when a xorb was
//! uploaded, spent grants, leases, and whether a claimed sha256 was verified. Blobs and the hashes in records say what is
//! damaged; a record that says "removed" and is itself damaged cannot be honoured, which is reported.

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
use crate::index::Registration;
use crate::runtime::telemetry::chain;

/// A record that was written before what it tells of has been done. To be held until that is done, or not.
#[derive(Debug)]
#[must_use = "the lock excludes other changes to these files"]
pub struct Noted {
    records: Arc<dyn RecordStore>,
    seq: Seq,
    _lock: FileLock,
}

impl Noted {
    /// The number of the record, for the transaction that takes it.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.seq.number()
    }

    /// It was done, or nobody knows.
    pub fn keep(self) {}

    /// It was not done, or it changed nothing.
    pub async fn withdraw(self) {
        if let Err(error) = self.records.remove(self.seq).await {
            // Harmless: see the module.
            tracing::warn!(record = %self.seq, error = %chain(&error), "cannot roll back the record of a failed \
                operation");
        }
    }
}

impl Cas {
    /// Writes down that all of this is about to be registered. The index says afterwards whether it was.
    pub(super) async fn note_registration(
        &self,
        registration: &Registration,
        domain: String,
        shard: Bytes,
    ) -> Result<Noted, StoreError> {
        let lock = self.file_locks.lock(registration.files.iter().map(|file| file.hash)).await;
        let (named, shard) = self.what_is_new(registration, shard).await?;
        let owned = self.index.owned_xorbs(named.clone(), domain.clone()).await?;
        let owned: HashSet<XorbHash> = owned.into_iter().collect();
        let places = named.iter().zip(0..).filter(|(xorb, _)| owned.contains(xorb));
        let places: Vec<u32> = places.map(|(_, place)| place).collect();
        let owners = if places.is_empty() { BTreeMap::new() } else { BTreeMap::from([(domain, places)]) };
        let (at, repos) = (registration.now, vec![registration.repo.clone()]);
        self.note(lock, Record::Register(Registered { at, repos, owners, origin: None, shard })).await
    }

    /// The shard of a registration without the files that tell its repository nothing new, and the xorbs of what is left.
    /// While the locks of its files are held.
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

    /// Writes down that a repository is about to give up a file, or that all of them are. To be called before the
    /// transaction of the index that does it; when that has removed nothing, the record is to be withdrawn.
    ///
    /// # Errors
    ///
    /// The record could not be written: the removal must not be done, since a rebuilt index would not know of it.
    pub async fn note_removal(&self, file: FileHash, repo: Option<String>) -> Result<Noted, StoreError> {
        let lock = self.file_locks.lock([file]).await;
        self.note(lock, Record::Remove { at: self.clock.now(), file, repo }).await
    }

    /// Writes down that files which are known are about to be made of other xorbs, that is, have the terms of this shard,
    /// with their verification hashes. `new` are those of their xorbs whose owners no registration has written down. To be
    /// called before the transaction of the index that switches them, and when the xorbs are there.
    ///
    /// # Errors
    ///
    /// The record could not be written: the terms must not be switched, since the old xorbs may be deleted then, and a
    /// rebuilt index would look for them.
    pub async fn note_terms(&self, shard: &Shard, new: Vec<XorbHash>) -> Result<Noted, StoreError> {
        let lock = self.file_locks.lock(shard.files.iter().map(|file| file.hash)).await;
        let named = distinct(shard.files.iter().flat_map(|file| &file.terms).map(|term| term.xorb), &[]);
        let owners = places_of(self.index.owners_of(new).await?, &named);
        let shard = write_upload(shard).expect("terms that the index has are those of a shard").into();
        self.note(lock, Record::Terms { at: self.clock.now(), owners, shard }).await
    }

    async fn note(&self, lock: FileLock, record: Record) -> Result<Noted, StoreError> {
        let record = self.verify_pool.run(move || record.encode()).await;
        let seq = self.records.append(record).await?;
        Ok(Noted { records: Arc::clone(&self.records), seq, _lock: lock })
    }
}

/// The owners of a record with their xorbs; what has no place in the list is left out.
fn owners_of<'a>(
    owners: &'a BTreeMap<String, Vec<u32>>,
    xorbs: &'a [XorbHash],
) -> impl Iterator<Item = (&'a String, XorbHash)> {
    let xorb = |place: &u32| xorbs.get(usize::try_from(*place).ok()?).copied();
    owners.iter().flat_map(move |(domain, places)| places.iter().filter_map(xorb).map(move |xorb| (domain, xorb)))
}

/// The other way round: for each owner the places of its xorbs in the list.
fn places_of(owners: impl IntoIterator<Item = (XorbHash, String)>, xorbs: &[XorbHash]) -> BTreeMap<String, Vec<u32>> {
    let places: HashMap<XorbHash, u32> = xorbs.iter().copied().zip(0..).collect();
    let mut found: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for (xorb, domain) in owners {
        found.entry(domain).or_default().extend(places.get(&xorb));
    }
    found.into_iter().map(|(domain, places)| (domain, places.into_iter().collect())).collect()
}
