//! The question whether a chunk is there already (spec 5.7), and the sink for telemetry (spec 5.8).

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::AppState;
use super::auth::Caller;
use super::error::{Code, Problem};
use super::extract::HashPath;
use super::render::budgeted;
use crate::format::ChunkHash;

/// `GET /v1/chunks/{prefix}/{hash}`: a shard with the place of the chunk. Every failure is a 404:
/// clients abort the whole upload on a malformed shard, and wait for minutes on a 5xx.
pub(super) async fn find(
    State(state): State<AppState>,
    Caller(claims): Caller,
    HashPath(chunk): HashPath<ChunkHash>,
) -> Result<Response, Problem> {
    let not_found = || Problem::new(Code::NotFound, "Chunk not found.");
    let found = state.cas.dedup_response(&claims, chunk).await.inspect_err(|error| {
        tracing::warn!(%error, "chunk lookup failed");
    });
    let shard = found.ok().flatten().ok_or_else(not_found)?;
    let budget = state.cas.dedup_budget(shard.len()).await;
    let budget = budget
        .inspect_err(|_| tracing::debug!("response budget exhausted for a chunk query"))
        .map_err(|_| not_found())?;
    budgeted(&state, budget, shard, "application/octet-stream").await
}

/// `POST /v1/telemetry`: counted like every request, and dropped.
pub(super) async fn telemetry() -> StatusCode {
    StatusCode::OK
}
