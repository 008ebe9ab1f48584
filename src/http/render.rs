//! Renders responses that may be long. They are built on worker threads, and hold a memory budget.

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;

use super::AppState;
use super::error::Problem;
use crate::service::ResponseBudget;

/// Renders a JSON response of `item_count` items. A response with many items is built and
/// serialized on a worker thread. `budget` is held until the text exists. The text has a budget of
/// its own, which is held until the client has received the response.
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
    // The budget moves into the closure, because the closure completes even if the client
    // disconnects.
    let write = move || {
        let mut text = serde_json::to_vec(&value()).expect("values with string keys can be serialized");
        // The buffer has grown by doubling, and a slow client may keep the text in memory for
        // hours.
        text.shrink_to_fit();
        (text, budget)
    };
    let (text, budget) = state.server.compute(item_count, write).await;
    budgeted(state, budget, text, "application/json").await
}

/// A response that holds a budget until its client has received it. The budget is a part of
/// `made_in`, in which the response was built, or a new one.
pub(super) async fn budgeted(
    state: &AppState,
    made_in: ResponseBudget,
    bytes: Vec<u8>,
    content_type: &'static str,
) -> Result<Response, Problem> {
    let budget = state.server.text_budget(made_in, bytes.len()).await?;
    let transfer = budget.transfer();
    let mut response = Response::new(Body::from(Bytes::from_owner(Budgeted { bytes, _budget: budget })));
    if let Some(transfer) = transfer {
        // From here on the client decides how long the budget is held.
        transfer.begin();
        response.extensions_mut().insert(transfer);
    }
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(response)
}

/// The bytes of a response. The last clone that is dropped releases the budget.
struct Budgeted {
    bytes: Vec<u8>,
    _budget: ResponseBudget,
}

impl AsRef<[u8]> for Budgeted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
