//! Permits of a gate.

use std::sync::Arc;

use super::{FairGate, Shared, Tenant};

/// Units of a gate, which are returned when this is dropped.
#[derive(Debug)]
#[must_use = "the permit is released when this is dropped"]
pub struct Permit {
    pub(super) shared: Arc<Shared>,
    pub(super) tenant: Tenant,
    /// The units; 0 if they were returned already.
    pub(super) weight: u32,
}

/// A permit whose units were returned, while its work waits for another event.
#[derive(Debug)]
#[must_use = "it has no units until it is resumed"]
pub struct Paused {
    pub(super) gate: FairGate,
    pub(super) tenant: Tenant,
    pub(super) weight: u32,
}

impl Permit {
    /// Gives the units back to the gate (`self` is dropped here), until [`Paused::resume`] acquires
    /// them again.
    pub fn pause(self) -> Paused {
        Paused { gate: FairGate { shared: Arc::clone(&self.shared) }, tenant: self.tenant, weight: self.weight }
    }
}

impl Paused {
    /// Acquires the units again, however long that takes. Waits behind the running requests of the
    /// tenant that already wait.
    pub async fn resume(self) -> Permit {
        self.gate.wait(self.tenant, self.weight).await
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.weight > 0 {
            let mut state = self.shared.state();
            state.give_back(self.tenant, self.weight);
            self.shared.serve(&mut state);
        }
    }
}
