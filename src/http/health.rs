//! The routes for operators: health probes and metrics.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use super::AppState;
use super::auth::{Caller, foreign};
use super::error::{Code, Problem};
use super::wire::{ReadyJson, StatusJson};
use crate::runtime::descriptors::open_count;
use crate::runtime::metrics::{ProcessMetrics, RepoSample};
use crate::runtime::process::{cpu_time, resident_len};
use crate::runtime::telemetry::chain;
use crate::service::{Store, StoreError, StoreErrorKind};

/// Maximum number of repositories with metrics of their own. The largest ones have them, because
/// each repository takes three time series in Prometheus.
const MAX_REPO_COUNT: u32 = 100;

/// `GET /healthz`: responds with 200 as long as the process works.
pub(super) async fn live() -> Json<StatusJson> {
    Json(StatusJson { status: "ok" })
}

/// `GET /readyz`: responds with 200 if the store and its index work. A store whose free space is
/// below `min_free_space` still serves reads, so it is ready, and the response says "full".
pub(super) async fn ready(State(store): State<Arc<Store>>) -> Result<Json<ReadyJson>, Problem> {
    match store.probe().await {
        Ok(()) => {
            let is_full = matches!(store.check_headroom(0).await, Err(StoreError::LowSpace { .. }));
            Ok(Json(ReadyJson { status: "ok", store: if is_full { "full" } else { "ok" } }))
        }
        Err(error) => {
            tracing::error!(error = %chain(&error), "not ready");
            let detail = match error.kind() {
                StoreErrorKind::NoSpace => "The disk is full: writes fail, reads continue.",
                _ => "The store or its index is not working; see the log.",
            };
            Err(Problem::new(Code::NotReady, detail))
        }
    }
}

/// `GET /metrics`: all metrics, for Prometheus. First sets the gauges that only change here. They
/// count and name all repositories, so a token for one of them is not enough.
pub(super) async fn metrics(State(state): State<AppState>, caller: Caller) -> Result<impl IntoResponse, Problem> {
    if !caller.sees_all() {
        let detail = "Reading metrics requires an admin token for all repositories: issue one with --repo '*'.";
        return Err(foreign(&caller.0, detail));
    }
    let totals = state.server.store.totals().await?;
    state.shared.metrics.store_xorbs.set(totals.xorb_count.cast_signed());
    state.shared.metrics.store_bytes.set(totals.serialized_len.cast_signed());
    state.shared.metrics.io_permits_waiting.set(i64::try_from(state.server.reads_waiting()).unwrap_or(i64::MAX));
    state.shared.metrics.response_memory.set(state.server.budgeted_len().cast_signed());
    state.shared.metrics.index_longest_write.set(state.server.longest_write().as_secs_f64());
    measure_process(&state).await;
    let repos = state.server.largest_usages(MAX_REPO_COUNT).await?;
    let samples = repos.into_iter().map(|one| RepoSample {
        repo: one.repo,
        files: one.usage.file_count,
        logical_bytes: one.usage.logical_len,
        physical_bytes: one.usage.physical_len,
    });
    state.shared.metrics.repos.replace(samples.collect());
    state.shared.metrics.store_replaced_bytes.set(state.server.store.replaced_len().await?.cast_signed());
    let health = state.server.store.health().await?;
    state.shared.metrics.store_damaged_xorbs.set(health.damaged_count.cast_signed());
    state.shared.metrics.scrub_oldest.set(health.oldest.map_or(0, |oldest| oldest.as_secs().cast_signed()));
    if let Some(free_len) = state.server.store.free_len().await? {
        state.shared.metrics.store_free_bytes.set(free_len.cast_signed());
    }
    let text = state.shared.metrics.render().expect("writing to memory does not fail");
    let format = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    Ok(([(CONTENT_TYPE, format)], text))
}

/// Sets the metrics of CPU time, memory and descriptors of the process. A value that cannot be read
/// stays as it was.
async fn measure_process(state: &AppState) {
    let process: &ProcessMetrics = &state.shared.metrics.process;
    process.set_cpu_time(cpu_time());
    if let (Ok(count), resident_len) = state.shared.stats_pool.run(|| (open_count(), resident_len())).await {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        state.shared.metrics.descriptors_open.set(count);
        process.open_fds.set(count);
        if let Ok(len) = resident_len {
            process.resident_bytes.set(len.cast_signed());
        }
    }
}
