//! Divides the file descriptors of the process. If they are too few for `max_connections`, lowers
//! that setting.

use anyhow::bail;

use crate::config::Config;
use crate::runtime::descriptors::raise_limit;

/// Descriptors of one connection: its socket, and the blob that it reads.
const PER_CONNECTION: usize = 2;

/// Descriptors of the index: five connections with three files each, and some temporary ones.
const INDEX: usize = 20;

/// Blobs that stay open for the next read: about as many as are read repeatedly at the same time. A
/// read of any other blob opens its file, which takes some microseconds.
const CACHED_FILE_COUNT: usize = 256;

/// Descriptors for everything else: log, lock, keys, listener, runtime, probes, short reads. They
/// need about 30, so this reserves twice as many.
const RESERVE: usize = 64;

/// Minimum number of connections. If the limit allows fewer, the server does not start.
const MIN_CONNECTION_COUNT: usize = 8;

/// How the file descriptors of the process are divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptors {
    /// The descriptor limit of the process.
    pub(super) limit: usize,
    /// Connections that fit into the limit.
    pub(super) connection_count: usize,
    /// Blobs that may stay open.
    pub(super) open_blob_count: usize,
}

/// Raises the descriptor limit as far as possible, and divides the descriptors. If they are too
/// few, up to an eighth of those that are not fixed keeps blobs open, and connections get the rest.
///
/// # Errors
///
/// Fewer than [`MIN_CONNECTION_COUNT`] connections fit into the limit.
pub(super) fn budget(config: &Config) -> anyhow::Result<Descriptors> {
    let limit = raise_limit();
    let fixed = fixed_count(config);
    let wanted = fixed.saturating_add(CACHED_FILE_COUNT + config.max_connections.saturating_mul(PER_CONNECTION));
    if wanted <= limit {
        return Ok(Descriptors { limit, connection_count: config.max_connections, open_blob_count: CACHED_FILE_COUNT });
    }
    let left = limit.saturating_sub(fixed);
    let open_blob_count = CACHED_FILE_COUNT.min(left / 8);
    let fitting = config.max_connections.min((left - open_blob_count) / PER_CONNECTION);
    if fitting < MIN_CONNECTION_COUNT {
        bail!(
            "the open file limit is {limit}; max_uploads = {} and disk_workers = {} need at least {}: raise the \
             limit (ulimit -n, LimitNOFILE) or lower these settings",
            config.max_uploads,
            config.disk_workers,
            fixed + MIN_CONNECTION_COUNT * PER_CONNECTION
        );
    }
    tracing::warn!(
        limit,
        wanted,
        max_connections = fitting,
        "lowered max_connections: the open file limit is too low; raise it (ulimit -n, LimitNOFILE)"
    );
    Ok(Descriptors { limit, connection_count: fitting, open_blob_count })
}

/// Descriptors that are needed regardless of the number of connections.
fn fixed_count(config: &Config) -> usize {
    // `max_uploads` limits xorbs and shards separately, and each of them has an open draft while it
    // is received. With grants, further drafts stay open until their commit.
    let drafts = config.max_uploads.saturating_mul(if config.grants { 3 } else { 2 });
    // Blobs and records have separate disk workers.
    drafts.saturating_add(config.disk_workers.saturating_mul(2)).saturating_add(INDEX + RESERVE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RawConfig;

    #[test]
    fn the_defaults_take_what_the_documents_say() {
        let config = Config::new(RawConfig::default()).unwrap();
        let all = fixed_count(&config) + CACHED_FILE_COUNT + config.max_connections * PER_CONNECTION;
        assert_eq!(all, 2964, "docs/capacity.md says it");
    }
}
