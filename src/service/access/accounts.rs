//! Users and organizations of the Hub: which namespaces a user may read and write.
//!
//! They are lines of the key file (`access/keys.rs`), because they say, like revocations, what a
//! signed token cannot say: that its user was disabled since, or has another role in an
//! organization. A change takes effect within a second, when the file is reloaded. Neither the
//! index nor a lookup in it is needed.
//!
//! A token of a user is a signed token for the repositories of the user. What it permits is decided
//! anew for each request: all in the user's own namespace, what the role permits in the namespace
//! of an organization, and to read what is public. The scope of the token limits all of it.
//!
//! An account is never removed: another person could get its name, and with it the repositories.

use std::collections::BTreeMap;

use thiserror::Error;

use super::account::{Account, AccountName, Role};
use super::{Claims, Reason, Refused, RepoScope, Scope};

/// First words of the lines of the key file that describe accounts.
const USER: &str = "user";
const ORGANIZATION: &str = "organization";
const MEMBER: &str = "member";

/// The state of a user in the key file.
const ENABLED: &str = "enabled";
const DISABLED: &str = "disabled";

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    account: Account,
    is_enabled: bool,
    /// Tokens that were issued before this time are refused, in seconds since 1970.
    tokens_since_unix_secs: u64,
}

/// All users and organizations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    /// By their names in lower case.
    users: BTreeMap<String, User>,
    /// By their names in lower case.
    organizations: BTreeMap<String, AccountName>,
}

/// Why accounts were not changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AccountError {
    /// A user or organization has the name already, or one that differs in case only.
    #[error("{0} is a user or organization already")]
    Exists(AccountName),
    /// There is no such user.
    #[error("no user {0}; `zorb user list` shows all, `zorb user add` adds one")]
    NoUser(AccountName),
    /// There is no such organization.
    #[error("no organization {0}; `zorb org list` shows all, `zorb org add` adds one")]
    NoOrganization(AccountName),
}

impl User {
    /// The namespaces of the user.
    #[must_use]
    pub const fn account(&self) -> &Account {
        &self.account
    }

    /// Whether tokens of the user are accepted.
    #[must_use]
    pub const fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// The claims of a new token of the user. Issued now, or after a revocation at the earliest
    /// time at which it is accepted.
    #[must_use]
    pub fn claims(&self, scope: Scope, now_unix_secs: u64, lifetime_secs: u64) -> Claims {
        Claims {
            scope,
            repo: RepoScope::Account(self.account.clone()),
            subject: self.account.name().as_str().parse().ok(),
            issued_unix_secs: now_unix_secs.max(self.tokens_since_unix_secs),
            expires_unix_secs: now_unix_secs.saturating_add(lifetime_secs),
            user: None,
        }
    }
}

impl Accounts {
    /// The users, by name.
    pub fn users(&self) -> impl Iterator<Item = &User> {
        self.users.values()
    }

    /// The organizations, by name.
    pub fn organizations(&self) -> impl Iterator<Item = &AccountName> {
        self.organizations.values()
    }

    /// The members of an organization with their roles, by name.
    pub fn members(&self, organization: &AccountName) -> impl Iterator<Item = (&AccountName, Role)> {
        self.users().filter_map(move |user| {
            let (_, role) = user.account.organizations().iter().find(|(name, _)| name == organization)?;
            Some((user.account.name(), *role))
        })
    }

    /// A user. The case of the name does not matter.
    ///
    /// # Errors
    ///
    /// [`AccountError::NoUser`].
    pub fn user(&self, name: &AccountName) -> Result<&User, AccountError> {
        self.users.get(&name.key()).ok_or_else(|| AccountError::NoUser(name.clone()))
    }

    fn user_mut(&mut self, name: &AccountName) -> Result<&mut User, AccountError> {
        self.users.get_mut(&name.key()).ok_or_else(|| AccountError::NoUser(name.clone()))
    }

    fn check_free(&self, name: &AccountName) -> Result<(), AccountError> {
        let key = name.key();
        let is_taken = self.users.contains_key(&key) || self.organizations.contains_key(&key);
        if is_taken { Err(AccountError::Exists(name.clone())) } else { Ok(()) }
    }

    /// Adds a user.
    ///
    /// # Errors
    ///
    /// [`AccountError::Exists`].
    pub fn add_user(&mut self, name: AccountName) -> Result<(), AccountError> {
        self.check_free(&name)?;
        let key = name.key();
        let user = User { account: Account::new(name), is_enabled: true, tokens_since_unix_secs: 0 };
        self.users.insert(key, user);
        Ok(())
    }

    /// Adds an organization without members.
    ///
    /// # Errors
    ///
    /// [`AccountError::Exists`].
    pub fn add_organization(&mut self, name: AccountName) -> Result<(), AccountError> {
        self.check_free(&name)?;
        self.organizations.insert(name.key(), name);
        Ok(())
    }

    /// Makes a user a member of an organization, with this role only. `None` ends the membership.
    ///
    /// # Errors
    ///
    /// [`AccountError::NoOrganization`] or [`AccountError::NoUser`].
    pub fn set_member(
        &mut self,
        organization: &AccountName,
        user: &AccountName,
        role: Option<Role>,
    ) -> Result<(), AccountError> {
        let found = self.organizations.get(&organization.key());
        let organization = found.ok_or_else(|| AccountError::NoOrganization(organization.clone()))?.clone();
        self.user_mut(user)?.account.set_role(&organization, role);
        Ok(())
    }

    /// Accepts the tokens of a user again, or refuses them.
    ///
    /// # Errors
    ///
    /// [`AccountError::NoUser`].
    pub fn set_enabled(&mut self, user: &AccountName, is_enabled: bool) -> Result<(), AccountError> {
        self.user_mut(user)?.is_enabled = is_enabled;
        Ok(())
    }

    /// Revokes all tokens of a user that were issued until now.
    ///
    /// # Errors
    ///
    /// [`AccountError::NoUser`].
    pub fn revoke_tokens(&mut self, user: &AccountName, now_unix_secs: u64) -> Result<(), AccountError> {
        let user = self.user_mut(user)?;
        // Those of this second, too. If the clock was set back, those of the time before that.
        user.tokens_since_unix_secs = now_unix_secs.max(user.tokens_since_unix_secs).saturating_add(1);
        Ok(())
    }

    /// These claims with the current roles of their user, if they have one.
    ///
    /// The subject of any other token may be a user, too: of the tokens for transfers that a user
    /// gets from the server, and of those that an operator issued for one repository. They are
    /// valid while the user's own tokens are.
    pub(super) fn admit(&self, claims: Claims) -> Result<Claims, Refused> {
        let subject =
            claims.subject.as_ref().and_then(|subject| self.users.get(&subject.as_str().to_ascii_lowercase()));
        let user = match &claims.repo {
            RepoScope::Account(account) => Some(self.users.get(&account.name().key()).ok_or(Reason::Account)?),
            _ => subject,
        };
        let Some(user) = user else { return Ok(claims) };
        if !user.is_enabled || claims.issued_unix_secs < user.tokens_since_unix_secs {
            return Err(Reason::Account.into());
        }
        Ok(match &claims.repo {
            RepoScope::Account(_) => Claims { repo: RepoScope::Account(user.account.clone()), ..claims },
            // An operator may have issued it for a repository that is not the user's.
            RepoScope::One(repo) if user.account.role_for(repo.as_str()) == Some(Role::Write) => {
                Claims { user: Some(user.account.clone()), ..claims }
            }
            _ => claims,
        })
    }

    /// Takes a line of the key file. Returns whether it describes an account; `None` if it is
    /// malformed, or contradicts an earlier line.
    pub(super) fn take_line(&mut self, line: &str) -> Option<bool> {
        let mut words = line.split(' ');
        let (first, mut next) = (words.next()?, || words.next());
        match first {
            USER => {
                let (name, since): (AccountName, &str) = (next()?.parse().ok()?, next()?);
                let is_enabled = match next()? {
                    ENABLED => true,
                    DISABLED => false,
                    _ => return None,
                };
                self.add_user(name.clone()).ok()?;
                let user = self.user_mut(&name).ok()?;
                (user.tokens_since_unix_secs, user.is_enabled) = (parse_secs(since)?, is_enabled);
            }
            ORGANIZATION => self.add_organization(next()?.parse().ok()?).ok()?,
            MEMBER => {
                let (organization, user): (AccountName, AccountName) = (next()?.parse().ok()?, next()?.parse().ok()?);
                let known = self.user(&user).ok()?.account.organizations();
                if known.iter().any(|(name, _)| name.key() == organization.key()) {
                    return None;
                }
                self.set_member(&organization, &user, Some(next()?.parse().ok()?)).ok()?;
            }
            _ => return Some(false),
        }
        next().is_none().then_some(true)
    }

    /// The lines of the key file: the inverse of [`take_line`](Self::take_line).
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        let users = self.users().map(|user| {
            let state = if user.is_enabled { ENABLED } else { DISABLED };
            format!("{USER} {} {} {state}\n", user.account.name(), user.tokens_since_unix_secs)
        });
        let organizations = self.organizations().map(|name| format!("{ORGANIZATION} {name}\n"));
        let members = self.users().flat_map(|user| {
            let line = |(name, role): &(AccountName, Role)| format!("{MEMBER} {name} {} {role}\n", user.account.name());
            user.account.organizations().iter().map(line)
        });
        users.chain(organizations).chain(members)
    }
}

/// A time in decimal digits. `parse` alone also accepts a plus sign.
fn parse_secs(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}
