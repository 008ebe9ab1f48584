//! What SIGHUP makes a server look at again: the files of its TLS, and the name of its audit log.

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

/// Permission bits of everybody who is neither the owner nor of the group.
const OTHERS: u32 = 0o007;

/// What there is to be looked at again.
#[derive(Debug, Default)]
pub(super) struct Reloaded {
    pub(super) tls: Option<(Tls, TlsFiles)>,
    pub(super) journal: Option<Journal>,
}

/// The certificate and the key in these files. Blocks.
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

/// Reloads at each signal, until it is stopped.
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
