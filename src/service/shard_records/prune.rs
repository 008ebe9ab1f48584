//! Removing records that say nothing any more.
//!
//! A registration says nothing any more when none of its files is in the index and there is no blob of any xorb that it
//! names: whatever a rebuild made of it, it would make nothing. Blobs decide, and not the index alone: an index that was
//! lost, or put back from somewhere, must not cost the records which it could be made of again. A removal says nothing any
//! more when no registration that is older has its file. So a rebuild gives the same before and after, and after a crash
//! in between.
//!
//! A record that the index has not taken says something in any case, and the last one that it has taken stays, since the
//! index is compared with it.
//!
//! Only the deletion of blobs makes a record of files that were given up one to be removed, so this is worth its reads
//! after a collection that deleted some.

use std::collections::HashMap;
use std::time::Duration;

use super::record::{Record, parse};
use crate::blob::records::Seq;
use crate::blob::{BlobErrorKind, BlobKey};
use crate::format::FileHash;
use crate::format::shard::{Shard, parse as parse_shard};
use crate::index::{Reader, StoreMark};
use crate::runtime::clock::Timestamp;
use crate::service::Cas;
use crate::service::error::StoreError;
use crate::service::register::distinct;

/// Records that are younger stay: what they tell of may be under way, also in another process.
const MIN_AGE: Duration = Duration::from_secs(24 * 3600);

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Records of registrations, and of new terms.
    pub registration_count: u64,
    /// Records of removals.
    pub removal_count: u64,
}

/// How far one has come with all records. To be dropped at any moment; nothing is lost by that.
#[derive(Debug, Default)]
pub struct Pruning {
    pruned: Pruned,
    after: Option<Seq>,
    /// Whether all removals are known.
    is_second_pass: bool,
    /// What the index had taken when this began.
    mark: Option<StoreMark>,
    /// Files that were removed, and whether a registration of it was met that stays.
    removed: HashMap<FileHash, bool>,
    /// A record was met that cannot be read: whatever it registers, it may be readable one day.
    has_met_damage: bool,
}

impl Pruning {
    /// Whether the index has taken this record, and does not need it to be compared with.
    fn may_remove(&self, seq: Seq) -> bool {
        let Some(StoreMark { last_record: Some(last), left, .. }) = &self.mark else { return false };
        seq.number() < *last && !left.contains(&seq.number())
    }
}

impl Cas {
    /// Looks at so many records, and removes those that say nothing any more. To be called again until it returns what
    /// was removed in all.
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
        let (at, shard) = match record {
            Some(Record::Register(registered)) => (registered.at, registered.shard),
            Some(Record::Terms { at, shard, .. }) => (at, shard),
            Some(Record::Remove { at, file, .. }) => return self.prune_removal(pruning, seq, at, file).await,
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
        if pruning.may_remove(seq) && self.is_old(at) && !self.says_something(&shard).await? {
            pruning.pruned.registration_count += u64::from(self.records.remove(seq).await?);
            return Ok(());
        }
        for file in shard.files {
            if let Some(stays) = pruning.removed.get_mut(&file.hash) {
                *stays = true;
            }
        }
        Ok(())
    }

    async fn prune_removal(
        &self,
        pruning: &mut Pruning,
        seq: Seq,
        at: Timestamp,
        file: FileHash,
    ) -> Result<(), StoreError> {
        if !pruning.is_second_pass {
            pruning.removed.insert(file, false);
        } else if pruning.may_remove(seq)
            && pruning.removed.get(&file) == Some(&false)
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

    /// Whether a rebuild could make anything of what this shard registers, now or when a missing xorb is back.
    async fn says_something(&self, shard: &Shard) -> Result<bool, StoreError> {
        for file in &shard.files {
            if self.index.find_file(file.hash, Reader::All, None).await?.is_some() {
                return Ok(true);
            }
        }
        for xorb in distinct(shard.files.iter().flat_map(|file| &file.terms).map(|term| term.xorb), &shard.xorbs) {
            if self.blobs.head(BlobKey::xorb(xorb)).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
