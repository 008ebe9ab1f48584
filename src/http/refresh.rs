//! `GET /v1/token`: exchanges a refresh token for a new access token. A client that runs for longer
//! than an access token is valid needs this route.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::AppState;
use super::audit::AuditContext;
use super::auth::{bearer_of, invalid_token, missing_token};
use super::error::Problem;
use super::origin::BaseUrl;
use crate::service::access::check_refresh_token;

const X_XET_CAS_URL: HeaderName = HeaderName::from_static("x-xet-cas-url");
const X_XET_ACCESS_TOKEN: HeaderName = HeaderName::from_static("x-xet-access-token");
const X_XET_TOKEN_EXPIRATION: HeaderName = HeaderName::from_static("x-xet-token-expiration");

/// Response of `GET /v1/token` and of the token routes of the Hub, in the form in which Xet clients
/// read it (spec 5.13).
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct IssuedTokenJson {
    /// The token.
    access_token: String,
    /// When it expires, in seconds since 1970.
    exp: u64,
    /// The URL of the server for which the token is valid.
    cas_url: String,
}

/// `GET /v1/token` with a refresh token. The new token is in the body and in headers, because some
/// clients read the body and others the headers.
pub(super) async fn refresh(
    State(state): State<AppState>,
    BaseUrl(base): BaseUrl,
    context: AuditContext,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let text = bearer_of(&headers).map_err(|_| {
        let detail = "This request requires a refresh token: send Authorization: Bearer with a token from `zorb token \
             issue --refresh`.";
        missing_token(detail)
    })?;
    let now = state.shared.clock.now().as_secs();
    let refresh = state.shared.keys.check(|ring| check_refresh_token(ring, text, now)).await.map_err(invalid_token)?;
    let token = refresh.make(now, rand::random());
    // The audit line names the new token, and the refresh token as its parent.
    context.set_token(&token);
    tracing::info!(token = %token.id, parent = %refresh.id, repo = %token.claims.repo, "issued a token");
    let exp = token.claims.expires_unix_secs;
    let text = token.issue(&state.shared.keys.current());
    Ok(token_response(base, text.expose(), exp))
}

/// The response with a new token for Xet clients, in the body and in headers.
pub(super) fn token_response(base: String, token: &str, exp: u64) -> Response {
    let fields = [
        (X_XET_CAS_URL, HeaderValue::from_str(&base)),
        (X_XET_ACCESS_TOKEN, HeaderValue::from_str(token)),
        (X_XET_TOKEN_EXPIRATION, HeaderValue::from_str(&exp.to_string())),
    ];
    let json = IssuedTokenJson { access_token: token.to_owned(), exp, cas_url: base };
    let mut response = Json(json).into_response();
    // A value that is invalid in a header is left out. The body has all values.
    response.headers_mut().extend(fields.into_iter().filter_map(|(name, value)| Some((name, value.ok()?))));
    response
}
