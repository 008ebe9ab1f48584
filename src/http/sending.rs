//! Bytes of xorbs on their way out, a piece of about 1 MiB at a time, and each piece when it is its reader's turn.
//!
//! A download of a gigabyte is a thousand turns. So whoever asks for a little in the middle of it waits for the pieces
//! that are being sent just now and one more, and not for the gigabyte.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::unfold;
use tracing::Span;

use super::AppState;
use super::error::Problem;
use super::outlet::Outlet;
use super::tenant::Sharer;
use crate::runtime::fair::{Tenant, Turn};
use crate::runtime::metrics::Metrics;
use crate::runtime::telemetry::chain;
use crate::service::{Cas, ReadError, ReadStream, StoreError};

/// Who gets bytes: whose share they are of, and the connection that they go to.
#[derive(Clone, Debug)]
pub(super) struct Recipient {
    pub(super) tenant: Tenant,
    outlet: Arc<Outlet>,
}

impl FromRequestParts<AppState> for Recipient {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Infallible> {
        let tenant = Sharer::of(state.auth, &parts.extensions);
        // There is one on every connection; without, a turn ends when the next one begins.
        let outlet = parts.extensions.get::<Arc<Outlet>>().cloned().unwrap_or_default();
        Ok(Self { tenant, outlet })
    }
}

/// An answer whose first turn has come.
pub(super) struct Sending {
    cas: Cas,
    metrics: Arc<Metrics>,
    recipient: Recipient,
    turn: Turn,
}

impl Sending {
    /// Waits for the first turn: to be done before anything is opened.
    pub(super) async fn begin(state: &AppState, recipient: Recipient) -> Result<Self, Problem> {
        let turn = state.cas.read_turn(recipient.tenant).await?;
        Ok(Self { cas: state.cas.clone(), metrics: Arc::clone(&state.metrics), recipient, turn })
    }

    /// A stream of so many bytes as a body. A failure is logged once, here, and cuts the connection, so that no client
    /// takes a short body for a whole one.
    pub(super) fn body(self, len: u64, stream: ReadStream) -> Body {
        let Self { cas, metrics, recipient, turn } = self;
        let flow = Flow { cas, metrics, recipient, turn: Some(turn), stream, left: len, span: Span::current() };
        Body::from_stream(unfold(flow, |mut flow| async move {
            let piece = flow.next().await?;
            Some((piece, flow))
        }))
    }
}

struct Flow {
    cas: Cas,
    metrics: Arc<Metrics>,
    recipient: Recipient,
    /// For the first piece.
    turn: Option<Turn>,
    stream: ReadStream,
    left: u64,
    span: Span,
}

impl Flow {
    async fn next(&mut self) -> Option<Result<Bytes, ReadError>> {
        // Who asks for more has sent what there was.
        self.recipient.outlet.release();
        if self.left == 0 {
            return None;
        }
        match self.next_in_turn().await {
            Ok((piece, turn)) => {
                self.left = self.left.saturating_sub(piece.len() as u64);
                self.metrics.sent_bytes.inc_by(piece.len() as u64);
                self.recipient.outlet.hold(turn);
                Some(Ok(piece))
            }
            Err(None) => None,
            Err(Some(error)) => {
                self.span.in_scope(|| tracing::error!(error = %chain(&error), "an answer was cut off"));
                self.left = 0;
                Some(Err(error))
            }
        }
    }

    async fn next_in_turn(&mut self) -> Result<(Bytes, Turn), Option<ReadError>> {
        let turn = match self.turn.take() {
            Some(turn) => turn,
            None => {
                self.cas.next_read_turn(self.recipient.tenant).await.map_err(|error: StoreError| Some(error.into()))?
            }
        };
        match self.stream.next().await {
            Some(Ok(piece)) => Ok((piece, turn)),
            Some(Err(error)) => Err(Some(error)),
            None => Err(None),
        }
    }
}
