//! The audit log: one line of JSON per audited request, with the token, the action and the result.
//!
//! A line is appended when the response has ended or its client has disconnected, because it
//! contains the numbers of bytes received and sent. A line has no query string, and of the path
//! only hashes and names of Hub repositories. Of the headers it has only the request id and the
//! address that a trusted proxy reports. So no field can contain a token or a signature.
//! `docs/monitoring.md` lists the fields. A field never changes its meaning.
//!
//! A crash loses the lines of requests that have not ended.

mod line;
mod refusals;
mod tallied;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use http_body::Body as HttpBody;

pub use self::line::AuditLine;
pub use self::refusals::Refusals;
use self::tallied::Tallied;
use super::AppState;
use super::error::Outcome;
use super::layers::{CLIENT_LEFT, RequestId};
use super::peer::PeerAddr;
use crate::format::XorbHash;
use crate::runtime::clock::Timestamp;
use crate::runtime::journal::Journal;
use crate::service::HubName;
use crate::service::access::Token;

/// Routes of health probes, which are requested every few seconds. Never in the audit log.
const HEALTH_PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// The audit log.
#[derive(Clone, Debug)]
pub struct Audit {
    /// Writes the lines.
    pub journal: Journal,
    /// Which requests get a line.
    pub scope: AuditScope,
    /// Counts recent refusals by address.
    pub refusals: Arc<Refusals>,
}

impl Audit {
    /// Appends the sums of the refusals that have no lines of their own. To be called before the
    /// journal is closed.
    pub fn finish(&self) {
        self.append_sums(true);
    }

    /// Appends the sums whose minute is over, or all sums at the end.
    fn append_sums(&self, is_end: bool) {
        for sum in self.refusals.take_sums(is_end) {
            let line = AuditLine {
                time: AuditLine::time(sum.time),
                action: "(refused)",
                peer: Some(sum.address.map_or_else(|| "others".to_owned(), |address| address.to_string())),
                count: Some(sum.count),
                ..AuditLine::default()
            };
            self.journal.append(line.render());
        }
    }
}

/// Which requests are in the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditScope {
    /// Requests to routes that change something, and all requests that are refused with 401 or 403.
    Writes,
    /// All requests except health probes.
    All,
}

/// What the handler of a request reports to the audit log.
#[derive(Clone, Debug, Default)]
pub(super) struct AuditContext(Arc<Reported>);

/// The contents of an [`AuditContext`].
#[derive(Debug, Default)]
struct Reported {
    token: OnceLock<Token>,
    hub_repo: OnceLock<String>,
    /// The error code of a failure after the head of the response was sent.
    late_code: OnceLock<&'static str>,
    /// Bytes of the request body so far.
    received_len: AtomicU64,
}

impl AuditContext {
    /// Sets the token of the request.
    pub(super) fn set_token(&self, token: &Token) {
        // `set` fails only for a second token, and a request has only one.
        let _ = self.0.token.set(token.clone());
    }

    /// Sets the Hub repository of the request.
    pub(super) fn set_hub_repo(&self, name: &HubName) {
        // In lower case, because repositories are found by any.
        let _ = self.0.hub_repo.set(name.storage_name().to_ascii_lowercase());
    }

    /// Reports that the request failed after the head of a successful response was sent.
    pub(super) fn failed_late(&self, code: &'static str) {
        // Only the first failure is recorded.
        let _ = self.0.late_code.set(code);
    }
}

impl<S: Sync> FromRequestParts<S> for AuditContext {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        // Without an audit log, a request has no context. The default gets the reports instead, and
        // is never read.
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

/// What the audit log needs to know of a route.
#[derive(Debug)]
pub(super) struct AuditedRoute<'a> {
    pub(super) method: &'static str,
    /// The patterns of the route. The first one is its name in the log.
    pub(super) paths: &'a [&'static str],
    /// Whether requests to the route change something.
    pub(super) changes: bool,
}

/// All routes, for finding the name of a route in the log.
#[derive(Debug)]
pub(super) struct Catalog {
    /// By method and pattern, as in `GET /v1/x`.
    actions: HashMap<String, Action>,
}

/// A route, as the log names it.
#[derive(Clone, Debug)]
struct Action {
    /// The first pattern of the route, which is its name.
    path: &'static str,
    changes: bool,
}

impl Catalog {
    pub(super) fn of<'a>(routes: impl IntoIterator<Item = AuditedRoute<'a>>) -> Self {
        let mut actions = HashMap::new();
        for AuditedRoute { method, paths, changes } in routes {
            let path = paths.first().copied().unwrap_or_default();
            for pattern in paths {
                actions.insert(format!("{method} {pattern}"), Action { path, changes });
            }
        }
        Self { actions }
    }

    fn find(&self, method: &Method, pattern: &str) -> Option<&Action> {
        // A route for GET serves HEAD, too.
        let of = |method: &str| self.actions.get(&format!("{method} {pattern}"));
        of(method.as_str()).or_else(|| if *method == Method::HEAD { of("GET") } else { None })
    }
}

/// The middleware of the audit log: serves the request, and appends its line when the response has
/// ended. [`AuditScope`] decides which requests get a line.
pub(super) async fn note(
    State((state, audit, catalog)): State<(AppState, Audit, Arc<Catalog>)>,
    mut request: Request,
    next: Next,
) -> Response {
    let pattern = request.extensions().get::<MatchedPath>().cloned();
    let pattern = pattern.as_ref().map_or("", MatchedPath::as_str);
    // There is no timer: each request appends the sums that are due.
    audit.append_sums(false);
    if HEALTH_PROBES.contains(&pattern) {
        return next.run(request).await;
    }
    let action = catalog.find(request.method(), pattern);
    let context = AuditContext::default();
    let peer = request.extensions().get::<PeerAddr>().map(|peer| peer.0);
    let client = peer.and_then(|peer| state.shared.address.client(peer.ip(), request.headers()));
    let mut entry = Entry {
        time: state.shared.clock.now(),
        begin: Instant::now(),
        id: request.extensions().get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default(),
        action: action.map_or_else(|| "(none)".to_owned(), |action| format!("{} {}", request.method(), action.path)),
        resource: hash_in(request.uri().path()),
        peer: peer.map(|peer| peer.to_string()),
        client: client.map(|ip| ip.to_string()),
        address: client.or(peer.map(|peer| peer.ip())),
        context: context.clone(),
        status: CLIENT_LEFT,
        outcome: None,
        sent_len: 0,
        expected_len: Some(0),
        audit: (audit.scope == AuditScope::All || action.is_some_and(|action| action.changes)).then(|| audit.clone()),
    };
    request.extensions_mut().insert(context.clone());
    let is_head = *request.method() == Method::HEAD;
    let request = request.map(|body| {
        let count = move |piece: Option<u64>| {
            context.0.received_len.fetch_add(piece.unwrap_or_default(), Ordering::Relaxed);
        };
        Body::new(Tallied { body, tell: count })
    });
    let response = next.run(request).await;
    entry.status = response.status().as_u16();
    entry.outcome = response.extensions().get().cloned();
    if matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        entry.audit = Some(audit);
    }
    if entry.audit.is_none() {
        return response;
    }
    entry.expected_len = if is_head { Some(0) } else { body_len(response.headers(), response.body()) };
    response.map(|body| Body::new(Tallied { body, tell: move |piece| entry.tell(piece) }))
}

/// Length of a body, if it is known before the body is sent.
fn body_len(headers: &HeaderMap, body: &Body) -> Option<u64> {
    let exact = HttpBody::size_hint(body).exact();
    exact.or_else(|| headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok())
}

/// The last segment of a path that is a hash. No other segment gets into the log, because it might
/// be a secret.
fn hash_in(path: &str) -> Option<String> {
    path.rsplit('/').find(|segment| segment.parse::<XorbHash>().is_ok()).map(str::to_ascii_lowercase)
}

/// A request that is being served. Dropping it appends its line, if it gets one. So a request whose
/// client disconnects gets its line, too.
struct Entry {
    time: Timestamp,
    begin: Instant,
    id: String,
    action: String,
    resource: Option<String>,
    peer: Option<String>,
    client: Option<String>,
    /// The client's address, for counting refusals.
    address: Option<IpAddr>,
    context: AuditContext,
    status: u16,
    outcome: Option<Outcome>,
    sent_len: u64,
    /// Length of the complete response body; `None` until it is known.
    expected_len: Option<u64>,
    /// `None` if the request gets no line.
    audit: Option<Audit>,
}

impl Entry {
    /// Counts a piece of the response body, or with `None` its end.
    fn tell(&mut self, piece: Option<u64>) {
        match piece {
            Some(len) => self.sent_len += len,
            None => self.expected_len = Some(self.sent_len),
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let Some(audit) = &self.audit else { return };
        // Beyond a number per minute, refusals are only counted.
        if matches!(self.status, 401 | 403) && !audit.refusals.count(self.address, self.time) {
            return;
        }
        let reported = &self.context.0;
        let token = reported.token.get();
        let claims = token.map(|token| &token.claims);
        let line = AuditLine {
            time: AuditLine::time(self.time),
            id: &self.id,
            action: &self.action,
            resource: self.resource.as_deref(),
            hub_repo: reported.hub_repo.get().map(String::as_str),
            repo: claims.map(|claims| claims.repo.to_string()),
            subject: claims.and_then(|claims| claims.subject.as_ref()).map(ToString::to_string),
            scope: claims.map(|claims| claims.scope.to_string()),
            token: token.map(|token| token.id.to_string()),
            parent: token.and_then(Token::parent).map(|parent| parent.to_string()),
            peer: self.peer.take(),
            client: self.client.take(),
            status: Some(self.status),
            code: self.outcome.as_ref().map(|outcome| outcome.code).or_else(|| reported.late_code.get().copied()),
            reason: self.outcome.as_ref().and_then(|outcome| outcome.reason),
            received: Some(reported.received_len.load(Ordering::Relaxed)),
            sent: Some(self.sent_len),
            count: None,
            is_cut: self.expected_len != Some(self.sent_len),
            elapsed_ms: Some(u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX)),
        };
        audit.journal.append(line.render());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_no_control_characters_and_no_secrets() {
        let line = AuditLine { action: "a\n\u{1b}[31m\u{0}\"", id: "x", ..AuditLine::default() }.render();
        assert!(!line.contains(char::is_control), "{line}");
        assert_eq!(hash_in("/v1/xorb-commits/default/zorb_secret/grant/AQ"), None);
        let hash = "AB".repeat(32);
        assert_eq!(hash_in(&format!("/v1/xorb-commits/default/{hash}/grant/AQ")), Some(hash.to_ascii_lowercase()));
    }
}
