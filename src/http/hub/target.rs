//! What a request is about: the repository, the revision and the path in its URL.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, MatchedPath, Path};
use axum::http::request::Parts;

use super::problem::HubProblem;
use crate::http::audit::AuditContext;
use crate::service::access::AccountName;
use crate::service::{HubName, RepoKind};

/// The repository of a request, with the other parameters of its path.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) name: HubName,
    /// The revision, decoded; `main` if the path names none.
    pub(super) revision: String,
    /// The path of a file or directory, decoded; empty if there is none.
    pub(super) path: String,
}

/// Whether the path of a request would be a route if the name in it had a namespace before it.
pub(super) fn has_no_namespace(path: &str) -> bool {
    let mut parts = path.split('/').skip(1);
    let (first, second, name, operation) = (parts.next(), parts.next(), parts.next(), parts.next());
    match (first, second) {
        (Some("api"), Some("models" | "datasets" | "spaces")) => {
            name.is_some() && operation.is_none_or(|operation| OPERATIONS.contains(&operation))
        }
        (Some(_), Some("resolve")) => true,
        (Some(first), Some("info")) => first.ends_with(".git"),
        _ => false,
    }
}

/// What follows the name of a repository in a path.
const OPERATIONS: [&str; 13] = [
    "auth-check",
    "branch",
    "commit",
    "commits",
    "paths-info",
    "preupload",
    "revision",
    "settings",
    "super-squash",
    "tag",
    "tree",
    "xet-read-token",
    "xet-write-token",
];

/// The kind in the path of a list.
#[derive(Debug)]
pub(super) struct Kind(pub(super) RepoKind);

/// The namespace in the path of a list.
#[derive(Debug)]
pub(super) struct NamespacePath(pub(super) AccountName);

/// The parameters of the query, in order.
#[derive(Debug)]
pub(super) struct Pairs {
    pairs: Parameters,
    /// The query as it was sent.
    query: String,
}

type Parameters = Vec<(String, String)>;

impl<S: Send + Sync> FromRequestParts<S> for Target {
    type Rejection = HubProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, HubProblem> {
        let parameters = parameters(parts, state).await?;
        let value = |name: &str| parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        // The names of older clients end with `.git` in the routes of Git LFS.
        let name = value("name").unwrap_or_default();
        let name = if value("revision").is_none() { name.strip_suffix(".git").unwrap_or(name) } else { name };
        let kind = kind_of(value("kind"), parts).ok_or_else(HubProblem::no_repo)?;
        let name = HubName::new(kind, value("namespace").unwrap_or_default(), name);
        // A name that no repository can have is not found.
        let name = name.map_err(|_| HubProblem::no_repo())?;
        if let Some(audit) = parts.extensions.get::<AuditContext>() {
            audit.set_hub_repo(&name);
        }
        Ok(Self {
            name,
            revision: value("revision").unwrap_or("main").to_owned(),
            path: value("path").unwrap_or_default().to_owned(),
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Kind {
    type Rejection = HubProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, HubProblem> {
        let parameters = parameters(parts, state).await?;
        let kind = parameters.iter().find(|(key, _)| key == "kind").map(|(_, value)| value.as_str());
        kind_of(kind, parts).map(Self).ok_or_else(HubProblem::no_repo)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for NamespacePath {
    type Rejection = HubProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, HubProblem> {
        let parameters = parameters(parts, state).await?;
        let namespace = parameters.iter().find(|(key, _)| key == "namespace").map(|(_, value)| value.parse());
        // A name that no namespace can have is not found.
        namespace.and_then(Result::ok).map(Self).ok_or_else(HubProblem::no_repo)
    }
}

async fn parameters<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<Parameters, HubProblem> {
    let parameters = Path::<Parameters>::from_request_parts(parts, state).await;
    let Path(parameters) = parameters.map_err(|_| HubProblem::invalid("The path is not valid UTF-8."))?;
    Ok(parameters)
}

/// The kind in a path of the API, or that of the route.
fn kind_of(text: Option<&str>, parts: &Parts) -> Option<RepoKind> {
    let Some(text) = text else {
        let route = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
        let kind = RepoKind::ALL.into_iter().find(|kind| route.starts_with(&format!("/{}/", kind.plural())));
        return Some(kind.unwrap_or(RepoKind::Model));
    };
    RepoKind::ALL.into_iter().find(|kind| kind.plural() == text)
}

impl<S: Send + Sync> FromRequestParts<S> for Pairs {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(parts.uri.query().unwrap_or_default()))
    }
}

impl Pairs {
    /// The pairs of a query or form. Bytes that are not UTF-8 are replaced.
    pub(super) fn of(query: &str) -> Self {
        let pairs = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        Self { pairs, query: query.to_owned() }
    }

    /// The query as it was sent, without a parameter. Ends with `&` unless it is empty.
    pub(super) fn all_but(&self, name: &str) -> String {
        let is_kept = |pair: &&str| !pair.is_empty() && pair.split('=').next() != Some(name);
        self.query.split('&').filter(is_kept).map(|pair| format!("{pair}&")).collect()
    }

    /// The value of a parameter.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// All values of a parameter.
    pub(super) fn all<'p>(&'p self, name: &'p str) -> impl Iterator<Item = &'p str> {
        self.pairs.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Whether a parameter is true: clients before 1.0 send `True`.
    pub(super) fn is_set(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.eq_ignore_ascii_case("true") || value == "1")
    }

    /// The number of entries on a page, between 1 and `most`.
    pub(super) fn limit(&self, most: usize) -> Result<usize, HubProblem> {
        let Some(text) = self.get("limit") else { return Ok(most) };
        let limit: usize = text.parse().map_err(|_| HubProblem::invalid("The parameter limit must be a number."))?;
        Ok(limit.clamp(1, most))
    }
}

/// A text with everything encoded but letters, digits and a few marks.
pub(super) fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_keeps_its_form_on_the_next_page() {
        let pairs = Pairs::of("recursive=True&cursor=a%2Fb&expand=&limit=5000");
        assert_eq!(pairs.all_but("cursor"), "recursive=True&expand=&limit=5000&");
        assert_eq!(pairs.get("cursor"), Some("a/b"));
        assert!(pairs.is_set("recursive") && !pairs.is_set("expand"));
        assert_eq!(pairs.limit(1000).unwrap(), 1000);
        assert!(Pairs::of("limit=-1").limit(7).is_err());
        let form = Pairs::of("paths=a.txt&paths=b+c%2F%C3%BC.txt&expand=false");
        assert_eq!(form.all("paths").collect::<Vec<_>>(), ["a.txt", "b c/ü.txt"]);
    }
}
