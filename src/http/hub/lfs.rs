//! The batch of Git LFS, for versions of `huggingface_hub` before 2.0: they ask how to upload large
//! files, and are told to use Xet.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::problem::HubProblem;
use super::repos::parse;
use super::target::Target;
use super::wire::{BatchJson, LfsObjectJson};
use crate::http::AppState;
use crate::http::auth::Caller;
use crate::service::access::Scope::Write;

/// `POST …/info/lfs/objects/batch`.
pub(super) async fn batch(
    State(state): State<AppState>,
    Caller(claims): Caller,
    target: Target,
    body: Body,
) -> Result<Response, HubProblem> {
    let request: BatchJson = parse(&state, body).await?;
    state.server.open_hub_repo(&claims, &target.name, Write).await?;
    let has_xet = request.transfers.iter().any(|transfer| transfer == "xet");
    let objects = request.objects.iter().map(|LfsObjectJson { oid, size }| {
        if has_xet {
            json!({ "oid": oid, "size": size })
        } else {
            let message = "This server takes large files by Xet only; install hf_xet (pip install hf_xet).";
            json!({ "oid": oid, "size": size, "error": { "code": 501, "message": message } })
        }
    });
    let objects: Vec<Value> = objects.collect();
    let transfer = if has_xet { "xet" } else { "basic" };
    let mut response = Json(json!({ "transfer": transfer, "objects": objects })).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/vnd.git-lfs+json"));
    Ok(response)
}
