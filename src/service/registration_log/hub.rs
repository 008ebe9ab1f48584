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

use super::appended::{AppendedRecord, remove_parts};
use super::record::{HubRecord, Record};
use crate::blob::records::Seq;
use crate::git::ObjectId;
use crate::index::{HubBlob, HubCommit, HubRepo, HubTree, IndexError, RepoKind};
use crate::runtime::telemetry::chain;
use crate::service::Store;
use crate::service::archive::{encode_blob, encode_commit, encode_repo, encode_tree};
use crate::service::error::StoreError;
use crate::service::hub::{Copying, HubPart, state_of};

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
    /// Whether it was deleted.
    pub(in crate::service) is_deletion: bool,
    /// Whether nothing is left of it, since it was deleted.
    pub(in crate::service) is_end: bool,
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
            is_deletion: false,
            is_end: false,
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
    fn of(repo: &HubRepo, former_names: &[String]) -> Self {
        let repo = encode_repo(repo, former_names);
        Self { last: repo.clone(), repo, full: Vec::new() }
    }

    /// Adds an encoded part.
    fn push(&mut self, part: &[u8]) {
        if self.last.len() > MAX_PARTS_LEN {
            self.full.push(std::mem::replace(&mut self.last, self.repo.clone()));
        }
        self.last.extend_from_slice(part);
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
            let mut groups = Groups::of(&change.repo, &[]);
            change.commits.iter().for_each(|commit| groups.push(&encode_commit(commit)));
            change.trees.iter().for_each(|tree| groups.push(&encode_tree(tree)));
            change.blobs.iter().for_each(|blob| groups.push(&encode_blob(blob)));
            (groups, change)
        };
        let (Groups { full, last, .. }, change) = self.pool.run(encode).await;
        let record = self.partial(&change.repo);
        let mut earlier = Vec::new();
        self.append_all(full, &record, &mut earlier).await?;
        let last = HubRecord {
            is_partial: false,
            earlier: earlier.iter().map(|seq| seq.number()).collect(),
            refs: change.refs.clone(),
            is_creation: change.is_creation,
            is_deletion: change.is_deletion,
            is_end: change.is_end,
            parts: last.into(),
            ..record
        };
        // After an error it may be stored all the same, so the partial ones stay.
        let seq = self.append_parts(last).await?;
        if !self.index.is_shared() {
            // With several servers a part is closed when its server has ended.
            for part in &earlier {
                self.index.close_record(part.number()).await?;
            }
        }
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
                    remove_parts(self.records.as_ref(), earlier).await;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// A record of this repository to which the parts are to be added.
    fn partial(&self, repo: &HubRepo) -> HubRecord {
        HubRecord {
            at: self.clock.now(),
            storage_name: repo.storage_name.clone(),
            is_partial: true,
            earlier: Vec::new(),
            refs: BTreeMap::new(),
            is_creation: false,
            is_deletion: false,
            is_end: false,
            is_state: false,
            parts: Bytes::new(),
        }
    }

    /// Ends a change of a branch or tag, which names this commit if the change was made.
    ///
    /// # Errors
    ///
    /// The error of the change.
    pub(in crate::service) async fn settle_ref(
        &self,
        appended: AppendedRecord,
        was_made: Result<bool, IndexError>,
        repo: HubRepo,
        (name, target): (String, Option<ObjectId>),
    ) -> Result<bool, IndexError> {
        let look = async {
            let now = self.index.find_hub_ref(repo.id, name.clone()).await?;
            if now == target {
                return Ok(None);
            }
            // As it is, since `repo` may be the repository after the change.
            let found = self.index.find_stored_hub_repo(repo.storage_name).await?;
            let refs = BTreeMap::from([(name, now)]);
            Ok(found.map(|found| HubChange { refs, ..HubChange::of(found) }))
        };
        self.settle_hub(appended, was_made, look).await
    }

    /// Ends a change: removes its record if it was refused. After an error, `look` finds out
    /// whether it was made: it returns `None`, or else what the log must say. That is appended, so
    /// that no start and no rebuild applies the failed change after a later one that changes
    /// nothing and has no record. The record of the failed change may stay, if the index cannot
    /// tell whether it was made. If the look or the append fails, the log may have only that one.
    ///
    /// # Errors
    ///
    /// The error of the change.
    pub(in crate::service) async fn settle_hub(
        &self,
        appended: AppendedRecord,
        was_made: Result<bool, IndexError>,
        look: impl Future<Output = Result<Option<HubChange>, IndexError>>,
    ) -> Result<bool, IndexError> {
        let error = match was_made {
            Ok(true) => {
                appended.retain();
                return Ok(true);
            }
            Ok(false) => {
                appended.roll_back().await;
                return Ok(false);
            }
            Err(error) => error,
        };
        if !appended.retain_unknown().await {
            // The lock lasts until the outcome is known, so no later change precedes it.
            return Err(error);
        }
        let undone = match look.await {
            Ok(None) => return Ok(true),
            Ok(Some(present)) => match self.append_hub(present).await {
                Ok((undoing, _)) => undoing.retain_applied().await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error.into()),
        };
        if let Err(error) = undone {
            tracing::warn!(error = %chain(&error), "cannot record that a change of a repository failed; the next start \
                may apply it");
        }
        Err(error)
    }

    async fn append_parts(&self, record: HubRecord) -> Result<Seq, StoreError> {
        let bytes = self.pool.run(move || Record::Hub(record).encode()).await;
        Ok(self.records.append(bytes).await?)
    }

    /// Ensures that the state of every Hub repository is in the log. No other process may use the
    /// store meanwhile.
    ///
    /// # Errors
    ///
    /// The store failed; the next call writes the missing records.
    pub(super) async fn complete_hub_records(&self) -> Result<(), StoreError> {
        while let Some(repo) = self.index.find_unrecorded_hub_repo().await? {
            self.record_hub_state(repo).await?;
        }
        Ok(())
    }

    /// Appends the state of every Hub repository to a log that is incomplete. The rows do not tell
    /// which ones it has: the log with their records may have been lost.
    pub(super) async fn record_all_hub_states(&self) -> Result<(), StoreError> {
        for kind in RepoKind::ALL {
            let mut before = i64::MAX;
            while let Some(repo) = self.index.list_hub_repos(kind, None, before, 1).await?.pop() {
                before = repo.id;
                self.record_hub_state(repo).await?;
            }
        }
        Ok(())
    }

    /// Appends the state of a repository.
    async fn record_hub_state(&self, repo: HubRepo) -> Result<(), StoreError> {
        let id = repo.id;
        let state = state_of(self.index.as_ref(), repo).await?;
        let (mut groups, mut earlier) = (Groups::of(&state.repo, &state.former_names), Vec::new());
        let (mut record, refs) = (self.partial(&state.repo), state.refs.clone());
        let mut copying = Copying::begin(self.index.as_ref(), state);
        loop {
            let parts = copying.next().await?;
            if parts.is_empty() {
                break;
            }
            for part in parts {
                match part {
                    // A replay would refuse the whole record.
                    part if !part.has_its_id() => {
                        tracing::error!(
                            repo = record.storage_name,
                            "index inconsistent; a commit or directory \
                            is not what its id names, and is not recorded"
                        );
                    }
                    HubPart::Repo(..) | HubPart::Refs(_) => {}
                    HubPart::Commit(commit) => groups.push(&encode_commit(&commit)),
                    HubPart::Tree(tree) => groups.push(&encode_tree(&tree)),
                    HubPart::Blob(blob) => groups.push(&encode_blob(&blob)),
                }
            }
            self.append_all(std::mem::take(&mut groups.full), &record, &mut earlier).await?;
        }
        (record.is_partial, record.is_state) = (false, true);
        record.earlier = earlier.iter().map(|seq| seq.number()).collect();
        record.refs = refs.into_iter().map(|named| (named.name, Some(named.target))).collect();
        record.parts = groups.last.into();
        let last = self.append_parts(record).await?;
        // The index has applied the record, since it was made from it. This also closes the record,
        // which a first start after a crash would remove otherwise.
        let seqs = earlier.iter().chain([&last]).map(|seq| seq.number()).collect();
        self.index.take_records(seqs).await?;
        Ok(self.index.set_hub_repo_recorded(id).await?)
    }
}
