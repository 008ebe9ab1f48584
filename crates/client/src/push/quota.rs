//! Checks before a push whether the files fit into the quotas of the repository.
//!
//! The server checks quotas when the files are registered, after all bytes were sent. This check
//! avoids a transfer whose registration would be refused. It covers the number and the bytes of the
//! files that the server does not have yet. It does not cover physical bytes.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::stream::{StreamExt, iter};
use xet_format::FileHash;
use xet_format::merkle::Aggregator;

use super::scan::{Event, Scanner};
use super::{Push, PushError, PushWatch, RetriesOnly};
use crate::activity::Activity;
use crate::error::RequestError;
use crate::machine::Workers;
use crate::retry::Retries;
use crate::server::Server;
use crate::watch::Watch;
use crate::wire::{RepoUsage, Usage, UsagePage};

/// Requests that are in flight at once.
const REQUEST_COUNT: usize = 8;

/// What a repository or an owner has left of its quotas; `None` means unlimited.
#[derive(Debug)]
struct Left {
    /// The repository, or `OWNER/*` for all repositories of its owner.
    name: String,
    files: Option<u64>,
    logical_len: Option<u64>,
}

/// Checks that the files fit into the quotas. Sends one or two requests. If the files fit only
/// without those that the server has, it hashes all files and queries the server for each.
///
/// # Errors
///
/// Not enough of a quota is left, or a request fails. If the server does not state its quotas, this
/// succeeds.
pub(super) async fn admit(
    server: &Server,
    push: &Push,
    disk: &Workers,
    watch: &Arc<dyn PushWatch>,
) -> Result<(), PushError> {
    let watch: Arc<dyn Watch> = Arc::new(RetriesOnly(Arc::clone(watch)));
    let all = left(server, &watch).await.map_err(PushError::Quota)?;
    if all.is_empty() {
        return Ok(());
    }
    let paths = push.paths.clone();
    let (count, len) = (push.paths.len() as u64, disk.run(move || total_len(&paths)).await);
    if all.iter().all(|left| left.refusal(count, len).is_none()) {
        return Ok(());
    }
    let paths = push.paths.clone();
    let files = disk.run(move || identities(paths)).await;
    let (mut count, mut len) = (0, 0);
    let mut asking = iter(files)
        .map(|(file, len)| {
            let watch = &watch;
            async move { Ok((has_file(server, file, watch).await?, len)) }
        })
        .buffer_unordered(REQUEST_COUNT);
    while let Some(asked) = asking.next().await {
        let (is_there, file_len) = asked.map_err(PushError::Quota)?;
        if !is_there {
            count += 1;
            len += file_len;
        }
    }
    match all.iter().find_map(|left| left.refusal(count, len)) {
        Some(refusal) => Err(refusal),
        None => Ok(()),
    }
}

impl Left {
    /// What a repository or an owner has left; `None` if neither files nor their bytes are limited.
    fn of(name: String, usage: Usage) -> Option<Self> {
        let left = |limit: Option<u64>, used: u64| limit.map(|limit| limit.saturating_sub(used));
        let files = left(usage.limits.files, usage.files);
        let logical_len = left(usage.limits.logical_bytes, usage.logical_bytes);
        (files.is_some() || logical_len.is_some()).then_some(Self { name, files, logical_len })
    }

    /// The error if this many files with this many bytes do not fit.
    fn refusal(&self, count: u64, len: u64) -> Option<PushError> {
        let exceeds = |left: Option<u64>, needed: u64, what| match left {
            Some(left) if needed > left => Some(PushError::OverQuota { name: self.name.clone(), what, left, needed }),
            _ => None,
        };
        exceeds(self.files, count, "files").or_else(|| exceeds(self.logical_len, len, "bytes of files"))
    }
}

/// What is left of every quota that applies to the push; empty if there is none, or if the server
/// does not state its quotas.
async fn left(server: &Server, watch: &Arc<dyn Watch>) -> Result<Vec<Left>, RequestError> {
    // Files that a token for all repositories registers count for the repository `*`. Other tokens
    // get a 403 for `*`; with them the client queries the repository of the token.
    let page = match server.usage(Some("*"), None, watch).await {
        Err(RequestError::Refused { refusal, .. }) if refusal.status == 403 => server.usage(None, None, watch).await,
        page => page,
    };
    let page = match page {
        Ok(page) => page,
        Err(RequestError::Refused { .. } | RequestError::InvalidResponse { .. } | RequestError::Slow { .. }) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    let UsagePage { repos, .. } = page;
    let Some(RepoUsage { repo, usage, owner }) = repos.into_iter().next() else { return Ok(Vec::new()) };
    let owner = owner.and_then(|owner| Left::of(format!("{}/*", owner.owner), owner.usage));
    Ok(Left::of(repo, usage).into_iter().chain(owner).collect())
}

/// Bytes of all files that exist.
fn total_len(paths: &[PathBuf]) -> u64 {
    paths.iter().filter_map(|path| path.metadata().ok()).map(|metadata| metadata.len()).sum()
}

/// Hashes and lengths of files, without the empty file and those that cannot be read. Equal files
/// occur once.
fn identities(paths: Vec<PathBuf>) -> Vec<(FileHash, u64)> {
    let mut scanner = Scanner::new(paths);
    let (mut files, mut seen) = (Vec::new(), HashSet::new());
    let (mut aggregator, mut len) = (Aggregator::new(), 0);
    loop {
        let block = scanner.next_block();
        if block.events.is_empty() {
            return files;
        }
        for event in block.events {
            match event {
                Event::Chunk { hash, raw, .. } => {
                    aggregator.push(&hash, raw.len() as u64);
                    len += raw.len() as u64;
                }
                Event::End(result) => {
                    let file = std::mem::take(&mut aggregator).file_hash();
                    let file_len = std::mem::take(&mut len);
                    if result.is_ok() && file != FileHash::EMPTY && seen.insert(file) {
                        files.push((file, file_len));
                    }
                }
            }
        }
    }
}

/// Whether the server has a file that this token may read.
async fn has_file(server: &Server, file: FileHash, watch: &Arc<dyn Watch>) -> Result<bool, RequestError> {
    let mut retries = Retries::new(server.retry, Arc::clone(watch));
    loop {
        let request = server.head_request(&format!("v1/files/{file}"));
        match server.send(request, &Activity::new()).await {
            Ok(_) => return Ok(true),
            Err(RequestError::Refused { refusal, .. }) if refusal.status == 404 => return Ok(false),
            Err(error) => retries.after(error).await?,
        }
    }
}
