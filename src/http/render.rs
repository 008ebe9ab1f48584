//! Answers that may be long.

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;

use super::AppState;
use super::error::Problem;
use crate::service::AnswerRoom;

/// An answer of so many items as JSON: made and written down where that holds up nobody else's requests. It has `room` until its
/// text is there, and the text has what it needs until its client has taken it.
pub(super) async fn json<T, F>(
    state: &AppState,
    item_count: usize,
    room: AnswerRoom,
    value: F,
) -> Result<Response, Problem>
where
    T: Serialize,
    F: FnOnce() -> T + Send + 'static,
{
    // The room goes along: what has begun comes to its end, whoever leaves.
    let write = move || {
        let mut text = serde_json::to_vec(&value()).expect("what has text as its keys can be written");
        // It may be kept for hours, and has grown by doubling.
        text.shrink_to_fit();
        (text, room)
    };
    let (text, room) = state.cas.compute(item_count, write).await;
    kept(state, room, text, "application/json").await
}

/// An answer that has room until its client has taken it, of what there was while it was made or of its own.
pub(super) async fn kept(
    state: &AppState,
    made_in: AnswerRoom,
    bytes: Vec<u8>,
    content_type: &'static str,
) -> Result<Response, Problem> {
    let room = state.cas.text_room(made_in, bytes.len()).await?;
    let transfer = room.transfer();
    let mut response = Response::new(Body::from(Bytes::from_owner(Kept { bytes, _room: room })));
    if let Some(transfer) = transfer {
        // Made by now: from here on its client decides how long the room is held.
        transfer.begin();
        response.extensions_mut().insert(transfer);
    }
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(response)
}

struct Kept {
    bytes: Vec<u8>,
    _room: AnswerRoom,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
