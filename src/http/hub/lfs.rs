//! Git LFS, as `huggingface_hub` uses it: versions before 2.0 ask how to upload large files, and
//! are told to use Xet. A client without `hf_xet` gets a URL for each file, to which it sends the
//! file as a whole.
//!
//! Clients send neither their token nor other headers to that URL. So its signature is for one
//! file, and for the token that has asked for it.

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::problem::HubProblem;
use super::repos::parse_long;
use super::target::{Pairs, Target};
use super::wire::{BatchJson, LfsObjectJson};
use crate::format::shard::Sha256;
use crate::http::AppState;
use crate::http::audit::AuditContext;
use crate::http::auth::{Auth, Caller, Revocation};
use crate::http::body::PacedBody;
use crate::http::error::{Code, Problem};
use crate::http::extract::HashPath;
use crate::http::origin::BaseUrl;
use crate::http::sending::RequestContext;
use crate::service::access::Scope::Write;
use crate::service::access::{Claims, Reason, RepoScope, Token, check_file_upload};
use crate::service::{HubError, MAX_WHOLE_FILE_LEN, OpenRepo, UploadError, WholeFile};

/// How long a URL is valid, in seconds: a week. A client gets the URLs of up to 256 files at once,
/// sends a few files at a time, and does not ask again.
const URL_SECS: u64 = 7 * 24 * 3600;

/// How long a client may take to send a file. GC deletes a xorb after 22 days, also while the file
/// is not registered yet, and a token may have been revoked since.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Maximum number of objects in a batch. Clients send at most 256.
const MAX_OBJECT_COUNT: usize = 1000;

/// `POST …/info/lfs/objects/batch`.
pub(super) async fn batch(
    State(state): State<AppState>,
    Caller(claims): Caller,
    BaseUrl(base): BaseUrl,
    RequestContext { tenant, .. }: RequestContext,
    target: Target,
    revocation: Option<Extension<Revocation>>,
    body: Body,
) -> Result<Response, HubProblem> {
    let (request, _budget): (BatchJson, _) = parse_long(&state, tenant, body).await?;
    if request.objects.len() > MAX_OBJECT_COUNT {
        return Err(HubProblem::invalid(format!("A batch has at most {MAX_OBJECT_COUNT} objects.")));
    }
    let _permit = state.server.lookup_permit(tenant).await?;
    let open = state.server.open_hub_repo(&claims, &target.name, Write).await?;
    let has_xet = request.transfers.has_xet;
    let is_upload = request.operation.as_deref().is_none_or(|operation| operation == "upload");
    let now = state.shared.clock.now().as_secs();
    let token = upload_token(&open, revocation.map(|Extension(revocation)| revocation));
    let mut objects = Vec::with_capacity(request.objects.len());
    for object in &request.objects {
        objects.push(match (has_xet, is_upload) {
            (true, _) => json!({ "oid": object.oid, "size": object.size }),
            (false, true) => upload_of(&state, (&open, &token), object, &base, now).await?,
            (false, false) => {
                refused(object, 501, "This server serves downloads by path; use hf download, or curl with /resolve/.")
            }
        });
    }
    let transfer = if has_xet { "xet" } else { "basic" };
    let mut response = Json(json!({ "transfer": transfer, "objects": objects })).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/vnd.git-lfs+json"));
    Ok(response)
}

/// The token in whose name files are uploaded: that of the caller, with the right to write to this
/// repository and no other right.
fn upload_token(open: &OpenRepo, revocation: Option<Revocation>) -> Token {
    let claims = Claims { scope: Write, ..open.claims().clone() };
    match revocation {
        Some(Revocation { id, ancestors }) => Token { id, ancestors, claims },
        None => Token::new(claims, rand::random()),
    }
}

/// How to upload an object. Without actions, the repository has it already.
async fn upload_of(
    state: &AppState,
    (open, token): (&OpenRepo, &Token),
    object: &LfsObjectJson,
    base: &str,
    now: u64,
) -> Result<Value, HubProblem> {
    let LfsObjectJson { oid, size } = object;
    let Ok(sha256) = oid.parse::<Sha256>() else {
        return Ok(refused(object, 422, "The oid is not a sha256 of 64 hex digits."));
    };
    if *size > MAX_WHOLE_FILE_LEN {
        let message = "The file is too long to be sent as a whole; install hf_xet (pip install hf_xet).";
        return Ok(refused(object, 422, message));
    }
    if state.server.has_whole_file(open, sha256, *size).await? {
        return Ok(json!({ "oid": oid, "size": size }));
    }
    let expires = now.saturating_add(URL_SECS);
    let signature = token.sign_file_upload(&state.shared.keys.current(), (&sha256, *size), expires);
    let href = format!("{base}/lfs/objects/{sha256}?len={size}&s={}", signature.expose());
    let secs = expires.min(token.claims.expires_unix_secs).saturating_sub(now);
    Ok(json!({
        "oid": oid,
        "size": size,
        "authenticated": true,
        "actions": { "upload": { "href": href, "header": {}, "expires_in": secs } },
    }))
}

/// The entry of an object that cannot be transferred.
fn refused(object: &LfsObjectJson, code: u16, message: &str) -> Value {
    json!({ "oid": object.oid, "size": object.size, "error": { "code": code, "message": message } })
}

/// `PUT /lfs/objects/{digest}?len=…&s=…`: receives a file as a whole.
pub(super) async fn receive(
    State(state): State<AppState>,
    HashPath(sha256): HashPath<Sha256>,
    pairs: Pairs,
    mut sender: RequestContext,
    audit: AuditContext,
    body: Body,
) -> Result<StatusCode, HubProblem> {
    let len = pairs.get("len").filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let len = len.and_then(|text| text.parse::<u64>().ok());
    let len = len.ok_or_else(|| HubProblem::invalid("The URL has no length; send the request for an upload again."))?;
    let signature = pairs.get("s").unwrap_or_default();
    let now = state.shared.clock.now().as_secs();
    let token = state.shared.keys.check(|ring| check_file_upload(ring, signature, (&sha256, len), now)).await;
    let forbidden = || {
        let detail = "The upload URL is expired, revoked, or for another file; send the request for an upload again.";
        Problem::new(Code::Forbidden, detail)
    };
    let token = token.map_err(|refused| {
        tracing::debug!(reason = refused.reason().name(), "upload URL rejected");
        forbidden().because(refused.reason())
    })?;
    audit.set_token(&token);
    match state.shared.auth {
        // A URL for all repositories is from before the server asked for tokens.
        Auth::Tokens if token.claims.repo == RepoScope::All => return Err(forbidden().because(Reason::Repo).into()),
        // The request has no token, so the URL says which tenant sends it.
        Auth::Tokens => sender.tenant = token.claims.tenant(),
        Auth::Off => {}
    }
    let tenant = sender.tenant;
    if http_body::Body::size_hint(&body).exact().is_some_and(|declared| declared != len) {
        return Err(HubProblem::invalid(format!("The URL is for a file of {len} bytes.")));
    }
    let body = PacedBody::of_upload(body, &state, sender);
    let receiving = state.server.receive_whole_file(WholeFile { tenant, claims: &token.claims, sha256, len, body });
    let received = timeout(RECEIVE_TIMEOUT, receiving).await;
    received.unwrap_or(Err(HubError::Upload(UploadError::Stalled))).map_err(|error| of_upload(error, len))?;
    Ok(StatusCode::OK)
}

/// Why a file was not stored. These clients repeat a request only after certain statuses.
fn of_upload(error: HubError, len: u64) -> HubProblem {
    let later = |detail: &str| Problem::new(Code::Overloaded, detail).retry_soon().into();
    match error {
        HubError::Upload(UploadError::AboveShare { .. }) => {
            later("Other clients need the server, too; retry after the delay in Retry-After.")
        }
        HubError::Upload(UploadError::TooSlow) => later("The server is overloaded; send the file again."),
        HubError::Upload(UploadError::TooLarge { .. }) => {
            HubProblem::invalid(format!("The URL is for a file of {len} bytes, and more bytes were received."))
        }
        other => other.into(),
    }
}
