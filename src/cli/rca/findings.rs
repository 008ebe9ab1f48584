//! One pass over an archive, to its end or to the first damage.

use std::io::Read;

use crate::rca::{Dialect, End, Error, Event, Reader, UnverifiedBlob};

/// What a pass has found.
#[derive(Debug)]
pub(super) struct Findings {
    /// Blobs that could be read to their end.
    pub(super) blob_count: u64,
    /// How many of them, from the first on, a right hash vouches for. All of them at a clean end.
    pub(super) verified_count: u64,
    /// Sessions whose hash was right.
    pub(super) session_count: u64,
    /// Bytes of the contents of all of these blobs.
    pub(super) content_len: u64,
    /// The dialect as far as it has shown.
    pub(super) dialect: Dialect,
    /// Known at a clean end only.
    pub(super) trailing_garbage: Option<bool>,
    /// Why it was not a clean end.
    pub(super) error: Option<Error>,
}

impl Findings {
    /// Reads all of it. `visit` reads a blob to its end, or not at all, and says how long it is.
    ///
    /// # Errors
    ///
    /// Those of `visit` that are not about the archive.
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
