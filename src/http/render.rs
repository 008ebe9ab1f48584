//! Answers that may be long.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::AppState;

/// An answer of so many items: made and written down where that holds up nobody else's requests.
pub(super) async fn json<T, F>(state: &AppState, item_count: usize, value: F) -> Response
where
    T: Serialize,
    F: FnOnce() -> T + Send + 'static,
{
    state.cas.compute(item_count, move || Json(value()).into_response()).await
}
