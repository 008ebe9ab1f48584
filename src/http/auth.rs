//! Authentication and authorization. The token and its scope are checked before path, query or body
//! are parsed. Handlers and the service check later what the repository of the token may read.
//!
//! The server responds with 401 to a request without a valid token, and with 403 to a token whose
//! scope does not include the request (spec 6). For data that the repository of a token may not
//! read, it responds with 404, as for missing data.

use axum::extract::{FromRequestParts, Request};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use super::AppState;
use super::audit::AuditContext;
use super::error::{Code, Problem};
use super::peer::PeerAddr;
use crate::service::access::{
    Claims, MAX_ANCESTOR_COUNT, Reason, Refused, RepoScope, Scope, Token, TokenId, check_token,
};

/// Whether requests need tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Every client has all permissions.
    Off,
    /// Every request needs a token, except on open routes such as those of health probes.
    Tokens,
}

/// What a client is told that has sent no token.
pub(super) const TOKEN_REQUIRED: &str =
    "This request requires a token: send Authorization: Bearer with a token from `zorb token issue`.";

/// The claims of the request's token.
#[derive(Clone, Debug)]
pub(super) struct Caller(pub(super) Claims);

/// The ids with which the request's token is revoked. There is none without authentication.
#[derive(Clone, Debug)]
pub(super) struct Revocation {
    /// Its own id.
    pub(super) id: TokenId,
    /// Those of its ancestors.
    pub(super) ancestors: Vec<TokenId>,
}

impl Revocation {
    /// Makes a token one that is revoked with the request's token, and with each of its ancestors.
    /// `None` if these are too many.
    pub(super) fn issuing(mut self, token: Token) -> Option<Token> {
        if self.ancestors.len() == MAX_ANCESTOR_COUNT {
            return None;
        }
        self.ancestors.push(self.id);
        Some(Token { ancestors: self.ancestors, ..token })
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // `guard` inserts the caller. A handler that takes a caller on a route without `guard` is a
        // bug, so it rejects every request.
        parts.extensions.get::<Self>().cloned().ok_or_else(|| {
            tracing::error!("a route that needs the caller is not guarded");
            Problem::new(Code::Internal, "This route has no authentication guard; report this as a bug.")
        })
    }
}

/// Refuses a request without a token that a browser has sent for the page of another site.
fn check_site(state: &AppState, request: &Request) -> Result<(), Problem> {
    if state.shared.cors_origins.forbid(request.headers()) {
        let detail = "The page of another site sent this request; cors_origins names the sites that may.";
        return Err(Problem::new(Code::Forbidden, detail));
    }
    let peer = request.extensions().get::<PeerAddr>().map(|peer| peer.0.ip());
    if peer.is_some_and(|peer| state.shared.address.is_foreign_name(peer, request.headers(), request.uri())) {
        let detail = "The Host header has the name of another site. Use an address or localhost; a name needs \
            public_url, and a proxy on this machine trusted_proxies.";
        return Err(Problem::new(Code::Forbidden, detail));
    }
    Ok(())
}

/// Passes on a request without a token, to a route that shows public repositories. Its address is
/// its tenant, also in the tokens that it gets for transfers.
pub(super) async fn admit_anonymous(state: &AppState, mut request: Request, next: Next) -> Result<Response, Problem> {
    check_site(state, &request)?;
    let client = state.shared.address.client_network(request.headers(), request.extensions());
    let claims = Claims::anonymous(client, state.shared.clock.now().as_secs());
    request.extensions_mut().insert(Caller(claims));
    Ok(next.run(request).await)
}

/// Authenticates: passes a request on if its token includes the scope `needed`. A token for a
/// namespace or of a user is only for routes of the Hub, because a request to another route is
/// about one repository that only its token names.
pub(super) async fn guard(
    (state, needed, is_of_hub): (AppState, Scope, bool),
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let claims = match state.shared.auth {
        Auth::Off => {
            check_site(&state, &request)?;
            Claims::UNRESTRICTED
        }
        Auth::Tokens => {
            let token = check(&state, request.headers()).await?;
            if let Some(context) = request.extensions().get::<AuditContext>() {
                context.set_token(&token);
            }
            let span = tracing::Span::current();
            span.record("token", tracing::field::display(token.id));
            span.record("repo", tracing::field::display(&token.claims.repo));
            if let RepoScope::Public(public) = &token.claims.repo
                && (token.claims.are_of_anonymous() && !state.shared.anonymous_read
                    || !state.server.is_still_public(public, token.claims.tenant()).await?)
            {
                return Err(invalid_token(Reason::Repo.into()));
            }
            if let Some(subject) = &token.claims.subject {
                span.record("subject", tracing::field::display(subject));
            }
            request.extensions_mut().insert(Revocation { id: token.id, ancestors: token.ancestors });
            token.claims
        }
    };
    if !claims.allow(needed) {
        tracing::debug!(%needed, has = %claims.scope, "token scope insufficient");
        let detail = format!("This request requires a token with the scope {needed}; the token has {}.", claims.scope);
        return Err(Problem::new(Code::Forbidden, detail).because(Reason::Scope));
    }
    let only_for_hub = match &claims.repo {
        _ if is_of_hub => None,
        RepoScope::Namespace(_) => Some(format!("for the namespace {}", claims.repo)),
        RepoScope::Account(account) => Some(format!("of the user {}", account.name())),
        RepoScope::All | RepoScope::One(_) | RepoScope::Public(_) => None,
    };
    if let Some(whose) = only_for_hub {
        let detail = format!(
            "This token is {whose}, and only hf and other clients of the Hub can use it; issue a token for one \
             repository."
        );
        return Err(Problem::new(Code::Forbidden, detail).because(Reason::Route));
    }
    request.extensions_mut().insert(Caller(claims));
    Ok(next.run(request).await)
}

/// Checks the token of a request.
async fn check(state: &AppState, headers: &HeaderMap) -> Result<Token, Problem> {
    let token = bearer_of(headers).map_err(missing_token)?;
    let now = state.shared.clock.now().as_secs();
    state.shared.keys.check(|ring| check_token(ring, token, now)).await.map_err(invalid_token)
}

/// The response to a request without a token.
pub(super) fn missing_token(detail: &'static str) -> Problem {
    Problem::new(Code::Unauthorized, detail).because(Reason::Missing)
}

/// The response to an invalid token. It does not say why the token is invalid.
pub(super) fn invalid_token(refused: Refused) -> Problem {
    tracing::debug!(reason = refused.reason().name(), "token rejected");
    Problem::new(Code::Unauthorized, "The token is invalid, expired or revoked; get a new one.")
        .because(refused.reason())
}

/// The response to a request about other repositories than those of the token.
pub(super) fn foreign(claims: &Claims, detail: &'static str) -> Problem {
    let reason = if claims.repo == RepoScope::All { Reason::Scope } else { Reason::Repo };
    Problem::new(Code::Forbidden, detail).because(reason)
}

/// The text of a request's token, or what is wrong with its header.
pub(super) fn bearer_of(headers: &HeaderMap) -> Result<&str, &'static str> {
    let header = headers.get(AUTHORIZATION).ok_or(TOKEN_REQUIRED)?;
    bearer(header).ok_or("The Authorization header is not `Bearer TOKEN`.")
}

/// The token of an `Authorization` header. The scheme is not case-sensitive (RFC 9110, section
/// 11.1).
fn bearer(header: &HeaderValue) -> Option<&str> {
    let (scheme, token) = header.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' '))
}

impl Caller {
    /// Whether this caller's token is for all repositories, so that it may read every xorb. A xorb
    /// mixes chunks of many files. So a caller whose token is for one repository may not read whole
    /// xorbs. It gets signed URLs for the ranges of the files that it may read (spec 6.2, rule 2).
    pub(super) fn sees_all(&self) -> bool {
        self.0.repo == RepoScope::All
    }
}
