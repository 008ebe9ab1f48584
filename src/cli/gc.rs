//! `zorb gc`: collects garbage, or says what a collection would do.
//!
//! Works on the data folder, with or without a server there. That is safe because every change of a row is one
//! statement that checks all it depends on, so that it does not matter which process makes it; because a blob is only
//! deleted under a row that says so, while one process at a time deletes blobs (`collector.rs`); and because a server
//! looks every second whether something that it may have in memory has become invisible.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;

use super::collector::{DeletionLock, policy, prune};
use super::output::{Output, OutputArgs};
use super::remote;
use super::store::StoreArgs;
use super::units::{Count, Size};
use crate::blob::fs::FsBlobStore;
use crate::blob::records::fs::FsRecordStore;
use crate::config::{CollectionConfig, Config};
use crate::index::sqlite::SqliteIndex;
use crate::runtime::blocking::Pool;
use crate::runtime::clock::{SystemClock, Timestamp};
use crate::runtime::metrics::Metrics;
use crate::runtime::telemetry::chain;
use crate::service::gc::{Action, Collected, CollectionPlan, Pace, PlannedXorb, Tally};
use crate::service::{Budget, Cas};

/// Collect garbage: delete xorbs that no file needs.
///
/// A xorb goes in two steps. When no file has needed it and no client has asked for it for the grace, which is 21 days
/// or more, it is condemned; a day later, if nobody has come for it, it is deleted. A server does this by itself every
/// hour; this does it now, whether one runs on the folder or not. Where anything is not understood, nothing is done and
/// the exit code is 1.
#[derive(Debug, Args)]
pub(super) struct GcArgs {
    /// Change nothing; print what would become of which xorb and why
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A line of `--dry-run --json`.
#[derive(Debug, Serialize)]
struct PlannedRecord {
    xorb: String,
    serialized_len: u64,
    /// `condemn`, `delete`, `finish` or `abandon`.
    action: &'static str,
    /// Since when the reason holds, in seconds since 1970.
    since_unix_secs: u64,
    reason: &'static str,
}

/// The last line of `--dry-run --json`.
#[derive(Debug, Serialize)]
struct PlanRecord {
    freed_now: TallyRecord,
    freed_later: TallyRecord,
    kept: KeptRecord,
}

#[derive(Debug, Serialize)]
struct KeptRecord {
    referenced: TallyRecord,
    in_grace: TallyRecord,
    leased: TallyRecord,
    condemned: TallyRecord,
    staged: TallyRecord,
    left_off: TallyRecord,
}

#[derive(Debug, Serialize)]
struct TallyRecord {
    xorbs: u64,
    serialized_len: u64,
}

/// What `--json` prints without `--dry-run`.
#[derive(Debug, Serialize)]
struct CollectedRecord {
    condemned: TallyRecord,
    deleted: TallyRecord,
    spared: u64,
    failed: u64,
}

impl From<Tally> for TallyRecord {
    fn from(tally: Tally) -> Self {
        Self { xorbs: tally.count, serialized_len: tally.serialized_len }
    }
}

pub(super) fn run(args: GcArgs) -> anyhow::Result<()> {
    let output = Output::new(args.output);
    let raw = args.store.raw()?;
    let config = CollectionConfig::new(&raw)?;
    let data_dir = Config::data_dir_of(raw.data_dir);
    let index_path = data_dir.join("index.sqlite");
    if !index_path.is_file() {
        bail!("there is no store in {}; name its folder with --data-dir", data_dir.display());
    }
    let lock = if args.dry_run { None } else { Some(lock(&data_dir)?) };
    let done = remote::run(async {
        // This neither makes an index nor brings one up to date: a server of another version may be using it.
        let index = SqliteIndex::open_read_only(&index_path).await;
        let mut index = index.context("cannot read the store; run this as the user that serves it")?;
        if !args.dry_run {
            index.close().await;
            index = SqliteIndex::open(&index_path).await?;
        }
        let done = collect(index.clone(), &config, &data_dir, args.dry_run, &output).await;
        index.close().await;
        done
    });
    // Until here, also where a signal has ended it: a blob that is being deleted at that moment is by now.
    drop(lock);
    done
}

fn lock(data_dir: &Path) -> anyhow::Result<DeletionLock> {
    let lock = DeletionLock::take(data_dir)?;
    lock.with_context(|| format!("another process deletes blobs in {} at the moment; try again", data_dir.display()))
}

async fn collect(
    index: SqliteIndex,
    config: &CollectionConfig,
    data_dir: &Path,
    is_dry: bool,
    output: &Output,
) -> anyhow::Result<()> {
    let blobs = FsBlobStore::open_existing(data_dir, Pool::new(1));
    let budget = Budget { upload_count: 1, verify_worker_count: 1, layout_cache_len: 0 };
    let (clock, metrics) = (Arc::new(SystemClock), Arc::new(Metrics::new()));
    let records = FsRecordStore::open_existing(data_dir, Pool::new(1));
    let cas = Cas::new(Arc::new(blobs), Arc::new(records), Arc::new(index), clock, metrics, budget);
    let plan = cas.plan_collection(policy(config)?).await.context("nothing was done, out of doubt")?;
    if is_dry {
        return print_plan(&plan, output);
    }
    let collected = cas.collect(plan, &Pace::default()).await;
    if collected.deleted.count > 0 {
        prune(&cas, Duration::ZERO).await.context("garbage was collected, but records of it could not be removed")?;
    }
    report(&collected, output)
}

fn print_plan(plan: &CollectionPlan, output: &Output) -> anyhow::Result<()> {
    for xorb in plan.xorbs() {
        let record = planned_record(xorb);
        output.line(format_args!("{}  {:>10}  {}", record.xorb, Size(record.serialized_len), sentence(&record)))?;
        output.record(&record)?;
    }
    let kept = plan.kept();
    output.record(&PlanRecord {
        freed_now: plan.freed_now().into(),
        freed_later: plan.freed_later().into(),
        kept: KeptRecord {
            referenced: kept.referenced.into(),
            in_grace: kept.in_grace.into(),
            leased: kept.leased.into(),
            condemned: kept.condemned.into(),
            staged: kept.staged.into(),
            left_off: kept.left_off.into(),
        },
    })?;
    for (tally, why) in [
        (kept.referenced, "files need it"),
        (kept.in_grace, "it was asked for, or lost its last file, within the grace"),
        (kept.leased, "it is promised to a client"),
        (kept.condemned, "it is condemned, and its time is not over"),
        (kept.staged, "it is being published"),
        (kept.left_off, "it would go, but the plan is full"),
    ] {
        if tally.count > 0 {
            output.line(format_args!("stays: {}, because {why}", shown(tally)))?;
        }
    }
    let (now, later) = (shown(plan.freed_now()), shown(plan.freed_later()));
    output.line(format_args!("would come back now: {now}; later, if nobody comes for it: {later}"))?;
    Ok(())
}

fn planned_record(xorb: &PlannedXorb) -> PlannedRecord {
    let (action, since, reason): (_, Timestamp, _) = match xorb.action {
        Action::Condemn { idle_since } => ("condemn", idle_since, "no file needs it, and nobody has asked for it"),
        Action::Delete { condemned_since } => {
            ("delete", condemned_since, "it was condemned, and nobody has come for it")
        }
        Action::Finish { deleting_since } => ("finish", deleting_since, "its deletion was not finished"),
        Action::Abandon { staged_since } => ("abandon", staged_since, "its upload was not finished"),
    };
    PlannedRecord {
        xorb: xorb.hash.to_string(),
        serialized_len: xorb.serialized_len,
        action,
        since_unix_secs: since.as_secs(),
        reason,
    }
}

fn sentence(record: &PlannedRecord) -> String {
    let at = UNIX_EPOCH + Duration::from_secs(record.since_unix_secs);
    format!("{}: {} since {}", record.action, record.reason, httpdate::fmt_http_date(at))
}

fn shown(tally: Tally) -> String {
    format!("{}, {}", Count(tally.count, "xorb"), Size(tally.serialized_len))
}

fn report(collected: &Collected, output: &Output) -> anyhow::Result<()> {
    output.record(&CollectedRecord {
        condemned: collected.condemned.into(),
        deleted: collected.deleted.into(),
        spared: collected.spared,
        failed: collected.failed,
    })?;
    let (condemned, deleted) = (shown(collected.condemned), shown(collected.deleted));
    output.line(format_args!("condemned: {condemned}; deleted: {deleted}"))?;
    if let Some(error) = &collected.failure {
        let failed = Count(collected.failed, "xorb");
        bail!("{failed} could not be collected, the next run tries again: {}", chain(error));
    }
    Ok(())
}
