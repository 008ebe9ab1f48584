//! The URL of the database of the index.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use super::error::ConfigError;

/// The URL of a PostgreSQL database. It may contain a password, so `Debug` does not print it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    /// The URL, with its password. Not for logs and errors.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Validates the value of `database_url`; `None` if it is empty or not set.
    ///
    /// # Errors
    ///
    /// The value is not the URL of a PostgreSQL database.
    pub fn of(written: Option<Self>) -> Result<Option<Self>, ConfigError> {
        let Some(url) = written.filter(|url| !url.0.is_empty()) else { return Ok(None) };
        if !["postgres://", "postgresql://"].iter().any(|scheme| url.0.starts_with(scheme)) {
            let reason = "expected postgres://USER:PASSWORD@HOST:PORT/DATABASE".to_owned();
            return Err(ConfigError::Value { key: "database_url", value: "…".to_owned(), reason });
        }
        Ok(Some(url))
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DatabaseUrl(…)")
    }
}

impl FromStr for DatabaseUrl {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}
