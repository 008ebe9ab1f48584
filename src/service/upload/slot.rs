//! Slots: an upload that was let in, and is counted for as long as it is under way.

use crate::runtime::fair::Tenant;
use crate::service::admission::{Admitted, Refusal};
use crate::service::{Cas, OVERLOADED_RETRY_AFTER, UploadError};

/// One of the uploads that may be under way.
pub(in crate::service) struct UploadSlot<'a> {
    _admitted: Admitted<'a>,
    _gauge: InFlight<'a>,
}

impl Cas {
    /// A slot for an upload of so many bytes, if there is one.
    pub(in crate::service) fn upload_slot(&self, tenant: Tenant, len: u64) -> Result<UploadSlot<'_>, UploadError> {
        let retry_after = OVERLOADED_RETRY_AFTER;
        let admitted = self.admission.admit(tenant, len).map_err(|refusal| match refusal {
            Refusal::Full => UploadError::Overloaded { retry_after },
            Refusal::AboveShare => UploadError::AboveShare { retry_after },
        })?;
        Ok(UploadSlot { _admitted: admitted, _gauge: InFlight::new(self) })
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
