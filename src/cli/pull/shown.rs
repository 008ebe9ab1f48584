//! How a pull of many files shows how far it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::ProgressBar;

use crate::cli::bar::FileCount;
use crate::cli::output::Output;
use crate::cli::units::Wait;
use crate::client::{RequestError, Watch};
use crate::runtime::telemetry::chain;

/// Shows a pull of many files on the terminal.
#[derive(Debug)]
pub(super) struct ManyShown {
    bar: ProgressBar,
    files: FileCount,
    output: Output,
}

impl ManyShown {
    pub(super) fn new(output: &Output, len: u64, count: u64) -> Arc<Self> {
        let files = FileCount::of(count);
        Arc::new(Self { bar: output.counted_bar(len, "pulling", &files), files, output: output.clone() })
    }

    /// One more file is done, of so many bytes.
    pub(super) fn done(&self, len: u64) {
        self.bar.inc(len);
        self.files.inc();
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Watch for ManyShown {
    fn position(&self, _: u64) {}

    fn total(&self, _: u64) {}

    fn retrying(&self, error: &RequestError, delay: Duration) {
        self.output.remark(format_args!("{}; trying again in {}", chain(error), Wait(delay)));
    }
}

/// Shows one large file among them, while it is under way.
#[derive(Debug)]
pub(super) struct FileShown {
    shown: Arc<ManyShown>,
    position: AtomicU64,
}

impl FileShown {
    pub(super) fn new(shown: &Arc<ManyShown>) -> Arc<Self> {
        Arc::new(Self { shown: Arc::clone(shown), position: AtomicU64::new(0) })
    }

    /// It is over: what was shown of it is not counted twice.
    pub(super) fn hide(&self) {
        self.shown.bar.dec(self.position.swap(0, Ordering::Relaxed));
    }
}

impl Watch for FileShown {
    fn position(&self, len: u64) {
        let before = self.position.swap(len, Ordering::Relaxed);
        if len >= before { self.shown.bar.inc(len - before) } else { self.shown.bar.dec(before - len) }
    }

    fn total(&self, _: u64) {}

    fn retrying(&self, error: &RequestError, delay: Duration) {
        self.shown.retrying(error, delay);
    }
}

impl Drop for ManyShown {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
