//! Writes a registration into the index: a short one in one transaction, others in steps. A short
//! one, too, is written in steps if it names known files that are stored in very many xorbs.
//!
//! Other writers run between two steps, and the steps of long registrations alternate between
//! tenants. Readers see the change when the last step is published. A registration that is refused
//! or fails is abandoned. Its rows are discarded before the response. If that fails, a task does it
//! when the database responds again; after a crash the next start does.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::error::StoreError;
use super::{Server, Store};
use crate::index::{Cursor, Index, IndexError, IndexErrorKind, OpenRegistration, Registered, Registration};
use crate::runtime::clock::Clock;
use crate::runtime::fair::{FairGate, Tenant};
use crate::runtime::task::TaskGroup;
use crate::runtime::telemetry::chain;

/// Dedup chunks that are written in one transaction.
const DEDUP_STEP_COUNT: usize = if cfg!(test) { 2 } else { 512 };

/// How often, and after which pause each, a registration looks whether another server is done with
/// its files: for 30 seconds, as it waits for the locks of files in its own process.
const RIVAL_TRY_COUNT: u32 = 300;
const RIVAL_PAUSE: Duration = Duration::from_millis(100);

/// The pause before a registration is cleared up again, after a failure of the database. Once more
/// before the response, and then in a task.
const CLEAR_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 1000 });

/// The attempts of a registration that waits for another server.
#[derive(Debug, Default)]
struct Rival {
    try_count: u32,
}

impl Rival {
    /// Waits a little if a write failed because another server registers one of the files. Returns
    /// whether to try again.
    async fn was_waited_for<T: Sync>(&mut self, written: &Result<T, IndexError>) -> bool {
        let is_rival = written.as_ref().is_err_and(|error| error.kind == IndexErrorKind::InProgress);
        if !is_rival || self.try_count == RIVAL_TRY_COUNT {
            return false;
        }
        self.try_count += 1;
        sleep(RIVAL_PAUSE).await;
        true
    }
}

impl Server {
    /// Writes a registration, whose files the caller has locked, and adds its dedup chunks to the
    /// filter in memory.
    ///
    /// # Errors
    ///
    /// The index failed. The registration is visible as a whole or never.
    pub(super) async fn write_registration(
        &self,
        tenant: Tenant,
        registration: &Arc<Registration>,
        record: Option<u64>,
    ) -> Result<Registered, StoreError> {
        let (chunks, whole) = (Arc::clone(&self.dedup_filter), Arc::clone(registration));
        let insert = move || chunks.insert(whole.dedup.iter().map(|(chunk, _)| chunk));
        let steps = &self.permits.write_steps;
        let registered = self.store.write_registration(steps, tenant, registration, record).await;
        // The chunks are inserted also after an error, because the transaction may have been
        // committed.
        if registration.is_short() {
            insert();
        } else {
            self.store.pool.run_for(tenant, insert).await;
        }
        registered
    }
}

impl Store {
    /// Writes a registration, whose files the caller has locked. Each step of a long registration
    /// takes a permit of the gate `steps`.
    ///
    /// # Errors
    ///
    /// The index failed. The registration is visible as a whole or never.
    pub(super) async fn write_registration(
        &self,
        steps: &FairGate,
        tenant: Tenant,
        registration: &Arc<Registration>,
        record: Option<u64>,
    ) -> Result<Registered, StoreError> {
        if registration.is_short() {
            let mut rival = Rival::default();
            let mut registered = self.index.register_of(registration, record).await;
            while rival.was_waited_for(&registered).await {
                registered = self.index.register_of(registration, record).await;
            }
            if let Some(registered) = registered? {
                return Ok(registered);
            }
        }
        self.write_long(steps, tenant, registration, record).await
    }

    /// Writes a long registration, and abandons it if it is refused or fails. If that fails, too, a
    /// task tries again until the database responds: meanwhile the tenant is charged for the rows,
    /// and on other servers registrations of the same files wait.
    async fn write_long(
        &self,
        steps: &FairGate,
        tenant: Tenant,
        registration: &Arc<Registration>,
        record: Option<u64>,
    ) -> Result<Registered, StoreError> {
        let whole = Arc::clone(registration);
        let start = self.pool.run_for(tenant, move || Cursor::start(&whole)).await;
        let begun = {
            let _permit = steps.wait(tenant, 1).await;
            self.index.begin_registration(registration).await?
        };
        let registered = self.write_in_steps((steps, tenant), begun, registration, start, record).await;
        let is_made = matches!(registered, Ok(Registered::New | Registered::Added));
        let (index, clock, steps) = (Arc::clone(&self.index), Arc::clone(&self.clock), steps.clone());
        let clearing = Clearing { index, clock, steps, tenant, begun, is_made };
        let mut cleared = clearing.run().await;
        if let Err(error) = &cleared {
            tracing::warn!(error = %chain(error), "could not clear up after a registration; retrying");
            sleep(CLEAR_PAUSE).await;
            cleared = clearing.run().await;
        }
        if cleared.is_err() {
            TaskGroup::new().spawn(async move {
                while clearing.run().await.is_err() {
                    sleep(CLEAR_PAUSE).await;
                }
            });
        }
        Ok(registered?)
    }

    /// Writes all steps, and publishes the registration if it adds anything.
    async fn write_in_steps(
        &self,
        (steps, tenant): (&FairGate, Tenant),
        begun: OpenRegistration,
        registration: &Registration,
        start: Cursor,
        record: Option<u64>,
    ) -> Result<Registered, IndexError> {
        let (mut outcome, mut next, mut rival) = (Registered::Known, Some(start), Rival::default());
        while let Some(from) = next {
            let entered = {
                let _permit = steps.wait(tenant, 1).await;
                self.index.write_step(begun, registration, from.clone()).await
            };
            if rival.was_waited_for(&entered).await {
                next = Some(from);
                continue;
            }
            let entered = entered?;
            next = entered.next;
            // The outcome of all steps is the strongest one: `New`, then `Added`, then `Known`.
            outcome = match (outcome, entered.outcome) {
                (outcome, Registered::Known) | (outcome @ Registered::New, Registered::Added) => outcome,
                (_, stronger @ (Registered::New | Registered::Added)) => stronger,
                (_, refused) => return Ok(refused),
            };
        }
        if outcome != Registered::Known {
            self.index.publish_registration(begun, record).await?;
        }
        // Dedup rows belong to xorbs, not to files, so they are written after the publication. If a
        // crash prevents this, the next registration of these xorbs writes them.
        for from in (0..registration.dedup.len()).step_by(DEDUP_STEP_COUNT) {
            let _permit = steps.wait(tenant, 1).await;
            self.index.write_dedup_step(registration, from, DEDUP_STEP_COUNT).await?;
        }
        Ok(outcome)
    }
}

/// A registration whose steps are over, with what clears up after it.
struct Clearing {
    index: Arc<dyn Index>,
    clock: Arc<dyn Clock>,
    steps: FairGate,
    tenant: Tenant,
    begun: OpenRegistration,
    is_made: bool,
}

impl Clearing {
    /// Abandons the registration unless it was made. Then discards, step by step, what it has left.
    /// Not what others have left: a client waits for this.
    async fn run(&self) -> Result<(), IndexError> {
        if !self.is_made {
            // If the publication was committed although it returned an error, the registration
            // stays published.
            self.index.abandon_registrations(Some(self.begun.id)).await?;
        }
        loop {
            let _permit = self.steps.wait(self.tenant, 1).await;
            if !self.index.sweep_registrations(Some(self.begun.id), self.clock.now()).await? {
                return Ok(());
            }
        }
    }
}
