//! Failures as RFC 9457 problem JSON: the only file that knows which status a failure has.
//!
//! A client gets a stable code, one sentence, and the fields that a program can act on; never a
//! path, SQL, or the text of an error from below. The log gets the chain, once, here.
//! `docs/errors.md` lists every [`Code`]; a test compares.

use std::any::Any;
use std::error::Error as StdError;
use std::time::Duration;

use axum::Router;
use axum::http::header::{CONNECTION, CONTENT_RANGE, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, Uri};
use axum::middleware::map_response_with_state;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

pub use super::code::Code;
use super::security;
use crate::format::xorb::XorbErrorClass;
use crate::format::{ParseHashError, XorbHash};
use crate::runtime::telemetry::{chain, shown};
use crate::service::access::{Reason, Refused};
use crate::service::{
    Quantity, ReadError, ReconstructError, RegisterError, StoreError, StoreErrorKind, UploadError, WindowsError,
};

/// `Retry-After` when the index does not respond in time.
const UNAVAILABLE_RETRY_AFTER: Duration = Duration::from_secs(5);

/// How long a client is asked to wait where there is too much to do. Stock clients wait longer by
/// themselves.
const BUSY_RETRY_AFTER: Duration = Duration::from_secs(2);
/// How long a client is asked to wait when what it reads was replaced: it is there already.
const REPLACED_RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long a client is asked to wait when the machine is at its end: nothing but a person may
/// change that, or a few connections that end.
const OUTAGE_RETRY_AFTER: Duration = Duration::from_secs(10);

/// What is said to who has more than its share.
const ABOVE_SHARE: &str = "This tenant uses its whole share of the server; wait for some of its requests to end, \
    then retry.";

/// A failure on its way to the client.
#[derive(Debug)]
pub struct Problem {
    code: Code,
    detail: String,
    /// In this order. Not a map: this is an `Err` of many functions, and a map is larger than the
    /// rest.
    fields: Vec<(&'static str, Value)>,
    retry_after: Option<Duration>,
    /// For 416: how many bytes there are.
    unsatisfied_len: Option<u64>,
    /// The reason, for the audit log only.
    reason: Option<Reason>,
}

/// How a request failed; an extension of the response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) code: &'static str,
    pub(super) reason: Option<&'static str>,
}

impl Problem {
    /// A failure of this kind, and one sentence that says what to do about it.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), fields: Vec::new(), retry_after: None, unsatisfied_len: None, reason: None }
    }

    /// Adds a field for programs.
    #[must_use]
    pub(super) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// Says how many bytes there are to ask for, in `Content-Range` (RFC 9110, section 15.5.17).
    pub(super) fn unsatisfied(mut self, len: u64) -> Self {
        self.unsatisfied_len = Some(len);
        self
    }

    /// Says why to the audit log; the client is not told.
    pub(super) fn because(mut self, refused: Refused) -> Self {
        self.reason = Some(refused.reason());
        self
    }

    fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// Asks the client to come back in a moment.
    pub(super) fn retry_soon(self) -> Self {
        self.retry_after(BUSY_RETRY_AFTER)
    }

    /// The sentence.
    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    /// Whether the same request may succeed later.
    pub(super) const fn is_retryable(&self) -> bool {
        matches!(
            self.code,
            Code::Overloaded | Code::TooManyRequests | Code::Deadline | Code::Unavailable | Code::Internal
        )
    }

    /// Which failure it is.
    #[must_use]
    pub const fn code(&self) -> Code {
        self.code
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.code.status();
        let mut problem = Map::new();
        problem.insert("type".to_owned(), json!("about:blank"));
        problem.insert("title".to_owned(), json!(status.canonical_reason().unwrap_or_default()));
        problem.insert("status".to_owned(), json!(status.as_u16()));
        problem.insert("code".to_owned(), json!(self.code.as_str()));
        problem.insert("detail".to_owned(), json!(self.detail));
        problem.extend(self.fields.into_iter().map(|(name, value)| (name.to_owned(), value)));
        let mut response = (status, Value::Object(problem).to_string()).into_response();
        response.extensions_mut().insert(Outcome { code: self.code.as_str(), reason: self.reason.map(Reason::name) });
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.code == Code::Unauthorized {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"zorb\""));
        }
        if let Some(delay) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(delay.as_secs().max(1)));
        }
        if let Some(len) = self.unsatisfied_len {
            let value = HeaderValue::from_str(&format!("bytes */{len}"));
            headers.insert(CONTENT_RANGE, value.expect("digits and punctuation are valid in a header"));
        }
        response
    }
}

impl From<ParseHashError> for Problem {
    fn from(error: ParseHashError) -> Self {
        Self::new(Code::InvalidHash, format!("The hash in the path is invalid: {error}."))
    }
}

impl From<UploadError> for Problem {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::Overloaded { retry_after } => {
                let detail = "Too many uploads are in flight; retry after the delay in Retry-After.";
                Self::new(Code::Overloaded, detail).retry_after(retry_after)
            }
            UploadError::AboveShare { retry_after } => {
                Self::new(Code::TooManyRequests, ABOVE_SHARE).retry_after(retry_after)
            }
            UploadError::BeingDeleted { retry_after } => {
                let detail = "This xorb is being deleted; retry after the delay in Retry-After.";
                Self::new(Code::Overloaded, detail).retry_after(retry_after)
            }
            UploadError::FoundDamaged { retry_after } => {
                let detail = "The stored xorb is damaged; upload it again to repair it.";
                Self::new(Code::Overloaded, detail).retry_after(retry_after)
            }
            UploadError::TooLarge { limit } => {
                let detail = format!("The body is longer than {limit} bytes; split the data over more xorbs.");
                Self::new(Code::TooLarge, detail).with("limit", limit)
            }
            UploadError::Invalid(error) => {
                let code = match error.class() {
                    XorbErrorClass::Malformed => Code::MalformedXorb,
                    XorbErrorClass::UnsupportedVersion => Code::UnsupportedVersion,
                    XorbErrorClass::UnsupportedCompression => Code::UnsupportedCompression,
                    XorbErrorClass::TooLarge => Code::TooLarge,
                    XorbErrorClass::TooManyChunks => Code::TooManyChunks,
                    XorbErrorClass::Incomplete => Code::IncompleteBody,
                };
                let problem = Self::new(code, format!("The xorb is invalid: {error}.")).with("offset", error.offset);
                match error.chunk {
                    Some(chunk) => problem.with("chunk", chunk),
                    None => problem,
                }
            }
            UploadError::HashMismatch { claimed, actual } => {
                let detail = format!("The body is a valid xorb, but its hash is {actual}; upload it under that hash.");
                Self::new(Code::HashMismatch, detail)
                    .with("claimed", claimed.to_string())
                    .with("actual", actual.to_string())
            }
            UploadError::NotAsGranted { len } => {
                let detail =
                    format!("The grant is for {len} bytes with another checksum; request a grant for these bytes.");
                Self::new(Code::GrantMismatch, detail)
            }
            UploadError::GrantSpent => {
                Self::new(Code::PreconditionFailed, "The bytes of this grant were already received; commit it.")
            }
            UploadError::NothingSent => Self::new(
                Code::NotFound,
                "No bytes were received for this grant; request a new grant and send \
                    them again.",
            ),
            UploadError::Aborted(source) => {
                tracing::debug!(error = %chain(source.as_ref()), "the client disconnected during an upload");
                Self::new(Code::IncompleteBody, "The request ended before its body did; send it again.")
            }
            UploadError::Stalled => Self::new(Code::BodyTimeout, "The body was not received in time; send it again."),
            UploadError::TooSlow => {
                let detail = "The server is overloaded and this was the tenant's slowest request; send it again.";
                Self::new(Code::BodyTimeout, detail).retry_soon()
            }
            UploadError::Store(error) => error.into(),
        }
    }
}

impl From<RegisterError> for Problem {
    fn from(error: RegisterError) -> Self {
        let sentence = format!("The shard is invalid: {error}.");
        match error {
            RegisterError::Malformed(error) => Self::new(Code::MalformedShard, sentence).with("offset", error.offset),
            RegisterError::MissingXorb { xorb } => {
                let detail = format!("Xorb {xorb} is not stored; upload it first.");
                Self::new(Code::MissingXorb, detail).with("xorb", xorb.to_string())
            }
            RegisterError::DamagedXorb { xorb } => damaged(xorb),
            RegisterError::OtherChunks { xorb } => {
                Self::new(Code::ShardMismatch, sentence).with("xorb", xorb.to_string())
            }
            RegisterError::Term { file, term, .. } => {
                Self::new(Code::ShardMismatch, sentence).with("file", file.to_string()).with("term", term)
            }
            RegisterError::NoProof { file, term, .. } => {
                Self::new(Code::NoProof, sentence).with("file", file.to_string()).with("term", term)
            }
            RegisterError::FileHash { claimed, actual } => Self::new(Code::FileHashMismatch, sentence)
                .with("claimed", claimed.to_string())
                .with("actual", actual.to_string()),
            RegisterError::OtherSha256 { file, is_verified } => {
                let next = if is_verified { "" } else { " That sha256 is being verified; retry in a minute." };
                Self::new(Code::Sha256Conflict, sentence + next).with("file", file.to_string())
            }
            RegisterError::OverQuota(over) => {
                let detail = format!(
                    "Quota exceeded, nothing was registered: {over}. Remove files, or ask the operator for a \
                     larger quota."
                );
                Self::new(Code::QuotaExceeded, detail)
                    .with("holder", over.holder)
                    .with("quantity", quantity_name(over.quantity))
                    .with("limit", over.limit)
                    .with("used", over.used)
                    .with("added", over.added)
            }
            RegisterError::Store(error) => error.into(),
        }
    }
}

impl From<ReconstructError> for Problem {
    fn from(error: ReconstructError) -> Self {
        match error {
            ReconstructError::NotFound => Self::new(Code::NotFound, "File not found."),
            ReconstructError::PastEnd { file_len } => {
                let detail = format!("The file has {file_len} bytes; the range begins after its end.");
                Self::new(Code::RangeNotSatisfiable, detail).unsatisfied(file_len)
            }
            ReconstructError::DamagedXorb { xorb } => damaged(xorb),
            ReconstructError::BatchTooLarge { .. } => {
                Self::new(Code::InvalidRequest, "These files have too many terms for one query; request fewer files.")
            }
            ReconstructError::Inconsistent { .. } => internal(&error),
            ReconstructError::Store(error) => error.into(),
        }
    }
}

impl From<WindowsError> for Problem {
    fn from(error: WindowsError) -> Self {
        match error {
            WindowsError::File(error) => error.into(),
            WindowsError::NothingWithin { file_len } => {
                let detail = format!("The file has {file_len} bytes; none of the ranges begins within them.");
                Self::new(Code::InvalidRange, detail)
            }
        }
    }
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Store(error) => error.into(),
            ReadError::Deleted { hash } => Self::new(Code::NotFound, format!("Xorb {hash} not found.")),
            ReadError::Quarantined { hash } => damaged(hash),
            ReadError::Replaced { .. } => {
                let detail = "This xorb was just replaced; request it, or the reconstruction, again.";
                Self::new(Code::Overloaded, detail).retry_after(REPLACED_RETRY_AFTER)
            }
            ReadError::Removed { file } => Self::new(Code::NotFound, format!("File {file} not found.")),
            ReadError::Missing { .. }
            | ReadError::Damaged { .. }
            | ReadError::Altered { .. }
            | ReadError::Inconsistent { .. } => internal(&error),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error.kind() {
            StoreErrorKind::NoSpace => {
                tracing::error!(error = %chain(&error), "the store is full");
                Self::new(
                    Code::OutOfSpace,
                    "The store is full; nothing was stored. The operator must free disk \
                    space.",
                )
            }
            StoreErrorKind::Unavailable => {
                tracing::warn!(error = %chain(&error), "the store does not respond");
                let detail = "The store did not respond in time; retry after the delay in Retry-After.";
                Self::new(Code::Overloaded, detail).retry_after(UNAVAILABLE_RETRY_AFTER)
            }
            StoreErrorKind::Overloaded => {
                Self::new(Code::Overloaded, "The server is overloaded; retry after the delay in Retry-After.")
                    .retry_soon()
            }
            StoreErrorKind::AboveShare => Self::new(Code::TooManyRequests, ABOVE_SHARE).retry_soon(),
            StoreErrorKind::Outage(outage) => {
                tracing::error!(error = %chain(&error), advice = outage.advice(), "the store is unavailable");
                let detail = "The store is unavailable; the server's log says why. Retry later.";
                Self::new(Code::Unavailable, detail).retry_after(OUTAGE_RETRY_AFTER)
            }
            StoreErrorKind::Broken => internal(&error),
        }
    }
}

/// As in the configuration and in `GET /v1/usage`.
const fn quantity_name(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::Files => "files",
        Quantity::LogicalBytes => "logical_bytes",
        Quantity::PhysicalBytes => "physical_bytes",
    }
}

/// The response to an unknown path or method.
pub(super) async fn unknown_route(method: Method, uri: Uri) -> Problem {
    let path = shown(uri.path());
    Problem::new(Code::NotFound, format!("No route for {method} {path}; see docs/http-api.md."))
}

/// The response to plaintext on the TLS port: one problem for any request, then the connection is
/// closed.
pub(super) fn wrong_scheme() -> Router {
    let refuse = async || {
        let problem = Problem::new(Code::HttpsRequired, "This port accepts https only; fix the scheme of the URL.");
        ([(CONNECTION, HeaderValue::from_static("close"))], problem)
    };
    // Not over TLS, so browsers would not believe what is said of TLS.
    Router::new().fallback(refuse).layer(map_response_with_state(false, security::protect))
}

/// The response when a handler panicked.
pub(super) fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("(no text)");
    tracing::error!(panic = text, "request handler panicked");
    Problem::new(Code::Internal, INTERNAL).into_response()
}

/// Not logged as an error: that was done once, when the damage was found.
fn damaged(xorb: XorbHash) -> Problem {
    tracing::info!(%xorb, "request for a damaged xorb");
    let detail = format!("The stored xorb {xorb} is damaged; upload it again to repair it.");
    Problem::new(Code::XorbDamaged, detail).with("xorb", xorb.to_string())
}

const INTERNAL: &str = "Internal server error; see the server's log for this request id.";

fn internal(error: &(dyn StdError + 'static)) -> Problem {
    tracing::error!(error = %chain(error), "request failed");
    Problem::new(Code::Internal, INTERNAL)
}
