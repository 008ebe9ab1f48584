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

use super::AppState;
use super::audit::AuditContext;
use super::auth::Caller;
use super::body::PacedBody;
use super::error::Problem;
use super::sending::RequestContext;
use super::wire::RegisteredJson;
use crate::runtime::fair::Tenant;
use crate::service::access::Claims;
use crate::service::{ReceivedShard, RegisterError, RegisteredShard, UploadError};

/// Time after which the response of a running registration begins. A rejection before has a status;
/// later it is only an event in the stream.
const QUIET: Duration = Duration::from_secs(5);

/// How long the body of a shard may take, however steadily it comes: it holds a slot that others
/// may wait for. 80 MiB in that time are 90 kB/s.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(900);

/// Interval of the keep-alive events in the stream; clients give up after 300 seconds of silence.
const HEARTBEAT: Duration = Duration::from_secs(20);

type Registering = Pin<Box<dyn Future<Output = Result<RegisteredShard, RegisterError>> + Send>>;

/// `POST /v1/shards` and its older names: `{"result":1}`, or 0 where everything was known.
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

/// `POST /v2/shards`: a line of JSON per event, the last one is the result.
pub(super) async fn register_events(
    State(state): State<AppState>,
    Caller(claims): Caller,
    RequestContext { tenant, .. }: RequestContext,
    context: AuditContext,
    body: Body,
) -> Result<Response<Body>, Problem> {
    let mut registering = begin(state, claims, tenant, body).await?;
    let first = match timeout(QUIET, &mut registering).await {
        // Stock clients show people the sentence of an event; of a status they show the number.
        Ok(Err(error @ RegisterError::OverQuota(_))) => Progress::Done(error_event(error, &context)),
        Ok(result) => Progress::Done(result_event(result?)),
        Err(_) => Progress::Running(registering),
    };
    let events = unfold((first, context), |(progress, context)| async {
        let (event, next) = match progress {
            Progress::Over => return None,
            Progress::Done(event) => (event, Progress::Over),
            Progress::Running(mut registering) => match timeout(HEARTBEAT, &mut registering).await {
                Err(_) => (json!({ "type": "validating", "verified": 0, "total": 1 }), Progress::Running(registering)),
                Ok(Ok(shard)) => (result_event(shard), Progress::Over),
                Ok(Err(error)) => (error_event(error, &context), Progress::Over),
            },
        };
        Some((Ok::<_, Infallible>(Bytes::from(format!("{event}\n"))), (next, context)))
    });
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

enum Progress {
    Running(Registering),
    Done(Value),
    Over,
}

/// Receives the body; the rest is in the future.
async fn begin(state: AppState, claims: Claims, tenant: Tenant, body: Body) -> Result<Registering, Problem> {
    let declared_len = http_body::Body::size_hint(&body).exact();
    let receiving = state.cas.receive_shard(tenant, declared_len, PacedBody::new(body, &state));
    let received = timeout(RECEIVE_TIMEOUT, receiving).await;
    let ReceivedShard { bytes, budget } = received.unwrap_or(Err(UploadError::Stalled))?;
    let cas = state.cas.clone();
    Ok(Box::pin(async move {
        let registered = cas.register(&claims, bytes).await;
        drop(budget);
        registered
    }))
}

fn result_event(shard: RegisteredShard) -> Value {
    json!({ "type": "result", "result": u8::from(shard.was_new) })
}

fn error_event(error: RegisterError, context: &AuditContext) -> Value {
    let problem = Problem::from(error);
    context.failed_late(problem.code().as_str());
    json!({ "type": "error", "message": problem.detail(), "code": problem.code().as_str(), "retryable": problem.is_retryable() })
}
