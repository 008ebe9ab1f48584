//! The index of a restore, which can be interrupted and continued.
//!
//! Of an interrupted restore the xorbs stay: a row was written after its blob was durable and was
//! compared with the hash that is its name. Files, claims and repositories do not: the archive was
//! not verified as a whole, so they are removed before a restore continues. A store that a server
//! has used is never taken for an interrupted restore: its index has applied a record.

use sqlx::query;

use super::PostgresIndex;
use crate::format::StoreId;
use crate::index::error::IndexError;

/// Empties all tables but those of xorbs. Without the triggers that count the usage, whose sums are
/// removed, too.
const REMOVE: &str = "TRUNCATE files, file_terms, file_repos, xorb_files, xorb_domains, dedup_chunks, registrations, \
     registration_files, repos, repo_xorbs, repo_files, spent_grants, records_left, open_records, key_ring, hub_repos, \
     hub_refs, hub_commits, hub_trees, hub_blobs, hub_unneeded_commits, hub_unneeded_files, hub_former_names";

impl PostgresIndex {
    /// Gives a new index its id, and notes that a restore to this place has begun.
    ///
    /// # Errors
    ///
    /// The database does not respond, or the index has an id.
    pub async fn begin_restore(&self, id: StoreId, place: &str) -> Result<(), IndexError> {
        const SQL: &str = "UPDATE store SET store_id = $1, restoring_to = $2 WHERE store_id IS NULL";
        let mut held = self.writing("begin a restore").await?;
        let mut tx = held.begin().await?;
        let changed = tx.execute(query(SQL).bind(id.as_bytes().as_slice()).bind(place.to_owned())).await?;
        if changed != 1 {
            return Err(IndexError::lost(tx.op(), changed));
        }
        tx.commit().await
    }

    /// If a restore to this place was interrupted, removes what it has written except for xorbs,
    /// and returns the id of the index. Otherwise changes nothing.
    ///
    /// # Errors
    ///
    /// The database does not respond.
    pub async fn continue_restore(&self, place: &str) -> Result<Option<StoreId>, IndexError> {
        const FIND: &str = "SELECT store_id FROM store WHERE restoring_to = $1 AND store_id IS NOT NULL \
             AND last_record IS NULL FOR UPDATE";
        let mut held = self.writing("continue a restore").await?;
        let mut tx = held.begin().await?;
        let Some(id) = tx.find::<StoreId>(query(FIND).bind(place.to_owned())).await? else { return Ok(None) };
        tx.execute(query(REMOVE)).await?;
        tx.commit().await?;
        Ok(Some(id))
    }

    /// Notes that the restore has ended: nothing is continued here any more.
    ///
    /// # Errors
    ///
    /// The database does not respond.
    pub async fn end_restore(&self) -> Result<(), IndexError> {
        let end = query("UPDATE store SET restoring_to = NULL");
        self.write("end a restore").execute(end).await.map(drop)
    }
}

#[cfg(test)]
#[cfg(feature = "postgres-tests")]
mod tests {
    use sqlx::{Connection, PgConnection, query_scalar};

    use super::*;
    use crate::index::RecordIndex;
    use crate::index::error::IndexErrorKind;
    use crate::index::postgres::test_server::migrated;

    /// Tables that an interrupted restore may have written, or that have a row in each database.
    const LEFT: [&str; 7] = ["_sqlx_migrations", "objects", "store", "totals", "visibility", "xorb_chunks", "xorbs"];

    #[tokio::test]
    async fn restore_continues_at_its_place_until_it_ends() {
        let index = PostgresIndex::open(&migrated().await).await.unwrap();
        let [id, other] = [1, 2].map(|byte| StoreId::from_bytes([byte; 16]));
        assert_eq!(index.continue_restore("a bucket").await.unwrap(), None);
        index.begin_restore(id, "a bucket").await.unwrap();
        assert_eq!(index.begin_restore(other, "a bucket").await.unwrap_err().kind, IndexErrorKind::Lost);
        assert_eq!(index.continue_restore("another bucket").await.unwrap(), None);
        for _ in 0..2 {
            assert_eq!(index.continue_restore("a bucket").await.unwrap(), Some(id));
        }
        index.end_restore().await.unwrap();
        assert_eq!(index.continue_restore("a bucket").await.unwrap(), None);
    }

    /// A crash may have left the mark of a restore that has ended.
    #[tokio::test]
    async fn store_that_has_applied_a_record_is_not_emptied() {
        let index = PostgresIndex::open(&migrated().await).await.unwrap();
        let id = StoreId::from_bytes([1; 16]);
        index.begin_restore(id, "a bucket").await.unwrap();
        index.set_store(id, Some(0)).await.unwrap();
        assert_eq!(index.continue_restore("a bucket").await.unwrap(), None);
    }

    /// A later migration adds its tables to one of the lists.
    #[tokio::test]
    async fn every_table_is_emptied_or_belongs_to_xorbs() {
        let mut connection = PgConnection::connect(&migrated().await).await.unwrap();
        let sql = "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema()";
        let mut tables: Vec<String> = query_scalar(sql).fetch_all(&mut connection).await.unwrap();
        tables.sort_unstable();
        let mut listed: Vec<&str> = REMOVE.trim_start_matches("TRUNCATE ").split(", ").chain(LEFT).collect();
        listed.sort_unstable();
        assert_eq!(tables, listed);
    }
}
