//! Request bodies that have to make progress.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use tokio::time::{Instant, Sleep, sleep_until};

use super::{AppState, Pace};
use crate::runtime::metrics::Metrics;
use crate::service::{BodyError, UploadError};

/// A body as a stream of pieces that ends in [`BodyError::Stalled`] when the client is too slow.
///
/// Only the time that is spent waiting for the client counts: a server that is busy does not blame the client.
pub(super) struct PacedBody {
    body: BodyDataStream,
    pace: Pace,
    metrics: Arc<Metrics>,
    received_len: u64,
    waited: Duration,
    wait: Option<Wait>,
}

/// The client is being waited for.
struct Wait {
    since: Instant,
    deadline: Pin<Box<Sleep>>,
}

impl PacedBody {
    pub(super) fn new(body: Body, state: &AppState) -> Self {
        Self {
            body: body.into_data_stream(),
            pace: state.pace,
            metrics: Arc::clone(&state.metrics),
            received_len: 0,
            waited: Duration::ZERO,
            wait: None,
        }
    }

    /// All of it, where that is no more than so many bytes.
    pub(super) async fn collect(mut self, max_len: u64) -> Result<Bytes, UploadError> {
        let mut bytes = BytesMut::new();
        while let Some(piece) = self.next().await {
            let piece = piece.map_err(|error| match error {
                BodyError::Aborted(source) => UploadError::Aborted(source),
                BodyError::Stalled => UploadError::Stalled,
            })?;
            if bytes.len() as u64 + piece.len() as u64 > max_len {
                return Err(UploadError::TooLarge { limit: max_len });
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes.freeze())
    }

    /// How much longer the client may take until its next piece.
    fn patience(&self) -> Duration {
        let earned = Duration::from_secs(self.received_len / self.pace.min_bytes_per_sec.max(1));
        let left = (self.pace.idle + earned).saturating_sub(self.waited);
        left.min(self.pace.idle)
    }
}

impl Stream for PacedBody {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Poll::Ready(piece) = self.body.poll_next_unpin(context) {
            if let Some(wait) = self.wait.take() {
                self.waited += wait.since.elapsed();
            }
            return Poll::Ready(piece.map(|piece| {
                let piece = piece.map_err(|error| BodyError::Aborted(error.into_inner()))?;
                self.received_len += piece.len() as u64;
                self.metrics.received_bytes.inc_by(piece.len() as u64);
                Ok(piece)
            }));
        }
        if self.wait.is_none() {
            let since = Instant::now();
            self.wait = Some(Wait { since, deadline: Box::pin(sleep_until(since + self.patience())) });
        }
        if let Some(wait) = &mut self.wait {
            ready!(wait.deadline.as_mut().poll(context));
        }
        Poll::Ready(Some(Err(BodyError::Stalled)))
    }
}
