//! The user of a token, with the namespaces of the Hub in which the user has a role.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

use crate::index::RepoKind;
use crate::service::hub::name::is_namespace;

/// First character of the repositories of a token if they are those of a user, or a public one. No
/// name of a repository has it, so that no other token is taken for such a token.
pub(super) const MARK: char = ' ';

/// The name of a user or an organization. Both are namespaces of the Hub, so they share one space
/// of names, in which no two names differ in case only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountName(String);

/// A text is not the name of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "a user or organization has a name like a namespace of the Hub: 1 to 96 letters, digits, `.`, `_` and `-`; some names \
     are reserved"
)]
pub struct AccountNameError;

/// What a user may do in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Read its repositories, also the private ones.
    Read,
    /// Also create, change and delete them.
    Write,
}

/// A text is not a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a role is read or write")]
pub struct RoleError;

/// The repositories of a user's token: those of the namespaces in which the user has a role. Shown
/// as `@alice`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Account {
    /// The name with its mark, as a token has it.
    text: String,
    /// The user's own namespace, then the organizations by name. Empty in a token that was not
    /// checked, so that it permits nothing.
    namespaces: Arc<[(AccountName, Role)]>,
    name: AccountName,
}

impl AccountName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key by which accounts are found.
    pub(super) fn key(&self) -> String {
        self.0.to_ascii_lowercase()
    }
}

impl fmt::Display for AccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for AccountName {
    type Err = AccountNameError;

    fn from_str(text: &str) -> Result<Self, AccountNameError> {
        if is_namespace(text) { Ok(Self(text.to_owned())) } else { Err(AccountNameError) }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        [Self::Read, Self::Write].into_iter().find(|role| role.to_string() == text).ok_or(RoleError)
    }
}

impl Account {
    /// The user of this text, without any namespace. `None` if the text has another form.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let name: AccountName = text.strip_prefix(MARK)?.parse().ok()?;
        Some(Self { namespaces: Arc::default(), ..Self::new(name) })
    }

    /// A user who is a member of no organization.
    pub(super) fn new(name: AccountName) -> Self {
        Self { text: format!("{MARK}{name}"), namespaces: Arc::new([(name.clone(), Role::Write)]), name }
    }

    /// A client without a token. It has a role nowhere, so it sees what is public.
    pub(super) fn anonymous() -> Self {
        let name = AccountName("anonymous".to_owned());
        Self { text: format!("{MARK}{name}"), namespaces: Arc::default(), name }
    }

    /// Makes the user a member of an organization, with this role only.
    pub(super) fn set_role(&mut self, organization: &AccountName, role: Option<Role>) {
        let is_other = |(name, _): &&(AccountName, Role)| name != organization;
        let mut others: Vec<_> = self.organizations().iter().filter(is_other).cloned().collect();
        others.extend(role.map(|role| (organization.clone(), role)));
        others.sort();
        self.namespaces = [(self.name.clone(), Role::Write)].into_iter().chain(others).collect();
    }

    /// The name of the user with its mark, as a token has it.
    pub(super) fn as_signed(&self) -> &str {
        &self.text
    }

    /// The name of the user.
    #[must_use]
    pub const fn name(&self) -> &AccountName {
        &self.name
    }

    /// The owners whose repositories the user may write: one of each kind for each namespace.
    pub(in crate::service) fn written_owners(&self) -> impl Iterator<Item = String> {
        let written = self.namespaces.iter().filter(|(_, role)| *role == Role::Write);
        written.flat_map(|(name, _)| RepoKind::ALL.map(|kind| format!("{}/{name}", kind.plural())))
    }

    /// The organizations of which the user is a member, with the roles.
    #[must_use]
    pub fn organizations(&self) -> &[(AccountName, Role)] {
        self.namespaces.get(1..).unwrap_or_default()
    }

    /// The namespaces in which the user has a role.
    pub(in crate::service) fn namespaces(&self) -> Vec<String> {
        self.namespaces.iter().map(|(name, _)| name.to_string()).collect()
    }

    /// Whether the user may create repositories in this namespace. Its case matters, so that all of
    /// them are in the namespace as the account is written.
    #[must_use]
    pub fn creates_in(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|(name, role)| name.as_str() == namespace && *role == Role::Write)
    }

    /// The role of the user for a Hub repository with this storage name: `KIND/NAMESPACE/NAME`.
    #[must_use]
    pub fn role_for(&self, storage_name: &str) -> Option<Role> {
        let mut parts = storage_name.splitn(3, '/').skip(1);
        let (namespace, _) = (parts.next()?, parts.next()?);
        self.role_in(namespace)
    }

    /// The role of the user in this namespace, whatever its case.
    #[must_use]
    pub fn role_in(&self, namespace: &str) -> Option<Role> {
        let is_it = |name: &AccountName| name.as_str().eq_ignore_ascii_case(namespace);
        self.namespaces.iter().find(|(name, _)| is_it(name)).map(|(_, role)| *role)
    }
}
