//! The route for a client that changes some bytes of a stored file (spec 5.9). With its response,
//! the client computes the hash of the changed file without reading the whole file.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::AppState;
use super::auth::Caller;
use super::error::{Code, Problem};
use super::extract::HashPath;
use super::range::parse_closed_ranges;
use super::render::json;
use super::sending::RequestContext;
use crate::format::windows::ChunkWindows;
use crate::format::{ByteRange, FileHash, RangeHash};
use crate::service::ResponseBudget;
use crate::wire::{HashText, SubtreeJson, Text, WindowJson};

/// The header that lists the bytes that will change. It is not `Range`, because `Range` selects a
/// part of the response.
const HEADER: &str = "x-range-dirty";

/// `GET /v2/file-chunk-hashes/{file}`: the parts of the file that the client must cut into chunks
/// again, and hashes that sum up the rest.
pub(super) async fn find(
    State(state): State<AppState>,
    Caller(claims): Caller,
    RequestContext { tenant, .. }: RequestContext,
    HashPath(file): HashPath<FileHash>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let changes = changes(&headers)?;
    // Held until the response is built, because a response may have 90 MB: for a file of a million
    // terms.
    let permit = state.server.walk_permit(tenant).await?;
    let windows = state.server.chunk_windows(&permit, &claims, file, &changes).await?;
    let node_count: usize = windows.gaps.iter().flatten().map(|gap| gap.nodes().count()).sum();
    let item_count = node_count + windows.gap_verification.len();
    json(&state, item_count, ResponseBudget::default(), || ChunkHashesJson::from(windows)).await
}

/// The bytes that will change, from the header.
fn changes(headers: &HeaderMap) -> Result<Vec<ByteRange>, Problem> {
    let mut fields = headers.get_all(HEADER).iter();
    let text = match (fields.next(), fields.next()) {
        (Some(text), None) => text.to_str().ok(),
        _ => None,
    };
    text.and_then(parse_closed_ranges).ok_or_else(|| {
        let detail = "Send one X-Range-Dirty header with the bytes that will change: `bytes=A-B,C-D`, at most \
            1024 ranges.";
        Problem::new(Code::InvalidRange, detail)
    })
}

/// The JSON of the response.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChunkHashesJson {
    total_chunks: u64,
    file_size: u64,
    windows: Vec<WindowJson>,
    hash_ranges: Vec<Option<SubtreeJson>>,
    #[schema(value_type = Vec<HashText>)]
    gap_verification: Vec<Text<RangeHash>>,
}

impl From<ChunkWindows> for ChunkHashesJson {
    fn from(found: ChunkWindows) -> Self {
        let window = |window: ByteRange| WindowJson { dirty_byte_range: [window.start(), window.end()] };
        Self {
            total_chunks: found.total_chunks,
            file_size: found.file_len,
            windows: found.windows.into_iter().map(window).collect(),
            hash_ranges: found.gaps.iter().map(|gap| gap.as_ref().map(SubtreeJson::from)).collect(),
            gap_verification: found.gap_verification.into_iter().map(Text).collect(),
        }
    }
}
