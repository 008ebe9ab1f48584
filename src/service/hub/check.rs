//! The check of a repository by `zorb fsck`.
//!
//! The check reads only. Beside a running server it finds no fault that is none: what a branch or
//! tag needs is there before the branch or tag, and stays for a week after it. An exception is a
//! large file whose registration was removed, and that another file with its sha256 stands for.

use std::collections::HashSet;
use std::sync::Arc;

use super::HubError;
use super::copy::Copying;
use super::history::{History, Marks, PAGE_COUNT};
use super::part::{HubPart, HubState};
use crate::format::FileHash;
use crate::git::{ObjectId, Pointer};
use crate::index::{HubBlob, HubObject, HubRepo};
use crate::service::access::RepoScope;
use crate::service::gc::Pace;
use crate::service::{Store, StoreError};

/// A fault of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::service) enum RepoFault {
    /// A branch or tag needs something that is missing, or that is not what its id names.
    Broken(String),
    /// Branches or tags have so many files whose contents are not registered for the repository,
    /// among them this one.
    LostFiles(u64, FileHash),
    /// The repository is too large for the check.
    Unchecked(String),
}

impl Store {
    /// The faults of a repository: whether everything is there that its branches and tags need,
    /// and, with `is_deep`, whether commits, directories and pointers have their ids. A fault may
    /// hide others.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub(in crate::service) async fn check_hub_repo(
        self: &Arc<Self>,
        repo: &HubRepo,
        is_deep: bool,
    ) -> Result<Vec<RepoFault>, StoreError> {
        let mut faults = Vec::new();
        match self.find_faults(repo, is_deep, &mut faults).await {
            Ok(()) => {}
            Err(HubError::Store(error)) => return Err(error),
            Err(HubError::Invalid(detail)) => faults.push(RepoFault::Unchecked(detail)),
            Err(error) => faults.push(RepoFault::Broken(error.to_string())),
        }
        if !faults.is_empty() {
            // It may have been deleted meanwhile, and some of its rows are left.
            let now = self.index.find_stored_hub_repo(repo.storage_name.clone()).await.map_err(StoreError::from)?;
            if now.is_none_or(|now| now.id != repo.id) {
                faults.clear();
            }
        }
        Ok(faults)
    }

    async fn find_faults(
        self: &Arc<Self>,
        repo: &HubRepo,
        is_deep: bool,
        faults: &mut Vec<RepoFault>,
    ) -> Result<(), HubError> {
        // It may have been deleted since it was listed.
        let Some(history) = History::read(self, repo).await? else { return Ok(()) };
        let mut marks = Marks::default();
        marks.add(self, repo, &history, &Pace::default()).await?;
        let needed: Vec<FileHash> = marks.needed_files().filter(|file| *file != FileHash::EMPTY).collect();
        let (mut lost_count, mut first_lost) = (0, None);
        for some in needed.chunks(PAGE_COUNT as usize) {
            let mut lost: HashSet<FileHash> = some.iter().copied().collect();
            // Uploads without authentication are registered for all repositories.
            for claimant in [repo.storage_name.clone(), RepoScope::All.to_string()] {
                if !lost.is_empty() {
                    let claimed = self.index.claimed_files(lost.iter().copied().collect(), claimant).await?;
                    claimed.iter().for_each(|(file, _)| _ = lost.remove(file));
                }
            }
            lost_count += lost.len() as u64;
            first_lost = first_lost.or_else(|| some.iter().find(|file| lost.contains(file)).copied());
        }
        faults.extend(first_lost.map(|first| RepoFault::LostFiles(lost_count, first)));
        if is_deep {
            self.check_ids(repo, &history, &marks, faults).await?;
        }
        Ok(())
    }

    /// Compares the commits that a branch or tag needs with their ids, and the directories and
    /// pointers of all commits.
    async fn check_ids(
        self: &Arc<Self>,
        repo: &HubRepo,
        history: &History,
        marks: &Marks,
        faults: &mut Vec<RepoFault>,
    ) -> Result<(), HubError> {
        let state = HubState { repo: repo.clone(), former_names: Vec::new(), refs: Vec::new() };
        let mut copying = Copying::begin(self.index.as_ref(), state);
        loop {
            let mut parts = copying.next().await?;
            if parts.is_empty() {
                return Ok(());
            }
            parts.retain(|part| match part {
                HubPart::Commit(commit) => history.needs(&commit.id),
                HubPart::Tree(tree) => marks.has(HubObject::Tree, &tree.id),
                HubPart::Blob(blob) => marks.has(HubObject::Blob, &blob.id),
                HubPart::Repo(..) | HubPart::Refs(_) => false,
            });
            self.check_parts(repo, parts, faults).await;
        }
    }

    async fn check_parts(self: &Arc<Self>, repo: &HubRepo, parts: Vec<HubPart>, faults: &mut Vec<RepoFault>) {
        let wrong = move || parts.iter().filter_map(wrong_id).collect::<Vec<String>>();
        let wrong = self.pool.run(wrong).await;
        let broken = |what| RepoFault::Broken(format!("{what} of {} does not have its id", repo.storage_name));
        faults.extend(wrong.into_iter().map(broken));
    }
}

/// What does not have its id, if it does not.
fn wrong_id(part: &HubPart) -> Option<String> {
    let named = |what: &str, id: &ObjectId| Some(format!("{what} {id}"));
    match part {
        HubPart::Commit(commit) if !part.has_its_id() => named("commit", &commit.id),
        HubPart::Tree(tree) if !part.has_its_id() => named("directory", &tree.id),
        HubPart::Blob(blob) if !has_pointer_id(blob) => named("the pointer of file", &blob.id),
        HubPart::Repo(..) | HubPart::Commit(_) | HubPart::Tree(_) | HubPart::Blob(_) | HubPart::Refs(_) => None,
    }
}

/// Whether the id of a large file is that of its pointer. The id of another file is not checked,
/// because that needs its contents.
fn has_pointer_id(blob: &HubBlob) -> bool {
    let pointer = blob.sha256.map(|sha256| Pointer { sha256: *sha256.as_digest(), len: blob.len });
    pointer.is_none_or(|pointer| pointer.id().is_ok_and(|id| id == blob.id))
}
