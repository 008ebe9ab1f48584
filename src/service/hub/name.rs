//! Names of Hub repositories.

use thiserror::Error;

use crate::index::{HubRepo, RepoKind};

/// The name of a Hub repository, such as `acme/bert` of the models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    kind: RepoKind,
    namespace: String,
    name: String,
}

/// A text is not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "a namespace or name has 1 to 96 of the characters A-Z, a-z, 0-9, `.`, `_` and `-`, begins with a letter or digit, \
     has neither `--` nor `..`, and does not end with `.git` or `.ipynb`; some namespaces are reserved"
)]
pub struct HubNameError;

/// Maximum length of a namespace or name in bytes, as the clients check it.
const MAX_LEN: usize = 96;

/// Maximum number of former names of a repository: a copy has all of them in one record.
pub(super) const MAX_FORMER_COUNT: u32 = 100;

/// First segments of the paths of this server, which no namespace may have. Some are for routes
/// that there may be later.
pub(super) const RESERVED: &[&str] = &[
    "api",
    "buckets",
    "chunk",
    "chunks",
    "datasets",
    "healthz",
    "kernels",
    "lfs",
    "login",
    "metrics",
    "models",
    "oauth",
    "openapi.json",
    "readyz",
    "reconstruction",
    "reconstructions",
    "settings",
    "shard",
    "shards",
    "spaces",
    "ui",
    "v1",
    "v2",
    "xorb",
    "xorbs",
];

impl HubName {
    /// Checks a namespace and a name.
    ///
    /// # Errors
    ///
    /// [`HubNameError`].
    pub fn new(kind: RepoKind, namespace: &str, name: &str) -> Result<Self, HubNameError> {
        if !is_namespace(namespace) || !is_valid(name) {
            return Err(HubNameError);
        }
        Ok(Self { kind, namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// The kind of the repository.
    #[must_use]
    pub const fn kind(&self) -> RepoKind {
        self.kind
    }

    /// The user or organization.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name in the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name in the namespace of this repository, which may be written in another case here.
    pub(super) fn in_namespace_of(&self, repo: &HubRepo) -> Self {
        Self { namespace: repo.namespace.clone(), ..self.clone() }
    }

    /// What claims, quotas and tokens call a new repository of this name, unless a renamed one has
    /// that storage name.
    #[must_use]
    pub fn storage_name(&self) -> String {
        format!("{}/{}/{}", self.kind.plural(), self.namespace, self.name)
    }
}

/// Whether a text can be the namespace of a repository.
pub(in crate::service) fn is_namespace(text: &str) -> bool {
    is_valid(text) && !RESERVED.contains(&text.to_ascii_lowercase().as_str())
}

fn is_valid(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let lower = text.to_ascii_lowercase();
    (1..=MAX_LEN).contains(&text.len())
        && text.bytes().all(is_allowed)
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && !text.contains("--")
        && !text.contains("..")
        && !lower.ends_with(".git")
        && !lower.ends_with(".ipynb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_clients_accept_are_names() {
        let name = |namespace: &str, name: &str| HubName::new(RepoKind::Model, namespace, name);
        assert_eq!(name("acme", "bert-base.v2_1").unwrap().storage_name(), "models/acme/bert-base.v2_1");
        let long = "a".repeat(MAX_LEN + 1);
        for bad in ["", ".a", "-a", "a--b", "a..b", "a.git", "a.GIT", "a.ipynb", "a/b", "a b", "ü", "a\0", &long] {
            assert_eq!(name("acme", bad), Err(HubNameError), "{bad:?}");
            assert_eq!(name(bad, "bert"), Err(HubNameError), "{bad:?}");
        }
        for reserved in RESERVED {
            assert_eq!(name(&reserved.to_uppercase(), "bert"), Err(HubNameError), "{reserved}");
            assert!(name("acme", reserved).is_ok(), "{reserved}");
        }
    }
}
