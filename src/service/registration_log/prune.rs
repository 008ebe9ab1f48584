//! Removes records that are obsolete: a rebuild gives the same without them, also after a crash in
//! between.
//!
//! A registration is obsolete when none of its files is in the index, and no xorb that it names has
//! a blob. A rebuild could make nothing of it. Without a file in the index, it is also obsolete
//! when later removals have taken all files from all of its repositories. Blobs do not matter then:
//! a repository that is no longer charged for its records must not leave them for good. Otherwise
//! blobs decide, and not the index alone: a lost or restored index must not cost the records that
//! it could be rebuilt from. A removal is obsolete when no older registration has its file.
//!
//! A record that the index has not applied is never obsolete. The last applied one stays, too,
//! since the index is compared with it.
//!
//! Only the deletion of blobs makes records of removed files obsolete. So pruning is worth its
//! reads after a collection that deleted some.

use std::collections::HashMap;
use std::time::Duration;

use super::record::{Record, parse};
use crate::blob::BlobErrorKind;
use crate::blob::records::Seq;
use crate::format::FileHash;
use crate::format::shard::{Shard, parse_stored as parse_shard};
use crate::index::{Reader, StoreMark};
use crate::runtime::clock::Timestamp;
use crate::service::Cas;
use crate::service::error::StoreError;
use crate::service::register::distinct;

/// Younger records stay: their change may be under way, also in another process.
const MIN_AGE: Duration = Duration::from_secs(24 * 3600);

/// The removed records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Records of registrations, and of new terms.
    pub registration_count: u64,
    /// Records of removals.
    pub removal_count: u64,
}

/// Progress through all records. Dropping it at any moment loses nothing.
#[derive(Debug, Default)]
pub struct Pruning {
    pruned: Pruned,
    after: Option<Seq>,
    /// Whether all removals were read.
    is_second_pass: bool,
    /// The mark of the index when this began.
    mark: Option<StoreMark>,
    /// Files that were removed.
    removed: HashMap<FileHash, Removed>,
    /// A record was found that cannot be read: its registration may become readable one day.
    has_met_damage: bool,
}

impl Pruning {
    /// Whether the index has applied this record, and does not need it for the comparison.
    fn may_remove(&self, seq: Seq) -> bool {
        let Some(StoreMark { last_record: Some(last), left, .. }) = &self.mark else { return false };
        seq.number() < *last && !left.contains(&seq.number())
    }
}

/// The removals of a file.
#[derive(Debug, Default)]
struct Removed {
    /// Whether a registration of it was found that stays.
    is_registered: bool,
    /// The last removal from each repository; `None` is from all of them.
    last: HashMap<Option<String>, Seq>,
}

impl Removed {
    /// Whether a later removal has taken the file from this repository.
    fn is_taken_back(&self, seq: Seq, repo: &str) -> bool {
        [None, Some(repo.to_owned())].iter().any(|key| self.last.get(key).is_some_and(|last| *last > seq))
    }
}

impl Cas {
    /// Checks so many records, and removes obsolete ones. To be called again until it returns the
    /// totals.
    ///
    /// # Errors
    ///
    /// The store failed; it can be called again, or anew.
    pub async fn prune_records(&self, pruning: &mut Pruning, count: usize) -> Result<Option<Pruned>, StoreError> {
        if pruning.mark.is_none() {
            pruning.mark = Some(self.index.store_mark().await?);
        }
        let mut left = count.max(1);
        while left > 0 {
            let page = self.records.list(pruning.after).await?;
            if page.is_empty() && pruning.is_second_pass {
                return Ok(Some(pruning.pruned));
            }
            if page.is_empty() {
                (pruning.is_second_pass, pruning.after) = (true, None);
                continue;
            }
            for seq in page.into_iter().take(left) {
                self.prune_record(pruning, seq).await?;
                pruning.after = Some(seq);
                left -= 1;
            }
        }
        Ok(None)
    }

    async fn prune_record(&self, pruning: &mut Pruning, seq: Seq) -> Result<(), StoreError> {
        let record = match self.records.read(seq).await {
            Ok(None) => return Ok(()),
            Ok(Some(bytes)) => self.verify_pool.run(move || parse(&bytes)).await.ok(),
            Err(error) if error.kind == BlobErrorKind::Corrupt => None,
            Err(error) => return Err(error.into()),
        };
        let (at, repos, shard) = match record {
            Some(Record::Register(registered)) => (registered.at, registered.repos, registered.shard),
            Some(Record::Terms { at, shard, .. }) => (at, Vec::new(), shard),
            Some(Record::Remove { at, file, repo }) => return self.prune_removal(pruning, seq, at, (file, repo)).await,
            None => {
                pruning.has_met_damage = true;
                return Ok(());
            }
        };
        if !pruning.is_second_pass {
            return Ok(());
        }
        let Ok(shard) = self.verify_pool.run(move || parse_shard(&shard)).await else {
            pruning.has_met_damage = true;
            return Ok(());
        };
        let is_taken_back = !repos.is_empty()
            && !shard.files.is_empty()
            && shard.files.iter().all(|file| {
                let removed = pruning.removed.get(&file.hash);
                removed.is_some_and(|removed| repos.iter().all(|repo| removed.is_taken_back(seq, repo)))
            });
        if pruning.may_remove(seq) && self.is_old(at) && !self.says_something(&shard, is_taken_back).await? {
            pruning.pruned.registration_count += u64::from(self.records.remove(seq).await?);
            return Ok(());
        }
        for file in shard.files {
            if let Some(removed) = pruning.removed.get_mut(&file.hash) {
                removed.is_registered = true;
            }
        }
        Ok(())
    }

    async fn prune_removal(
        &self,
        pruning: &mut Pruning,
        seq: Seq,
        at: Timestamp,
        (file, repo): (FileHash, Option<String>),
    ) -> Result<(), StoreError> {
        if !pruning.is_second_pass {
            // Records are read from the oldest on.
            pruning.removed.entry(file).or_default().last.insert(repo, seq);
        } else if pruning.may_remove(seq)
            && pruning.removed.get(&file).is_some_and(|removed| !removed.is_registered)
            && !pruning.has_met_damage
            && self.is_old(at)
        {
            pruning.pruned.removal_count += u64::from(self.records.remove(seq).await?);
        }
        Ok(())
    }

    fn is_old(&self, at: Timestamp) -> bool {
        let age = self.clock.now().as_millis().saturating_sub(at.as_millis());
        u128::from(age) >= MIN_AGE.as_millis()
    }

    /// Whether a rebuild could make anything of this shard's registration, now or when a missing
    /// xorb is back. Blobs do not matter where later records have removed all files.
    async fn says_something(&self, shard: &Shard, is_taken_back: bool) -> Result<bool, StoreError> {
        for file in &shard.files {
            if self.index.find_file(file.hash, Reader::All, None).await?.is_some() {
                return Ok(true);
            }
        }
        if is_taken_back {
            return Ok(false);
        }
        for xorb in distinct(shard.files.iter().flat_map(|file| &file.terms).map(|term| term.xorb), &shard.xorbs) {
            if !self.blobs.list_of(xorb).await?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
