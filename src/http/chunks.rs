//! The route for dedup queries (spec 5.7), and one that accepts telemetry (spec 5.8).

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::AppState;
use super::auth::Caller;
use super::error::{Code, Problem};
use super::extract::HashPath;
use super::render::budgeted;
use crate::format::ChunkHash;

/// `GET /v1/chunks/{prefix}/{hash}`: a shard that lists a xorb with the chunk. The response to
/// every failure is a 404, because a client retries a 5xx for minutes. With a 404 it uploads the
/// chunk.
pub(super) async fn find(
    State(state): State<AppState>,
    Caller(claims): Caller,
    HashPath(chunk): HashPath<ChunkHash>,
) -> Result<Response, Problem> {
    let not_found = || Problem::new(Code::NotFound, "Chunk not found.");
    let found = state.server.dedup_response(&claims, chunk).await.inspect_err(|error| {
        tracing::warn!(%error, "chunk lookup failed");
    });
    let shard = found.ok().flatten().ok_or_else(not_found)?;
    let budget = state.server.dedup_budget(shard.len()).await;
    let budget = budget
        .inspect_err(|_| tracing::debug!("response budget exhausted for a chunk query"))
        .map_err(|_| not_found())?;
    budgeted(&state, budget, shard, "application/octet-stream").await
}

/// `POST /v1/telemetry`: accepts the request of a client and ignores its body.
pub(super) async fn telemetry() -> StatusCode {
    StatusCode::OK
}
