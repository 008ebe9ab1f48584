//! The guards of the store, and the fault that the model reports without each.
//!
//! The tests break a guard between the service and its stores, so that the service needs no code
//! for it. SQL statements of [`corrupt_row`](SqliteIndex::corrupt_row) must use both parameters,
//! hence `0 * ?2` and `nullif(?2, ?2)` where one is not needed. Breaking some guards alone has no
//! effect, because another guard covers them. Such a guard is broken together with the covering
//! one. If only the covering one is broken, the fault must not occur ([`COVERED`]).

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::record::Fault;
use crate::blob::memory::MemoryBlobStore;
use crate::blob::{BlobKey, BlobStore};
use crate::format::{ByteRange, ChunkHash, FileHash, XorbHash};
use crate::index::sqlite::SqliteIndex;
use crate::index::sqlite::test_hooks::Checks;
use crate::index::{
    Collect, Cursor, DedupHit, FileIndex, FileRow, IndexError, NewXorb, ObjectIndex, OpenRegistration, Reader,
    RegisterIndex, Registered, Registration, RemovedClaims, Staging, StepOutcome, TermPage, Ticket, XorbIndex,
    XorbLife, XorbState,
};
use crate::runtime::clock::Timestamp;

macro_rules! guards {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// A rule that prevents losses and leaks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Guard { $($(#[$doc])* $name,)+ }

        pub(super) const GUARDS: &[Guard] = &[$(Guard::$name,)+];
    };
}

guards! {
    /// A xorb that was touched within the grace period is not condemned.
    CondemnAge,
    /// A leased xorb is not condemned.
    CondemnLease,
    /// A referenced xorb is not condemned.
    CondemnReferences,
    /// A xorb that has been condemned for less than a day is not deleted.
    DeleteAge,
    /// A leased xorb is not deleted. Covered: a lease makes a condemned xorb live.
    DeleteLease,
    /// A referenced xorb is not deleted. Covered: a registration makes a condemned xorb live.
    DeleteReferences,
    /// A registration makes condemned xorbs live.
    RegisterRevives,
    /// A registration touches the xorbs that it names.
    RegisterTouches,
    /// An upload of a stored xorb makes it live.
    UploadRevives,
    /// An upload of a stored xorb touches it.
    UploadTouches,
    /// A dedup response makes the xorb live that it names.
    DedupRevives,
    /// A dedup response leases its xorb.
    DedupLeases,
    /// A client is told that a xorb is stored only after it was touched.
    RenewTouches,
    /// A client is told that a xorb is stored only after it was made live.
    RenewRevives,
    /// A touch is never moved to an earlier time by a clock that went back.
    TouchKeepsLater,
    /// A xorb that loses its last reference is touched.
    LossTouches,
    /// A row goes live only for the upload that staged it, and only from that state.
    PublishOwnsRow,
    /// A row that is being deleted is not staged.
    StageSparesDeleting,
    /// A blob is deleted when its row says so, and not before.
    RowBeforeBlob,
    /// A row is forgotten after its blob was deleted, and not before.
    BlobBeforeForgetting,
    /// A collection aborts when a file names a xorb that would be deleted, although no reference
    /// exists.
    TermsCrossCheck,
    /// A start removes unfinished work of the process before it.
    Recovery,
    /// A collection removes staged rows of interrupted uploads.
    AbandonStaged,
    /// A collection finishes the deletions that were begun.
    FinishDeletions,
    /// The references of removed files are deleted.
    Sweep,
    /// A removal takes the claim of one repository, and no other.
    OwnClaim,
    /// No reader sees files that only another repository has registered.
    DedupScope,
    /// A xorb that is known to be damaged is not read.
    QuarantineHides,
    /// A registration that names a damaged xorb is refused.
    RegisterRefusesDamaged,
    /// No client is told that a damaged xorb is stored.
    RenewRefusesDamaged,
    /// No dedup response names a damaged xorb.
    DedupSparesDamaged,
    /// An upload of a damaged xorb replaces it.
    UploadHeals,
    /// The result of a check is recorded.
    CheckMarks,
    /// The result of a check is recorded for the blob that it has read, and not for a later one.
    MarkHitsWhatWasSeen,
    /// After a check has found another serialization, the row describes that blob.
    HealDescribes,
    /// A healed xorb no longer counts as damaged.
    HealUnmarks,
    /// URLs with the offsets from before a blob was described anew are refused.
    HealNotesReplacement,
    /// A new blob has a name in the index before it is published.
    ObjectBeforeBlob,
    /// A replaced blob stays readable for readers with its layout.
    ReplacedBlobStays,
    /// A replaced blob is a dead object.
    ReplacedIsDead,
    /// Pending objects of processes that died are abandoned.
    AbandonObjects,
    /// Blobs of dead objects are deleted.
    DeleteObjects,
    /// The blobs of dead objects are retained for some time.
    ObjectRetention,
    /// A URL is for the blob that it was made with.
    UrlNamesBlob,
    /// A file is switched only if its terms are those that the new ones replace.
    SwitchComparesTerms,
    /// A xorb that loses its last reference by a switch is touched.
    SwitchTouches,
    /// A file refers to the new xorbs that it is made of.
    SwitchRefers,
    /// A file still refers to an old xorb of which it needs other chunks.
    SwitchKeepsWhatIsNamed,
    /// The rows of a step of a registration are hidden until all of it is published.
    StepHides,
    /// The rows of a step retain the xorbs of its files.
    StepRefers,
    /// A start abandons the registrations that were being written.
    StartAbandons,
    /// Xorbs of different uploaders are not combined into one new xorb.
    CompactionGroupsOwners,
}

/// Each entry: a guard whose absence has no effect, the guard that covers it, and the fault without
/// both. If only the covering one is missing, the fault must not occur.
pub(super) const COVERED: &[(Guard, Guard, Fault)] = &[
    // A lease makes a condemned xorb live, and a live xorb is not deleted.
    (Guard::DeleteLease, Guard::DedupRevives, Fault::Promise),
    // A registration also makes a condemned xorb live. Without both guards, the blob of a
    // referenced xorb is deleted, and then its row cannot be deleted.
    (Guard::DeleteReferences, Guard::RegisterRevives, Fault::Response),
];

/// The set of broken guards.
#[derive(Clone, Debug, Default)]
pub(in crate::service::tests) struct BrokenGuards {
    broken: Arc<[Guard]>,
    pub(super) blobs: MemoryBlobStore,
}

impl BrokenGuards {
    pub(super) fn new(broken: &[Guard], blobs: MemoryBlobStore) -> Self {
        Self { broken: broken.into(), blobs }
    }

    pub(super) fn lacks(&self, guard: Guard) -> bool {
        self.broken.contains(&guard)
    }

    /// The row of a xorb before it is changed; `None` if no guard is broken.
    async fn life(&self, index: &SqliteIndex, hash: XorbHash) -> Result<Option<XorbLife>, IndexError> {
        if self.broken.is_empty() { Ok(None) } else { index.find_life(hash).await }
    }

    /// Reverts the change of the state if the guard `revival` is broken, and the touch if the guard
    /// `touch` is broken.
    async fn undo(
        &self,
        index: &SqliteIndex,
        before: Option<XorbLife>,
        revival: Guard,
        touch: Guard,
    ) -> Result<(), IndexError> {
        let Some(before) = before else { return Ok(()) };
        let hash = before.hash.as_bytes();
        if self.lacks(revival) && before.state == XorbState::Condemned {
            index.corrupt_row("UPDATE xorbs SET state = 2 + 0 * ?2 WHERE hash = ?1 AND state = 1", hash, 0).await?;
        }
        if self.lacks(touch) && matches!(before.state, XorbState::Live | XorbState::Condemned) {
            let since = before.since.as_millis().cast_signed();
            index.corrupt_row("UPDATE xorbs SET since = ?2 WHERE hash = ?1", hash, since).await?;
        }
        Ok(())
    }

    pub(in crate::service::tests) async fn find_file(
        &self,
        index: &SqliteIndex,
        hash: FileHash,
        reader: Reader,
        part: Option<ByteRange>,
    ) -> Result<Option<FileRow>, IndexError> {
        let reader = if self.lacks(Guard::DedupScope) { Reader::All } else { reader };
        index.find_file(hash, reader, part).await
    }

    pub(in crate::service::tests) async fn stage_xorb(
        &self,
        index: &SqliteIndex,
        hash: XorbHash,
        ticket: Ticket,
        now: Timestamp,
    ) -> Result<Staging, IndexError> {
        let before = self.life(index, hash).await?;
        if self.lacks(Guard::StageSparesDeleting) {
            for sql in [
                "DELETE FROM xorb_chunks WHERE xorb_id = (SELECT id + 0 * ?2 FROM xorbs WHERE hash = ?1 AND state = 3)",
                "DELETE FROM xorb_domains WHERE xorb_id = (SELECT id + 0 * ?2 FROM xorbs WHERE hash = ?1 AND state = 3)",
                "UPDATE xorbs SET state = 0 * ?2 WHERE hash = ?1 AND state = 3",
            ] {
                index.corrupt_row(sql, hash.as_bytes(), 0).await?;
            }
        }
        let staging = index.stage_xorb(hash, ticket, now).await?;
        self.undo(index, before, Guard::UploadRevives, Guard::UploadTouches).await?;
        let is_missed = staging == Staging::Damaged && self.lacks(Guard::UploadHeals);
        Ok(if is_missed { Staging::Live { serialized_len: 0 } } else { staging })
    }

    pub(in crate::service::tests) async fn publish_xorb(
        &self,
        index: &SqliteIndex,
        xorb: NewXorb,
        ticket: Ticket,
        now: Timestamp,
    ) -> Result<(), IndexError> {
        if self.lacks(Guard::PublishOwnsRow) {
            index.force_restage(xorb.hash, ticket).await?;
        }
        index.publish_xorb(xorb, ticket, now).await
    }

    pub(in crate::service::tests) async fn renew_xorb(
        &self,
        index: &SqliteIndex,
        hash: XorbHash,
        domain: Option<String>,
        now: Timestamp,
    ) -> Result<bool, IndexError> {
        let before = self.life(index, hash).await?;
        let hidden = self.hide_marks(index, Guard::RenewRefusesDamaged).await?;
        let renewed = index.renew_xorb(hash, domain, now).await?;
        self.show_marks(index, hidden).await?;
        self.undo(index, before, Guard::RenewRevives, Guard::RenewTouches).await?;
        if renewed && self.lacks(Guard::TouchKeepsLater) {
            let sql = "UPDATE xorbs SET since = ?2 WHERE hash = ?1";
            index.corrupt_row(sql, hash.as_bytes(), now.as_millis().cast_signed()).await?;
        }
        Ok(renewed)
    }

    pub(in crate::service::tests) async fn register(
        &self,
        index: &SqliteIndex,
        registration: &Registration,
        record: Option<u64>,
    ) -> Result<Option<Registered>, IndexError> {
        let mut before = Vec::new();
        for hash in &registration.xorbs {
            before.push(self.life(index, *hash).await?);
        }
        let hidden = self.hide_marks(index, Guard::RegisterRefusesDamaged).await?;
        let registered = index.register_of(registration, record).await?;
        self.show_marks(index, hidden).await?;
        if matches!(registered, Some(Registered::New | Registered::Known)) {
            for life in before {
                self.undo(index, life, Guard::RegisterRevives, Guard::RegisterTouches).await?;
            }
        }
        Ok(registered)
    }

    pub(in crate::service::tests) async fn write_step(
        &self,
        index: &SqliteIndex,
        begun: OpenRegistration,
        registration: &Registration,
        from: Cursor,
    ) -> Result<StepOutcome, IndexError> {
        let entered = index.write_step(begun, registration, from).await?;
        if self.lacks(Guard::StepHides) {
            for sql in [
                "UPDATE files SET registration = 0 * ?2 WHERE registration > 0 AND ?1 IS NOT NULL",
                "UPDATE file_repos SET registration = 0 * ?2 WHERE registration > 0 AND ?1 IS NOT NULL",
            ] {
                index.corrupt_row(sql, &[], 0).await?;
            }
        }
        if self.lacks(Guard::StepRefers) {
            let sql = "DELETE FROM xorb_files WHERE ?1 IS NOT NULL AND file_id IN \
                 (SELECT id FROM files WHERE registration IN (SELECT id + 0 * ?2 FROM hidden))";
            index.corrupt_row(sql, &[], 0).await?;
        }
        Ok(entered)
    }

    pub(in crate::service::tests) async fn abandon_registrations(
        &self,
        index: &SqliteIndex,
        id: Option<i64>,
    ) -> Result<u64, IndexError> {
        if id.is_none() && self.lacks(Guard::StartAbandons) {
            return Ok(0);
        }
        index.abandon_registrations(id).await
    }

    pub(in crate::service::tests) async fn find_dedup(
        &self,
        index: &SqliteIndex,
        chunk: ChunkHash,
        domain: Option<String>,
        lease_until: RangeInclusive<Timestamp>,
    ) -> Result<Option<DedupHit>, IndexError> {
        let mut condemned = Vec::new();
        if self.lacks(Guard::DedupRevives) {
            let lives = index.xorb_lives(None, u32::MAX).await?;
            condemned.extend(lives.into_iter().filter(|life| life.state == XorbState::Condemned));
        }
        let never = Timestamp::from_millis(0);
        let until = match (self.lacks(Guard::DedupLeases), *lease_until.start()) {
            (true, _) => never..=never,
            (false, _) if self.broken.is_empty() => lease_until,
            // The seeds that notice a broken guard were found when each response made a lease.
            (false, start) => start..=start,
        };
        let hidden = self.hide_marks(index, Guard::DedupSparesDamaged).await?;
        let hit = index.find_dedup(chunk, domain, until).await?;
        self.show_marks(index, hidden).await?;
        for life in condemned {
            index
                .corrupt_row(
                    "UPDATE xorbs SET state = 2 + 0 * ?2 WHERE hash = ?1 AND state = 1",
                    life.hash.as_bytes(),
                    0,
                )
                .await?;
        }
        Ok(hit)
    }

    pub(in crate::service::tests) async fn unfinished_xorbs(
        &self,
        index: &SqliteIndex,
    ) -> Result<Vec<(XorbHash, XorbState)>, IndexError> {
        if self.lacks(Guard::Recovery) { Ok(Vec::new()) } else { index.unfinished_xorbs().await }
    }
}

/// The verbs of the collection of garbage.
impl BrokenGuards {
    pub(in crate::service::tests) async fn xorb_lives(
        &self,
        index: &SqliteIndex,
        after: Option<XorbHash>,
        limit: u32,
    ) -> Result<Vec<XorbLife>, IndexError> {
        let mut lives = index.xorb_lives(after, limit).await?;
        lives.retain(|life| !self.lacks(Guard::FinishDeletions) || life.state != XorbState::Deleting);
        Ok(lives)
    }

    pub(in crate::service::tests) async fn term_runs(
        &self,
        index: &SqliteIndex,
        after: u64,
        limit: u32,
    ) -> Result<TermPage, IndexError> {
        if self.lacks(Guard::TermsCrossCheck) {
            return Ok(TermPage { runs: Vec::new(), next: None });
        }
        index.term_runs(after, limit).await
    }

    pub(in crate::service::tests) async fn condemn_xorbs(
        &self,
        index: &SqliteIndex,
        xorbs: Vec<XorbHash>,
        idle_since: Timestamp,
        now: Timestamp,
    ) -> Result<Vec<XorbHash>, IndexError> {
        let checks = Checks {
            age: !self.lacks(Guard::CondemnAge),
            lease: !self.lacks(Guard::CondemnLease),
            references: !self.lacks(Guard::CondemnReferences),
        };
        if checks.age && checks.lease && checks.references {
            return index.condemn_xorbs(xorbs, idle_since, now).await;
        }
        index.step_unchecked(XorbState::Live, &xorbs, idle_since, now, checks).await
    }

    pub(in crate::service::tests) async fn begin_deletions(
        &self,
        index: &SqliteIndex,
        xorbs: Vec<XorbHash>,
        condemned_since: Timestamp,
        now: Timestamp,
    ) -> Result<Vec<XorbHash>, IndexError> {
        let checks = Checks {
            age: !self.lacks(Guard::DeleteAge),
            lease: !self.lacks(Guard::DeleteLease),
            references: !self.lacks(Guard::DeleteReferences),
        };
        if self.lacks(Guard::RowBeforeBlob) {
            for hash in &xorbs {
                let Some(incarnation) = index.incarnation_of(*hash).await? else { continue };
                self.blobs.delete(BlobKey::new(*hash, incarnation)).await.expect("memory does not fail");
            }
        }
        let begun = if checks.age && checks.lease && checks.references {
            index.begin_deletions(xorbs, condemned_since, now).await?
        } else {
            index.step_unchecked(XorbState::Condemned, &xorbs, condemned_since, now, checks).await?
        };
        if self.lacks(Guard::BlobBeforeForgetting) {
            for hash in &begun {
                index.forget_xorb(*hash).await?;
            }
        }
        Ok(begun)
    }

    pub(in crate::service::tests) async fn abandon_xorbs(
        &self,
        index: &SqliteIndex,
        xorbs: Vec<XorbHash>,
        staged_since: Timestamp,
        now: Timestamp,
    ) -> Result<Vec<XorbHash>, IndexError> {
        if self.lacks(Guard::AbandonStaged) {
            return Ok(Vec::new());
        }
        index.abandon_xorbs(xorbs, staged_since, now).await
    }

    pub(in crate::service::tests) async fn remove_claims(
        &self,
        index: &SqliteIndex,
        (file, repo): (FileHash, Option<String>),
        now: Timestamp,
        record: Option<u64>,
    ) -> Result<RemovedClaims, IndexError> {
        let repo = repo.filter(|_| !self.lacks(Guard::OwnClaim));
        index.remove_claims_of(file, repo, now, record).await
    }

    pub(in crate::service::tests) async fn sweep_removed(
        &self,
        index: &SqliteIndex,
        now: Timestamp,
    ) -> Result<bool, IndexError> {
        if self.lacks(Guard::Sweep) {
            return Ok(false);
        }
        let before = if self.lacks(Guard::LossTouches) { index.xorb_lives(None, u32::MAX).await? } else { Vec::new() };
        let swept = index.sweep_removed(now).await?;
        for life in before {
            let since = life.since.as_millis().cast_signed();
            index.corrupt_row("UPDATE xorbs SET since = ?2 WHERE hash = ?1", life.hash.as_bytes(), since).await?;
        }
        Ok(swept)
    }
}
