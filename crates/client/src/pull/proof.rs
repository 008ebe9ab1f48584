//! Proof of a part of a file: summaries of the chunks around it (spec 5.9, 1.9).
//!
//! The server responds with a window of the file that contains the part, and with summaries of the
//! chunks before and after the window. The client joins these summaries with the hashes of the
//! window's chunks. If the result is the file's hash, the chunks are the right ones, and in the
//! right place. The route is meant for editing a file; a reader uses it without changing anything.

use std::sync::Arc;

use serde::Deserialize;
use xet_format::merkle::subtree::{JoinError, Subtree, SubtreeNode};
use xet_format::{ByteRange, FileHash};

use super::PullError;
use crate::activity::Activity;
use crate::error::RequestError;
use crate::retry::Retries;
use crate::server::Server;
use crate::watch::Watch;
use crate::wire::{SubtreeJson, WindowJson};

/// Maximum bytes of a response. It is so long because a response has a hash for every term of the
/// file outside the window.
const MAX_RESPONSE_LEN: usize = 64 << 20;

/// Response to `GET /v2/file-chunk-hashes/{file}`, as far as a reader needs it (spec 5.9).
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SurroundingsJson {
    file_size: u64,
    windows: Vec<WindowJson>,
    hash_ranges: Vec<Option<SubtreeJson>>,
}

/// The window that contains a part of a file, and the summaries of the chunks before and after it.
#[derive(Clone, Debug)]
pub(super) struct RangeProof {
    /// The bytes of the window: whole chunks that contain the part.
    pub(super) window: ByteRange,
    /// Whether the window ends the file.
    pub(super) is_last: bool,
    before: Option<Subtree>,
    after: Option<Subtree>,
}

/// Requests the summaries around these bytes of a file, with retries; `None` if the server does not
/// have this route.
pub(super) async fn range_proof(
    server: &Server,
    file: FileHash,
    file_len: u64,
    bytes: ByteRange,
    watch: &Arc<dyn Watch>,
) -> Result<Option<RangeProof>, PullError> {
    let mut retries = Retries::new(server.retry, Arc::clone(watch));
    loop {
        match request_once(server, file, bytes).await {
            Ok(json) => {
                let parsed = parse(&json, file_len, bytes)
                    .map_err(|what| PullError::request(file, server.invalid_response(what)))?;
                return Ok(Some(parsed));
            }
            Err(RequestError::Refused { refusal, .. }) if matches!(refusal.status, 404 | 501) => return Ok(None),
            Err(error) => retries.after(error).await.map_err(|error| PullError::request(file, error))?,
        }
    }
}

/// One attempt to request the summaries.
async fn request_once(server: &Server, file: FileHash, bytes: ByteRange) -> Result<SurroundingsJson, RequestError> {
    let request = server
        .get_request(&format!("v2/file-chunk-hashes/{file}"))
        .header("x-range-dirty", format!("bytes={}-{}", bytes.start(), bytes.last()));
    let response = server.send(request, &Activity::new()).await?;
    server.json_within(response, MAX_RESPONSE_LEN).await
}

/// Parses a response and checks that its window and summaries together are the whole file.
fn parse(json: &SurroundingsJson, file_len: u64, bytes: ByteRange) -> Result<RangeProof, &'static str> {
    let ([window], [before, after]) = (&json.windows[..], &json.hash_ranges[..]) else {
        return Err("it does not surround one part with two summaries");
    };
    let [start, end] = window.dirty_byte_range;
    let window = ByteRange::new(start, end)
        .filter(|window| window.start() <= bytes.start() && bytes.end() <= window.end() && window.end() <= file_len);
    let window = window.ok_or("its window does not hold the part")?;
    let (before, after) = (subtree(before.as_ref())?, subtree(after.as_ref())?);
    let len = |subtree: &Option<Subtree>| subtree.as_ref().map_or(0, Subtree::raw_len);
    if json.file_size != file_len || len(&before) != window.start() || len(&after) != file_len - window.end() {
        return Err("its summaries do not meet the part");
    }
    Ok(RangeProof { window, is_last: after.is_none(), before, after })
}

fn subtree(json: Option<&SubtreeJson>) -> Result<Option<Subtree>, &'static str> {
    let Some(json) = json else { return Ok(None) };
    let nodes: Vec<_> = json.nodes.iter().map(|node| SubtreeNode { hash: node.hash.0, raw_len: node.size }).collect();
    let subtree = Subtree::from_parts(&nodes, &json.levels, json.at_start, json.at_end);
    subtree.map(Some).map_err(|_| "a summary is malformed")
}

impl RangeProof {
    /// The hash of the file whose window has the chunks of the summary `window`; `None` if the
    /// summaries cannot be joined.
    pub(super) fn file_hash(&self, window: &Subtree) -> Option<FileHash> {
        let join = || -> Result<Subtree, JoinError> {
            let start = match &self.before {
                Some(before) => before.join(window)?,
                None => window.clone(),
            };
            match &self.after {
                Some(after) => start.join(after),
                None => Ok(start),
            }
        };
        join().ok()?.file_hash()
    }
}

#[cfg(test)]
mod tests;
