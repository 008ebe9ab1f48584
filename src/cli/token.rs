//! `zorb token`: tokens for a server, made from the keys in its data folder.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::keys;
use super::output::{Output, OutputArgs, write_stdout};
use crate::http::audit::AuditLine;
use crate::runtime::clock::{Clock, SystemClock};
use crate::runtime::journal::append_one;
use crate::service::access::{Claims, RepoScope, Scope, Subject, check_token, inspect_token};

/// Longest life of a token. Nobody can take a token back but by dropping the key that signed it.
const MAX_TTL: Duration = Duration::from_secs(3660 * 24 * 3600);

/// Make and look into tokens
#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    Issue(IssueArgs),
    Inspect(InspectArgs),
    RotateKey(RotateArgs),
}

/// Where the keys are.
#[derive(Debug, Args)]
struct KeyArgs {
    /// Data folder of the server
    #[arg(long, env = "ZORB_DATA_DIR", value_name = "DIR", default_value = "./zorb-data")]
    data_dir: PathBuf,
}

/// Where it is noted that this was done.
#[derive(Debug, Args)]
struct NoteArgs {
    /// Audit log to note this in; where it cannot be noted, it is not done
    #[arg(long, env = "ZORB_AUDIT_LOG", value_name = "FILE")]
    audit_log: Option<String>,
}

impl NoteArgs {
    fn note(self, line: AuditLine<'_>) -> anyhow::Result<()> {
        // The stdout of a server is not that of this command, which may be for a token and nothing else.
        let Some(path) = self.audit_log.filter(|path| !path.is_empty() && path != "stdout") else { return Ok(()) };
        let line = AuditLine { time: AuditLine::time(SystemClock.now()), ..line };
        append_one(Path::new(&path), &line.render()).with_context(|| format!("cannot append to the audit log {path}"))
    }
}

/// Print a new token, and nothing else, on stdout
#[derive(Debug, Args)]
pub(super) struct IssueArgs {
    #[command(flatten)]
    keys: KeyArgs,
    /// What it allows; each includes those before it
    #[arg(long)]
    scope: ScopeArg,
    /// Repository that it is for, like models/owner/name; * for all
    #[arg(long, value_name = "REPO")]
    repo: RepoScope,
    /// How long it is valid: a number and s, m, h or d
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_ttl)]
    ttl: Duration,
    /// Who it is for; shows up in logs
    #[arg(long, value_name = "NAME")]
    subject: Option<Subject>,
    #[command(flatten)]
    note: NoteArgs,
}

/// Show what a token says, and whether it is valid
#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    #[command(flatten)]
    keys: KeyArgs,
    /// The token; - reads it from stdin, so that it does not show up in a list of processes
    token: String,
    #[command(flatten)]
    output: OutputArgs,
}

/// Make a new key that signs from now on; a running server takes it up by itself
#[derive(Debug, Args)]
pub(super) struct RotateArgs {
    #[command(flatten)]
    keys: KeyArgs,
    /// Older keys to keep; what others have signed is void: tokens, and URLs that were handed out
    #[arg(long, value_name = "N", default_value_t = 1)]
    keep: usize,
    #[command(flatten)]
    note: NoteArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ScopeArg {
    /// Reading files
    Read,
    /// Uploading, too
    Write,
    /// Running the server, too
    Admin,
}

pub(super) fn run(command: TokenCommand) -> anyhow::Result<()> {
    match command {
        TokenCommand::Issue(args) => issue(args),
        TokenCommand::Inspect(args) => inspect(args),
        TokenCommand::RotateKey(args) => rotate(args),
    }
}

fn issue(args: IssueArgs) -> anyhow::Result<()> {
    let ring = keys::ring(&args.keys.data_dir)?;
    let now = SystemClock.now().as_secs();
    let claims = Claims {
        scope: match args.scope {
            ScopeArg::Read => Scope::Read,
            ScopeArg::Write => Scope::Write,
            ScopeArg::Admin => Scope::Admin,
        },
        repo: args.repo,
        subject: args.subject,
        issued_unix_secs: now,
        expires_unix_secs: now.saturating_add(args.ttl.as_secs()),
    };
    args.note.note(AuditLine {
        action: "zorb token issue",
        repo: Some(claims.repo.to_string()),
        subject: claims.subject.as_ref().map(ToString::to_string),
        scope: Some(claims.scope.to_string()),
        ..AuditLine::default()
    })?;
    let token = claims.issue(&ring);
    Ok(write_stdout(|stdout| writeln!(stdout, "{}", token.expose()))?)
}

fn inspect(args: InspectArgs) -> anyhow::Result<()> {
    let token = if args.token == "-" {
        std::io::read_to_string(std::io::stdin()).context("cannot read the token from stdin")?
    } else {
        args.token
    };
    let dir = args.keys.data_dir.display().to_string();
    let ring = keys::read(&args.keys.data_dir)?.with_context(|| format!("there are no keys in {dir}"))?;
    let now = SystemClock.now().as_secs();
    let Ok((key_id, claims)) = inspect_token(&ring, token.trim()) else {
        bail!("this is not a token of the server in {dir}, or its key was dropped")
    };
    let is_valid = check_token(&ring, token.trim(), now).is_ok();
    let output = Output::new(args.output);
    let subject = claims.subject.as_ref().map(ToString::to_string);
    output.record(&json!({
        "valid": is_valid,
        "scope": claims.scope.to_string(),
        "repo": claims.repo.to_string(),
        "subject": subject,
        "issued_unix_secs": claims.issued_unix_secs,
        "expires_unix_secs": claims.expires_unix_secs,
        "key": key_id.number(),
    }))?;
    let left = claims.expires_unix_secs.saturating_sub(now);
    let life = if left > 0 { format!("for {left} s more") } else { "expired".to_owned() };
    output.line(format_args!("scope    {}", claims.scope))?;
    output.line(format_args!("repo     {}", claims.repo))?;
    output.line(format_args!("subject  {}", subject.as_deref().unwrap_or("-")))?;
    output.line(format_args!("key      {key_id}"))?;
    output.line(format_args!("valid    {life}"))?;
    if is_valid { Ok(()) } else { bail!("the token has expired; issue a new one") }
}

fn rotate(args: RotateArgs) -> anyhow::Result<()> {
    args.note.note(AuditLine { action: "zorb token rotate-key", ..AuditLine::default() })?;
    let ring = keys::change(&args.keys.data_dir, |ring| match ring {
        None => bail!("there are no keys in {} to rotate", args.keys.data_dir.display()),
        Some(ring) => {
            let rotated = ring.rotated(rand::random()).context("the numbers for keys are used up")?;
            Ok(rotated.retaining(args.keep))
        }
    })?;
    let kept: Vec<_> = ring.ids().filter(|id| *id != ring.current_id()).map(|id| id.number()).collect();
    let output = Output::new(args.output);
    output.record(&json!({ "key": ring.current_id().number(), "kept": kept }))?;
    Ok(output.line(format_args!("key {} signs from now on; still valid: {kept:?}", ring.current_id()))?)
}

/// `90s`, `15m`, `1h`, `30d`.
fn parse_ttl(text: &str) -> Result<Duration, String> {
    let wrong = || "a number and s, m, h or d is wanted, like 15m".to_owned();
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
    ttl.ok_or_else(|| format!("it is between 1s and {}d", MAX_TTL.as_secs() / (24 * 3600)))
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
