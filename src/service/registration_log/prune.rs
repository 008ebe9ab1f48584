//! Removes obsolete records: a rebuild has the same result without them, also after a crash during
//! the removal.
//!
//! A registration is obsolete when none of its files is in the index, and no xorb that it names has
//! a blob. A rebuild could not register anything from it. It is also obsolete when none of its
//! files is in the index and later records remove all files from all of its repositories. In the
//! second case blobs do not matter. If they did, records could stay for ever although no repository
//! is charged for them. In the first case the index alone does not decide, because the records from
//! which a lost index can be rebuilt must stay. A removal is obsolete when no older registration
//! has its file. A change of a Hub repository is obsolete when a later record says that nothing is
//! left of the repository. Such changes are removed last, the latest first, because a rebuild needs
//! those before a change. That record is obsolete when there is no older change.
//!
//! A record that the index has not applied is never obsolete. The last applied one stays, too,
//! since the index is compared with it.
//!
//! Mostly the deletion of blobs makes records of removed files obsolete. So pruning is run after a
//! collection that deleted some.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::record::{HubRecord, Record, parse};
use crate::blob::BlobErrorKind;
use crate::blob::records::Seq;
use crate::format::FileHash;
use crate::format::shard::{Shard, parse_stored as parse_shard};
use crate::index::{Reader, StoreMark};
use crate::runtime::clock::Timestamp;
use crate::service::Store;
use crate::service::error::StoreError;
use crate::service::register::distinct;

/// Younger records stay, because their change may be under way, perhaps in another process.
const MIN_AGE: Duration = Duration::from_secs(24 * 3600);

/// The removed records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Records of registrations, and of new terms.
    pub registration_count: u64,
    /// Records of removals.
    pub removal_count: u64,
    /// Records of changes of deleted Hub repositories.
    pub hub_count: u64,
}

/// Progress through all records. It may be dropped at any time.
#[derive(Debug, Default)]
pub struct Pruning {
    pruned: Pruned,
    after: Option<Seq>,
    /// Whether the second pass has begun. The first pass collects the removals, and the second
    /// removes records.
    is_second_pass: bool,
    /// The last applied record, and the records that could not be applied, when pruning began.
    mark: Option<StoreMark>,
    /// Files with a record of their removal.
    removed: HashMap<FileHash, Removed>,
    /// The last end of each deleted Hub repository, by its storage name.
    ended: HashMap<String, Seq>,
    /// Obsolete records of deleted Hub repositories, ascending.
    obsolete: Vec<Seq>,
    /// Deleted Hub repositories with older records.
    has_older: HashSet<String>,
    /// Whether an unreadable record was found. It may be a registration of any file, so no removal
    /// is obsolete then.
    found_damage: bool,
}

impl Pruning {
    /// Whether the index has applied this record and does not need it for the comparison at a
    /// start.
    fn may_remove(&self, seq: Seq) -> bool {
        let Some(StoreMark { last_record: Some(last), left, .. }) = &self.mark else { return false };
        seq.number() < *last && !left.contains(&seq.number())
    }
}

/// The records of removals of a file.
#[derive(Debug, Default)]
struct Removed {
    /// Whether an older registration of the file stays.
    is_registered: bool,
    /// The last removal from each repository; `None` stands for a removal from all.
    last: HashMap<Option<String>, Seq>,
}

impl Removed {
    /// Whether a later record removes the file from this repository.
    fn is_removed(&self, seq: Seq, repo: &str) -> bool {
        [None, Some(repo.to_owned())].iter().any(|key| self.last.get(key).is_some_and(|last| *last > seq))
    }
}

impl Store {
    /// Checks up to `count` records, and removes obsolete ones. To be called again until it returns
    /// the totals.
    ///
    /// # Errors
    ///
    /// The store failed. The call can be repeated, or pruning begun anew.
    pub async fn prune_records(&self, pruning: &mut Pruning, count: usize) -> Result<Option<Pruned>, StoreError> {
        if pruning.mark.is_none() {
            pruning.mark = Some(self.index.store_mark().await?);
        }
        let mut left = count.max(1);
        while left > 0 {
            let page = self.records.list(pruning.after).await?;
            if page.is_empty() && pruning.is_second_pass {
                let Some(seq) = pruning.obsolete.pop() else { return Ok(Some(pruning.pruned)) };
                pruning.pruned.hub_count += u64::from(self.records.remove(seq).await?);
                left -= 1;
                continue;
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

    /// Checks one record in the current pass.
    async fn prune_record(&self, pruning: &mut Pruning, seq: Seq) -> Result<(), StoreError> {
        let record = match self.records.read(seq).await {
            Ok(None) => return Ok(()),
            Ok(Some(bytes)) => self.pool.run(move || parse(&bytes)).await.ok(),
            Err(error) if error.kind == BlobErrorKind::Corrupt => None,
            Err(error) => return Err(error.into()),
        };
        let (at, repos, shard) = match record {
            Some(Record::Register(registered)) => (registered.at, registered.repos, registered.shard),
            Some(Record::Terms { at, shard, .. }) => (at, Vec::new(), shard),
            Some(Record::Remove { at, file, repo }) => return self.prune_removal(pruning, seq, at, (file, repo)).await,
            Some(Record::Hub(change)) => {
                self.prune_hub(pruning, seq, change);
                return Ok(());
            }
            None => {
                pruning.found_damage = true;
                return Ok(());
            }
        };
        if !pruning.is_second_pass {
            return Ok(());
        }
        let Ok(shard) = self.pool.run(move || parse_shard(&shard)).await else {
            pruning.found_damage = true;
            return Ok(());
        };
        let is_removed = !repos.is_empty()
            && !shard.files.is_empty()
            && shard.files.iter().all(|file| {
                let removed = pruning.removed.get(&file.hash);
                removed.is_some_and(|removed| repos.iter().all(|repo| removed.is_removed(seq, repo)))
            });
        if pruning.may_remove(seq) && self.is_old(at) && !self.is_replayable(&shard, is_removed).await? {
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

    /// Checks the record of one removal in the current pass.
    async fn prune_removal(
        &self,
        pruning: &mut Pruning,
        seq: Seq,
        at: Timestamp,
        (file, repo): (FileHash, Option<String>),
    ) -> Result<(), StoreError> {
        if !pruning.is_second_pass {
            // Pages are in ascending order, so the last removal stays in the map.
            pruning.removed.entry(file).or_default().last.insert(repo, seq);
        } else if pruning.may_remove(seq)
            && pruning.removed.get(&file).is_some_and(|removed| !removed.is_registered)
            && !pruning.found_damage
            && self.is_old(at)
        {
            pruning.pruned.removal_count += u64::from(self.records.remove(seq).await?);
        }
        Ok(())
    }

    /// Checks the record of a change of a Hub repository in the current pass.
    fn prune_hub(&self, pruning: &mut Pruning, seq: Seq, change: HubRecord) {
        if !pruning.is_second_pass {
            if change.is_end && self.is_old(change.at) && pruning.may_remove(seq) {
                pruning.ended.insert(change.storage_name, seq);
            }
            return;
        }
        let Some(end) = pruning.ended.get(&change.storage_name).copied() else { return };
        if seq < end {
            pruning.obsolete.push(seq);
            pruning.has_older.insert(change.storage_name);
        } else if seq == end && !pruning.has_older.contains(&change.storage_name) && !pruning.found_damage {
            pruning.obsolete.push(seq);
        }
    }

    fn is_old(&self, at: Timestamp) -> bool {
        let age = self.clock.now().as_millis().saturating_sub(at.as_millis());
        u128::from(age) >= MIN_AGE.as_millis()
    }

    /// Whether a rebuild could register a file of this shard, now or when a missing xorb exists
    /// again. If `is_removed`, later records remove all files, and blobs do not matter.
    async fn is_replayable(&self, shard: &Shard, is_removed: bool) -> Result<bool, StoreError> {
        for file in &shard.files {
            if self.index.find_file(file.hash, Reader::All, None).await?.is_some() {
                return Ok(true);
            }
        }
        if is_removed {
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
