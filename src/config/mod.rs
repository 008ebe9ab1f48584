//! Settings: validated, with every default filled in.
//!
//! There are four sources: command-line flags, environment variables `ZORB_*`, the TOML file, and
//! the defaults. For each key, the first of these sources that sets it wins. An unknown key or an
//! invalid value is an error at the start. No value is guessed.

mod collection;
mod database;
mod error;
mod origins;
mod quota;
mod raw;
mod s3;
mod units;

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::Duration;

use ipnet::IpNet;

pub use self::collection::{CollectionConfig, MIN_GC_DELETE_DELAY, MIN_GC_GRACE};
pub use self::database::DatabaseUrl;
pub use self::error::ConfigError;
pub use self::quota::{QuotaConfig, QuotaLimits};
pub use self::raw::{RawConfig, RawQuota};
pub use self::s3::{MasterSecret, S3Config};
pub use self::units::{Rate, Secret, Size, Span};
use crate::runtime::journal::Target;
use crate::runtime::telemetry::{LogFilter, LogFormat};

/// The settings of `zorb serve`.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address and port to listen on.
    pub listen: SocketAddr,
    /// The data directory.
    pub data_dir: PathBuf,
    /// The PostgreSQL database of the index; `None` for an SQLite file in the data directory.
    pub database: Option<DatabaseUrl>,
    /// The bucket of blobs and records; `None` for the data directory.
    pub s3: Option<S3Config>,
    /// The base URL of the server for clients, without a final slash. If it is not set, it follows
    /// from the headers of each request.
    pub public_url: Option<String>,
    /// Proxies whose forwarded headers are trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// The origins of web pages that may use this server, in the form that browsers send.
    pub cors_origins: Vec<String>,
    /// Certificate and key of the server; `None` for plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Destination of the audit log; `None` for no audit log.
    pub audit_log: Option<Target>,
    /// Which requests have a line in the audit log.
    pub audit: AuditMode,
    /// Maximum number of bytes of the audit log's file; `None` for no limit.
    pub audit_max_len: Option<u64>,
    /// Which requests need a token.
    pub auth: AuthMode,
    /// Whether other machines may use the server without authentication.
    pub allow_anonymous: bool,
    /// Whether the server issues upload grants.
    pub grants: bool,
    /// Whether the server has the routes of the Hub.
    pub hub: bool,
    /// Whether clients without a token read public repositories of the Hub.
    pub anonymous_read: bool,
    /// Whether a new repository of the Hub is private if its client does not say.
    pub creates_private: bool,
    /// Whether a start without an existing store fails, instead of creating one.
    pub require_store: bool,
    /// Writes are refused if the file system of the data directory has fewer free bytes; 0 for no
    /// minimum.
    pub min_free_len: u64,
    /// Maximum number of open connections.
    pub max_connections: usize,
    /// Maximum number of uploads in flight.
    pub max_uploads: usize,
    /// Maximum total body length of uploads in flight.
    pub upload_budget: u64,
    /// Maximum number of pieces of xorbs that are read, decoded and sent at once.
    pub max_concurrent_reads: usize,
    /// Whether uploads are written past the page cache.
    pub direct_writes: bool,
    /// Maximum time for a request that does not stream.
    pub request_timeout: Duration,
    /// Maximum wait for a request's head, and maximum silence of an idle connection.
    pub idle_timeout: Duration,
    /// Maximum silence within a request's body.
    pub body_timeout: Duration,
    /// Minimum average bytes per second of a request body.
    pub min_upload_rate: u64,
    /// Maximum time without progress of a response.
    pub send_timeout: Duration,
    /// Minimum average bytes per second of a response.
    pub min_download_rate: u64,
    /// Maximum time for requests in flight after a stop signal.
    pub drain_timeout: Duration,
    /// The number of threads that verify and decode.
    pub verify_workers: usize,
    /// Maximum number of concurrent disk operations.
    pub disk_workers: usize,
    /// Maximum number of bytes of cached layouts.
    pub layout_cache: u64,
    /// Maximum number of bytes per second that the scrub reads; 0 for no scrub.
    pub scrub_rate: u64,
    /// The scrub verifies a xorb when its last verification is older than this.
    pub scrub_interval: Duration,
    /// Settings of garbage collection.
    pub collection: CollectionConfig,
    /// Quotas of repositories and owners.
    pub quota: QuotaConfig,
    /// The format of log lines.
    pub log_format: LogFormat,
    /// Which events are logged.
    pub log: LogFilter,
}

/// The PEM files of the server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and its chain.
    pub certificates: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// Which requests are in the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditMode {
    /// Requests that change the store, and refused requests.
    Writes,
    /// All requests except health probes.
    All,
}

/// Which requests need a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMode {
    /// All requests except those to open routes, such as health probes.
    Token,
    /// No requests: every client has all permissions.
    Off,
}

impl AuthMode {
    /// The value of the setting `auth`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Off => "off",
        }
    }
}

impl Config {
    /// The value of `data_dir`, or its default if it is not set.
    #[must_use]
    pub fn data_dir_of(written: Option<String>) -> PathBuf {
        written.map_or_else(|| PathBuf::from("./zorb-data"), PathBuf::from)
    }

    /// The value of `min_free_space`, or its default if it is not set.
    #[must_use]
    pub fn min_free_len_of(written: Option<Size>) -> u64 {
        written.map_or(1 << 30, |size| size.0)
    }

    /// Validates the settings, and fills in the defaults.
    ///
    /// # Errors
    ///
    /// A value is invalid, or the server would be open to other machines without authentication and
    /// without `allow_anonymous`.
    pub fn new(raw: RawConfig) -> Result<Self, ConfigError> {
        let cores = available_parallelism().map_or(1, std::num::NonZero::get);
        let (collection, quota) = (CollectionConfig::new(&raw)?, QuotaConfig::new(&raw)?);
        let s3 = S3Config::of(&raw)?;
        // Pieces from a bucket wait for the network, and take no CPU time meanwhile.
        let default_reads = if s3.is_some() { 64 } else { (2 * cores).max(4) };
        let listen = listen_address(raw.listen.unwrap_or_else(|| "127.0.0.1:8080".to_owned()))?;
        let config = Self {
            listen,
            data_dir: Self::data_dir_of(raw.data_dir),
            database: DatabaseUrl::of(raw.database_url)?,
            s3,
            public_url: public_url(raw.public_url)?,
            trusted_proxies: proxies(raw.trusted_proxies)?,
            cors_origins: origins::parse(raw.cors_origins)?,
            tls: tls_files(raw.tls_cert, raw.tls_key)?,
            audit_log: audit_log(raw.audit_log),
            audit: audit_mode(raw.audit)?,
            audit_max_len: Some(raw.audit_max_size.map_or(1 << 30, |size| size.0)).filter(|len| *len > 0),
            auth: auth_mode(raw.auth)?,
            allow_anonymous: raw.allow_anonymous.unwrap_or(false),
            grants: raw.grants.unwrap_or(false),
            hub: raw.hub.unwrap_or(true),
            anonymous_read: raw.anonymous_read.unwrap_or(false),
            creates_private: creates_private(raw.default_visibility)?,
            require_store: raw.require_store.unwrap_or(false),
            min_free_len: Self::min_free_len_of(raw.min_free_space),
            max_connections: positive("max_connections", raw.max_connections, 1024)?,
            max_uploads: positive("max_uploads", raw.max_uploads, 256)?,
            upload_budget: units::size("upload_budget", raw.upload_budget, 8 << 30)?,
            max_concurrent_reads: positive("max_concurrent_reads", raw.max_concurrent_reads, default_reads)?,
            direct_writes: raw.direct_writes.unwrap_or(true),
            request_timeout: units::span("request_timeout", raw.request_timeout, 60)?,
            idle_timeout: units::span("idle_timeout", raw.idle_timeout, 75)?,
            body_timeout: units::span("body_timeout", raw.body_timeout, 30)?,
            min_upload_rate: units::rate("min_upload_rate", raw.min_upload_rate, 1024)?,
            send_timeout: units::span("send_timeout", raw.send_timeout, 60)?,
            min_download_rate: units::rate("min_download_rate", raw.min_download_rate, 1024)?,
            drain_timeout: units::span("drain_timeout", raw.drain_timeout, 30)?,
            verify_workers: positive("verify_workers", raw.verify_workers, cores + 1)?,
            disk_workers: positive("disk_workers", raw.disk_workers, 32)?,
            layout_cache: units::size("layout_cache", raw.layout_cache, 16 << 20)?,
            scrub_rate: raw.scrub_rate.map_or(8 << 20, |rate| rate.0),
            scrub_interval: units::span("scrub_interval", raw.scrub_interval, 30 * 24 * 3600)?,
            collection,
            quota,
            log_format: log_format(raw.log_format)?,
            log: log_filter(raw.log)?,
        };
        let is_open = config.auth == AuthMode::Off && !config.allow_anonymous;
        if is_open && !config.listen.ip().is_loopback() {
            return Err(ConfigError::Exposed { listen: config.listen });
        }
        Ok(config)
    }
}

fn listen_address(text: String) -> Result<SocketAddr, ConfigError> {
    let reason = "expected an address and a port, like 127.0.0.1:8080; port 0 picks a free one";
    let refused = |reason: String| ConfigError::Value { key: "listen", value: text.clone(), reason };
    let mut addresses = text.to_socket_addrs().map_err(|error| refused(format!("{reason} ({error})")))?;
    addresses.next().ok_or_else(|| refused(reason.to_owned()))
}

fn public_url(text: Option<String>) -> Result<Option<String>, ConfigError> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")).unwrap_or_default();
    if host.is_empty() || host.starts_with('/') || text.contains(['?', '#', ' ']) {
        let reason = "expected http:// or https://, a host, and optionally a path".to_owned();
        return Err(ConfigError::Value { key: "public_url", value: text, reason });
    }
    Ok(Some(text.trim_end_matches('/').to_owned()))
}

/// Parses addresses and networks, separated by commas or spaces.
fn proxies(text: Option<String>) -> Result<Vec<IpNet>, ConfigError> {
    let text = text.unwrap_or_default();
    let entries = text.split([',', ' ']).filter(|entry| !entry.is_empty());
    let parse = |entry: &str| entry.parse().or_else(|_| entry.parse::<IpAddr>().map(IpNet::from));
    let nets = entries.map(|entry| {
        parse(entry).map_err(|_| ConfigError::Value {
            key: "trusted_proxies",
            value: entry.to_owned(),
            reason: "expected an address, like 10.0.0.7, or a network, like 10.0.0.0/8".to_owned(),
        })
    });
    nets.collect()
}

fn tls_files(certificates: Option<String>, key: Option<String>) -> Result<Option<TlsFiles>, ConfigError> {
    let path = |text: Option<String>| text.filter(|text| !text.is_empty()).map(PathBuf::from);
    let half = |key: &'static str, value: &Path, missing: &str| ConfigError::Value {
        key,
        value: value.display().to_string(),
        reason: format!("it requires {missing}"),
    };
    match (path(certificates), path(key)) {
        (Some(certificates), Some(key)) => Ok(Some(TlsFiles { certificates, key })),
        (Some(certificates), None) => Err(half("tls_cert", &certificates, "tls_key")),
        (None, Some(key)) => Err(half("tls_key", &key, "tls_cert")),
        (None, None) => Ok(None),
    }
}

fn audit_log(text: Option<String>) -> Option<Target> {
    match text.filter(|text| !text.is_empty())?.as_str() {
        "stdout" => Some(Target::Stdout),
        path => Some(Target::File(PathBuf::from(path))),
    }
}

fn audit_mode(text: Option<String>) -> Result<AuditMode, ConfigError> {
    match text.as_deref() {
        None | Some("writes") => Ok(AuditMode::Writes),
        Some("all") => Ok(AuditMode::All),
        Some(value) => {
            let reason = "expected writes or all".to_owned();
            Err(ConfigError::Value { key: "audit", value: value.to_owned(), reason })
        }
    }
}

fn creates_private(text: Option<String>) -> Result<bool, ConfigError> {
    match text.as_deref() {
        None | Some("private") => Ok(true),
        Some("public") => Ok(false),
        Some(value) => {
            let reason = "expected private or public".to_owned();
            Err(ConfigError::Value { key: "default_visibility", value: value.to_owned(), reason })
        }
    }
}

fn auth_mode(text: Option<String>) -> Result<AuthMode, ConfigError> {
    match text.as_deref() {
        None | Some("off") => Ok(AuthMode::Off),
        Some("token") => Ok(AuthMode::Token),
        Some(value) => {
            let reason = "expected token or off".to_owned();
            Err(ConfigError::Value { key: "auth", value: value.to_owned(), reason })
        }
    }
}

fn log_format(text: Option<String>) -> Result<LogFormat, ConfigError> {
    match text.as_deref() {
        None | Some("text") => Ok(LogFormat::Text),
        Some("json") => Ok(LogFormat::Json),
        Some(value) => Err(ConfigError::Value {
            key: "log_format",
            value: value.to_owned(),
            reason: "expected text or json".to_owned(),
        }),
    }
}

fn log_filter(text: Option<String>) -> Result<LogFilter, ConfigError> {
    let Some(value) = text else { return Ok(LogFilter::default()) };
    LogFilter::parse(&value).map_err(|error| ConfigError::Value { key: "log", reason: error.to_string(), value })
}

/// The value of a key that must be at least 1, or its default.
fn positive(key: &'static str, value: Option<i64>, default: usize) -> Result<usize, ConfigError> {
    let Some(value) = value else { return Ok(default) };
    usize::try_from(value).ok().filter(|value| *value > 0).ok_or_else(|| ConfigError::Value {
        key,
        value: value.to_string(),
        reason: "must be at least 1".to_owned(),
    })
}

#[cfg(test)]
mod tests;
