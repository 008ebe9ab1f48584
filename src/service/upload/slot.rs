//! Slots: each counts an admitted body for as long as it is under way.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};

use super::BodyError;
use crate::runtime::fair::Tenant;
use crate::service::admission::{Admission, Admitted, Refusal};
use crate::service::{Cas, OVERLOADED_RETRY_AFTER, UploadError};

/// One of the bodies that may be under way.
pub(in crate::service) struct BodySlot {
    admitted: Admitted,
}

/// One of the uploads that may be under way.
pub(in crate::service) struct UploadSlot<'a> {
    body: BodySlot,
    _gauge: InFlight<'a>,
}

impl Cas {
    /// A slot for an upload of so many bytes, if there is one.
    pub(in crate::service) fn upload_slot(&self, tenant: Tenant, len: u64) -> Result<UploadSlot<'_>, UploadError> {
        let body = BodySlot::take(&self.admission, tenant, len)?;
        Ok(UploadSlot { body, _gauge: InFlight::new(self) })
    }
}

impl BodySlot {
    /// One of these slots, for a body of so many bytes, if there is one.
    pub(in crate::service) fn take(slots: &Arc<Admission>, tenant: Tenant, len: u64) -> Result<Self, UploadError> {
        let retry_after = OVERLOADED_RETRY_AFTER;
        let admitted = slots.admit(tenant, len).map_err(|refusal| match refusal {
            Refusal::Full => UploadError::Overloaded { retry_after },
            Refusal::AboveShare => UploadError::AboveShare { retry_after },
        })?;
        Ok(Self { admitted })
    }

    /// The body; its progress is counted.
    pub(in crate::service) fn counted<S>(&self, body: S) -> impl Stream<Item = Result<Bytes, BodyError>> + Send + Unpin
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Send + Unpin,
    {
        let transfer = Arc::clone(self.admitted.transfer());
        body.inspect(move |piece| transfer.moved(piece.as_ref().map_or(0, Bytes::len) as u64))
    }

    /// Receives the body, unless it is cut in favour of another tenant.
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
struct InFlight<'a>(&'a Cas);

impl<'a> InFlight<'a> {
    fn new(cas: &'a Cas) -> Self {
        cas.metrics.uploads_in_flight.inc();
        Self(cas)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.metrics.uploads_in_flight.dec();
    }
}
