//! Bytes of xorbs on their way out, a piece of 256 KiB or so at a time, and each piece when it is its reader's turn.
//!
//! A download of a gigabyte is thousands of turns. So whoever asks for a little in the middle of it waits for the pieces
//! that are being sent just now and one more, and not for the gigabyte. A turn is for the processor: while a piece has to
//! come from the disk, it is given back.
//!
//! Whoever gets a turn goes on behind everything that is ready by then ([`in_line`]). A task that finds a turn free and
//! works at once never leaves anybody in the gate: of a hundred that are ready each takes its turn when the runtime comes to
//! it, in the order of the runtime, and who has just asked is behind all of them.

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
use tokio::task::yield_now;
use tracing::Span;

use super::AppState;
use super::error::Problem;
use super::outlet::{Arriving, Outlet};
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

impl Recipient {
    /// Receives a body, in turns where many arrive.
    pub(super) fn receive(self, cas: &Cas) -> Arriving {
        self.outlet.receive(cas.arrival_turn(self.tenant))
    }
}

/// An answer whose first turn has come.
pub(super) struct Sending {
    cas: Cas,
    metrics: Arc<Metrics>,
    recipient: Recipient,
    /// Gone where something had to wait for the disk.
    turn: Option<Turn>,
}

impl Sending {
    /// Waits for the first turn: to be done before anything is opened.
    pub(super) async fn begin(state: &AppState, recipient: Recipient) -> Result<Self, Problem> {
        let turn = in_line(state.cas.read_turn(recipient.tenant).await?).await;
        Ok(Self { cas: state.cas.clone(), metrics: Arc::clone(&state.metrics), recipient, turn: Some(turn) })
    }

    /// Opens what is to be sent, in this turn unless that has to wait for the disk.
    pub(super) async fn open<T>(&mut self, opening: impl Future<Output = T>) -> T {
        in_turn(&mut self.turn, self.recipient.tenant, opening).await
    }

    /// A stream of so many bytes as a body. A failure is logged once, here, and cuts the connection, so that no client
    /// takes a short body for a whole one.
    pub(super) fn body(self, len: u64, stream: ReadStream) -> Body {
        let Self { cas, metrics, recipient, turn } = self;
        let flow = Flow { cas, metrics, recipient, turn, stream, left: len, span: Span::current() };
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
        // Of who takes nothing there is one piece, though the connection would have room for another one.
        self.recipient.outlet.sent().await;
        if self.left == 0 {
            return None;
        }
        match self.next_in_turn().await {
            Ok((piece, turn)) => {
                self.left = self.left.saturating_sub(piece.len() as u64);
                self.metrics.sent_bytes.inc_by(piece.len() as u64);
                self.recipient.outlet.hold(turn, piece.len());
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
        let tenant = self.recipient.tenant;
        let mut turn = match self.turn.take() {
            Some(turn) => Some(turn),
            None => Some(next_turn(&self.cas, tenant).await?),
        };
        let piece = match in_turn(&mut turn, tenant, self.stream.next()).await {
            Some(Ok(piece)) => piece,
            Some(Err(error)) => return Err(Some(error)),
            None => return Err(None),
        };
        match turn {
            Some(turn) => Ok((piece, turn)),
            None => Ok((piece, next_turn(&self.cas, tenant).await?)),
        }
    }
}

async fn next_turn(cas: &Cas, tenant: Tenant) -> Result<Turn, Option<ReadError>> {
    let turn = cas.next_read_turn(tenant).await.map_err(|error: StoreError| Some(error.into()))?;
    Ok(in_line(turn).await)
}

/// A turn that has come, after everything that is ready: most of that only wants to be in a line.
pub(super) async fn in_line(turn: Turn) -> Turn {
    yield_now().await;
    turn
}

/// Does something for a tenant within its turn. What has to wait, and that is for the disk, waits without: those whose bytes
/// are in memory need not wait for it, too. The disk has lines of its own.
async fn in_turn<T>(turn: &mut Option<Turn>, tenant: Tenant, work: impl Future<Output = T>) -> T {
    let mut work = pin!(tenant.doing(work));
    if let Some(done) = poll_immediate(&mut work).await {
        return done;
    }
    *turn = None;
    work.await
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures_util::future::{join_all, ready};
    use tokio::sync::oneshot;

    use super::*;
    use crate::runtime::fair::FairGate;

    #[tokio::test]
    async fn what_is_there_is_taken_within_the_turn_and_what_has_to_wait_waits_without_in_the_line_of_its_tenant() {
        let (gate, tenant) = (FairGate::patient(1), Tenant::new(7));
        let mut turn = Some(gate.wait(tenant, 1).await);
        assert_eq!(in_turn(&mut turn, tenant, ready(1)).await, 1);
        assert_eq!((turn.is_some(), gate.load()), (true, (1, 0)));
        let (sender, receiver) = oneshot::channel();
        let waiting = in_turn(&mut turn, tenant, async { (receiver.await, Tenant::current()) });
        // The other one gets its turn while this one waits, and then lets it go on.
        let (waited, _) = tokio::join!(waiting, async {
            let _turn = gate.wait(Tenant::new(8), 1).await;
            sender.send(()).unwrap();
        });
        assert_eq!((waited, turn.is_none(), gate.load()), ((Ok(()), tenant), true, (0, 0)));
        assert_eq!(Tenant::current(), Tenant::SERVER);
    }

    #[tokio::test]
    async fn who_gets_a_turn_at_once_lets_those_in_line_who_are_ready() {
        let (gate, order) = (FairGate::patient(1), Arc::new(Mutex::new(Vec::new())));
        let work = |tenant, count| {
            let (gate, order) = (gate.clone(), Arc::clone(&order));
            async move {
                for _ in 0..count {
                    let turn = in_line(gate.wait(Tenant::new(tenant), 1).await).await;
                    order.lock().unwrap().push(tenant);
                    drop(turn);
                }
            }
        };
        // Many of one tenant, ready at the same moment, and then one of another.
        join_all((0..10).map(|_| work(1, 2)).chain([work(2, 1)])).await;
        let place = order.lock().unwrap().iter().position(|tenant| *tenant == 2).unwrap();
        assert!(place <= 2, "{order:?}");
    }
}
