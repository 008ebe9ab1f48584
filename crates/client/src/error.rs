//! Why a request got no successful response.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use reqwest::StatusCode;
use thiserror::Error;

use super::text::is_shown;
use super::tls;

/// Characters of a text from a server that an error contains, at most.
const MAX_DETAIL_COUNT: usize = 500;

/// Why one request failed.
#[derive(Debug, Error)]
pub enum RequestError {
    /// There is no connection, or it broke before the response.
    #[error("cannot reach {url}{hint}")]
    Unreachable {
        /// The server.
        url: String,
        /// How to name another server, if the user has not chosen this one; else empty.
        hint: &'static str,
        /// The error of the network.
        source: Cause,
    },
    /// The connection broke within the response.
    #[error("the connection to {url} was closed")]
    BrokenOff {
        /// The server.
        url: String,
        /// The error of the network.
        source: Cause,
    },
    /// The server neither sent nor accepted bytes for too long.
    #[error("{url} sent nothing for {} seconds", limit.as_secs())]
    Silent {
        /// The server.
        url: String,
        /// How long nothing happened.
        limit: Duration,
    },
    /// A response in text took too long as a whole, although bytes arrived again and again.
    #[error("{url} sends its response too slowly: {len} bytes in {} seconds", limit.as_secs())]
    Slow {
        /// The server.
        url: String,
        /// Bytes that arrived.
        len: u64,
        /// The time limit for these bytes.
        limit: Duration,
    },
    /// The server responded with an error status.
    #[error("{url} responded with {refusal}")]
    Refused {
        /// The server.
        url: String,
        /// The status and what the body says.
        refusal: Refusal,
    },
    /// The server reports a failure within a response.
    #[error("{url} failed: {failure}")]
    Failed {
        /// The server.
        url: String,
        /// What the server reports.
        failure: Failure,
    },
    /// The response is not one that a zorb server sends.
    #[error("{url} does not respond like a zorb server: {what}")]
    InvalidResponse {
        /// The server.
        url: String,
        /// What is wrong with the response.
        what: &'static str,
    },
}

/// A response with an error status. The texts are from its body, if this is problem JSON (RFC
/// 9457).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status.
    pub status: u16,
    /// The stable code of the failure. Responses of zorb have one, those of a proxy in between have
    /// none.
    pub code: Option<String>,
    /// One sentence for people.
    pub detail: Option<String>,
    /// How long the server asks to wait.
    pub retry_after: Option<Duration>,
    /// The id of the request in the server's log.
    pub request_id: Option<String>,
}

/// The failure that a server reports in the middle of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The stable code of the failure, if the server states one.
    pub code: Option<String>,
    /// One sentence for people.
    pub detail: String,
    /// Whether the server says that a retry may succeed.
    pub is_retryable: bool,
    /// The id of the request in the server's log.
    pub request_id: Option<String>,
}

impl RequestError {
    /// Whether the same request may succeed soon.
    ///
    /// A full store (507) is not transient, because the operator must free disk space first. The
    /// statuses 501, 505, 506 and 508 to 519 are not either: a retry would get the same response.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::BrokenOff { .. } | Self::Silent { .. } => true,
            Self::Refused { refusal, .. } => matches!(refusal.status, 408 | 429 | 500 | 502..=504 | 520..=599),
            Self::Failed { failure, .. } => failure.is_retryable,
            Self::InvalidResponse { .. } | Self::Slow { .. } => false,
        }
    }

    /// How long the server asks the client to wait; `None` if it does not.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { refusal, .. } => refusal.retry_after,
            _ => None,
        }
    }

    /// The stable code of the failure, if the server stated one.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { refusal, .. } => refusal.code.as_deref(),
            Self::Failed { failure, .. } => failure.code.as_deref(),
            _ => None,
        }
    }
}

impl Refusal {
    /// Parses a response. If the body is not problem JSON, the result has only the status and
    /// `retry_after`.
    pub(super) fn parse(status: StatusCode, body: &[u8], retry_after: Option<Duration>) -> Self {
        let problem: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |name: &str| problem.get(name).and_then(serde_json::Value::as_str).map(printable);
        Self { status: status.as_u16(), code: text("code"), detail: text("detail"), retry_after, request_id: None }
    }

    /// The same with the id by which the server's log names the request.
    pub(super) fn with_request_id(mut self, id: Option<&str>) -> Self {
        self.request_id = id.map(printable);
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        match (&self.code, &self.detail) {
            (Some(code), Some(detail)) => write!(f, " {code}: {detail}")?,
            (None, Some(text)) | (Some(text), None) => write!(f, ": {text}")?,
            (None, None) => {
                let status = StatusCode::from_u16(self.status).ok();
                write!(f, " {}", status.and_then(|status| status.canonical_reason()).unwrap_or_default())?;
            }
        }
        // Only for failures of the server: the operator finds them in the log by the id.
        let id = self.request_id.as_deref().filter(|_| self.status >= 500);
        write_id(f, id)
    }
}

impl Failure {
    /// The failure with its texts made safe for a terminal.
    pub(super) fn new(code: Option<&str>, detail: &str, is_retryable: bool) -> Self {
        Self { code: code.map(printable), detail: printable(detail), is_retryable, request_id: None }
    }

    /// The same with the id by which the server's log names the request.
    pub(super) fn with_request_id(mut self, id: Option<&str>) -> Self {
        self.request_id = id.map(printable);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.code {
            Some(code) => write!(f, "{code}: {}", self.detail)?,
            None => f.write_str(&self.detail)?,
        }
        write_id(f, self.request_id.as_deref())
    }
}

fn write_id(f: &mut fmt::Formatter<'_>, id: Option<&str>) -> fmt::Result {
    match id {
        Some(id) => write!(f, " (request id {id})"),
        None => Ok(()),
    }
}

/// Text of a server made safe for a terminal: without control characters, and of limited length.
fn printable(text: &str) -> String {
    text.chars().filter(|character| is_shown(*character)).take(MAX_DETAIL_COUNT).collect()
}

/// An error of the network. `Display` prints its root cause only, because the errors above it
/// repeat the text.
#[derive(Debug)]
pub struct Cause(reqwest::Error);

impl Cause {
    /// Removes the address from the text, because the error that contains this one has it.
    pub(super) fn new(error: reqwest::Error) -> Self {
        Self(error.without_url())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut innermost: &dyn StdError = &self.0;
        while let Some(source) = innermost.source() {
            innermost = source;
        }
        fmt::Display::fmt(innermost, f)?;
        match tls::remedy(&self.0) {
            Some(remedy) => write!(f, ": {remedy}"),
            None => Ok(()),
        }
    }
}

impl StdError for Cause {}

#[cfg(test)]
mod tests;
