//! Responses that may be long.

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;

use super::AppState;
use super::error::Problem;
use crate::service::ResponseBudget;

/// A JSON response of so many items, built and serialized off the async threads. It holds `room`
/// until its text exists; the text holds its own share of the budget until the client has received
/// it.
pub(super) async fn json<T, F>(
    state: &AppState,
    item_count: usize,
    budget: ResponseBudget,
    value: F,
) -> Result<Response, Problem>
where
    T: Serialize,
    F: FnOnce() -> T + Send + 'static,
{
    // The budget moves into the closure, which runs to its end even if the client disconnects.
    let write = move || {
        let mut text = serde_json::to_vec(&value()).expect("values with string keys can be serialized");
        // It may be kept for hours, and has grown by doubling.
        text.shrink_to_fit();
        (text, budget)
    };
    let (text, budget) = state.cas.compute(item_count, write).await;
    budgeted(state, budget, text, "application/json").await
}

/// A response that holds response budget until its client has received it: that of its
/// construction, or its own.
pub(super) async fn budgeted(
    state: &AppState,
    made_in: ResponseBudget,
    bytes: Vec<u8>,
    content_type: &'static str,
) -> Result<Response, Problem> {
    let budget = state.cas.text_budget(made_in, bytes.len()).await?;
    let transfer = budget.transfer();
    let mut response = Response::new(Body::from(Bytes::from_owner(Budgeted { bytes, _budget: budget })));
    if let Some(transfer) = transfer {
        // Built: from here on its client decides how long the budget is held.
        transfer.begin();
        response.extensions_mut().insert(transfer);
    }
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(response)
}

struct Budgeted {
    bytes: Vec<u8>,
    _budget: ResponseBudget,
}

impl AsRef<[u8]> for Budgeted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
