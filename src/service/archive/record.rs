//! Records: their lengths, a head in JSON and a body in bytes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::ArchiveError;
use crate::format::shard::{Sha256, Term};
use crate::format::{ChunkRange, FileHash, XorbHash};
use crate::index::{FileRecord, Sha256State};
use crate::rca::Error as RcaError;
use crate::runtime::clock::Timestamp;

/// Bytes of a head, at most: the names of a hundred thousand repositories fit.
const MAX_HEAD_LEN: u32 = 16 << 20;

/// Bytes of a body that are read at once.
const STEP_LEN: usize = 1 << 20;

/// Bytes of a body that are reserved at once: those of a full xorb.
const RESERVE_LEN: usize = 64 << 20;

/// Bytes of one term in the body of a file's record.
const TERM_LEN: usize = 44;

/// Bytes of the lengths in front of a record.
const FRAME_LEN: usize = 12;

/// Head of a xorb's record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct XorbHead {
    pub(super) xorb: String,
    pub(super) chunks: u32,
}

/// Head of a file's record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileHead {
    pub(super) file: String,
    len: u64,
    since_ms: u64,
    sha256: Option<String>,
    sha256_state: Option<State>,
    repos: Vec<String>,
    /// The owners of its xorbs: for each name, places in the list of the distinct xorbs in the
    /// order of the terms.
    owners: BTreeMap<String, Vec<u32>>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Claimed,
    Verified,
    /// The file has another digest; versions that wrote this stored no more. Read as unknown.
    #[serde(rename = "void")]
    Mismatch,
}

/// Head of a record of keys.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeysHead {
    /// The form of the body: that of the key file.
    pub(super) keys: String,
}

/// Head of a catalog.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CatalogHead {
    /// How many xorb hashes.
    pub(super) xorbs: u64,
    /// How many file hashes, with a digest each.
    pub(super) files: u64,
    /// Digest of the keys, in hex.
    pub(super) keys: Option<String>,
}

/// The lengths and the head of a record whose body has `body_len` bytes.
pub(super) fn frame(head: &impl Serialize, body_len: u64) -> Vec<u8> {
    let head = serde_json::to_vec(head).expect("heads have string keys and finite numbers");
    let mut frame = Vec::with_capacity(FRAME_LEN + head.len());
    // A head beyond the limit for reading, which is far below 32 bits, is refused then and never
    // misread.
    frame.extend_from_slice(&u32::try_from(head.len()).unwrap_or(u32::MAX).to_le_bytes());
    frame.extend_from_slice(&body_len.to_le_bytes());
    frame.extend_from_slice(&head);
    frame
}

/// Whether a record that was framed here can be read back: its head must not be too long.
pub(super) fn is_readable(record: &[u8]) -> bool {
    record.first_chunk().is_some_and(|len| u32::from_le_bytes(*len) <= MAX_HEAD_LEN)
}

/// A file's record in its stored form, head and body.
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

/// Inverse of [`encode_file`].
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
    Ok(FileRecord {
        hash: parse::<FileHash>(&head.file)?,
        raw_len: head.len,
        terms,
        since: Timestamp::from_millis(head.since_ms),
        sha256,
        repos: head.repos,
        owners,
    })
}

/// The distinct xorbs of these terms, in their order.
fn distinct_xorbs(terms: &[Term]) -> Vec<XorbHash> {
    let mut seen = HashSet::new();
    terms.iter().map(|term| term.xorb).filter(|xorb| seen.insert(*xorb)).collect()
}

fn encode_owners(file: &FileRecord) -> BTreeMap<String, Vec<u32>> {
    let places: HashMap<XorbHash, u32> = distinct_xorbs(&file.terms).into_iter().zip(0..).collect();
    let mut owners: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (xorb, owner) in &file.owners {
        owners.entry(owner.clone()).or_default().extend(places.get(xorb));
    }
    owners
}

fn decode_owners(owners: &BTreeMap<String, Vec<u32>>, terms: &[Term]) -> Option<Vec<(XorbHash, String)>> {
    let xorbs = distinct_xorbs(terms);
    let pairs = owners.iter().flat_map(|(owner, places)| places.iter().map(move |place| (place, owner)));
    let xorb = |place: &u32| xorbs.get(usize::try_from(*place).ok()?).copied();
    let mut pairs: Vec<_> = pairs.map(|(place, owner)| Some((xorb(place)?, owner.clone()))).collect::<Option<_>>()?;
    pairs.sort_unstable_by(|a, b| (a.0.as_bytes(), &a.1).cmp(&(b.0.as_bytes(), &b.1)));
    Some(pairs)
}

fn decode_term(term: &[u8; TERM_LEN]) -> Option<Term> {
    let (xorb, numbers) = term.split_first_chunk::<32>()?;
    let (numbers, []) = numbers.as_chunks::<4>() else { return None };
    let [start, end, raw_len] = numbers else { return None };
    let chunks = ChunkRange::new(u32::from_le_bytes(*start), u32::from_le_bytes(*end))?;
    Some(Term { xorb: XorbHash::from_bytes(*xorb), chunks, raw_len: u32::from_le_bytes(*raw_len) })
}

/// Reads a hash in its text form.
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
    /// Bytes of the record's body that were not read yet.
    left: u64,
}

impl<'a, R: Read> Records<'a, R> {
    /// The records of the blob with this name.
    pub(super) fn new(blob: &'a str, source: R) -> Self {
        Self { blob, source, left: 0 }
    }

    /// The head of the next record; `None` at the end of the blob. The rest of the previous body is
    /// skipped.
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

    /// The next bytes of the record's body, exactly so many.
    pub(super) fn body(&mut self, len: u64) -> Result<Vec<u8>, ArchiveError> {
        if len > self.left {
            return Err(self.malformed("a body is shorter than its head says"));
        }
        self.left -= len;
        let mut missing = usize::try_from(len).unwrap_or(usize::MAX);
        // Beyond a full xorb, memory is taken for received bytes, not for announced ones.
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

    /// Bytes of the body that are left.
    pub(super) const fn body_len(&self) -> u64 {
        self.left
    }

    /// The file whose head was just read.
    pub(super) fn file(&mut self, head: FileHead) -> Result<FileRecord, ArchiveError> {
        let body = self.body(self.left)?;
        decode_file(head, &body).map_err(|reason| self.malformed(&reason))
    }

    /// The error for malformed contents.
    pub(super) fn malformed(&self, reason: &str) -> ArchiveError {
        ArchiveError::Malformed { blob: self.blob.to_owned(), reason: reason.to_owned() }
    }

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

    /// Reads until the buffer is full or the blob ends; returns how many bytes there were.
    fn fill(&mut self, buf: &mut [u8]) -> Result<usize, ArchiveError> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.source.read(&mut buf[filled..]) {
                Ok(0) => break,
                Ok(len) => filled += len,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let io = |source| RcaError::Io { op: "read", offset: 0, source };
                    return Err(RcaError::from_io(error).unwrap_or_else(io).into());
                }
            }
        }
        Ok(filled)
    }
}
