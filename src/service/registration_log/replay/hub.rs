//! Replays changes of Hub repositories.
//!
//! A change is applied if everything that it is based on was: its other records, and the parents
//! and root directories of its commits. So a branch names only commits whose history and files are
//! there. The state of a repository may have parts of commits that no branch needs, which a sweep
//! was deleting: of a state only what the branches need must be there.
//!
//! Of two changes of a branch the later one counts, whatever the branch named before: when the
//! later record was written, the earlier change had been made or had failed.
//!
//! A deletion hides the repository. Its claims to files have records of their own, which may be
//! later or missing. If the record of its end is missing, the next start ends the deletion.

use std::collections::{HashMap, HashSet};

use thiserror::Error;

use super::{Problem, Replay};
use crate::blob::records::Seq;
use crate::git::ObjectId;
use crate::index::{HubRef, HubRepo};
use crate::runtime::clock::Timestamp;
use crate::service::archive::{ArchiveError, decode_parts};
use crate::service::error::StoreError;
use crate::service::hub::{HubPart, make_way};
use crate::service::registration_log::rebuilt::RebuildError;
use crate::service::registration_log::record::{HubRecord, Record};

/// Why a change of a Hub repository is left out.
#[derive(Debug, Error)]
enum Inapplicable {
    #[error("its parts are malformed")]
    Malformed(#[from] ArchiveError),
    #[error("it does not begin with repository {0}")]
    NoRepo(String),
    #[error("a commit or directory is not what its id names")]
    WrongId,
    #[error("record {0}, which belongs to it, is missing or damaged")]
    NoEarlier(Seq),
    #[error("commit or directory {0}, on which it is based, is missing or left out")]
    NoBase(ObjectId),
    #[error("a repository that another record calls {name} too is called {called} now")]
    NameTaken { name: String, called: String },
}

/// What a change adds, and on what it is based.
#[derive(Debug, Default)]
struct Outline {
    /// The parent and the root directory of each commit.
    commits: HashMap<ObjectId, (Option<ObjectId>, ObjectId)>,
    trees: HashSet<ObjectId>,
    /// What the branches name.
    targets: Vec<ObjectId>,
}

impl Outline {
    fn add(&mut self, parts: &[HubPart]) {
        for part in parts {
            match part {
                HubPart::Commit(commit) => {
                    self.commits.insert(commit.id, (commit.parent, commit.tree));
                }
                HubPart::Tree(tree) => _ = self.trees.insert(tree.id),
                HubPart::Repo(..) | HubPart::Blob(_) | HubPart::Refs(_) => {}
            }
        }
    }

    /// The commits and root directories that must be there besides those of the change: what all of
    /// its commits need, or of a state only those that the branches need.
    fn bases(&self, is_state: bool) -> (HashSet<ObjectId>, HashSet<ObjectId>) {
        let mut next = self.targets.clone();
        if !is_state {
            next.extend(self.commits.keys());
        }
        let (mut seen, mut commits, mut trees) = (HashSet::new(), HashSet::new(), HashSet::new());
        while let Some(id) = next.pop() {
            match self.commits.get(&id) {
                Some((parent, tree)) if seen.insert(id) => {
                    next.extend(parent);
                    trees.extend((!self.trees.contains(tree)).then_some(*tree));
                }
                Some(_) => {}
                None => _ = commits.insert(id),
            }
        }
        (commits, trees)
    }
}

impl Replay<'_> {
    /// Applies a change, or reports why it is left out. Does nothing with a partial record: the
    /// last record of the change reads it.
    pub(super) async fn change_hub(&mut self, seq: Seq, change: HubRecord) -> Result<(), RebuildError> {
        if change.is_partial {
            return Ok(());
        }
        if let Err(why) = self.apply_hub(seq, change).await? {
            self.rebuilt.left_out_hub_count += 1;
            self.left.insert(seq);
            self.watch.problem(&Problem::Record { seq, source: why.into() });
        }
        Ok(())
    }

    /// Reads the records of a change twice, so that one of them is in memory at a time: first to
    /// check them and what they are based on, then to apply them.
    async fn apply_hub(&mut self, seq: Seq, change: HubRecord) -> Result<Result<(), Inapplicable>, RebuildError> {
        let (repo, former_names, own) = match self.parts_of(&change).await {
            Ok(parts) => parts,
            Err(why) => return Ok(Err(why)),
        };
        let mut outline = Outline::default();
        outline.targets.extend(change.refs.values().copied().flatten());
        outline.add(&own);
        for seq in &change.earlier {
            match self.read_part(&change, Seq::new(*seq)).await? {
                Ok(parts) => outline.add(&parts),
                Err(why) => return Ok(Err(why)),
            }
        }
        if change.is_deletion || change.is_end {
            return Ok(Ok(self.replay_deletion(seq, repo, change.is_end).await?));
        }
        let known = match self.known_repo(seq, &repo, change.is_creation || change.is_state).await? {
            Ok(known) => known,
            Err(why) => return Ok(Err(why)),
        };
        if known.is_none() && change.is_creation {
            self.only_created.insert(repo.storage_name.clone());
        } else {
            self.only_created.remove(&repo.storage_name);
        }
        if known.is_none() && change.refs.values().all(Option::is_none) {
            return Ok(Err(Inapplicable::NoRepo(change.storage_name)));
        }
        if let Some(missing) = self.missing_base(known.as_ref(), outline.bases(change.is_state)).await? {
            return Ok(Err(Inapplicable::NoBase(missing)));
        }
        let index = self.store.index.as_ref();
        let id = index.restore_hub_repo(repo).await.map_err(StoreError::from)?;
        if change.is_state {
            index.set_former_names(id, former_names).await.map_err(StoreError::from)?;
        }
        self.add_parts(id, own, change.at).await?;
        for seq in &change.earlier {
            if let Ok(parts) = self.read_part(&change, Seq::new(*seq)).await? {
                self.add_parts(id, parts, change.at).await?;
            }
        }
        self.put_refs(id, change).await?;
        Ok(Ok(()))
    }

    /// A repository that is not there is deleted already, or was left out. It gets the name of the
    /// record: another one may take its last recorded name, and then it still has claims. At its
    /// end nothing is left of it, also if the record of its deletion was damaged.
    async fn replay_deletion(&mut self, seq: Seq, repo: HubRepo, is_end: bool) -> Result<(), StoreError> {
        let storage_name = repo.storage_name.clone();
        if is_end {
            let index = self.store.index.as_ref();
            let live = index.find_stored_hub_repo(storage_name.clone()).await?;
            for found in live.into_iter().chain(index.find_deleted_stored_hub_repo(storage_name).await?) {
                index.drop_hub_repo(found.id).await?;
            }
            return Ok(());
        }
        let is_live = matches!(self.known_repo(seq, &repo, false).await?, Ok(Some(_)));
        let index = self.store.index.as_ref();
        if is_live {
            let id = index.restore_hub_repo(repo).await?;
            index.delete_hub_repo(id).await?;
        }
        if let Some(deleted) = index.find_deleted_stored_hub_repo(storage_name).await? {
            index.set_hub_repo_recorded(deleted.id).await?;
        }
        Ok(())
    }

    async fn put_refs(&self, id: i64, change: HubRecord) -> Result<(), StoreError> {
        let index = self.store.index.as_ref();
        if change.is_state {
            let named = |(name, target): (String, Option<ObjectId>)| Some(HubRef { name, target: target? });
            index.set_hub_refs(id, change.refs.into_iter().filter_map(named).collect()).await?;
        } else {
            for (name, target) in change.refs {
                index.put_hub_ref(id, name, target).await?;
            }
        }
        Ok(index.set_hub_repo_recorded(id).await?)
    }

    async fn add_parts(&self, repo: i64, parts: Vec<HubPart>, at: Timestamp) -> Result<(), StoreError> {
        let (mut commits, mut trees, mut blobs) = (Vec::new(), Vec::new(), Vec::new());
        for part in parts {
            match part {
                HubPart::Commit(commit) => commits.push(commit),
                HubPart::Tree(tree) => trees.push(tree),
                HubPart::Blob(blob) => blobs.push(blob),
                HubPart::Repo(..) | HubPart::Refs(_) => {}
            }
        }
        self.store.index.add_hub_commits(repo, commits).await?;
        Ok(self.store.index.add_hub_objects(repo, trees, blobs, at).await?)
    }

    /// The repository of a record, its former names, and the other parts.
    async fn parts_of(&self, record: &HubRecord) -> Result<(HubRepo, Vec<String>, Vec<HubPart>), Inapplicable> {
        let bytes = record.parts.clone();
        let mut parts = self.store.pool.run(move || parse(&bytes)).await?.into_iter();
        match parts.next() {
            Some(HubPart::Repo(repo, former_names)) if repo.storage_name == record.storage_name => {
                Ok((repo, former_names, parts.collect()))
            }
            _ => Err(Inapplicable::NoRepo(record.storage_name.clone())),
        }
    }

    /// The parts of a partial record of this change.
    async fn read_part(
        &self,
        change: &HubRecord,
        seq: Seq,
    ) -> Result<Result<Vec<HubPart>, Inapplicable>, RebuildError> {
        let Some(Ok(Record::Hub(part))) = self.read(seq).await? else {
            return Ok(Err(Inapplicable::NoEarlier(seq)));
        };
        if !part.is_partial || part.storage_name != change.storage_name {
            return Ok(Err(Inapplicable::NoEarlier(seq)));
        }
        Ok(self.parts_of(&part).await.map(|(.., parts)| parts))
    }

    /// The repository with the storage name of this one, under whatever name. Another one that has
    /// its name, in any case, gets another name.
    ///
    /// A record with a name proves that the name was free. So a deleted repository of the name had
    /// no claims any more, and the other one was renamed later, in a record that is missing, or was
    /// never made: the outcome of the transaction of its creation was unknown.
    async fn known_repo(
        &mut self,
        seq: Seq,
        repo: &HubRepo,
        is_creation: bool,
    ) -> Result<Result<Option<HubRepo>, Inapplicable>, StoreError> {
        let index = self.store.index.as_ref();
        let name = (repo.kind, repo.lower_name());
        for deleted in self.store.deleted_repos().await? {
            let is_own = deleted.storage_name == repo.storage_name;
            if is_own && !is_creation {
                return Ok(Err(Inapplicable::NoRepo(deleted.storage_name)));
            }
            if is_own || (deleted.kind, deleted.lower_name()) == name {
                index.drop_hub_repo(deleted.id).await?;
            }
        }
        let at_name = index.find_hub_repo(repo.kind, repo.namespace.clone(), repo.name.clone()).await?;
        if let Some(other) = at_name.filter(|other| other.storage_name != repo.storage_name) {
            self.evict(seq, other).await?;
        }
        self.evicted.remove(&repo.storage_name);
        Ok(Ok(self.store.index.find_stored_hub_repo(repo.storage_name.clone()).await?))
    }

    /// Gives a repository a name that no record has, because another one has its name. Its next
    /// record has the right one. Without one, its creation was not made, or a record is missing;
    /// then a start records the name.
    async fn evict(&mut self, seq: Seq, other: HubRepo) -> Result<(), StoreError> {
        let (name, storage_name) = (other.name.clone(), other.storage_name.clone());
        let called = make_way(self.store.index.as_ref(), other).await?;
        if self.only_created.contains(&storage_name) {
            self.evicted.insert(storage_name);
        } else {
            self.rebuilt.left_out_hub_count += 1;
            let source = Inapplicable::NameTaken { name, called }.into();
            self.watch.problem(&Problem::Record { seq, source });
        }
        Ok(())
    }

    /// Drops the repositories of which there is nothing but a creation that was not made. To be
    /// called after the last record.
    pub(super) async fn drop_evicted(&mut self) -> Result<(), StoreError> {
        for storage_name in std::mem::take(&mut self.evicted) {
            if let Some(found) = self.store.index.find_stored_hub_repo(storage_name).await? {
                self.store.index.drop_hub_repo(found.id).await?;
            }
        }
        Ok(())
    }

    /// One of these commits or directories that the index does not have.
    async fn missing_base(
        &self,
        known: Option<&HubRepo>,
        (commits, trees): (HashSet<ObjectId>, HashSet<ObjectId>),
    ) -> Result<Option<ObjectId>, StoreError> {
        let index = self.store.index.as_ref();
        let Some(HubRepo { id, .. }) = known else { return Ok(commits.into_iter().chain(trees).next()) };
        for commit in commits {
            if index.find_hub_commit(*id, commit).await?.is_none() {
                return Ok(Some(commit));
            }
        }
        for tree in trees {
            if index.find_hub_tree(*id, tree).await?.is_none() {
                return Ok(Some(tree));
            }
        }
        Ok(None)
    }
}

/// The parts of a record, each of which is what its id names.
fn parse(bytes: &[u8]) -> Result<Vec<HubPart>, Inapplicable> {
    let parts = decode_parts(bytes)?;
    if parts.iter().all(HubPart::has_its_id) { Ok(parts) } else { Err(Inapplicable::WrongId) }
}
