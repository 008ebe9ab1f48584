//! Logs: tracing events to stderr, as text for people or JSON lines for machines.

mod filter;

use std::env;
use std::error::Error as StdError;
use std::ffi::OsString;
use std::fmt::{Display, Error as FormatError, Write};
use std::io::{IsTerminal, stderr};
use std::time::Duration;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

pub use self::filter::{FilterError, LogFilter};

/// Maximum characters of a path in a log line.
const MAX_SHOWN_LEN: usize = 200;

/// Maximum bytes of a message that quotes what a client has sent. The Hub has the message in a
/// header, too, and balancers accept 4 KiB of head.
const MAX_BRIEF_LEN: usize = 1024;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One readable line per event.
    Text,
    /// One JSON object per event.
    Json,
}

/// Logging is already set up.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("logging is already set up")]
pub struct AlreadyInstalled;

/// Installs the log output of this process. To be called once, before any event is logged.
///
/// # Errors
///
/// Logging was installed before.
pub fn install(format: LogFormat, filter: &LogFilter) -> Result<(), AlreadyInstalled> {
    let (registry, layer) = (registry().with(filter.to_targets()), fmt::layer().with_writer(stderr));
    match format {
        LogFormat::Text => {
            let is_colored = stderr().is_terminal() && !is_colorless(env::var_os("NO_COLOR"));
            registry.with(layer.with_ansi(is_colored)).try_init()
        }
        // A line has at most one span, that of its request. A list of spans would repeat it.
        LogFormat::Json => registry.with(layer.json().flatten_event(true).with_span_list(false)).try_init(),
    }
    .map_err(|_| AlreadyInstalled)
}

/// A duration in milliseconds, as a field of a log line. The number has 64 bits, because a wider
/// one would be a string in JSON.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The beginning of a path, for logs, because a path can be as long as a request head.
#[must_use]
pub fn shown(path: &str) -> &str {
    let end = path.char_indices().nth(MAX_SHOWN_LEN).map_or(path.len(), |(at, _)| at);
    path.get(..end).unwrap_or(path)
}

/// What `what` displays, cut after 1 KiB. Messages quote what clients send, which can be as long as
/// a body. The rest is never written, so it takes no memory.
#[must_use]
pub fn brief(what: impl Display) -> String {
    let mut brief = Brief(String::new());
    if write!(brief, "{what}").is_err() {
        brief.0.push('…');
    }
    brief.0
}

struct Brief(String);

impl Write for Brief {
    fn write_str(&mut self, text: &str) -> Result<(), FormatError> {
        let begin = &text[..text.floor_char_boundary(MAX_BRIEF_LEN - self.0.len())];
        self.0.push_str(begin);
        if begin.len() == text.len() { Ok(()) } else { Err(FormatError) }
    }
}

/// Whether the variable `NO_COLOR` forbids colours. It does if it is set and not empty
/// (no-color.org).
fn is_colorless(no_color: Option<OsString>) -> bool {
    no_color.is_some_and(|value| !value.is_empty())
}

/// An error and its causes, in one line. No cause is repeated, because the `Display` of our errors
/// does not print the cause.
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
    fn brief_text_has_a_kib_at_most_and_whole_characters() {
        assert_eq!(brief("short"), "short");
        let exact = "x".repeat(MAX_BRIEF_LEN);
        assert_eq!(brief(&exact), exact);
        assert_eq!(brief(format_args!("{exact}y")), format!("{exact}…"));
        let wide = brief("€".repeat(MAX_BRIEF_LEN));
        assert_eq!(wide, format!("{}…", "€".repeat(MAX_BRIEF_LEN / 3)));
        // Each character takes six bytes.
        assert!(brief(format_args!("{:?}", "\u{7f}".repeat(1 << 20))).len() < MAX_BRIEF_LEN + 4);
    }

    #[test]
    fn no_color_forbids_colours_unless_it_is_empty() {
        assert!(!is_colorless(None));
        assert!(!is_colorless(Some(OsString::new())));
        assert!(is_colorless(Some("1".into())));
    }
}
