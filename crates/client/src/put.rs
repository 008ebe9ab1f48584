//! Uploads xorb files.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::stream::{Stream, try_unfold};
use reqwest::Body;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE};
use thiserror::Error;
use xet_format::XorbHash;
use xet_format::limits::MAX_XORB_SERIALIZED_LEN;
use xet_format::xorb::{VerifiedXorb, XorbError};

use super::activity::Activity;
use super::error::RequestError;
use super::retry::Retries;
use super::server::Server;
use super::verify::verify_reader;
use super::watch::Watch;
use super::wire::WasInsertedJson;
use crate::machine::Workers;

/// Bytes that are read and sent at once.
const PIECE_LEN: u64 = 256 << 10;

/// The result of uploading a xorb: the server has it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// The hash of the xorb.
    pub hash: XorbHash,
    /// Whether the server stored the bytes: the xorb is new there, or replaced a longer
    /// serialization.
    pub was_inserted: bool,
    /// The number of its chunks.
    pub chunk_count: u32,
    /// Bytes that were sent: the xorb without a footer.
    pub serialized_len: u64,
    /// Bytes of its chunks when they are decompressed.
    pub raw_len: u64,
}

/// Why a xorb was not put.
#[derive(Debug, Error)]
pub enum PutError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is not a xorb; nothing was sent.
    #[error("{} is not a valid xorb", path.display())]
    Invalid {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: XorbError,
    },
    /// The upload failed.
    #[error("cannot put {}", path.display())]
    Request {
        /// Which file.
        path: PathBuf,
        /// The error of the last attempt.
        source: RequestError,
    },
}

impl Server {
    /// Uploads a xorb file: verifies it locally, sends its chunks without a footer, and retries
    /// temporary failures.
    ///
    /// Uploading a xorb twice is harmless, so an attempt whose response was lost is repeated. Then
    /// [`Put::was_inserted`] may be `false` although the lost attempt has stored the xorb.
    ///
    /// # Errors
    ///
    /// See [`PutError`].
    pub async fn put(&self, path: &Path, workers: &Workers, watch: Arc<dyn Watch>) -> Result<Put, PutError> {
        let source = Source { path: path.to_owned(), workers: workers.clone(), watch: Arc::clone(&watch) };
        let xorb = source.verify().await?;
        let (hash, serialized_len) = (xorb.hash(), xorb.layout().serialized_len());
        let (chunk_count, raw_len) = (xorb.layout().chunk_count(), xorb.layout().raw_len());
        watch.total(serialized_len);
        let mut retries = Retries::new(self.retry, watch);
        loop {
            match self.put_once(hash, serialized_len, &source).await {
                Ok(was_inserted) => return Ok(Put { hash, was_inserted, chunk_count, serialized_len, raw_len }),
                Err(Attempt::Read(error)) => return Err(source.read_error(error)),
                Err(Attempt::Request(error)) => {
                    let failed = |error| PutError::Request { path: source.path.clone(), source: error };
                    retries.after(error).await.map_err(failed)?;
                }
            }
        }
    }

    /// One attempt; returns whether the server stored the bytes.
    async fn put_once(&self, hash: XorbHash, len: u64, source: &Source) -> Result<bool, Attempt> {
        // Stock clients bound only the raw bytes of a xorb. Their longest xorbs exceed the limit of
        // `/xorbs/{hash}`, but not that of the other route.
        let route = if len > MAX_XORB_SERIALIZED_LEN { "v1/xorbs/default" } else { "xorbs" };
        let (activity, failure) = (Arc::new(Activity::new()), Arc::new(Mutex::new(None)));
        let body = source.stream(len, Arc::clone(&activity), Arc::clone(&failure));
        let request = self
            .post_request(&format!("{route}/{hash}"))
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(CONTENT_LENGTH, len)
            .body(Body::wrap_stream(body));
        let sent = self.send(request, &activity).await;
        // If the file cannot be read, the request fails, too, but the read error is the cause.
        if let Some(error) = failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(Attempt::Read(error));
        }
        let uploaded: WasInsertedJson = self.json(sent?).await?;
        Ok(uploaded.was_inserted)
    }
}

/// Why one attempt failed.
enum Attempt {
    Read(io::Error),
    Request(RequestError),
}

impl From<RequestError> for Attempt {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

/// The file to upload, and the workers that read it.
struct Source {
    path: PathBuf,
    workers: Workers,
    watch: Arc<dyn Watch>,
}

/// A read error of the file, stored here because the failed request does not return it.
type ReadFailure = Arc<Mutex<Option<io::Error>>>;

impl Source {
    async fn verify(&self) -> Result<VerifiedXorb, PutError> {
        let path = self.path.clone();
        let verified = self.workers.run(move || verify_reader(File::open(path)?)).await;
        let verified = verified.map_err(|error| self.read_error(error))?;
        verified.map_err(|error| PutError::Invalid { path: self.path.clone(), source: error })
    }

    fn read_error(&self, error: io::Error) -> PutError {
        PutError::Read { path: self.path.clone(), source: error }
    }

    /// The first `len` bytes of the file, a piece at a time.
    fn stream(
        &self,
        len: u64,
        activity: Arc<Activity>,
        failure: ReadFailure,
    ) -> impl Stream<Item = io::Result<Bytes>> + use<> {
        let (path, workers, watch) = (self.path.clone(), self.workers.clone(), Arc::clone(&self.watch));
        try_unfold((None, 0), move |(file, at)| {
            let (path, workers, watch) = (path.clone(), workers.clone(), Arc::clone(&watch));
            let (activity, failure) = (Arc::clone(&activity), Arc::clone(&failure));
            async move {
                activity.touch();
                watch.position(at);
                let wanted = PIECE_LEN.min(len - at);
                if wanted == 0 {
                    return Ok(None);
                }
                match workers.run(move || read_piece(&path, file, wanted)).await {
                    Ok((file, piece)) => Ok(Some((piece, (Some(file), at + wanted)))),
                    Err(error) => {
                        let reported = io::Error::from(error.kind());
                        *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        Err(reported)
                    }
                }
            }
        })
    }
}

/// Reads the next `len` bytes of a file; fewer are an error. Opens the file if it is not open yet.
fn read_piece(path: &Path, file: Option<File>, len: u64) -> io::Result<(File, Bytes)> {
    let mut file = file.map_or_else(|| File::open(path), Ok)?;
    let mut piece = Vec::with_capacity(usize::try_from(len).expect("a piece fits in memory"));
    if ((&mut file).take(len).read_to_end(&mut piece)? as u64) < len {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than when it was verified"));
    }
    Ok((file, piece.into()))
}
