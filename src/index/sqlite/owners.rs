//! The owners of xorbs: deduplication mentions a xorb to them only.

use sqlx::{QueryBuilder, Sqlite};

use super::files::{BATCH_COUNT, push_hashes};
use super::{SqliteIndex, get, map};
use crate::format::XorbHash;
use crate::index::error::IndexError;
use crate::index::rows;

impl SqliteIndex {
    /// Enters `owner` as an owner of a readable xorb: live or condemned (states 1 and 2). `false`
    /// if there is none.
    pub(super) async fn write_owner(&self, hash: XorbHash, owner: String) -> Result<bool, IndexError> {
        const KNOWN: &str = "SELECT EXISTS (SELECT 1 FROM xorb_domains WHERE xorb_id = id AND domain = ?) \
             FROM xorbs WHERE hash = ? AND state IN (1, 2)";
        // The update changes nothing: it tells a row that another upload has entered meanwhile from
        // a xorb that does not exist.
        const SHARE: &str = "INSERT INTO xorb_domains (xorb_id, domain) \
             SELECT id, ? FROM xorbs WHERE hash = ? AND state IN (1, 2) \
             ON CONFLICT DO UPDATE SET domain = excluded.domain";
        let op = "share a xorb";
        // Most uploads of an existing xorb come from an owner of it, and need no writer.
        let known = sqlx::query(KNOWN).bind(owner.as_str()).bind(hash.as_bytes().as_slice());
        let known = known.fetch_optional(&self.readers).await.map_err(|error| map(op, error))?;
        match known.map(|row| get::<bool>(op, &row, 0)).transpose()? {
            None => return Ok(false),
            Some(true) => return Ok(true),
            Some(false) => {}
        }
        let shared = sqlx::query(SHARE).bind(owner.as_str()).bind(hash.as_bytes().as_slice());
        let shared = shared.execute(&self.writer).await.map_err(|error| map(op, error))?;
        Ok(shared.rows_affected() == 1)
    }

    /// Those of `hashes` that are readable xorbs of one chunk, and that `owner` has not uploaded.
    pub(super) async fn read_foreign_single_chunks(
        &self,
        hashes: Vec<XorbHash>,
        owner: String,
    ) -> Result<Vec<XorbHash>, IndexError> {
        let op = "find single chunks of others";
        let mut foreign = Vec::new();
        for batch in hashes.chunks(BATCH_COUNT) {
            // A packed layout has 8 bytes per chunk.
            let mut query = QueryBuilder::<Sqlite>::new(
                "SELECT hash FROM xorbs WHERE state IN (1, 2) AND length(layout) = 8 AND NOT EXISTS \
                 (SELECT 1 FROM xorb_domains AS d WHERE d.xorb_id = xorbs.id AND d.domain = ",
            );
            query.push_bind(owner.clone()).push(") AND hash IN (");
            push_hashes(&mut query, batch);
            let rows = query.build().fetch_all(&self.readers).await.map_err(|error| map(op, error))?;
            for row in &rows {
                let hash = rows::xorb_hash(get(op, row, 0)?);
                foreign.push(hash.map_err(|error| IndexError::inconsistent(op, error))?);
            }
        }
        Ok(foreign)
    }
}
