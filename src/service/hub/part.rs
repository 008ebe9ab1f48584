//! The parts of a repository, as backups and the registration log have them.

use super::HubError;
use crate::git::{Commit, ObjectId, Tree};
use crate::index::{HubBlob, HubCommit, HubRef, HubRepo, HubTree};

/// A part of the copy of a repository. The parts of one come in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::service) enum HubPart {
    /// The repository itself, and its former names.
    Repo(HubRepo, Vec<String>),
    /// A commit.
    Commit(HubCommit),
    /// A directory.
    Tree(HubTree),
    /// A file.
    Blob(HubBlob),
    /// All branches and tags: the last part.
    Refs(Vec<HubRef>),
}

/// A repository, its former names, and its branches and tags at one moment.
#[derive(Clone, Debug)]
pub(in crate::service) struct HubState {
    pub(in crate::service) repo: HubRepo,
    pub(in crate::service) former_names: Vec<String>,
    pub(in crate::service) refs: Vec<HubRef>,
}

impl HubPart {
    /// Whether a commit or directory is what its id names. Other parts have no id that can be
    /// checked.
    pub(in crate::service) fn has_its_id(&self) -> bool {
        self.wrong_id().is_none()
    }

    /// The id of a commit or directory that is not what its id names.
    pub(in crate::service) fn wrong_id(&self) -> Option<ObjectId> {
        let (id, has_its_id) = match self {
            Self::Commit(commit) => (commit.id, sealed(commit.clone()).is_ok_and(|sealed| sealed == *commit)),
            Self::Tree(tree) => {
                let parsed = Tree::parse(&tree.entries).and_then(|parsed| parsed.to_object());
                (tree.id, parsed.is_ok_and(|(id, _)| id == tree.id))
            }
            Self::Repo(..) | Self::Blob(_) | Self::Refs(_) => return None,
        };
        (!has_its_id).then_some(id)
    }
}

/// The commit with its id.
pub(super) fn sealed(commit: HubCommit) -> Result<HubCommit, HubError> {
    let object = Commit {
        tree: commit.tree,
        parent: commit.parent,
        author: commit.author.clone(),
        email: format!("{}@users.noreply.zorb", commit.author),
        unix_secs: commit.at.as_secs(),
        message: commit.message.clone(),
    };
    let (id, _) = object.to_object()?;
    Ok(HubCommit { id, ..commit })
}
