//! A record that was appended before its change, until the outcome of the change is known.
//!
//! After an error of the transaction the index says whether the change was made. With one server,
//! an index that does not respond is asked until it does: first before the client gets its error,
//! then by a task. The task holds the locks of the change, so that no later change of the same
//! files or repository is acknowledged before. New changes are refused meanwhile. If the process
//! ends first, the next start applies the record. Locks are those of this process: they do not
//! exclude commands that use the store beside it.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error;
use tokio::time::sleep;

use crate::blob::BlobError;
use crate::blob::records::{RecordStore, Seq};
use crate::index::{Index, IndexError, IndexErrorKind, give_up_record};
use crate::runtime::task::TaskGroup;
use crate::runtime::telemetry::chain;
use crate::service::error::StoreError;

/// How often, and after which pause each, one server asks whether a failed change was made before
/// the client gets its error. The task continues with the same pause. Unit tests let hundreds of
/// changes fail.
const TRY_COUNT: u32 = 6;
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 1000 });

/// The changes of this process whose outcome the index could not tell for seconds. There are at
/// most as many as were under way at once, because further ones are refused.
#[derive(Debug, Default)]
pub(in crate::service) struct UnknownOutcomes {
    state: Mutex<State>,
    /// Held by the task that asks. The others wait, because each question takes the connection that
    /// writes.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    count: usize,
    /// Why the index has not told the last time.
    failure: Option<IndexErrorKind>,
}

/// The cause of a refusal.
#[derive(Debug, Error)]
#[error("the index has not told yet whether an earlier change was made")]
struct NotTold;

impl UnknownOutcomes {
    /// Refuses a change while the outcome of an earlier one is unknown, for the same reason. It
    /// would fail, too, and leave a record and locks, since the index takes no writes.
    pub(in crate::service) fn check(&self) -> Result<(), IndexError> {
        let state = self.state();
        match state.failure {
            Some(kind) if state.count > 0 => Err(IndexError { op: "make a change", kind, source: Box::new(NotTold) }),
            _ => Ok(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of [`UnknownOutcomes`].
#[derive(Debug)]
struct Counted(Arc<UnknownOutcomes>);

impl Counted {
    fn new(home: Arc<UnknownOutcomes>, failure: IndexErrorKind) -> Self {
        let mut state = home.state();
        *state = State { count: state.count + 1, failure: Some(failure) };
        drop(state);
        Self(home)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.state().count -= 1;
    }
}

/// A record that was appended before its change. The caller holds this until the change was made or
/// refused, and then calls [`retain`](Self::retain) or [`roll_back`](Self::roll_back).
#[derive(Debug)]
#[must_use = "the lock excludes other changes to these files"]
pub struct AppendedRecord {
    records: Arc<dyn RecordStore>,
    index: Arc<dyn Index>,
    unknown: Arc<UnknownOutcomes>,
    seq: Seq,
    /// Records of the same change that were appended before.
    earlier: Vec<Seq>,
    /// The lock of its files or of its Hub repository, and what else must last until the outcome
    /// of the change is known.
    held: Vec<Box<dyn Debug + Send + Sync>>,
}

impl AppendedRecord {
    pub(super) fn new(
        records: Arc<dyn RecordStore>,
        index: Arc<dyn Index>,
        unknown: Arc<UnknownOutcomes>,
        seq: Seq,
        earlier: Vec<Seq>,
    ) -> Self {
        Self { records, index, unknown, seq, earlier, held: Vec::new() }
    }

    /// The number of the record, for the transaction that applies it.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.seq.number()
    }

    /// Holds this, too, until the outcome of the change is known.
    pub(in crate::service) fn holding(mut self, lock: impl Debug + Send + Sync + 'static) -> Self {
        self.held.push(Box::new(lock));
        self
    }

    /// Keeps the record, because the change was made.
    pub fn retain(self) {}

    /// After an error of the transaction: keeps the record if the change was made, and otherwise
    /// removes it. With several servers it is given up if the index does not respond.
    ///
    /// Returns false if one server could not find out yet. Then a task does, and holds the locks.
    pub async fn retain_unknown(self) -> bool {
        let mut try_count = 1;
        let failure = loop {
            let error = match self.index.is_record_open(self.number()).await {
                Ok(Some(true)) => {
                    self.roll_back().await;
                    return true;
                }
                Ok(_) => return true,
                Err(error) => error,
            };
            tracing::warn!(record = %self.seq, error = %chain(&error), "cannot tell whether a failed change was made");
            if self.index.is_shared() {
                give_up_record(self.index.as_ref(), self.number()).await;
                return true;
            }
            if try_count == TRY_COUNT {
                break error.kind;
            }
            try_count += 1;
            sleep(PAUSE).await;
        };
        tracing::warn!(record = %self.seq, "changes are refused until the index tells whether this one was made");
        let counted = Counted::new(Arc::clone(&self.unknown), failure);
        TaskGroup::new().spawn(async move {
            let asking = counted.0.asking.lock().await;
            while !self.is_settled().await {
                sleep(PAUSE).await;
            }
            drop(asking);
            drop(counted);
            tracing::info!(record = %self.seq, "the index has told whether a failed change was made");
            // The locks are released now.
            drop(self);
        });
        false
    }

    /// Removes the record if its change was not made. Returns whether that is over.
    async fn is_settled(&self) -> bool {
        match self.index.is_record_open(self.number()).await {
            Ok(Some(true)) => {
                let is_removed = self.remove().await.is_ok();
                if is_removed {
                    self.close().await;
                }
                is_removed
            }
            Ok(_) => true,
            Err(error) => {
                self.unknown.state().failure = Some(error.kind);
                false
            }
        }
    }

    /// Keeps the record of a change that was made without marking the record as applied, and marks
    /// it now. Until then `zorb backup` takes it for one that must be applied first. With several
    /// servers a start takes it for one of a database that was set back.
    pub async fn retain_applied(self) -> Result<(), StoreError> {
        self.mark_considered().await
    }

    /// Removes the record, because the change was not made or changed nothing. If the record cannot
    /// be removed, the index marks it as applied: a start applies only open records and those after
    /// the last applied one. Otherwise the next start would apply a refused registration. With
    /// several servers it is given up instead: its removal may be under way, and must not meet a
    /// record that the index has considered.
    pub async fn roll_back(self) {
        let Err(error) = self.remove().await else { return self.close().await };
        tracing::warn!(record = %self.seq, error = %chain(&error), "cannot roll back the record of a failed operation");
        if self.index.is_shared() {
            return give_up_record(self.index.as_ref(), self.number()).await;
        }
        if let Err(error) = self.mark_considered().await {
            tracing::warn!(record = %self.seq, error = %chain(&error), "cannot mark the record of a failed operation \
                as considered; the next start may apply it");
        }
    }

    /// Removes the records. The last one first: the others have no effect without it.
    async fn remove(&self) -> Result<(), BlobError> {
        let removed = self.records.remove(self.seq).await;
        remove_parts(self.records.as_ref(), &self.earlier).await;
        removed.map(drop)
    }

    /// Says that nothing is to be done about the record any more. If that fails with several
    /// servers, the record is removed once this process has ended.
    async fn close(&self) {
        if let Err(error) = self.index.close_record(self.seq.number()).await {
            tracing::warn!(record = %self.seq, error = %chain(&error), "cannot close a record");
        }
    }

    /// Marks the record as applied, whether its change was made or refused. Does so only if the
    /// record still exists, because a start expects the last applied record to exist.
    async fn mark_considered(&self) -> Result<(), StoreError> {
        if self.records.read(self.seq).await?.is_some() {
            let seqs = self.earlier.iter().chain([&self.seq]);
            self.index.take_records(seqs.map(|seq| seq.number()).collect()).await?;
        }
        Ok(())
    }
}

/// Removes partial records of a change without their last one. A failure is logged: they have no
/// effect.
pub(super) async fn remove_parts(records: &dyn RecordStore, earlier: &[Seq]) {
    for seq in earlier {
        if let Err(error) = records.remove(*seq).await {
            tracing::warn!(record = %seq, error = %chain(&error), "cannot remove a part of a failed operation");
        }
    }
}
