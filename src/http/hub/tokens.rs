//! Tokens with which Xet clients read or write the files of a repository.

use axum::Extension;
use axum::extract::State;
use axum::response::Response;

use super::commits::refuse_pull_request;
use super::problem::HubProblem;
use super::target::{Pairs, Target};
use crate::http::AppState;
use crate::http::auth::{Auth, Caller, Revocation};
use crate::http::error::{Code, Problem};
use crate::http::origin::BaseUrl;
use crate::http::refresh::token_response;
use crate::service::HubError;
use crate::service::access::Scope::{Read, Write};
use crate::service::access::{Claims, Scope, Token};

/// How long a token is valid, in seconds. Clients get the next one 30 to 60 s before.
const TOKEN_SECS: u64 = 3600;

/// `GET …/xet-read-token/{revision}`.
pub(super) async fn read(
    state: State<AppState>,
    caller: Caller,
    base: BaseUrl,
    target: Target,
    revocation: Option<Extension<Revocation>>,
) -> Result<Response, HubProblem> {
    token(state, caller, base, target, revocation, Read).await
}

/// `GET …/xet-write-token/{revision}`.
pub(super) async fn write(
    state: State<AppState>,
    caller: Caller,
    base: BaseUrl,
    target: Target,
    pairs: Pairs,
    revocation: Option<Extension<Revocation>>,
) -> Result<Response, HubProblem> {
    // Before the upload, which would be in vain.
    refuse_pull_request(&pairs)?;
    token(state, caller, base, target, revocation, Write).await
}

/// The refusal of a token for a transfer that was issued for one that was issued for another one.
fn too_many() -> Problem {
    let detail = "This token was issued for another one, and that for others; use the token of your user.";
    Problem::new(Code::Forbidden, detail)
}

async fn token(
    State(state): State<AppState>,
    Caller(claims): Caller,
    BaseUrl(base): BaseUrl,
    target: Target,
    revocation: Option<Extension<Revocation>>,
    scope: Scope,
) -> Result<Response, HubProblem> {
    let open = state.server.open_hub_repo(&claims, &target.name, scope).await?;
    match state.server.find_revision(&open, &target.revision).await {
        Ok(_) => {}
        // A client that is about to create a branch or a pull request names no revision.
        Err(HubError::NoRevision { .. }) if scope == Write && target.revision == "None" => {}
        Err(error) => return Err(error.into()),
    }
    let now = state.shared.clock.now().as_secs();
    let (text, exp) = match state.shared.auth {
        // The server takes any token then.
        Auth::Off => ("none".to_owned(), now.saturating_add(TOKEN_SECS)),
        Auth::Tokens => {
            // Not longer than the token of the caller.
            let exp = now.saturating_add(TOKEN_SECS).min(open.claims().expires_unix_secs);
            let claims = Claims { scope, expires_unix_secs: exp, ..open.claims().clone() };
            let token = Token::new(claims, rand::random());
            let token = match revocation {
                None => token,
                Some(Extension(revocation)) => revocation.issuing(token).ok_or_else(too_many)?,
            };
            tracing::info!(token = %token.id, repo = %token.claims.repo, %scope, "issued a token for Xet transfers");
            (token.issue(&state.shared.keys.current()).expose().to_owned(), exp)
        }
    };
    Ok(token_response(base, &text, exp))
}
