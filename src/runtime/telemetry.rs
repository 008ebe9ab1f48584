//! Logs: tracing events to stderr, as text for people or JSON lines for machines.

use std::env;
use std::error::Error as StdError;
use std::ffi::OsString;
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
        LogFormat::Text => {
            builder.with_ansi(stderr().is_terminal() && !is_colorless(env::var_os("NO_COLOR"))).try_init()
        }
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|_| LogError::Installed)
}

/// Whether the variable `NO_COLOR` forbids colours: it does unless it is empty (no-color.org).
fn is_colorless(no_color: Option<OsString>) -> bool {
    no_color.is_some_and(|value| !value.is_empty())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_color_forbids_colours_unless_it_is_empty() {
        assert!(!is_colorless(None));
        assert!(!is_colorless(Some(OsString::new())));
        assert!(is_colorless(Some("1".into())));
    }
}
