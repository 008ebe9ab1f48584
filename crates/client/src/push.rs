//! From files to a server.
//!
//! Files are read once, cut into chunks and hashed. A chunk that was seen before in this push, that
//! an interrupted push has left on the server, or that the server says it has, is not sent; the
//! others fill xorbs across files, which are compressed and sent several at a time. When the server
//! has acknowledged all of them, the files are registered.
//!
//! Nothing of this needs trust: what the server wrongly claims to have makes a registration that it
//! refuses, and what it registers is proven to it by hashes of what was read here.

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

/// What is to be pushed, and how.
#[derive(Clone, Debug)]
pub struct Push {
    /// The files.
    pub paths: Vec<PathBuf>,
    /// How chunks are compressed.
    pub policy: Policy,
    /// Xorbs that are compressed or sent at once, at least one. Each takes 64 MiB.
    pub job_count: usize,
    /// Where the resume state is written, and that of an earlier push is read.
    pub resume: Option<ResumeCache>,
}

/// Observer of a push. Lengths are relative to the last call.
pub trait PushWatch: fmt::Debug + Send + Sync + 'static {
    /// So many bytes of files were read.
    fn read(&self, len: u64);
    /// One more file was read to its end, or cannot be read.
    fn file_read(&self);
    /// So many bytes more are to be sent.
    fn to_send(&self, len: u64);
    /// So many bytes were sent.
    fn sent(&self, len: u64);
    /// So many bytes were sent in vain, and will be sent again.
    fn unsent(&self, len: u64);
    /// A request failed, and will be tried again after the delay.
    fn retrying(&self, error: &RequestError, delay: Duration);
    /// The server has not what was relied on: the files are read again.
    fn starting_over(&self, error: &PushError);
    /// The resume state cannot be written, so the next push would send everything again.
    fn not_resumable(&self, error: &io::Error);
}

/// What a push did.
#[derive(Debug)]
pub struct Pushed {
    /// The files in the order given: registered, or not read.
    pub files: Vec<Result<PushedFile, Unread>>,
    /// Xorbs that were sent.
    pub xorb_count: u64,
    /// Bytes of these.
    pub sent_len: u64,
}

/// A file that the server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushedFile {
    /// Its identity.
    pub hash: FileHash,
    /// Its sha256.
    pub sha256: Sha256,
    /// Its bytes.
    pub len: u64,
    /// Bytes of its chunks that had to be sent.
    pub new_len: u64,
}

/// Why a file was left out.
#[derive(Debug, Error)]
pub enum Unread {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another process wrote to it.
    #[error("{} changed while it was read; push it again when no process writes to it", path.display())]
    Changed {
        /// Which file.
        path: PathBuf,
    },
}

/// Why nothing was registered. What was sent stays on the server for a while.
#[derive(Debug, Error)]
pub enum PushError {
    /// The server could not be asked what it has.
    #[error("cannot query chunks")]
    Ask(#[source] RequestError),
    /// The server could not be asked for the quotas.
    #[error("cannot query the quota")]
    Quota(#[source] RequestError),
    /// The files do not fit into a quota; nothing was sent.
    #[error("the quota of {name} leaves {left} {what}, and this push needs {needed}; nothing was sent")]
    OverQuota {
        /// The repository, or all of its owner's.
        name: String,
        /// What there is not enough of.
        what: &'static str,
        /// How much is left of it.
        left: u64,
        /// How much is needed.
        needed: u64,
    },
    /// A xorb was not taken.
    #[error("cannot send xorb {xorb}")]
    Send {
        /// Which xorb.
        xorb: XorbHash,
        /// What happened.
        source: RequestError,
    },
    /// The files were not taken.
    #[error("cannot register the files")]
    Register(#[source] RequestError),
    /// The files do not make a shard.
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
    /// The stable code of the failure, when the server gave one.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Ask(source) | Self::Quota(source) | Self::Send { source, .. } | Self::Register(source) => {
                source.code()
            }
            Self::OverQuota { .. } | Self::Shard(_) | Self::TooFragmented { .. } => None,
        }
    }

    /// Whether the server refused because it has not what it, or an earlier push, had said.
    fn is_about_known(&self) -> bool {
        matches!(self, Self::Register(_)) && matches!(self.code(), Some("missing_xorb" | "shard_mismatch" | "no_proof"))
    }
}

impl Server {
    /// Pushes files. Those that cannot be read are left out, and told.
    ///
    /// Memory holds one xorb that is being filled and one per job, 64 MiB each, some 24 MiB of what
    /// is being read, and about 1.5 MiB per GiB pushed for what is known of chunks.
    ///
    /// # Errors
    ///
    /// See [`PushError`]: nothing was registered, or not all of it.
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
