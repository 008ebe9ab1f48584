//! The one door to the terminal: lines for people, JSON lines for machines, progress bars,
//! complaints.
//!
//! What a command found goes to stdout; how it is going, and what went wrong, to stderr. With
//! `--json` stdout has one JSON object per line and nothing else.

use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write, stderr, stdout};
use std::time::Duration;

use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use thiserror::Error;

use super::bar::{self, FileCount};
pub(super) use super::plain::Plain;
use crate::client::is_shown;

/// Who reads the output.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct OutputArgs {
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
    /// Print only errors
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
}

impl OutputArgs {
    pub(super) const fn is_json(self) -> bool {
        self.json
    }
}

/// Where a command says what it did.
#[derive(Clone, Debug)]
pub(super) struct Output {
    args: OutputArgs,
    /// Whether stdout carries data, so that what is said has to go to stderr.
    is_piped: bool,
    bars: MultiProgress,
}

/// Why nothing more can be said on stdout.
#[derive(Debug, Error)]
pub(super) enum OutputError {
    /// The reader closed it, as `head` does after ten lines. Not reported.
    #[error("stdout: broken pipe")]
    Closed,
    /// It cannot be written to.
    #[error("cannot write to stdout")]
    Write(#[source] io::Error),
}

impl Output {
    pub(super) fn new(args: OutputArgs) -> Self {
        let is_watched = stderr().is_terminal() && !args.json && !args.quiet;
        let target = if is_watched { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self { args, is_piped: false, bars: MultiProgress::with_draw_target(target) }
    }

    /// The same where stdout carries data.
    pub(super) fn beside_data(mut self, stdout_has_data: bool) -> Self {
        self.is_piped = stdout_has_data;
        self
    }

    /// A line for people.
    pub(super) fn line(&self, text: impl Display) -> Result<(), OutputError> {
        if self.args.json || self.args.quiet {
            return Ok(());
        }
        if self.is_piped {
            self.bars.suspend(|| to_stderr(text));
            return Ok(());
        }
        self.print(&format!("{}\n", Tame(text)))
    }

    /// A line for people that is no result: where stdout has one line per result, the sum goes to
    /// stderr.
    pub(super) fn summary(&self, text: impl Display) {
        if !self.args.json && !self.args.quiet {
            self.bars.suspend(|| to_stderr(text));
        }
    }

    /// An object for machines.
    pub(super) fn record(&self, value: &impl Serialize) -> Result<(), OutputError> {
        if !self.args.json {
            return Ok(());
        }
        let text = serde_json::to_string(value).expect("records have string keys and finite numbers");
        self.print(&format!("{}\n", escape_json(&text)))
    }

    /// A remark on the way, for people.
    pub(super) fn remark(&self, text: impl Display) {
        if !self.args.quiet {
            self.complain(text);
        }
    }

    /// Something that went wrong.
    pub(super) fn complain(&self, text: impl Display) {
        self.bars.suspend(|| complain(text));
    }

    /// A bar that shows bytes; hidden unless stderr is a terminal.
    pub(super) fn bar(&self, len: u64, name: impl AsRef<str>) -> ProgressBar {
        self.styled(len, bar::style(name.as_ref(), None))
    }

    /// The same with the number of files that are done.
    pub(super) fn counted_bar(&self, len: u64, name: &str, files: &FileCount) -> ProgressBar {
        self.styled(len, bar::style(name, Some(files.clone())))
    }

    fn styled(&self, len: u64, style: ProgressStyle) -> ProgressBar {
        let bar = self.bars.add(ProgressBar::new(len)).with_style(style);
        if !self.bars.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(250));
        }
        bar
    }

    fn print(&self, text: &str) -> Result<(), OutputError> {
        self.bars.suspend(|| write_stdout(|stdout| stdout.write_all(text.as_bytes())))
    }
}

/// Writes data to stdout.
pub(super) fn write_stdout(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), OutputError> {
    let mut stdout = stdout().lock();
    write(&mut stdout).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => OutputError::Closed,
        _ => OutputError::Write(error),
    })
}

/// Says why a command failed.
pub(super) fn complain(text: impl Display) {
    to_stderr(format_args!("zorb: {text}"));
}

#[expect(clippy::print_stderr, reason = "this is the door")]
fn to_stderr(text: impl Display) {
    eprintln!("{}", Tame(text));
}

/// Text of whatever origin as it goes to a terminal: with lines and tabs, and nothing else that a
/// terminal obeys. The last line of defence: what is known to be foreign is [`Plain`] before.
struct Tame<T>(T);

impl<T: Display> Display for Tame<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.to_string().chars() {
            if is_shown(c) || matches!(c, '\n' | '\t') {
                write!(f, "{c}")?;
            } else {
                write!(f, "{}", c.escape_default())?;
            }
        }
        Ok(())
    }
}

/// The same JSON without what a terminal obeys: such characters can only be in its texts, where
/// they may be escaped.
fn escape_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if is_shown(c) {
            text.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_one_line_without_terminal_control_characters() {
        let shown = |name: &str| Plain(name).to_string();
        assert_eq!(shown("größe 1.txt"), "größe 1.txt");
        assert_eq!(shown("a\nb\x1b[2J\u{9b}c"), "a\\nb\\u{1b}[2J\\u{9b}c");
        assert_eq!(shown("gpj\u{202e}exe"), "gpj\\u{202e}exe");
        assert_ne!(shown("\\n"), shown("\n"));
    }

    #[test]
    fn the_door_lets_nothing_through_that_a_terminal_obeys() {
        assert_eq!(Tame("a\tb\nc\\d").to_string(), "a\tb\nc\\d");
        assert_eq!(Tame("\u{1b}[2J\u{9b}\u{202e}\u{61c}").to_string(), "\\u{1b}[2J\\u{9b}\\u{202e}\\u{61c}");
        let text = "\u{1b}\u{9b}\u{202e}\u{e0041}\n";
        let json = escape_json(&serde_json::to_string(text).unwrap());
        assert_eq!(json, r#""\u001b\u009b\u202e\udb40\udc41\n""#);
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}
