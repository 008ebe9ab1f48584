//! All output of commands: lines for people, JSON lines for programs, progress bars, and errors.
//!
//! Results go to stdout; progress and errors go to stderr. With `--json` stdout has one JSON object
//! per line and nothing else.

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

/// The flags that choose the form of the output.
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

/// The output of a command.
#[derive(Clone, Debug)]
pub(super) struct Output {
    args: OutputArgs,
    /// Whether stdout carries the data of the command. Then lines for people go to stderr.
    stdout_has_data: bool,
    bars: MultiProgress,
}

/// Why stdout cannot be written.
#[derive(Debug, Error)]
pub(super) enum OutputError {
    /// The reader of the pipe closed it, as `head` does after ten lines. Not reported to the user.
    #[error("stdout: broken pipe")]
    Closed,
    /// Writing failed.
    #[error("cannot write to stdout")]
    Write(#[source] io::Error),
}

impl Output {
    pub(super) fn new(args: OutputArgs) -> Self {
        let shows_bars = stderr().is_terminal() && !args.json && !args.quiet;
        let target = if shows_bars { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self { args, stdout_has_data: false, bars: MultiProgress::with_draw_target(target) }
    }

    /// Changes the output for a command that may write its data to stdout.
    pub(super) fn beside_data(mut self, stdout_has_data: bool) -> Self {
        self.stdout_has_data = stdout_has_data;
        self
    }

    /// Prints a line of the result for people; nothing with `--json` or `--quiet`.
    pub(super) fn line(&self, text: impl Display) -> Result<(), OutputError> {
        if self.args.json || self.args.quiet {
            return Ok(());
        }
        if self.stdout_has_data {
            self.bars.suspend(|| to_stderr(text));
            return Ok(());
        }
        self.print(&format!("{}\n", EscapedText(text)))
    }

    /// Prints a line for people that sums up the results; nothing with `--json` or `--quiet`. It
    /// goes to stderr, so that it does not mix with the results.
    pub(super) fn summary(&self, text: impl Display) {
        if !self.args.json && !self.args.quiet {
            self.bars.suspend(|| to_stderr(text));
        }
    }

    /// Prints a JSON object for programs; nothing without `--json`.
    pub(super) fn record(&self, value: &impl Serialize) -> Result<(), OutputError> {
        if !self.args.json {
            return Ok(());
        }
        let text = serde_json::to_string(value).expect("records have string keys and finite numbers");
        self.print(&format!("{}\n", escape_json(&text)))
    }

    /// Prints a remark to stderr, also with `--json`, but not with `--quiet`.
    pub(super) fn remark(&self, text: impl Display) {
        if !self.args.quiet {
            self.complain(text);
        }
    }

    /// Prints an error to stderr.
    pub(super) fn complain(&self, text: impl Display) {
        self.bars.suspend(|| complain(text));
    }

    /// A progress bar that counts bytes. It is hidden with `--json` or `--quiet`, and if stderr is
    /// not a terminal.
    pub(super) fn bar(&self, len: u64, name: impl AsRef<str>) -> ProgressBar {
        self.styled(len, bar::style(name.as_ref(), None))
    }

    /// A progress bar that counts bytes and also shows the number of completed files.
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

/// Writes data to stdout and flushes it.
pub(super) fn write_stdout(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), OutputError> {
    let mut stdout = stdout().lock();
    write(&mut stdout).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => OutputError::Closed,
        _ => OutputError::Write(error),
    })
}

/// Prints an error to stderr, for example the reason why a command failed.
pub(super) fn complain(text: impl Display) {
    to_stderr(format_args!("zorb: {text}"));
}

#[expect(clippy::print_stderr, reason = "the only function that prints to stderr")]
fn to_stderr(text: impl Display) {
    eprintln!("{}", EscapedText(text));
}

/// Escapes the characters of a text that control a terminal, except line breaks and tabs. This
/// covers names that a caller forgot to format with [`Plain`], which also escapes line breaks.
struct EscapedText<T>(T);

impl<T: Display> Display for EscapedText<T> {
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

/// Escapes the characters of a JSON text that control a terminal. They can only be inside strings,
/// so the result has the same meaning.
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
    fn output_has_no_terminal_control_characters() {
        assert_eq!(EscapedText("a\tb\nc\\d").to_string(), "a\tb\nc\\d");
        assert_eq!(EscapedText("\u{1b}[2J\u{9b}\u{202e}\u{61c}").to_string(), "\\u{1b}[2J\\u{9b}\\u{202e}\\u{61c}");
        let text = "\u{1b}\u{9b}\u{202e}\u{e0041}\n";
        let json = escape_json(&serde_json::to_string(text).unwrap());
        assert_eq!(json, r#""\u001b\u009b\u202e\udb40\udc41\n""#);
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}
