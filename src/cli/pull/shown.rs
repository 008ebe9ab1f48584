//! The progress of a pull of many files.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::ProgressBar;

use crate::cli::bar::FileCount;
use crate::cli::output::Output;
use crate::cli::units::Wait;
use crate::client::{RequestError, Watch};
use crate::runtime::telemetry::chain;

/// The progress bar of a pull of many files.
#[derive(Debug)]
pub(super) struct ManyProgress {
    bar: ProgressBar,
    files: FileCount,
    output: Output,
}

impl ManyProgress {
    pub(super) fn new(output: &Output, len: u64, count: u64) -> Arc<Self> {
        let files = FileCount::of(count);
        Arc::new(Self { bar: output.counted_bar(len, "pulling", &files), files, output: output.clone() })
    }

    /// Counts a completed file of this length.
    pub(super) fn done(&self, len: u64) {
        self.bar.inc(len);
        self.files.inc();
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Watch for ManyProgress {
    // `done` moves the bar: the position of a batch would count its files twice.
    fn position(&self, _: u64) {}

    fn total(&self, _: u64) {}

    fn retrying(&self, error: &RequestError, delay: Duration) {
        self.output.remark(format_args!("{}; trying again in {}", chain(error), Wait(delay)));
    }
}

/// Adds the received bytes of one large file to the bar while it is pulled.
#[derive(Debug)]
pub(super) struct FileProgress {
    shown: Arc<ManyProgress>,
    /// Bytes of this file that the bar counts now.
    position: AtomicU64,
}

impl FileProgress {
    pub(super) fn new(shown: &Arc<ManyProgress>) -> Arc<Self> {
        Arc::new(Self { shown: Arc::clone(shown), position: AtomicU64::new(0) })
    }

    /// Removes the bytes of this file from the bar, because [`ManyProgress::done`] adds its whole
    /// length.
    pub(super) fn hide(&self) {
        self.shown.bar.dec(self.position.swap(0, Ordering::Relaxed));
    }
}

impl Watch for FileProgress {
    fn position(&self, len: u64) {
        let before = self.position.swap(len, Ordering::Relaxed);
        if len >= before { self.shown.bar.inc(len - before) } else { self.shown.bar.dec(before - len) }
    }

    fn total(&self, _: u64) {}

    fn retrying(&self, error: &RequestError, delay: Duration) {
        self.shown.retrying(error, delay);
    }
}

impl Drop for ManyProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
