//! A scene: some actors that act concurrently. Their operations on the stores run in an order that
//! a seed decides.
//!
//! At every moment all actors but one wait at a gate. So a seed always gives the same scene,
//! although hashing and SQLite have threads of their own. An actor that waits for the lock of a
//! xorb or a file is at no gate. Such an actor is detected, because the holder of the lock is
//! known, and the scene continues without it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rand::RngExt;
use rand::rngs::StdRng;

use super::gate::Stage;
use crate::runtime::clock::ManualClock;

/// Operations that run under the lock of a xorb or a file.
pub(super) const LOCKED: &[&str] = &[
    "stage_xorb",
    "publish",
    "publish_xorb",
    "begin_object",
    "replace_xorb",
    "mark_object_dead",
    "find_life",
    "delete",
    "share_xorb",
    "spend_grant",
    "claimed_files",
    "owned_xorbs",
    "register",
    "begin_registration",
    "write_step",
    "publish_registration",
    "write_dedup_step",
    "abandon_registrations",
    "sweep_registrations",
    "remove_claims",
    "is_record_open",
];

/// Operations of a removal that run under the lock of its file: if it fails, the claims that are
/// left are read and recorded.
pub(super) const LOCKED_IN_REMOVAL: &[&str] = &["remove_claims", "file_records", "xorb_parts", "take_records"];

/// Operations of a check that run under the lock of its xorb: the check reads the row once more
/// there.
pub(super) const LOCKED_IN_CHECK: &[&str] = &["find_xorb", "find_chunks", "mark_sound", "describe_xorb_again"];

/// Rounds without progress after which an actor counts as waiting for its lock.
const LOCK_ROUND_COUNT: usize = 3;

/// An actor of a scene.
pub(super) struct Actor<T> {
    pub(super) acting: BoxFuture<'static, T>,
    /// The number of the lock that it takes, if any.
    pub(super) lock: Option<usize>,
    /// Its operations under that lock.
    pub(super) locked: &'static [&'static str],
    /// Whether it is a separate process beside the server.
    pub(super) is_command: bool,
}

/// The processes that die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crash {
    AllProcesses,
    Command,
}

/// The events of a scene, each after a number of operations.
#[derive(Clone, Debug, Default)]
pub(super) struct Script {
    /// The actors of the first operations, in order, if they wait at a gate. Afterwards the order
    /// is random.
    pub(super) lead: Vec<usize>,
    /// An actor that waits before this operation until no other actor can continue.
    pub(super) held: Option<(usize, &'static str)>,
    /// After how many operations which processes die.
    pub(super) crash: Option<(usize, Crash)>,
    /// After how many operations the clock jumps, and how far.
    pub(super) jump: Option<(usize, Duration)>,
}

/// How a scene ended.
pub(super) struct Played<T> {
    /// The outcome of each actor; `None` where it died.
    pub(super) outcomes: Vec<Option<T>>,
    pub(super) crash: Option<Crash>,
    pub(super) has_jumped: bool,
    /// The operations with their actors, in order.
    pub(super) order: Vec<(usize, &'static str)>,
}

/// Plays a scene to its end.
pub(super) async fn play<T>(
    stage: &Arc<Stage>,
    actors: Vec<Actor<T>>,
    script: Script,
    clock: &ManualClock,
    rng: &mut StdRng,
) -> Played<T> {
    let mut outcomes: Vec<Option<T>> = actors.iter().map(|_| None).collect();
    let mut cast: Vec<Option<Actor<T>>> = actors.into_iter().map(Some).collect();
    let (mut order, mut crash, mut has_jumped) = (Vec::new(), None, false);
    loop {
        settle(stage, &mut cast, &mut outcomes).await;
        if let Some((_, who)) = script.crash.filter(|(at, _)| crash.is_none() && *at <= order.len()) {
            crash = Some(who);
            for (index, actor) in cast.iter_mut().enumerate() {
                if who == Crash::AllProcesses || actor.as_ref().is_some_and(|actor| actor.is_command) {
                    stage.kill(index);
                    *actor = None;
                }
            }
        }
        if let Some((_, by)) = script.jump.filter(|(at, _)| !has_jumped && *at <= order.len()) {
            has_jumped = true;
            clock.advance(by);
        }
        let waiting = stage.actors();
        if waiting.is_empty() {
            stage.end();
            return Played { outcomes, crash, has_jumped, order };
        }
        let is_held = |actor: &usize| {
            script.held.is_some_and(|(held, operation)| held == *actor && stage.operation(held) == Some(operation))
        };
        let mut others: Vec<usize> = waiting.iter().copied().filter(|actor| !is_held(actor)).collect();
        if others.is_empty() {
            others.clone_from(&waiting);
        }
        let lead = script.lead.get(order.len()).copied().filter(|actor| others.contains(actor));
        let next = lead.unwrap_or_else(|| others[rng.random_range(0..others.len())]);
        order.push((next, stage.operation(next).unwrap_or_default()));
        stage.let_pass(next);
    }
}

/// Lets all actors run until each waits at a gate or is done.
async fn settle<T>(stage: &Stage, cast: &mut [Option<Actor<T>>], outcomes: &mut [Option<T>]) {
    let mut round = 0;
    poll_fn(|context| {
        stage.watch(context.waker());
        for (actor, outcome) in cast.iter_mut().zip(outcomes.iter_mut()) {
            let Some(acting) = actor else { continue };
            if let Poll::Ready(done) = acting.acting.as_mut().poll(context) {
                *outcome = Some(done);
                *actor = None;
            }
        }
        let absent: Vec<usize> =
            (0..cast.len()).filter(|index| cast[*index].is_some() && stage.operation(*index).is_none()).collect();
        if absent.is_empty() {
            return Poll::Ready(());
        }
        if !absent.iter().all(|index| waits_for_lock(stage, cast, *index)) {
            return Poll::Pending;
        }
        round += 1;
        if round > LOCK_ROUND_COUNT {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Whether this actor wants a lock that another actor holds.
fn waits_for_lock<T>(stage: &Stage, cast: &[Option<Actor<T>>], index: usize) -> bool {
    let Some(wanted) = cast[index].as_ref().and_then(|actor| actor.lock) else { return false };
    let holds = |(other, actor): (usize, &Option<Actor<T>>)| {
        let Some(actor) = actor else { return false };
        let is_within = stage.operation(other).is_some_and(|operation| actor.locked.contains(&operation));
        other != index && actor.lock == Some(wanted) && is_within
    };
    cast.iter().enumerate().any(holds)
}
