//! Bodies in memory, sent with progress reports.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::unfold;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE};
use reqwest::{Body, RequestBuilder};

use super::activity::Activity;

/// Bytes that are sent at once.
const PIECE_LEN: usize = 256 << 10;

/// Sets these bytes as the body of a request. When the network takes a piece, `activity` is touched
/// and the length of the piece is passed to `sent`.
pub(super) fn with_body(
    request: RequestBuilder,
    bytes: Bytes,
    activity: Arc<Activity>,
    sent: impl Fn(u64) + Send + Sync + 'static,
) -> RequestBuilder {
    let len = bytes.len();
    let pieces = unfold((bytes, sent), move |(mut rest, sent)| {
        activity.touch();
        let piece = rest.split_to(rest.len().min(PIECE_LEN));
        sent(piece.len() as u64);
        async move { (!piece.is_empty()).then_some((Ok::<_, io::Error>(piece), (rest, sent))) }
    });
    request.header(CONTENT_TYPE, "application/octet-stream").header(CONTENT_LENGTH, len).body(Body::wrap_stream(pieces))
}
