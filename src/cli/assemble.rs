//! Builds a server from a configuration: blob store, record store, index and limits.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;

use anyhow::Context;

use super::store::{Membership, StoreBlobs, StoreIndex, StoreLocation, advice};
use crate::config::{Config, QuotaConfig, QuotaLimits};
use crate::index::sqlite::{Replacement, SqliteIndex};
use crate::runtime::clock::Clock;
use crate::runtime::metrics::Metrics;
use crate::service::{Limits, Quotas, Server, Settings, has_anything};

/// Opens the store of this configuration and builds a server over it. The blob store keeps up to
/// `open_blob_count` blobs open. The caller must close the returned index when the server stops.
pub(super) async fn open_server(
    config: &Config,
    open_blob_count: usize,
    metrics: &Arc<Metrics>,
    clock: Arc<dyn Clock>,
    membership: Option<&Membership>,
) -> anyhow::Result<(Arc<Server>, StoreIndex)> {
    let location = StoreLocation::of(config);
    let database = location.open_database(membership).await?;
    let opened = location.open_blobs(config, open_blob_count, database.as_ref())?;
    let index = match database {
        Some(index) => index,
        None => StoreIndex::Sqlite(open_sqlite(&location, &opened).await?),
    };
    let StoreBlobs { blobs, records, publish_count } = opened;
    let server = Server::new(&Settings {
        blobs,
        records,
        index: index.shared(),
        clock,
        metrics: Arc::clone(metrics),
        verify_worker_count: config.verify_workers,
        layout_cache_len: config.layout_cache,
        // A publication occupies a disk worker while it syncs. Half of the workers stay free for
        // readers.
        publish_count: publish_count.unwrap_or(usize::MAX).min(config.disk_workers.div_ceil(2)),
        min_free_len: config.min_free_len,
        upload_count: config.max_uploads,
        upload_len: config.upload_budget,
        read_count: config.max_concurrent_reads,
        quotas: quotas(&config.quota),
    });
    Ok((server, index))
}

/// Opens the index in the data directory. A missing or empty index is an error if the store has
/// blobs or records: with a new index, the server would respond that nothing is stored.
async fn open_sqlite(location: &StoreLocation, opened: &StoreBlobs) -> anyhow::Result<SqliteIndex> {
    let (data_dir, path) = (&location.data_dir, location.sqlite_path());
    if Replacement::of(&path).finish()? {
        tracing::warn!("completed an interrupted index replacement");
    }
    let len = match path.metadata() {
        Ok(metadata) => Some(metadata.len()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("cannot read the index of {}", data_dir.display())),
    };
    if len.unwrap_or(0) == 0 && has_anything(opened.blobs.as_ref(), opened.records.as_ref()).await? {
        return Err(advice::lost_index(data_dir, len.is_some()));
    }
    SqliteIndex::open(&path).await.map_err(|error| advice::explain(location, error.into()))
}

/// Converts the quotas of the configuration.
fn quotas(config: &QuotaConfig) -> Quotas {
    let limits = |limits: &QuotaLimits| Limits {
        file_count: limits.files,
        logical_len: limits.logical_bytes,
        physical_len: limits.physical_bytes,
    };
    let named =
        |quotas: &BTreeMap<String, QuotaLimits>| quotas.iter().map(|(name, own)| (name.clone(), limits(own))).collect();
    Quotas::new(limits(&config.each), named(&config.repos), named(&config.owners))
}
