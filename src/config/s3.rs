//! Settings of the bucket for blobs and records.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::error::ConfigError;
use super::raw::RawConfig;
use super::units::Secret;

/// The region that most S3 stores accept, and the default of their clients.
const DEFAULT_REGION: &str = "us-east-1";

/// Maximum number of bytes of the file with the secret key. Keys have some 40.
const MAX_SECRET_LEN: u64 = 4096;

/// A bucket of an S3 store, and the key to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Config {
    /// URL of the S3 store, without a final slash.
    pub endpoint: String,
    /// The same for clients, if they shall download from there.
    pub public_endpoint: Option<String>,
    /// The region of the bucket.
    pub region: String,
    /// The name of the bucket.
    pub bucket: String,
    /// What the names of all objects begin with, without slashes at the ends; may be empty.
    pub prefix: String,
    /// The id of the key.
    pub access_key: String,
    /// The secret part of the key.
    pub secret_key: Secret,
    /// The key that seals the signing keys and accounts in the database.
    pub master_key: MasterSecret,
}

/// The bytes of the setting `master_key`. `Debug` does not print them.
#[derive(Clone, PartialEq, Eq)]
pub struct MasterSecret([u8; 32]);

impl MasterSecret {
    /// The bytes. Not for logs and errors.
    #[must_use]
    pub const fn expose(&self) -> [u8; 32] {
        self.0
    }
}

impl fmt::Debug for MasterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterSecret(…)")
    }
}

impl S3Config {
    /// Validates the settings `s3_…`, and reads the file with the secret key; `None` if none of
    /// them is set. Blocks.
    ///
    /// # Errors
    ///
    /// A setting is missing or invalid, the file cannot be read, or `database_url` is not set.
    pub fn of(raw: &RawConfig) -> Result<Option<Self>, ConfigError> {
        let set = |value: &Option<String>| value.clone().filter(|text| !text.is_empty());
        let secret_key = raw.s3_secret_key.clone().filter(|secret| !secret.expose().is_empty());
        let secret_file = set(&raw.s3_secret_key_file);
        let (endpoint, bucket, access_key) = (set(&raw.s3_endpoint), set(&raw.s3_bucket), set(&raw.s3_access_key));
        let (region, prefix) = (set(&raw.s3_region), set(&raw.s3_prefix));
        let public_endpoint = set(&raw.s3_public_endpoint);
        let others = [&public_endpoint, &bucket, &access_key, &region, &prefix, &secret_file];
        let is_set = endpoint.is_some() || others.into_iter().any(Option::is_some);
        if !is_set && secret_key.is_none() {
            return Ok(None);
        }
        let missing = |key: &'static str| ConfigError::Missing { key, by: "the other settings s3_…" };
        let config = Self {
            endpoint: endpoint_of("s3_endpoint", endpoint.ok_or_else(|| missing("s3_endpoint"))?)?,
            public_endpoint: public_endpoint.map(|url| endpoint_of("s3_public_endpoint", url)).transpose()?,
            region: region.unwrap_or_else(|| DEFAULT_REGION.to_owned()),
            bucket: bucket_of(bucket.ok_or_else(|| missing("s3_bucket"))?)?,
            prefix: prefix_of(prefix.unwrap_or_default())?,
            access_key: access_key.ok_or_else(|| missing("s3_access_key"))?,
            secret_key: one_of(secret_key, ("s3_secret_key_file", secret_file))?
                .ok_or_else(|| missing("s3_secret_key or s3_secret_key_file"))?,
            master_key: master_key_of(raw)?.ok_or_else(|| missing("master_key or master_key_file"))?,
        };
        if raw.database_url.as_ref().is_none_or(|url| url.expose().is_empty()) {
            return Err(ConfigError::Missing { key: "database_url", by: "the settings s3_…" });
        }
        Ok(Some(config))
    }
}

/// A secret that is set itself, or by the file that has it.
fn one_of(
    secret: Option<Secret>,
    (file_key, file): (&'static str, Option<String>),
) -> Result<Option<Secret>, ConfigError> {
    match (secret, file) {
        (Some(_), Some(value)) => {
            let reason = format!("{} is set, too: unset one of the two", file_key.trim_end_matches("_file"));
            Err(ConfigError::Value { key: file_key, value, reason })
        }
        (secret @ Some(_), None) => Ok(secret),
        (None, Some(path)) => read_secret(file_key, Path::new(&path)).map(Some),
        (None, None) => Ok(None),
    }
}

/// The setting `master_key`, or that of the file.
fn master_key_of(raw: &RawConfig) -> Result<Option<MasterSecret>, ConfigError> {
    let secret = raw.master_key.clone().filter(|secret| !secret.expose().is_empty());
    let file = raw.master_key_file.clone().filter(|text| !text.is_empty());
    let Some(text) = one_of(secret, ("master_key_file", file))? else { return Ok(None) };
    let digits: Option<Vec<u8>> =
        text.expose().chars().map(|digit| digit.to_digit(16).and_then(|value| u8::try_from(value).ok())).collect();
    let pairs = digits.as_deref().and_then(|digits| match digits.as_chunks::<2>() {
        (pairs, []) => <[[u8; 2]; 32]>::try_from(pairs).ok(),
        _ => None,
    });
    // The value is not shown.
    let invalid = || ConfigError::Value {
        key: "master_key",
        value: "…".to_owned(),
        reason: "expected 64 hexadecimal digits, as openssl rand -hex 32 prints".to_owned(),
    };
    pairs.map(|pairs| Some(MasterSecret(pairs.map(|[high, low]| high << 4 | low)))).ok_or_else(invalid)
}

fn endpoint_of(key: &'static str, text: String) -> Result<String, ConfigError> {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")).unwrap_or_default();
    let host = host.trim_end_matches('/');
    if host.is_empty() || host.contains(['/', '?', '#', ' ', '@']) {
        // The value is not shown, because a URL can have a password.
        let reason = "expected http:// or https://, a host, and optionally a port".to_owned();
        return Err(ConfigError::Value { key, value: "…".to_owned(), reason });
    }
    Ok(text.trim_end_matches('/').to_owned())
}

fn bucket_of(text: String) -> Result<String, ConfigError> {
    let is_valid = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
    if is_valid {
        return Ok(text);
    }
    let reason = "expected letters, digits, \".\", \"-\" and \"_\"".to_owned();
    Err(ConfigError::Value { key: "s3_bucket", value: text, reason })
}

fn prefix_of(text: String) -> Result<String, ConfigError> {
    let prefix = text.trim_matches('/');
    let is_valid = prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'/'));
    let has_dots = prefix.split('/').any(|part| part == "." || part == ".." || (part.is_empty() && !prefix.is_empty()));
    // Otherwise the objects of one store could be among those of another one.
    let is_ours = prefix.split('/').any(|part| ["xorbs", "shards", "blocks"].contains(&part));
    if is_ours {
        let reason = "no part may be xorbs, shards or blocks".to_owned();
        return Err(ConfigError::Value { key: "s3_prefix", value: text, reason });
    }
    if is_valid && !has_dots {
        return Ok(prefix.to_owned());
    }
    let reason = "expected letters, digits, \".\", \"-\" and \"_\", in parts with \"/\" between them".to_owned();
    Err(ConfigError::Value { key: "s3_prefix", value: text, reason })
}

/// Reads the file with a secret. White space around it is ignored.
fn read_secret(key: &'static str, path: &Path) -> Result<Secret, ConfigError> {
    let read = File::open(path).and_then(|file| {
        let mut text = String::new();
        file.take(MAX_SECRET_LEN).read_to_string(&mut text).map(|_| text)
    });
    let text = read.map_err(|source| ConfigError::ReadSecret { key, path: path.to_owned(), source })?;
    let secret = text.trim();
    if secret.is_empty() {
        let (value, reason) = (path.display().to_string(), "the file is empty".to_owned());
        return Err(ConfigError::Value { key, value, reason });
    }
    Ok(Secret::new(secret))
}
