//! Whether a connection has a request in flight: from the end of its head until the last byte of
//! its response is out.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Instant;

use super::ConnState;

/// What a connection is doing.
#[derive(Debug)]
pub(in crate::http) struct Activity(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Since when there is no request in flight; `None` while there is one.
    idle_since: Option<Instant>,
    /// A response is being made or handed over to the connection.
    is_responding: bool,
    /// The connection has to end, and takes no request any more.
    is_evicted: bool,
}

impl Default for Activity {
    fn default() -> Self {
        Self(Mutex::new(State { idle_since: Some(Instant::now()), is_responding: false, is_evicted: false }))
    }
}

impl Activity {
    /// Since when there is no request in flight, if there is none.
    pub(in crate::http) fn idle_since(&self) -> Option<Instant> {
        self.state().idle_since
    }

    /// Lets no request begin from now on, unless there is one in flight; whether that is so.
    pub(in crate::http) fn evict(&self) -> bool {
        let mut state = self.state();
        state.is_evicted |= state.idle_since.is_some();
        state.is_evicted
    }

    /// All that the connection was given is out.
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

/// A request is in flight until this is dropped and what the connection was given is out.
#[derive(Debug)]
pub(in crate::http) struct InFlight(Arc<ConnState>);

impl InFlight {
    /// `None` where the connection was evicted.
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

/// The body of a response, until whose end its request is in flight.
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
