//! What happens around every request: an id, a span, one log line, the counts.

use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;

use super::AppState;
use crate::runtime::metrics::{RequestLabels, RouteLabels};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest request id that is taken over from a client or proxy.
const MAX_REQUEST_ID_LEN: usize = 128;

/// Gives the request an id, or takes over the one it has, and counts and logs it. The query string is never logged:
/// signed URLs carry their authority there.
pub(super) async fn observe(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    let method = known(request.method());
    let route = request.extensions().get::<MatchedPath>().map_or("(none)", MatchedPath::as_str).to_owned();
    let span = tracing::info_span!(
        "request",
        id = id.to_str().unwrap_or_default(),
        %method,
        path = request.uri().path(),
    );
    let begin = Instant::now();
    state.metrics.requests_in_flight.inc();
    let in_flight = InFlight(&state);
    let mut response = next.run(request).instrument(span.clone()).await;
    drop(in_flight);

    let (status, elapsed) = (response.status().as_u16(), begin.elapsed());
    let elapsed_ms = elapsed.as_millis();
    span.in_scope(|| match (status, method) {
        (500.., _) => tracing::warn!(status, elapsed_ms, "answered"),
        (_, "POST") => tracing::info!(status, elapsed_ms, "answered"),
        _ => tracing::debug!(status, elapsed_ms, "answered"),
    });
    let seconds = state.metrics.request_seconds.get_or_create(&RouteLabels { route: route.clone() });
    seconds.observe(elapsed.as_secs_f64());
    drop(seconds);
    state.metrics.requests.get_or_create(&RequestLabels { route, method, status }).inc();
    response.headers_mut().insert(X_REQUEST_ID, id);
    response
}

fn request_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(X_REQUEST_ID).filter(|id| {
        let id = id.as_bytes();
        !id.is_empty() && id.len() <= MAX_REQUEST_ID_LEN && id.iter().all(u8::is_ascii_graphic)
    });
    given.cloned().unwrap_or_else(|| {
        HeaderValue::from_str(&format!("{:032x}", rand::random::<u128>())).expect("hex digits are valid in a header")
    })
}

/// The method as a label; clients must not be able to make up labels.
fn known(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::PATCH => "PATCH",
        _ => "OTHER",
    }
}

/// Ends the count of a request also when its client has left and the handler is dropped.
struct InFlight<'a>(&'a AppState);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.metrics.requests_in_flight.dec();
    }
}
