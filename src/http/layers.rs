//! The layer that observes every request: request id, tracing span, log line, metrics.

use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::AppState;
use super::error::Outcome;
use super::origin::check_host;
use crate::runtime::metrics::{RequestLabels, RouteLabels};
use crate::runtime::telemetry::{millis, shown};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Status in logs and metrics for a request whose client disconnected before the response. nginx
/// uses the same number.
pub(super) const CLIENT_LEFT: u16 = 499;

/// Maximum length of a request id from a client or proxy; a longer one is replaced.
const MAX_REQUEST_ID_LEN: usize = 128;

/// The id of a request, as an extension.
#[derive(Clone, Debug)]
pub(super) struct RequestId(pub(super) String);

/// Takes the request id from the request's header or makes one, and counts and logs the request.
/// The query string is never logged, because it contains the signatures of signed URLs.
pub(super) async fn observe(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    request.extensions_mut().insert(RequestId(id.to_str().unwrap_or_default().to_owned()));
    let method = known(request.method());
    let route = request.extensions().get::<MatchedPath>().map_or("(none)", MatchedPath::as_str).to_owned();
    // A span of the level `error`, so that it exists at any log level and every logged error has
    // the id of its request.
    let span = tracing::error_span!(
        "request",
        id = id.to_str().unwrap_or_default(),
        %method,
        path = shown(request.uri().path()),
        subject = Empty,
        repo = Empty,
        token = Empty,
    );
    let begin = Instant::now();
    state.shared.metrics.requests_in_flight.inc();
    let mut in_flight =
        InFlight { state: &state, span: span.clone(), begin, route, method, status: CLIENT_LEFT, outcome: None };
    let mut response = match check_host(&request) {
        Ok(()) => next.run(request).instrument(span).await,
        Err(problem) => problem.into_response(),
    };
    in_flight.status = response.status().as_u16();
    in_flight.outcome = response.extensions().get().cloned();
    drop(in_flight);
    response.headers_mut().insert(X_REQUEST_ID, id);
    response
}

/// The request id in the header if it is valid, else a random one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(X_REQUEST_ID).filter(|id| {
        let id = id.as_bytes();
        !id.is_empty() && id.len() <= MAX_REQUEST_ID_LEN && id.iter().all(u8::is_ascii_graphic)
    });
    given.cloned().unwrap_or_else(|| {
        HeaderValue::from_str(&format!("{:032x}", rand::random::<u128>())).expect("hex digits are valid in a header")
    })
}

/// The method as a label of metrics. An unknown method is `OTHER`, so that clients cannot create
/// labels.
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

/// A request until its response begins. Dropping this counts and logs the request. If the client
/// disconnects earlier, the future of the handler is dropped, and this with it.
struct InFlight<'a> {
    state: &'a AppState,
    span: Span,
    begin: Instant,
    route: String,
    method: &'static str,
    status: u16,
    /// What the failure was, if the response is one.
    outcome: Option<Outcome>,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let (metrics, status, elapsed) = (&self.state.shared.metrics, self.status, self.begin.elapsed());
        let code = self.outcome.as_ref().map(|outcome| outcome.code);
        metrics.requests_in_flight.dec();
        let elapsed_ms = millis(elapsed);
        // A failure of the server is logged as info here. If it has a cause that the client does
        // not get, that was logged as an error already.
        self.span.in_scope(|| match (status, self.method) {
            (CLIENT_LEFT, _) => tracing::info!(elapsed_ms, "the client disconnected before the response"),
            // Why an upload was refused: the operator reads what the client has got.
            (400.., "POST" | "PUT") => {
                let detail = self.outcome.as_ref().map(|outcome| shown(&outcome.detail));
                tracing::info!(status, code, detail, elapsed_ms, "responded");
            }
            (_, "POST" | "PUT") | (500.., _) => tracing::info!(status, code, elapsed_ms, "responded"),
            _ => tracing::debug!(status, code, elapsed_ms, "responded"),
        });
        let route = self.route.clone();
        metrics.request_seconds.get_or_create(&RouteLabels { route: route.clone() }).observe(elapsed.as_secs_f64());
        metrics.requests.get_or_create(&RequestLabels { route, method: self.method, status }).inc();
    }
}
