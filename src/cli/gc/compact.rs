//! `zorb gc --compact`: plans and runs a compaction, and prints the plan or the result.

use anyhow::{Context, bail};
use serde::Serialize;

use super::{Job, TallyRecord, shown};
use crate::cli::output::Output;
use crate::cli::units::{Count, Size};
use crate::service::Store;
use crate::service::fsck::Presence;
use crate::service::gc::compact::{Compacted, CompactionPlan, MinLive, Source};
use crate::service::gc::{Pace, Policy};

/// Half of the bytes of a xorb. Below it, a rewrite copies fewer bytes than it frees.
const DEFAULT_SHARE: f64 = 0.5;

/// A record of `--dry-run --json` for a xorb that would be rewritten.
#[derive(Debug, Serialize)]
struct RewrittenRecord {
    xorb: String,
    serialized_len: u64,
    /// Bytes of those chunks of the xorb that files need.
    live_len: u64,
    action: &'static str,
    reason: String,
    /// The new xorb, to which these chunks move.
    into: String,
}

/// A record of `--dry-run --json` for a new xorb.
#[derive(Debug, Serialize)]
struct NewRecord {
    xorb: String,
    serialized_len: u64,
    action: &'static str,
    chunks: u32,
    from: Vec<String>,
}

/// The compaction in the last record of `--dry-run --json`.
#[derive(Debug, Serialize)]
pub(super) struct PlanRecord {
    rewritten: TallyRecord,
    made: TallyRecord,
    saved_len: u64,
    retained: RetainedRecord,
}

#[derive(Debug, Serialize)]
struct RetainedRecord {
    needed: TallyRecord,
    in_grace: TallyRecord,
    damaged: TallyRecord,
    over_plan_limit: TallyRecord,
}

/// The compaction in the record of `--json` without `--dry-run`.
#[derive(Debug, Serialize)]
pub(super) struct CompactedRecord {
    /// Old xorbs that no file refers to any more.
    rewritten: TallyRecord,
    /// New xorbs that were stored.
    made: TallyRecord,
    /// New xorbs that were stored already.
    found: TallyRecord,
    /// Files that refer to new xorbs now.
    files: u64,
    /// Files that have changed during the run, so that the next run switches them.
    changed: u64,
    damaged: u64,
    failed: u64,
}

impl PlanRecord {
    pub(super) fn of(plan: &CompactionPlan) -> Self {
        let retained = plan.retained();
        Self {
            rewritten: plan.old().into(),
            made: plan.made().into(),
            saved_len: plan.saved_len(),
            retained: RetainedRecord {
                needed: retained.needed.into(),
                in_grace: retained.in_grace.into(),
                damaged: retained.damaged.into(),
                over_plan_limit: retained.left_off.into(),
            },
        }
    }
}

impl CompactedRecord {
    pub(super) fn of(done: &Compacted) -> Self {
        Self {
            rewritten: done.rewritten.into(),
            made: done.made.into(),
            found: done.found.into(),
            files: done.file_count,
            changed: done.changed_count,
            damaged: done.damaged,
            failed: done.failed,
        }
    }
}

/// The threshold if neither the command line nor the settings give one.
pub(super) fn default_share() -> MinLive {
    MinLive::new(DEFAULT_SHARE).expect("one half is a valid share")
}

/// Parses the value of `--min-live`.
pub(super) fn parse_share(text: &str) -> Result<MinLive, String> {
    let share = text.parse().ok().and_then(MinLive::new);
    share.ok_or_else(|| "must be a fraction of the bytes of a xorb: more than 0 and at most 1, such as 0.5".to_owned())
}

/// The plan of a compaction and its threshold; `None` without `--compact`.
pub(super) async fn plan(store: &Store, job: &Job) -> anyhow::Result<Option<(CompactionPlan, MinLive)>> {
    let Some(min_live) = job.min_live else { return Ok(None) };
    let plan = store.plan_compaction(job.policy, min_live).await;
    Ok(Some((plan.context("compaction aborted; nothing would be rewritten")?, min_live)))
}

/// Runs a compaction.
pub(super) async fn execute(store: &Store, policy: Policy, min_live: MinLive) -> anyhow::Result<Compacted> {
    // `Shared`, because a server may be running or start at any time.
    let done = store.compact_garbage(policy, min_live, Presence::Shared, &Pace::default()).await;
    done.context("compaction aborted; nothing was rewritten")
}

/// Prints the old and the new xorbs of a plan.
pub(super) fn print_xorbs(plan: &CompactionPlan, min_live: MinLive, output: &Output) -> anyhow::Result<()> {
    for rewrite in plan.rewrites() {
        for Source { xorb, serialized_len, live_len, .. } in &rewrite.sources {
            let percent = live_len.saturating_mul(100) / (*serialized_len).max(1);
            let reason = format!("{percent} % of it is referenced, below the threshold of {}", min_live.share());
            output.line(format_args!(
                "{xorb}  {:>10}  compact: {reason}; into {}",
                Size(*serialized_len),
                rewrite.hash
            ))?;
            output.record(&RewrittenRecord {
                xorb: xorb.to_string(),
                serialized_len: *serialized_len,
                live_len: *live_len,
                action: "compact",
                reason,
                into: rewrite.hash.to_string(),
            })?;
        }
        let from = rewrite.sources.iter().map(|source| source.xorb.to_string()).collect();
        output.line(format_args!(
            "{}  {:>10}  make: {} of {}",
            rewrite.hash,
            Size(rewrite.serialized_len),
            Count(rewrite.chunk_count.into(), "chunk"),
            Count(rewrite.sources.len() as u64, "xorb"),
        ))?;
        output.record(&NewRecord {
            xorb: rewrite.hash.to_string(),
            serialized_len: rewrite.serialized_len,
            action: "make",
            chunks: rewrite.chunk_count,
            from,
        })?;
    }
    Ok(())
}

/// Prints the totals of a plan.
pub(super) fn print_sums(plan: &CompactionPlan, output: &Output) -> anyhow::Result<()> {
    let retained = plan.retained();
    for (tally, why) in [
        (retained.needed, "referenced above the threshold"),
        (retained.in_grace, "used within the grace period"),
        (retained.damaged, "damaged"),
        (retained.left_off, "beyond the size of one plan"),
    ] {
        if tally.count > 0 {
            output.line(format_args!("not rewritten: {} ({why})", shown(tally)))?;
        }
    }
    let (old, new, saved) = (shown(plan.old()), shown(plan.made()), Size(plan.saved_len()));
    output.line(format_args!("would rewrite: {old} into {new}; {saved} freed after the grace period"))?;
    Ok(())
}

/// Prints the result of a compaction. Fails if it stopped early or something has failed.
pub(super) fn report(done: Compacted, output: &Output) -> anyhow::Result<()> {
    let (rewritten, made, files) = (shown(done.rewritten), shown(done.made), Count(done.file_count, "file"));
    output.line(format_args!("rewritten: {rewritten} into {made}; switched: {files}"))?;
    if done.changed_count > 0 {
        output.line(format_args!("deferred to the next run: {}", Count(done.changed_count, "file")))?;
    }
    if let Some(error) = done.failure {
        return Err(error).context("compaction stopped early; the next run continues");
    }
    if done.failed > 0 {
        bail!("{} could not be compacted; the next run tries again; zorb fsck checks them", done.failed);
    }
    if done.damaged > 0 {
        bail!("{} found damaged and marked; zorb fsck names them", Count(done.damaged, "xorb"));
    }
    Ok(())
}
