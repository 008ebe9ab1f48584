//! Errors of settings.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// Why the settings are refused.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file is missing or unreadable.
    #[error("cannot read the configuration file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A key has a name of an earlier version.
    #[error("{origin}: the setting {old} was renamed to {new}; see config/default.toml for its form")]
    Renamed {
        /// The source that has the key.
        origin: String,
        /// The name that the source has.
        old: &'static str,
        /// The present name of the key.
        new: &'static str,
    },
    /// The text is not TOML, or has an unknown key or a value of another type.
    #[error("{origin} is not valid: {message}")]
    Invalid {
        /// The source.
        origin: String,
        /// The error of the parser.
        message: String,
    },
    /// A file with a secret is missing or unreadable.
    #[error("cannot read the file {} that {key} names", path.display())]
    ReadSecret {
        /// The key.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A key is not set, and other settings need it.
    #[error("{key} is not set, and {by} require it; see docs/s3.md")]
    Missing {
        /// The key.
        key: &'static str,
        /// The settings that need it.
        by: &'static str,
    },
    /// A value is invalid.
    #[error("{key} = {value}: {reason}")]
    Value {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// Why the value is invalid.
        reason: String,
    },
    /// The server would listen on an address that is not loopback, without authentication and
    /// without `allow_anonymous`. Then every machine that reaches the port could write.
    #[error(
        "refusing to listen on {listen} without authentication: anyone who can reach it could read and write. Ask \
         for tokens with --auth token (auth = \"token\"), listen on 127.0.0.1, or say --allow-anonymous (allow_anonymous = true) if the network in front of it is trusted"
    )]
    Exposed {
        /// The configured address.
        listen: SocketAddr,
    },
}

/// Parses the value of a key. The error has the text `expected`.
pub(super) fn parse<T>(key: &'static str, text: &str, expected: &str) -> Result<T, ConfigError>
where
    T: FromStr,
    T::Err: Display,
{
    text.parse().map_err(|error| ConfigError::Value {
        key,
        value: text.to_owned(),
        reason: format!("expected {expected} ({error})"),
    })
}
