//! `zorb token`: issues, inspects and revokes tokens for a server, and rotates the keys that sign
//! them. The keys are in the data directory of the server, which need not run.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::Usage;
use super::keys::KeyPlace;
use super::output::{Output, OutputArgs, write_stdout};
use super::store::StoreArgs;
use crate::http::audit::AuditLine;
use crate::runtime::clock::{Clock, SystemClock};
use crate::runtime::journal::append_one;
use crate::service::access::{
    Claims, KeyId, KeyRing, Reason, RefreshToken, RepoScope, Scope, SecretText, Subject, Token, TokenId,
    check_refresh_token, check_token, inspect_refresh_token, inspect_token,
};

/// Maximum lifetime of a token: ten years of 366 days.
const MAX_TTL: Duration = Duration::from_secs(3660 * 24 * 3600);

/// Default lifetime of a token.
const DEFAULT_TTL: Duration = Duration::from_secs(3600);

/// Default lifetime of a refresh token.
const DEFAULT_REFRESH_TTL: Duration = Duration::from_secs(30 * 24 * 3600);

/// Minimum lifetime of the tokens for which a refresh token is exchanged. A client requests the
/// next token 30 seconds before the expiry, so a shorter lifetime would make it request tokens all
/// the time.
const MIN_TOKEN_TTL: Duration = Duration::from_secs(60);

/// Issue, inspect and revoke tokens
#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    Issue(IssueArgs),
    Inspect(InspectArgs),
    Revoke(RevokeArgs),
    RotateKey(RotateArgs),
}

/// The flag for the audit log of this command.
#[derive(Debug, Args)]
pub(super) struct AuditArgs {
    /// Audit log for this command; if it cannot be written, nothing is done
    #[arg(long, env = "ZORB_AUDIT_LOG", value_name = "FILE")]
    audit_log: Option<String>,
}

impl AuditArgs {
    /// Appends a line to the audit log, if there is one. Called before the command takes effect, so
    /// that nothing is done without a line.
    pub(super) fn append(&self, line: AuditLine<'_>) -> anyhow::Result<()> {
        // The variable may be set to `stdout` for the server. The stdout of this command is only
        // for its result.
        let path = self.audit_log.as_ref().filter(|path| !path.is_empty() && *path != "stdout");
        let Some(path) = path else { return Ok(()) };
        let line = AuditLine { time: AuditLine::time(SystemClock.now()), ..line };
        append_one(Path::new(&path), &line.render()).with_context(|| format!("cannot append to the audit log {path}"))
    }
}

/// Print a new token, and nothing else, on stdout
#[derive(Debug, Args)]
pub(super) struct IssueArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Permissions; each includes the previous ones
    #[arg(long)]
    scope: ScopeArg,
    /// Repository, like models/owner/name; * for all; models/owner/* for a namespace of the Hub
    #[arg(long, value_name = "REPO")]
    repo: RepoScope,
    /// Lifetime: a number and s, m, h or d [default: 1h, or 30d with --refresh]
    #[arg(long, value_name = "TIME", value_parser = parse_ttl)]
    ttl: Option<Duration>,
    /// Issue a refresh token: it grants no access itself; GET /v1/token exchanges it for tokens of
    /// the same repository and scope
    #[arg(long)]
    refresh: bool,
    /// Lifetime of the tokens issued for the refresh token
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_ttl, requires = "refresh")]
    token_ttl: Duration,
    /// Name of the token's user, for the logs
    #[arg(long, value_name = "NAME")]
    subject: Option<Subject>,
    #[command(flatten)]
    audit: AuditArgs,
}

/// Print the contents of a token, and whether it is valid
#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The token; - reads it from stdin, which keeps it out of process lists
    token: String,
    #[command(flatten)]
    output: OutputArgs,
}

/// Revoke tokens; a running server rejects them within a second
#[derive(Debug, Args)]
pub(super) struct RevokeArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Token id, as printed by `inspect` and in the logs, or the token; - reads one from stdin.
    /// Revoking a refresh token revokes all tokens issued for it
    #[arg(required = true, value_name = "ID")]
    tokens: Vec<String>,
    #[command(flatten)]
    audit: AuditArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Create a new signing key; a running server reloads it by itself
#[derive(Debug, Args)]
pub(super) struct RotateArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Number of older keys that stay valid; tokens and URLs signed by other keys become invalid
    #[arg(long, value_name = "N", default_value_t = 1)]
    keep: usize,
    #[command(flatten)]
    audit: AuditArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ScopeArg {
    /// Read files
    Read,
    /// Also upload
    Write,
    /// Also administer
    Admin,
}

pub(super) fn run(command: TokenCommand) -> anyhow::Result<()> {
    match command {
        TokenCommand::Issue(args) => issue(args),
        TokenCommand::Inspect(args) => inspect(args),
        TokenCommand::Revoke(args) => revoke(args),
        TokenCommand::RotateKey(args) => rotate(args),
    }
}

fn issue(args: IssueArgs) -> anyhow::Result<()> {
    let place = KeyPlace::of_store(args.store)?;
    let scope = match args.scope {
        ScopeArg::Read => Scope::Read,
        ScopeArg::Write => Scope::Write,
        ScopeArg::Admin => Scope::Admin,
    };
    if args.refresh && scope == Scope::Admin {
        return Err(Usage("a refresh token has the scope read or write").into());
    }
    if args.refresh && args.token_ttl < MIN_TOKEN_TTL {
        return Err(Usage("--token-ttl must be at least 60s: clients request a new token 30 s before expiry").into());
    }
    let ring = place.read_or_create()?;
    let now = SystemClock.now().as_secs();
    let ttl = args.ttl.unwrap_or(if args.refresh { DEFAULT_REFRESH_TTL } else { DEFAULT_TTL });
    let expires_unix_secs = now.saturating_add(ttl.as_secs());
    let (repo, subject) = (args.repo, args.subject);
    let claims = Claims { scope, repo, subject, issued_unix_secs: now, expires_unix_secs, user: None };
    let made = if args.refresh {
        AnyToken::Refresh(RefreshToken::new(claims, args.token_ttl.as_secs(), rand::random()))
    } else {
        AnyToken::Access(Token::new(claims, rand::random()))
    };
    args.audit.append(AuditLine {
        action: if args.refresh { "zorb token issue --refresh" } else { "zorb token issue" },
        repo: Some(made.claims().repo.to_string()),
        subject: made.claims().subject.as_ref().map(ToString::to_string),
        scope: Some(made.claims().scope.to_string()),
        token: Some(made.id().to_string()),
        ..AuditLine::default()
    })?;
    let text = made.issue(&ring);
    Ok(write_stdout(|stdout| writeln!(stdout, "{}", text.expose()))?)
}

/// A token of either kind.
enum AnyToken {
    Access(Token),
    Refresh(RefreshToken),
}

impl AnyToken {
    /// Parses a token of either kind. Returns the id of the key that signed it, too. `None` if the
    /// key ring has no such key, or the text is no token.
    fn of(ring: &KeyRing, text: &str) -> Option<(KeyId, Self)> {
        let access = inspect_token(ring, text).map(|(key, token)| (key, Self::Access(token)));
        access.or_else(|_| inspect_refresh_token(ring, text).map(|(key, token)| (key, Self::Refresh(token)))).ok()
    }

    const fn id(&self) -> TokenId {
        match self {
            Self::Access(token) => token.id,
            Self::Refresh(token) => token.id,
        }
    }

    /// The id of the refresh token that was exchanged for this token.
    fn parent(&self) -> Option<TokenId> {
        match self {
            Self::Access(token) => token.parent(),
            Self::Refresh(_) => None,
        }
    }

    /// The ids of all tokens whose revocation revokes it.
    fn ancestors(&self) -> &[TokenId] {
        match self {
            Self::Access(token) => &token.ancestors,
            Self::Refresh(_) => &[],
        }
    }

    const fn claims(&self) -> &Claims {
        match self {
            Self::Access(token) => &token.claims,
            Self::Refresh(token) => &token.claims,
        }
    }

    const fn kind(&self) -> &'static str {
        match self {
            Self::Access(_) => "access",
            Self::Refresh(_) => "refresh",
        }
    }

    /// The signed text of the token.
    fn issue(&self, ring: &KeyRing) -> SecretText {
        match self {
            Self::Access(token) => token.issue(ring),
            Self::Refresh(token) => token.issue(ring),
        }
    }
}

/// The text of an argument; for `-`, the text of stdin, without white space around it.
fn read_argument(text: String) -> anyhow::Result<String> {
    let text = if text == "-" {
        std::io::read_to_string(std::io::stdin()).context("cannot read the token from stdin")?
    } else {
        text
    };
    Ok(text.trim().to_owned())
}

fn inspect(args: InspectArgs) -> anyhow::Result<()> {
    let text = read_argument(args.token)?;
    let place = KeyPlace::of(&args.store.location()?)?;
    let ring = place.read_existing()?;
    let now = SystemClock.now().as_secs();
    let Some((key_id, token)) = AnyToken::of(&ring, &text) else {
        bail!("not a token of the server in {place}, or its key was removed")
    };
    let refused = match token {
        AnyToken::Access(_) => check_token(&ring, &text, now).err(),
        AnyToken::Refresh(_) => check_refresh_token(&ring, &text, now).err(),
    };
    let is_valid = refused.is_none();
    let is_revoked = ring.is_revoked(token.id()) || token.ancestors().iter().any(|id| ring.is_revoked(*id));
    let is_of_refused_user = refused.is_some_and(|refused| refused.reason() == Reason::Account);
    let output = Output::new(args.output);
    let claims = token.claims();
    let subject = claims.subject.as_ref().map(ToString::to_string);
    let parent = token.parent().map(|parent| parent.to_string());
    output.record(&json!({
        "valid": is_valid,
        "id": token.id().to_string(),
        "kind": token.kind(),
        "parent": parent,
        "revoked": is_revoked,
        "scope": claims.scope.to_string(),
        "repo": claims.repo.to_string(),
        "subject": subject,
        "issued_unix_secs": claims.issued_unix_secs,
        "expires_unix_secs": claims.expires_unix_secs,
        "key": key_id.number(),
    }))?;
    // For `GRACE_SECS` after its expiry, the text says "expired" while `valid` is true, because the
    // server still accepts the token.
    let left = claims.expires_unix_secs.saturating_sub(now);
    let validity = match left {
        _ if is_revoked => "revoked".to_owned(),
        _ if is_of_refused_user => "refused with its user".to_owned(),
        0 => "expired".to_owned(),
        left => format!("for {left} s"),
    };
    output.line(format_args!("id       {}", token.id()))?;
    output.line(format_args!("kind     {}", token.kind()))?;
    if let Some(parent) = &parent {
        output.line(format_args!("parent   {parent}"))?;
    }
    output.line(format_args!("scope    {}", claims.scope))?;
    output.line(format_args!("repo     {}", claims.repo))?;
    output.line(format_args!("subject  {}", subject.as_deref().unwrap_or("-")))?;
    output.line(format_args!("key      {key_id}"))?;
    output.line(format_args!("valid    {validity}"))?;
    match is_valid {
        true => Ok(()),
        false if is_revoked => bail!("the token is revoked; issue a new one"),
        false if is_of_refused_user => {
            bail!("its user is unknown or disabled, or the user's tokens were revoked; see zorb user list")
        }
        false => bail!("the token has expired; issue a new one"),
    }
}

fn revoke(args: RevokeArgs) -> anyhow::Result<()> {
    let place = KeyPlace::of(&args.store.location()?)?;
    let ring = place.read_existing()?;
    let mut ids = Vec::new();
    for text in args.tokens {
        let text = read_argument(text)?;
        let id = match AnyToken::of(&ring, &text) {
            Some((_, token)) => token.id(),
            // The error does not repeat the text, because it may be a token of another server.
            None => text.parse::<TokenId>().context("cannot revoke")?,
        };
        ids.push(id);
    }
    for id in &ids {
        let token = Some(id.to_string());
        args.audit.append(AuditLine { action: "zorb token revoke", token, ..AuditLine::default() })?;
    }
    let now = SystemClock.now().as_secs();
    place.change(|ring| {
        let ring = ring.with_context(|| format!("no keys in {place}"))?;
        // Also removes the revocations of expired tokens, which are invalid anyway.
        Ok(ids.iter().fold(ring.forgetting(now), |ring, id| ring.revoking(*id)))
    })?;
    let output = Output::new(args.output);
    for id in ids {
        output.record(&json!({ "revoked": id.to_string(), "expires_unix_secs": id.expires_unix_secs() }))?;
        output.line(format_args!("revoked {id}"))?;
    }
    Ok(())
}

fn rotate(args: RotateArgs) -> anyhow::Result<()> {
    let place = KeyPlace::of_store(args.store)?;
    let ring = place.change(|ring| {
        let ring = ring.with_context(|| format!("no keys in {place} to rotate"))?;
        let rotated = ring.rotated(rand::random()).context("no key ids left")?;
        args.audit.append(AuditLine { action: "zorb token rotate-key", ..AuditLine::default() })?;
        Ok(rotated.retaining(args.keep))
    })?;
    let retained: Vec<_> = ring.ids().filter(|id| *id != ring.current_id()).map(|id| id.number()).collect();
    let output = Output::new(args.output);
    output.record(&json!({ "key": ring.current_id().number(), "retained": retained }))?;
    Ok(output.line(format_args!("key {} signs from now on; still valid: {retained:?}", ring.current_id()))?)
}

/// Parses a lifetime such as `90s`, `15m`, `1h` or `30d`.
pub(super) fn parse_ttl(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a number and s, m, h or d, like 15m".to_owned();
    let unit = text.chars().last().ok_or_else(wrong)?;
    let unit_secs: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        _ => return Err(wrong()),
    };
    let count: u64 = text.strip_suffix(unit).unwrap_or_default().parse().map_err(|_| wrong())?;
    let ttl = count.checked_mul(unit_secs).map(Duration::from_secs).filter(|ttl| *ttl <= MAX_TTL && !ttl.is_zero());
    ttl.ok_or_else(|| format!("must be between 1s and {}d", MAX_TTL.as_secs() / (24 * 3600)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_has_a_number_a_unit_and_a_maximum() {
        for (text, secs) in [("1s", 1), ("90s", 90), ("15m", 900), ("1h", 3600), ("3660d", 3660 * 86400)] {
            assert_eq!(parse_ttl(text), Ok(Duration::from_secs(secs)), "{text}");
        }
        for text in ["", "1", "h", "-1h", "1.5h", "0s", "3661d", "1hh", "1w", "99999999999999999999d", "1 h", "é"] {
            assert!(parse_ttl(text).is_err(), "{text}");
        }
    }
}
