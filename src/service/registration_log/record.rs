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

/// The newest version. Older programs refuse to skip what they do not know.
const VERSION: u32 = 2;

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
    /// The last file of a page of the index; set in the last record of that page. An interrupted
    /// run continues after this file.
    pub(super) up_to: Option<String>,
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
            Self::Hub(HubRecord { at, storage_name, is_partial, earlier, refs, is_creation, is_state, parts }) => {
                let target = |(name, target): (String, Option<ObjectId>)| (name, target.map(|id| id.to_string()));
                let refs = refs.into_iter().map(target).collect();
                let (partial, created, state) = (is_partial, is_creation, is_state);
                (Head::Hub { at_ms: at.as_millis(), storage_name, partial, earlier, refs, created, state }, parts)
            }
        }
    }
}

fn encode_head(head: &Head) -> Vec<u8> {
    let version = if matches!(head, Head::Hub { .. }) { VERSION } else { FILES_VERSION };
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
        Head::Hub { at_ms, storage_name, partial, earlier, refs, created, state } => {
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
                is_state: state,
                parts: shard,
            }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Timestamp = Timestamp::from_millis(1_700_000_000_123);

    fn all() -> Vec<Record> {
        let shard = Bytes::from_static(b"not a shard, \n but bytes\n");
        let file = FileHash::from_bytes([7; 32]);
        let owners = BTreeMap::from([("org".to_owned(), vec![0, 2])]);
        let from_index = FromIndex { since_ms: vec![1, 2], up_to: Some(file.to_string()) };
        let repos = vec!["org/a".to_owned(), "*".to_owned()];
        let registered = Registered { at: AT, repos, owners, origin: None, shard: shard.clone() };
        vec![
            Record::Register(registered.clone()),
            Record::Register(Registered { origin: Some(from_index), owners: BTreeMap::new(), ..registered.clone() }),
            Record::Remove { at: AT, file, repo: None },
            Record::Remove { at: AT, file, repo: Some("org/\n\"a".to_owned()) },
            Record::Terms { at: AT, owners: registered.owners, shard: shard.clone() },
            Record::Terms { at: AT, owners: BTreeMap::new(), shard: shard.clone() },
            Record::Hub(HubRecord {
                at: AT,
                storage_name: "models/a/b".to_owned(),
                is_partial: false,
                earlier: vec![7, 8],
                refs: BTreeMap::from([
                    ("refs/heads/main".to_owned(), Some(ObjectId::from_bytes([3; 20]))),
                    ("refs/tags/v1".to_owned(), None),
                ]),
                is_creation: false,
                is_state: false,
                parts: shard,
            }),
            Record::Hub(HubRecord {
                at: AT,
                storage_name: String::new(),
                is_partial: true,
                earlier: Vec::new(),
                refs: BTreeMap::new(),
                is_creation: true,
                is_state: true,
                parts: Bytes::new(),
            }),
        ]
    }

    #[test]
    fn a_record_reads_back_equal_and_its_shard_is_its_end() {
        for record in all() {
            let bytes = record.clone().encode();
            assert_eq!(parse(&bytes).unwrap(), record);
            let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
            serde_json::from_slice::<serde_json::Value>(&bytes[..end]).unwrap();
        }
    }

    #[test]
    fn every_proper_prefix_and_every_altered_byte_is_damage() {
        for record in all() {
            let bytes = record.encode();
            for len in 0..bytes.len() {
                assert!(matches!(parse(&bytes.slice(..len)), Err(RecordError::Damaged)), "{len} bytes");
            }
            for at in 0..bytes.len() {
                for flip in [1, 0x20, 0x80, 0xff] {
                    let mut altered = bytes.to_vec();
                    altered[at] ^= flip;
                    assert!(matches!(parse(&altered.into()), Err(RecordError::Damaged)), "byte {at} ^ {flip:#x}");
                }
            }
            let longer = [&bytes[..], b"\n"].concat();
            assert!(matches!(parse(&longer.into()), Err(RecordError::Damaged)));
        }
    }

    /// A record with a correct hash, followed by this text.
    fn sealed(rest: &str) -> Bytes {
        let hash = blake3::hash(rest.as_bytes()).to_hex();
        format!("{{\"blake3\":\"{hash}{rest}").into()
    }

    #[test]
    fn unknown_version_and_bad_form_are_not_reported_as_damage() {
        let newer = sealed("\",\"version\":3,\"kind\":\"rename\"}\n");
        assert!(matches!(parse(&newer), Err(RecordError::Version { found: 3 })));
        for invalid in [
            "",
            "\",",
            "\",\"version\":1,\"kind\":\"terms\",\"at_ms\":1}",
            "\",\"version\":1,\"kind\":\"rename\",\"at_ms\":1}\n",
            "\",\"version\":1,\"kind\":\"register\",\"at_ms\":1}\n",
            "\",\"version\":1,\"kind\":\"remove\",\"at_ms\":1,\"file\":\"x\"}\n",
            "\",\"kind\":\"terms\",\"at_ms\":1}\n",
            "\",\"version\":2,\"kind\":\"hub\",\"at_ms\":1}\n",
            "\",\"version\":2,\"kind\":\"hub\",\"at_ms\":1,\"storage_name\":\"a\",\"refs\":{\"b\":\"c\"}}\n",
        ] {
            assert!(matches!(parse(&sealed(invalid)), Err(RecordError::Malformed(_))), "{invalid}");
        }
    }

    #[test]
    fn owners_too_long_for_a_line_are_left_out_of_the_record() {
        let owners = (0..60).map(|owner| (format!("{owner}{}", "x".repeat(1_000_000)), vec![0])).collect();
        let record = Registered { at: AT, repos: Vec::new(), owners, origin: None, shard: Bytes::new() };
        let Record::Register(read) = parse(&Record::Register(record).encode()).unwrap() else { panic!("another kind") };
        assert_eq!(read.owners, BTreeMap::new());
    }
}
