//! What to do about a store that cannot be used as it is.

use std::path::Path;

use anyhow::anyhow;

use crate::index::{IndexError, IndexErrorKind};
use crate::runtime::outage::Outage;
use crate::runtime::telemetry::chain;
use crate::service::{Gap, StoreError};

/// There is no store, and none may be made.
pub(in crate::cli) fn no_store(data_dir: &Path) -> anyhow::Error {
    let dir = data_dir.display();
    anyhow!(
        "no store in {dir}, and require_store is set: check that its file system is mounted; for a new store \
         start once without require_store"
    )
}

/// The index is not there, or empty, but the rest of the store is.
pub(in crate::cli) fn lost_index(data_dir: &Path, is_empty: bool) -> anyhow::Error {
    let (dir, what) = (data_dir.display(), if is_empty { "empty" } else { "gone" });
    anyhow!("the index of {dir} is {what}, but the store has data: run zorb index rebuild --data-dir {dir}")
}

/// What a gap between the index and the rest of the store calls for.
pub(in crate::cli) fn of_gap(data_dir: &Path, gap: Gap) -> anyhow::Error {
    let dir = data_dir.display();
    match gap {
        Gap::NoStore => no_store(data_dir),
        Gap::EmptyIndex | Gap::OtherStore { .. } | Gap::Behind { .. } => anyhow!(
            "{gap}; nothing in {dir} was changed: run zorb index rebuild --data-dir {dir}, which rebuilds the \
             index from blobs and records and keeps the old one"
        ),
        Gap::Unidentified => anyhow!("{gap}; start zorb serve on {dir} once to complete it"),
        Gap::RecordsMissing { .. } => anyhow!(
            "{gap}; restore the directory {dir}/shards, or move it away: the next start of zorb serve then writes \
             it again from the index"
        ),
        Gap::Newer { .. } => anyhow!("{gap}"),
        Gap::Store(error) => explain(data_dir, error.into()),
    }
}

/// Says what to do where the index is what an error is about, and leaves other errors as they are.
pub(in crate::cli) fn explain(data_dir: &Path, error: anyhow::Error) -> anyhow::Error {
    let dir = data_dir.display();
    let Some(index) = index_error(&error) else { return error };
    match index.kind {
        IndexErrorKind::Damaged => anyhow!(
            "the index of {dir} is damaged or not a database: stop every process that uses it, then run zorb \
             index rebuild --data-dir {dir}"
        ),
        IndexErrorKind::Newer => {
            anyhow!(
                "the index of {dir} was written by a newer zorb ({}): use that version or a later one",
                chain(&*index.source)
            )
        }
        IndexErrorKind::Older => anyhow!(
            "the index of {dir} was written by an older zorb ({}): start zorb serve of this version once to \
             migrate it",
            chain(&*index.source)
        ),
        IndexErrorKind::Outage(Outage::CannotOpen | Outage::ReadOnly) => anyhow!(
            "the index of {dir} cannot be opened: run this as the user that serves the store; check owner and \
             permissions of {dir} and of index.sqlite, index.sqlite-wal and index.sqlite-shm in it"
        ),
        _ => error,
    }
}

/// The failure of the index that an error comes from.
fn index_error(error: &anyhow::Error) -> Option<&IndexError> {
    error.chain().find_map(|cause| match cause.downcast_ref::<StoreError>() {
        Some(StoreError::Index(error)) => Some(error),
        _ => cause.downcast_ref::<IndexError>(),
    })
}
