//! Why a request got no successful response.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use reqwest::StatusCode;
use thiserror::Error;

use super::text::is_shown;
use super::tls;

/// Characters of a server's sentence that are passed on, at most.
const MAX_DETAIL_COUNT: usize = 500;

/// Why one request failed.
#[derive(Debug, Error)]
pub enum RequestError {
    /// No connection, or it broke before a response came.
    #[error("cannot reach {url}{hint}")]
    Unreachable {
        /// The server.
        url: String,
        /// What to do about a server that was not chosen; empty otherwise.
        hint: &'static str,
        /// What the network said.
        source: Cause,
    },
    /// The connection broke within the response.
    #[error("the connection to {url} was closed")]
    BrokenOff {
        /// The server.
        url: String,
        /// What the network said.
        source: Cause,
    },
    /// Nothing moved for too long.
    #[error("{url} sent nothing for {} seconds", limit.as_secs())]
    Silent {
        /// The server.
        url: String,
        /// For how long.
        limit: Duration,
    },
    /// A response of text took too long as a whole, although something moved all the time.
    #[error("{url} sends its response too slowly: {len} bytes in {} seconds", limit.as_secs())]
    Slow {
        /// The server.
        url: String,
        /// Bytes that came.
        len: u64,
        /// The time that they took.
        limit: Duration,
    },
    /// The server says no.
    #[error("{url} responded with {refusal}")]
    Refused {
        /// The server.
        url: String,
        /// What it says.
        refusal: Refusal,
    },
    /// The server reports a failure within a response.
    #[error("{url} failed: {failure}")]
    Failed {
        /// The server.
        url: String,
        /// What it says.
        failure: Failure,
    },
    /// Not a response of a zorb server.
    #[error("{url} does not respond like a zorb server: {what}")]
    Strange {
        /// The server.
        url: String,
        /// What is wrong with the response.
        what: &'static str,
    },
}

/// A response other than success, as far as it is problem JSON (RFC 9457).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status.
    pub status: u16,
    /// The stable code of the failure, when a zorb server says it; a proxy in between has none.
    pub code: Option<String>,
    /// One sentence for people.
    pub detail: Option<String>,
    /// How long the server asks to wait.
    pub retry_after: Option<Duration>,
    /// By which the server's log names the request.
    pub request_id: Option<String>,
}

/// The failure that a server reports in the middle of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The stable code of the failure, when a zorb server says it.
    pub code: Option<String>,
    /// One sentence for people.
    pub detail: String,
    /// Whether it says that trying again may help.
    pub is_retryable: bool,
    /// By which the server's log names the request.
    pub request_id: Option<String>,
}

impl RequestError {
    /// Whether the same request may succeed soon.
    ///
    /// A full store (507) does not count although its status begins with 5: the operator must free
    /// disk space first.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::BrokenOff { .. } | Self::Silent { .. } => true,
            Self::Refused { refusal, .. } => matches!(refusal.status, 408 | 429 | 500 | 502..=504 | 520..=599),
            Self::Failed { failure, .. } => failure.is_retryable,
            Self::Strange { .. } | Self::Slow { .. } => false,
        }
    }

    /// How long the server asks to wait, if it does.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { refusal, .. } => refusal.retry_after,
            _ => None,
        }
    }

    /// The stable code of the failure, when a server gave one.
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
    /// Parses this response. A body that is not problem JSON gives only the status.
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
        // A failure of the server is for its operator, whose log has the id.
        let id = self.request_id.as_deref().filter(|_| self.status >= 500);
        write_id(f, id)
    }
}

impl Failure {
    /// What the server says, as it may go to a terminal.
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

/// Text of a server as it may go to a terminal: without what a terminal obeys, and not endless.
fn printable(text: &str) -> String {
    text.chars().filter(|character| is_shown(*character)).take(MAX_DETAIL_COUNT).collect()
}

/// An error of the network. It prints what happened at the bottom, without the layers above that
/// say it again.
#[derive(Debug)]
pub struct Cause(reqwest::Error);

impl Cause {
    /// The address is left out: it is said where the cause is named.
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
