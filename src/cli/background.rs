//! The background tasks of a server. Of several servers of one store, one does the work that needs
//! to be done once: it *leads*. When it dies, another one takes over within seconds.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::collector;
use super::store::Membership;
use crate::config::Config;
use crate::runtime::task::TaskGroup;
use crate::runtime::telemetry;
use crate::service::fsck::Presence;
use crate::service::{ScrubBudget, Server, Store};

/// Interval at which a server asks whether it shall lead, because the server that leads may have
/// ended.
const LEAD_PERIOD: Duration = Duration::from_secs(2);

/// Starts the background tasks of a server. They run until the token is cancelled.
pub(super) fn spawn(
    server: &Arc<Server>,
    config: &Config,
    membership: Option<Membership>,
    (tasks, stop): (&TaskGroup, &CancellationToken),
) {
    tasks.spawn(collector::refresh(Arc::clone(&server.store), stop.clone()));
    let Some(membership) = membership else {
        tasks.spawn(load_dedup_filter(Arc::clone(server), stop.clone()));
        // The server holds `lock`, so no other process publishes xorbs here.
        return spawn_of_leader(server, config, Presence::Alone, (tasks, stop));
    };
    // No filter of the chunks that deduplication knows: other servers add some.
    let (checking, until) = (Arc::clone(&server.store).check_suspects(), stop.clone());
    tasks.spawn(async move {
        // The result is always `None`: the task runs until it is cancelled.
        let _ = until.run_until_cancelled(checking).await;
    });
    let of_leader = (Arc::clone(server), config.clone(), tasks.clone());
    tasks.spawn(lead(membership, of_leader, stop.clone()));
}

/// Starts the background tasks that one server of a store has. They run until `stop`.
fn spawn_of_leader(
    server: &Arc<Server>,
    config: &Config,
    presence: Presence,
    (tasks, stop): (&TaskGroup, &CancellationToken),
) {
    let store = &server.store;
    tasks.spawn(collector::sweep_grants(Arc::clone(server), stop.clone()));
    tasks.spawn(collector::collect(
        Arc::clone(store),
        config.collection,
        (config.data_dir.clone(), presence),
        stop.clone(),
    ));
    tasks.spawn(collector::clear_up(Arc::clone(store), stop.clone()));
    tasks.spawn(collector::purge_repos(Arc::clone(server), stop.clone()));
    tasks.spawn(collector::sweep_repos(Arc::clone(server), stop.clone()));
    let (verifying, until) = (Arc::clone(server).verify_claims(), stop.clone());
    tasks.spawn(async move {
        // The result is always `None`: the task runs until it is cancelled.
        let _ = until.run_until_cancelled(verifying).await;
    });
    if config.scrub_rate > 0 {
        tasks.spawn(scrub(Arc::clone(store), config.scrub_rate, config.scrub_interval, stop.clone()));
    }
}

/// Waits until this server is the one that does the work in the background, and then starts that
/// work. If its session is lost, the whole process stops.
async fn lead(
    membership: Membership,
    (server, config, tasks): (Arc<Server>, Config, TaskGroup),
    stop: CancellationToken,
) {
    loop {
        match membership.session.try_lead().await {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) => tracing::debug!(error = format!("{error:#}"), "cannot ask for the work in the background"),
        }
        if stop.run_until_cancelled(sleep(LEAD_PERIOD)).await.is_none() {
            return;
        }
    }
    tracing::info!("this server does the work in the background");
    spawn_of_leader(&server, &config, Presence::Shared, (&tasks, &stop));
    tasks.spawn(collector::follow(server, stop));
}

/// Loads the filter of the chunks that deduplication knows. Until then, each dedup query reads the
/// index.
async fn load_dedup_filter(server: Arc<Server>, stop: CancellationToken) {
    if let Some(Err(error)) = stop.run_until_cancelled(server.load_dedup_filter()).await {
        tracing::warn!(error = %telemetry::chain(&error), "could not read which chunks deduplication knows");
    }
}

/// Verifies stored blobs until `stop`.
async fn scrub(store: Arc<Store>, bytes_per_sec: u64, interval: Duration, stop: CancellationToken) {
    // The result is always `None`: the scrub runs until it is cancelled.
    let _ = stop.run_until_cancelled(store.scrub(ScrubBudget { bytes_per_sec, interval })).await;
}
