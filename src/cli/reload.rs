//! Reloads the TLS files on SIGHUP, and reopens the audit log by its name. Reopening it makes the
//! server write to a new file after the old one was renamed.
//!
//! Invalid TLS files change nothing: the server keeps the previous certificate and logs the error.

use std::fs;
use std::os::unix::fs::MetadataExt;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use crate::config::TlsFiles;
use crate::http::tls::{Identity, Tls};
use crate::runtime::blocking::Pool;
use crate::runtime::journal::Journal;
use crate::runtime::reload::ReloadSignal;
use crate::runtime::telemetry::chain;

/// The permission bits for users who are neither the owner nor in the group.
const OTHERS: u32 = 0o007;

/// The parts of a server that are reloaded.
#[derive(Debug, Default)]
pub(super) struct Reloaded {
    pub(super) tls: Option<(Tls, TlsFiles)>,
    pub(super) journal: Option<Journal>,
}

/// Reads the certificate and the key. Warns if every user may access the key file. Blocks.
pub(super) fn identity(files: &TlsFiles) -> anyhow::Result<Identity> {
    let (certificates, key) = (files.certificates.display(), files.key.display());
    let chain =
        fs::read(&files.certificates).with_context(|| format!("cannot read the certificates in {certificates}"))?;
    let secret = fs::read(&files.key).with_context(|| format!("cannot read the key in {key}"))?;
    if fs::metadata(&files.key).is_ok_and(|data| data.mode() & OTHERS != 0) {
        tracing::warn!(file = %key, "TLS key is world-readable: chmod 600 it");
    }
    Identity::parse(&chain, &secret).with_context(|| format!("cannot use {certificates} and {key} for TLS"))
}

/// Reloads at each signal, until `stop`.
pub(super) async fn watch(mut signal: ReloadSignal, reloaded: Reloaded, stop: CancellationToken) {
    let disk = Pool::new(1);
    while stop.run_until_cancelled(signal.received()).await.is_some() {
        tracing::info!("SIGHUP: reloading the TLS certificate and reopening the audit log");
        if let Some(journal) = &reloaded.journal {
            journal.reopen().await;
        }
        let Some((tls, files)) = reloaded.tls.clone() else { continue };
        match disk.run(move || identity(&files)).await {
            Ok(identity) => {
                tls.replace(identity);
                tracing::info!("reloaded the TLS certificate");
            }
            Err(error) => {
                let error = chain(error.as_ref());
                tracing::error!(error, "invalid TLS certificate; keeping the previous one");
            }
        }
    }
}
