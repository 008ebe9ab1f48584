//! Runs commands that block. A signal stops them between two steps, so that they can remove their
//! temporary files.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use tokio::runtime::Builder;

use super::Stopped;
use crate::runtime::blocking::Pool;
use crate::runtime::shutdown::StopSignal;

/// Whether a signal has arrived and the work must end.
#[derive(Clone, Debug, Default)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Fails if a signal has arrived.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(io::Error::other("stopped by a signal")) } else { Ok(()) }
    }

    /// Wraps a source, so that its reads fail after a signal.
    pub(super) fn watch<R>(&self, source: R) -> Stoppable<R> {
        Stoppable { source, stop: self.clone() }
    }
}

/// See [`Stop::watch`].
#[derive(Debug)]
pub(super) struct Stoppable<R> {
    source: R,
    stop: Stop,
}

impl<R: Read> Read for Stoppable<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stop.check()?;
        self.source.read(buffer)
    }
}

impl<R: Seek> Seek for Stoppable<R> {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.source.seek(position)
    }
}

/// Runs work that blocks. The work must check its [`Stop`] between steps. It must not read from a
/// terminal or a pipe, because a signal has no effect while a read waits.
pub(super) fn run<T, F>(work: F) -> anyhow::Result<T>
where
    T: Send + 'static,
    F: FnOnce(&Stop) -> anyhow::Result<T> + Send + 'static,
{
    let runtime = Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(async {
        let mut signals = StopSignal::listen().context("cannot listen to signals")?;
        let stop = Stop::default();
        let seen_by_work = stop.clone();
        let mut running = Pool::new(1).start(move || work(&seen_by_work)).await;
        let signal = tokio::select! {
            result = &mut running => return result,
            signal = signals.received() => signal,
        };
        stop.0.store(true, Ordering::Relaxed);
        match running.await {
            // The work ended before it checked again.
            Ok(done) => Ok(done),
            // After a signal, any error counts as the stop.
            Err(_) => Err(Stopped { signal, can_continue: false }.into()),
        }
    })
}
