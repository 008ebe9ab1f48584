//! Records of Hub repositories.
//!
//! A change of a repository is one record: the repository, the new commits, directories and files,
//! and which branches and tags have changed. A change that is too long for one record is in
//! several, and takes effect with the last one. So a crash, or damage of one of them, leaves the
//! whole change or nothing of it.
//!
//! Repositories that an earlier version or a restore has made have no records. A start writes their
//! state as one change each ([`Store::complete_hub_records`]).

use std::collections::BTreeMap;

use bytes::Bytes;

use super::AppendedRecord;
use super::record::{HubRecord, Record};
use crate::blob::records::Seq;
use crate::git::ObjectId;
use crate::index::{HubBlob, HubCommit, HubRepo, HubTree};
use crate::runtime::telemetry::chain;
use crate::service::Store;
use crate::service::archive::encode_part;
use crate::service::error::StoreError;
use crate::service::hub::{Copying, HubPart, HubState, refs_of};

/// Maximum length of the parts in a record in bytes, except that one part may exceed it: half of
/// the maximum length of a record. The longest directory has 28 MiB. Tests have a smaller one, so
/// that their changes are in several records.
const MAX_PARTS_LEN: usize = if cfg!(test) { 4 << 10 } else { 64 << 20 };

/// A change of a Hub repository.
#[derive(Clone, Debug)]
pub(in crate::service) struct HubChange {
    /// The repository after the change.
    pub(in crate::service) repo: HubRepo,
    /// Its new commits. The parent of each exists or is one of them.
    pub(in crate::service) commits: Vec<HubCommit>,
    /// Its new directories.
    pub(in crate::service) trees: Vec<HubTree>,
    /// Its new files.
    pub(in crate::service) blobs: Vec<HubBlob>,
    /// The branches and tags that change, and the commit that each names then; `None` deletes one.
    pub(in crate::service) refs: BTreeMap<String, Option<ObjectId>>,
    /// Whether it is created.
    pub(in crate::service) is_creation: bool,
}

impl HubChange {
    /// A change of this repository that changes nothing yet.
    pub(in crate::service) const fn of(repo: HubRepo) -> Self {
        Self {
            repo,
            commits: Vec::new(),
            trees: Vec::new(),
            blobs: Vec::new(),
            refs: BTreeMap::new(),
            is_creation: false,
        }
    }
}

/// The parts of a change, in the groups that fit into a record.
#[derive(Debug)]
struct Groups {
    /// The repository, with which each group begins.
    repo: Vec<u8>,
    full: Vec<Vec<u8>>,
    last: Vec<u8>,
}

impl Groups {
    fn of(repo: &HubRepo) -> Self {
        let repo = encode_part(&HubPart::Repo(repo.clone()));
        Self { last: repo.clone(), repo, full: Vec::new() }
    }

    fn push(&mut self, part: &HubPart) {
        if self.last.len() > MAX_PARTS_LEN {
            self.full.push(std::mem::replace(&mut self.last, self.repo.clone()));
        }
        self.last.extend_from_slice(&encode_part(part));
    }
}

impl Store {
    /// Appends the record of a change of a Hub repository. To be called before the transaction of
    /// the index, with the lock of the repository's name. Returns also the change.
    ///
    /// # Errors
    ///
    /// The record could not be written. Then the change must not be made, since a rebuilt index
    /// would not have it.
    pub(in crate::service) async fn append_hub(
        &self,
        change: HubChange,
    ) -> Result<(AppendedRecord, HubChange), StoreError> {
        let encode = move || {
            let mut groups = Groups::of(&change.repo);
            for commit in &change.commits {
                groups.push(&HubPart::Commit(commit.clone()));
            }
            for tree in &change.trees {
                groups.push(&HubPart::Tree(tree.clone()));
            }
            for blob in &change.blobs {
                groups.push(&HubPart::Blob(blob.clone()));
            }
            (groups, change)
        };
        let (Groups { full, last, .. }, change) = self.pool.run(encode).await;
        let record = HubRecord {
            at: self.clock.now(),
            storage_name: change.repo.storage_name.clone(),
            is_partial: true,
            earlier: Vec::new(),
            refs: BTreeMap::new(),
            is_creation: false,
            is_state: false,
            parts: Bytes::new(),
        };
        let mut earlier = Vec::new();
        self.append_all(full, &record, &mut earlier).await?;
        let last = HubRecord {
            is_partial: false,
            earlier: earlier.iter().map(|seq| seq.number()).collect(),
            refs: change.refs.clone(),
            is_creation: change.is_creation,
            parts: last.into(),
            ..record
        };
        // After an error it may be stored all the same, so the partial ones stay.
        let seq = self.append_parts(last).await?;
        Ok((self.appended(seq, earlier, None), change))
    }

    /// Appends partial records with these parts. After an error, those of the change are removed,
    /// because they have no effect without the last one.
    async fn append_all(
        &self,
        groups: Vec<Vec<u8>>,
        record: &HubRecord,
        earlier: &mut Vec<Seq>,
    ) -> Result<(), StoreError> {
        for parts in groups {
            let appended = self.append_parts(HubRecord { parts: parts.into(), ..record.clone() }).await;
            match appended {
                Ok(seq) => earlier.push(seq),
                Err(error) => {
                    self.remove_parts(earlier).await;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    async fn remove_parts(&self, earlier: &[Seq]) {
        for seq in earlier {
            if let Err(error) = self.records.remove(*seq).await {
                tracing::warn!(record = %seq, error = %chain(&error), "cannot remove a part of a failed operation");
            }
        }
    }

    async fn append_parts(&self, record: HubRecord) -> Result<Seq, StoreError> {
        let bytes = self.pool.run(move || Record::Hub(record).encode()).await;
        Ok(self.records.append(bytes).await?)
    }

    /// Ensures that the state of every Hub repository is in the log. Returns how many repositories
    /// were written. No other process may use the store meanwhile.
    ///
    /// # Errors
    ///
    /// The store failed; the next call writes the missing records.
    pub(super) async fn complete_hub_records(&self) -> Result<u64, StoreError> {
        let mut count = 0;
        while let Some(repo) = self.index.find_unrecorded_hub_repo().await? {
            let (id, storage_name) = (repo.id, repo.storage_name.clone());
            let refs = refs_of(self.index.as_ref(), id).await?;
            let (mut groups, mut earlier) = (Groups::of(&repo), Vec::new());
            let mut record = HubRecord {
                at: self.clock.now(),
                storage_name,
                is_partial: true,
                earlier: Vec::new(),
                refs: BTreeMap::new(),
                is_creation: false,
                is_state: false,
                parts: Bytes::new(),
            };
            let mut copying = Copying::begin(self.index.as_ref(), HubState { repo, refs: refs.clone() });
            loop {
                let parts = copying.next().await?;
                if parts.is_empty() {
                    break;
                }
                for part in parts.iter().filter(|part| !matches!(part, HubPart::Repo(_) | HubPart::Refs(_))) {
                    groups.push(part);
                }
                self.append_all(std::mem::take(&mut groups.full), &record, &mut earlier).await?;
            }
            (record.is_partial, record.is_state) = (false, true);
            record.earlier = earlier.iter().map(|seq| seq.number()).collect();
            record.refs = refs.into_iter().map(|named| (named.name, Some(named.target))).collect();
            record.parts = groups.last.into();
            let last = self.append_parts(record).await?;
            self.index.set_hub_repo_recorded(id).await?;
            // The index has applied the record, since it was made from it.
            if let Some(store) = self.index.store_mark().await?.id {
                self.index.set_store(store, Some(last.number())).await?;
            }
            count += 1;
        }
        Ok(count)
    }
}
