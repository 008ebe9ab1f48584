//! What a gate gives out.

use std::sync::Arc;

use super::{FairGate, Shared, Tenant};

/// Units that are given back when this is dropped.
#[derive(Debug)]
#[must_use = "the permit is released when this is dropped"]
pub struct Permit {
    pub(super) shared: Arc<Shared>,
    pub(super) tenant: Tenant,
    /// 0 if the units were returned already.
    pub(super) weight: u32,
}

/// A permit that was returned while its work waits for something else.
#[derive(Debug)]
#[must_use = "it has no units until it is resumed"]
pub struct Paused {
    pub(super) gate: FairGate,
    pub(super) tenant: Tenant,
    pub(super) weight: u32,
}

impl Permit {
    /// Gives the units back.
    pub fn pause(self) -> Paused {
        Paused { gate: FairGate { shared: Arc::clone(&self.shared) }, tenant: self.tenant, weight: self.weight }
    }
}

impl Paused {
    /// The same permit again, at the end of its tenant's queue, however long that takes.
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
