//! Sends bytes of xorbs in pieces of about 256 KiB, each with a permit.
//!
//! A download of a gigabyte acquires thousands of permits, one after another. So a small request
//! that arrives in the middle waits only for the pieces that are being sent and one more, and not
//! for the whole gigabyte. A permit is for the CPU: it is released while a piece is read from the
//! disk.
//!
//! A task that has acquired a permit first lets all ready tasks run ([`yield_to_ready`]). If it
//! used a free permit at once, no queue would ever form at the gate. A hundred ready tasks would
//! then use the permits in the order in which the runtime schedules them, and a new request would
//! be behind all of them.

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
use crate::service::{ReadError, ReadStream, Server, StoreError};

/// The context of a request: its tenant, and its connection.
#[derive(Clone, Debug)]
pub(super) struct RequestContext {
    pub(super) tenant: Tenant,
    conn: Arc<ConnState>,
}

impl FromRequestParts<AppState> for RequestContext {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Infallible> {
        let tenant = tenant_of(state.shared.auth, &state.shared.address, &parts.headers, &parts.extensions);
        // Every connection has a state. A request in a test may have none; then a permit is
        // released when the next piece begins.
        let conn = parts.extensions.get::<Arc<ConnState>>().cloned().unwrap_or_default();
        Ok(Self { tenant, conn })
    }
}

impl RequestContext {
    /// Begins to receive the body of an upload: with permits if many uploads are under way.
    pub(super) fn receive(self, server: &Server) -> Receiving {
        self.conn.receive(server.receive_permit(self.tenant))
    }
}

/// A response that is about to be sent, with the permit of its first piece.
pub(super) struct Sending {
    server: Arc<Server>,
    metrics: Arc<Metrics>,
    context: RequestContext,
    /// `None` if opening the data had to wait for the disk.
    permit: Option<Permit>,
}

impl Sending {
    /// Waits for the permit of the first piece. To be called before the data is opened.
    pub(super) async fn begin(state: &AppState, context: RequestContext) -> Result<Self, Problem> {
        let permit = yield_to_ready(state.server.read_permit(context.tenant).await?).await;
        Ok(Self {
            server: state.server.clone(),
            metrics: Arc::clone(&state.shared.metrics),
            context,
            permit: Some(permit),
        })
    }

    /// Opens the data with the permit. Releases the permit if opening has to wait for the disk.
    pub(super) async fn open<T>(&mut self, opening: impl Future<Output = T>) -> T {
        with_permit(&mut self.permit, self.context.tenant, opening).await
    }

    /// A body of `len` bytes from this stream. A failure of the stream is logged here and cuts the
    /// connection, so that no client takes a short body for a complete one.
    pub(super) fn body(self, len: u64, stream: ReadStream) -> Body {
        let Self { server, metrics, context, permit } = self;
        let flow = Flow { server, metrics, context, permit, stream, left: len, span: Span::current() };
        Body::from_stream(unfold(flow, |mut flow| async move {
            let piece = flow.next().await?;
            Some((piece, flow))
        }))
    }
}

/// The state of a body that is being sent.
struct Flow {
    server: Arc<Server>,
    metrics: Arc<Metrics>,
    context: RequestContext,
    /// The permit of the first piece.
    permit: Option<Permit>,
    stream: ReadStream,
    /// Bytes that are still to be sent.
    left: u64,
    /// The span of the request, for the log line of a failure.
    span: Span,
}

impl Flow {
    /// The next piece; `None` at the end.
    async fn next(&mut self) -> Option<Result<Bytes, ReadError>> {
        // Wait until the previous piece is sent, so that at most one piece is buffered for a
        // stalled reader.
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

    /// Reads the next piece, and returns it with its permit. `Err(None)` at the end.
    async fn next_with_permit(&mut self) -> Result<(Bytes, Permit), Option<ReadError>> {
        let tenant = self.context.tenant;
        let mut permit = match self.permit.take() {
            Some(permit) => Some(permit),
            None => Some(next_permit(&self.server, tenant).await?),
        };
        let piece = match with_permit(&mut permit, tenant, self.stream.next()).await {
            Some(Ok(piece)) => piece,
            Some(Err(error)) => return Err(Some(error)),
            None => return Err(None),
        };
        match permit {
            Some(permit) => Ok((piece, permit)),
            None => Ok((piece, next_permit(&self.server, tenant).await?)),
        }
    }
}

/// Acquires the permit of a further piece.
async fn next_permit(server: &Server, tenant: Tenant) -> Result<Permit, Option<ReadError>> {
    let permit = server.next_read_permit(tenant).await.map_err(|error: StoreError| Some(error.into()))?;
    Ok(yield_to_ready(permit).await)
}

/// Runs work for a tenant with its permit. If the work is not ready at once, it waits for the disk.
/// Then the permit is released, so that readers of cached bytes can use it. The disk has its own
/// queues.
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

    /// Work that waits for the disk must still run for its tenant.
    #[tokio::test]
    async fn ready_data_is_read_with_the_permit_and_awaited_without() {
        let (gate, tenant) = (FairGate::unbounded(1), Tenant::new(7));
        let mut permit = Some(gate.wait(tenant, 1).await);
        assert_eq!(with_permit(&mut permit, tenant, ready(1)).await, 1);
        assert_eq!((permit.is_some(), gate.load()), (true, (1, 0)));
        let (sender, receiver) = oneshot::channel();
        let waiting = with_permit(&mut permit, tenant, async { (receiver.await, Tenant::current()) });
        // The other tenant gets the permit while this one waits, and then completes its wait.
        let (waited, _) = tokio::join!(waiting, async {
            let _permit = gate.wait(Tenant::new(8), 1).await;
            sender.send(()).unwrap();
        });
        assert_eq!((waited, permit.is_none(), gate.load()), ((Ok(()), tenant), true, (0, 0)));
        assert_eq!(Tenant::current(), Tenant::SERVER);
    }

    #[tokio::test]
    async fn permit_is_used_only_after_all_ready_tasks_have_run() {
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
        // Many requests of one tenant that are ready at the same time, and then one of another
        // tenant.
        join_all((0..10).map(|_| work(1, 2)).chain([work(2, 1)])).await;
        let place = order.lock().unwrap().iter().position(|tenant| *tenant == 2).unwrap();
        assert!(place <= 2, "{order:?}");
    }
}
