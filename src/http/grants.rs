//! The routes of upload grants (spec 5.4.2): to ask for one, to send its bytes, to commit it.

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

/// How long a grant is good for: 64 MiB at 20 kB/s. Who is slower than that starts over, and after
/// three grants takes the direct way, which has no end.
const GRANT_LIFE_SECS: u64 = 3600;

/// Bytes of a request for a grant, at most; they are about a hundred.
const MAX_REQUEST_LEN: u64 = 4096;

/// `POST /v1/xorb-grants/{prefix}/{hash}`: 201 with a grant. 200 makes the client send nothing, so
/// it is for those only who have the xorb here already.
pub(super) async fn ask(
    State(state): State<AppState>,
    Caller(claims): Caller,
    HashPath(xorb): XorbPath,
    BaseUrl(base): BaseUrl,
    body: Body,
) -> Result<Response, Problem> {
    let body = PacedBody::new(body, &state).collect(MAX_REQUEST_LEN).await?;
    let request = parse(&body)?;
    if state.cas.renew(&claims, xorb).await? {
        return Ok(Json(WasInsertedJson { was_inserted: false }).into_response());
    }
    state.cas.check_headroom(request.body_len).await?;
    let request = GrantRequest {
        claims: &claims,
        xorb,
        body_len: request.body_len,
        crc64nvme: request.crc64nvme,
        expires_unix_secs: state.clock.now().as_secs().saturating_add(GRANT_LIFE_SECS),
        nonce: rand::random(),
    };
    let issued = request.issue(&state.keys.current());
    let grant = GrantJson {
        id: issued.id.expose().to_owned(),
        method: "PUT",
        url: format!("{base}/v1/grants/{xorb}?s={}", issued.upload.expose()),
        headers: BTreeMap::new(),
    };
    Ok((StatusCode::CREATED, Json(grant)).into_response())
}

/// What a client wants to send.
struct Announced {
    body_len: u64,
    crc64nvme: u64,
}

fn parse(body: &[u8]) -> Result<Announced, Problem> {
    let invalid = |detail: &str| Problem::new(Code::InvalidRequest, detail);
    let request: GrantRequestJson = serde_json::from_slice(body).map_err(|error| {
        tracing::debug!(%error, "malformed grant request");
        invalid("The body must be {\"length\":…,\"checksum\":{\"algo\":\"crc64nvme\",\"value\":\"…\"}}.")
    })?;
    if request.checksum.algo != "crc64nvme" {
        // A 404 and nothing else makes a client upload directly: one of tomorrow, with another
        // checksum, can do that.
        let detail = "Unsupported checksum; use crc64nvme, or upload to /v1/xorbs.";
        return Err(Problem::new(Code::NotFound, detail));
    }
    let value = request.checksum.value;
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

/// `PUT /v1/grants/{xorb}?s=…`: the bytes, which cannot be read before the commit.
pub(super) async fn send(
    State(state): State<AppState>,
    HashPath(xorb): XorbPath,
    Query(pairs): Query<Vec<(String, String)>>,
    mut sender: RequestContext,
    body: Body,
) -> Result<StatusCode, Problem> {
    let signature = pairs.iter().find(|(name, _)| name == "s").map_or("", |(_, value)| value);
    let now = state.clock.now().as_secs();
    let grant = state.keys.check(|ring| check_granted_upload(ring, signature, &xorb, now)).await;
    let grant = grant.map_err(forbidden)?;
    let declared_len = http_body::Body::size_hint(&body).exact();
    sender.tenant = grant.tenant();
    let body = PacedBody::of_upload(body, &state, sender);
    state.cas.upload_granted(GrantedUpload { grant, xorb, declared_len, body }).await?;
    Ok(StatusCode::OK)
}

/// `POST /v1/xorb-commits/{prefix}/{hash}/grant/{id}`: 200 when the xorb is stored, however often
/// that is asked. There is no body, and no `Content-Length` either.
pub(super) async fn commit(
    State(state): State<AppState>,
    Caller(claims): Caller,
    CommitPath { xorb, id }: CommitPath,
) -> Result<StatusCode, Problem> {
    let now = state.clock.now().as_secs();
    let grant = state.keys.check(|ring| check_grant(ring, &id, &xorb, now)).await;
    let grant = grant.and_then(|grant| grant.check_owner(&claims).map(|()| grant));
    let grant = grant.map_err(|refused| match refused.reason() {
        Reason::Owner => forbidden(refused),
        // A 404 makes a client ask for a new grant; a 403 would end its upload.
        _ => Problem::from(UploadError::NothingSent).because(refused),
    })?;
    state.cas.commit_granted(&claims, xorb, grant).await?;
    Ok(StatusCode::OK)
}

fn forbidden(refused: Refused) -> Problem {
    tracing::debug!(reason = refused.reason().name(), "grant rejected");
    Problem::new(Code::Forbidden, "The grant is expired or does not allow this request; request a new grant.")
        .because(refused)
}
