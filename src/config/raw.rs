//! Settings as they are written: not validated, without defaults.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::units::{RATE, Rate, SIZE, SPAN, Size, Span};
use super::{ConfigError, parse};

/// Keys of earlier versions, and their names now.
const RENAMED: &[(&str, &str)] = &[
    ("audit_max_bytes", "audit_max_size"),
    ("body_timeout_secs", "body_timeout"),
    ("drain_timeout_secs", "drain_timeout"),
    ("gc_condemned_hours", "gc_delete_delay"),
    ("gc_grace_days", "gc_grace"),
    ("gc_interval_secs", "gc_interval"),
    ("idle_timeout_secs", "idle_timeout"),
    ("max_upload_bytes", "upload_budget"),
    ("min_free_bytes", "min_free_space"),
    ("read_turns", "max_concurrent_reads"),
    ("request_timeout_secs", "request_timeout"),
    ("scrub_interval_secs", "scrub_interval"),
    ("send_timeout_secs", "send_timeout"),
];

/// A quota as it is written; unset values are those for all repositories.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawQuota {
    /// Files; 0 for any number.
    pub files: Option<i64>,
    /// Bytes of the files; 0 for any number.
    pub logical_bytes: Option<Size>,
    /// Bytes of the xorbs; 0 for any number.
    pub physical_bytes: Option<Size>,
}

/// Declares every key once: its name, its type, and how the environment spells it.
macro_rules! keys {
    ($($(#[$doc:meta])* $key:ident: $type:ty, $expected:expr;)*) => {
        /// Settings of one source; `None` for keys that it does not set. `config/default.toml`
        /// explains every key.
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct RawConfig {
            $($(#[$doc])* pub $key: Option<$type>,)*
            /// Quotas by name: tables, which only the file can have.
            #[serde(default)]
            pub quota: BTreeMap<String, RawQuota>,
        }

        impl RawConfig {
            /// Every key, without the tables.
            pub const KEYS: &[&str] = &[$(stringify!($key)),*];

            /// Settings of the environment: `ZORB_` and the key in capitals. An empty variable
            /// counts as unset.
            ///
            /// # Errors
            ///
            /// A value is not of its key's type.
            pub fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
                Ok(Self {
                    $($key: {
                        let name = concat!("ZORB_", stringify!($key)).to_ascii_uppercase();
                        let text = lookup(&name).filter(|text| !text.is_empty());
                        text.map(|text| parse(stringify!($key), &text, $expected)).transpose()?
                    },)*
                    quota: BTreeMap::new(),
                })
            }

            /// These settings, with those of `other` for the keys that are not set here.
            #[must_use]
            pub fn or(self, other: Self) -> Self {
                let quota = if self.quota.is_empty() { other.quota } else { self.quota };
                Self { $($key: self.$key.or(other.$key),)* quota }
            }
        }
    };
}

keys! {
    /// Address and port to listen on.
    listen: String, "an address and a port";
    /// Data directory.
    data_dir: String, "a directory";
    /// Base URL of the server for clients.
    public_url: String, "a URL";
    /// Proxies whose forwarded headers are trusted.
    trusted_proxies: String, "addresses and networks";
    /// Origins whose pages may use this server.
    cors_origins: String, "origins";
    /// File with the certificate chain.
    tls_cert: String, "a file";
    /// File with the private key.
    tls_key: String, "a file";
    /// Destination of the audit log.
    audit_log: String, "a file, or stdout";
    /// `writes` or `all`.
    audit: String, "writes or all";
    /// Maximum size of the audit log's file.
    audit_max_size: Size, SIZE;
    /// `token` or `off`.
    auth: String, "token or off";
    /// Serve other machines without authentication.
    allow_anonymous: bool, "true or false";
    /// Issue upload grants.
    grants: bool, "true or false";
    /// Refuse to start without an existing store.
    require_store: bool, "true or false";
    /// Maximum number of open connections.
    max_connections: i64, "a whole number";
    /// Free disk space below which writes are refused.
    min_free_space: Size, SIZE;
    /// Maximum number of uploads in flight.
    max_uploads: i64, "a whole number";
    /// Declared bytes of all uploads in flight.
    upload_budget: Size, SIZE;
    /// Pieces read and sent at once.
    max_concurrent_reads: i64, "a whole number";
    /// Write uploads past the page cache.
    direct_writes: bool, "true or false";
    /// Deadline of requests that neither upload nor download.
    request_timeout: Span, SPAN;
    /// Maximum idle time of a connection.
    idle_timeout: Span, SPAN;
    /// Maximum silence within a request body.
    body_timeout: Span, SPAN;
    /// Minimum average rate of a request body.
    min_upload_rate: Rate, RATE;
    /// Maximum time without progress of a response.
    send_timeout: Span, SPAN;
    /// Minimum average rate of a response.
    min_download_rate: Rate, RATE;
    /// Time for requests in flight after SIGTERM.
    drain_timeout: Span, SPAN;
    /// Threads that verify and decompress.
    verify_workers: i64, "a whole number";
    /// Disk operations at once.
    disk_workers: i64, "a whole number";
    /// Memory for cached chunk layouts.
    layout_cache: Size, SIZE;
    /// Maximum read rate of the scrub.
    scrub_rate: Rate, RATE;
    /// Time between two verifications of a xorb.
    scrub_interval: Span, SPAN;
    /// Time between two GC runs.
    gc_interval: Span, SPAN;
    /// Time from the last use of a xorb to its condemnation.
    gc_grace: Span, SPAN;
    /// Time from the condemnation of a xorb to its deletion.
    gc_delete_delay: Span, SPAN;
    /// Fraction of a xorb's bytes below which it is rewritten.
    gc_min_live: f64, "a number such as 0.5";
    /// Files of a repository.
    quota_files: i64, "a whole number";
    /// Bytes of the files of a repository.
    quota_logical_bytes: Size, SIZE;
    /// Bytes of the xorbs of a repository.
    quota_physical_bytes: Size, SIZE;
    /// `text` or `json`.
    log_format: String, "text or json";
    /// Levels, also for single targets.
    log: String, "a level";
}

impl RawConfig {
    /// Reads TOML.
    ///
    /// # Errors
    ///
    /// It is not TOML, has an unknown key, or a value of another type.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| {
            let origin = origin.to_owned();
            let table: toml::Table = toml::from_str(text).unwrap_or_default();
            match table.keys().find_map(|key| Self::renamed(key)) {
                Some((old, new)) => ConfigError::Renamed { origin, old, new },
                None => ConfigError::Invalid { origin, message: error.to_string() },
            }
        })
    }

    /// The old and the new name of a key that was renamed.
    #[must_use]
    pub fn renamed(key: &str) -> Option<(&'static str, &'static str)> {
        RENAMED.iter().find(|(old, _)| *old == key).copied()
    }

    /// Reads a TOML file. Blocks.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or see [`RawConfig::parse`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, &format!("the configuration file {}", path.display()))
    }
}
