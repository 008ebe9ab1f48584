//! The routes of upload grants (spec 5.4.2). A client requests a grant for a xorb, sends the bytes
//! to the URL of the grant, and commits the grant. The xorb is visible only after the commit.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::AppState;
use super::auth::Caller;
use super::body::PacedBody;
use super::error::{Code, Problem};
use super::extract::{CommitPath, HashPath, XorbPath};
use super::origin::BaseUrl;
use super::sending::RequestContext;
use super::wire::{GrantJson, GrantRequestJson};
use crate::format::limits::MAX_XORB_BODY_LEN;
use crate::service::access::{GrantRequest, Reason, Refused, check_grant, check_granted_upload};
use crate::service::{GrantedUpload, UploadError};
use crate::wire::WasInsertedJson;

/// Lifetime of a grant: enough for 64 MiB at 20 kB/s. A slower client starts over. After three
/// grants it uploads directly, which has no such limit.
const GRANT_LIFE_SECS: u64 = 3600;

/// Maximum length of the body of a request for a grant. A usual body has about 100 bytes.
const MAX_REQUEST_LEN: u64 = 4096;

/// `POST /v1/xorb-grants/{prefix}/{hash}`: responds with 201 and a grant. A 200 makes the client
/// skip the upload, so the server sends it only to an owner that has uploaded the xorb already.
pub(super) async fn ask(
    State(state): State<AppState>,
    Caller(claims): Caller,
    HashPath(xorb): XorbPath,
    BaseUrl(base): BaseUrl,
    body: Body,
) -> Result<Response, Problem> {
    let body = PacedBody::new(body, &state).collect(MAX_REQUEST_LEN).await?;
    let request = parse(&body)?;
    if state.server.renew(&claims, xorb).await? {
        return Ok(Json(WasInsertedJson { was_inserted: false }).into_response());
    }
    state.server.store.check_headroom(request.body_len).await?;
    let request = GrantRequest {
        claims: &claims,
        xorb,
        body_len: request.body_len,
        crc64nvme: request.crc64nvme,
        expires_unix_secs: state.shared.clock.now().as_secs().saturating_add(GRANT_LIFE_SECS),
        nonce: rand::random(),
    };
    let issued = request.issue(&state.shared.keys.current());
    let grant = GrantJson {
        id: issued.id.expose().to_owned(),
        method: "PUT",
        url: format!("{base}/v1/grants/{xorb}?s={}", issued.upload.expose()),
        headers: BTreeMap::new(),
    };
    Ok((StatusCode::CREATED, Json(grant)).into_response())
}

/// The length and the checksum of the bytes that a client wants to send.
struct Announced {
    body_len: u64,
    crc64nvme: u64,
}

/// Parses and checks the body of a request for a grant.
fn parse(body: &[u8]) -> Result<Announced, Problem> {
    let invalid = |detail: &str| Problem::new(Code::InvalidRequest, detail);
    let request: GrantRequestJson = serde_json::from_slice(body).map_err(|error| {
        tracing::debug!(%error, "malformed grant request");
        invalid("The body must be {\"length\":…,\"checksum\":{\"algo\":\"crc64nvme\",\"value\":\"…\"}}.")
    })?;
    if request.checksum.algo != "crc64nvme" {
        // A future client may use another checksum. A 404 is the only status that makes it upload
        // directly.
        let detail = "Unsupported checksum; use crc64nvme, or upload to /v1/xorbs.";
        return Err(Problem::new(Code::NotFound, detail));
    }
    let value = request.checksum.value;
    // Only digits, because `parse` would accept a plus sign.
    let crc64nvme = value.parse().ok().filter(|_| value.bytes().all(|byte| byte.is_ascii_digit()));
    let crc64nvme = crc64nvme.ok_or_else(|| invalid("The checksum value must be a decimal 64-bit number."))?;
    if request.length == 0 {
        return Err(invalid("The length must be at least 1."));
    }
    if request.length > MAX_XORB_BODY_LEN {
        return Err(UploadError::TooLarge { limit: MAX_XORB_BODY_LEN }.into());
    }
    Ok(Announced { body_len: request.length, crc64nvme })
}

/// `PUT /v1/grants/{xorb}?s=…`: receives the bytes. They are invisible until the commit.
pub(super) async fn send(
    State(state): State<AppState>,
    HashPath(xorb): XorbPath,
    Query(pairs): Query<Vec<(String, String)>>,
    mut sender: RequestContext,
    body: Body,
) -> Result<StatusCode, Problem> {
    let signature = pairs.iter().find(|(name, _)| name == "s").map_or("", |(_, value)| value);
    let now = state.shared.clock.now().as_secs();
    let grant = state.shared.keys.check(|ring| check_granted_upload(ring, signature, &xorb, now)).await;
    let grant = grant.map_err(forbidden)?;
    let declared_len = http_body::Body::size_hint(&body).exact();
    // The request has no token, so the grant says which tenant sends it.
    sender.tenant = grant.tenant();
    let body = PacedBody::of_upload(body, &state, sender);
    state.server.upload_granted(GrantedUpload { grant, xorb, declared_len, body }).await?;
    Ok(StatusCode::OK)
}

/// `POST /v1/xorb-commits/{prefix}/{hash}/grant/{id}`: responds with 200 when the xorb is stored,
/// and again to repeated commits. The request has no body and no `Content-Length`.
pub(super) async fn commit(
    State(state): State<AppState>,
    Caller(claims): Caller,
    CommitPath { xorb, id }: CommitPath,
) -> Result<StatusCode, Problem> {
    let now = state.shared.clock.now().as_secs();
    let grant = state.shared.keys.check(|ring| check_grant(ring, &id, &xorb, now)).await;
    let grant = grant.and_then(|grant| grant.check_owner(&claims).map(|()| grant));
    let grant = grant.map_err(|refused| match refused.reason() {
        Reason::Owner => forbidden(refused),
        // A 404 makes the client request a new grant. A 403 would end its upload.
        _ => Problem::from(UploadError::NothingSent).because(refused.reason()),
    })?;
    state.server.commit_granted(&claims, xorb, grant).await?;
    Ok(StatusCode::OK)
}

/// The response to a refused grant. It does not say why the grant was refused.
fn forbidden(refused: Refused) -> Problem {
    tracing::debug!(reason = refused.reason().name(), "grant rejected");
    Problem::new(Code::Forbidden, "The grant is expired or does not allow this request; request a new grant.")
        .because(refused.reason())
}
