//! Logs: tracing events to stderr, as text for people or JSON lines for machines.

use std::error::Error as StdError;
use std::fmt::Write;
use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One readable line per event.
    Text,
    /// One JSON object per event.
    Json,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is not in the notation of tracing (`info`, `zorb=debug,info`).
    #[error("the log filter is not valid")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    /// Something has set up logging before.
    #[error("logging is already set up")]
    Installed,
}

/// Installs the process's log output. To be called once, before anything is logged.
///
/// # Errors
///
/// The filter does not parse, or logging was installed before.
pub fn install(format: LogFormat, filter: &str) -> Result<(), LogError> {
    let filter = EnvFilter::try_new(filter).map_err(LogError::Filter)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    match format {
        LogFormat::Text => builder.with_ansi(stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|_| LogError::Installed)
}

/// An error and its causes, in one line. No `Display` of ours prints its own cause.
#[must_use]
pub fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing to a String does not fail.
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}
