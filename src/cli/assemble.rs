//! The store of a configuration, put together of its parts.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;

use super::store::advice;
use crate::blob::fs::FsBlobStore;
use crate::blob::records::fs::FsRecordStore;
use crate::config::{Config, QuotaConfig, QuotaLimits};
use crate::index::sqlite::{Replacement, SqliteIndex};
use crate::runtime::blocking::Pool;
use crate::runtime::clock::Clock;
use crate::runtime::metrics::Metrics;
use crate::service::{Budget, Cas, Limits, Quotas, Shares, has_anything};

/// The store of this configuration, which keeps up to so many blobs open, and its index, which is
/// to be closed at the end.
pub(super) async fn open_store(
    config: &Config,
    open_blob_count: usize,
    metrics: &Arc<Metrics>,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<(Cas, SqliteIndex)> {
    let blobs = FsBlobStore::open(&config.data_dir, Pool::new(config.disk_workers))?;
    let blobs = blobs
        .keeping_open(open_blob_count)
        .reading_at_once(config.max_concurrent_reads)
        .writing_directly(config.direct_writes);
    let records = FsRecordStore::open(&config.data_dir, Pool::new(config.disk_workers))?;
    let index = open_index(&config.data_dir, &blobs, &records).await?;
    let (writer, budget) = (Arc::new(index.clone()), budget(config));
    let cas = Cas::new(Arc::new(blobs), Arc::new(records), writer, clock, Arc::clone(metrics), budget)
        .sharing(shares(config), budget)
        .with_min_free(config.min_free_len)
        .with_quotas(quotas(&config.quota));
    Ok((cas, index))
}

/// Opens the index. A missing or empty index of a store that has data is an error: a new one would
/// make the server respond that nothing is stored.
async fn open_index(data_dir: &Path, blobs: &FsBlobStore, records: &FsRecordStore) -> anyhow::Result<SqliteIndex> {
    let path = data_dir.join("index.sqlite");
    if Replacement::of(&path).finish()? {
        tracing::warn!("completed an interrupted index replacement");
    }
    let len = match path.metadata() {
        Ok(metadata) => Some(metadata.len()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("cannot read the index of {}", data_dir.display())),
    };
    if len.unwrap_or(0) == 0 && has_anything(blobs, records).await? {
        return Err(advice::lost_index(data_dir, len.is_some()));
    }
    SqliteIndex::open(&path).await.map_err(|error| advice::explain(data_dir, error.into()))
}

const fn budget(config: &Config) -> Budget {
    Budget {
        upload_count: config.max_uploads,
        verify_worker_count: config.verify_workers,
        layout_cache_len: config.layout_cache,
    }
}

/// What tenants share.
const fn shares(config: &Config) -> Shares {
    Shares {
        upload_len: config.upload_budget,
        read_count: config.max_concurrent_reads,
        // Readers never wait for syncs.
        publish_count: config.disk_workers.div_ceil(2),
    }
}

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
