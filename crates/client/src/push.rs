//! Pushes files to a server.
//!
//! Files are read once, cut into chunks and hashed. A chunk is not sent if it occurred before in
//! this push, if an interrupted push has sent it, or if the server says that it has it. The other
//! chunks fill xorbs across files. Several xorbs at a time are compressed and sent. When the server
//! has acknowledged all of them, the files are registered.
//!
//! The client does not trust the server. If the server claims to have a chunk that it does not
//! have, it refuses the registration, and the push starts over without relying on its claims. The
//! server does not trust the client either: the client proves by range hashes that it has the
//! chunks.

mod ask;
mod assemble;
mod known;
mod quota;
mod register;
mod resume;
mod scan;
mod send;
mod session;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use xet_format::compression::Policy;
use xet_format::shard::{Sha256, WriteError};
use xet_format::{FileHash, XorbHash};

pub use self::resume::ResumeCache;
use self::session::{Sources, attempt};
use super::error::RequestError;
use super::server::Server;
use super::watch::{Unwatched, Watch};
use crate::machine::Workers;

/// The files to push, and the options of the push.
#[derive(Clone, Debug)]
pub struct Push {
    /// The files.
    pub paths: Vec<PathBuf>,
    /// How chunks are compressed.
    pub policy: Policy,
    /// Xorbs that are compressed or sent at once, at least one. Each takes up to 64 MiB of memory.
    pub job_count: usize,
    /// Where the resume state of this push is written and that of earlier pushes is read.
    pub resume: Option<ResumeCache>,
}

/// Observer of a push. Each length is the increase since the last call of the same method.
pub trait PushWatch: fmt::Debug + Send + Sync + 'static {
    /// This many more bytes of files were read.
    fn read(&self, len: u64);
    /// One more file was read to its end, or could not be read.
    fn file_read(&self);
    /// This many more bytes are to be sent.
    fn to_send(&self, len: u64);
    /// This many more bytes were sent.
    fn sent(&self, len: u64);
    /// This many sent bytes are lost with a failed request, and will be sent again.
    fn unsent(&self, len: u64);
    /// A request failed, and will be retried after the delay.
    fn retrying(&self, error: &RequestError, delay: Duration);
    /// The server lacks chunks that the push relied on, so the push reads all files again.
    fn starting_over(&self, error: &PushError);
    /// The resume state cannot be written. If this push is interrupted, the next one sends the xorb
    /// again.
    fn not_resumable(&self, error: &io::Error);
}

/// What a push did.
#[derive(Debug)]
pub struct Pushed {
    /// The files in the given order: each is registered, or could not be read.
    pub files: Vec<Result<PushedFile, Unread>>,
    /// Xorbs that were sent, by all attempts of this push.
    pub xorb_count: u64,
    /// Serialized bytes of these xorbs.
    pub sent_len: u64,
}

/// A file that was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushedFile {
    /// Its hash.
    pub hash: FileHash,
    /// Its sha256.
    pub sha256: Sha256,
    /// Its bytes.
    pub len: u64,
    /// Raw bytes of its chunks that had to be sent.
    pub new_len: u64,
}

/// Why a file was left out.
#[derive(Debug, Error)]
pub enum Unread {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file changed while it was read.
    #[error("{} changed while it was read; push it again when no process writes to it", path.display())]
    Changed {
        /// Which file.
        path: PathBuf,
    },
}

/// Why a push failed. Usually nothing was registered. If the files need several shards, those of
/// earlier shards may be registered. Xorbs that were sent stay on the server for a while.
#[derive(Debug, Error)]
pub enum PushError {
    /// A chunk query failed.
    #[error("cannot query chunks")]
    Ask(#[source] RequestError),
    /// The query of the quotas failed.
    #[error("cannot query the quota")]
    Quota(#[source] RequestError),
    /// The files do not fit into a quota; nothing was sent.
    #[error("the quota of {name} leaves {left} {what}, and this push needs {needed}; nothing was sent")]
    OverQuota {
        /// The repository, or `OWNER/*` for all repositories of its owner.
        name: String,
        /// The quantity that is limited: files, or bytes of files.
        what: &'static str,
        /// How much of the quota is left.
        left: u64,
        /// How much this push needs.
        needed: u64,
    },
    /// The upload of a xorb failed.
    #[error("cannot send xorb {xorb}")]
    Send {
        /// Which xorb.
        xorb: XorbHash,
        /// The error of the last attempt.
        source: RequestError,
    },
    /// The registration failed.
    #[error("cannot register the files")]
    Register(#[source] RequestError),
    /// The files cannot be written as a shard.
    #[error("cannot build the shard")]
    Shard(#[source] WriteError),
    /// One file has so many terms that no shard can hold them.
    #[error("file {file} has too many terms for one shard; split it")]
    TooFragmented {
        /// Which file.
        file: FileHash,
    },
}

impl PushError {
    /// The stable code of the failure, if the server stated one.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Ask(source) | Self::Quota(source) | Self::Send { source, .. } | Self::Register(source) => {
                source.code()
            }
            Self::OverQuota { .. } | Self::Shard(_) | Self::TooFragmented { .. } => None,
        }
    }

    /// Whether the server refused the registration because it lacks chunks that this push relied
    /// on: chunks that it had named in a response, or that an earlier push had sent.
    fn is_about_known(&self) -> bool {
        matches!(self, Self::Register(_)) && matches!(self.code(), Some("missing_xorb" | "shard_mismatch" | "no_proof"))
    }
}

impl Server {
    /// Pushes files. Unreadable files are left out and returned as errors.
    ///
    /// Memory holds one xorb that is being filled and one per job, 64 MiB each, and some 24 MiB of
    /// read data. The places of chunks take about 1.5 MiB per GiB pushed.
    ///
    /// If the server lacks chunks that the push relied on, the push starts over: first without the
    /// resume state of earlier pushes, then without any resume state or chunk queries.
    ///
    /// # Errors
    ///
    /// See [`PushError`]: not all files were registered.
    pub async fn push(&self, push: &Push, workers: &Workers, watch: Arc<dyn PushWatch>) -> Result<Pushed, PushError> {
        let mut before = session::Totals::default();
        for sources in [Sources::ALL, Sources::OWN] {
            let error = match attempt(self, push, workers, &watch, sources, &mut before).await {
                Err(error) if error.is_about_known() => error,
                result => return result,
            };
            watch.starting_over(&error);
        }
        attempt(self, push, workers, &watch, Sources::NONE, &mut before).await
    }
}

impl PushWatch for Unwatched {
    fn read(&self, _: u64) {}

    fn file_read(&self) {}

    fn to_send(&self, _: u64) {}

    fn sent(&self, _: u64) {}

    fn unsent(&self, _: u64) {}

    fn retrying(&self, _: &RequestError, _: Duration) {}

    fn starting_over(&self, _: &PushError) {}

    fn not_resumable(&self, _: &io::Error) {}
}

/// Reports retries only.
#[derive(Debug)]
struct RetriesOnly(Arc<dyn PushWatch>);

impl Watch for RetriesOnly {
    fn position(&self, _: u64) {}

    fn total(&self, _: u64) {}

    fn retrying(&self, error: &RequestError, delay: Duration) {
        self.0.retrying(error, delay);
    }
}
