//! Errors with advice, for a store that cannot be used in its current state.

use std::path::Path;

use anyhow::anyhow;
use thiserror::Error;

use super::{StoreLocation, postgres};
use crate::blob::{BlobError, BlobErrorKind};
use crate::index::{IndexError, IndexErrorKind};
use crate::runtime::outage::Outage;
use crate::runtime::telemetry::chain;
use crate::service::{Gap, StoreError};

/// The error for a missing store when `require_store` is set.
pub(in crate::cli) fn no_store(data_dir: &Path) -> anyhow::Error {
    let dir = data_dir.display();
    anyhow!(
        "no store in {dir}, and require_store is set: check that its file system is mounted; for a new store \
         start once without require_store"
    )
}

/// The error for a missing or empty index of a store that has data.
pub(in crate::cli) fn lost_index(data_dir: &Path, is_empty: bool) -> anyhow::Error {
    let (dir, what) = (data_dir.display(), if is_empty { "empty" } else { "gone" });
    anyhow!("the index of {dir} is {what}, but the store has data: run zorb index rebuild --data-dir {dir}")
}

/// The error for an index that does not match the data directory, with advice.
pub(in crate::cli) fn of_gap(location: &StoreLocation, gap: Gap) -> anyhow::Error {
    let data_dir = &location.data_dir;
    match (gap, &location.database) {
        (gap, None) => of_gap_in_directory(data_dir, gap),
        (
            gap @ (Gap::EmptyIndex | Gap::OtherStore { .. } | Gap::BelongsElsewhere { .. } | Gap::Behind { .. }),
            Some(url),
        ) => {
            let (database, blobs) = (postgres::describe(url), location.describe_blobs());
            anyhow!(
                "{gap}; check that {blobs} and database_url (PostgreSQL {database}) name the same store; after \
                 a loss of the database, zorb db rebuild fills a new one (docs/postgresql.md)"
            )
        }
        (gap @ Gap::RecordsMissing { .. }, Some(_)) if location.s3.is_some() => anyhow!(
            "{gap}; restore the objects shards/ of {}, or remove all of them and its object complete: the next \
             start of zorb serve then writes them again from the index",
            location.describe_blobs()
        ),
        (Gap::Store(error), Some(_)) => explain(location, error.into()),
        (gap, Some(_)) => of_gap_in_directory(data_dir, gap),
    }
}

/// The same for an index in the data directory.
fn of_gap_in_directory(data_dir: &Path, gap: Gap) -> anyhow::Error {
    let dir = data_dir.display();
    match gap {
        Gap::NoStore => no_store(data_dir),
        Gap::EmptyIndex | Gap::OtherStore { .. } | Gap::BelongsElsewhere { .. } | Gap::Behind { .. } => anyhow!(
            "{gap}; nothing in {dir} was changed: run zorb index rebuild --data-dir {dir}, which rebuilds the \
             index from blobs and records and keeps the old one"
        ),
        Gap::Unidentified => anyhow!("{gap}; start zorb serve on {dir} once to complete it"),
        Gap::RecordsMissing { .. } => anyhow!(
            "{gap}; restore the directory {dir}/shards, or move it away: the next start of zorb serve then writes \
             it again from the index"
        ),
        Gap::Newer { .. } => anyhow!("{gap}"),
        Gap::Store(error) => explain_sqlite(data_dir, error.into()),
    }
}

/// Adds advice to errors that come from the index; returns other errors unchanged.
pub(in crate::cli) fn explain(location: &StoreLocation, error: anyhow::Error) -> anyhow::Error {
    if let (Some(s3), true) = (&location.s3, is_of_object_store(&error)) {
        let (bucket, endpoint) = (s3.bucket.clone(), s3.endpoint.clone());
        // An error of a gap has been explained before.
        let is_explained = error.downcast_ref::<UnusableBucket>().is_some();
        return if is_explained { error } else { error.context(UnusableBucket { bucket, endpoint }) };
    }
    let Some(url) = &location.database else { return explain_sqlite(&location.data_dir, error) };
    match index_error(&error).map(|index| index.kind) {
        Some(IndexErrorKind::Damaged) => anyhow!(
            "the PostgreSQL {} is damaged: stop zorb, and restore the database from a backup (docs/postgresql.md): \
             {error:#}",
            postgres::describe(url)
        ),
        Some(IndexErrorKind::Unavailable) => {
            error.context(format!("no connection to the PostgreSQL {}", postgres::describe(url)))
        }
        _ => error,
    }
}

/// The same for an index in the data directory.
fn explain_sqlite(data_dir: &Path, error: anyhow::Error) -> anyhow::Error {
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

/// The context of an error of the S3 store.
#[derive(Debug, Error)]
#[error("cannot use the bucket {bucket} at {endpoint}: {}", Outage::ObjectStore.advice())]
struct UnusableBucket {
    bucket: String,
    endpoint: String,
}

/// Whether the S3 store caused this error.
fn is_of_object_store(error: &anyhow::Error) -> bool {
    let of = |error: &BlobError| error.kind == BlobErrorKind::Outage(Outage::ObjectStore);
    error.chain().any(|cause| match cause.downcast_ref::<StoreError>() {
        Some(StoreError::Blob(error)) => of(error),
        _ => cause.downcast_ref::<BlobError>().is_some_and(of),
    })
}

/// The index error that caused this error.
fn index_error(error: &anyhow::Error) -> Option<&IndexError> {
    error.chain().find_map(|cause| match cause.downcast_ref::<StoreError>() {
        Some(StoreError::Index(error)) => Some(error),
        _ => cause.downcast_ref::<IndexError>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::records::Seq;

    fn explained(kind: IndexErrorKind) -> String {
        let error = IndexError { op: "read a row", kind, source: "error returned from database: (code: 14)".into() };
        format!("{:#}", explain_sqlite(Path::new("/data"), StoreError::from(error).into()))
    }

    #[test]
    fn every_failure_of_an_index_has_its_remedy() {
        for (kind, remedy) in [
            (IndexErrorKind::Damaged, "zorb index rebuild --data-dir /data"),
            (IndexErrorKind::Newer, "use that version or a later one"),
            (IndexErrorKind::Older, "start zorb serve of this version once"),
            (IndexErrorKind::Outage(Outage::CannotOpen), "check owner and permissions of /data"),
            (IndexErrorKind::Outage(Outage::ReadOnly), "check owner and permissions of /data"),
        ] {
            let told = explained(kind);
            assert!(told.contains("the index of /data") && told.contains(remedy), "{kind:?}: {told}");
        }
        let told = explained(IndexErrorKind::Outage(Outage::Failing));
        assert!(told.contains("cannot read a row"), "what has no remedy is told as it is: {told}");
        for (gap, remedy) in [
            (Gap::EmptyIndex, "zorb index rebuild --data-dir /data"),
            (Gap::Behind { seq: Seq::new(7) }, "zorb index rebuild --data-dir /data"),
            (Gap::RecordsMissing { seq: Seq::new(7) }, "restore the directory /data/shards"),
            (Gap::Unidentified, "start zorb serve on /data once"),
            (Gap::NoStore, "its file system is mounted"),
        ] {
            let told = format!("{:#}", of_gap_in_directory(Path::new("/data"), gap));
            assert!(told.contains(remedy), "{told}");
        }
    }
}
