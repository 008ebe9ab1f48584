//! Records of Hub repositories in an archive, and in the registration log. [`archive`](super) has
//! their layout.

use std::io::Read;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Watch;
use super::catalog::RecordDigest;
use super::error::ArchiveError;
use super::record::{MAX_HUB_LEN, Records, frame};
use crate::format::FileHash;
use crate::format::shard::Sha256;
use crate::git::ObjectId;
use crate::index::{HubBlob, HubCommit, HubRef, HubRepo, HubTree, Index, RepoKind};
use crate::runtime::clock::Timestamp;
use crate::service::StoreError;
use crate::service::hub::{Copying, HubPart, HubState};

/// The head of a record. Only that of a directory has a body.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "hub", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum HubHead {
    Repo {
        kind: String,
        namespace: String,
        name: String,
        storage_name: String,
        private: bool,
        created_ms: u64,
        updated_ms: u64,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        former_names: Vec<String>,
    },
    Commit {
        id: String,
        tree: String,
        parent: Option<String>,
        at_ms: u64,
        author: String,
        message: String,
    },
    Tree {
        id: String,
    },
    Blob {
        id: String,
        len: u64,
        sha256: Option<String>,
        file: String,
    },
    /// The last record of a repository.
    Refs {
        storage_name: String,
        /// The digest of the repository and its refs, by which the next run sees changes.
        digest: String,
        refs: Vec<RefHead>,
    },
}

/// A branch or tag.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RefHead {
    name: String,
    target: String,
}

/// A commit or directory of a Hub repository is damaged. An archive with it could not be restored.
/// Without it, the restored history would end there, and a sweep would delete what is before.
#[derive(Debug, Error)]
#[error("the commit or directory {id} of {repo} is damaged, so the repository is left out")]
struct DamagedPart {
    repo: String,
    id: ObjectId,
}

/// Reports each damaged commit and directory of a repository. Returns whether there is one.
pub(super) async fn report_damage(index: &dyn Index, state: HubState, watch: &dyn Watch) -> Result<bool, StoreError> {
    let repo = state.repo.storage_name.clone();
    let (mut copying, mut is_damaged) = (Copying::begin(index, state), false);
    loop {
        let parts = copying.next().await?;
        if parts.is_empty() {
            return Ok(is_damaged);
        }
        for id in parts.iter().filter_map(HubPart::wrong_id) {
            is_damaged = true;
            watch.problem(&DamagedPart { repo: repo.clone(), id });
        }
    }
}

/// The digest of a repository and its branches and tags.
pub(super) fn digest_of(state: &HubState) -> RecordDigest {
    let mut record = encode_repo(&state.repo, &state.former_names);
    record.extend(frame(&heads_of_refs(&state.refs), 0));
    RecordDigest::of(&record)
}

/// The record of a part.
pub(super) fn encode(part: &HubPart, (storage_name, digest): (&str, RecordDigest)) -> Vec<u8> {
    match part {
        HubPart::Repo(repo, former_names) => encode_repo(repo, former_names),
        HubPart::Commit(commit) => encode_commit(commit),
        HubPart::Tree(tree) => encode_tree(tree),
        HubPart::Blob(blob) => encode_blob(blob),
        HubPart::Refs(refs) => {
            let (storage_name, digest) = (storage_name.to_owned(), digest.to_hex());
            frame(&HubHead::Refs { storage_name, digest, refs: heads_of_refs(refs) }, 0)
        }
    }
}

/// The record of a repository with these former names.
pub(in crate::service) fn encode_repo(repo: &HubRepo, former_names: &[String]) -> Vec<u8> {
    let head = HubHead::Repo {
        kind: repo.kind.plural().to_owned(),
        namespace: repo.namespace.clone(),
        name: repo.name.clone(),
        storage_name: repo.storage_name.clone(),
        private: repo.is_private,
        created_ms: repo.created.as_millis(),
        updated_ms: repo.updated.as_millis(),
        former_names: former_names.to_vec(),
    };
    frame(&head, 0)
}

/// The record of a commit.
pub(in crate::service) fn encode_commit(commit: &HubCommit) -> Vec<u8> {
    let head = HubHead::Commit {
        id: commit.id.to_string(),
        tree: commit.tree.to_string(),
        parent: commit.parent.map(|parent| parent.to_string()),
        at_ms: commit.at.as_millis(),
        author: commit.author.clone(),
        message: commit.message.clone(),
    };
    frame(&head, 0)
}

/// The record of a directory.
pub(in crate::service) fn encode_tree(tree: &HubTree) -> Vec<u8> {
    let mut record = frame(&HubHead::Tree { id: tree.id.to_string() }, tree.entries.len() as u64);
    record.extend_from_slice(&tree.entries);
    record
}

/// The record of a file.
pub(in crate::service) fn encode_blob(blob: &HubBlob) -> Vec<u8> {
    let head = HubHead::Blob {
        id: blob.id.to_string(),
        len: blob.len,
        sha256: blob.sha256.map(|sha256| sha256.to_string()),
        file: blob.file.to_string(),
    };
    frame(&head, 0)
}

fn heads_of_refs(refs: &[HubRef]) -> Vec<RefHead> {
    let head = |HubRef { name, target }: &HubRef| RefHead { name: name.clone(), target: target.to_string() };
    refs.iter().map(head).collect()
}

/// The parts of these records. The error says what is malformed.
pub(in crate::service) fn decode_parts(bytes: &[u8]) -> Result<Vec<HubPart>, ArchiveError> {
    let (mut records, mut parts) = (Records::new("hub", bytes), Vec::new());
    while let Some(part) = next_part(&mut records)? {
        parts.push(part);
    }
    Ok(parts)
}

/// Reads the next record; `None` at the end of the blob.
pub(super) fn next_part<R: Read>(records: &mut Records<'_, R>) -> Result<Option<HubPart>, ArchiveError> {
    let Some(head) = records.next::<HubHead>()? else { return Ok(None) };
    let body = records.whole_body(MAX_HUB_LEN)?;
    decode(head, body).map(Some).map_err(|reason| records.malformed(&reason))
}

/// Inverse of [`encode`]. The error says what is malformed.
fn decode(head: HubHead, body: Vec<u8>) -> Result<HubPart, String> {
    Ok(match head {
        HubHead::Repo { kind, namespace, name, storage_name, private, created_ms, updated_ms, former_names } => {
            let known = RepoKind::ALL.into_iter().find(|known| known.plural() == kind);
            let repo = HubRepo {
                id: 0,
                kind: known.ok_or_else(|| format!("{kind:?} is no kind of repository"))?,
                namespace,
                name,
                storage_name,
                is_private: private,
                created: Timestamp::from_millis(created_ms),
                updated: Timestamp::from_millis(updated_ms),
            };
            HubPart::Repo(repo, former_names)
        }
        HubHead::Commit { id, tree, parent, at_ms, author, message } => HubPart::Commit(HubCommit {
            id: parse_id(&id)?,
            tree: parse_id(&tree)?,
            parent: parent.as_deref().map(parse_id).transpose()?,
            at: Timestamp::from_millis(at_ms),
            author,
            message,
        }),
        HubHead::Tree { id } => HubPart::Tree(HubTree { id: parse_id(&id)?, entries: body }),
        HubHead::Blob { id, len, sha256, file } => HubPart::Blob(HubBlob {
            id: parse_id(&id)?,
            len,
            sha256: sha256.as_deref().map(super::record::parse::<Sha256>).transpose()?,
            file: super::record::parse::<FileHash>(&file)?,
        }),
        HubHead::Refs { refs, .. } => {
            let parsed =
                refs.into_iter().map(|RefHead { name, target }| Ok(HubRef { name, target: parse_id(&target)? }));
            HubPart::Refs(parsed.collect::<Result<_, String>>()?)
        }
    })
}

fn parse_id(text: &str) -> Result<ObjectId, String> {
    text.parse().map_err(|error| format!("{text:?} is not an id: {error}"))
}
