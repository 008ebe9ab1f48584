//! Files in SQLite. Statements run inside the transaction of the verb that they belong to.

use std::collections::{BTreeMap, HashMap, HashSet};

use sqlx::pool::PoolConnection;
use sqlx::sqlite::SqliteRow;
use sqlx::{Connection, QueryBuilder, Sqlite, SqliteConnection};

use super::claims::{Made, make_claim};
use super::named::{Named, Unfit};
use super::store::take_record;
use super::terms::insert_terms;
use super::usage::Meter;
use super::{SqliteIndex, get, map, millis};
use crate::format::{ChunkHash, ChunkRange, FileHash, XorbHash};
use crate::index::error::{Inconsistent, IndexError};
use crate::index::files::MAX_DEDUP_CHUNK_COUNT;
use crate::index::rows;
use crate::index::{Claim, DedupHit, NewFile, Reader, Registered, Registration, XorbContents, XorbPart, record_len};
use crate::runtime::clock::Timestamp;

/// Xorbs in one statement, of three parameters at most: far below SQLite's limit on parameters (32 766 since 3.32).
pub(super) const BATCH_COUNT: usize = 500;

impl SqliteIndex {
    pub(super) async fn read_contents(&self, hashes: Vec<XorbHash>) -> Result<Vec<XorbContents>, IndexError> {
        let op = "read the contents of xorbs";
        let mut contents = Vec::with_capacity(hashes.len());
        for batch in hashes.chunks(BATCH_COUNT) {
            let mut query = QueryBuilder::<Sqlite>::new(
                "SELECT hash, crc64, layout, hashes, schemes FROM xorbs JOIN xorb_chunks ON xorb_id = id \
                 WHERE state IN (1, 2) AND hash IN (",
            );
            push_hashes(&mut query, batch);
            let rows = query.build().fetch_all(&self.readers).await.map_err(|error| map(op, error))?;
            for row in &rows {
                contents.push(parse_contents(op, row)?);
            }
        }
        Ok(contents)
    }

    pub(super) async fn read_parts(&self, wanted: Vec<(XorbHash, ChunkRange)>) -> Result<Vec<XorbPart>, IndexError> {
        let op = "read parts of xorbs";
        let failed = |error| map(op, error);
        let mut parts = Vec::with_capacity(wanted.len());
        for batch in wanted.chunks(BATCH_COUNT) {
            // CROSS: by what is wanted, one after the other, and not the other way round.
            let mut query = QueryBuilder::<Sqlite>::new("WITH wanted (xorb, first, count) AS (");
            query.push_values(batch, |mut row, (xorb, chunks)| {
                row.push_bind(xorb.as_bytes().to_vec()).push_bind(chunks.start()).push_bind(chunks.count());
            });
            query.push(
                ") SELECT hash, first, substr(layout, max(first - 1, 0) * 8 + 1, (count + min(first, 1)) * 8), \
                 length(layout), substr(hashes, first * 32 + 1, count * 32), length(hashes) FROM wanted CROSS JOIN xorbs ON hash = wanted.xorb \
                 JOIN xorb_chunks ON xorb_id = id WHERE state IN (1, 2)",
            );
            for row in &query.build().fetch_all(&self.readers).await.map_err(failed)? {
                let inconsistent = |error| IndexError::inconsistent(op, error);
                let xorb = rows::xorb_hash(get(op, row, 0)?).map_err(inconsistent)?;
                let (layout, hashes) = ((get(op, row, 2)?, get(op, row, 3)?), (get(op, row, 4)?, get(op, row, 5)?));
                parts.push(rows::part(xorb, get(op, row, 1)?, layout, hashes).map_err(inconsistent)?);
            }
        }
        Ok(parts)
    }

    pub(super) async fn register_files(
        &self,
        registration: &Registration,
        record: Option<u64>,
    ) -> Result<Registered, IndexError> {
        let op = "register files";
        let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
        let registered = register(op, &mut connection, registration, record).await;
        release(connection, registered.is_ok()).await;
        registered
    }

    pub(super) async fn lease_dedup(
        &self,
        chunk: ChunkHash,
        domain: Option<String>,
        lease_until: Timestamp,
    ) -> Result<Option<DedupHit>, IndexError> {
        let op = "find a chunk for deduplication";
        let failed = |error| map(op, error);
        // Most questions have no answer, and need no writer.
        let found = sqlx::query(FIND_DEDUP)
            .bind(chunk.as_bytes().as_slice())
            .bind(domain.as_deref())
            .fetch_optional(&self.readers)
            .await
            .map_err(failed)?;
        if found.is_none() {
            return Ok(None);
        }
        let mut connection = self.writer.acquire().await.map_err(failed)?;
        let leased = lease(op, &mut connection, chunk, domain.as_deref(), lease_until).await;
        release(connection, leased.is_ok()).await;
        leased
    }
}

/// Among several xorbs the one with the most chunks tells the client most.
const FIND_DEDUP: &str = "SELECT xorbs.id, xorbs.hash, length(layout) / 8 FROM dedup_chunks JOIN xorbs ON xorbs.id = xorb_id \
     WHERE chunk_hash = ?1 AND state IN (1, 2) AND damaged_at IS NULL AND \
     (?2 IS NULL OR EXISTS (SELECT 1 FROM xorb_domains AS d WHERE d.xorb_id = xorbs.id AND d.domain = ?2)) \
     ORDER BY length(layout) DESC, xorbs.id LIMIT 1";

/// Files of a xorb of which neighbours are told: a xorb may be part of millions.
const FIND_FILES: &str = "SELECT file_id FROM xorb_files WHERE xorb_id = ?1 LIMIT 16";

/// Other xorbs of a file, within the same walls: those next to a xorb, which were uploaded about when it was, and most of
/// them behind it, where the client goes on. A range of an index, however many xorbs the file has.
/// A xorb of one chunk is never among them: its hash is that of the chunk and would be told in clear (spec 6.2, rule 9).
const FIND_NEIGHBOURS: &str = "WITH near (id) AS ( \
     SELECT * FROM (SELECT xorb_id FROM xorb_files WHERE file_id = ?3 AND xorb_id > ?1 ORDER BY xorb_id LIMIT 48) \
     UNION ALL \
     SELECT * FROM (SELECT xorb_id FROM xorb_files WHERE file_id = ?3 AND xorb_id < ?1 ORDER BY xorb_id DESC LIMIT 16)) \
     SELECT xorbs.id, hash, length(layout) / 8 FROM near JOIN xorbs ON xorbs.id = near.id \
     WHERE state IN (1, 2) AND damaged_at IS NULL AND length(layout) > 8 AND \
     (?2 IS NULL OR EXISTS (SELECT 1 FROM xorb_domains AS d WHERE d.xorb_id = xorbs.id AND d.domain = ?2)) \
     ORDER BY abs(xorbs.id - ?1), xorbs.id DESC";

/// Gives a writing connection back, or closes it where a transaction on it has failed: see
/// [`publish_xorb`](crate::index::Index::publish_xorb) of this index for what sqlx would do with it.
pub(super) async fn release(connection: PoolConnection<Sqlite>, is_sound: bool) {
    if !is_sound && let Err(error) = connection.close().await {
        tracing::warn!(%error, "a connection to the index was not closed well");
    }
}

async fn register(
    op: &'static str,
    connection: &mut SqliteConnection,
    registration: &Registration,
    record: Option<u64>,
) -> Result<Registered, IndexError> {
    let failed = |error| map(op, error);
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
    let outcome = write_registration(op, &mut transaction, registration).await?;
    match outcome {
        Registered::New | Registered::Added => {
            take_record(op, &mut transaction, record).await?;
            transaction.commit().await.map_err(failed)?;
        }
        // Its record is withdrawn.
        Registered::Known => transaction.commit().await.map_err(failed)?,
        Registered::MissingXorb(_)
        | Registered::DamagedXorb(_)
        | Registered::OtherSha256 { .. }
        | Registered::OverQuota(_) => {
            transaction.rollback().await.map_err(failed)?;
        }
    }
    Ok(outcome)
}

async fn lease(
    op: &'static str,
    connection: &mut SqliteConnection,
    chunk: ChunkHash,
    domain: Option<&str>,
    lease_until: Timestamp,
) -> Result<Option<DedupHit>, IndexError> {
    // What was mentioned to somebody is wanted again.
    const LEASE: &str = "UPDATE xorbs SET state = 1, lease_until = max(lease_until, ?) \
         WHERE id = ? AND state IN (1, 2)";
    let failed = |error| map(op, error);
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
    let found = sqlx::query(FIND_DEDUP)
        .bind(chunk.as_bytes().to_vec())
        .bind(domain.map(str::to_owned))
        .fetch_optional(&mut *transaction)
        .await
        .map_err(failed)?;
    let Some(row) = found else { return Ok(None) };
    let (id, hash): (i64, &[u8]) = (get(op, &row, 0)?, get(op, &row, 1)?);
    let xorb = rows::xorb_hash(hash).map_err(|error| IndexError::inconsistent(op, error))?;
    let chunk_limit = MAX_DEDUP_CHUNK_COUNT.saturating_sub(get(op, &row, 2)?);
    let near = neighbours(op, &mut transaction, id, domain, chunk_limit).await?;
    let mut neighbours = Vec::new();
    for hash in near.values() {
        neighbours.push(rows::xorb_hash(hash).map_err(|error| IndexError::inconsistent(op, error))?);
    }
    for id in near.into_keys().chain([id]) {
        execute(op, &mut transaction, LEASE, |query| query.bind(millis(lease_until)).bind(id)).await?;
    }
    transaction.commit().await.map_err(failed)?;
    Ok(Some(DedupHit { xorb, neighbours }))
}

/// Ids and hashes of xorbs that are told with this one, of so many chunks together at most.
async fn neighbours(
    op: &'static str,
    connection: &mut SqliteConnection,
    id: i64,
    domain: Option<&str>,
    chunk_limit: i64,
) -> Result<BTreeMap<i64, Vec<u8>>, IndexError> {
    let failed = |error| map(op, error);
    let (mut found, mut left) = (BTreeMap::new(), chunk_limit);
    let files = sqlx::query(FIND_FILES).bind(id).fetch_all(&mut *connection).await.map_err(failed)?;
    for file in &files {
        let file: i64 = get(op, file, 0)?;
        let near = sqlx::query(FIND_NEIGHBOURS).bind(id).bind(domain.map(str::to_owned)).bind(file);
        for row in near.fetch_all(&mut *connection).await.map_err(failed)? {
            let (neighbour, hash, chunk_count): (i64, Vec<u8>, i64) =
                (get(op, &row, 0)?, get(op, &row, 1)?, get(op, &row, 2)?);
            if chunk_count > left {
                // The nearest ones tell most; a smaller one farther away is no better.
                return Ok(found);
            }
            if found.insert(neighbour, hash).is_none() {
                left -= chunk_count;
            }
        }
    }
    Ok(found)
}

async fn write_registration(
    op: &'static str,
    connection: &mut SqliteConnection,
    registration: &Registration,
) -> Result<Registered, IndexError> {
    let named = match Named::find(op, connection, &registration.xorbs).await? {
        Ok(named) => named,
        Err(Unfit::Unknown(xorb)) => return Ok(Registered::MissingXorb(xorb)),
        Err(Unfit::Damaged(xorb)) => return Ok(Registered::DamagedXorb(xorb)),
    };
    let ids = named.ids();
    let meter = Meter::read(op, connection, registration).await?;
    let mut outcome = Registered::Known;
    for file in &registration.files {
        match write_file(op, connection, registration, file, ids).await? {
            Registered::Known => {}
            Registered::Added if outcome == Registered::New => {}
            told @ (Registered::New | Registered::Added) => outcome = told,
            refused => return Ok(refused),
        }
    }
    if let Some(meter) = &meter
        && outcome != Registered::Known
        && let Some(excess) = meter.excess(op, connection).await?
    {
        return Ok(Registered::OverQuota(excess));
    }
    for (chunk, xorb) in &registration.dedup {
        let Some(id) = ids.get(xorb) else { return Ok(Registered::MissingXorb(*xorb)) };
        let sql = "INSERT OR IGNORE INTO dedup_chunks (chunk_hash, xorb_id) VALUES (?, ?)";
        execute(op, connection, sql, |query| query.bind(chunk.as_bytes().to_vec()).bind(*id)).await?;
    }
    named.keep(op, connection, registration.now).await?;
    Ok(outcome)
}

/// Registers one file. What readers see of a file that is known does not change: its terms stay.
async fn write_file(
    op: &'static str,
    connection: &mut SqliteConnection,
    registration: &Registration,
    file: &NewFile,
    ids: &HashMap<XorbHash, i64>,
) -> Result<Registered, IndexError> {
    let known = sqlx::query("SELECT id FROM files WHERE hash = ?")
        .bind(file.hash.as_bytes().as_slice())
        .fetch_optional(&mut *connection)
        .await
        .map_err(|error| map(op, error))?;
    let id = match known {
        Some(row) => get(op, &row, 0)?,
        None => match insert_file(op, connection, registration, file, ids).await? {
            Ok(id) => id,
            Err(missing) => return Ok(Registered::MissingXorb(missing)),
        },
    };
    // Not OR IGNORE: what is ignored would be ignored in the triggers as well, which count this.
    let sql =
        "INSERT INTO file_repos (file_id, repo, record_len) VALUES (?, ?, ?) ON CONFLICT (file_id, repo) DO NOTHING";
    let (repo, record_len) = (registration.repo.as_str(), record_len(file.terms.len()).cast_signed());
    let added = execute(op, connection, sql, |query| query.bind(id).bind(repo.to_owned()).bind(record_len)).await?;
    let made = match file.sha256 {
        None => Made::Known,
        Some(sha256) => make_claim(op, connection, id, repo, Claim { file: file.hash, sha256 }).await?,
    };
    Ok(match (added, made) {
        (_, Made::Other(unverified)) => Registered::OtherSha256 { file: file.hash, unverified },
        (1.., Made::Known | Made::New) => Registered::New,
        (0, Made::Known) => Registered::Known,
        (0, Made::New) => {
            // A further record of it.
            let sql = "UPDATE file_repos SET record_len = record_len + ? WHERE file_id = ? AND repo = ?";
            execute(op, connection, sql, |query| query.bind(record_len).bind(id).bind(repo.to_owned())).await?;
            Registered::Added
        }
    })
}

/// Enters a file that is not known, with its terms and what it refers to; the id, or the xorb that is missing.
async fn insert_file(
    op: &'static str,
    connection: &mut SqliteConnection,
    registration: &Registration,
    file: &NewFile,
    ids: &HashMap<XorbHash, i64>,
) -> Result<Result<i64, XorbHash>, IndexError> {
    const REFER: &str = "INSERT INTO xorb_files (xorb_id, file_id) SELECT value, ? FROM json_each(?)";
    let row = sqlx::query("INSERT INTO files (hash, raw_len, since) VALUES (?, ?, ?) RETURNING id")
        .bind(file.hash.as_bytes().as_slice())
        .bind(file.raw_len.cast_signed())
        .bind(millis(registration.now))
        .fetch_one(&mut *connection)
        .await
        .map_err(|error| map(op, error))?;
    let id: i64 = get(op, &row, 0)?;
    insert_terms(op, connection, id, &file.terms).await?;
    // Each xorb once, however many terms name it; all in one statement, which costs as much as one or two of them.
    let xorbs: HashSet<XorbHash> = file.terms.iter().map(|term| term.xorb).collect();
    let mut named = Vec::with_capacity(xorbs.len());
    for xorb in xorbs {
        let Some(xorb_id) = ids.get(&xorb) else { return Ok(Err(xorb)) };
        named.push(xorb_id.to_string());
    }
    let named = format!("[{}]", named.join(","));
    execute(op, connection, REFER, |query| query.bind(id).bind(named)).await?;
    Ok(Ok(id))
}

type SqliteQuery = sqlx::query::Query<'static, Sqlite, sqlx::sqlite::SqliteArguments>;

pub(super) async fn execute(
    op: &'static str,
    connection: &mut SqliteConnection,
    sql: &'static str,
    bind: impl FnOnce(SqliteQuery) -> SqliteQuery,
) -> Result<u64, IndexError> {
    let result = bind(sqlx::query(sql)).execute(&mut *connection).await.map_err(|error| map(op, error))?;
    Ok(result.rows_affected())
}

pub(super) fn push_hashes(query: &mut QueryBuilder<Sqlite>, hashes: &[XorbHash]) {
    let mut list = query.separated(", ");
    for hash in hashes {
        list.push_bind(hash.as_bytes().to_vec());
    }
    query.push(")");
}

fn parse_contents(op: &'static str, row: &SqliteRow) -> Result<XorbContents, IndexError> {
    let inconsistent = |error| IndexError::inconsistent(op, error);
    let hash = rows::xorb_hash(get(op, row, 0)?).map_err(inconsistent)?;
    let xorb = rows::xorb(hash, get(op, row, 1)?, get(op, row, 2)?).map_err(inconsistent)?;
    let columns = rows::chunk_columns(&hash, get(op, row, 3)?, get(op, row, 4)?).map_err(inconsistent)?;
    Ok(XorbContents { hash, layout: xorb.layout, chunk_hashes: columns.hashes })
}

pub(super) fn file_hash(op: &'static str, bytes: &[u8]) -> Result<FileHash, IndexError> {
    let bytes = bytes.try_into().map_err(|_| {
        let (key, reason) = ("a row".to_owned(), format!("{} bytes, not 32", bytes.len()));
        IndexError::inconsistent(op, Inconsistent { table: "files", column: "hash", key, reason })
    })?;
    Ok(FileHash::from_bytes(bytes))
}

pub(super) fn repo_of(reader: &Reader) -> Option<String> {
    match reader {
        Reader::All => None,
        Reader::Repo(repo) => Some(repo.clone()),
    }
}
