//! `zorb fsck`: checks a store, and repairs what it finds with `--repair`.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;

use super::backup::{open_to_read, worker_count};
use super::collector::DeletionLock;
use super::output::{Output, OutputArgs};
use super::remote;
use super::store::{Membership, Progress, StoreArgs, advice, compare, settings_over, try_lock};
use super::units::{Count, Size};
use crate::format::{FileHash, XorbHash};
use crate::index::Index;
use crate::runtime::clock::{Clock, SystemClock};
use crate::service::fsck::{Finding, Fsck, Kind, Outcome, Presence, Repair};
use crate::service::{Settings, Store, Tail};

/// Maximum number of hashes of lost xorbs in a record.
const NAMED_LOST_COUNT: usize = 10;

/// Maximum number of damaged xorbs that one query returns.
const PAGE_COUNT: u32 = 500;

/// Check a store: rows against blobs, blobs against rows, references against the terms of files.
///
/// A server may be running; if none is, none can be started during the check. Without --repair
/// nothing is changed. Some repairs need the server to be stopped and are skipped otherwise.
///
/// Exit codes: 0 nothing is wrong, or everything was repaired; 1 findings are left; 2 the check
/// failed or did not complete.
#[derive(Debug, Args)]
pub(super) struct FsckArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Repair the findings
    #[arg(long)]
    repair: bool,
    /// Reset times in the future to now; use it only after checking that this machine's clock is
    /// right
    #[arg(long, requires = "repair")]
    trust_clock: bool,
    /// Read every blob and verify every hash, not only the lengths
    #[arg(long)]
    deep: bool,
    /// Restore damaged or lost xorbs from this backup; the server must be stopped
    #[arg(long, value_name = "ARCHIVE", requires = "repair")]
    from: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Context of an error that kept the check from completing. The exit code is then 2; findings that
/// are left give 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct CannotCheck;

impl fmt::Display for CannotCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the check did not complete")
    }
}

/// The record of each finding with `--json`.
#[derive(Debug, Serialize)]
struct FindingRecord<'a> {
    r#type: &'static str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    xorb: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    /// Some of the affected files.
    files: Vec<String>,
    /// Number of all affected files.
    file_count: u64,
    /// Some of the lost xorbs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lost: Vec<String>,
    detail: &'a str,
    repair: &'static str,
    /// Absent without `--repair`.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
}

/// The record of each xorb that was restored from the archive.
#[derive(Debug, Serialize)]
struct RestoredRecord {
    r#type: &'static str,
    xorb: String,
}

/// The last record with `--json`.
#[derive(Debug, Serialize)]
struct Summary {
    r#type: &'static str,
    xorbs: u64,
    files: u64,
    repositories: u64,
    read_len: u64,
    findings: u64,
    restored: u64,
    left: u64,
    /// Whether the check held the lock of the data directory, so that no server was running.
    offline: bool,
}

/// The results of a run so far.
#[derive(Debug, Default)]
struct Tally {
    findings: u64,
    /// Findings that were not repaired.
    left: u64,
    /// Xorbs that were restored from the archive.
    restored: u64,
    /// Xorbs that are left damaged and that an archive may restore.
    damaged: HashSet<XorbHash>,
    /// Files that are left with lost xorbs, and the lost xorbs of each.
    lacking: Vec<(FileHash, Vec<XorbHash>)>,
}

pub(super) fn run(args: FsckArgs) -> anyhow::Result<()> {
    let left = check(args, Arc::new(SystemClock)).context(CannotCheck)?;
    if left > 0 {
        bail!("{} left", Count(left, "finding"));
    }
    Ok(())
}

/// Runs the check; returns how many findings are left.
pub(super) fn check(args: FsckArgs, clock: Arc<dyn Clock>) -> anyhow::Result<u64> {
    let output = Output::new(args.output);
    let location = args.store.location()?;
    location.check_index()?;
    let data_dir = &location.data_dir;
    let archive = args.from.as_deref().map(open_to_read).transpose()?;
    // Held to the end of the check, so that no server can start during it.
    let lock = match try_lock(data_dir) {
        Ok(lock) => lock,
        // A user without write permission cannot take the lock, but can check without `--repair`.
        Err(_) if !args.repair => None,
        Err(error) => {
            return Err(error).with_context(|| format!("cannot lock the data directory {}", data_dir.display()));
        }
    };
    // A check that only reads does not take the lock of a bucket, so a server may be running.
    let is_alone = lock.is_some() && (args.repair || location.shared_database().is_none());
    let presence = if is_alone { Presence::Alone } else { Presence::Shared };
    if archive.is_some() && presence == Presence::Shared {
        bail!("a server runs on {}; stop it before restoring xorbs from an archive", data_dir.display());
    }
    let _deleting = if args.repair { Some(lock_deletions(data_dir)?) } else { None };
    let work = async |membership: Option<Membership>| {
        // Opened read-only first, because that fails for a schema that this program does not
        // support, and never migrates the index.
        let mut index = location.open_as(membership.as_ref()).await?;
        index.check_pages().await.map_err(|error| advice::explain(&location, error.into()))?;
        let tail = compare(&location, &index).await?;
        if args.repair {
            index = location.reopen_to_write(index).await?;
        }
        let (settings, shared) = (settings_over(&location, &index, clock, 8)?, index.shared());
        let store = Store::new(&Settings { verify_worker_count: worker_count(), ..settings });
        let fsck = Fsck { store, presence, is_deep: args.deep, trusts_clock: args.trust_clock };
        let from = archive.map(|archive| (archive, shared.as_ref()));
        let left = Box::pin(check_all(&fsck, &tail, args.repair, from, &output)).await;
        index.close().await;
        left.map_err(|error| advice::explain(&location, error))
    };
    remote::run(async { if args.repair { Box::pin(location.changing(work)).await } else { work(None).await } })
}

/// Locks `gc.lock`, because a repair deletes blobs and only one process at a time may do that. The
/// lock also keeps two repairs from both correcting the totals.
fn lock_deletions(data_dir: &Path) -> anyhow::Result<DeletionLock> {
    let Some(lock) = DeletionLock::take(data_dir)? else {
        bail!("another process is running GC or a repair in {}; try again later", data_dir.display())
    };
    Ok(lock)
}

/// Checks the whole store, prints each finding, and executes its repair if `repair` is set. Then
/// restores xorbs from the archive `from`, if given. Returns how many findings are left.
async fn check_all(
    fsck: &Fsck,
    tail: &Tail,
    repair: bool,
    from: Option<(File, &dyn Index)>,
    output: &Output,
) -> anyhow::Result<u64> {
    let mut tally = Tally::default();
    // The tail is the list of records that the index has not applied. While a server runs, they
    // are registrations under way, so they are no finding.
    if fsck.presence == Presence::Alone && !tail.is_empty() {
        let finding = Finding::unapplied(tail.len());
        let outcome = if repair { Some(fsck.execute(&finding).await?) } else { None };
        tally.count(&finding, outcome);
        print(&finding, outcome, output)?;
    }
    let mut walk = fsck.walk();
    while let Some(findings) = walk.next_findings().await? {
        for finding in findings {
            let outcome = if repair { Some(fsck.execute(&finding).await?) } else { None };
            tally.count(&finding, outcome);
            print(&finding, outcome, output)?;
        }
    }
    let seen = walk.seen();
    // An error of the restore is returned only after the summary was printed.
    let restored = match from {
        Some(from) => Box::pin(restore(fsck, from, &mut tally, output)).await,
        None => Ok(()),
    };
    let offline = fsck.presence == Presence::Alone;
    output.record(&Summary {
        r#type: "summary",
        xorbs: seen.xorb_count,
        files: seen.file_count,
        repositories: seen.repo_count,
        read_len: seen.read_len,
        findings: tally.findings,
        restored: tally.restored,
        left: tally.left,
        offline,
    })?;
    let (xorbs, files, read) = (Count(seen.xorb_count, "xorb"), Count(seen.file_count, "file"), Size(seen.read_len));
    let (findings, left) = (Count(tally.findings, "finding"), tally.left);
    output.line(format_args!("{xorbs} and {files} checked, {read} read: {findings}, {left} unrepaired"))?;
    if !offline {
        output.line("a server is running: blobs and rows of uploads in flight were not checked")?;
    }
    restored?;
    Ok(tally.left)
}

/// Restores damaged and lost xorbs from the archive, and counts the repaired findings.
async fn restore(
    fsck: &Fsck,
    (archive, index): (File, &dyn Index),
    tally: &mut Tally,
    output: &Output,
) -> anyhow::Result<()> {
    // The lost xorbs of the findings, and every xorb that the index lists as damaged.
    let mut wanted: HashSet<XorbHash> = tally.lacking.iter().flat_map(|(_, lost)| lost).copied().collect();
    let mut after = None;
    loop {
        let page = index.damaged_after(after, PAGE_COUNT).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.hash);
        wanted.extend(page.iter().map(|xorb| xorb.hash));
    }
    let watch = Progress::new(output, "restore");
    let restored = fsck.store.heal_from(archive, wanted, watch).await;
    let restored = restored.context("cannot restore xorbs from the archive")?;
    for xorb in &restored {
        tally.restored += 1;
        tally.left -= u64::from(tally.damaged.remove(xorb));
        output.record(&RestoredRecord { r#type: "restored", xorb: xorb.to_string() })?;
        output.line(format_args!("restored: xorb {xorb}"))?;
    }
    let restored: HashSet<XorbHash> = restored.into_iter().collect();
    for (file, lost) in &tally.lacking {
        // The index only has references to stored xorbs. So the references to the lost xorbs were
        // missing until now.
        index.rebuild_references(*file).await?;
        tally.left -= u64::from(lost.iter().all(|xorb| restored.contains(xorb)));
    }
    Ok(())
}

impl Tally {
    /// Counts a finding, and remembers the xorbs of one that was not repaired.
    fn count(&mut self, finding: &Finding, outcome: Option<Outcome>) {
        self.findings += 1;
        if outcome == Some(Outcome::Repaired) {
            let adopted = finding.blob.filter(|_| finding.repair == Repair::Adopt);
            // An earlier finding was that the xorb lacks its blob.
            self.left -= u64::from(adopted.is_some_and(|blob| self.damaged.remove(&blob.xorb_hash())));
            return;
        }
        self.left += 1;
        match (finding.kind, finding.xorb, finding.file) {
            (Kind::MissingBlob | Kind::WrongLength | Kind::WrongBytes | Kind::WrongRow, Some(xorb), _) => {
                self.damaged.insert(xorb);
            }
            (Kind::LostXorbs, _, Some(file)) => self.lacking.push((file, finding.lost.clone())),
            _ => {}
        }
    }
}

/// Prints a finding, and the outcome of its repair if there was one.
fn print(finding: &Finding, outcome: Option<Outcome>, output: &Output) -> anyhow::Result<()> {
    let Finding { kind, xorb, file, files, lost, detail, repair, .. } = finding;
    let text = |hash: &FileHash| hash.to_string();
    output.record(&FindingRecord {
        r#type: "finding",
        kind: kind.as_str(),
        xorb: xorb.as_ref().map(ToString::to_string),
        file: file.as_ref().map(text),
        files: files.files.iter().map(text).collect(),
        file_count: files.count,
        lost: lost.iter().take(NAMED_LOST_COUNT).map(ToString::to_string).collect(),
        detail,
        repair: repair.as_str(),
        outcome: outcome.map(Outcome::as_str),
    })?;
    let what = match (xorb, file) {
        (Some(xorb), _) => format!("xorb {xorb}: "),
        (None, Some(file)) => format!("file {file}: "),
        (None, None) => String::new(),
    };
    let affected = if xorb.is_some() && files.count > 0 {
        format!("; {} affected", Count(files.count, "file"))
    } else {
        String::new()
    };
    let conclusion = match outcome {
        Some(Outcome::Repaired) => "repaired".to_owned(),
        Some(Outcome::Quarantined) => "quarantined".to_owned(),
        Some(Outcome::Left) => format!("not repaired: {}", repair.as_str()),
        Some(Outcome::NeedsAlone) => "not repaired: stop the server first".to_owned(),
        None if repair.is_by_hand() => repair.as_str().to_owned(),
        None => format!("{} with --repair", repair.as_str()),
    };
    output.line(format_args!("{}: {what}{detail}{affected} ({conclusion})", kind.as_str()))?;
    for hash in files.files.iter().filter(|_| xorb.is_some()) {
        output.line(format_args!("  file {hash}"))?;
    }
    Ok(())
}
