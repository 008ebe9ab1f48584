//! Routes for operators.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use super::AppState;
use super::error::{Code, Problem};
use super::wire::{ReadyJson, StatusJson};
use crate::runtime::descriptors::open_count;
use crate::runtime::metrics::{ProcessMetrics, RepoSample};
use crate::runtime::process::{cpu_time, resident_len};
use crate::runtime::telemetry::chain;
use crate::service::{StoreError, StoreErrorKind};

/// Repositories with metrics of their own, the largest ones. Each takes three of the series that
/// Prometheus keeps.
const MAX_REPO_COUNT: u32 = 100;

/// `GET /healthz`: the process responds.
pub(super) async fn live() -> Json<StatusJson> {
    Json(StatusJson { status: "ok" })
}

/// `GET /readyz`: store and index work. A store that is full for writes still serves reads, so it
/// is ready and says "full".
pub(super) async fn ready(State(state): State<AppState>) -> Result<Json<ReadyJson>, Problem> {
    match state.cas.probe().await {
        Ok(()) => {
            let is_full = matches!(state.cas.check_headroom(0).await, Err(StoreError::LowSpace { .. }));
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

/// `GET /metrics`: everything that is counted, for Prometheus.
pub(super) async fn metrics(State(state): State<AppState>) -> Result<impl IntoResponse, Problem> {
    let totals = state.cas.totals().await?;
    state.metrics.store_xorbs.set(totals.xorb_count.cast_signed());
    state.metrics.store_bytes.set(totals.serialized_len.cast_signed());
    state.metrics.io_permits_waiting.set(i64::try_from(state.cas.reads_waiting()).unwrap_or(i64::MAX));
    state.metrics.response_memory.set(state.cas.budgeted_len().cast_signed());
    state.metrics.index_longest_write.set(state.cas.longest_write().as_secs_f64());
    measure_process(&state).await;
    let repos = state.cas.largest_usages(MAX_REPO_COUNT).await?;
    let samples = repos.into_iter().map(|one| RepoSample {
        repo: one.repo,
        files: one.usage.file_count,
        logical_bytes: one.usage.logical_len,
        physical_bytes: one.usage.physical_len,
    });
    state.metrics.repos.replace(samples.collect());
    state.metrics.store_replaced_bytes.set(state.cas.replaced_len().await?.cast_signed());
    let health = state.cas.health().await?;
    state.metrics.store_damaged_xorbs.set(health.damaged_count.cast_signed());
    state.metrics.scrub_oldest.set(health.oldest.map_or(0, |oldest| oldest.as_secs().cast_signed()));
    if let Some(free_len) = state.cas.free_len().await? {
        state.metrics.store_free_bytes.set(free_len.cast_signed());
    }
    let text = state.metrics.render().expect("writing to memory does not fail");
    let format = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    Ok(([(CONTENT_TYPE, format)], text))
}

/// Reads CPU time, memory and descriptors of the process. A failure leaves the old values.
async fn measure_process(state: &AppState) {
    let process: &ProcessMetrics = &state.metrics.process;
    process.set_cpu_time(cpu_time());
    if let (Ok(count), resident_len) = state.stats_pool.run(|| (open_count(), resident_len())).await {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        state.metrics.descriptors_open.set(count);
        process.open_fds.set(count);
        if let Ok(len) = resident_len {
            process.resident_bytes.set(len.cast_signed());
        }
    }
}
