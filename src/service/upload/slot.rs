//! Slots: each one represents an admitted body for as long as it is received.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};

use super::BodyError;
use crate::runtime::fair::Tenant;
use crate::runtime::metrics::Metrics;
use crate::service::admission::{Admission, Admitted, Refusal, Transfer};
use crate::service::{OVERLOADED_RETRY_AFTER, Server, UploadError};

/// A slot for a body.
pub(in crate::service) struct BodySlot {
    admitted: Admitted,
}

/// A slot for an upload, which is also counted in the metrics.
pub(in crate::service) struct UploadSlot<'a> {
    body: BodySlot,
    _gauge: InFlight<'a>,
}

impl Server {
    /// Takes a slot for an upload of `len` bytes, if the tenant may have one.
    pub(in crate::service) fn upload_slot(&self, tenant: Tenant, len: u64) -> Result<UploadSlot<'_>, UploadError> {
        let body = BodySlot::take(&self.permits.admission, tenant, len)?;
        Ok(UploadSlot { body, _gauge: InFlight::new(&self.store.metrics) })
    }
}

impl BodySlot {
    /// Takes a slot for a body of `len` bytes, if the tenant may have one.
    pub(in crate::service) fn take(slots: &Arc<Admission>, tenant: Tenant, len: u64) -> Result<Self, UploadError> {
        let retry_after = OVERLOADED_RETRY_AFTER;
        let admitted = slots.admit(tenant, len).map_err(|refusal| match refusal {
            Refusal::Full => UploadError::Overloaded { retry_after },
            Refusal::AboveShare => UploadError::AboveShare { retry_after },
        })?;
        Ok(Self { admitted })
    }

    /// The progress of the body.
    pub(in crate::service) const fn transfer(&self) -> &Arc<Transfer> {
        self.admitted.transfer()
    }

    /// The same body; its progress is counted for the slot.
    pub(in crate::service) fn counted<S>(&self, body: S) -> impl Stream<Item = Result<Bytes, BodyError>> + Send + Unpin
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Send + Unpin,
    {
        let transfer = Arc::clone(self.admitted.transfer());
        body.inspect(move |piece| transfer.moved(piece.as_ref().map_or(0, Bytes::len) as u64))
    }

    /// Receives the body, unless the transfer is cut in favour of another tenant.
    pub(in crate::service) async fn unless_cut<T>(
        &self,
        receiving: impl Future<Output = Result<T, UploadError>>,
    ) -> Result<T, UploadError> {
        let transfer = self.admitted.transfer();
        transfer.begin();
        tokio::select! {
            biased;
            received = receiving => {
                transfer.end();
                received
            }
            () = transfer.cut_off() => Err(UploadError::TooSlow),
        }
    }
}

impl UploadSlot<'_> {
    /// The slot of its body.
    pub(in crate::service) const fn body(&self) -> &BodySlot {
        &self.body
    }
}

/// Counts an upload for as long as it exists.
struct InFlight<'a>(&'a Metrics);

impl<'a> InFlight<'a> {
    fn new(metrics: &'a Metrics) -> Self {
        metrics.uploads_in_flight.inc();
        Self(metrics)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.uploads_in_flight.dec();
    }
}
