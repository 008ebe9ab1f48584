//! Writes a registration into the index: a short one in one transaction, others in steps.
//!
//! Other writers run between two steps, and the steps of long registrations alternate between
//! tenants. Readers see the change when the last step is published. A registration that is refused
//! or fails is abandoned. Its rows are discarded before the response, or else by the next sweep or
//! start.

use std::sync::Arc;

use super::Cas;
use super::error::StoreError;
use crate::index::{Begun, Cursor, IndexError, Registered, Registration};
use crate::runtime::fair::Tenant;
use crate::runtime::telemetry::chain;

/// Dedup chunks that are written in one transaction.
const DEDUP_STEP_COUNT: usize = if cfg!(test) { 2 } else { 512 };

impl Cas {
    /// Writes a registration, whose files the caller has locked.
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
        let (chunks, whole) = (Arc::clone(&self.asked_chunks), Arc::clone(registration));
        let insert = move || chunks.insert(whole.dedup.iter().map(|(chunk, _)| chunk));
        // The chunks are inserted also after an error: the transaction may have been committed.
        if registration.is_short() {
            let registered = self.index.register_of(registration, record).await;
            insert();
            return registered.map_err(StoreError::from);
        }
        let registered = self.write_long(tenant, registration, record).await;
        self.verify_pool.run_for(tenant, insert).await;
        registered
    }

    async fn write_long(
        &self,
        tenant: Tenant,
        registration: &Arc<Registration>,
        record: Option<u64>,
    ) -> Result<Registered, StoreError> {
        let whole = Arc::clone(registration);
        let start = self.verify_pool.run_for(tenant, move || Cursor::start(&whole)).await;
        let begun = {
            let _permit = self.write_steps.wait(tenant, 1).await;
            self.index.begin_registration(registration).await?
        };
        let registered = self.write_in_steps(tenant, begun, registration, start, record).await;
        if !matches!(registered, Ok(Registered::New | Registered::Added)) {
            // A registration that was published despite an error stays published.
            if let Err(error) = self.index.abandon_registrations(Some(begun.id)).await {
                tracing::warn!(error = %chain(&error), "could not abandon a registration; the next start will");
            }
        }
        if let Err(error) = self.clear_registrations(tenant).await {
            tracing::warn!(error = %chain(&error), "could not clear up after a registration; the next sweep will");
        }
        Ok(registered?)
    }

    async fn write_in_steps(
        &self,
        tenant: Tenant,
        begun: Begun,
        registration: &Registration,
        start: Cursor,
        record: Option<u64>,
    ) -> Result<Registered, IndexError> {
        let (mut outcome, mut next) = (Registered::Known, Some(start));
        while let Some(from) = next {
            let _permit = self.write_steps.wait(tenant, 1).await;
            let entered = self.index.enter_files(begun, registration, from).await?;
            next = entered.next;
            outcome = match (outcome, entered.outcome) {
                (outcome, Registered::Known) | (outcome @ Registered::New, Registered::Added) => outcome,
                (_, told @ (Registered::New | Registered::Added)) => told,
                (_, refused) => return Ok(refused),
            };
        }
        if outcome != Registered::Known {
            self.index.publish_registration(begun, record).await?;
        }
        // Dedup rows belong to xorbs, not to files. After a crash the client registers again, and
        // missing rows are written then.
        for from in (0..registration.dedup.len()).step_by(DEDUP_STEP_COUNT) {
            let _permit = self.write_steps.wait(tenant, 1).await;
            self.index.enter_dedup(registration, from, DEDUP_STEP_COUNT).await?;
        }
        Ok(outcome)
    }

    async fn clear_registrations(&self, tenant: Tenant) -> Result<(), IndexError> {
        loop {
            let _permit = self.write_steps.wait(tenant, 1).await;
            if !self.index.clear_registration(self.clock.now()).await? {
                return Ok(());
            }
        }
    }
}
