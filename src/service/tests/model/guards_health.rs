//! The guards against damaged blobs, and those of replaced blobs. They are broken like the others.

use super::guards::{BrokenGuards, Guard};
use crate::blob::{BlobKey, BlobStore};
use crate::format::XorbHash;
use crate::index::sqlite::SqliteIndex;
use crate::index::{DeadObject, HealthIndex, IndexError, NewXorb, ObjectIndex, Ticket, XorbHealth, XorbIndex, XorbRow};
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

/// Limit of a query: more than all damaged xorbs.
const ALL: u32 = 1000;

impl BrokenGuards {
    /// Clears the marks of damaged xorbs for an operation that lacks this guard; returns them, to
    /// be restored afterwards.
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

    /// Restores the marks that [`hide_marks`](Self::hide_marks) has cleared.
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

    pub(in crate::service::tests) async fn describe_xorb_again(
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
        index.describe_xorb_again(xorb, ticket, now).await?;
        self.mark_again(index, hash, now).await?;
        if self.lacks(Guard::HealNotesReplacement) {
            let sql = "UPDATE xorbs SET replaced_at = nullif(?2, ?2) WHERE hash = ?1";
            index.corrupt_row(sql, hash.as_bytes(), 0).await?;
        }
        Ok(())
    }

    /// Marks a healed xorb as damaged again if the guard that clears the mark is broken.
    async fn mark_again(&self, index: &SqliteIndex, hash: XorbHash, now: Timestamp) -> Result<(), IndexError> {
        if self.lacks(Guard::HealUnmarks) {
            let sql = "UPDATE xorbs SET damaged_at = ?2 WHERE hash = ?1";
            index.corrupt_row(sql, hash.as_bytes(), now.as_millis().cast_signed()).await?;
        }
        Ok(())
    }

    pub(in crate::service::tests) async fn begin_object(
        &self,
        index: &SqliteIndex,
        (hash, incarnation): (XorbHash, Incarnation),
        len: u64,
        now: Timestamp,
    ) -> Result<(), IndexError> {
        if self.lacks(Guard::ObjectBeforeBlob) {
            return Ok(());
        }
        index.begin_object(hash, incarnation, len, now).await
    }

    pub(in crate::service::tests) async fn replace_xorb(
        &self,
        index: &SqliteIndex,
        xorb: NewXorb,
        ticket: Ticket,
        incarnation: Incarnation,
        now: Timestamp,
    ) -> Result<(), IndexError> {
        let (hash, len) = (xorb.hash, xorb.layout.serialized_len());
        if self.lacks(Guard::ObjectBeforeBlob) {
            index.begin_object(hash, incarnation, len, now).await?;
        }
        let before = index.incarnation_of(hash).await?;
        if self.lacks(Guard::ReplacedBlobStays)
            && let Some(before) = before
        {
            self.blobs.delete(BlobKey::new(hash, before)).await.expect("memory does not fail");
        }
        index.replace_xorb(xorb, ticket, incarnation, now).await?;
        if self.lacks(Guard::ReplacedIsDead) {
            let sql = "DELETE FROM objects WHERE hash = ?1 AND state = 1 + 0 * ?2";
            index.corrupt_row(sql, hash.as_bytes(), 0).await?;
        }
        self.mark_again(index, hash, now).await
    }

    pub(in crate::service::tests) async fn abandon_objects(
        &self,
        index: &SqliteIndex,
        before: Timestamp,
        now: Timestamp,
    ) -> Result<u64, IndexError> {
        if self.lacks(Guard::AbandonObjects) { Ok(0) } else { index.abandon_objects(before, now).await }
    }

    pub(in crate::service::tests) async fn dead_objects(
        &self,
        index: &SqliteIndex,
        before: Timestamp,
        after: Option<(XorbHash, Incarnation)>,
        limit: u32,
    ) -> Result<Vec<DeadObject>, IndexError> {
        if self.lacks(Guard::DeleteObjects) {
            return Ok(Vec::new());
        }
        let end = Timestamp::from_millis(u64::MAX >> 1);
        index.dead_objects(if self.lacks(Guard::ObjectRetention) { end } else { before }, after, limit).await
    }
}
