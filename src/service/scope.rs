//! What a token may learn of stored data: its dedup scope and the files that it may read.

use super::access::{Claims, RepoScope};
use crate::index::Reader;

/// The dedup scope of uploads with these claims: the owner of the repository.
pub(super) fn domain(repo: &RepoScope) -> String {
    repo.owner().to_owned()
}

/// The scope within which these claims may learn of stored data. `None` means no limit, because the
/// token is for all repositories.
pub(super) fn dedup_scope(repo: &RepoScope) -> Option<String> {
    (*repo != RepoScope::All).then(|| domain(repo))
}

/// Which files the holder of these claims may read.
pub(super) fn reader(claims: &Claims) -> Reader {
    match &claims.repo {
        RepoScope::All => Reader::All,
        RepoScope::Public(public) => Reader::Repo(public.repo().to_string()),
        // A namespace or a user is no repository, so its name has no files: its claims become those
        // of one of its repositories before they read any.
        RepoScope::Account(_) => Reader::Repo(claims.repo.owner().to_owned()),
        RepoScope::One(_) | RepoScope::Namespace(_) => Reader::Repo(claims.repo.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_before_the_last_slash_and_star_is_its_own() {
        for (repo, owner) in [
            ("models/acme/bert", "models/acme"),
            ("acme/bert", "acme"),
            ("bert", "bert"),
            ("*", "*"),
            ("*/bert", "*/bert"),
        ] {
            assert_eq!(domain(&repo.parse().unwrap()), owner, "{repo}");
        }
    }
}
