//! `zorb serve`: opens the store and serves it until a signal stops the process.
//!
//! A start removes or completes the unfinished work of a crashed process before it listens. A stop
//! waits for open requests up to `drain_timeout`, then for background tasks and for unfinished
//! publications.

use std::fs::{File, TryLockError};
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use ipnet::IpNet;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

use super::assemble::open_server;
use super::collector::DeletionLock;
use super::reload::{self, Reloaded};
use super::store::{Membership, StoreIndex, StoreLocation, advice, check_place};
use super::{background, descriptors, keys};
use crate::config::{AuditMode, AuthMode, Config, DatabaseUrl, RawConfig};
use crate::http::audit::{Audit, AuditScope};
use crate::http::server::{ConnectionLimits, Site, listen, serve};
use crate::http::tls::Tls;
use crate::http::{AppState, Auth, Origins, Pace, PublicAddress, Shared, router};
use crate::runtime::blocking::Pool;
use crate::runtime::clock::{Clock, SystemClock};
use crate::runtime::durable::{create_directory, open_lock};
use crate::runtime::journal::{Journal, Target};
use crate::runtime::metrics::Metrics;
use crate::runtime::reload::ReloadSignal;
use crate::runtime::shutdown::StopSignal;
use crate::runtime::task::TaskGroup;
use crate::runtime::telemetry;
use crate::service::{Recovered, Server, Store, StoreError};

/// Number of tasks that a thread runs between two polls of the sockets. tokio's default of 61 suits
/// tasks of microseconds. Here a task that sends a piece takes 300 µs, and a new request should not
/// wait until 61 pieces are sent.
const EVENT_INTERVAL: u32 = 8;

/// The settings that have a flag. All settings can be in the environment or in the file.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// TOML file with settings; config/default.toml explains every key
    #[arg(long, env = "ZORB_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port to listen on; port 0 picks a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
    /// Data directory [default: ./zorb-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// PostgreSQL database of the index [default: SQLite in the data directory]; better set
    /// ZORB_DATABASE_URL, because other users can see arguments
    #[arg(long, value_name = "URL")]
    database_url: Option<DatabaseUrl>,
    /// Authentication of requests: token or off [default: off]
    #[arg(long, value_name = "MODE")]
    auth: Option<String>,
    /// Accept requests from other machines although --auth is off
    #[arg(long)]
    allow_anonymous: bool,
    /// Base URL of the server for clients, if it differs from the URL of their requests
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
}

pub(super) fn run(args: ServeArgs) -> anyhow::Result<()> {
    let config = settings(args)?;
    telemetry::install(config.log_format, &config.log)?;
    // The id of a store in a bucket is checked with the bucket.
    check_place(&config.data_dir, config.require_store && config.s3.is_none())?;
    let runtime = Builder::new_multi_thread()
        .event_interval(EVENT_INTERVAL)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    // Nothing is created before the database has been checked.
    let location = StoreLocation::of(&config);
    runtime.block_on(location.check_before_start())?;
    let result = runtime.block_on(location.serving(async |membership| {
        // Locked before the cleanup of the start, because the cleanup removes all unfinished
        // uploads. Those of another running server must stay.
        let _lock = lock(&config.data_dir)?;
        serve_until_stopped(config, membership).await
    }));
    // Does not wait for tasks that still run. Their requests were not acknowledged.
    runtime.shutdown_background();
    result
}

/// All settings of flags, environment and file, in this order of precedence.
fn settings(args: ServeArgs) -> anyhow::Result<Config> {
    let flags = RawConfig {
        listen: args.listen,
        data_dir: args.data_dir,
        database_url: args.database_url,
        auth: args.auth,
        public_url: args.public_url,
        allow_anonymous: args.allow_anonymous.then_some(true),
        ..RawConfig::default()
    };
    let environment = RawConfig::from_env(|name| std::env::var(name).ok())?;
    let file = args.config.as_deref().map(RawConfig::read).transpose()?.unwrap_or_default();
    Ok(Config::new(flags.or(environment).or(file))?)
}

/// Locks the data directory for this process. The operating system releases the lock when the
/// process ends.
pub(super) fn lock(data_dir: &Path) -> anyhow::Result<File> {
    let dir = data_dir.display();
    create_directory(data_dir).with_context(|| format!("cannot create the data directory {dir}"))?;
    let path = data_dir.join("lock");
    let file = open_lock(&path).with_context(|| format!("cannot open {} in the data directory", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!("another zorb serves the data directory {dir}; stop it first, or pass another --data-dir")
        }
        Err(TryLockError::Error(error)) => Err(error)
            .with_context(|| format!("cannot lock the data directory {dir}; its file system must support locks")),
    }
}

/// Opens the store and serves it until a signal arrives. Then waits for open requests and
/// background tasks, and closes the index.
async fn serve_until_stopped(config: Config, membership: Option<Membership>) -> anyhow::Result<()> {
    let begin = Instant::now();
    let mut stop = StopSignal::listen().context("cannot listen to signals")?;
    let reload = ReloadSignal::listen().context("cannot listen to signals")?;
    let metrics = Arc::new(Metrics::new());
    let descriptors = descriptors::budget(&config)?;
    metrics.descriptors_max.set(i64::try_from(descriptors.limit).unwrap_or(i64::MAX));
    metrics.process.started(SystemClock.now(), descriptors.limit);
    let tls = config.tls.clone().map(|files| anyhow::Ok((Tls::new(reload::identity(&files)?), files))).transpose()?;
    let audit = audit(&config, &metrics)?;
    let (clock, member) = (Arc::new(SystemClock), membership.as_ref());
    let OpenedStore { server, index, recovered, recorded } =
        begin_store(&config, descriptors.open_blob_count, &metrics, clock, member).await?;
    let is_shared = membership.is_some();
    let keys = keys::open(&StoreLocation::of(&config), &index).await?;
    warn_of_low_space(&server.store).await;
    let listener = listen(config.listen)
        .with_context(|| format!("cannot listen on {}; is another process using it?", config.listen))?;
    announce(&listener, &config)?;
    let started = Started { recovered, files_recorded: recorded, elapsed: begin.elapsed() };
    started.log(&config, &server.store, &index).await?;

    let pace = Pace { idle: config.body_timeout, min_bytes_per_sec: config.min_upload_rate };
    let address = address(&config);
    let limits = limits(&config, descriptors.connection_count, Arc::clone(&address.trusted_proxies));
    let prefix = Arc::from(address.path());
    let background = TaskGroup::new();
    let background_stop = CancellationToken::new();
    background.spawn(keys::watch(keys.clone(), background_stop.clone()));
    background::spawn(&server, &config, membership, (&background, &background_stop));
    background.spawn(index.clone().maintain(background_stop.clone()));
    let (site_tls, closing_audit) = (tls.as_ref().map(|(tls, _)| tls.clone()), audit.clone());
    let journal = audit.as_ref().map(|audit| audit.journal.clone());
    background.spawn(reload::watch(reload, Reloaded { tls, journal }, background_stop.clone()));
    let shared = Shared {
        metrics: Arc::clone(&metrics),
        pace,
        deadline: config.request_timeout,
        stats_pool: Pool::new(1),
        auth: auth(&config),
        keys,
        clock: Arc::new(SystemClock),
        address,
        // The bytes of a grant wait in the memory of one server, and the commit may reach another.
        grants: config.grants && !is_shared,
        hub: config.hub,
        anonymous_read: config.anonymous_read,
        creates_private: config.creates_private,
        cors_origins: Origins::new(&config.cors_origins),
        audit,
    };
    let router = router(AppState { server: Arc::clone(&server), shared: Arc::new(shared) });
    let stopped = async move {
        let signal = stop.received().await;
        tracing::info!(signal, "stopping");
    };
    serve(listener, Site { router, prefix, tls: site_tls }, metrics, limits, stopped).await;
    background_stop.cancel();
    if let Some(audit) = closing_audit {
        audit.finish();
        audit.journal.close().await;
    }
    background.join().await;
    server.finish().await;
    index.close().await;
    tracing::info!("stopped");
    Ok(())
}

/// What a start has done, for the log line `ready`.
struct Started {
    recovered: Recovered,
    /// Files that had no registration record and have one now.
    files_recorded: u64,
    elapsed: Duration,
}

impl Started {
    /// Logs `ready`, with the version, the totals of the store and the results of the cleanup.
    async fn log(self, config: &Config, store: &Store, index: &StoreIndex) -> anyhow::Result<()> {
        let totals = store.totals().await.context("cannot count what is stored")?;
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            data_dir = %config.data_dir.display(),
            index = index.kind(),
            blobs = if config.s3.is_some() { "s3" } else { "directory" },
            auth = config.auth.name(),
            tls = config.tls.is_some(),
            xorbs = totals.xorb_count,
            stored_bytes = totals.serialized_len,
            drafts_removed = self.recovered.drafts,
            rows_removed = self.recovered.rows,
            files_recorded = self.files_recorded,
            elapsed_ms = telemetry::millis(self.elapsed),
            "ready"
        );
        Ok(())
    }
}

/// A store that is ready to be served.
pub(super) struct OpenedStore {
    pub(super) server: Arc<Server>,
    pub(super) index: StoreIndex,
    recovered: Recovered,
    /// Files that had no registration record and have one now.
    recorded: u64,
}

/// Opens the store, compares its index with the data directory, and cleans up after the last run. A
/// server that joins others cleans up only what is its own, and then this says nothing about
/// records.
///
/// After success the index has applied every record, every file has a record, and no draft of an
/// earlier run is left. After an error or a crash, the next start does the same again.
pub(super) async fn begin_store(
    config: &Config,
    open_blob_count: usize,
    metrics: &Arc<Metrics>,
    clock: Arc<dyn Clock>,
    membership: Option<&Membership>,
) -> anyhow::Result<OpenedStore> {
    let (server, index) = open_server(config, open_blob_count, metrics, clock, membership).await?;
    let location = StoreLocation::of(config);
    let prepared = match membership {
        Some(membership) if !membership.is_first => {
            join_store(&location, &server.store).await.map(|recovered| (recovered, 0))
        }
        _ => prepare_store(config, &location, &server.store).await,
    };
    let (recovered, recorded) = prepared.map_err(|error| advice::explain(&location, error))?;
    if let Some(membership) = membership.filter(|membership| membership.is_first) {
        membership.session.share().await?;
    }
    let checked = server.store.check_direct_urls().await.context("clients cannot download from s3_public_endpoint");
    checked.map_err(|error| advice::explain(&location, error))?;
    let loaded = server.load_deleted_repos().await.context("cannot read which repositories were deleted");
    loaded.map_err(|error| advice::explain(&location, error))?;
    let loaded = server.load_unneeded_files().await.context("cannot read which files repositories no longer need");
    loaded.map_err(|error| advice::explain(&location, error))?;
    Ok(OpenedStore { server, index, recovered, recorded })
}

/// Compares the index of an opened store with the data directory, and cleans up. Returns what was
/// cleaned up, and how many files got a record.
async fn prepare_store(config: &Config, location: &StoreLocation, store: &Store) -> anyhow::Result<(Recovered, u64)> {
    let deletion = lock_deletions(&config.data_dir);
    // Both steps come before the cleanup. If the index is older than the blobs, the cleanup would
    // delete acknowledged data as unfinished.
    if deletion.is_some() {
        store.restore_half_deleted().await.context("cannot restore xorbs whose deletion was interrupted")?;
    }
    let is_identified = location.identify(store, !config.require_store).await?;
    let agreed = store.agree(!config.require_store).await;
    let agreed = agreed.map_err(|gap| advice::of_gap(location, gap))?;
    if agreed.is_new || is_identified {
        tracing::info!(data_dir = %config.data_dir.display(), "created a new store");
    }
    if agreed.applied_count > 0 {
        tracing::info!(records = agreed.applied_count, "applied registrations and removals of the last run");
    }
    let recovered = if deletion.is_some() { store.recover().await } else { store.recover_drafts().await };
    let recovered = recovered.context("cannot clean up after the last run")?;
    drop(deletion);
    let recorded = store.complete_records().await.context("cannot write registration records")?;
    Ok((recovered, recorded))
}

/// Checks that index and bucket belong together, for a server that joins others. Removes the drafts
/// of its own last run, and changes nothing else: what is unfinished may be under way.
async fn join_store(location: &StoreLocation, store: &Store) -> anyhow::Result<Recovered> {
    store.join().await.map_err(|gap| advice::of_gap(location, gap))
}

/// Logs a warning if the disk has so little free space that uploads will be refused.
async fn warn_of_low_space(store: &Store) {
    if let Err(StoreError::LowSpace { free_len, min_free_len }) = store.check_headroom(0).await {
        tracing::warn!(
            free_bytes = free_len,
            min_free_space = min_free_len,
            "store is full for writes: free disk space is below min_free_space; free disk space or lower \
             min_free_space"
        );
    }
}

/// Locks `gc.lock`, because a start finishes or undoes the deletions of the last run. `None` if the
/// lock cannot be taken. If a `zorb gc` holds it, that process finishes the deletions, and a later
/// GC run deletes the rows of unfinished uploads.
fn lock_deletions(data_dir: &Path) -> Option<DeletionLock> {
    DeletionLock::take(data_dir).unwrap_or_else(|error| {
        tracing::warn!(error = format!("{error:#}"), "cannot finish the deletions of the last run now");
        None
    })
}

/// The settings from which the server makes URLs for clients.
fn address(config: &Config) -> PublicAddress {
    PublicAddress {
        url: config.public_url.as_deref().map(Arc::from),
        trusted_proxies: config.trusted_proxies.as_slice().into(),
        is_encrypted: config.tls.is_some(),
    }
}

/// The limits of connections.
fn limits(config: &Config, max_count: usize, trusted_proxies: Arc<[IpNet]>) -> ConnectionLimits {
    ConnectionLimits {
        max_count,
        trusted_proxies,
        idle: config.idle_timeout,
        send_pace: Pace { idle: config.send_timeout, min_bytes_per_sec: config.min_download_rate },
        drain: config.drain_timeout,
    }
}

/// Opens the audit log; `None` if none is configured.
fn audit(config: &Config, metrics: &Metrics) -> anyhow::Result<Option<Audit>> {
    let Some(target) = config.audit_log.clone() else { return Ok(None) };
    let shown = format!("cannot append to the audit log ({target:?})");
    let journal =
        Journal::open(target, config.audit_max_len.unwrap_or(u64::MAX), metrics.audit.clone()).context(shown)?;
    let scope = match config.audit {
        AuditMode::Writes => AuditScope::Writes,
        AuditMode::All => AuditScope::All,
    };
    Ok(Some(Audit { journal, scope, refusals: Arc::default() }))
}

/// How requests are authenticated. Logs a warning if they are not.
fn auth(config: &Config) -> Auth {
    match config.auth {
        AuthMode::Token => Auth::Tokens,
        AuthMode::Off => {
            tracing::warn!("authentication is off: every client that can reach {} can read and write", config.listen);
            Auth::Off
        }
    }
}

/// Prints the line with the address, for which scripts wait, and how tools of the Hub use it.
fn announce(listener: &TcpListener, config: &Config) -> anyhow::Result<()> {
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{}", listener.local_addr().context("cannot read the chosen port")?);
    let mut text = format!("zorb listening on {url}\n");
    // A log on stdout has one line before it that is no JSON.
    if config.hub && config.audit_log != Some(Target::Stdout) {
        let endpoint = config.public_url.as_ref().unwrap_or(&url);
        // Without authentication any token will do, but clients do not upload without one.
        let token = match config.auth {
            AuthMode::Off => "any",
            AuthMode::Token => "TOKEN",
        };
        text.push_str(&format!("for hf and transformers: export HF_ENDPOINT={endpoint} HF_TOKEN={token}\n"));
    }
    let mut stdout = stdout().lock();
    // At once: a script that has the first line does not wait for the second.
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).context("cannot write to stdout")
}
