//! The format of records: two lengths, a head in JSON and a body in bytes. [`archive`](super) has
//! the layout of each kind.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::ArchiveError;
use crate::format::limits::MAX_STORED_SHARD_LEN;
use crate::format::shard::{Sha256, Term};
use crate::format::{ChunkRange, FileHash, XorbHash};
use crate::index::{FileRecord, Sha256State};
use crate::rca::Error as RcaError;
use crate::runtime::clock::Timestamp;

/// Maximum length of a head in bytes. The head of a file with a hundred thousand repositories is
/// shorter.
const MAX_HEAD_LEN: u32 = 16 << 20;

/// Bytes of a body that are read at once.
const STEP_LEN: usize = 1 << 20;

/// Maximum capacity that is allocated for a body before its bytes are read: the length of a full
/// xorb.
const RESERVE_LEN: usize = 64 << 20;

/// Maximum length of the terms of a file. They were in a shard, where a term takes more bytes.
const MAX_TERMS_LEN: u64 = MAX_STORED_SHARD_LEN;

/// Maximum length of the text of the keys: far more than any number of keys and accounts.
pub(super) const MAX_KEYS_LEN: u64 = 64 << 20;

/// Maximum length of the body of a record of the Hub: a directory of 100 000 entries has 28 MB.
pub(super) const MAX_HUB_LEN: u64 = 64 << 20;

/// Length of one term in the body of a file's record.
const TERM_LEN: usize = 44;

/// Length of the two lengths at the beginning of a record.
const FRAME_LEN: usize = 12;

/// The head of a xorb's record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct XorbHead {
    pub(super) xorb: String,
    pub(super) chunks: u32,
}

/// The head of a file's record: a [`FileRecord`] without its terms.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileHead {
    pub(super) file: String,
    len: u64,
    since_ms: u64,
    sha256: Option<String>,
    sha256_state: Option<State>,
    repos: Vec<String>,
    /// When each repository registered the file that was not the first, by its index.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    later_ms: BTreeMap<u32, u64>,
    /// Which of the repositories claim the sha256, as indexes, if it is only claimed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    claimants: Vec<u32>,
    /// For each owner, which xorbs of the file it owns, as indexes into [`distinct_xorbs`] of the
    /// terms.
    owners: BTreeMap<String, Vec<u32>>,
}

/// The state of the sha256 in the head of a file's record.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Claimed,
    Verified,
    /// The sha256 is not the digest of the file. Older versions wrote this state. It is read as if
    /// the record had no sha256.
    #[serde(rename = "void")]
    Mismatch,
}

/// The head of a record of keys.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeysHead {
    /// The format of the body: always `key-file`.
    pub(super) keys: String,
}

/// The head of the record in a catalog.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CatalogHead {
    /// The number of xorb hashes in the body.
    pub(super) xorbs: u64,
    /// The number of file hashes in the body, each with a digest.
    pub(super) files: u64,
    /// The digest of the last record of keys, in hex.
    pub(super) keys: Option<String>,
    /// The digest of the last copy of each Hub repository, in hex. Only where there are any, so
    /// that older versions can read other archives.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) hub: BTreeMap<String, String>,
}

/// The beginning of a record whose body has `body_len` bytes: the two lengths and the head.
pub(super) fn frame(head: &impl Serialize, body_len: u64) -> Vec<u8> {
    let head = serde_json::to_vec(head).expect("heads have string keys and finite numbers");
    let mut frame = Vec::with_capacity(FRAME_LEN + head.len());
    // If the length of a head does not fit into 32 bits, `u32::MAX` is written. That is above
    // `MAX_HEAD_LEN`, so such a record is refused and never misread.
    frame.extend_from_slice(&u32::try_from(head.len()).unwrap_or(u32::MAX).to_le_bytes());
    frame.extend_from_slice(&body_len.to_le_bytes());
    frame.extend_from_slice(&head);
    frame
}

/// Whether the record can be read back: its head has at most `MAX_HEAD_LEN` bytes.
pub(super) fn is_readable(record: &[u8]) -> bool {
    record.first_chunk().is_some_and(|len| u32::from_le_bytes(*len) <= MAX_HEAD_LEN)
}

/// The whole record of a file: lengths, head and body.
pub(super) fn encode_file(file: &FileRecord) -> Vec<u8> {
    let head = FileHead {
        file: file.hash.to_string(),
        len: file.raw_len,
        since_ms: file.since.as_millis(),
        sha256: file.sha256.map(|(sha256, _)| sha256.to_string()),
        sha256_state: file.sha256.map(|(_, state)| match state {
            Sha256State::Claimed => State::Claimed,
            Sha256State::Verified => State::Verified,
        }),
        repos: file.repos.clone(),
        later_ms: encode_later(file),
        claimants: encode_claimants(file),
        owners: encode_owners(file),
    };
    let mut record = frame(&head, (file.terms.len() * TERM_LEN) as u64);
    for term in &file.terms {
        record.extend_from_slice(term.xorb.as_bytes());
        for number in [term.chunks.start(), term.chunks.end(), term.raw_len] {
            record.extend_from_slice(&number.to_le_bytes());
        }
    }
    record
}

/// Inverse of [`encode_file`]. The error says what is malformed.
fn decode_file(head: FileHead, body: &[u8]) -> Result<FileRecord, String> {
    let sha256 = match (head.sha256, head.sha256_state) {
        (None, None) => None,
        (Some(text), Some(state)) => {
            let sha256 = parse::<Sha256>(&text)?;
            match state {
                State::Claimed => Some((sha256, Sha256State::Claimed)),
                State::Verified => Some((sha256, Sha256State::Verified)),
                State::Mismatch => None,
            }
        }
        _ => return Err("a sha256 and its state come together".to_owned()),
    };
    let (terms, rest) = body.as_chunks::<TERM_LEN>();
    let terms: Option<Vec<Term>> = terms.iter().map(decode_term).collect();
    let terms = terms.filter(|_| rest.is_empty()).ok_or("its terms are not whole")?;
    let owners = decode_owners(&head.owners, &terms).ok_or("a xorb that has an owner is not among its terms")?;
    let repo = |place: &u32| head.repos.get(usize::try_from(*place).ok()?).cloned();
    let later = head.later_ms.iter().map(|(place, since)| Some((repo(place)?, Timestamp::from_millis(*since))));
    let later =
        later.collect::<Option<_>>().ok_or("a repository with a time of its own is none of its repositories")?;
    // Ascending, so that no repository is copied more than once.
    let is_ascending = head.claimants.is_sorted_by(|a, b| a < b);
    let claimants: Option<Vec<String>> = if is_ascending { head.claimants.iter().map(repo).collect() } else { None };
    let claimants = claimants.ok_or("the repositories that claim its sha256 are not some of its repositories")?;
    Ok(FileRecord {
        hash: parse::<FileHash>(&head.file)?,
        raw_len: head.len,
        terms,
        since: Timestamp::from_millis(head.since_ms),
        sha256,
        repos: head.repos,
        later,
        claimants,
        owners,
    })
}

/// [`FileHead::later_ms`] of a file.
fn encode_later(file: &FileRecord) -> BTreeMap<u32, u64> {
    let repos = file.repos.iter().zip(0..);
    repos.filter_map(|(repo, place)| Some((place, file.later.get(repo)?.as_millis()))).collect()
}

/// [`FileHead::claimants`] of a file.
fn encode_claimants(file: &FileRecord) -> Vec<u32> {
    let claimants: HashSet<&String> = file.claimants.iter().collect();
    let repos = file.repos.iter().zip(0..);
    repos.filter(|(repo, _)| claimants.contains(repo)).map(|(_, place)| place).collect()
}

/// The xorbs of these terms, each once, in the order of the first term of each.
fn distinct_xorbs(terms: &[Term]) -> Vec<XorbHash> {
    let mut seen = HashSet::new();
    terms.iter().map(|term| term.xorb).filter(|xorb| seen.insert(*xorb)).collect()
}

/// [`FileHead::owners`] of a file.
fn encode_owners(file: &FileRecord) -> BTreeMap<String, Vec<u32>> {
    let places: HashMap<XorbHash, u32> = distinct_xorbs(&file.terms).into_iter().zip(0..).collect();
    let mut owners: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (xorb, owner) in &file.owners {
        owners.entry(owner.clone()).or_default().extend(places.get(xorb));
    }
    owners
}

/// Inverse of [`encode_owners`], ascending. `None` if an index is too great.
fn decode_owners(owners: &BTreeMap<String, Vec<u32>>, terms: &[Term]) -> Option<Vec<(XorbHash, String)>> {
    let xorbs = distinct_xorbs(terms);
    let pairs = owners.iter().flat_map(|(owner, places)| places.iter().map(move |place| (place, owner)));
    let xorb = |place: &u32| xorbs.get(usize::try_from(*place).ok()?).copied();
    let mut pairs: Vec<_> = pairs.map(|(place, owner)| Some((xorb(place)?, owner.clone()))).collect::<Option<_>>()?;
    pairs.sort_unstable_by(|a, b| (a.0.as_bytes(), &a.1).cmp(&(b.0.as_bytes(), &b.1)));
    Some(pairs)
}

/// Parses a term; `None` if its range of chunks is invalid.
fn decode_term(term: &[u8; TERM_LEN]) -> Option<Term> {
    let (xorb, numbers) = term.split_first_chunk::<32>()?;
    let (numbers, []) = numbers.as_chunks::<4>() else { return None };
    let [start, end, raw_len] = numbers else { return None };
    let chunks = ChunkRange::new(u32::from_le_bytes(*start), u32::from_le_bytes(*end))?;
    Some(Term { xorb: XorbHash::from_bytes(*xorb), chunks, raw_len: u32::from_le_bytes(*raw_len) })
}

/// Parses a hash in its text form.
pub(super) fn parse<T: FromStr>(text: &str) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error| format!("{text:?} is not a hash: {error}"))
}

/// Reads the records of one blob.
#[derive(Debug)]
pub(super) struct Records<'a, R> {
    blob: &'a str,
    source: R,
    /// The number of bytes of the current record's body that were not read yet.
    left: u64,
}

impl<'a, R: Read> Records<'a, R> {
    /// A reader of the records in `source`, the content of a blob. `blob` is its name, for errors.
    pub(super) fn new(blob: &'a str, source: R) -> Self {
        Self { blob, source, left: 0 }
    }

    /// Skips the rest of the current record's body, and reads the head of the next record. `None`
    /// at the end of the blob.
    pub(super) fn next<H: DeserializeOwned>(&mut self) -> Result<Option<H>, ArchiveError> {
        self.skip_body()?;
        let mut frame = [0; FRAME_LEN];
        let frame_len = self.fill(&mut frame)?;
        if frame_len == 0 {
            return Ok(None);
        }
        let [a, b, c, d, body_len @ ..] = frame;
        let head_len = u32::from_le_bytes([a, b, c, d]);
        if frame_len < FRAME_LEN || head_len > MAX_HEAD_LEN {
            return Err(self.malformed("it has no whole record"));
        }
        let mut head = vec![0; head_len as usize];
        if self.fill(&mut head)? < head.len() {
            return Err(self.malformed("it ends within a head"));
        }
        self.left = u64::from_le_bytes(body_len);
        let head = serde_json::from_slice(&head);
        head.map(Some).map_err(|error| self.malformed(&error.to_string()))
    }

    /// Reads the next `len` bytes of the current record's body.
    pub(super) fn body(&mut self, len: u64) -> Result<Vec<u8>, ArchiveError> {
        if len > self.left {
            return Err(self.malformed("a body is shorter than its head says"));
        }
        self.left -= len;
        let mut missing = usize::try_from(len).unwrap_or(usize::MAX);
        // For a longer body than that of a full xorb, memory is allocated only as bytes are read.
        // So a wrong length in a damaged archive does not exhaust the memory.
        let mut body = Vec::with_capacity(missing.min(RESERVE_LEN));
        while missing > 0 {
            let (at, step) = (body.len(), missing.min(STEP_LEN));
            body.resize(at + step, 0);
            if self.fill(&mut body[at..])? < step {
                return Err(self.malformed("it ends within a body"));
            }
            missing -= step;
        }
        Ok(body)
    }

    /// Reads the whole body of the current record, which has at most `max_len` bytes.
    pub(super) fn whole_body(&mut self, max_len: u64) -> Result<Vec<u8>, ArchiveError> {
        if self.left > max_len {
            return Err(self.malformed("a body is longer than any of its kind"));
        }
        self.body(self.left)
    }

    /// The number of bytes of the current record's body that were not read yet.
    pub(super) const fn body_len(&self) -> u64 {
        self.left
    }

    /// Reads the body that belongs to this head, which was just read, and returns the file.
    pub(super) fn file(&mut self, head: FileHead) -> Result<FileRecord, ArchiveError> {
        let body = self.whole_body(MAX_TERMS_LEN)?;
        decode_file(head, &body).map_err(|reason| self.malformed(&reason))
    }

    /// The error for a malformed blob.
    pub(super) fn malformed(&self, reason: &str) -> ArchiveError {
        ArchiveError::Malformed { blob: self.blob.to_owned(), reason: reason.to_owned() }
    }

    /// Reads and discards the rest of the current record's body.
    fn skip_body(&mut self) -> Result<(), ArchiveError> {
        let mut sink = vec![0; STEP_LEN.min(usize::try_from(self.left).unwrap_or(STEP_LEN))];
        while self.left > 0 {
            let step = sink.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            let len = self.fill(&mut sink[..step])?;
            if len < step {
                return Err(self.malformed("it ends within a body"));
            }
            self.left -= len as u64;
        }
        Ok(())
    }

    /// Reads until the buffer is full or the blob ends. Returns the number of bytes that were read.
    fn fill(&mut self, buf: &mut [u8]) -> Result<usize, ArchiveError> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.source.read(&mut buf[filled..]) {
                Ok(0) => break,
                Ok(len) => filled += len,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // The reader of the archive wraps its own errors in `io::Error`. For any other
                    // error, the offset in the archive is not known here.
                    let io = |source| RcaError::Io { op: "read", offset: 0, source };
                    return Err(RcaError::from_io(error).unwrap_or_else(io).into());
                }
            }
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claimants_and_times_are_of_repositories_of_the_file() {
        let decoded = |claimants: &[u32], later: serde_json::Value| {
            let hash = "ab".repeat(32);
            let head = json!({
                "file": hash, "len": 0, "since_ms": 5, "sha256": hash, "sha256_state": "claimed",
                "repos": ["a", "b", "c"], "later_ms": later, "claimants": claimants, "owners": {},
            });
            decode_file(serde_json::from_value(head).unwrap(), &[])
        };
        for places in [&[][..], &[1], &[0, 2], &[0, 1, 2]] {
            let file = decoded(places, json!({ "0": 7, "2": 6 })).unwrap();
            let names: Vec<&str> = places.iter().map(|place| ["a", "b", "c"][*place as usize]).collect();
            assert_eq!(file.claimants, names);
            let later = [("a", 7), ("c", 6)].map(|(repo, ms)| (repo.to_owned(), Timestamp::from_millis(ms)));
            assert_eq!(file.later, BTreeMap::from(later));
            let record = encode_file(&file);
            let mut records = Records::new("files/1", record.as_slice());
            let head = records.next::<FileHead>().unwrap().unwrap();
            assert_eq!(head.claimants, places);
            assert_eq!(records.file(head).unwrap(), file);
        }
        assert!(decoded(&[], json!({ "3": 7 })).is_err());
        for places in [&[3][..], &[1, 1], &[2, 1]] {
            assert!(decoded(places, json!({})).is_err(), "{places:?}");
        }
    }
}
