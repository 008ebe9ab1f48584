//! When to look at files again: the signal that asks for it.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGHUP, listened to from the moment this exists. Without it that signal ends the process.
#[derive(Debug)]
pub struct ReloadSignal {
    hangup: Signal,
}

impl ReloadSignal {
    /// Starts to listen.
    ///
    /// # Errors
    ///
    /// The operating system refuses the handler.
    pub fn listen() -> io::Result<Self> {
        Ok(Self { hangup: signal(SignalKind::hangup())? })
    }

    /// Waits for the signal. Several that come at once may count as one.
    pub async fn received(&mut self) {
        if self.hangup.recv().await.is_none() {
            // No more can come.
            std::future::pending().await
        }
    }
}
