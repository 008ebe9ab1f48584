//! `zorb user` and `zorb org`: the users and organizations of the Hub, and the tokens of users.
//! They are in the key file of the server, which need not run.
//!
//! Each command takes effect with one replacement of the key file. A running server notices it
//! within a second.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::keys::KeyPlace;
use super::output::{Output, OutputArgs, write_stdout};
use super::store::StoreArgs;
use super::token::{AuditArgs, parse_ttl};
use crate::http::audit::AuditLine;
use crate::runtime::clock::{Clock, SystemClock};
use crate::service::access::{AccountError, AccountName, Accounts, KeyRing, Role, Scope, Token};

/// Users of the Hub, and their tokens
#[derive(Debug, Subcommand)]
pub(super) enum UserCommand {
    /// Add a user, whose name is also the namespace of the user's repositories
    Add(UserArgs),
    /// Print all users with their organizations
    List(ListArgs),
    Token(TokenArgs),
    /// Revoke all tokens that a user has; a running server rejects them within a second
    Revoke(UserArgs),
    /// Refuse a user's tokens until the user is enabled again
    Disable(UserArgs),
    /// Accept a user's tokens again
    Enable(UserArgs),
}

/// Organizations of the Hub, and their members
#[derive(Debug, Subcommand)]
pub(super) enum OrgCommand {
    Add(AddOrgArgs),
    /// Print all organizations with their members
    List(ListArgs),
    Member(MemberArgs),
}

/// What every command that changes something has.
#[derive(Debug, Args)]
struct ChangeArgs {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    audit: AuditArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(super) struct UserArgs {
    /// Name of the user
    name: AccountName,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Print a new token of a user, and nothing else, on stdout
#[derive(Debug, Args)]
pub(super) struct TokenArgs {
    /// Name of the user
    name: AccountName,
    /// Permissions: the token permits no more than this, and no more than the user may do
    #[arg(long)]
    scope: ScopeArg,
    /// Lifetime: a number and s, m, h or d
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = parse_ttl)]
    ttl: Duration,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    audit: AuditArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ScopeArg {
    /// Read repositories
    Read,
    /// Also create, change and delete them
    Write,
}

/// Add an organization; its name is also the namespace of its repositories
#[derive(Debug, Args)]
pub(super) struct AddOrgArgs {
    /// Name of the organization
    name: AccountName,
    /// A user and what the user may do: alice:read or alice:write
    #[arg(long = "member", value_name = "USER:ROLE")]
    members: Vec<Membership>,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Set what users may do in an organization
#[derive(Debug, Args)]
pub(super) struct MemberArgs {
    /// Name of the organization
    name: AccountName,
    /// Users and what they may do: alice:read or alice:write; alice:none ends a membership
    #[arg(required = true, value_name = "USER:ROLE")]
    members: Vec<Membership>,
    #[command(flatten)]
    change: ChangeArgs,
}

/// A user, and the role of the user in an organization.
#[derive(Clone, Debug)]
struct Membership {
    user: AccountName,
    role: Option<Role>,
}

impl FromStr for Membership {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected a user and read, write or none, like alice:write".to_owned();
        let (user, role) = text.split_once(':').ok_or_else(wrong)?;
        let role = match role {
            "none" => None,
            role => Some(role.parse().map_err(|_| wrong())?),
        };
        Ok(Self { user: user.parse().map_err(|error| format!("{error}"))?, role })
    }
}

/// What a command does to the user of this name, at this time in seconds since 1970.
type Verb = fn(&mut Accounts, &AccountName, u64) -> Result<(), AccountError>;

pub(super) fn run_user(command: UserCommand) -> anyhow::Result<()> {
    let (UserArgs { name, change }, action, done, verb): (_, _, _, Verb) = match command {
        UserCommand::List(args) => return list_users(args),
        UserCommand::Token(args) => return issue(&args),
        UserCommand::Add(args) => {
            (args, "zorb user add", "added the user", |accounts, name, _| accounts.add_user(name.clone()))
        }
        UserCommand::Revoke(args) => (args, "zorb user revoke", "revoked all tokens of", Accounts::revoke_tokens),
        UserCommand::Disable(args) => {
            (args, "zorb user disable", "disabled", |accounts, name, _| accounts.set_enabled(name, false))
        }
        UserCommand::Enable(args) => {
            (args, "zorb user enable", "enabled", |accounts, name, _| accounts.set_enabled(name, true))
        }
    };
    let line = AuditLine { action, subject: Some(name.to_string()), ..AuditLine::default() };
    change.make(vec![line], |accounts| verb(accounts, &name, SystemClock.now().as_secs()))?;
    change.report(&json!({ "user": name.as_str(), "done": action }), format_args!("{done} {name}"))
}

pub(super) fn run_org(command: OrgCommand) -> anyhow::Result<()> {
    match command {
        OrgCommand::Add(AddOrgArgs { name, members, change }) => {
            let mut lines = vec![AuditLine { repo: Some(name.to_string()), ..AuditLine::default() }];
            lines.extend(members.iter().map(|member| member.audited(&name)));
            lines.iter_mut().for_each(|line| line.action = "zorb org add");
            change.make(lines, |accounts| {
                accounts.add_organization(name.clone())?;
                set_members(accounts, &name, &members)
            })?;
            let record = json!({ "organization": name.as_str(), "done": "zorb org add" });
            change.report(&record, format_args!("added the organization {name}"))
        }
        OrgCommand::List(args) => list_organizations(args),
        OrgCommand::Member(MemberArgs { name, members, change }) => {
            let lines = members.iter().map(|member| member.audited(&name)).collect();
            change.make(lines, |accounts| set_members(accounts, &name, &members))?;
            for member in &members {
                let (user, role) = (member.user.as_str(), member.role_name());
                let record = json!({ "organization": name.as_str(), "user": user, "role": role });
                change.report(&record, format_args!("{user} in {name}: {role}"))?;
            }
            Ok(())
        }
    }
}

fn set_members(
    accounts: &mut Accounts,
    organization: &AccountName,
    members: &[Membership],
) -> Result<(), AccountError> {
    members.iter().try_for_each(|member| accounts.set_member(organization, &member.user, member.role))
}

impl Membership {
    fn role_name(&self) -> String {
        self.role.map_or_else(|| "none".to_owned(), |role| role.to_string())
    }

    /// A line of the audit log: the user is the holder of the role, which is the scope.
    fn audited(&self, organization: &AccountName) -> AuditLine<'static> {
        AuditLine {
            action: "zorb org member",
            subject: Some(self.user.to_string()),
            repo: Some(organization.to_string()),
            scope: Some(self.role_name()),
            ..AuditLine::default()
        }
    }
}

impl ChangeArgs {
    /// Changes the accounts, all or nothing. The lines are in the audit log before the change takes
    /// effect, and not at all if it is refused.
    fn make(
        &self,
        lines: Vec<AuditLine<'_>>,
        change: impl FnOnce(&mut Accounts) -> Result<(), AccountError> + Send,
    ) -> anyhow::Result<()> {
        KeyPlace::of_store(self.store.clone())?.change(|ring| {
            let ring = ring.unwrap_or_else(|| KeyRing::new(rand::random()));
            let mut accounts = ring.accounts().clone();
            change(&mut accounts)?;
            lines.into_iter().try_for_each(|line| self.audit.append(line))?;
            Ok(ring.with_accounts(accounts))
        })?;
        Ok(())
    }

    fn report(&self, record: &serde_json::Value, text: impl std::fmt::Display) -> anyhow::Result<()> {
        let output = Output::new(self.output);
        output.record(record)?;
        Ok(output.line(text)?)
    }
}

/// The accounts of a server; none if it has no keys yet.
fn read(args: StoreArgs) -> anyhow::Result<Accounts> {
    Ok(KeyPlace::of_store(args)?.read()?.map(|ring| ring.accounts().clone()).unwrap_or_default())
}

fn list_users(args: ListArgs) -> anyhow::Result<()> {
    let output = Output::new(args.output);
    for user in read(args.store)?.users() {
        let (name, organizations) = (user.account().name(), user.account().organizations());
        let state = if user.is_enabled() { "enabled" } else { "disabled" };
        output.record(&json!({
            "user": name.as_str(),
            "enabled": user.is_enabled(),
            "organizations": roles_of(organizations.iter().map(|(name, role)| (name, *role))),
        }))?;
        let roles: Vec<_> = organizations.iter().map(|(name, role)| format!("{name}:{role}")).collect();
        output.line(format_args!("{name}  {state}  {}", shown(&roles)))?;
    }
    Ok(())
}

fn list_organizations(args: ListArgs) -> anyhow::Result<()> {
    let output = Output::new(args.output);
    let accounts = read(args.store)?;
    for name in accounts.organizations() {
        output.record(&json!({ "organization": name.as_str(), "members": roles_of(accounts.members(name)) }))?;
        let members: Vec<_> = accounts.members(name).map(|(user, role)| format!("{user}:{role}")).collect();
        output.line(format_args!("{name}  {}", shown(&members)))?;
    }
    Ok(())
}

fn roles_of<'a>(roles: impl Iterator<Item = (&'a AccountName, Role)>) -> serde_json::Value {
    roles.map(|(name, role)| (name.to_string(), json!(role.to_string()))).collect::<serde_json::Map<_, _>>().into()
}

fn shown(roles: &[String]) -> String {
    if roles.is_empty() { "-".to_owned() } else { roles.join(" ") }
}

fn issue(args: &TokenArgs) -> anyhow::Result<()> {
    let ring = KeyPlace::of_store(args.store.clone())?.read()?;
    let ring = ring.with_context(|| format!("no user {}; add the user with zorb user add", args.name))?;
    let user = ring.accounts().user(&args.name)?;
    if !user.is_enabled() {
        bail!("the user {name} is disabled; enable the user with zorb user enable {name}", name = args.name);
    }
    let scope = match args.scope {
        ScopeArg::Read => Scope::Read,
        ScopeArg::Write => Scope::Write,
    };
    let claims = user.claims(scope, SystemClock.now().as_secs(), args.ttl.as_secs());
    let token = Token::new(claims, rand::random());
    args.audit.append(AuditLine {
        action: "zorb user token",
        repo: Some(token.claims.repo.to_string()),
        subject: token.claims.subject.as_ref().map(ToString::to_string),
        scope: Some(token.claims.scope.to_string()),
        token: Some(token.id.to_string()),
        ..AuditLine::default()
    })?;
    let text = token.issue(&ring);
    Ok(write_stdout(|stdout| writeln!(stdout, "{}", text.expose()))?)
}
