//! The bytes of a file of a revision, for clients that use Xet and for those that do not.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE, LINK};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use super::problem::{HubProblem, X_REPO_COMMIT, id_value};
use super::target::{Target, encoded};
use super::wire;
use crate::http::AppState;
use crate::http::auth::Caller;
use crate::http::origin::BaseUrl;
use crate::http::representation::Representation;
use crate::http::sending::RequestContext;

const X_LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");
const X_LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");
const X_XET_HASH: HeaderName = HeaderName::from_static("x-xet-hash");

/// `Cache-Control` of a revision that may move.
const REVALIDATE: HeaderValue = HeaderValue::from_static("private, no-cache");

/// `Cache-Control` of a commit.
const IMMUTABLE: HeaderValue = HeaderValue::from_static("private, max-age=31536000, immutable");

/// `GET` and `HEAD …/resolve/{revision}/{path}`.
pub(super) async fn resolve(
    State(state): State<AppState>,
    Caller(claims): Caller,
    BaseUrl(base): BaseUrl,
    target: Target,
    method: Method,
    context: RequestContext,
    headers: HeaderMap,
) -> Result<Response<Body>, HubProblem> {
    // As for `GET /v1/files`: released before the first permit for reading is acquired.
    let permit = state.server.lookup_permit(context.tenant).await?;
    let (open, commit) = state.server.open_hub_revision(&claims, &target.name, &target.revision).await?;
    let found = state.server.find_hub_file(&open, &commit, &target.path).await?;
    drop(permit);
    let large = found.blob.sha256;
    let etag = large.map_or_else(|| found.blob.id.to_string(), |sha256| sha256.to_string());
    let etag = format!("\"{etag}\"");
    let xet_hash = found.file.hash.to_string();
    let representation = Representation::of_revision(found.file, etag.clone());
    let responded = representation.respond(&state, &method, &headers, context).await;
    let mut response = responded.map_err(|problem| HubProblem::from(problem).at(commit.id))?;
    let is_commit = target.revision == commit.id.to_string();
    let has_body = matches!(response.status(), StatusCode::OK | StatusCode::PARTIAL_CONTENT);
    let headers = response.headers_mut();
    headers.insert(X_REPO_COMMIT, id_value(commit.id));
    headers.insert(CACHE_CONTROL, if is_commit { IMMUTABLE } else { REVALIDATE });
    headers.insert(CONTENT_DISPOSITION, disposition(&target.path));
    if large.is_none() && has_body && headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "application/octet-stream") {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    }
    if large.is_some() {
        let id = wire::repo_id(&open.repo);
        let token = format!("{base}/api/{}/{id}/xet-read-token/{}", target.name.kind().plural(), commit.id);
        let fields = [
            (X_LINKED_SIZE, found.blob.len.to_string()),
            (X_LINKED_ETAG, etag),
            (X_XET_HASH, xet_hash),
            (LINK, format!("<{token}>; rel=\"xet-auth\"")),
        ];
        let fields = fields.into_iter().filter_map(|(name, value)| Some((name, HeaderValue::try_from(value).ok()?)));
        headers.extend(fields);
    }
    Ok(response)
}

/// The name under which a browser saves the file.
fn disposition(path: &str) -> HeaderValue {
    let name = path.rsplit('/').next().unwrap_or_default();
    let value = HeaderValue::try_from(format!("inline; filename*=UTF-8''{}", encoded(name)));
    value.unwrap_or_else(|_| HeaderValue::from_static("inline"))
}
