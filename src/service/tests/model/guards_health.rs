//! The guards of damaged blobs, broken like the others.

use super::guards::{Guard, Weakness};
use crate::format::XorbHash;
use crate::index::sqlite::SqliteIndex;
use crate::index::{HealthIndex, Index, IndexError, NewXorb, Ticket, XorbHealth, XorbRow};
use crate::runtime::clock::Timestamp;

/// Damaged xorbs, at most: all.
const ALL: u32 = 1000;

impl Weakness {
    /// Makes everything look sound for an operation that lacks this guard; returns the marks to
    /// restore.
    pub(super) async fn hide_marks(&self, index: &SqliteIndex, guard: Guard) -> Result<Vec<XorbHealth>, IndexError> {
        if !self.lacks(guard) {
            return Ok(Vec::new());
        }
        let marked = index.damaged_after(None, ALL).await?;
        for xorb in &marked {
            let sql = "UPDATE xorbs SET damaged_at = nullif(?2, ?2) WHERE hash = ?1";
            index.corrupt_row(sql, xorb.hash.as_bytes(), 0).await?;
        }
        Ok(marked)
    }

    pub(super) async fn show_marks(&self, index: &SqliteIndex, marked: Vec<XorbHealth>) -> Result<(), IndexError> {
        for XorbHealth { hash, damaged_at, .. } in marked {
            let at = damaged_at.map_or(0, |at| at.as_millis().cast_signed());
            index.corrupt_row("UPDATE xorbs SET damaged_at = ?2 WHERE hash = ?1", hash.as_bytes(), at).await?;
        }
        Ok(())
    }

    pub(in crate::service::tests) async fn find_xorb(
        &self,
        index: &SqliteIndex,
        hash: XorbHash,
    ) -> Result<Option<XorbRow>, IndexError> {
        let row = index.find_xorb(hash).await?;
        Ok(row.map(|row| XorbRow { is_damaged: row.is_damaged && !self.lacks(Guard::QuarantineHides), ..row }))
    }

    pub(in crate::service::tests) async fn mark_damaged(
        &self,
        index: &SqliteIndex,
        seen: XorbHealth,
        now: Timestamp,
    ) -> Result<bool, IndexError> {
        if self.lacks(Guard::CheckMarks) {
            return Ok(true);
        }
        let later = if self.lacks(Guard::MarkHitsWhatWasSeen) { index.find_health(seen.hash).await? } else { None };
        index.mark_damaged(later.unwrap_or(seen), now).await
    }

    pub(in crate::service::tests) async fn heal_xorb(
        &self,
        index: &SqliteIndex,
        xorb: NewXorb,
        ticket: Ticket,
        now: Timestamp,
    ) -> Result<(), IndexError> {
        let hash = xorb.hash;
        if self.lacks(Guard::HealDescribes) {
            let sql = "UPDATE xorbs SET damaged_at = nullif(?2, ?2) WHERE hash = ?1";
            return index.corrupt_row(sql, hash.as_bytes(), 0).await.map(drop);
        }
        index.heal_xorb(xorb, ticket, now).await?;
        if self.lacks(Guard::HealUnmarks) {
            let sql = "UPDATE xorbs SET damaged_at = ?2 WHERE hash = ?1";
            index.corrupt_row(sql, hash.as_bytes(), now.as_millis().cast_signed()).await?;
        }
        if self.lacks(Guard::HealNotesReplacement) {
            let sql = "UPDATE xorbs SET replaced_at = nullif(?2, ?2) WHERE hash = ?1";
            index.corrupt_row(sql, hash.as_bytes(), 0).await?;
        }
        Ok(())
    }
}
