//! Settings of quotas.

use std::collections::BTreeMap;

use super::error::ConfigError;
use super::raw::{RawConfig, RawQuota};
use super::units::Size;

/// Maximum number of bytes of a name, as in tokens.
const MAX_NAME_LEN: usize = 255;

/// Limits of a repository, or of all repositories of an owner together. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Maximum number of files.
    pub files: Option<u64>,
    /// Maximum raw bytes of the files.
    pub logical_bytes: Option<u64>,
    /// Maximum serialized bytes of the xorbs that the files reference, and of the files' records.
    pub physical_bytes: Option<u64>,
}

/// Quotas of all repositories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaConfig {
    /// Limits of each repository without a quota of its own, except `*`.
    pub each: QuotaLimits,
    /// Limits of single repositories, by name. The name `*` is for files that were registered with
    /// tokens for all repositories.
    pub repos: BTreeMap<String, QuotaLimits>,
    /// Limits of all repositories of an owner together, by the owner's name.
    pub owners: BTreeMap<String, QuotaLimits>,
}

impl QuotaConfig {
    /// Validates the settings, and fills in the defaults.
    ///
    /// # Errors
    ///
    /// A number is negative, or a name is invalid.
    pub fn new(raw: &RawConfig) -> Result<Self, ConfigError> {
        let each = QuotaLimits {
            files: count("quota_files", raw.quota_files)?,
            logical_bytes: raw.quota_logical_bytes.and_then(limit),
            physical_bytes: raw.quota_physical_bytes.and_then(limit),
        };
        let mut config = Self { each, ..Self::default() };
        for (name, written) in &raw.quota {
            check_name(name)?;
            match name.strip_suffix("/*") {
                Some(owner) => config.owners.insert(owner.to_owned(), limits(written, QuotaLimits::default())?),
                // `*` does not inherit the `quota_…` settings, which are for single repositories.
                None if name == "*" => config.repos.insert(name.clone(), limits(written, QuotaLimits::default())?),
                None => config.repos.insert(name.clone(), limits(written, each)?),
            };
        }
        Ok(config)
    }
}

/// The limits of a quota. A limit that is not set is that of `rest`.
fn limits(written: &RawQuota, rest: QuotaLimits) -> Result<QuotaLimits, ConfigError> {
    let size = |value: Option<Size>, rest| value.map_or(rest, limit);
    Ok(QuotaLimits {
        files: if written.files.is_some() { count("quota", written.files)? } else { rest.files },
        logical_bytes: size(written.logical_bytes, rest.logical_bytes),
        physical_bytes: size(written.physical_bytes, rest.physical_bytes),
    })
}

/// A limit of a number of files; 0 or not set means no limit.
fn count(key: &'static str, value: Option<i64>) -> Result<Option<u64>, ConfigError> {
    let value = value.unwrap_or(0);
    let count = u64::try_from(value).map_err(|_| ConfigError::Value {
        key,
        value: value.to_string(),
        reason: "must be at least 1, or 0 for no limit".to_owned(),
    })?;
    Ok(Some(count).filter(|count| *count > 0))
}

/// A limit in bytes; 0 means no limit.
fn limit(Size(bytes): Size) -> Option<u64> {
    Some(bytes).filter(|bytes| *bytes > 0)
}

/// Refuses a name that no token can have, because its quota would have no effect.
fn check_name(name: &str) -> Result<(), ConfigError> {
    let is_malformed = name.chars().any(|character| character.is_control() || character.is_whitespace());
    if name.is_empty() || name.len() > MAX_NAME_LEN || is_malformed || name == "*/*" {
        let reason = "expected a repository, like acme/bert, all repositories of an owner, like acme/*, or * for \
            registrations by tokens of all repositories";
        return Err(ConfigError::Value { key: "quota", value: name.to_owned(), reason: reason.to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<QuotaConfig, ConfigError> {
        QuotaConfig::new(&RawConfig::parse(text, "a test")?)
    }

    #[test]
    fn quota_is_per_repository_for_one_or_all_of_an_owner() {
        assert_eq!(parse("").unwrap(), QuotaConfig::default());
        let text = "quota_files = 10\nquota_physical_bytes = '500B'\n[quota.'acme/bert']\nfiles = 0\nlogical_bytes = 7\n\
             [quota.'acme/*']\nfiles = 12\n[quota.'*']\nphysical_bytes = 9";
        let config = parse(text).unwrap();
        let none = QuotaLimits::default();
        assert_eq!(config.each, QuotaLimits { files: Some(10), physical_bytes: Some(500), ..none });
        let bert = QuotaLimits { files: None, logical_bytes: Some(7), physical_bytes: Some(500) };
        assert_eq!(config.repos["acme/bert"], bert, "a limit that is not set is inherited");
        assert_eq!(config.owners["acme"], QuotaLimits { files: Some(12), ..none });
        assert_eq!(config.repos["*"], QuotaLimits { physical_bytes: Some(9), ..none });
    }

    #[test]
    fn a_quota_without_effect_is_refused() {
        for (text, named) in [
            ("quota_files = -1", "quota_files"),
            ("[quota.'acme/bert']\nfiles = -1", "quota"),
            ("[quota.'acme/bert']\nfile = 1", "file"),
            ("[quota.'*/*']\nfiles = 1", "*/*"),
            ("[quota.'']\nfiles = 1", "quota"),
            ("[quota.'acme/ bert']\nfiles = 1", "acme/ bert"),
            ("[quotas.'acme/bert']\nfiles = 1", "quotas"),
        ] {
            let refused = parse(text).unwrap_err().to_string();
            assert!(refused.contains(named), "{text}: {refused}");
        }
    }

    #[test]
    fn the_examples_of_the_documented_file_are_good() {
        let text = include_str!("../../config/default.toml");
        let example: String =
            text.lines().filter_map(|line| line.strip_prefix("#  ")).map(|line| format!("{line}\n")).collect();
        let config = parse(&example).unwrap();
        assert_eq!((config.repos.len(), config.owners.len()), (1, 1), "{example}");
    }
}
