//! Sends bytes of xorbs in pieces of about 256 KiB, each with a permit.
//!
//! A download of a gigabyte takes thousands of permits. So a small request that arrives in the
//! middle waits for the pieces that are being sent and one more, not for the gigabyte. A permit is
//! for the CPU: it is returned while a piece is read from the disk.
//!
//! A task that gets a permit continues behind all tasks that are ready by then
//! ([`yield_to_ready`]). If a task used a free permit at once, the gate would never have a queue: a
//! hundred ready tasks would each take their permit when the runtime schedules them, in the order
//! of the runtime, and a new request would be behind all of them.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::poll_immediate;
use futures_util::stream::unfold;
use tracing::Span;

use super::AppState;
use super::conn_state::{ConnState, Receiving, yield_to_ready};
use super::error::Problem;
use super::tenant::tenant_of;
use crate::runtime::fair::{Permit, Tenant};
use crate::runtime::metrics::Metrics;
use crate::runtime::telemetry::chain;
use crate::service::{Cas, ReadError, ReadStream, StoreError};

/// The context of a request: its tenant, and its connection.
#[derive(Clone, Debug)]
pub(super) struct RequestContext {
    pub(super) tenant: Tenant,
    conn: Arc<ConnState>,
}

impl FromRequestParts<AppState> for RequestContext {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Infallible> {
        let tenant = tenant_of(state.auth, &parts.extensions);
        // Every connection has one; without it, a permit ends when the next one begins.
        let conn = parts.extensions.get::<Arc<ConnState>>().cloned().unwrap_or_default();
        Ok(Self { tenant, conn })
    }
}

impl RequestContext {
    /// Receives a body, with permits while many bodies are received.
    pub(super) fn receive(self, cas: &Cas) -> Receiving {
        self.conn.receive(cas.receive_permit(self.tenant))
    }
}

/// A response with the permit of its first piece.
pub(super) struct Sending {
    cas: Cas,
    metrics: Arc<Metrics>,
    context: RequestContext,
    /// `None` after a wait for the disk.
    permit: Option<Permit>,
}

impl Sending {
    /// Waits for the first permit: to be done before anything is opened.
    pub(super) async fn begin(state: &AppState, context: RequestContext) -> Result<Self, Problem> {
        let permit = yield_to_ready(state.cas.read_permit(context.tenant).await?).await;
        Ok(Self { cas: state.cas.clone(), metrics: Arc::clone(&state.metrics), context, permit: Some(permit) })
    }

    /// Opens what is to be sent, in this permit unless that has to wait for the disk.
    pub(super) async fn open<T>(&mut self, opening: impl Future<Output = T>) -> T {
        with_permit(&mut self.permit, self.context.tenant, opening).await
    }

    /// A stream of so many bytes as a body. A failure is logged once, here, and cuts the
    /// connection, so that no client takes a short body for a whole one.
    pub(super) fn body(self, len: u64, stream: ReadStream) -> Body {
        let Self { cas, metrics, context, permit } = self;
        let flow = Flow { cas, metrics, context, permit, stream, left: len, span: Span::current() };
        Body::from_stream(unfold(flow, |mut flow| async move {
            let piece = flow.next().await?;
            Some((piece, flow))
        }))
    }
}

struct Flow {
    cas: Cas,
    metrics: Arc<Metrics>,
    context: RequestContext,
    /// For the first piece.
    permit: Option<Permit>,
    stream: ReadStream,
    left: u64,
    span: Span,
}

impl Flow {
    async fn next(&mut self) -> Option<Result<Bytes, ReadError>> {
        // Buffer at most one piece for a stalled reader.
        self.context.conn.sent().await;
        if self.left == 0 {
            return None;
        }
        match self.next_with_permit().await {
            Ok((piece, permit)) => {
                self.left = self.left.saturating_sub(piece.len() as u64);
                self.metrics.sent_bytes.inc_by(piece.len() as u64);
                self.context.conn.hold(permit, piece.len());
                Some(Ok(piece))
            }
            Err(None) => None,
            Err(Some(error)) => {
                self.span.in_scope(|| tracing::error!(error = %chain(&error), "response cut off"));
                self.left = 0;
                Some(Err(error))
            }
        }
    }

    async fn next_with_permit(&mut self) -> Result<(Bytes, Permit), Option<ReadError>> {
        let tenant = self.context.tenant;
        let mut permit = match self.permit.take() {
            Some(permit) => Some(permit),
            None => Some(next_permit(&self.cas, tenant).await?),
        };
        let piece = match with_permit(&mut permit, tenant, self.stream.next()).await {
            Some(Ok(piece)) => piece,
            Some(Err(error)) => return Err(Some(error)),
            None => return Err(None),
        };
        match permit {
            Some(permit) => Ok((piece, permit)),
            None => Ok((piece, next_permit(&self.cas, tenant).await?)),
        }
    }
}

async fn next_permit(cas: &Cas, tenant: Tenant) -> Result<Permit, Option<ReadError>> {
    let permit = cas.next_read_permit(tenant).await.map_err(|error: StoreError| Some(error.into()))?;
    Ok(yield_to_ready(permit).await)
}

/// Runs work for a tenant with its permit. The permit is paused while the work waits for the disk,
/// so that readers of cached bytes need not wait for it. The disk has its own queues.
async fn with_permit<T>(permit: &mut Option<Permit>, tenant: Tenant, work: impl Future<Output = T>) -> T {
    let mut work = pin!(tenant.doing(work));
    if let Some(done) = poll_immediate(&mut work).await {
        return done;
    }
    *permit = None;
    work.await
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures_util::future::{join_all, ready};
    use tokio::sync::oneshot;

    use super::*;
    use crate::runtime::fair::FairGate;

    /// The wait is in the queue of its tenant.
    #[tokio::test]
    async fn ready_data_is_taken_within_the_permit_and_waits_without() {
        let (gate, tenant) = (FairGate::unbounded(1), Tenant::new(7));
        let mut permit = Some(gate.wait(tenant, 1).await);
        assert_eq!(with_permit(&mut permit, tenant, ready(1)).await, 1);
        assert_eq!((permit.is_some(), gate.load()), (true, (1, 0)));
        let (sender, receiver) = oneshot::channel();
        let waiting = with_permit(&mut permit, tenant, async { (receiver.await, Tenant::current()) });
        // The other one gets its permit while this one waits, and then lets it go on.
        let (waited, _) = tokio::join!(waiting, async {
            let _permit = gate.wait(Tenant::new(8), 1).await;
            sender.send(()).unwrap();
        });
        assert_eq!((waited, permit.is_none(), gate.load()), ((Ok(()), tenant), true, (0, 0)));
        assert_eq!(Tenant::current(), Tenant::SERVER);
    }

    #[tokio::test]
    async fn who_gets_a_turn_at_once_lets_those_in_line_who_are_ready() {
        let (gate, order) = (FairGate::unbounded(1), Arc::new(Mutex::new(Vec::new())));
        let work = |tenant, count| {
            let (gate, order) = (gate.clone(), Arc::clone(&order));
            async move {
                for _ in 0..count {
                    let permit = yield_to_ready(gate.wait(Tenant::new(tenant), 1).await).await;
                    order.lock().unwrap().push(tenant);
                    drop(permit);
                }
            }
        };
        // Many of one tenant, ready at the same moment, and then one of another.
        join_all((0..10).map(|_| work(1, 2)).chain([work(2, 1)])).await;
        let place = order.lock().unwrap().iter().position(|tenant| *tenant == 2).unwrap();
        assert!(place <= 2, "{order:?}");
    }
}
