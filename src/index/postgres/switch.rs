//! The switch of files to other xorbs, for compaction, in PostgreSQL: terms and references in one
//! transaction.

use std::collections::HashSet;

use sqlx::{QueryBuilder, query};

use super::lists::{BATCH_COUNT, id_list, push_hashes};
use super::named::{Named, Unusable};
use super::remove::touch_unreferenced;
use super::tx::Tx;
use crate::format::XorbHash;
use crate::index::compact::{FileSwitch, Moved, Switched};
use crate::index::error::IndexError;
use crate::index::files::{named_xorbs, pack_terms};
use crate::runtime::clock::Timestamp;

/// The state of a running switch.
struct Switch {
    /// The new xorbs, all visible and sound. As in a registration, a condemned one becomes live,
    /// and one that is being deleted is not found.
    new: Named,
    /// Xorbs that have lost a reference.
    lost: HashSet<i64>,
}

/// Switches all of them, or returns the reason.
pub(super) async fn switch(tx: &mut Tx<'_>, files: &[FileSwitch], now: Timestamp) -> Result<Switched, IndexError> {
    let mut moved = Vec::with_capacity(files.len());
    for file in files {
        let Some(of_file) = file.moved() else { return Ok(Switched::Other(file.file)) };
        moved.push(of_file);
    }
    let to: HashSet<XorbHash> = moved.iter().flat_map(|moved| moved.to.iter().copied()).collect();
    let new = match Named::find(tx, &to.into_iter().collect::<Vec<_>>()).await? {
        Ok(new) => new,
        Err(Unusable::Unknown(xorb) | Unusable::Damaged(xorb)) => return Ok(Switched::Unusable(xorb)),
    };
    let mut switch = Switch { new, lost: HashSet::new() };
    for (file, moved) in files.iter().zip(&moved) {
        if !switch.one(tx, file, moved).await? {
            return Ok(Switched::Other(file.file));
        }
    }
    switch.new.retain(tx, now).await?;
    touch_unreferenced(tx, &switch.lost, now).await?;
    switch.drop_superseded_dedup(tx).await?;
    Ok(Switched::All)
}

impl Switch {
    /// Switches one file. Returns whether its terms were as expected.
    async fn one(&mut self, tx: &mut Tx<'_>, file: &FileSwitch, moved: &Moved) -> Result<bool, IndexError> {
        const REPLACE: &str = "UPDATE file_terms SET terms = $1 WHERE row_id = $2 AND file_id = $3 AND terms = $4";
        const REFER: &str = "INSERT INTO xorb_files (xorb_id, file_id) SELECT value, $1 FROM unnest($2) AS value \
             WHERE NOT EXISTS (SELECT 1 FROM xorb_files WHERE xorb_id = value AND file_id = $1)";
        const UNREFER: &str = "DELETE FROM xorb_files WHERE file_id = ";
        // A removed file has another hash by then.
        let find = query("SELECT id FROM files WHERE hash = $1 AND registration NOT IN (SELECT id FROM hidden)")
            .bind(file.file.as_bytes().as_slice());
        let Some(id) = tx.find::<i64>(find).await? else { return Ok(false) };
        for run in &file.runs {
            let (before, after) = (pack_terms(&run.before), pack_terms(&run.after));
            let row = run.row.cast_signed();
            if tx.execute(query(REPLACE).bind(after).bind(row).bind(id).bind(before)).await? != 1 {
                return Ok(false);
            }
        }
        let to = id_list(moved.to.iter().filter_map(|xorb| self.new.ids().get(xorb)));
        tx.execute(query(REFER).bind(id).bind(to)).await?;
        let mut unnamed = moved.from.clone();
        for terms in tx.all::<Vec<u8>>(query("SELECT terms FROM file_terms WHERE file_id = $1").bind(id)).await? {
            for xorb in named_xorbs(&terms) {
                unnamed.remove(&xorb);
            }
        }
        let unnamed: Vec<XorbHash> = unnamed.into_iter().collect();
        for batch in unnamed.chunks(BATCH_COUNT) {
            let mut let_go = QueryBuilder::new(UNREFER);
            let_go.push_bind(id).push(" AND xorb_id IN (SELECT id FROM xorbs WHERE hash = ANY(");
            push_hashes(&mut let_go, batch);
            let_go.push(") RETURNING xorb_id");
            self.lost.extend(tx.all::<i64>(let_go.build()).await?);
        }
        Ok(true)
    }

    /// Deletes chunks of unreferenced xorbs that the new xorbs have, too. A response that names an
    /// old xorb would lease it for weeks, and make it live.
    async fn drop_superseded_dedup(&self, tx: &mut Tx<'_>) -> Result<(), IndexError> {
        // One statement, since each one reads the chunks of all new xorbs.
        const HAND_OVER: &str = "DELETE FROM dedup_chunks WHERE xorb_id IN (SELECT value FROM unnest($1) AS value \
             WHERE NOT EXISTS (SELECT 1 FROM xorb_files WHERE xorb_files.xorb_id = value)) \
             AND chunk_hash IN (SELECT chunk_hash FROM dedup_chunks AS new WHERE new.xorb_id = ANY($2))";
        let (lost, new) = (id_list(&self.lost), id_list(self.new.ids().values()));
        tx.execute(query(HAND_OVER).bind(lost).bind(new)).await.map(drop)
    }
}
