//! Renders a progress bar as one line that fits into a terminal of any width.

use std::fmt::Write;
use std::io::stderr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressState, ProgressStyle};
use rustix::termios::tcgetwinsize;

use super::plain::Plain;
use super::units::Size;

/// Columns of a terminal whose width is unknown.
const DEFAULT_WIDTH: u16 = 80;

/// Maximum columns of the name.
const MAX_NAME_WIDTH: usize = 24;

/// Columns that are reserved for the name: figures that do not fit beside them are left out.
const MIN_NAME_WIDTH: usize = 8;

/// A bar with fewer columns is left out.
const MIN_BAR_WIDTH: usize = 6;

/// The number of completed files, for a bar that shows it.
#[derive(Clone, Debug)]
pub(super) struct FileCount {
    done: Arc<AtomicU64>,
    total: u64,
}

impl FileCount {
    pub(super) fn of(total: u64) -> Self {
        Self { done: Arc::default(), total }
    }

    /// Counts one more completed file.
    pub(super) fn inc(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Starts counting again from 0.
    pub(super) fn reset(&self) {
        self.done.store(0, Ordering::Relaxed);
    }
}

/// The style of a bar with this name, and with the number of files if given.
pub(super) fn style(name: &str, files: Option<FileCount>) -> ProgressStyle {
    let name = Plain(name).to_string();
    let line = move |state: &ProgressState, text: &mut dyn Write| {
        // Read at each redraw, because the user may resize the terminal.
        let width = tcgetwinsize(stderr()).map_or(0, |size| size.ws_col);
        let width = if width == 0 { DEFAULT_WIDTH } else { width };
        let figures = Figures {
            done: state.pos(),
            total: state.len().unwrap_or(0),
            per_sec: state.per_sec(),
            left: state.eta(),
            files: files.as_ref().map(|files| (files.done.load(Ordering::Relaxed), files.total)),
        };
        // An error only leaves the line out; the command goes on.
        let _ = text.write_str(&render(width.into(), &name, &figures));
    };
    ProgressStyle::with_template("{line}").expect("the template is constant and valid").with_key("line", line)
}

/// The figures of a progress bar.
#[derive(Clone, Copy, Debug)]
struct Figures {
    /// Bytes so far.
    done: u64,
    /// Total bytes, as far as known.
    total: u64,
    /// Bytes per second.
    per_sec: f64,
    /// The estimated time to completion.
    left: Duration,
    /// Completed files, and all files.
    files: Option<(u64, u64)>,
}

/// Renders the line: the name, a bar if it fits, and as many figures as fit. The last column stays
/// free, because some terminals wrap to the next line when it is written.
fn render(width: usize, name: &str, figures: &Figures) -> String {
    let width = width.saturating_sub(1);
    let texts = figures.choices();
    let name_width = columns(name).min(MIN_NAME_WIDTH);
    let fits = |text: &&String| name_width + 1 + columns(text) <= width;
    let text = texts.iter().find(fits).cloned().unwrap_or_default();
    let rest = width.saturating_sub(columns(&text) + 1);
    let name = cut(name, rest.min(MAX_NAME_WIDTH));
    let bar_width = rest.saturating_sub(columns(&name) + 1);
    let line = if bar_width < MIN_BAR_WIDTH {
        format!("{name} {text}")
    } else {
        format!("{name} {} {text}", bar(bar_width, figures))
    };
    cut(&line, width)
}

impl Figures {
    /// The figures as text in five forms, from the longest to the shortest.
    fn choices(&self) -> [String; 5] {
        let files = self.files.map(|(done, total)| format!(" {done}/{total} files")).unwrap_or_default();
        let bytes = format!("{}/{}", Size(self.done), Size(self.total.max(self.done)));
        let share = format!("{}%", self.percent());
        let left = if self.done == 0 || self.done >= self.total {
            String::new()
        } else {
            format!(" ETA {}", ClockTime(self.left))
        };
        [
            format!("{bytes} {}/s{files}{left}", Size(rate(self.per_sec))),
            format!("{bytes}{files}{left}"),
            format!("{share}{files}{left}"),
            format!("{share}{left}"),
            share,
        ]
    }

    /// The completed percentage; 100 if the total is 0.
    fn percent(&self) -> u64 {
        let percent = u128::from(self.done) * 100 / u128::from(self.total.max(1));
        if self.total == 0 { 100 } else { u64::try_from(percent.min(100)).unwrap_or(100) }
    }
}

/// The rate as an integer; 0 if it is NaN, infinite or negative, as it may be at the beginning.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the value is finite and not negative")]
fn rate(per_sec: f64) -> u64 {
    if per_sec.is_finite() && per_sec > 0.0 { per_sec as u64 } else { 0 }
}

/// The bar itself: a full block for each completed part, and a light one for each other part.
fn bar(width: usize, figures: &Figures) -> String {
    let full = usize::try_from(figures.percent()).unwrap_or(100) * width / 100;
    format!("{}{}", "█".repeat(full), "░".repeat(width - full))
}

/// Truncates a text to this number of columns.
fn cut(text: &str, width: usize) -> String {
    let mut used = 0;
    let fits = |character: &char| {
        used += column_count(*character);
        used <= width
    };
    text.chars().take_while(fits).collect()
}

/// Upper bound for the columns of a text.
fn columns(text: &str) -> usize {
    text.chars().map(column_count).sum()
}

/// Upper bound for the columns of a character. Terminals disagree about which characters take two
/// columns, so every character that may be wide counts as 2.
fn column_count(character: char) -> usize {
    if character < '\u{1100}' || matches!(character, '\u{2190}'..='\u{259f}') { 1 } else { 2 }
}

/// A duration as hours, minutes and seconds: `0:05`, `12:34`, `1:02:03`. From 100 hours on, the
/// number of whole days.
struct ClockTime(Duration);

impl std::fmt::Display for ClockTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let secs = self.0.as_secs();
        let (hours, minutes, secs) = (secs / 3600, secs / 60 % 60, secs % 60);
        match hours {
            0 => write!(f, "{minutes}:{secs:02}"),
            1..=99 => write!(f, "{hours}:{minutes:02}:{secs:02}"),
            _ => write!(f, "{} days", hours / 24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn figures(done: u64, total: u64, files: Option<(u64, u64)>) -> Figures {
        Figures { done, total, per_sec: 2_097_152.0, left: Duration::from_secs(75), files }
    }

    #[test]
    fn a_wide_line_has_bytes_rate_count_and_eta() {
        let line = render(100, "reading", &figures(512 * MIB, 1024 * MIB, Some((12, 5000))));
        assert!(line.ends_with(" 512.0 MiB/1.0 GiB 2.0 MiB/s 12/5000 files ETA 1:15"), "{line}");
        assert!(line.starts_with("reading ██") && line.contains("█░"), "{line}");
        assert_eq!(columns(&line), 99);
    }

    #[test]
    fn narrow_line_keeps_count_and_eta_and_never_wraps() {
        let line = render(40, "reading", &figures(512 * MIB, 1024 * MIB, Some((12, 5000))));
        assert_eq!(line, "reading 50% 12/5000 files ETA 1:15");
        let line = render(40, "a-model-with-a-very-long-name.safetensors", &figures(512 * MIB, 1024 * MIB, None));
        assert_eq!(line, "a-model-with 512.0 MiB/1.0 GiB ETA 1:15");
        for width in 0..200 {
            for name in ["reading", "漢字漢字漢字漢字漢字漢字漢字漢字", ""] {
                for shown in [figures(1, 3, None), figures(u64::MAX, u64::MAX, Some((u64::MAX, u64::MAX)))] {
                    let line = render(width, name, &shown);
                    assert!(columns(&line) <= width.saturating_sub(1), "{width}: {line}");
                }
            }
        }
    }

    #[test]
    fn empty_total_shows_a_full_bar_without_eta() {
        let nothing = Figures { per_sec: f64::NAN, ..figures(0, 0, Some((0, 1))) };
        assert_eq!(render(40, "reading", &nothing), "reading ███████ 0 B/0 B 0 B/s 0/1 files");
        assert!(!render(80, "reading", &figures(0, 10, None)).contains("ETA"));
        assert!(render(80, "reading", &figures(12, 10, None)).contains(" 12 B/12 B "));
    }
}
