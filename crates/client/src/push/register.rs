//! Registers pushed files (spec 5.6), after the server has acknowledged all their xorbs.
//!
//! After `Ok` the files of the shard are registered. A second registration of the same shard
//! changes nothing, so a request whose response was lost is sent again.

use std::collections::HashSet;
use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use reqwest::{Response, StatusCode};
use serde::Deserialize;
use xet_format::limits::{MAX_SHARD_FILE_COUNT, MAX_SHARD_LEN, MAX_SHARD_TERM_CHUNK_COUNT};
use xet_format::shard::{CasInfo, FileInfo, Shard, write_upload};
use xet_format::{FileHash, XorbHash};

use super::{PushError, PushWatch, RetriesOnly};
use crate::activity::Activity;
use crate::body::with_body;
use crate::error::{Failure, RequestError};
use crate::retry::Retries;
use crate::server::{Server, request_id};

/// A shard does not grow beyond this length, except if its first file alone is longer (spec 4.8).
const TARGET_SHARD_LEN: u64 = 64 << 20;

/// Maximum bytes of one event line (spec 5.6).
const MAX_LINE_LEN: usize = 1 << 20;

/// Bytes of a record in a shard (spec 4).
const RECORD_LEN: u64 = 48;

/// An event: one line of the response to `POST /v2/shards`. Unknown events are skipped (spec 5.6).
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum ShardEventJson {
    /// Everything is registered.
    Result {},
    /// Nothing is registered.
    Error {
        message: String,
        code: Option<String>,
        #[serde(default)]
        retryable: bool,
    },
    #[serde(other)]
    Other,
}

/// Distributes xorbs and files over shards, in the order in which they are added. A file may be in
/// another shard than its xorbs (spec 4.8).
#[derive(Debug, Default)]
pub(super) struct Shards {
    done: Vec<Shard>,
    open: Shard,
    /// Bytes of the records in `open`, without the header and the two section ends.
    len: u64,
    /// Chunks that the terms of its files name.
    chunk_count: u64,
    /// The xorbs that were added. A file may have formed the same one several times.
    xorbs: HashSet<XorbHash>,
}

impl Shards {
    pub(super) fn add_xorb(&mut self, xorb: CasInfo) {
        if !self.xorbs.insert(xorb.hash) {
            return;
        }
        self.grow(RECORD_LEN * (1 + xorb.chunks.len() as u64), 0);
        self.open.xorbs.push(xorb);
    }

    pub(super) fn add_file(&mut self, file: FileInfo) {
        // Two records for the file's header and sha256, and two for each term and its range hash.
        let chunk_count = file.terms.iter().map(|term| u64::from(term.chunks.count())).sum();
        self.grow(RECORD_LEN * (2 + 2 * file.terms.len() as u64), chunk_count);
        self.open.files.push(file);
    }

    pub(super) fn finish(mut self) -> Vec<Shard> {
        if self.len > 0 {
            self.done.push(self.open);
        }
        self.done
    }

    /// Begins a new shard if `open` has not enough space for `len` more bytes, or has as many files
    /// or chunks of terms as a shard may have.
    fn grow(&mut self, len: u64, chunk_count: u64) {
        // The shard also has a header and two section ends: three records.
        let is_full = self.len > 0 && self.len + len > TARGET_SHARD_LEN - 3 * RECORD_LEN;
        let has_most_chunks = self.chunk_count > 0 && self.chunk_count + chunk_count > MAX_SHARD_TERM_CHUNK_COUNT;
        if is_full || has_most_chunks || self.open.files.len() == MAX_SHARD_FILE_COUNT {
            self.done.push(mem::take(&mut self.open));
            (self.len, self.chunk_count) = (0, 0);
        }
        self.len += len;
        self.chunk_count += chunk_count;
    }
}

/// Registers one shard, with retries.
pub(super) async fn register(server: &Server, shard: &Shard, watch: Arc<dyn PushWatch>) -> Result<(), PushError> {
    let bytes: Bytes = write_upload(shard).map_err(PushError::Shard)?.into();
    if bytes.len() as u64 > MAX_SHARD_LEN {
        return Err(PushError::TooFragmented { file: shard.files.first().map_or(FileHash::EMPTY, |file| file.hash) });
    }
    let mut retries = Retries::new(server.retry, Arc::new(RetriesOnly(watch)));
    loop {
        match register_once(server, bytes.clone()).await {
            Ok(()) => return Ok(()),
            Err(error) => retries.after(error).await.map_err(PushError::Register)?,
        }
    }
}

/// One attempt. It uses `/v2/shards`, which sends events during a long registration, so that the
/// connection does not time out. For servers without this route it uses `/v1/shards`.
async fn register_once(server: &Server, shard: Bytes) -> Result<(), RequestError> {
    match post(server, "v2/shards", shard.clone()).await {
        Ok(response) => last_event(server, response).await,
        Err(RequestError::Refused { refusal, .. }) if is_missing_route(refusal.status) => {
            // The body is 0 (was registered already) or 1 (is registered now). Both are success.
            post(server, "v1/shards", shard).await.map(drop)
        }
        Err(error) => Err(error),
    }
}

/// Whether the status means that the server does not have the route.
fn is_missing_route(status: u16) -> bool {
    status == StatusCode::NOT_FOUND || status == StatusCode::NOT_IMPLEMENTED
}

async fn post(server: &Server, path: &str, shard: Bytes) -> Result<Response, RequestError> {
    let activity = Arc::new(Activity::new());
    let request = with_body(server.post_request(path), shard, Arc::clone(&activity), drop);
    server.send(request, &activity).await
}

/// Reads events up to the result or the error. Returns the error as a [`RequestError`].
async fn last_event(server: &Server, mut response: Response) -> Result<(), RequestError> {
    let id = request_id(&response);
    let mut line = Vec::new();
    loop {
        let piece = server.next_piece(&mut response).await?;
        let is_over = piece.is_none();
        for byte in piece.iter().flatten().copied().chain(is_over.then_some(b'\n')) {
            if byte != b'\n' {
                if line.len() >= MAX_LINE_LEN {
                    return Err(server.invalid_response("a line of its events is too long"));
                }
                line.push(byte);
            } else if !line.is_empty() {
                let event: ShardEventJson = serde_json::from_slice(&line)
                    .map_err(|_| server.invalid_response("a line of its events is not an event"))?;
                line.clear();
                match event {
                    ShardEventJson::Result {} => return Ok(()),
                    ShardEventJson::Error { message, code, retryable } => {
                        let failure = Failure::new(code.as_deref(), &message, retryable);
                        return Err(server.failed(failure.with_request_id(id.as_deref())));
                    }
                    ShardEventJson::Other => {}
                }
            }
        }
        if is_over {
            return Err(server.invalid_response("its events end without a result"));
        }
    }
}

#[cfg(test)]
mod tests;
