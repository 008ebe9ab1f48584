//! The store id of the index, and its position in the registration records, in SQLite.
//!
//! A change and the number of its record are written in one transaction. So after a crash the
//! number tells exactly which records are applied.

use sqlx::{Connection, Row, SqliteConnection};

use super::files::{execute, release};
use super::write::Write;
use super::{SqliteIndex, get, map};
use crate::format::StoreId;
use crate::index::error::{Inconsistent, IndexError, IndexErrorKind};
use crate::index::records::StoreMark;

impl SqliteIndex {
    /// Reads and checks every page of the file.
    ///
    /// # Errors
    ///
    /// The error is of kind [`IndexErrorKind::Damaged`] if a page is invalid.
    pub async fn check_pages(&self) -> Result<(), IndexError> {
        let op = "check the pages of the database";
        let row = sqlx::query("PRAGMA quick_check(1)").fetch_one(&self.readers).await;
        let found: String = get(op, &row.map_err(|error| map(op, error))?, 0)?;
        if found == "ok" {
            return Ok(());
        }
        Err(IndexError { op, kind: IndexErrorKind::Damaged, source: found.into() })
    }

    pub(super) async fn read_store_mark(&self) -> Result<StoreMark, IndexError> {
        let op = "read the store id of the index";
        let failed = |error| map(op, error);
        // One connection and one snapshot: a record is either taken or still to come.
        let mut connection = self.readers.acquire().await.map_err(failed)?;
        let mut connection = connection.begin().await.map_err(failed)?;
        let row = sqlx::query("SELECT store_id, last_record FROM store").fetch_one(&mut *connection).await;
        let row = row.map_err(failed)?;
        let id: Option<Vec<u8>> = get(op, &row, 0)?;
        let id = id.map(|bytes| store_id(op, &bytes)).transpose()?;
        let last_record = get::<Option<i64>>(op, &row, 1)?.map(i64::cast_unsigned);
        let rows = sqlx::query("SELECT seq FROM records_left ORDER BY seq").fetch_all(&mut *connection).await;
        let left =
            rows.map_err(failed)?.iter().map(|row| row.try_get(0).map(i64::cast_unsigned)).collect::<Result<_, _>>();
        Ok(StoreMark { id, last_record, left: left.map_err(failed)? })
    }

    pub(super) async fn write_store_mark(&self, id: StoreId, last_record: Option<u64>) -> Result<(), IndexError> {
        let op = "write the store id of the index";
        let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
        let written = write(op, &mut connection, id, last_record).await;
        release(connection, written.is_ok()).await;
        written
    }

    pub(super) async fn write_left_records(&self, seqs: &[u64]) -> Result<(), IndexError> {
        const SQL: &str = "INSERT INTO records_left (seq) SELECT value FROM json_each(?) WHERE true \
             ON CONFLICT (seq) DO NOTHING";
        let seqs: Vec<String> = seqs.iter().map(u64::to_string).collect();
        let query = sqlx::query(SQL).bind(format!("[{}]", seqs.join(",")));
        let written = query.execute(&self.writer).await;
        written.map(drop).map_err(|error| map("write the left-out records", error))
    }
}

/// Records that this record was taken, in the transaction of its change.
pub(super) async fn take_record(
    op: &'static str,
    connection: &mut SqliteConnection,
    record: Option<u64>,
) -> Result<(), IndexError> {
    const TAKE: &str = "UPDATE store SET last_record = max(coalesce(last_record, ?1), ?1)";
    let Some(record) = record else { return Ok(()) };
    execute(op, connection, TAKE, |query| query.bind(record.cast_signed())).await.map(drop)
}

async fn write(
    op: &'static str,
    connection: &mut SqliteConnection,
    id: StoreId,
    last_record: Option<u64>,
) -> Result<(), IndexError> {
    let mut transaction = Write::begin(op, connection).await?;
    let set = "UPDATE store SET store_id = ?";
    execute(op, &mut transaction, set, |query| query.bind(id.as_bytes().to_vec())).await?;
    take_record(op, &mut transaction, last_record).await?;
    transaction.commit().await
}

fn store_id(op: &'static str, bytes: &[u8]) -> Result<StoreId, IndexError> {
    let bytes = bytes.try_into().map_err(|_| {
        let (key, reason) = ("the row".to_owned(), format!("{} bytes, not 16", bytes.len()));
        IndexError::inconsistent(op, Inconsistent { table: "store", column: "store_id", key, reason })
    })?;
    Ok(StoreId::from_bytes(bytes))
}
