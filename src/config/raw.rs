//! Settings as a source has them: not validated, and without defaults.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::database::DatabaseUrl;
use super::error::{ConfigError, parse};
use super::units::{RATE, Rate, SIZE, SPAN, Secret, Size, Span};

/// Keys of earlier versions, and their present names.
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

/// A quota as the file has it. A value that is not set means the limit of the setting `quota_…`, or
/// no limit if the quota is for an owner or for `*`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawQuota {
    /// Maximum number of files; 0 for no limit.
    pub files: Option<i64>,
    /// Maximum raw bytes of the files; 0 for no limit.
    pub logical_bytes: Option<Size>,
    /// Maximum serialized bytes of the xorbs; 0 for no limit.
    pub physical_bytes: Option<Size>,
}

/// Declares all keys. Each key is declared once, with its name, its type, and a text for error
/// messages that says what value is expected.
macro_rules! keys {
    ($($(#[$doc:meta])* $key:ident: $type:ty, $expected:expr;)*) => {
        /// Settings of one source; `None` for keys that it does not set. `config/default.toml`
        /// explains every key.
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct RawConfig {
            $($(#[$doc])* pub $key: Option<$type>,)*
            /// Quotas by name. They are TOML tables, so only the file can have them.
            #[serde(default)]
            pub quota: BTreeMap<String, RawQuota>,
        }

        impl RawConfig {
            /// The names of all keys except the tables.
            pub const KEYS: &[&str] = &[$(stringify!($key)),*];

            /// The settings of the environment. The variable of a key is `ZORB_` and the key in
            /// capitals; `lookup` returns its value. An empty variable counts as not set.
            ///
            /// # Errors
            ///
            /// A value does not have the type of its key.
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

            /// These settings, and for keys that are not set here those of `other`. The quotas of
            /// `other` are used only if there are none here.
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
    /// PostgreSQL database of the index.
    database_url: DatabaseUrl, "a PostgreSQL URL";
    /// URL of the S3 store for blobs and records.
    s3_endpoint: String, "a URL";
    /// URL of the S3 store for clients, which then download from it.
    s3_public_endpoint: String, "a URL";
    /// The region of the bucket.
    s3_region: String, "a region";
    /// The bucket.
    s3_bucket: String, "the name of a bucket";
    /// What the names of all objects begin with.
    s3_prefix: String, "a prefix";
    /// The id of the key to the bucket.
    s3_access_key: String, "the id of a key";
    /// The secret part of the key.
    s3_secret_key: Secret, "a secret key";
    /// File with the secret part of the key.
    s3_secret_key_file: String, "a file";
    /// The key that seals the signing keys and accounts in the database.
    master_key: Secret, "64 hexadecimal digits";
    /// File with that key.
    master_key_file: String, "a file";
    /// Base URL of the server, as clients use it.
    public_url: String, "a URL";
    /// Proxies whose forwarded headers are trusted.
    trusted_proxies: String, "addresses and networks";
    /// Origins of web pages that may use this server.
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
    /// Serve the routes of the Hub.
    hub: bool, "true or false";
    /// Show public repositories of the Hub to clients without a token.
    anonymous_read: bool, "true or false";
    /// `private` or `public`.
    default_visibility: String, "private or public";
    /// Refuse to start without an existing store.
    require_store: bool, "true or false";
    /// Maximum number of open connections.
    max_connections: i64, "a whole number";
    /// Free disk space below which writes are refused.
    min_free_space: Size, SIZE;
    /// Maximum number of uploads in flight.
    max_uploads: i64, "a whole number";
    /// Maximum total body length of uploads in flight.
    upload_budget: Size, SIZE;
    /// Maximum number of pieces that are read, decoded and sent at once.
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
    /// Maximum time for requests in flight after SIGTERM or SIGINT.
    drain_timeout: Span, SPAN;
    /// Number of threads that verify and decode.
    verify_workers: i64, "a whole number";
    /// Maximum number of concurrent disk operations.
    disk_workers: i64, "a whole number";
    /// Maximum memory for cached layouts.
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
    /// A xorb is rewritten if files need less than this fraction of its bytes.
    gc_min_live: f64, "a number such as 0.5";
    /// Maximum number of files of a repository.
    quota_files: i64, "a whole number";
    /// Maximum raw bytes of the files of a repository.
    quota_logical_bytes: Size, SIZE;
    /// Maximum serialized bytes of the xorbs of a repository.
    quota_physical_bytes: Size, SIZE;
    /// `text` or `json`.
    log_format: String, "text or json";
    /// Log level, and levels of single targets.
    log: String, "a level";
}

impl RawConfig {
    /// Parses TOML. `origin` names its source in errors.
    ///
    /// # Errors
    ///
    /// The text is not TOML, or has an unknown key or a value of another type.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| {
            let origin = origin.to_owned();
            let table: toml::Table = toml::from_str(text).unwrap_or_default();
            match table.keys().find_map(|key| Self::renamed(key)) {
                Some((old, new)) => ConfigError::Renamed { origin, old, new },
                None => ConfigError::Invalid { origin, message: shown(text, &error) },
            }
        })
    }

    /// The old and the new name of this key, if it was renamed.
    #[must_use]
    pub fn renamed(key: &str) -> Option<(&'static str, &'static str)> {
        RENAMED.iter().find(|(old, _)| *old == key).copied()
    }

    /// Reads a TOML file. Blocks.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or an error of [`RawConfig::parse`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, &format!("the configuration file {}", path.display()))
    }
}

/// An error of the TOML parser as text. The parser quotes the line, which is left out if it has a
/// URL, because that may contain a password, or may have a secret or a key.
fn shown(text: &str, error: &toml::de::Error) -> String {
    let quoting = error.to_string();
    let quoted = quoting.lines().filter_map(|line| line.split_once('|').map(|(_, quoted)| quoted));
    let has_secret =
        quoted.into_iter().any(|line| ["secret", "key", "password"].iter().any(|word| line.contains(word)));
    if !has_secret && !quoting.contains("://") {
        return quoting;
    }
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let message = error.message();
    let is_safe = !has_secret && !message.contains("://");
    let message =
        if is_safe { message } else { "the line is not as expected, and is not shown, because it may have a secret" };
    format!("line {}: {message}", before.matches('\n').count() + 1)
}
