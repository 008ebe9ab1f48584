//! The signal to reload files.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for SIGHUP. Without a listener, SIGHUP ends the process.
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

    /// Waits for the signal. Several signals within a short time may count as one.
    pub async fn received(&mut self) {
        if self.hangup.recv().await.is_none() {
            // No more signals can arrive.
            std::future::pending().await
        }
    }
}
