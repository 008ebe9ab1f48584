//! One record: a JSON line, and the shard. [`encode`](Record::encode) and [`parse`] are inverse.
//!
//! ```text
//! {"blake3":"<64 hex>","version":1,"kind":"register","at_ms":…,"repos":["org/a"],"owners":{"org":[0,1]}}⏎
//! <a shard as it is uploaded, without footer>
//! ```
//!
//! The hash covers every byte after its own digits, so that any change or truncation is detected.
//! That includes the names of repositories and the hash itself. It is not a signature: write access
//! to the data directory allows writing records.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::format::FileHash;
use crate::runtime::clock::Timestamp;

/// The only version.
const VERSION: u32 = 1;

/// The beginning of every record.
const PREFIX: &[u8] = b"{\"blake3\":\"";

/// The bytes after the digits of the hash.
const SEPARATOR: &[u8] = b"\",";

/// Digits of the hash.
const DIGIT_COUNT: usize = 64;

/// Bytes of the first line, at most: the rest of a record beside the largest shard, with a margin.
const MAX_HEAD_LEN: usize = 40 << 20;

/// A change to the registered files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// Files were registered.
    Register(Registered),
    /// A file was removed from one repository, or from all.
    Remove {
        /// When.
        at: Timestamp,
        /// Which file.
        file: FileHash,
        /// Whose claim; `None` for all claims.
        repo: Option<String>,
    },
    /// Registered files have other terms from now on.
    Terms {
        /// When.
        at: Timestamp,
        /// The owners of the new xorbs, which had uploaded the old ones: as in a registration.
        owners: BTreeMap<String, Vec<u32>>,
        /// The files, with their new terms.
        shard: Bytes,
    },
}

/// Files that were registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Registered {
    /// When, unless `since` has a time for each.
    pub(super) at: Timestamp,
    /// Repositories that may read the files since.
    pub(super) repos: Vec<String>,
    /// The owners that had uploaded its xorbs by then. For each domain: places in the list of the
    /// distinct xorbs of the shard, first those of terms.
    pub(super) owners: BTreeMap<String, Vec<u32>>,
    /// Set where the record was made from an index.
    pub(super) origin: Option<FromIndex>,
    /// The shard.
    pub(super) shard: Bytes,
}

/// Marks a record that was made from an index without records, and not from a client's shard. It
/// lists no xorbs: for the xorbs of its terms, clients may query the chunks that the protocol
/// names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FromIndex {
    /// When each file was registered first, in milliseconds since 1970.
    pub(super) since_ms: Vec<u64>,
    /// The last file of a page of the index, in the last record of that page. An interrupted run
    /// continues there.
    pub(super) up_to: Option<String>,
}

/// Why bytes are not a record.
#[derive(Debug, Error)]
pub(super) enum RecordError {
    /// They are not what was written.
    #[error("damaged or truncated")]
    Damaged,
    /// They are intact, but of an unknown version.
    #[error("it has version {found}, this program supports {VERSION}")]
    Version {
        /// Their version.
        found: u32,
    },
    /// They are intact, but make no sense.
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
        /// Left out for all claims.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        repo: Option<String>,
    },
    Terms {
        at_ms: u64,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        owners: BTreeMap<String, Vec<u32>>,
    },
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
            // Dedup by these owners is worth less than a readable record.
            owners.clear();
            line = encode_head(&head);
        }
        // In place of the opening brace.
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
        }
    }
}

fn encode_head(head: &Head) -> Vec<u8> {
    serde_json::to_vec(&Line { version: VERSION, head }).expect("heads have string keys and finite numbers")
}

/// Reads a record. Hashes all of it.
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
    if version != VERSION {
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
            Record::Terms { at: AT, owners: BTreeMap::new(), shard },
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

    /// A record with this line after its hash, which is right.
    fn sealed(rest: &str) -> Bytes {
        let hash = blake3::hash(rest.as_bytes()).to_hex();
        format!("{{\"blake3\":\"{hash}{rest}").into()
    }

    #[test]
    fn what_is_whole_but_not_ours_is_told_apart_from_damage() {
        let newer = sealed("\",\"version\":2,\"kind\":\"rename\"}\n");
        assert!(matches!(parse(&newer), Err(RecordError::Version { found: 2 })));
        for senseless in [
            "",
            "\",",
            "\",\"version\":1,\"kind\":\"terms\",\"at_ms\":1}",
            "\",\"version\":1,\"kind\":\"rename\",\"at_ms\":1}\n",
            "\",\"version\":1,\"kind\":\"register\",\"at_ms\":1}\n",
            "\",\"version\":1,\"kind\":\"remove\",\"at_ms\":1,\"file\":\"x\"}\n",
            "\",\"kind\":\"terms\",\"at_ms\":1}\n",
        ] {
            assert!(matches!(parse(&sealed(senseless)), Err(RecordError::Malformed(_))), "{senseless}");
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
