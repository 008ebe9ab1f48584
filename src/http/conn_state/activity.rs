//! The activity of a connection: whether it has a request in flight. A request is in flight from
//! the end of its head until the kernel has taken the last byte of its response.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Instant;

use super::ConnState;

/// The activity of a connection.
#[derive(Debug)]
pub(in crate::http) struct Activity(Mutex<State>);

/// The contents of an [`Activity`].
#[derive(Debug)]
struct State {
    /// When the last request in flight ended, or the connection began if it had none; `None` while
    /// a request is in flight.
    idle_since: Option<Instant>,
    /// Whether a handler runs, or its response is being passed to the connection.
    is_responding: bool,
    /// Whether the connection must end, so that no further request may begin.
    is_evicted: bool,
}

impl Default for Activity {
    fn default() -> Self {
        Self(Mutex::new(State { idle_since: Some(Instant::now()), is_responding: false, is_evicted: false }))
    }
}

impl Activity {
    /// When the last request in flight ended, or the connection began if it had none; `None` while
    /// a request is in flight.
    pub(in crate::http) fn idle_since(&self) -> Option<Instant> {
        self.state().idle_since
    }

    /// Evicts the connection if no request is in flight. From then on no request may begin. Returns
    /// whether the connection is evicted.
    pub(in crate::http) fn evict(&self) -> bool {
        let mut state = self.state();
        state.is_evicted |= state.idle_since.is_some();
        state.is_evicted
    }

    /// Records that the kernel has taken everything that was passed to the connection.
    pub(in crate::http) fn flushed(&self) {
        let mut state = self.state();
        if !state.is_responding && state.idle_since.is_none() {
            state.idle_since = Some(Instant::now());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in flight. It ends when this is dropped and the kernel has taken the response.
#[derive(Debug)]
pub(in crate::http) struct InFlight(Arc<ConnState>);

impl InFlight {
    /// Begins a request; `None` if the connection was evicted.
    pub(super) fn begin(conn: &Arc<ConnState>) -> Option<Self> {
        let mut state = conn.activity.state();
        if state.is_evicted {
            return None;
        }
        (state.idle_since, state.is_responding) = (None, true);
        Some(Self(Arc::clone(conn)))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.activity.state().is_responding = false;
    }
}

/// The body of a response. Dropping it ends the request in flight, once the kernel has taken the
/// bytes.
#[derive(Debug)]
pub(in crate::http) struct Responding {
    pub(in crate::http) body: Body,
    pub(in crate::http) _in_flight: InFlight,
}

impl HttpBody for Responding {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        HttpBody::size_hint(&self.body)
    }
}
