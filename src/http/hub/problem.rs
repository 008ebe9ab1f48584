//! Refusals of the Hub.
//!
//! Its clients find out by the header `X-Error-Code` what was not found, and print the field
//! `error`, or for a HEAD the header `X-Error-Message`.

use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};

use crate::git::ObjectId;
use crate::http::auth::{TOKEN_REQUIRED, missing_token};
use crate::http::error::{Code, Problem, internal};
use crate::service::access::Reason;
use crate::service::{HubError, HubNameError, StoreError};

pub(super) const X_REPO_COMMIT: HeaderName = HeaderName::from_static("x-repo-commit");
const X_ERROR_CODE: HeaderName = HeaderName::from_static("x-error-code");
const X_ERROR_MESSAGE: HeaderName = HeaderName::from_static("x-error-message");

/// The value of `X-Error-Code` if a repository was not found.
const NO_REPO: &str = "RepoNotFound";

/// A refusal. Boxed, because it is the `Err` of many functions.
#[derive(Debug)]
pub(super) struct HubProblem(Box<Refusal>);

#[derive(Debug)]
struct Refusal {
    problem: Problem,
    /// What was not found, as the clients name it.
    code: Option<&'static str>,
    /// The commit of the path. Clients remember that it does not have the path.
    commit: Option<ObjectId>,
    /// The message for clients that compare it with a text of the Hugging Face Hub.
    message: Option<&'static str>,
}

impl HubProblem {
    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Problem::new(Code::InvalidRequest, detail).into()
    }

    fn missing(code: &'static str, detail: impl Into<String>) -> Self {
        let problem = Problem::new(Code::NotFound, detail);
        Self(Box::new(Refusal { problem, code: Some(code), commit: None, message: None }))
    }

    pub(super) fn no_repo() -> Self {
        Self::missing(NO_REPO, "Repository not found.")
    }

    /// The same for a repository whose name has no namespace.
    pub(super) fn no_namespace() -> Self {
        Self::missing(NO_REPO, "Repository not found: names of repositories are NAMESPACE/NAME here.")
    }

    /// The same, about a file of this commit.
    pub(super) fn at(mut self, commit: ObjectId) -> Self {
        self.0.commit = Some(commit);
        self
    }
}

/// A refusal of a request for its token, or because it has none. The Hugging Face Hub has one
/// message for all invalid tokens, which clients compare.
pub(super) fn refuse(problem: Problem, has_token: bool) -> Response {
    let is_invalid = matches!(problem.code(), Code::Unauthorized) && has_token;
    let message = is_invalid.then_some("Invalid credentials in Authorization header");
    HubProblem(Box::new(Refusal { problem, code: None, commit: None, message })).into_response()
}

/// The same on a route that names a repository. Without a token it is not found, whether it exists
/// or not.
pub(super) fn refuse_for_repo(problem: Problem, has_token: bool) -> Response {
    if has_token {
        return refuse(problem, has_token);
    }
    let code = Some(NO_REPO);
    HubProblem(Box::new(Refusal { problem, code, commit: None, message: None })).into_response()
}

/// What a client without a token gets instead of a response to it: if the repository was not found,
/// that a token is required, whether it exists or not.
pub(super) fn for_anonymous(response: Response) -> Response {
    let is_hidden = response.headers().get(X_ERROR_CODE).is_some_and(|code| code == NO_REPO);
    if is_hidden { refuse_for_repo(missing_token(TOKEN_REQUIRED), false) } else { response }
}

impl From<Problem> for HubProblem {
    fn from(problem: Problem) -> Self {
        Self(Box::new(Refusal { problem, code: None, commit: None, message: None }))
    }
}

impl From<HubNameError> for HubProblem {
    fn from(error: HubNameError) -> Self {
        Self::invalid(format!("Invalid repository name: {error}."))
    }
}

impl From<StoreError> for HubProblem {
    fn from(error: StoreError) -> Self {
        Problem::from(error).into()
    }
}

impl From<HubError> for HubProblem {
    fn from(error: HubError) -> Self {
        match error {
            HubError::NoRepo => Self::no_repo(),
            HubError::NoRevision { revision } => {
                Self::missing("RevisionNotFound", format!("Invalid rev id: {revision}."))
            }
            // Clients look for the words "A file with this name doesn't exist".
            HubError::NoEntry { path, commit } => {
                let detail = format!("A file with this name doesn't exist: {path}.");
                let mut missing = Self::missing("EntryNotFound", detail);
                missing.0.commit = Some(commit);
                missing
            }
            HubError::ReadOnly => {
                let detail = "The token does not permit writing to this repository.";
                Problem::new(Code::Forbidden, detail).because(Reason::Repo).into()
            }
            HubError::Exists { what } => Problem::new(Code::Conflict, format!("{what} exists already.")).into(),
            HubError::Stale { head } => {
                let detail = format!("A commit has happened since: the branch is at {head}. Fetch it and try again.");
                Problem::new(Code::PreconditionFailed, detail).into()
            }
            HubError::Moving => {
                let detail = "Other commits moved the branch meanwhile; retry after the delay in Retry-After.";
                Problem::new(Code::Conflict, detail).retry_soon().into()
            }
            HubError::Invalid(detail) => Self::invalid(detail),
            HubError::Object(error) => Self::invalid(format!("Refused: {error}.")),
            HubError::Upload(error) => Problem::from(error).into(),
            HubError::Register(error) => Problem::from(error).into(),
            HubError::Inconsistent { .. } => internal(&error).into(),
            HubError::Store(error) => error.into(),
        }
    }
}

impl IntoResponse for HubProblem {
    fn into_response(self) -> Response {
        let Refusal { problem, code, commit, message } = *self.0;
        let detail = problem.detail().to_owned();
        // Header values are ASCII; the details name paths, which may have other characters.
        let ascii = message.unwrap_or(&detail).chars();
        let ascii: String = ascii.map(|c| if matches!(c, ' '..='~') { c } else { '?' }).collect();
        let mut response = problem.with("error", detail).into_response();
        let headers = response.headers_mut();
        if let Ok(message) = HeaderValue::from_str(&ascii) {
            headers.insert(X_ERROR_MESSAGE, message);
        }
        if let Some(code) = code {
            headers.insert(X_ERROR_CODE, HeaderValue::from_static(code));
        }
        if let Some(commit) = commit {
            headers.insert(X_REPO_COMMIT, id_value(commit));
        }
        response
    }
}

/// An id as the value of a header.
pub(super) fn id_value(id: ObjectId) -> HeaderValue {
    HeaderValue::from_str(&id.to_string()).expect("hex digits are valid in a header")
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;
    use crate::git::ObjectError;

    /// Contents with which the detection fires cannot be made: their blob begins with its length.
    #[test]
    fn contents_of_a_sha_1_collision_are_refused_as_invalid() {
        let refused = HubProblem::from(HubError::from(ObjectError::Collision)).into_response();
        let message = refused.headers()["x-error-message"].to_str().unwrap();
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
        assert_eq!(message, "Refused: the contents belong to a SHA-1 collision attack.");
    }
}
