//! The routes that upload, download and describe xorbs.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, Response, StatusCode};
use axum::response::IntoResponse;

use super::AppState;
use super::auth::Caller;
use super::body::PacedBody;
use super::error::{Code, Problem};
use super::extract::{HashPath, PartQuery, XorbPath};
use super::render::json;
use super::representation::Representation;
use super::sending::RequestContext;
use super::wire::UploadedJson;
use crate::format::XorbHash;
use crate::format::limits::{MAX_XORB_BODY_LEN, MAX_XORB_SERIALIZED_LEN};
use crate::service::access::Claims;
use crate::service::{ResponseBudget, StoredXorb, Upload, Uploaded};
use crate::wire::{ChunksJson, WasInsertedJson};

/// `POST /xorbs/{hash}`: responds with 201 if the blob of this upload was stored, and with 200 if
/// the xorb was stored before and its blob stays.
pub(super) async fn upload(
    State(state): State<AppState>,
    Caller(claims): Caller,
    context: RequestContext,
    HashPath(hash): XorbPath,
    body: Body,
) -> Result<impl IntoResponse, Problem> {
    let uploaded = receive(&state, (context, &claims), hash, MAX_XORB_SERIALIZED_LEN, body).await?;
    let status = if uploaded.was_inserted { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(UploadedJson::from(uploaded))))
}

/// `POST /v1/xorbs/{prefix}/{hash}`: like [`upload`], but with the larger limit that Xet clients
/// need (spec 3.6), and always with 200.
pub(super) async fn upload_xet(
    State(state): State<AppState>,
    Caller(claims): Caller,
    context: RequestContext,
    HashPath(hash): XorbPath,
    body: Body,
) -> Result<impl IntoResponse, Problem> {
    let uploaded = receive(&state, (context, &claims), hash, MAX_XORB_BODY_LEN, body).await?;
    Ok(Json(WasInsertedJson { was_inserted: uploaded.was_inserted }))
}

/// `GET /xorbs/{hash}` and `GET /v1/xorbs/{prefix}/{hash}`: chunks, as stored or decompressed.
pub(super) async fn download(
    State(state): State<AppState>,
    caller: Caller,
    HashPath(hash): XorbPath,
    query: PartQuery,
    method: Method,
    context: RequestContext,
    headers: HeaderMap,
) -> Result<Response<Body>, Problem> {
    // A client that checks with HEAD before an upload does not upload a stored xorb. So GC must not
    // delete the xorb, and its grace period begins anew. A damaged xorb is reported as missing, so
    // that the client uploads it again.
    if method == Method::HEAD && caller.sees_all() && !state.server.renew(&caller.0, hash).await? {
        return Err(no_such_xorb(hash));
    }
    let xorb = find(&state, &caller, hash).await?;
    let chunks = query.chunks(xorb.layout())?;
    Representation::new(xorb, query.form, chunks).respond(&state, &method, &headers, context).await
}

/// `GET /xorbs/{hash}/chunks`: hash and position of every chunk.
pub(super) async fn list_chunks(
    State(state): State<AppState>,
    caller: Caller,
    HashPath(hash): XorbPath,
) -> Result<Response<Body>, Problem> {
    let xorb = find(&state, &caller, hash).await?;
    let chunks = state.server.store.chunks(hash).await?.ok_or_else(|| no_such_xorb(hash))?;
    let chunk_count = chunks.len();
    let response = move || ChunksJson {
        hash: hash.to_string(),
        serialized_len: xorb.layout().serialized_len(),
        raw_len: xorb.layout().raw_len(),
        chunks: chunks.into_iter().map(Into::into).collect(),
    };
    json(&state, chunk_count, ResponseBudget::default(), response).await
}

/// The xorb, if this caller may read it. Forbidden and missing are deliberately indistinguishable.
async fn find(state: &AppState, caller: &Caller, hash: XorbHash) -> Result<Arc<StoredXorb>, Problem> {
    let found = if caller.sees_all() { state.server.store.find(hash).await? } else { None };
    found.ok_or_else(|| no_such_xorb(hash))
}

/// Receives and stores a xorb.
async fn receive(
    state: &AppState,
    (sender, claims): (RequestContext, &Claims),
    claimed: XorbHash,
    max_len: u64,
    body: Body,
) -> Result<Uploaded, Problem> {
    let (declared_len, tenant) = (http_body::Body::size_hint(&body).exact(), sender.tenant);
    let body = PacedBody::of_upload(body, state, sender);
    Ok(state.server.upload_for(tenant, Upload { claims, claimed, max_len, declared_len, body }).await?)
}

/// The response for a xorb that does not exist, or that the caller may not read.
fn no_such_xorb(hash: XorbHash) -> Problem {
    Problem::new(Code::NotFound, format!("Xorb {hash} not found."))
}
