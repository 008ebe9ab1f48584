//! One pass over an archive, to its end or to the first damage.
//!
//! The blobs of one `zorb rca append` form a session. A session ends with a hash that covers all
//! its blobs, so that they are verified only when the hash was read.

use std::io::Read;

use crate::rca::{Dialect, End, Error, Event, Reader, UnverifiedBlob};

/// The results of a pass.
#[derive(Debug)]
pub(super) struct Findings {
    /// Number of blobs that could be read to their end.
    pub(super) blob_count: u64,
    /// Number of blobs, from the first one on, that a correct session hash covers. At a clean end,
    /// all blobs.
    pub(super) verified_count: u64,
    /// Number of sessions whose hash was correct.
    pub(super) session_count: u64,
    /// Content bytes of the blobs that were read.
    pub(super) content_len: u64,
    /// Which of two variants of the format the archive has, as far as it can be detected.
    pub(super) dialect: Dialect,
    /// Whether bytes of an interrupted append follow the last session. `None` if the pass did not
    /// reach the end.
    pub(super) trailing_garbage: Option<bool>,
    /// The damage or failure that ended the pass.
    pub(super) error: Option<Error>,
}

impl Findings {
    /// Reads the archive to its end or to the first damage. Calls `visit` for each blob. `visit`
    /// reads the blob to its end or not at all, and returns the length of what it has read.
    ///
    /// # Errors
    ///
    /// `visit` returned an error that is not about the archive. An error about the archive is in
    /// the result.
    pub(super) fn collect<R: Read>(
        source: R,
        mut visit: impl FnMut(&mut UnverifiedBlob<'_, R>) -> anyhow::Result<u64>,
    ) -> anyhow::Result<Self> {
        let mut reader = Reader::new(source)?;
        let (mut session_count, mut content_len) = (0, 0);
        let outcome: anyhow::Result<End> = loop {
            match reader.next_event() {
                Ok(Event::Blob(mut blob)) => match visit(&mut blob) {
                    Ok(len) => content_len += len,
                    Err(error) => break Err(error),
                },
                Ok(Event::Verified(_)) => session_count += 1,
                Ok(Event::End(end)) => break Ok(end),
                Err(error) => break Err(error.into()),
            }
        };
        let (trailing_garbage, error) = match outcome {
            Ok(end) => (Some(end.trailing_garbage), None),
            Err(error) => (None, Some(error.downcast::<Error>()?)),
        };
        Ok(Self {
            blob_count: reader.blobs(),
            verified_count: reader.verified(),
            session_count,
            content_len,
            dialect: reader.dialect(),
            trailing_garbage,
            error,
        })
    }
}
