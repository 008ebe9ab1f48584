//! The lines of the audit log, and their fields.

use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use crate::runtime::clock::Timestamp;

/// One line. Fields that are `None` are left out.
#[derive(Debug, Default, Serialize)]
pub struct AuditLine<'a> {
    /// When the request arrived, in RFC 3339.
    pub time: String,
    /// The request id, which is also in the response.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub id: &'a str,
    /// Method and route pattern as in docs/http-api.md. For a command, its name, such as `zorb
    /// token issue`.
    pub action: &'a str,
    /// The hash in the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<&'a str>,
    /// The Hub repository that the request is about, whether it exists or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hub_repo: Option<&'a str>,
    /// The repository of the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repo: Option<String>,
    /// The holder of the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The scope of the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// The id of the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The id of the refresh token that was exchanged for the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The address of the other end of the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The address of the client, as a trusted proxy reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Status of the response; 499 if the client disconnected before the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The error code of the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// Why a token, a URL or a grant was refused. The client does not see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// In a line for a sum: the number of refusals from this address within the minute from `time`
    /// that have no lines of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Bytes of the request body that were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
    /// Bytes of the response body that were passed to the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<u64>,
    /// Whether the response body was not passed to the connection completely.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
    /// Milliseconds from the end of the request head until the whole response was passed to the
    /// connection, or the request was aborted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elapsed_ms: Option<u64>,
}

impl AuditLine<'_> {
    /// Formats a time as in RFC 3339, in UTC, with milliseconds.
    #[must_use]
    pub fn time(now: Timestamp) -> String {
        humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(now.as_millis())).to_string()
    }

    /// The text of the line, without a line break. It has no control characters, because JSON
    /// escapes them.
    #[must_use]
    pub fn render(&self) -> String {
        serde_json::to_string(self).expect("its keys are strings and its numbers finite")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_utc_with_milliseconds() {
        assert_eq!(AuditLine::time(Timestamp::from_millis(1_763_652_841_007)), "2025-11-20T15:34:01.007Z");
    }
}
