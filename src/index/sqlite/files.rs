//! Files in SQLite: see [`FileIndex`].

use std::collections::BTreeMap;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::query;

use super::rows::row;
use super::tx::Tx;
use super::{SqliteIndex, millis};
use crate::format::shard::Term;
use crate::format::{ByteRange, ChunkHash, FileHash, XorbHash};
use crate::index::error::IndexError;
use crate::index::files::MAX_DEDUP_CHUNK_COUNT;
use crate::index::{DedupHit, FileIndex, FileRow, Reader};
use crate::runtime::clock::Timestamp;

/// Finds the xorb that has the chunk. Among several xorbs it takes the one with the most chunks,
/// because this one is the most useful to the client.
const FIND_DEDUP: &str = "SELECT xorbs.id AS id, xorbs.hash AS hash, length(layout) / 8 AS chunk_count \
     FROM dedup_chunks JOIN visible_xorbs AS xorbs ON xorbs.id = xorb_id \
     WHERE chunk_hash = ?1 AND damaged_at IS NULL AND \
     (?2 IS NULL OR EXISTS (SELECT 1 FROM xorb_domains AS d WHERE d.xorb_id = xorbs.id AND d.domain = ?2)) \
     ORDER BY length(layout) DESC, xorbs.id LIMIT 1";

/// Some files that reference a xorb. Neighbours are searched in these files only, because millions
/// of files may reference the xorb.
const FIND_FILES: &str = "SELECT file_id FROM xorb_files WHERE xorb_id = ?1 LIMIT 16";

/// Neighbours of a xorb: xorbs of the same file and the same owner with the nearest ids, which were
/// uploaded at about the same time. 48 of them have greater ids and 16 have smaller ids, because
/// the client likely needs the later part of the file. The query reads a range of an index, so its
/// cost does not depend on the number of xorbs of the file.
///
/// A xorb of one chunk is never a neighbour, because its hash would disclose the hash of its chunk
/// (spec 6.2, rule 9).
const FIND_NEIGHBOURS: &str = "WITH near (id) AS ( \
     SELECT * FROM (SELECT xorb_id FROM xorb_files WHERE file_id = ?3 AND xorb_id > ?1 ORDER BY xorb_id LIMIT 48) \
     UNION ALL \
     SELECT * FROM (SELECT xorb_id FROM xorb_files WHERE file_id = ?3 AND xorb_id < ?1 ORDER BY xorb_id DESC LIMIT 16)) \
     SELECT xorbs.id AS id, hash, length(layout) / 8 AS chunk_count FROM near JOIN visible_xorbs AS xorbs ON xorbs.id = near.id \
     WHERE damaged_at IS NULL AND length(layout) > 8 AND \
     (?2 IS NULL OR EXISTS (SELECT 1 FROM xorb_domains AS d WHERE d.xorb_id = xorbs.id AND d.domain = ?2)) \
     ORDER BY abs(xorbs.id - ?1), xorbs.id DESC";

row! {
    /// A xorb that deduplication may mention.
    Mentioned { id: i64, hash: XorbHash, chunk_count: i64 }
}

impl FileIndex for SqliteIndex {
    fn find_file(
        &self,
        hash: FileHash,
        reader: Reader,
        part: Option<ByteRange>,
    ) -> BoxFuture<'_, Result<Option<FileRow>, IndexError>> {
        // Returns every run that begins within the part, and the last run that begins before it. If
        // there is no such run, returns one row without terms. The hash is only for errors.
        const SQL: &str = "SELECT hash, raw_len, start, terms FROM files LEFT JOIN file_terms ON file_id = id \
             AND start >= coalesce((SELECT max(start) FROM file_terms WHERE file_id = id AND start <= ?3), 0) \
             AND start < ?4 \
             WHERE hash = ?1 AND files.registration NOT IN hidden AND (?2 IS NULL OR EXISTS \
             (SELECT 1 FROM file_repos WHERE file_id = id AND repo = ?2 AND registration NOT IN hidden)) \
             ORDER BY start";
        row! { Run { raw_len: u64, start: Option<u64>, terms: Option<Vec<Term>> } }
        let inside = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
        async move {
            let find = query(SQL)
                .bind(hash.as_bytes().as_slice())
                .bind(reader.repo())
                .bind(part.map_or(0, |part| inside(part.start())))
                .bind(part.map_or(0, |part| inside(part.end())));
            let mut runs = self.read("find a file").all::<Run>(find).await?.into_iter();
            let Some(Run { raw_len, start, terms }) = runs.next() else { return Ok(None) };
            let mut terms = terms.unwrap_or_default();
            for run in runs {
                terms.extend(run.terms.unwrap_or_default());
            }
            Ok(Some(FileRow { hash, raw_len, terms, terms_start: start.unwrap_or(raw_len) }))
        }
        .boxed()
    }

    fn find_dedup(
        &self,
        chunk: ChunkHash,
        owner: Option<String>,
        lease_until: Timestamp,
    ) -> BoxFuture<'_, Result<Option<DedupHit>, IndexError>> {
        // A condemned xorb becomes live, because the client may use it now.
        const LEASE: &str = "UPDATE xorbs SET state = 1, lease_until = max(lease_until, ?) \
             WHERE id = ? AND state IN (1, 2)";
        let op = "find a chunk for deduplication";
        async move {
            let find = || query(FIND_DEDUP).bind(chunk.as_bytes().as_slice()).bind(owner.as_deref());
            // Most queries find nothing. They need no writing connection.
            if self.read(op).find::<Mentioned>(find()).await?.is_none() {
                return Ok(None);
            }
            let mut held = self.writing(op).await?;
            let mut tx = held.begin().await?;
            let Some(found) = tx.find::<Mentioned>(find()).await? else { return Ok(None) };
            let near = neighbours(&mut tx, &found, owner.as_deref()).await?;
            for id in near.keys().copied().chain([found.id]) {
                tx.execute(query(LEASE).bind(millis(lease_until)).bind(id)).await?;
            }
            tx.commit().await?;
            Ok(Some(DedupHit { xorb: found.hash, neighbours: near.into_values().collect() }))
        }
        .boxed()
    }
}

/// Ids and hashes of neighbours of a xorb. All these xorbs together have a limited number of
/// chunks.
async fn neighbours(
    tx: &mut Tx<'_>,
    xorb: &Mentioned,
    owner: Option<&str>,
) -> Result<BTreeMap<i64, XorbHash>, IndexError> {
    let (mut found, mut left) = (BTreeMap::new(), MAX_DEDUP_CHUNK_COUNT.saturating_sub(xorb.chunk_count));
    for file in tx.all::<i64>(query(FIND_FILES).bind(xorb.id)).await? {
        for near in tx.all::<Mentioned>(query(FIND_NEIGHBOURS).bind(xorb.id).bind(owner).bind(file)).await? {
            if near.chunk_count > left {
                // The nearest neighbours are the most useful, so do not search for a smaller one
                // that is farther away.
                return Ok(found);
            }
            if found.insert(near.id, near.hash).is_none() {
                left -= near.chunk_count;
            }
        }
    }
    Ok(found)
}
