//! `zorb token`: tokens for a server, made with the keys in its data directory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::output::{Output, OutputArgs, write_stdout};
use super::store::is_store;
use super::{Usage, keys};
use crate::http::audit::AuditLine;
use crate::runtime::clock::{Clock, SystemClock};
use crate::runtime::journal::append_one;
use crate::service::access::{
    Claims, KeyId, KeyRing, RefreshToken, RepoScope, Scope, SecretText, Subject, Token, TokenId, check_refresh_token,
    check_token, inspect_refresh_token, inspect_token,
};

/// Longest life of a token.
const MAX_TTL: Duration = Duration::from_secs(3660 * 24 * 3600);

/// Life of a token where none is given.
const DEFAULT_TTL: Duration = Duration::from_secs(3600);

/// The same of a refresh token.
const DEFAULT_REFRESH_TTL: Duration = Duration::from_secs(30 * 24 * 3600);

/// Shortest life of what a refresh token makes. A client asks for another token when 30 seconds are
/// left.
const MIN_TOKEN_TTL: Duration = Duration::from_secs(60);

/// Issue, inspect and revoke tokens
#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    Issue(IssueArgs),
    Inspect(InspectArgs),
    Revoke(RevokeArgs),
    RotateKey(RotateArgs),
}

/// Where the keys are.
#[derive(Debug, Args)]
struct KeyArgs {
    /// Data directory of the server
    #[arg(long, env = "ZORB_DATA_DIR", value_name = "DIR", default_value = "./zorb-data")]
    data_dir: PathBuf,
}

/// The audit log of this command.
#[derive(Debug, Args)]
struct NoteArgs {
    /// Audit log for this command; if it cannot be written, nothing is done
    #[arg(long, env = "ZORB_AUDIT_LOG", value_name = "FILE")]
    audit_log: Option<String>,
}

impl NoteArgs {
    fn note(&self, line: AuditLine<'_>) -> anyhow::Result<()> {
        // The stdout of a server is not that of this command, which may be for a token and nothing
        // else.
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
    keys: KeyArgs,
    /// Permissions; each includes the previous ones
    #[arg(long)]
    scope: ScopeArg,
    /// Repository, like models/owner/name; * for all
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
    note: NoteArgs,
}

/// Print the contents of a token, and whether it is valid
#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    #[command(flatten)]
    keys: KeyArgs,
    /// The token; - reads it from stdin, which keeps it out of process lists
    token: String,
    #[command(flatten)]
    output: OutputArgs,
}

/// Revoke tokens; a running server rejects them within a second
#[derive(Debug, Args)]
pub(super) struct RevokeArgs {
    #[command(flatten)]
    keys: KeyArgs,
    /// Token id, as printed by `inspect` and in the logs, or the token; - reads one from stdin.
    /// Revoking a refresh token revokes all tokens issued for it
    #[arg(required = true, value_name = "ID")]
    tokens: Vec<String>,
    #[command(flatten)]
    note: NoteArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Create a new signing key; a running server reloads it by itself
#[derive(Debug, Args)]
pub(super) struct RotateArgs {
    #[command(flatten)]
    keys: KeyArgs,
    /// Number of older keys that stay valid; tokens and URLs signed by other keys become invalid
    #[arg(long, value_name = "N", default_value_t = 1)]
    keep: usize,
    #[command(flatten)]
    note: NoteArgs,
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
    let dir = &args.keys.data_dir;
    // A token of keys that no server has is valid nowhere.
    if !is_store(dir).with_context(|| format!("cannot read the data directory {}", dir.display()))? {
        bail!("no store in {}; name its directory with --data-dir, or start zorb serve first", dir.display());
    }
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
    let ring = keys::ring(&args.keys.data_dir)?;
    let now = SystemClock.now().as_secs();
    let ttl = args.ttl.unwrap_or(if args.refresh { DEFAULT_REFRESH_TTL } else { DEFAULT_TTL });
    let expires_unix_secs = now.saturating_add(ttl.as_secs());
    let claims = Claims { scope, repo: args.repo, subject: args.subject, issued_unix_secs: now, expires_unix_secs };
    let made = if args.refresh {
        Read::Refresh(RefreshToken::new(claims, args.token_ttl.as_secs(), rand::random()))
    } else {
        Read::Access(Token::new(claims, rand::random()))
    };
    args.note.note(AuditLine {
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

/// A token of either kind, read.
enum Read {
    Access(Token),
    Refresh(RefreshToken),
}

impl Read {
    /// What a text says, and which key has signed it.
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

    const fn parent(&self) -> Option<TokenId> {
        match self {
            Self::Access(token) => token.parent,
            Self::Refresh(_) => None,
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

    fn issue(&self, ring: &KeyRing) -> SecretText {
        match self {
            Self::Access(token) => token.issue(ring),
            Self::Refresh(token) => token.issue(ring),
        }
    }
}

/// What was given for a token: itself, or `-` for one line of stdin.
fn given(text: String) -> anyhow::Result<String> {
    let text = if text == "-" {
        std::io::read_to_string(std::io::stdin()).context("cannot read the token from stdin")?
    } else {
        text
    };
    Ok(text.trim().to_owned())
}

fn inspect(args: InspectArgs) -> anyhow::Result<()> {
    let text = given(args.token)?;
    let dir = args.keys.data_dir.display().to_string();
    let ring = keys::read(&args.keys.data_dir)?.with_context(|| format!("no keys in {dir}"))?;
    let now = SystemClock.now().as_secs();
    let Some((key_id, token)) = Read::of(&ring, &text) else {
        bail!("not a token of the server in {dir}, or its key was removed")
    };
    let is_valid = match token {
        Read::Access(_) => check_token(&ring, &text, now).is_ok(),
        Read::Refresh(_) => check_refresh_token(&ring, &text, now).is_ok(),
    };
    let is_revoked = ring.is_revoked(token.id()) || token.parent().is_some_and(|parent| ring.is_revoked(parent));
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
    let left = claims.expires_unix_secs.saturating_sub(now);
    let life = match left {
        _ if is_revoked => "revoked".to_owned(),
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
    output.line(format_args!("valid    {life}"))?;
    match (is_valid, is_revoked) {
        (true, _) => Ok(()),
        (false, true) => bail!("the token is revoked; issue a new one"),
        (false, false) => bail!("the token has expired; issue a new one"),
    }
}

fn revoke(args: RevokeArgs) -> anyhow::Result<()> {
    let dir = args.keys.data_dir.display().to_string();
    // Nothing is made where there is no store.
    let ring = keys::read(&args.keys.data_dir)?.with_context(|| format!("no keys in {dir}"))?;
    let mut ids = Vec::new();
    for text in args.tokens {
        let text = given(text)?;
        let id = match Read::of(&ring, &text) {
            Some((_, token)) => token.id(),
            // Not what was given: it may be a token after all, of another server.
            None => text.parse::<TokenId>().context("cannot revoke")?,
        };
        ids.push(id);
    }
    for id in &ids {
        let token = Some(id.to_string());
        args.note.note(AuditLine { action: "zorb token revoke", token, ..AuditLine::default() })?;
    }
    let now = SystemClock.now().as_secs();
    keys::change(&args.keys.data_dir, |ring| {
        let ring = ring.with_context(|| format!("no keys in {dir}"))?;
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
    args.note.note(AuditLine { action: "zorb token rotate-key", ..AuditLine::default() })?;
    let ring = keys::change(&args.keys.data_dir, |ring| match ring {
        None => bail!("no keys in {} to rotate", args.keys.data_dir.display()),
        Some(ring) => {
            let rotated = ring.rotated(rand::random()).context("no key ids left")?;
            Ok(rotated.retaining(args.keep))
        }
    })?;
    let kept: Vec<_> = ring.ids().filter(|id| *id != ring.current_id()).map(|id| id.number()).collect();
    let output = Output::new(args.output);
    output.record(&json!({ "key": ring.current_id().number(), "retained": kept }))?;
    Ok(output.line(format_args!("key {} signs from now on; still valid: {kept:?}", ring.current_id()))?)
}

/// `90s`, `15m`, `1h`, `30d`.
fn parse_ttl(text: &str) -> Result<Duration, String> {
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
    fn a_life_has_a_number_a_unit_and_an_end() {
        for (text, secs) in [("1s", 1), ("90s", 90), ("15m", 900), ("1h", 3600), ("3660d", 3660 * 86400)] {
            assert_eq!(parse_ttl(text), Ok(Duration::from_secs(secs)), "{text}");
        }
        for text in ["", "1", "h", "-1h", "1.5h", "0s", "3661d", "1hh", "1w", "99999999999999999999d", "1 h", "é"] {
            assert!(parse_ttl(text).is_err(), "{text}");
        }
    }
}
