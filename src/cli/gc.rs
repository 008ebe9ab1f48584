//! `zorb gc`: runs GC, or prints what a run would do.
//!
//! The command works on the data directory. A server may be running there, which is safe for three
//! reasons:
//!
//! * Every change of a row is one statement that checks all its conditions. So the database decides
//!   races between processes.
//! * A blob is only deleted while its row is in the state Deleting, by one process at a time
//!   (`collector.rs`).
//! * A server caches the layouts of xorbs. It checks every second whether another process has made
//!   a xorb invisible, and then forgets the layouts.

mod compact;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::collector::{DeletionLock, min_live, policy, prune};
use super::output::{Output, OutputArgs};
use super::remote;
use super::store::{
    Membership, StoreArgs, StoreIndex, StoreLocation, advice, check_all_applied, location_of, settings_over,
};
use super::units::{Count, Size};
use crate::config::{CollectionConfig, Config};
use crate::runtime::clock::{Clock, SystemClock, Timestamp};
use crate::service::gc::compact::{Compacted, CompactionPlan, MinLive};
use crate::service::gc::{Action, Collected, CollectionPlan, GcAbort, Pace, PlannedXorb, Policy, Tally};
use crate::service::{Settings, Store};

/// Run garbage collection (GC): delete xorbs that no file needs.
///
/// GC deletes a xorb in two steps. A xorb that no file has referenced and no client has used for
/// gc_grace (21 days or more) is condemned. A condemned xorb that is still unused after
/// gc_delete_delay (a day) is deleted. A server runs GC every hour; this command runs it now, with
/// or without a server on the data directory. If GC finds an inconsistency, it aborts, deletes
/// nothing, and the exit code is 1.
#[derive(Debug, Args)]
pub(super) struct GcArgs {
    /// Change nothing; print the planned action for each xorb and the reason
    #[arg(long)]
    dry_run: bool,
    /// Afterwards rewrite xorbs of which files need little; this needs disk space now and frees
    /// more after the grace period
    #[arg(long)]
    compact: bool,
    /// Fraction of its bytes below which a xorb is rewritten, more than 0 and at most 1 [default:
    /// gc_min_live, or 0.5]
    #[arg(long, value_name = "SHARE", requires = "compact", value_parser = compact::parse_share)]
    min_live: Option<MinLive>,
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
    /// The time since which the reason holds, in seconds since 1970.
    since_unix_secs: u64,
    reason: &'static str,
}

/// The last line of `--dry-run --json`.
#[derive(Debug, Serialize)]
struct PlanRecord {
    freed_now: TallyRecord,
    freed_later: TallyRecord,
    retained: RetainedRecord,
    /// Absent without `--compact`.
    #[serde(skip_serializing_if = "Option::is_none")]
    compaction: Option<compact::PlanRecord>,
}

/// The xorbs that GC would not touch, by reason.
#[derive(Debug, Serialize)]
struct RetainedRecord {
    referenced: TallyRecord,
    in_grace: TallyRecord,
    leased: TallyRecord,
    condemned: TallyRecord,
    staged: TallyRecord,
    over_plan_limit: TallyRecord,
}

/// A number of xorbs, and their total stored length.
#[derive(Debug, Serialize)]
struct TallyRecord {
    xorbs: u64,
    serialized_len: u64,
}

/// The record with `--json` and without `--dry-run`.
#[derive(Debug, Serialize)]
struct CollectedRecord {
    condemned: TallyRecord,
    deleted: TallyRecord,
    replaced: TallyRecord,
    spared: u64,
    failed: u64,
    /// Absent without `--compact`.
    #[serde(skip_serializing_if = "Option::is_none")]
    compaction: Option<compact::CompactedRecord>,
}

impl From<Tally> for TallyRecord {
    fn from(tally: Tally) -> Self {
        Self { xorbs: tally.count, serialized_len: tally.serialized_len }
    }
}

/// The settings of a run.
struct Job {
    policy: Policy,
    /// `None` without compaction.
    min_live: Option<MinLive>,
    min_free_len: u64,
    is_dry: bool,
}

pub(super) fn run(args: GcArgs) -> anyhow::Result<()> {
    run_at(args, &(Arc::new(SystemClock) as Arc<dyn Clock>))
}

/// Runs the command with this clock. Tests pass one that they set.
pub(super) fn run_at(args: GcArgs, clock: &Arc<dyn Clock>) -> anyhow::Result<()> {
    let output = Output::new(args.output);
    let raw = args.store.raw()?;
    let config = CollectionConfig::new(&raw)?;
    let job = Job {
        policy: policy(&config)?,
        min_live: args.compact.then(|| args.min_live.or(min_live(&config)).unwrap_or(compact::default_share())),
        min_free_len: Config::min_free_len_of(raw.min_free_space),
        is_dry: args.dry_run,
    };
    let location = location_of(&raw)?;
    location.check_index()?;
    let lock = if job.is_dry { None } else { Some(lock(&location.data_dir)?) };
    let work = async |membership: Option<Membership>| {
        // Opened read-only first, because that fails for a schema of another version instead of
        // migrating it: a server of that version may be using the index.
        let mut index = location.open_as(membership.as_ref()).await?;
        if !job.is_dry {
            index = location.reopen_to_write(index).await?;
        }
        let done = Box::pin(collect(&index, &job, &location, Arc::clone(clock), &output)).await;
        index.close().await;
        done.map_err(|error| advice::explain(&location, error))
    };
    let done =
        remote::run(async { if job.is_dry { work(None).await } else { Box::pin(location.changing(work)).await } });
    // After a signal, too, `remote::run` returns only when a deletion in progress has ended. So the
    // lock covers every deletion.
    drop(lock);
    done
}

/// Locks `gc.lock`. Fails if another process holds it.
fn lock(data_dir: &Path) -> anyhow::Result<DeletionLock> {
    let lock = DeletionLock::take(data_dir)?;
    lock.with_context(|| format!("another process is running GC in {}; try again later", data_dir.display()))
}

/// Plans GC, then prints the plan or executes it, with compaction after it if requested.
async fn collect(
    index: &StoreIndex,
    job: &Job,
    location: &StoreLocation,
    clock: Arc<dyn Clock>,
    output: &Output,
) -> anyhow::Result<()> {
    let settings = settings_over(location, index, clock, 1)?;
    let store = Store::new(&Settings { min_free_len: job.min_free_len, ..settings });
    let plan = match store.plan_collection(job.policy).await {
        Err(GcAbort::Gap(gap)) => return Err(advice::of_gap(location, gap)),
        plan => plan.context("GC aborted; nothing was deleted")?,
    };
    if job.is_dry {
        let compaction = compact::plan(&store, job).await?;
        return print_plan(&plan, compaction.as_ref(), output);
    }
    let collected = store.collect(plan, &Pace::default()).await;
    if collected.deleted.count > 0 {
        prune(&store, Duration::ZERO).await.context("GC finished, but obsolete records could not be removed")?;
    }
    // No compaction after a failed collection, because it could make the cause worse: it needs disk
    // space, for example.
    let compacted = match &collected.failure {
        None => compact(&store, job, location, index).await,
        Some(_) => Ok(None),
    };
    let (compacted, abort) = match compacted {
        Ok(compacted) => (compacted, None),
        Err(abort) => (None, Some(abort)),
    };
    report(collected, compacted, output)?;
    abort.map_or(Ok(()), Err)
}

/// Runs a compaction, if it is requested and the index lacks no record.
async fn compact(
    store: &Store,
    job: &Job,
    location: &StoreLocation,
    index: &StoreIndex,
) -> anyhow::Result<Option<Compacted>> {
    let Some(min_live) = job.min_live else { return Ok(None) };
    check_all_applied(location, index).await.context("nothing was compacted")?;
    compact::execute(store, job.policy, min_live).await.map(Some)
}

fn print_plan(
    plan: &CollectionPlan,
    compaction: Option<&(CompactionPlan, MinLive)>,
    output: &Output,
) -> anyhow::Result<()> {
    for xorb in plan.xorbs() {
        let record = planned_record(xorb);
        output.line(format_args!("{}  {:>10}  {}", record.xorb, Size(record.serialized_len), sentence(&record)))?;
        output.record(&record)?;
    }
    if let Some((compaction, min_live)) = compaction {
        compact::print_xorbs(compaction, *min_live, output)?;
    }
    let retained = plan.retained();
    output.record(&PlanRecord {
        freed_now: plan.freed_now().into(),
        freed_later: plan.freed_later().into(),
        retained: RetainedRecord {
            referenced: retained.referenced.into(),
            in_grace: retained.in_grace.into(),
            leased: retained.leased.into(),
            condemned: retained.condemned.into(),
            staged: retained.staged.into(),
            over_plan_limit: retained.left_off.into(),
        },
        compaction: compaction.map(|(compaction, _)| compact::PlanRecord::of(compaction)),
    })?;
    for (tally, why) in [
        (retained.referenced, "referenced by files"),
        (retained.in_grace, "used or referenced within the grace period"),
        (retained.leased, "leased to a client"),
        (retained.condemned, "condemned, delete delay not over"),
        (retained.staged, "being published"),
        (retained.left_off, "beyond the size of one plan"),
    ] {
        if tally.count > 0 {
            output.line(format_args!("retained: {} ({why})", shown(tally)))?;
        }
    }
    let (now, later) = (shown(plan.freed_now()), shown(plan.freed_later()));
    output.line(format_args!("would free now: {now}; later, unless used again: {later}"))?;
    compaction.map_or(Ok(()), |(compaction, _)| compact::print_sums(compaction, output))
}

fn planned_record(xorb: &PlannedXorb) -> PlannedRecord {
    let (action, since, reason): (_, Timestamp, _) = match xorb.action {
        Action::Condemn { idle_since } => ("condemn", idle_since, "not referenced by a file and not used"),
        Action::Delete { condemned_since } => ("delete", condemned_since, "condemned and not used"),
        Action::Finish { deleting_since } => ("finish", deleting_since, "deletion not finished"),
        Action::Abandon { staged_since } => ("abandon", staged_since, "upload not finished"),
    };
    PlannedRecord {
        xorb: xorb.hash.to_string(),
        serialized_len: xorb.serialized_len,
        action,
        since_unix_secs: since.as_secs(),
        reason,
    }
}

/// The action, reason and time of a planned record as text.
fn sentence(record: &PlannedRecord) -> String {
    let at = UNIX_EPOCH + Duration::from_secs(record.since_unix_secs);
    format!("{}: {} since {}", record.action, record.reason, httpdate::fmt_http_date(at))
}

/// The number and total length of some xorbs as text.
fn shown(tally: Tally) -> String {
    format!("{}, {}", Count(tally.count, "xorb"), Size(tally.serialized_len))
}

/// Prints the result of a run. Fails if xorbs could not be deleted or compacted.
fn report(collected: Collected, compacted: Option<Compacted>, output: &Output) -> anyhow::Result<()> {
    output.record(&CollectedRecord {
        condemned: collected.condemned.into(),
        deleted: collected.deleted.into(),
        replaced: collected.replaced.into(),
        spared: collected.spared,
        failed: collected.failed,
        compaction: compacted.as_ref().map(compact::CompactedRecord::of),
    })?;
    let (condemned, deleted) = (shown(collected.condemned), shown(collected.deleted));
    let replaced = shown(collected.replaced);
    output.line(format_args!("condemned: {condemned}; deleted: {deleted}; replaced blobs: {replaced}"))?;
    if let Some(error) = collected.failure {
        let failed = Count(collected.failed, "xorb");
        // With its cause, so that the advice for a damaged index is found.
        return Err(error).with_context(|| format!("{failed} could not be collected; the next run tries again"));
    }
    compacted.map_or(Ok(()), |compacted| compact::report(compacted, output))
}
