//! The names in a token: its repositories, and its holder.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::account::{Account, MARK};
use crate::runtime::clock::Timestamp;

/// Why a text is not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// The text is empty or too long.
    #[error("a name has 1 to {MAX_NAME_LEN} bytes, this has {len}")]
    Len {
        /// Length of the text in bytes.
        len: usize,
    },
    /// The text has a space or a control character.
    #[error("a name has neither spaces nor control characters")]
    Character,
    /// The text is `*`, which stands for all repositories.
    #[error("`*` stands for all repositories and is not a name")]
    Reserved,
}

/// Maximum length of a name in bytes, because a token stores the length in one byte.
pub(super) const MAX_NAME_LEN: usize = 255;

/// Defines a type for a checked name.
macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                check_name(text).map(|()| Self(text.to_owned()))
            }
        }
    };
}

name_type! {
    /// The name of a repository: any text of 1 to 255 bytes without spaces and control characters,
    /// except `*`.
    Repo
}
name_type! {
    /// The name of a token's holder, with the same rules as for [`Repo`].
    Subject
}

fn check_name(text: &str) -> Result<(), NameError> {
    if !(1..=MAX_NAME_LEN).contains(&text.len()) {
        return Err(NameError::Len { len: text.len() });
    }
    if text.chars().any(|character| character.is_control() || character.is_whitespace()) {
        return Err(NameError::Character);
    }
    if text == "*" { Err(NameError::Reserved) } else { Ok(()) }
}

/// The repositories of a token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RepoScope {
    /// All repositories, including future ones. Written `*`.
    All,
    /// This repository.
    One(Repo),
    /// The Hub repositories of a namespace, including future ones.
    Namespace(Namespace),
    /// Those of the namespaces in which a user has a role, including future ones.
    Account(Account),
    /// This public repository, for a user without a role in its namespace.
    Public(PublicRepo),
}

/// A public repository. Shown as `@models/acme/bert`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PublicRepo {
    /// The name between two marks, and the time of its creation in milliseconds, as a token has it.
    text: String,
    repo: Repo,
    created: Timestamp,
}

impl PublicRepo {
    /// The repository of this name that was created at this time, as everybody sees it.
    #[must_use]
    pub fn new(repo: Repo, created: Timestamp) -> Self {
        Self { text: format!("{MARK}{repo}{MARK}{}", created.as_millis()), repo, created }
    }

    /// The repository of this text in a token; `None` if it has another form.
    fn parse(text: &str) -> Option<Self> {
        let (name, created) = text.strip_prefix(MARK)?.split_once(MARK)?;
        Some(Self::new(name.parse().ok()?, Timestamp::from_millis(created.parse().ok()?)))
    }

    /// When it was created. A later repository may have its name.
    #[must_use]
    pub const fn created(&self) -> Timestamp {
        self.created
    }

    /// The repository.
    #[must_use]
    pub const fn repo(&self) -> &Repo {
        &self.repo
    }
}

/// A namespace of the Hub, of one kind of repository or of all. Written `models/acme/*` or
/// `*/acme/*`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace(Repo);

impl Namespace {
    /// The namespace of this text; `None` if it has another form.
    fn parse(text: &str) -> Option<Self> {
        let is_plain = |part: &str| !part.is_empty() && !part.contains('*');
        let (kind, namespace) = text.strip_suffix("/*")?.split_once('/')?;
        let is_valid = (kind == "*" || is_plain(kind)) && is_plain(namespace) && !namespace.contains('/');
        if is_valid { text.parse().ok().map(Self) } else { None }
    }

    /// Its kind of repository as paths have it, or `*`; and its name.
    fn parts(&self) -> (&str, &str) {
        let mut parts = self.0.as_str().split('/');
        (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.parts().1
    }

    /// Whether it has repositories of this kind, named as in paths.
    #[must_use]
    pub fn has_kind(&self, plural: &str) -> bool {
        let (kind, _) = self.parts();
        kind == "*" || kind == plural
    }

    fn covers(&self, repo: &Repo) -> bool {
        let mut parts = repo.as_str().splitn(3, '/');
        parts.next().is_some_and(|kind| self.has_kind(kind))
            && parts.next() == Some(self.name())
            && parts.next().is_some_and(|rest| !rest.is_empty())
    }
}

impl RepoScope {
    /// Whether this repository is among the repositories.
    #[must_use]
    pub fn covers(&self, repo: &Repo) -> bool {
        match self {
            Self::All => true,
            Self::One(one) => one == repo,
            Self::Namespace(namespace) => namespace.covers(repo),
            Self::Account(account) => account.role_for(repo.as_str()).is_some(),
            Self::Public(public) => public.repo == *repo,
        }
    }

    /// The owner: the part of the repository's name before the last slash, or the whole name if it
    /// has no slash. The owner of a namespace or a user is its text.
    ///
    /// So is that of a public repository: deduplication tells its readers nothing of the other
    /// repositories of its namespace.
    ///
    /// The owner of [`All`](Self::All) is `*`. No repository has this owner, so that uploads with a
    /// token for all repositories are not those of a repository: the owner of `*/name` is `*/name`.
    #[must_use]
    pub fn owner(&self) -> &str {
        let repo = match self {
            Self::All => return "*",
            Self::One(repo) => repo,
            Self::Namespace(Namespace(text)) => return text.as_str(),
            Self::Account(account) => return account.as_signed(),
            Self::Public(public) => return &public.text,
        };
        let owner = repo.as_str().rsplit_once('/').map(|(owner, _)| owner).filter(|owner| *owner != "*");
        owner.unwrap_or(repo.as_str())
    }

    /// Inverse of [`as_signed`](Self::as_signed).
    pub(super) fn parse_signed(text: &str) -> Option<Self> {
        match text {
            "" => Some(Self::All),
            _ if text.starts_with(MARK) => {
                Account::parse(text).map(Self::Account).or_else(|| PublicRepo::parse(text).map(Self::Public))
            }
            // A name, which cannot be `*`.
            name => name.parse::<Repo>().ok()?.as_str().parse().ok(),
        }
    }

    /// The form in the payload of a token. The empty text stands for all repositories, because no
    /// name is empty.
    pub(super) fn as_signed(&self) -> &str {
        match self {
            Self::All => "",
            Self::One(repo) | Self::Namespace(Namespace(repo)) => repo.as_str(),
            Self::Account(account) => account.as_signed(),
            Self::Public(public) => &public.text,
        }
    }
}

impl fmt::Display for RepoScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::One(repo) | Self::Namespace(Namespace(repo)) => repo.fmt(f),
            Self::Account(account) => write!(f, "@{}", account.name()),
            Self::Public(public) => write!(f, "@{}", public.repo),
        }
    }
}

impl FromStr for RepoScope {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match Namespace::parse(text) {
            _ if text == "*" => Ok(Self::All),
            Some(namespace) => Ok(Self::Namespace(namespace)),
            None => text.parse().map(Self::One),
        }
    }
}
