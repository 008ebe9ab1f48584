//! Reconstruction plans (spec 5.1): which byte ranges of which xorbs hold the chunks of a file.
//!
//! A plan is from the server and not trusted. After parsing, each term is within a part and all
//! lengths are within the limits, so it is safe to allocate what they say. It may still be false:
//! only the hashes of the fetched chunks prove that they are those of the file.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use reqwest::header::RANGE;
use xet_format::limits::{
    CHUNK_HEADER_LEN, MAX_CHUNK_PAYLOAD_LEN, MAX_CHUNK_RAW_LEN, MAX_XORB_BODY_LEN, MAX_XORB_CHUNK_COUNT,
};
use xet_format::{ByteRange, ChunkRange, FileHash, XorbHash};

use super::PullError;
use crate::activity::Activity;
use crate::error::RequestError;
use crate::retry::Retries;
use crate::server::Server;
use crate::watch::Watch;
use crate::wire::{ChunkRangeJson, FetchJson, ReconstructionV2Json, TermJson};

/// Maximum bytes of a plan in JSON. The plan of a window or a batch is far shorter, unless its
/// terms are very short.
pub(super) const MAX_PLAN_LEN: usize = 64 << 20;

/// What to fetch for a range of one file, or for several whole files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Bytes of the first term before the requested range.
    pub(super) skipped_len: u64,
    /// The terms in the order of the file; for several files, file by file.
    pub(super) terms: Vec<Term>,
    /// The parts that the terms need. Several terms may need the same part.
    pub(super) parts: Vec<Part>,
}

/// A range of chunks of one xorb, which are consecutive in the file, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Term {
    /// The part that contains the chunks: an index into [`Plan::parts`].
    pub(super) part: usize,
    /// The indexes of the chunks in the xorb.
    pub(super) chunks: ChunkRange,
    /// Their raw bytes, as the server states them.
    pub(super) raw_len: u64,
}

/// Chunks of a xorb that are fetched with one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) xorb: XorbHash,
    pub(super) chunks: ChunkRange,
    /// The bytes of the chunks in the serialized xorb.
    pub(super) bytes: ByteRange,
    /// The parts of one entry share it.
    pub(super) url: Arc<str>,
}

impl Plan {
    /// Raw bytes of all terms.
    pub(super) fn raw_len(&self) -> u64 {
        self.terms.iter().map(|term| term.raw_len).fold(0, u64::saturating_add)
    }

    /// The URL that this plan has for a part of an earlier plan.
    pub(super) fn url_of(&self, part: &Part) -> Option<&Arc<str>> {
        let is_same = |other: &&Part| (other.xorb, other.chunks, other.bytes) == (part.xorb, part.chunks, part.bytes);
        self.parts.iter().find(is_same).map(|part| &part.url)
    }
}

/// Requests the plan of a range of a file, with retries. `None`: the range begins past the end of
/// the file.
pub(super) async fn plan(
    server: &Server,
    file: FileHash,
    range: ByteRange,
    watch: &Arc<dyn Watch>,
) -> Result<Option<Plan>, PullError> {
    let mut retries = Retries::new(server.retry, Arc::clone(watch));
    loop {
        match plan_once(server, file, range).await {
            Ok(json) => {
                return parse(&json, range)
                    .map(Some)
                    .map_err(|what| PullError::request(file, server.invalid_response(what)));
            }
            Err(RequestError::Refused { refusal, .. }) if refusal.status == 416 => return Ok(None),
            Err(RequestError::Refused { refusal, .. }) if refusal.status == 404 => {
                return Err(PullError::NotFound { file });
            }
            Err(error) => retries.after(error).await.map_err(|error| PullError::request(file, error))?,
        }
    }
}

/// One attempt of [`plan`].
pub(super) async fn plan_once(
    server: &Server,
    file: FileHash,
    range: ByteRange,
) -> Result<ReconstructionV2Json, RequestError> {
    let request = server
        .get_request(&format!("v2/reconstructions/{file}"))
        .header(RANGE, format!("bytes={}-{}", range.start(), range.last()));
    let response = server.send(request, &Activity::new()).await?;
    server.json_within(response, MAX_PLAN_LEN).await
}

/// Parses the plan of a range and checks it against the limits, because the fetcher allocates as
/// much memory as its lengths say.
fn parse(json: &ReconstructionV2Json, range: ByteRange) -> Result<Plan, &'static str> {
    let (parts, places) = parse_parts(&json.xorbs)?;
    let terms = json.terms.iter().map(|term| parse_term(term, &parts, &places)).collect::<Result<Vec<_>, _>>()?;
    let plan = Plan { skipped_len: json.offset_into_first_range, terms, parts };
    match plan.terms.first() {
        None => return Err("it has no terms for a non-empty range"),
        Some(first) if plan.skipped_len >= first.raw_len => return Err("its first term is outside the range"),
        Some(_) => {}
    }
    // Only the last chunk may extend past the requested range.
    let max_len = range.byte_len().saturating_add(plan.skipped_len).saturating_add(MAX_CHUNK_RAW_LEN.into());
    if plan.raw_len() > max_len {
        return Err("it has more than requested");
    }
    Ok(plan)
}

/// Parses one term, and finds the part that contains its chunks.
pub(super) fn parse_term(term: &TermJson, parts: &[Part], places: &Places) -> Result<Term, &'static str> {
    let xorb: XorbHash = term.hash.parse().map_err(|_| "the xorb hash of a term is malformed")?;
    let chunks = chunks(&term.range).ok_or("a term has impossible chunks")?;
    let count = u64::from(chunks.count());
    if term.unpacked_length < count || term.unpacked_length > count * u64::from(MAX_CHUNK_RAW_LEN) {
        return Err("a term has an impossible length");
    }
    // Only the last part that begins at or before the term is tried. Servers send parts that do not
    // overlap, so no other part can contain the term.
    let index = places.get(&xorb).and_then(|of_xorb| {
        let after = of_xorb.partition_point(|(start, _)| *start <= chunks.start());
        of_xorb.get(after.checked_sub(1)?).map(|(_, index)| *index)
    });
    let part = index.filter(|index| parts.get(*index).is_some_and(|part| chunks.end() <= part.chunks.end()));
    let part = part.ok_or("no URL covers the chunks of a term")?;
    Ok(Term { part, chunks, raw_len: term.unpacked_length })
}

/// For each xorb, a pair per part, in ascending order: the index of its first chunk in the xorb,
/// and its index in [`Plan::parts`].
pub(super) type Places = HashMap<XorbHash, Vec<(u32, usize)>>;

/// Parses the parts, and indexes them by xorb.
pub(super) fn parse_parts(xorbs: &BTreeMap<String, Vec<FetchJson>>) -> Result<(Vec<Part>, Places), &'static str> {
    let mut parts = Vec::new();
    let mut places = Places::new();
    for (hash, entries) in xorbs {
        let xorb: XorbHash = hash.parse().map_err(|_| "its URLs are for a malformed xorb hash")?;
        for entry in entries {
            let url: Arc<str> = entry.url.as_str().into();
            for range in &entry.ranges {
                let chunks = chunks(&range.chunks).ok_or("a URL has impossible chunks")?;
                // In the JSON, the end of a chunk range is exclusive and that of a byte range is
                // not.
                let end = range.bytes.end.checked_add(1).ok_or("a URL has impossible bytes")?;
                let bytes = ByteRange::new(range.bytes.start, end).filter(|bytes| bytes.end() <= MAX_XORB_BODY_LEN);
                let max_len = u64::from(chunks.count()) * u64::from(CHUNK_HEADER_LEN + MAX_CHUNK_PAYLOAD_LEN);
                let bytes = bytes.filter(|bytes| bytes.byte_len() <= max_len).ok_or("a URL has impossible bytes")?;
                places.entry(xorb).or_default().push((chunks.start(), parts.len()));
                parts.push(Part { xorb, chunks, bytes, url: Arc::clone(&url) });
            }
        }
    }
    places.values_mut().for_each(|places| places.sort_unstable());
    Ok((parts, places))
}

fn chunks(range: &ChunkRangeJson) -> Option<ChunkRange> {
    ChunkRange::new(range.start, range.end).filter(|chunks| chunks.end() <= MAX_XORB_CHUNK_COUNT)
}

#[cfg(test)]
mod tests;
