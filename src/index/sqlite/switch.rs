//! The switch of files to other xorbs in SQLite: terms and references in one transaction.

use std::collections::HashSet;

use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use super::files::{BATCH_COUNT, execute, push_hashes, release};
use super::named::{Named, Unusable, id_list};
use super::remove::touch_unreferenced;
use super::store::take_record;
use super::write::{Write, statement};
use super::{SqliteIndex, get, map};
use crate::format::XorbHash;
use crate::format::shard::Term;
use crate::index::compact::{FileSwitch, RunSwitch, Switched};
use crate::index::error::IndexError;
use crate::index::files::{named_xorbs, pack_terms};
use crate::runtime::clock::Timestamp;

/// The state of a running switch.
struct Switch {
    op: &'static str,
    /// The new xorbs, all visible and sound. As in a registration, a condemned one becomes live,
    /// and one that is being deleted is not found.
    new: Named,
    /// Xorbs that have lost a reference.
    lost: HashSet<i64>,
}

impl SqliteIndex {
    pub(super) async fn write_switch(
        &self,
        files: &[FileSwitch],
        now: Timestamp,
        record: Option<u64>,
    ) -> Result<Switched, IndexError> {
        let op = "switch the terms of files";
        let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
        let switched = switch(op, &mut connection, files, now, record).await;
        release(connection, switched.is_ok()).await;
        switched
    }
}

async fn switch(
    op: &'static str,
    connection: &mut SqliteConnection,
    files: &[FileSwitch],
    now: Timestamp,
    record: Option<u64>,
) -> Result<Switched, IndexError> {
    let mut transaction = Write::begin(op, connection).await?;
    let switched = write(op, &mut transaction, files, now).await?;
    match switched {
        Switched::All => {
            take_record(op, &mut transaction, record).await?;
            transaction.commit().await?;
        }
        Switched::Other(_) | Switched::Unusable(_) => transaction.rollback().await?,
    }
    Ok(switched)
}

/// Switches all of them, or returns the reason.
async fn write(
    op: &'static str,
    connection: &mut SqliteConnection,
    files: &[FileSwitch],
    now: Timestamp,
) -> Result<Switched, IndexError> {
    let mut moved = Vec::with_capacity(files.len());
    for file in files {
        let Some(of_file) = Moved::of(file) else { return Ok(Switched::Other(file.file)) };
        moved.push(of_file);
    }
    let to: HashSet<XorbHash> = moved.iter().flat_map(|moved| moved.to.iter().copied()).collect();
    let new = match Named::find(op, connection, &to.into_iter().collect::<Vec<_>>()).await? {
        Ok(new) => new,
        Err(Unusable::Unknown(xorb) | Unusable::Damaged(xorb)) => return Ok(Switched::Unusable(xorb)),
    };
    let mut switch = Switch { op, new, lost: HashSet::new() };
    for (file, moved) in files.iter().zip(&moved) {
        if !switch.one(connection, file, moved).await? {
            return Ok(Switched::Other(file.file));
        }
    }
    switch.new.retain(op, connection, now).await?;
    touch_unreferenced(op, connection, &switch.lost, now).await?;
    switch.hand_over_chunks(connection).await?;
    Ok(Switched::All)
}

impl Switch {
    /// Switches one file. Returns whether its terms were as expected.
    async fn one(
        &mut self,
        connection: &mut SqliteConnection,
        file: &FileSwitch,
        moved: &Moved,
    ) -> Result<bool, IndexError> {
        const REPLACE: &str = "UPDATE file_terms SET terms = ? WHERE rowid = ? AND file_id = ? AND terms = ?";
        // No OR REPLACE and no OR IGNORE: triggers count usage.
        const REFER: &str = "INSERT INTO xorb_files (xorb_id, file_id) SELECT value, ?1 FROM json_each(?2) \
             WHERE NOT EXISTS (SELECT 1 FROM xorb_files WHERE xorb_id = value AND file_id = ?1)";
        const LET_GO: &str = "DELETE FROM xorb_files WHERE file_id = ";
        let op = self.op;
        let failed = |error| map(op, error);
        // A removed file has another hash by then.
        let found = sqlx::query("SELECT id FROM files WHERE hash = ?").bind(file.file.as_bytes().to_vec());
        let Some(found) = found.fetch_optional(statement(op, connection)?).await.map_err(failed)? else {
            return Ok(false);
        };
        let id: i64 = get(op, &found, 0)?;
        for run in &file.runs {
            let (before, after) = (pack_terms(&run.before), pack_terms(&run.after));
            let row = run.row.cast_signed();
            let replaced =
                execute(op, connection, REPLACE, |query| query.bind(after).bind(row).bind(id).bind(before)).await?;
            if replaced != 1 {
                return Ok(false);
            }
        }
        let to = id_list(moved.to.iter().filter_map(|xorb| self.new.ids().get(xorb)));
        execute(op, connection, REFER, |query| query.bind(id).bind(to)).await?;
        let mut unnamed = moved.from.clone();
        for row in sqlx::query("SELECT terms FROM file_terms WHERE file_id = ?")
            .bind(id)
            .fetch_all(statement(op, connection)?)
            .await
            .map_err(failed)?
        {
            for xorb in named_xorbs(get(op, &row, 0)?) {
                unnamed.remove(&xorb);
            }
        }
        let unnamed: Vec<XorbHash> = unnamed.into_iter().collect();
        for batch in unnamed.chunks(BATCH_COUNT) {
            let mut query = QueryBuilder::<Sqlite>::new(LET_GO);
            query.push_bind(id).push(" AND xorb_id IN (SELECT id FROM xorbs WHERE hash IN (");
            push_hashes(&mut query, batch);
            query.push(") RETURNING xorb_id");
            let rows = query.build().fetch_all(statement(op, connection)?).await.map_err(failed)?;
            for row in &rows {
                self.lost.insert(get(op, row, 0)?);
            }
        }
        Ok(true)
    }

    /// Deletes chunks of unreferenced xorbs that the new xorbs have, too. A response that names an
    /// old xorb would lease it for weeks, and make it live.
    async fn hand_over_chunks(&self, connection: &mut SqliteConnection) -> Result<(), IndexError> {
        // One statement, since each one reads the chunks of all new xorbs. `+` disables the index
        // on `chunk_hash`, or each xorb would be looked up with each of them.
        const HAND_OVER: &str = "DELETE FROM dedup_chunks WHERE xorb_id IN (SELECT value FROM json_each(?1) \
             WHERE NOT EXISTS (SELECT 1 FROM xorb_files WHERE xorb_files.xorb_id = value)) \
             AND +chunk_hash IN (SELECT chunk_hash FROM dedup_chunks AS new WHERE new.xorb_id IN (SELECT value FROM json_each(?2)))";
        let (lost, new) = (id_list(&self.lost), id_list(self.new.ids().values()));
        execute(self.op, connection, HAND_OVER, |query| query.bind(lost).bind(new)).await?;
        Ok(())
    }
}

/// The xorbs of the changed terms of a file, before and after.
struct Moved {
    from: HashSet<XorbHash>,
    to: HashSet<XorbHash>,
}

impl Moved {
    /// `None` if the new terms differ from the old ones in number or length.
    fn of(file: &FileSwitch) -> Option<Self> {
        let mut moved = Self { from: HashSet::new(), to: HashSet::new() };
        for RunSwitch { before, after, .. } in &file.runs {
            let is_same = |(before, after): (&Term, &Term)| {
                before.raw_len == after.raw_len && before.chunks.count() == after.chunks.count()
            };
            if before.len() != after.len() || !before.iter().zip(after).all(is_same) {
                return None;
            }
            for (before, after) in before.iter().zip(after).filter(|(before, after)| before != after) {
                moved.from.insert(before.xorb);
                moved.to.insert(after.xorb);
            }
        }
        Some(moved)
    }
}
