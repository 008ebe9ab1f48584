//! One record: a JSON line, followed by a shard, or by parts of a Hub repository. [`parse`] is the
//! inverse of [`encode`](Record::encode), except that `encode` omits owners that are too long for
//! the line.
//!
//! ```text
//! {"blake3":"<64 hex>","version":1,"kind":"register","at_ms":…,"repos":["org/a"],"owners":{"org":[0,1]}}⏎
//! <a shard in upload form, with the new files only, and without a xorb list and footer>
//! ```
//!
//! The parts of a Hub repository are records of an archive: the repository itself, and the commits,
//! directories and files that are new.
//!
//! The hash covers every byte after its own digits, including the names of repositories. So any
//! change or truncation is detected. The hash is not a signature: write access to the data
//! directory allows writing records.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::format::FileHash;
use crate::git::ObjectId;
use crate::runtime::clock::Timestamp;

/// The newest version, of deletions of Hub repositories. Older programs refuse to skip what they do
/// not know.
const VERSION: u32 = 3;

/// The version of other changes of Hub repositories.
const HUB_VERSION: u32 = 2;

/// The version of records of files, which older programs support, too.
const FILES_VERSION: u32 = 1;

/// The beginning of every record.
const PREFIX: &[u8] = b"{\"blake3\":\"";

/// The bytes after the digits of the hash.
const SEPARATOR: &[u8] = b"\",";

/// Digits of the hash.
const DIGIT_COUNT: usize = 64;

/// Maximum length of the first line: the limit of a record less the largest shard, with a margin.
const MAX_HEAD_LEN: usize = 40 << 20;

/// A change to the registered files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// Files were registered.
    Register(Registered),
    /// A file was removed from one repository, or from all.
    Remove {
        /// The time of the removal.
        at: Timestamp,
        /// The file.
        file: FileHash,
        /// The repository whose claim was removed; `None` for all claims.
        repo: Option<String>,
    },
    /// Registered files have other terms from now on.
    Terms {
        /// The time of the switch.
        at: Timestamp,
        /// The owners of the new xorbs, in the form of [`Registered::owners`]. They had uploaded
        /// the old xorbs.
        owners: BTreeMap<String, Vec<u32>>,
        /// The files, with their new terms.
        shard: Bytes,
    },
    /// A Hub repository has changed.
    Hub(HubRecord),
}

/// A change of a Hub repository, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HubRecord {
    /// The time of the change.
    pub(super) at: Timestamp,
    /// What claims, quotas and tokens call the repository.
    pub(super) storage_name: String,
    /// Whether a later record completes the change. Then this one has parts only.
    pub(super) is_partial: bool,
    /// The numbers of the partial records before it, in the last record of a change.
    pub(super) earlier: Vec<u64>,
    /// The branches and tags that have changed: the commit that each names now, or `None` if it was
    /// deleted.
    pub(super) refs: BTreeMap<String, Option<ObjectId>>,
    /// Whether the repository was created.
    pub(super) is_creation: bool,
    /// Whether the repository was deleted.
    pub(super) is_deletion: bool,
    /// Whether nothing is left of a deleted repository.
    pub(super) is_end: bool,
    /// Whether `refs` are all branches and tags: the record was made from an index.
    pub(super) is_state: bool,
    /// The repository itself, then its new commits, directories and files.
    pub(super) parts: Bytes,
}

/// Files that were registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Registered {
    /// The time of the registration, unless `origin` has a time for each file.
    pub(super) at: Timestamp,
    /// The repositories that have registered the files.
    pub(super) repos: Vec<String>,
    /// The owners that had uploaded xorbs of the shard before the registration. For each owner:
    /// indexes in the list of distinct xorbs of the shard, in which the xorbs of terms come first.
    pub(super) owners: BTreeMap<String, Vec<u32>>,
    /// Set if the record was made from an index.
    pub(super) origin: Option<FromIndex>,
    /// The shard.
    pub(super) shard: Bytes,
}

/// Marks a record that was made from an index, not from a registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FromIndex {
    /// When each file was registered first, in milliseconds since 1970.
    pub(super) since_ms: Vec<u64>,
    /// The times of the repositories that were not the first to register a file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) later: Vec<Later>,
    /// The last file of a page of the index; set in the last record of that page. An interrupted
    /// run continues after this file.
    pub(super) up_to: Option<String>,
}

/// When a repository registered a file that another one had before: the index of the file, that of
/// the repository, and milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Later(u32, u32, u64);

impl Later {
    /// The time of this repository for this file.
    pub(super) fn new(file: usize, repo: u32, at: Timestamp) -> Self {
        Self(u32::try_from(file).unwrap_or(u32::MAX), repo, at.as_millis())
    }

    /// The index of the file and that of the repository, with the time.
    pub(super) const fn entry(self) -> ((u32, u32), Timestamp) {
        ((self.0, self.1), Timestamp::from_millis(self.2))
    }
}

/// Why bytes are not a valid record.
#[derive(Debug, Error)]
pub(super) enum RecordError {
    /// They differ from what was written.
    #[error("damaged or truncated")]
    Damaged,
    /// They are intact, but of an unknown version.
    #[error("it has version {found}, this program supports {VERSION}")]
    Version {
        /// Their version.
        found: u32,
    },
    /// They are intact, but have an invalid form.
    #[error("malformed: {0}")]
    Malformed(String),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Head {
    Register {
        at_ms: u64,
        repos: Vec<String>,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        owners: BTreeMap<String, Vec<u32>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from_index: Option<FromIndex>,
    },
    Remove {
        at_ms: u64,
        file: String,
        /// Absent for all claims.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        repo: Option<String>,
    },
    Terms {
        at_ms: u64,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        owners: BTreeMap<String, Vec<u32>>,
    },
    Hub {
        at_ms: u64,
        storage_name: String,
        #[serde(default, skip_serializing_if = "is_false")]
        partial: bool,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        earlier: Vec<u64>,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        refs: BTreeMap<String, Option<String>>,
        #[serde(default, skip_serializing_if = "is_false")]
        created: bool,
        #[serde(default, skip_serializing_if = "is_false")]
        deleted: bool,
        #[serde(default, skip_serializing_if = "is_false")]
        ended: bool,
        #[serde(default, skip_serializing_if = "is_false")]
        state: bool,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

#[derive(Debug, Serialize)]
struct Line<'a> {
    version: u32,
    #[serde(flatten)]
    head: &'a Head,
}

#[derive(Debug, Deserialize)]
struct Versioned {
    version: u32,
}

impl Record {
    /// The bytes of the record.
    pub(super) fn encode(self) -> Bytes {
        let (mut head, shard) = self.split();
        let mut line = encode_head(&head);
        if let Head::Register { owners, .. } | Head::Terms { owners, .. } = &mut head
            && line.len() > MAX_HEAD_LEN
        {
            // The record must stay readable, even if dedup by these owners is lost.
            owners.clear();
            line = encode_head(&head);
        }
        // `PREFIX` replaces the opening brace.
        let rest = line.get(1..).unwrap_or_default();
        let mut bytes = Vec::with_capacity(PREFIX.len() + DIGIT_COUNT + 2 + rest.len() + 1 + shard.len());
        bytes.extend_from_slice(PREFIX);
        bytes.extend_from_slice(&[b'0'; DIGIT_COUNT]);
        bytes.extend_from_slice(SEPARATOR);
        bytes.extend_from_slice(rest);
        bytes.push(b'\n');
        bytes.extend_from_slice(&shard);
        let (digits, hashed) = bytes.split_at_mut(PREFIX.len() + DIGIT_COUNT);
        digits[PREFIX.len()..].copy_from_slice(blake3::hash(hashed).to_hex().as_bytes());
        bytes.into()
    }

    fn split(self) -> (Head, Bytes) {
        match self {
            Self::Register(Registered { at, repos, owners, origin, shard }) => {
                (Head::Register { at_ms: at.as_millis(), repos, owners, from_index: origin }, shard)
            }
            Self::Remove { at, file, repo } => {
                (Head::Remove { at_ms: at.as_millis(), file: file.to_string(), repo }, Bytes::new())
            }
            Self::Terms { at, owners, shard } => (Head::Terms { at_ms: at.as_millis(), owners }, shard),
            Self::Hub(record) => {
                let target = |(name, target): (String, Option<ObjectId>)| (name, target.map(|id| id.to_string()));
                let head = Head::Hub {
                    at_ms: record.at.as_millis(),
                    storage_name: record.storage_name,
                    partial: record.is_partial,
                    earlier: record.earlier,
                    refs: record.refs.into_iter().map(target).collect(),
                    created: record.is_creation,
                    deleted: record.is_deletion,
                    ended: record.is_end,
                    state: record.is_state,
                };
                (head, record.parts)
            }
        }
    }
}

fn encode_head(head: &Head) -> Vec<u8> {
    let version = match head {
        Head::Hub { deleted: true, .. } | Head::Hub { ended: true, .. } => VERSION,
        Head::Hub { .. } => HUB_VERSION,
        Head::Register { .. } | Head::Remove { .. } | Head::Terms { .. } => FILES_VERSION,
    };
    serde_json::to_vec(&Line { version, head }).expect("heads have string keys and finite numbers")
}

/// Parses a record, after its hash was checked.
pub(super) fn parse(bytes: &Bytes) -> Result<Record, RecordError> {
    let (digits, hashed) =
        bytes.strip_prefix(PREFIX).and_then(|rest| rest.split_at_checked(DIGIT_COUNT)).ok_or(RecordError::Damaged)?;
    if blake3::hash(hashed).to_hex().as_bytes() != digits {
        return Err(RecordError::Damaged);
    }
    let malformed = |reason: &str| RecordError::Malformed(reason.to_owned());
    let rest = hashed.strip_prefix(SEPARATOR).ok_or_else(|| malformed("nothing follows the hash"))?;
    let end = rest.iter().take(MAX_HEAD_LEN).position(|byte| *byte == b'\n');
    let end = end.ok_or_else(|| malformed("its first line does not end"))?;
    let line = [b"{", &rest[..end]].concat();
    let shard = bytes.slice(bytes.len() - (rest.len() - end - 1)..);
    let not_json = |error: serde_json::Error| RecordError::Malformed(error.to_string());
    let Versioned { version } = serde_json::from_slice(&line).map_err(not_json)?;
    if !(FILES_VERSION..=VERSION).contains(&version) {
        return Err(RecordError::Version { found: version });
    }
    let at = Timestamp::from_millis;
    match serde_json::from_slice(&line).map_err(not_json)? {
        Head::Register { at_ms, repos, owners, from_index } => {
            Ok(Record::Register(Registered { at: at(at_ms), repos, owners, origin: from_index, shard }))
        }
        Head::Remove { at_ms, file, repo } => {
            let file = file.parse().map_err(|_| malformed("its file is not a hash"))?;
            Ok(Record::Remove { at: at(at_ms), file, repo })
        }
        Head::Terms { at_ms, owners } => Ok(Record::Terms { at: at(at_ms), owners, shard }),
        Head::Hub { at_ms, storage_name, partial, earlier, refs, created, deleted, ended, state } => {
            let target = |(name, target): (String, Option<String>)| {
                let id = target.map(|text| text.parse().map_err(|_| malformed("a branch names no commit id")));
                Ok((name, id.transpose()?))
            };
            let refs = refs.into_iter().map(target).collect::<Result<_, RecordError>>()?;
            Ok(Record::Hub(HubRecord {
                at: at(at_ms),
                storage_name,
                is_partial: partial,
                earlier,
                refs,
                is_creation: created,
                is_deletion: deleted,
                is_end: ended,
                is_state: state,
                parts: shard,
            }))
        }
    }
}

#[cfg(test)]
mod tests;
