//! What an archive contains: the hashes of its xorbs, and the hashes and digests of its files. The
//! next run needs these to append only new records. [`archive`](super) explains catalogs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;

use super::error::ArchiveError;
use super::record::{CatalogHead, Records, frame};
use crate::format::{FileHash, XorbHash};

/// Length of a digest in bytes: enough that two records of a file do not have the same digest by
/// accident.
const DIGEST_LEN: usize = 16;

/// Length of a file's entry in a catalog: its hash and the digest of its record.
const FILE_ENTRY_LEN: u64 = 32 + DIGEST_LEN as u64;

/// Repositories of the Hub in one head, at most: with names of 250 bytes 3 MB, far below the limit
/// of a head.
const HUB_COUNT: usize = 10_000;

/// A digest of a record, by which a run detects that a file or the keys have changed. It does not
/// protect against a manipulated archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordDigest([u8; DIGEST_LEN]);

impl RecordDigest {
    /// The digest of these bytes.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let hash = blake3::hash(bytes);
        let (digest, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
        Self(*digest)
    }

    /// The digest as hex digits.
    pub(super) fn to_hex(self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }

    /// Inverse of [`to_hex`](Self::to_hex).
    pub(super) fn from_hex(text: &str) -> Option<Self> {
        u128::from_str_radix(text, 16).ok().map(|number| Self(number.to_be_bytes()))
    }
}

/// What an archive contains. Takes 32 bytes per xorb and 48 bytes per file in memory, and the
/// overhead of a hash table.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) xorbs: HashSet<XorbHash>,
    /// The digest of the last record of each file.
    pub(super) files: HashMap<FileHash, RecordDigest>,
    /// The digest of the last keys.
    pub(super) keys: Option<RecordDigest>,
    /// The digest of the last complete copy of each Hub repository, by its storage name.
    pub(super) hub: BTreeMap<String, RecordDigest>,
}

impl Known {
    /// Adds entries that are later in the archive than all others.
    pub(super) fn add(&mut self, entries: &Entries) {
        self.xorbs.extend(&entries.xorbs);
        self.files.extend(entries.files.iter().copied());
        self.keys = entries.keys.or(self.keys);
        self.hub.extend(entries.hub.iter().map(|(name, digest)| (name.clone(), *digest)));
    }
}

/// The entries of a catalog: what was added to the archive, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    pub(super) xorbs: Vec<XorbHash>,
    pub(super) files: Vec<(FileHash, RecordDigest)>,
    pub(super) keys: Option<RecordDigest>,
    pub(super) hub: BTreeMap<String, RecordDigest>,
}

impl Entries {
    pub(super) fn is_empty(&self) -> bool {
        self.xorbs.is_empty() && self.files.is_empty() && self.keys.is_none() && self.hub.is_empty()
    }

    /// Appends later entries.
    pub(super) fn append(&mut self, mut other: Self) {
        self.xorbs.append(&mut other.xorbs);
        self.files.append(&mut other.files);
        self.keys = other.keys.or(self.keys);
        self.hub.append(&mut other.hub);
    }

    /// The content of the catalog's blob.
    pub(super) fn encode(&self) -> Vec<u8> {
        let keys = self.keys.map(RecordDigest::to_hex);
        let (xorbs, files) = (self.xorbs.len() as u64, self.files.len() as u64);
        let mut repos = self.hub.iter().map(|(name, digest)| (name.clone(), digest.to_hex())).peekable();
        let hub = repos.by_ref().take(HUB_COUNT).collect();
        let mut catalog = frame(&CatalogHead { xorbs, files, keys, hub }, xorbs * 32 + files * FILE_ENTRY_LEN);
        for xorb in &self.xorbs {
            catalog.extend_from_slice(xorb.as_bytes());
        }
        for (file, RecordDigest(digest)) in &self.files {
            catalog.extend_from_slice(file.as_bytes());
            catalog.extend_from_slice(digest);
        }
        while repos.peek().is_some() {
            let hub = repos.by_ref().take(HUB_COUNT).collect();
            catalog.extend(frame(&CatalogHead { xorbs: 0, files: 0, keys: None, hub }, 0));
        }
        catalog
    }

    /// Inverse of [`encode`](Self::encode). `blob` is the name of the catalog's blob, for errors.
    pub(super) fn decode(blob: &str, source: impl Read) -> Result<Self, ArchiveError> {
        let mut records = Records::new(blob, source);
        let mut entries = Self::default();
        while let Some(head) = records.next::<CatalogHead>()? {
            let lens = head.xorbs.checked_mul(32).zip(head.files.checked_mul(FILE_ENTRY_LEN));
            let lens = lens.filter(|(xorbs, files)| xorbs.checked_add(*files) == Some(records.body_len()));
            let (xorbs_len, files_len) = lens.ok_or_else(|| records.malformed("its lengths do not fit"))?;
            let xorbs = records.body(xorbs_len)?;
            entries.xorbs.extend(xorbs.as_chunks().0.iter().map(|hash| XorbHash::from_bytes(*hash)));
            let files = records.body(files_len)?;
            entries.files.extend(files.chunks_exact(32 + DIGEST_LEN).filter_map(|entry| {
                let (hash, digest) = entry.split_first_chunk()?;
                Some((FileHash::from_bytes(*hash), RecordDigest(digest.try_into().ok()?)))
            }));
            let not_hex = || records.malformed("a digest in it is not a number");
            let keys = head.keys.map(|keys| RecordDigest::from_hex(&keys).ok_or_else(not_hex)).transpose()?;
            entries.keys = keys.or(entries.keys);
            for (name, digest) in head.hub {
                entries.hub.insert(name, RecordDigest::from_hex(&digest).ok_or_else(not_hex)?);
            }
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catalog_of_many_repositories_has_heads_that_can_be_read() {
        for count in [0, 1, HUB_COUNT, HUB_COUNT + 1, 70_000] {
            let digest = RecordDigest::of(b"copy");
            let names = (0..count).map(|number| format!("models/{number}/{}", "n".repeat(240)));
            let entries = Entries {
                xorbs: vec![XorbHash::from_bytes([1; 32])],
                files: vec![(FileHash::from_bytes([2; 32]), digest)],
                keys: Some(digest),
                hub: names.map(|name| (name, digest)).collect(),
            };
            let decoded = Entries::decode("catalog/1", entries.encode().as_slice()).unwrap();
            assert_eq!((decoded.xorbs, decoded.files, decoded.keys), (entries.xorbs, entries.files, entries.keys));
            assert_eq!(decoded.hub, entries.hub, "{count}");
        }
    }
}
