//! Settings as they are written: nothing validated, nothing filled in.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::quota::RawQuota;
use super::{ConfigError, parse};

/// Declares every key once: its name, its type, and how the environment spells it.
macro_rules! keys {
    ($($(#[$doc:meta])* $key:ident: $type:ty, $expected:literal;)*) => {
        /// What one source says; `None` where it says nothing. `config/default.toml` explains every key.
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct RawConfig {
            $($(#[$doc])* pub $key: Option<$type>,)*
            /// Quotas by name: tables, which only the file has.
            #[serde(default)]
            pub quota: BTreeMap<String, RawQuota>,
        }

        impl RawConfig {
            /// Every key there is, but for the tables.
            pub const KEYS: &[&str] = &[$(stringify!($key)),*];

            /// What the environment says: `ZORB_` and the key in capitals. An empty variable says nothing.
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

            /// This, and what `other` says where this says nothing.
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
    /// Folder of everything.
    data_dir: String, "a folder";
    /// Where clients reach the server.
    public_url: String, "a URL";
    /// Proxies whose forwarded headers are believed.
    trusted_proxies: String, "addresses and networks";
    /// Sites of which pages may use this server.
    cors_origins: String, "origins";
    /// File with certificates.
    tls_cert: String, "a file";
    /// File with the key of the certificate.
    tls_key: String, "a file";
    /// Where the audit log goes.
    audit_log: String, "a file, or stdout";
    /// `writes` or `all`.
    audit: String, "writes or all";
    /// Bytes of the audit log's file.
    audit_max_bytes: i64, "a whole number of bytes";
    /// `token` or `off`.
    auth: String, "token or off";
    /// Serve other machines without authentication.
    allow_anonymous: bool, "true or false";
    /// Give out upload grants.
    grants: bool, "true or false";
    /// Refuse to start where there is no store.
    require_store: bool, "true or false";
    /// Connections held at once.
    max_connections: i64, "a whole number";
    /// Bytes.
    min_free_bytes: i64, "a whole number of bytes";
    /// Uploads under way at once.
    max_uploads: i64, "a whole number";
    /// Bytes of uploads under way at once.
    max_upload_bytes: i64, "a whole number of bytes";
    /// Pieces read and sent at once.
    read_turns: i64, "a whole number";
    /// Write uploads past the page cache.
    direct_writes: bool, "true or false";
    /// Seconds.
    request_timeout_secs: i64, "a whole number of seconds";
    /// Seconds.
    idle_timeout_secs: i64, "a whole number of seconds";
    /// Seconds.
    body_timeout_secs: i64, "a whole number of seconds";
    /// Bytes per second.
    min_upload_rate: i64, "a whole number of bytes per second";
    /// Seconds.
    send_timeout_secs: i64, "a whole number of seconds";
    /// Bytes per second.
    min_download_rate: i64, "a whole number of bytes per second";
    /// Seconds.
    drain_timeout_secs: i64, "a whole number of seconds";
    /// Threads.
    verify_workers: i64, "a whole number";
    /// Threads.
    disk_workers: i64, "a whole number";
    /// Bytes.
    layout_cache: i64, "a whole number of bytes";
    /// Bytes per second.
    scrub_rate: i64, "a whole number of bytes per second";
    /// Seconds.
    scrub_interval_secs: i64, "a whole number of seconds";
    /// Seconds.
    gc_interval_secs: i64, "a whole number of seconds";
    /// Days.
    gc_grace_days: i64, "a whole number of days";
    /// Hours.
    gc_condemned_hours: i64, "a whole number of hours";
    /// A share of the bytes of a xorb.
    gc_min_live: f64, "a number such as 0.5";
    /// Files of a repository.
    quota_files: i64, "a whole number";
    /// Bytes of the files of a repository.
    quota_logical_bytes: i64, "a whole number of bytes";
    /// Bytes of the xorbs of a repository.
    quota_physical_bytes: i64, "a whole number of bytes";
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
    /// It is no TOML, has a key that does not exist, or a value of another type.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigError> {
        toml::from_str(text)
            .map_err(|error| ConfigError::Invalid { origin: origin.to_owned(), message: error.to_string() })
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
