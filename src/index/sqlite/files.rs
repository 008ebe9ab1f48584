//! Files in SQLite: see [`FileIndex`].

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::query;

use super::rows::row;
use super::tx::{Query, Tx};
use super::{SqliteIndex, millis};
use crate::format::shard::Term;
use crate::format::{ByteRange, ChunkHash, FileHash, XorbHash};
use crate::index::error::IndexError;
use crate::index::files::{MAX_DEDUP_CANDIDATE_COUNT, MAX_DEDUP_CHUNK_COUNT};
use crate::index::{DedupHit, FileIndex, FileRow, Reader};
use crate::runtime::clock::Timestamp;

/// Finds the xorb that has the chunk. Among several xorbs it takes the one with the most chunks,
/// because this one is the most useful to the client.
const FIND_DEDUP: &str = "SELECT xorbs.id AS id, xorbs.hash AS hash, length(layout) / 8 AS chunk_count, \
     state = 1 AND lease_until >= ?3 AS is_leased \
     FROM (SELECT xorb_id FROM dedup_chunks WHERE chunk_hash = ?1 ORDER BY xorb_id DESC LIMIT +?4) AS newest \
     JOIN visible_xorbs AS xorbs ON xorbs.id = xorb_id \
     WHERE damaged_at IS NULL AND \
     (?2 IS NULL OR EXISTS (SELECT 1 FROM xorb_domains AS d WHERE d.xorb_id = xorbs.id AND d.domain = ?2)) \
     ORDER BY length(layout) DESC, xorbs.id LIMIT 1";

/// Finds this xorb again, if deduplication may still mention it.
const FIND_AGAIN: &str = "SELECT id, hash, length(layout) / 8 AS chunk_count, state = 1 AND lease_until >= ?3 AS is_leased \
     FROM visible_xorbs AS xorbs WHERE hash = ?1 AND damaged_at IS NULL AND \
     (?2 IS NULL OR EXISTS (SELECT 1 FROM xorb_domains AS d WHERE d.xorb_id = xorbs.id AND d.domain = ?2))";

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
     SELECT xorbs.id AS id, hash, length(layout) / 8 AS chunk_count, \
     state = 1 AND lease_until >= ?4 AS is_leased FROM near JOIN visible_xorbs AS xorbs ON xorbs.id = near.id \
     WHERE damaged_at IS NULL AND length(layout) > 8 AND \
     (?2 IS NULL OR EXISTS (SELECT 1 FROM xorb_domains AS d WHERE d.xorb_id = xorbs.id AND d.domain = ?2)) \
     ORDER BY abs(xorbs.id - ?1), xorbs.id DESC";

row! {
    /// A xorb that deduplication may mention.
    Mentioned { id: i64, hash: XorbHash, chunk_count: i64, is_leased: bool }
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
        lease_until: RangeInclusive<Timestamp>,
    ) -> BoxFuture<'_, Result<Option<DedupHit>, IndexError>> {
        // A condemned xorb becomes live, because the client may use it now.
        const LEASE: &str = "UPDATE xorbs SET state = 1, lease_until = max(lease_until, ?) \
             WHERE id = ? AND state IN (1, 2)";
        let op = "find a chunk for deduplication";
        async move {
            let asked = Asked { chunk: &chunk, owner: owner.as_deref(), leased: *lease_until.start() };
            let hit = |(found, near): Found| DedupHit {
                xorb: found.hash,
                neighbours: near.into_values().map(|xorb| xorb.hash).collect(),
            };
            // Most queries find nothing, with one statement.
            let Some(chosen) = self.read(op).find::<Mentioned>(asked.choose()).await? else { return Ok(None) };
            // The others mostly find what another query has found a short time ago, and write
            // nothing. The chosen xorb may have been deleted in the meantime. Then the client
            // uploads the chunk.
            let mut held = self.reading(op).await?;
            let found = asked.describe(&mut held.snapshot().await?, chosen.hash).await?;
            drop(held);
            let Some((found, near)) = found else { return Ok(None) };
            if near.values().chain([&found]).all(|xorb| xorb.is_leased) {
                return Ok(Some(hit((found, near))));
            }
            let mut held = self.writing(op).await?;
            let mut tx = held.begin().await?;
            let Some((found, near)) = asked.describe(&mut tx, chosen.hash).await? else { return Ok(None) };
            let unleased = near.values().chain([&found]).filter(|xorb| !xorb.is_leased).map(|xorb| xorb.id);
            for id in unleased {
                tx.execute(query(LEASE).bind(millis(*lease_until.end())).bind(id)).await?;
            }
            tx.commit().await?;
            Ok(Some(hit((found, near))))
        }
        .boxed()
    }
}

/// A dedup query.
#[derive(Clone, Copy, Debug)]
struct Asked<'a> {
    chunk: &'a ChunkHash,
    owner: Option<&'a str>,
    /// The end that the lease of each xorb must have at least.
    leased: Timestamp,
}

/// The xorb of a response, and its neighbours by their ids.
type Found = (Mentioned, BTreeMap<i64, Mentioned>);

impl Asked<'_> {
    /// Chooses a xorb with the chunk.
    fn choose(&self) -> Query<'_> {
        let find = query(FIND_DEDUP).bind(self.chunk.as_bytes().as_slice()).bind(self.owner);
        find.bind(millis(self.leased)).bind(MAX_DEDUP_CANDIDATE_COUNT)
    }

    /// The chosen xorb, and its neighbours. The cost does not depend on how many xorbs have the
    /// chunk.
    async fn describe(&self, tx: &mut Tx<'_>, chosen: XorbHash) -> Result<Option<Found>, IndexError> {
        let find = query(FIND_AGAIN).bind(chosen.as_bytes().as_slice()).bind(self.owner).bind(millis(self.leased));
        let Some(found) = tx.find::<Mentioned>(find).await? else { return Ok(None) };
        let near = self.neighbours(tx, &found).await?;
        Ok(Some((found, near)))
    }

    /// The neighbours of a xorb. All these xorbs together have a limited number of chunks.
    async fn neighbours(&self, tx: &mut Tx<'_>, xorb: &Mentioned) -> Result<BTreeMap<i64, Mentioned>, IndexError> {
        let (mut found, mut left) = (BTreeMap::new(), MAX_DEDUP_CHUNK_COUNT.saturating_sub(xorb.chunk_count));
        for file in tx.all::<i64>(query(FIND_FILES).bind(xorb.id)).await? {
            let near = query(FIND_NEIGHBOURS).bind(xorb.id).bind(self.owner).bind(file).bind(millis(self.leased));
            for near in tx.all::<Mentioned>(near).await? {
                let chunk_count = near.chunk_count;
                if chunk_count > left {
                    // The nearest neighbours are the most useful, so do not search for a smaller
                    // one that is farther away.
                    return Ok(found);
                }
                if found.insert(near.id, near).is_none() {
                    left -= chunk_count;
                }
            }
        }
        Ok(found)
    }
}
