//! Files are made of other xorbs, in SQLite: terms and references in one transaction.

use std::collections::{HashMap, HashSet};

use sqlx::{Connection, SqliteConnection};

use super::compact::touch;
use super::files::{execute, release};
use super::remove::touch_unreferenced;
use super::{SqliteIndex, get, map};
use crate::format::XorbHash;
use crate::format::shard::Term;
use crate::index::compact::{FileSwitch, RunSwitch, Switched};
use crate::index::error::IndexError;
use crate::index::files::{named_xorbs, pack_terms};
use crate::runtime::clock::Timestamp;

/// What is known of a switch that is under way.
struct Switch {
    op: &'static str,
    /// The new xorbs, which are there and sound, with their ids.
    new: HashMap<XorbHash, i64>,
    /// Xorbs that have lost the reference of a file.
    lost: HashSet<i64>,
}

impl SqliteIndex {
    pub(super) async fn write_switch(&self, files: &[FileSwitch], now: Timestamp) -> Result<Switched, IndexError> {
        let op = "switch the terms of files";
        let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
        let switched = switch(op, &mut connection, files, now).await;
        release(connection, switched.is_ok()).await;
        switched
    }
}

async fn switch(
    op: &'static str,
    connection: &mut SqliteConnection,
    files: &[FileSwitch],
    now: Timestamp,
) -> Result<Switched, IndexError> {
    let failed = |error| map(op, error);
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
    let mut switch = Switch { op, new: HashMap::new(), lost: HashSet::new() };
    let refused = switch.all(&mut transaction, files, now).await?;
    if let Some(refused) = refused {
        transaction.rollback().await.map_err(failed)?;
        return Ok(refused);
    }
    let lost: Vec<i64> = switch.lost.iter().copied().collect();
    touch_unreferenced(op, &mut transaction, &lost, now).await?;
    switch.hand_over_chunks(&mut transaction).await?;
    transaction.commit().await.map_err(failed)?;
    Ok(Switched::All)
}

impl Switch {
    /// Switches all of them; says why not, if so.
    async fn all(
        &mut self,
        connection: &mut SqliteConnection,
        files: &[FileSwitch],
        now: Timestamp,
    ) -> Result<Option<Switched>, IndexError> {
        for file in files {
            let Some(moved) = Moved::of(file) else { return Ok(Some(Switched::Other(file.file))) };
            for xorb in &moved.to {
                if self.new.contains_key(xorb) {
                    continue;
                }
                // Condemned goes back to live here, and what is being deleted is not found: as with a registration.
                match touch(self.op, connection, *xorb, now).await? {
                    Some(id) => drop(self.new.insert(*xorb, id)),
                    None => return Ok(Some(Switched::Unfit(*xorb))),
                }
            }
            if !self.one(connection, file, &moved).await? {
                return Ok(Some(Switched::Other(file.file)));
            }
        }
        Ok(None)
    }

    /// Switches one file; whether it is what it was.
    async fn one(
        &mut self,
        connection: &mut SqliteConnection,
        file: &FileSwitch,
        moved: &Moved,
    ) -> Result<bool, IndexError> {
        const REPLACE: &str = "UPDATE file_terms SET terms = ? WHERE rowid = ? AND file_id = ? AND terms = ?";
        // Plain statements, never OR REPLACE or OR IGNORE: usage is counted by triggers.
        const REFER: &str = "INSERT INTO xorb_files (xorb_id, file_id) SELECT ?1, ?2 \
             WHERE NOT EXISTS (SELECT 1 FROM xorb_files WHERE xorb_id = ?1 AND file_id = ?2)";
        const LET_GO: &str = "DELETE FROM xorb_files WHERE file_id = ? AND \
             xorb_id = (SELECT id FROM xorbs WHERE hash = ?) RETURNING xorb_id";
        let op = self.op;
        let failed = |error| map(op, error);
        // A file that was removed has another hash by then.
        let found = sqlx::query("SELECT id FROM files WHERE hash = ?").bind(file.file.as_bytes().to_vec());
        let Some(found) = found.fetch_optional(&mut *connection).await.map_err(failed)? else { return Ok(false) };
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
        for xorb in moved.to.iter().filter_map(|xorb| self.new.get(xorb).copied()) {
            execute(op, connection, REFER, |query| query.bind(xorb).bind(id)).await?;
        }
        let mut unnamed = moved.from.clone();
        for row in sqlx::query("SELECT terms FROM file_terms WHERE file_id = ?")
            .bind(id)
            .fetch_all(&mut *connection)
            .await
            .map_err(failed)?
        {
            for xorb in named_xorbs(get(op, &row, 0)?) {
                unnamed.remove(&xorb);
            }
        }
        for xorb in unnamed {
            let query = sqlx::query(LET_GO).bind(id).bind(xorb.as_bytes().to_vec());
            let rows = query.fetch_all(&mut *connection).await.map_err(failed)?;
            for row in &rows {
                self.lost.insert(get(op, row, 0)?);
            }
        }
        Ok(true)
    }

    /// Takes from xorbs that nothing refers to any more the chunks that the new ones have: an answer that names an old
    /// one would keep it for another three weeks, and bring it back.
    async fn hand_over_chunks(&self, connection: &mut SqliteConnection) -> Result<(), IndexError> {
        const HAND_OVER: &str = "DELETE FROM dedup_chunks WHERE xorb_id = ?1 \
             AND NOT EXISTS (SELECT 1 FROM xorb_files WHERE xorb_id = ?1) \
             AND chunk_hash IN (SELECT chunk_hash FROM dedup_chunks AS new WHERE new.xorb_id IN (SELECT value FROM json_each(?2)))";
        let new: Vec<String> = self.new.values().map(i64::to_string).collect();
        let new = format!("[{}]", new.join(","));
        for xorb in &self.lost {
            let (xorb, new) = (*xorb, new.clone());
            execute(self.op, connection, HAND_OVER, |query| query.bind(xorb).bind(new)).await?;
        }
        Ok(())
    }
}

/// What the terms of a file name before and after, where they change.
struct Moved {
    from: HashSet<XorbHash>,
    to: HashSet<XorbHash>,
}

impl Moved {
    /// `None` where the new terms are not as many and as long as the old ones.
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
