//! The audit log: one line of JSON per audited request: who did what, and the result.
//!
//! A line is written when the response was sent, or its client has disconnected, so that it has the
//! bytes received and sent. It has no query string, no header except the request's id, and of the
//! path only hashes: there is no field that could contain a token or a signature.
//! `docs/monitoring.md` lists the fields; names never change their meaning.

mod refusals;
mod tallied;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use http_body::Body as HttpBody;
use serde::Serialize;

pub use self::refusals::Refusals;
use self::tallied::Tallied;
use super::AppState;
use super::error::Outcome;
use super::layers::{CLIENT_LEFT, RequestId};
use super::peer::PeerAddr;
use crate::format::XorbHash;
use crate::runtime::clock::Timestamp;
use crate::runtime::journal::Journal;
use crate::service::access::Token;

/// Routes that are asked every few seconds by machines which find out whether this one lives. Never
/// in the audit log.
const SIGNS_OF_LIFE: [&str; 2] = ["/healthz", "/readyz"];

/// The audit log.
#[derive(Clone, Debug)]
pub struct Audit {
    /// Where the lines go.
    pub journal: Journal,
    /// Which requests get one.
    pub scope: AuditScope,
    /// What was refused lately, by address.
    pub refusals: Arc<Refusals>,
}

impl Audit {
    /// Hands over a line for what was summed up of refusals until now. To be called before the
    /// journal is closed.
    pub fn finish(&self) {
        self.append_sums(true);
    }

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
    /// What changes something or tries to, and whatever is refused with a 401 or 403.
    Writes,
    /// All except health probes.
    All,
}

/// One line. What is `None` is not in it.
#[derive(Debug, Default, Serialize)]
pub struct AuditLine<'a> {
    /// When the request came, in RFC 3339.
    pub time: String,
    /// The id that the response has, too.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub id: &'a str,
    /// Method and pattern of the route, as in docs/http-api.md; for a command its words.
    pub action: &'a str,
    /// The hash that the path names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<&'a str>,
    /// The repository of the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repo: Option<String>,
    /// Whom the token was given to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// What the token allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// The id of the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The id of the refresh token that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The other end of the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Whom a trusted proxy has sent it for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Status of the response; 499 if the client disconnected before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Code of the problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// Why a token, a URL or a grant was refused; its holder is not told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// Refusals of this address within the minute from `time` that have no lines of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Bytes of the request's body that were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
    /// Bytes of the response body that were written to the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<u64>,
    /// The response body was not sent completely.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
    /// Milliseconds from the request's head to the end of the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elapsed_ms: Option<u64>,
}

impl AuditLine<'_> {
    /// This moment in RFC 3339, in UTC, with milliseconds.
    #[must_use]
    pub fn time(now: Timestamp) -> String {
        humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(now.as_millis())).to_string()
    }

    /// The line, without its end. JSON escapes every control character in it.
    #[must_use]
    pub fn render(&self) -> String {
        serde_json::to_string(self).expect("its keys are strings and its numbers finite")
    }
}

/// What those who handle a request know of it and the audit log wants to know.
#[derive(Clone, Debug, Default)]
pub(super) struct AuditContext(Arc<Found>);

#[derive(Debug, Default)]
struct Found {
    token: OnceLock<Token>,
    late_code: OnceLock<&'static str>,
    received_len: AtomicU64,
}

impl AuditContext {
    /// Whose token it is.
    pub(super) fn belongs_to(&self, token: &Token) {
        // A request has one token.
        let _ = self.0.token.set(token.clone());
    }

    /// The request failed after the head of a successful response was sent.
    pub(super) fn failed_late(&self, code: &'static str) {
        // The first failure is the one that counts.
        let _ = self.0.late_code.set(code);
    }
}

impl<S: Sync> FromRequestParts<S> for AuditContext {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        // Without an audit log there is none, and this one is never written.
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

/// A route, as far as the audit log has to know it.
#[derive(Debug)]
pub(super) struct AuditedRoute<'a> {
    pub(super) method: &'static str,
    /// The first is its name.
    pub(super) paths: &'a [&'static str],
    pub(super) changes: bool,
}

/// What every route is, by method and pattern.
#[derive(Debug)]
pub(super) struct Catalog {
    actions: HashMap<String, Action>,
}

#[derive(Clone, Debug)]
struct Action {
    /// Pattern of the route's first path.
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
        let of = |method: &str| self.actions.get(&format!("{method} {pattern}"));
        of(method.as_str()).or_else(|| if *method == Method::HEAD { of("GET") } else { None })
    }
}

/// Writes a line when the request is over, where it is to have one.
pub(super) async fn note(
    State((state, audit, catalog)): State<(AppState, Audit, Arc<Catalog>)>,
    mut request: Request,
    next: Next,
) -> Response {
    let pattern = request.extensions().get::<MatchedPath>().cloned();
    let pattern = pattern.as_ref().map_or("", MatchedPath::as_str);
    audit.append_sums(false);
    if SIGNS_OF_LIFE.contains(&pattern) {
        return next.run(request).await;
    }
    let action = catalog.find(request.method(), pattern);
    let context = AuditContext::default();
    let peer = request.extensions().get::<PeerAddr>().map(|peer| peer.0);
    let client = peer.and_then(|peer| state.address.client(peer.ip(), request.headers()));
    let mut entry = Entry {
        time: state.clock.now(),
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
    entry.outcome = response.extensions().get().copied();
    if matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        entry.audit = Some(audit);
    }
    if entry.audit.is_none() {
        return response;
    }
    entry.expected_len = if is_head { Some(0) } else { body_len(response.headers(), response.body()) };
    response.map(|body| Body::new(Tallied { body, tell: move |piece| entry.tell(piece) }))
}

/// Length of a body, where it is known before it is sent.
fn body_len(headers: &HeaderMap, body: &Body) -> Option<u64> {
    let exact = HttpBody::size_hint(body).exact();
    exact.or_else(|| headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok())
}

/// The last segment of a path that has the form of a hash.
fn hash_in(path: &str) -> Option<String> {
    path.rsplit('/').find(|segment| segment.parse::<XorbHash>().is_ok()).map(str::to_ascii_lowercase)
}

/// A request that will get its line when this is dropped, if it is to have one.
struct Entry {
    time: Timestamp,
    begin: Instant,
    id: String,
    action: String,
    resource: Option<String>,
    peer: Option<String>,
    client: Option<String>,
    /// Who is refused where it is.
    address: Option<IpAddr>,
    context: AuditContext,
    status: u16,
    outcome: Option<Outcome>,
    sent_len: u64,
    /// Length of the whole response; `None` until it is known.
    expected_len: Option<u64>,
    /// `None` where there is to be no line.
    audit: Option<Audit>,
}

impl Entry {
    /// A piece of the response was sent, or its end was reached.
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
        if matches!(self.status, 401 | 403) && !audit.refusals.count(self.address, self.time) {
            return;
        }
        let found = &self.context.0;
        let token = found.token.get();
        let claims = token.map(|token| &token.claims);
        let line = AuditLine {
            time: AuditLine::time(self.time),
            id: &self.id,
            action: &self.action,
            resource: self.resource.as_deref(),
            repo: claims.map(|claims| claims.repo.to_string()),
            subject: claims.and_then(|claims| claims.subject.as_ref()).map(ToString::to_string),
            scope: claims.map(|claims| claims.scope.to_string()),
            token: token.map(|token| token.id.to_string()),
            parent: token.and_then(|token| token.parent).map(|parent| parent.to_string()),
            peer: self.peer.take(),
            client: self.client.take(),
            status: Some(self.status),
            code: self.outcome.map(|outcome| outcome.code).or_else(|| found.late_code.get().copied()),
            reason: self.outcome.and_then(|outcome| outcome.reason),
            received: Some(found.received_len.load(Ordering::Relaxed)),
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
    fn a_line_has_no_place_for_what_would_break_it_or_leak() {
        let line = AuditLine { action: "a\n\u{1b}[31m\u{0}\"", id: "x", ..AuditLine::default() }.render();
        assert!(!line.contains(char::is_control), "{line}");
        assert_eq!(hash_in("/v1/xorb-commits/default/zorb_secret/grant/AQ"), None);
        let hash = "AB".repeat(32);
        assert_eq!(hash_in(&format!("/v1/xorb-commits/default/{hash}/grant/AQ")), Some(hash.to_ascii_lowercase()));
    }

    #[test]
    fn times_are_in_utc_with_milliseconds() {
        assert_eq!(AuditLine::time(Timestamp::from_millis(1_763_652_841_007)), "2025-11-20T15:34:01.007Z");
    }
}
