//! Commands that write files and block: a signal stops them between two steps, so that their
//! temporary files go.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use tokio::runtime::Builder;

use super::Stopped;
use crate::runtime::blocking::Pool;
use crate::runtime::shutdown::StopSignal;

/// Whether the work is to end.
#[derive(Clone, Debug, Default)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Fails when a signal has come.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(io::Error::other("stopped by a signal")) } else { Ok(()) }
    }

    /// A source whose reads fail when a signal has come.
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

/// Runs work that blocks, and looks at its [`Stop`] between steps. It must not wait for a terminal
/// or a pipe: while it does, signals would have no effect.
pub(super) fn run<T, F>(work: F) -> anyhow::Result<T>
where
    T: Send + 'static,
    F: FnOnce(&Stop) -> anyhow::Result<T> + Send + 'static,
{
    let runtime = Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(async {
        let mut signals = StopSignal::listen().context("cannot listen to signals")?;
        let stop = Stop::default();
        let its = stop.clone();
        let mut running = Pool::new(1).start(move || work(&its)).await;
        let signal = tokio::select! {
            result = &mut running => return result,
            signal = signals.received() => signal,
        };
        stop.0.store(true, Ordering::Relaxed);
        match running.await {
            // It was too late to stop.
            Ok(done) => Ok(done),
            Err(_) => Err(Stopped { signal, can_continue: false }.into()),
        }
    })
}
