//! What a progress bar shows: one line that fits its terminal, however narrow that is.

use std::fmt::Write;
use std::io::stderr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressState, ProgressStyle};
use rustix::termios::tcgetwinsize;

use super::plain::Plain;
use super::units::Size;

/// Columns of a terminal that does not say how many it has.
const DEFAULT_WIDTH: u16 = 80;

/// Columns of what is under way, at most.
const MAX_NAME_WIDTH: usize = 24;

/// Columns of what is under way that are kept while figures could be left out instead.
const MIN_NAME_WIDTH: usize = 8;

/// Columns below which a bar shows nothing.
const MIN_BAR_WIDTH: usize = 6;

/// A number of files that are done, for a bar that shows it.
#[derive(Clone, Debug)]
pub(super) struct FileCount {
    done: Arc<AtomicU64>,
    total: u64,
}

impl FileCount {
    pub(super) fn of(total: u64) -> Self {
        Self { done: Arc::default(), total }
    }

    /// One more is done.
    pub(super) fn inc(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// None is done any more.
    pub(super) fn reset(&self) {
        self.done.store(0, Ordering::Relaxed);
    }
}

/// How a bar looks that is for this, and perhaps for so many files.
pub(super) fn style(name: &str, files: Option<FileCount>) -> ProgressStyle {
    let name = Plain(name).to_string();
    let line = move |state: &ProgressState, text: &mut dyn Write| {
        let width = tcgetwinsize(stderr()).map_or(0, |size| size.ws_col);
        let width = if width == 0 { DEFAULT_WIDTH } else { width };
        let figures = Figures {
            done: state.pos(),
            total: state.len().unwrap_or(0),
            per_sec: state.per_sec(),
            left: state.eta(),
            files: files.as_ref().map(|files| (files.done.load(Ordering::Relaxed), files.total)),
        };
        // A bar that cannot be drawn is none.
        let _ = text.write_str(&render(width.into(), &name, &figures));
    };
    ProgressStyle::with_template("{line}").expect("the template is constant and valid").with_key("line", line)
}

/// How far something is.
#[derive(Clone, Copy, Debug)]
struct Figures {
    /// Bytes.
    done: u64,
    /// Bytes in all, as far as they are known.
    total: u64,
    per_sec: f64,
    left: Duration,
    /// Files that are done, and all.
    files: Option<(u64, u64)>,
}

/// The line: the name, a bar if it fits, and as many figures as fit. One column stays free, because
/// some terminals begin a new line after the last one.
fn render(width: usize, name: &str, figures: &Figures) -> String {
    let width = width.saturating_sub(1);
    let figures_of = figures.choices();
    let name_width = columns(name).min(MIN_NAME_WIDTH);
    let fits = |text: &&String| name_width + 1 + columns(text) <= width;
    let text = figures_of.iter().find(fits).cloned().unwrap_or_default();
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
    /// What there is to say, from everything to the least.
    fn choices(&self) -> [String; 5] {
        let files = self.files.map(|(done, total)| format!(" {done}/{total} files")).unwrap_or_default();
        let bytes = format!("{}/{}", Size(self.done), Size(self.total.max(self.done)));
        let share = format!("{}%", self.percent());
        let left = if self.done == 0 || self.done >= self.total {
            String::new()
        } else {
            format!(" ETA {}", Clock(self.left))
        };
        [
            format!("{bytes} {}/s{files}{left}", Size(rate(self.per_sec))),
            format!("{bytes}{files}{left}"),
            format!("{share}{files}{left}"),
            format!("{share}{left}"),
            share,
        ]
    }

    /// Of nothing, all is done.
    fn percent(&self) -> u64 {
        let percent = u128::from(self.done) * 100 / u128::from(self.total.max(1));
        if self.total == 0 { 100 } else { u64::try_from(percent.min(100)).unwrap_or(100) }
    }
}

/// Bytes per second, of which there may be no number at the beginning.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the value is finite and not negative")]
fn rate(per_sec: f64) -> u64 {
    if per_sec.is_finite() && per_sec > 0.0 { per_sec as u64 } else { 0 }
}

fn bar(width: usize, figures: &Figures) -> String {
    let full = usize::try_from(figures.percent()).unwrap_or(100) * width / 100;
    format!("{}{}", "█".repeat(full), "░".repeat(width - full))
}

/// The first columns of a text.
fn cut(text: &str, width: usize) -> String {
    let mut used = 0;
    let fits = |character: &char| {
        used += column_count(*character);
        used <= width
    };
    text.chars().take_while(fits).collect()
}

fn columns(text: &str) -> usize {
    text.chars().map(column_count).sum()
}

/// Columns of a character, at most: which of them are wide depends on the terminal.
fn column_count(character: char) -> usize {
    if character < '\u{1100}' || matches!(character, '\u{2190}'..='\u{259f}') { 1 } else { 2 }
}

/// A time as clocks show it: `0:05`, `12:34`, `1:02:03`.
struct Clock(Duration);

impl std::fmt::Display for Clock {
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
    fn at_40_columns_count_and_eta_stay_and_nothing_wraps() {
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
    fn of_0_bytes_all_is_done_and_no_time_is_left() {
        let nothing = Figures { per_sec: f64::NAN, ..figures(0, 0, Some((0, 1))) };
        assert_eq!(render(40, "reading", &nothing), "reading ███████ 0 B/0 B 0 B/s 0/1 files");
        assert!(!render(80, "reading", &figures(0, 10, None)).contains("ETA"));
        assert!(render(80, "reading", &figures(12, 10, None)).contains(" 12 B/12 B "));
    }
}
