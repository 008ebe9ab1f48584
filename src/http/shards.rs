//! The routes that register files (spec 5.6).

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, Response};
use bytes::Bytes;
use futures_util::stream::unfold;
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::Span;

use super::AppState;
use super::audit::AuditContext;
use super::auth::Caller;
use super::body::PacedBody;
use super::error::Problem;
use super::sending::RequestContext;
use super::wire::RegisteredJson;
use crate::runtime::fair::Tenant;
use crate::runtime::telemetry::shown;
use crate::service::access::Claims;
use crate::service::{RegisterError, RegisteredShard, UploadError};

/// Time after which the response begins although the registration is still running. A failure
/// before that has a status of its own. A later failure is only an event in the stream.
const QUIET: Duration = Duration::from_secs(5);

/// Time limit for receiving the body of a shard, even at a steady pace, because the body holds a
/// slot for which others may wait. It allows 80 MiB at 90 kB/s.
pub(super) const RECEIVE_TIMEOUT: Duration = Duration::from_secs(900);

/// Interval of the keep-alive events in the stream. Clients give up after 300 seconds without one.
const HEARTBEAT: Duration = Duration::from_secs(20);

/// A registration that is running.
type Registering = Pin<Box<dyn Future<Output = Result<RegisteredShard, RegisterError>> + Send>>;

/// `POST /v1/shards` and its older paths: responds with `{"result":1}`, or with 0 if nothing was
/// new.
pub(super) async fn register(
    State(state): State<AppState>,
    Caller(claims): Caller,
    RequestContext { tenant, .. }: RequestContext,
    body: Body,
) -> Result<Json<RegisteredJson>, Problem> {
    let registering = begin(state, claims, tenant, body).await?;
    let shard = registering.await?;
    Ok(Json(RegisteredJson { result: u8::from(shard.was_new) }))
}

/// `POST /v2/shards`: responds with a line of JSON per event. The last event is the result.
pub(super) async fn register_events(
    State(state): State<AppState>,
    Caller(claims): Caller,
    RequestContext { tenant, .. }: RequestContext,
    context: AuditContext,
    body: Body,
) -> Result<Response<Body>, Problem> {
    let span = Span::current();
    let mut registering = begin(state, claims, tenant, body).await?;
    let first = match timeout(QUIET, &mut registering).await {
        // Xet clients show the message of an error event to the user. Of a response with a
        // failure status they show only the number.
        Ok(Err(error @ RegisterError::OverQuota(_))) => Progress::Done(error_event(error, &context, &span)),
        Ok(result) => Progress::Done(result_event(result?)),
        Err(_) => Progress::Running(registering),
    };
    // While the registration runs, a keep-alive event is sent at intervals. Its numbers are
    // required (spec 5.6), but have no meaning here.
    let events = unfold((first, context, span), |(progress, context, span)| async {
        let (event, next) = match progress {
            Progress::Over => return None,
            Progress::Done(event) => (event, Progress::Over),
            Progress::Running(mut registering) => match timeout(HEARTBEAT, &mut registering).await {
                Err(_) => (json!({ "type": "validating", "verified": 0, "total": 1 }), Progress::Running(registering)),
                Ok(Ok(shard)) => (result_event(shard), Progress::Over),
                Ok(Err(error)) => (error_event(error, &context, &span), Progress::Over),
            },
        };
        Some((Ok::<_, Infallible>(Bytes::from(format!("{event}\n"))), (next, context, span)))
    });
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// The state of the stream of events.
enum Progress {
    Running(Registering),
    /// The registration has ended, and this event is still to be sent.
    Done(Value),
    /// The last event was sent.
    Over,
}

/// Receives the body of a shard. The returned future registers its files.
async fn begin(state: AppState, claims: Claims, tenant: Tenant, body: Body) -> Result<Registering, Problem> {
    let declared_len = http_body::Body::size_hint(&body).exact();
    let receiving = state.server.receive_shard(tenant, declared_len, PacedBody::new(body, &state));
    let received = timeout(RECEIVE_TIMEOUT, receiving).await;
    let shard = received.unwrap_or(Err(UploadError::Stalled))?;
    let server = state.server.clone();
    Ok(Box::pin(async move { server.register(&claims, shard).await }))
}

fn result_event(shard: RegisteredShard) -> Value {
    json!({ "type": "result", "result": u8::from(shard.was_new) })
}

/// The event of a registration that has failed. Its line `responded` has the status 200, so it has
/// a line of its own in the log.
fn error_event(error: RegisterError, context: &AuditContext, span: &Span) -> Value {
    let problem = Problem::from(error);
    let (code, detail) = (problem.code().as_str(), shown(problem.detail()));
    span.in_scope(|| tracing::info!(code, detail, "the registration failed after its response began"));
    context.failed_late(problem.code().as_str());
    json!({ "type": "error", "message": problem.detail(), "code": problem.code().as_str(), "retryable": problem.is_retryable() })
}
