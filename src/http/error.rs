//! Converts failures to problem JSON (RFC 9457). Only this module and `http/code.rs` know which
//! status a failure has.
//!
//! A client gets a stable code, a text for people, and fields for programs. It never gets a path,
//! SQL, or the text of an internal error. The chain of causes of an internal error is logged once,
//! here. `docs/errors.md` lists every [`Code`]; a test compares the page with the code.

use std::any::Any;
use std::error::Error as StdError;
use std::sync::Arc;
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
use crate::runtime::telemetry::{brief, chain, shown};
use crate::service::access::Reason;
use crate::service::{
    Quantity, ReadError, ReconstructError, RegisterError, StoreError, StoreErrorKind, UploadError, WindowsError,
};

/// `Retry-After` if the store or its index does not respond in time.
const UNAVAILABLE_RETRY_AFTER: Duration = Duration::from_secs(5);

/// `Retry-After` under overload. Xet clients wait longer by themselves.
const BUSY_RETRY_AFTER: Duration = Duration::from_secs(2);

/// `Retry-After` if a blob was replaced during the read: the new one already exists.
const REPLACED_RETRY_AFTER: Duration = Duration::from_secs(1);

/// `Retry-After` in an outage of the machine, such as no free descriptors: the operator must act.
const OUTAGE_RETRY_AFTER: Duration = Duration::from_secs(10);

/// The detail for a tenant above its share.
const ABOVE_SHARE: &str = "This tenant uses its whole share of the server; wait for some of its requests to end, \
    then retry.";

/// A failure, as it is reported to the client.
#[derive(Debug)]
pub struct Problem {
    code: Code,
    detail: String,
    /// Further fields for programs. A `Vec` and not a map, because a map is larger and this type is
    /// the `Err` of many functions.
    fields: Vec<(&'static str, Value)>,
    retry_after: Option<Duration>,
    /// For 416: the length of the resource.
    unsatisfied_len: Option<u64>,
    /// Why access was refused, for the audit log only.
    reason: Option<Reason>,
}

/// What a failure was. An extension of the response, for logs.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) code: &'static str,
    /// The sentence that the client gets.
    pub(super) detail: Arc<str>,
    pub(super) reason: Option<&'static str>,
}

impl Problem {
    /// A failure. `detail` (up to 1 KiB) says what failed, and what the client can do.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let detail = brief(detail.into());
        Self { code, detail, fields: Vec::new(), retry_after: None, unsatisfied_len: None, reason: None }
    }

    /// Adds a field for programs.
    #[must_use]
    pub(super) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// Sets the length of the resource for `Content-Range` (RFC 9110, section 15.5.17).
    pub(super) fn unsatisfied(mut self, len: u64) -> Self {
        self.unsatisfied_len = Some(len);
        self
    }

    /// Sets the reason of a refusal, for the audit log. The client does not see it.
    pub(super) fn because(mut self, reason: Reason) -> Self {
        self.reason = Some(reason);
        self
    }

    fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// Sets a short `Retry-After`.
    pub(super) fn retry_soon(self) -> Self {
        self.retry_after(BUSY_RETRY_AFTER)
    }

    /// The text for people.
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

    /// The code of the failure.
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
        problem.insert("detail".to_owned(), json!(&self.detail));
        problem.extend(self.fields.into_iter().map(|(name, value)| (name.to_owned(), value)));
        let mut response = (status, Value::Object(problem).to_string()).into_response();
        let (code, reason) = (self.code.as_str(), self.reason.map(Reason::name));
        response.extensions_mut().insert(Outcome { code, detail: self.detail.into(), reason });
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
                let detail = format!("The body is longer than {limit} bytes; send the data in several uploads.");
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
            UploadError::NothingSent => {
                let detail = "No bytes were received for this grant; request a new grant and send them again.";
                Self::new(Code::NotFound, detail)
            }
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
                Self::new(Code::InvalidRange, format!("No range begins within the {file_len} bytes of the file."))
            }
            WindowsError::TooManyNodes => Self::new(Code::InvalidRequest, "The summaries of this file are too long."),
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
                let detail = "The store is full; nothing was stored. The operator must free disk space.";
                Self::new(Code::OutOfSpace, detail)
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

/// The name of a quantity in the configuration and in `GET /v1/usage`.
const fn quantity_name(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::Files => "files",
        Quantity::LogicalBytes => "logical_bytes",
        Quantity::PhysicalBytes => "physical_bytes",
    }
}

/// The response to an unknown path or method.
pub(super) fn unknown_route(method: &Method, uri: &Uri) -> Problem {
    let path = shown(uri.path());
    Problem::new(Code::NotFound, format!("No route for {method} {path}; see docs/http-api.md."))
}

/// The routes for plaintext on the TLS port: every request gets the same problem, and the
/// connection is closed.
pub(super) fn wrong_scheme() -> Router {
    let refuse = async || {
        let problem = Problem::new(Code::HttpsRequired, "This port accepts https only; fix the scheme of the URL.");
        ([(CONNECTION, HeaderValue::from_static("close"))], problem)
    };
    // `false`: no `Strict-Transport-Security`, because browsers ignore it in plaintext.
    Router::new().fallback(refuse).layer(map_response_with_state(false, security::protect))
}

/// The response when a handler panicked.
pub(super) fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("(no text)");
    tracing::error!(panic = text, "request handler panicked");
    Problem::new(Code::Internal, INTERNAL).into_response()
}

/// The response for a damaged xorb. Logged as info, because the damage was logged as an error when
/// it was found.
fn damaged(xorb: XorbHash) -> Problem {
    tracing::info!(%xorb, "request for a damaged xorb");
    let detail = format!("The stored xorb {xorb} is damaged; upload it again to repair it.");
    Problem::new(Code::XorbDamaged, detail).with("xorb", xorb.to_string())
}

/// The detail for an internal error.
const INTERNAL: &str = "Internal server error; see the server's log for this request id.";

/// Logs an internal error; the response does not contain it.
pub(super) fn internal(error: &(dyn StdError + 'static)) -> Problem {
    tracing::error!(error = %chain(error), "request failed");
    Problem::new(Code::Internal, INTERNAL)
}
