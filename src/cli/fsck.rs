//! `zorb fsck`: checks a store, and repairs what can be repaired.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;

use super::backup::{open_to_read, workers};
use super::collector::DeletionLock;
use super::output::{Output, OutputArgs};
use super::remote;
use super::store::{Progress, StoreArgs, advice, compare, index_path, open_read_only, try_lock};
use super::units::{Count, Size};
use crate::blob::BlobStore;
use crate::blob::fs::FsBlobStore;
use crate::format::{FileHash, XorbHash};
use crate::index::sqlite::SqliteIndex;
use crate::runtime::blocking::Pool;
use crate::runtime::clock::{Clock, SystemClock};
use crate::service::Tail;
use crate::service::archive::RepairTarget;
use crate::service::fsck::{Finding, Fsck, Kind, Outcome, Presence};

/// Hashes of lost xorbs that a record has, at most.
const NAMED_LOST_COUNT: usize = 10;

/// Damaged xorbs that are listed at once.
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

/// That the check could not be done, as opposed to: it found something.
#[derive(Clone, Copy, Debug)]
pub(super) struct CannotCheck;

impl fmt::Display for CannotCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the check did not complete")
    }
}

/// What `--json` prints for each finding.
#[derive(Debug, Serialize)]
struct FindingRecord<'a> {
    r#type: &'static str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    xorb: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    /// Some of the files that are hit.
    files: Vec<String>,
    file_count: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lost: Vec<String>,
    detail: &'a str,
    repair: &'static str,
    /// Missing without --repair.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
}

/// What it prints for each xorb that came from the archive.
#[derive(Debug, Serialize)]
struct RestoredRecord {
    r#type: &'static str,
    xorb: String,
}

/// What it prints at the end.
#[derive(Debug, Serialize)]
struct Summary {
    r#type: &'static str,
    xorbs: u64,
    files: u64,
    read_len: u64,
    findings: u64,
    restored: u64,
    left: u64,
    /// Whether no server was running.
    offline: bool,
}

/// What a run has found so far.
#[derive(Debug, Default)]
struct Tally {
    findings: u64,
    left: u64,
    restored: u64,
    /// Xorbs with findings that a backup can repair.
    damaged: HashSet<XorbHash>,
    /// Files that lack xorbs, and which.
    lacking: Vec<(FileHash, Vec<XorbHash>)>,
}

pub(super) fn run(args: FsckArgs) -> anyhow::Result<()> {
    let left = check(args, Arc::new(SystemClock)).context(CannotCheck)?;
    if left > 0 {
        bail!("{} left", Count(left, "finding"));
    }
    Ok(())
}

/// Returns how many findings are left.
pub(super) fn check(args: FsckArgs, clock: Arc<dyn Clock>) -> anyhow::Result<u64> {
    let output = Output::new(args.output);
    let data_dir = args.store.data_dir()?;
    let index_path = index_path(&data_dir)?;
    let archive = args.from.as_deref().map(open_to_read).transpose()?;
    // Held to the end.
    let lock = match try_lock(&data_dir) {
        Ok(lock) => lock,
        // Who may only read can check all the same.
        Err(_) if !args.repair => None,
        Err(error) => {
            return Err(error).with_context(|| format!("cannot lock the data directory {}", data_dir.display()));
        }
    };
    let presence = if lock.is_some() { Presence::Alone } else { Presence::Shared };
    if archive.is_some() && presence == Presence::Shared {
        bail!("a server runs on {}; stop it before restoring xorbs from an archive", data_dir.display());
    }
    let _deleting = if args.repair { Some(lock_deletions(&data_dir)?) } else { None };
    remote::run(async {
        // Also checks that the schema is the one that this program knows, and changes nothing.
        let mut index = open_read_only(&data_dir).await?;
        index.check_pages().await.map_err(|error| advice::explain(&data_dir, error.into()))?;
        let tail = compare(&data_dir, &index).await?;
        if args.repair {
            index.close().await;
            index = SqliteIndex::open(&index_path).await?;
        }
        let blobs: Arc<dyn BlobStore> = Arc::new(FsBlobStore::open_existing(&data_dir, Pool::new(8)));
        let fsck = Fsck {
            blobs,
            index: Arc::new(index.clone()),
            clock,
            pool: workers(),
            presence,
            is_deep: args.deep,
            trusts_clock: args.trust_clock,
        };
        let left = Box::pin(go_through(&fsck, &tail, args.repair, archive, &output)).await;
        index.close().await;
        left.map_err(|error| advice::explain(&data_dir, error))
    })
}

/// A repair deletes blobs, which one process at a time does. Nor must two repairs correct the
/// totals by the same amount.
fn lock_deletions(data_dir: &Path) -> anyhow::Result<DeletionLock> {
    let Some(lock) = DeletionLock::take(data_dir)? else {
        bail!("another process is running GC or a repair in {}; try again later", data_dir.display())
    };
    Ok(lock)
}

async fn go_through(
    fsck: &Fsck,
    tail: &Tail,
    repair: bool,
    archive: Option<File>,
    output: &Output,
) -> anyhow::Result<u64> {
    let mut tally = Tally::default();
    // Beside a server these are registrations that are under way.
    if fsck.presence == Presence::Alone && !tail.is_empty() {
        let finding = Finding::untaken(tail.len());
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
    let restored = match archive {
        Some(archive) => Box::pin(restore(fsck, archive, &mut tally, output)).await,
        None => Ok(()),
    };
    let offline = fsck.presence == Presence::Alone;
    output.record(&Summary {
        r#type: "summary",
        xorbs: seen.xorb_count,
        files: seen.file_count,
        read_len: seen.read_len,
        findings: tally.findings,
        restored: tally.restored,
        left: tally.left,
        offline,
    })?;
    let (xorbs, files, read) = (Count(seen.xorb_count, "xorb"), Count(seen.file_count, "file"), Size(seen.read_len));
    let (findings, left) = (Count(tally.findings, "finding"), tally.left);
    output.line(format_args!("{xorbs} and {files} checked, {read} read: {findings}, {left} left"))?;
    if !offline {
        output.line("a server is running: blobs and rows of uploads in flight were not checked")?;
    }
    restored?;
    Ok(tally.left)
}

/// Takes from the archive what is damaged or lost.
async fn restore(fsck: &Fsck, archive: File, tally: &mut Tally, output: &Output) -> anyhow::Result<()> {
    let mut wanted: HashSet<XorbHash> = tally.lacking.iter().flat_map(|(_, lost)| lost).copied().collect();
    let mut after = None;
    loop {
        let page = fsck.index.damaged_after(after, PAGE_COUNT).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.hash);
        wanted.extend(page.iter().map(|xorb| xorb.hash));
    }
    let target = RepairTarget {
        blobs: Arc::clone(&fsck.blobs),
        index: Arc::clone(&fsck.index),
        clock: Arc::clone(&fsck.clock),
        pool: fsck.pool.clone(),
    };
    let restored = target.heal(archive, wanted, Progress::new(output, "restore")).await.context(
        "cannot restore xorbs \
        from the archive",
    )?;
    for xorb in &restored {
        tally.restored += 1;
        tally.left -= u64::from(tally.damaged.remove(xorb));
        output.record(&RestoredRecord { r#type: "restored", xorb: xorb.to_string() })?;
        output.line(format_args!("restored: xorb {xorb}"))?;
    }
    let restored: HashSet<XorbHash> = restored.into_iter().collect();
    for (file, lost) in &tally.lacking {
        // Its references could not name what was not there.
        fsck.index.rebuild_references(*file).await?;
        tally.left -= u64::from(lost.iter().all(|xorb| restored.contains(xorb)));
    }
    Ok(())
}

impl Tally {
    fn count(&mut self, finding: &Finding, outcome: Option<Outcome>) {
        self.findings += 1;
        if outcome == Some(Outcome::Repaired) {
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
    let hit = if xorb.is_some() && files.count > 0 {
        format!("; {} affected", Count(files.count, "file"))
    } else {
        String::new()
    };
    let then = match outcome {
        Some(Outcome::Repaired) => "repaired".to_owned(),
        Some(Outcome::Quarantined) => "quarantined".to_owned(),
        Some(Outcome::Left) => format!("not repaired: {}", repair.as_str()),
        Some(Outcome::NeedsAlone) => "not repaired: stop the server first".to_owned(),
        None => format!("{} with --repair", repair.as_str()),
    };
    output.line(format_args!("{}: {what}{detail}{hit} ({then})", kind.as_str()))?;
    for hash in files.files.iter().filter(|_| xorb.is_some()) {
        output.line(format_args!("  file {hash}"))?;
    }
    Ok(())
}
