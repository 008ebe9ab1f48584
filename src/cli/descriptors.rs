//! Whether there are file descriptors for all that the settings allow, and what gives way if not.

use anyhow::bail;

use crate::config::Config;
use crate::runtime::descriptors::raise_limit;

/// Of one connection: its socket, and the blob that is read for it.
const PER_CONNECTION: usize = 2;

/// Of the index: five connections with three files each, and those that it has open for a moment.
const INDEX: usize = 20;

/// Of blobs that are kept open for the next read: as many as are read again and again at a time.
/// Beyond that a read opens its file, which takes some microseconds.
const KEPT_FILE_COUNT: usize = 256;

/// For all the rest: the log, the lock, the keys, the listener, the runtime's own, a probe, a file
/// that is looked at. Some thirty in all; twice that.
const RESERVE: usize = 64;

/// Connections below which there is no point in serving.
const MIN_CONNECTION_COUNT: usize = 8;

/// How the file descriptors of the process are divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptors {
    /// The limit of the process.
    pub(super) limit: usize,
    /// Connections that fit below it.
    pub(super) connection_count: usize,
    /// Blobs that may be kept open.
    pub(super) open_blob_count: usize,
}

/// Raises the limit as far as possible, and divides it.
pub(super) fn budget(config: &Config) -> anyhow::Result<Descriptors> {
    let limit = raise_limit();
    let fixed = fixed_count(config);
    let wanted = fixed.saturating_add(KEPT_FILE_COUNT + config.max_connections.saturating_mul(PER_CONNECTION));
    if wanted <= limit {
        return Ok(Descriptors { limit, connection_count: config.max_connections, open_blob_count: KEPT_FILE_COUNT });
    }
    let left = limit.saturating_sub(fixed);
    let open_blob_count = KEPT_FILE_COUNT.min(left / 8);
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

/// What is there whatever the number of connections.
fn fixed_count(config: &Config) -> usize {
    // An upload has a draft open, and one by grant keeps it until the commit; so has a shard while
    // it arrives.
    let drafts = config.max_uploads.saturating_mul(if config.grants { 3 } else { 2 });
    // Blobs and the records of what was registered have workers of their own.
    drafts.saturating_add(config.disk_workers.saturating_mul(2)).saturating_add(INDEX + RESERVE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RawConfig;

    #[test]
    fn the_defaults_take_what_the_documents_say() {
        let config = Config::new(RawConfig::default()).unwrap();
        let all = fixed_count(&config) + KEPT_FILE_COUNT + config.max_connections * PER_CONNECTION;
        assert_eq!(all, 2964, "docs/capacity.md says it");
    }
}
