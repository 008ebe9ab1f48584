//! A fair semaphore (*gate*) that distributes permits between tenants.
//!
//! While permits are free, every request gets one. Otherwise each tenant has its own queue, and the
//! queues are served round-robin: a tenant with one waiting request is served after at most one
//! request of each other tenant.
//!
//! Permits are never revoked, so the gate is fair only if permits are held briefly. A long request
//! acquires one permit after another. A request is *new* until it has its first permit, and
//! *running* afterwards. Within a queue, new and running requests alternate. So a new request does
//! not wait until the running requests of its tenant end.
//!
//! A permit has a weight in units. A request that needs more units than are free is overtaken by
//! smaller ones, for two seconds at most.
//!
//! A gate can also [pace](FairGate::pacing) a tenant with many waiting requests, so that it
//! does not get all permits while other tenants ask as well.
//!
//! The gate is not fair for permits that are held for long. For them, [`Limits::per_tenant`]
//! prevents one tenant from holding all permits.

mod limits;
mod pacing;
mod permit;
mod queue;
mod tenant;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

pub use self::limits::{Busy, Limits};
use self::pacing::{Presence, RECHECK_INTERVAL};
pub use self::permit::{Paused, Permit};
use self::queue::{Queue, Waiter};
pub use self::tenant::Tenant;
use super::task::TaskGroup;

/// How long smaller requests can overtake a request that needs more units than are free.
const MAX_OVERTAKING: Duration = Duration::from_secs(2);

/// A gate: a number of units that are distributed round-robin. Clones are cheap and share the
/// units.
#[derive(Clone, Debug)]
pub struct FairGate {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limits: Limits,
    /// The time between two permits of a paced tenant; `None` without pacing.
    pause: Option<Duration>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The units of all granted permits.
    taken: u32,
    /// The queues of all tenants that hold units or wait.
    queues: HashMap<Tenant, Queue>,
    /// Tenants with waiting requests, each once, in the order in which they are served.
    order: VecDeque<Tenant>,
    /// The recently active tenants.
    presence: Presence,
    /// Whether a re-check of queues that are not due is scheduled.
    is_recheck_scheduled: bool,
    /// The number of the last request that had to wait.
    number: u64,
}

impl FairGate {
    /// A gate with these limits.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self::with_pause(limits, None)
    }

    /// A gate that paces bursts. While other tenants are active, a tenant with at least `capacity`
    /// waiting requests gets only `capacity` permits per `period`. Permits must be dropped within
    /// the runtime, because a drop may schedule a re-check of paced queues.
    #[must_use]
    pub fn pacing(limits: Limits, period: Duration) -> Self {
        Self::with_pause(limits, Some(period / limits.capacity.max(1)))
    }

    fn with_pause(limits: Limits, pause: Option<Duration>) -> Self {
        let limits = Limits {
            capacity: limits.capacity.max(1),
            per_tenant: limits.per_tenant.clamp(1, limits.capacity.max(1)),
            ..limits
        };
        Self { shared: Arc::new(Shared { limits, pause, state: Mutex::default() }) }
    }

    /// A gate of `capacity` units that limits neither the number of waiting requests nor their
    /// time.
    #[must_use]
    pub fn unbounded(capacity: u32) -> Self {
        Self::new(Limits { capacity, per_tenant: capacity, waiting_count: usize::MAX, patience: Duration::MAX })
    }

    /// Acquires a permit of `weight` units for a new request. Waits as long as the limits allow.
    ///
    /// # Errors
    ///
    /// There was no permit in time, or too many new requests of this tenant wait already.
    pub async fn enter(&self, tenant: Tenant, weight: u32) -> Result<Permit, Busy> {
        let asked = self.ask(tenant, weight, true);
        self.await_permit((tenant, weight), asked?).await
    }

    /// Like [`enter`](Self::enter), for the next permit of a running request. The gate does not
    /// limit the number of running requests that wait, so the caller must limit it.
    ///
    /// # Errors
    ///
    /// There was no permit in the time that the limits allow.
    pub async fn acquire_next(&self, tenant: Tenant, weight: u32) -> Result<Permit, Busy> {
        let asked = self.ask(tenant, weight, false);
        self.await_permit((tenant, weight), asked?).await
    }

    /// Acquires a permit of `weight` units, however long it takes. The request counts as a running
    /// one.
    pub async fn wait(&self, tenant: Tenant, weight: u32) -> Permit {
        match self.ask(tenant, weight, false) {
            Ok(Asked::Permit(permit)) => permit,
            Ok(Asked::Queued(queued)) => queued.permit().await,
            Err(_) => unreachable!("the number of waiters is unbounded"),
        }
    }

    /// A [`Paused`] permit without units, which [`Paused::resume`] acquires later.
    pub fn deferred(&self, tenant: Tenant, weight: u32) -> Paused {
        Paused { gate: self.clone(), tenant, weight }
    }

    /// The units of all granted permits, and the number of waiting requests.
    #[must_use]
    pub fn load(&self) -> (u32, usize) {
        let state = self.shared.state();
        (state.taken, state.queues.values().map(Queue::waiting_count).sum())
    }

    async fn await_permit(&self, (tenant, weight): (Tenant, u32), asked: Asked) -> Result<Permit, Busy> {
        match asked {
            Asked::Permit(permit) => Ok(permit),
            Asked::Queued(queued) => match timeout(self.shared.limits.patience, queued.permit()).await {
                Ok(permit) => Ok(permit),
                Err(_) => Err(self.shared.busy(tenant, weight)),
            },
        }
    }

    fn ask(&self, tenant: Tenant, weight: u32, is_new: bool) -> Result<Asked, Busy> {
        let weight = weight.clamp(1, self.shared.limits.capacity);
        let mut state = self.shared.state();
        if self.shared.pause.is_some() {
            state.presence.note(tenant, Instant::now());
        }
        if state.order.is_empty() && self.shared.fits(&state, tenant, weight) {
            return Ok(Asked::Permit(self.shared.take(&mut state, tenant, weight)));
        }
        let queue = state.queues.entry(tenant).or_default();
        if is_new && queue.new_count() >= self.shared.limits.waiting_count {
            state.forget(tenant);
            drop(state);
            return Err(self.shared.busy(tenant, weight));
        }
        let (sender, receiver) = oneshot::channel();
        let is_first = queue.waiting_count() == 0;
        state.number += 1;
        let number = state.number;
        if let Some(queue) = state.queues.get_mut(&tenant) {
            queue.push(Waiter { number, weight, since: Instant::now(), sender }, is_new);
        }
        if is_first {
            state.order.push_back(tenant);
        }
        // This request may be served at once, although it was queued: the waiters before it may
        // need more units than are free.
        self.shared.serve(&mut state);
        Ok(Asked::Queued(Queued { shared: Arc::clone(&self.shared), tenant, number, receiver }))
    }
}

enum Asked {
    Permit(Permit),
    Queued(Queued),
}

/// A place in a queue. Dropping it leaves the queue.
struct Queued {
    shared: Arc<Shared>,
    tenant: Tenant,
    number: u64,
    receiver: oneshot::Receiver<Permit>,
}

impl Queued {
    async fn permit(mut self) -> Permit {
        (&mut self.receiver).await.expect("a queued waiter stays queued until it is served or cancelled")
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        // If the permit was granted meanwhile, it is in the channel and is released with it.
        let mut state = self.shared.state();
        if let Some(queue) = state.queues.get_mut(&self.tenant)
            && queue.remove(self.number)
        {
            if queue.waiting_count() == 0 {
                state.order.retain(|tenant| *tenant != self.tenant);
            }
            state.forget(self.tenant);
            // The next waiter may need fewer units.
            self.shared.serve(&mut state);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this many units are free for this tenant.
    fn fits(&self, state: &State, tenant: Tenant, weight: u32) -> bool {
        state.taken + weight <= self.limits.capacity && self.is_within_limit(state, tenant, weight)
    }

    fn is_within_limit(&self, state: &State, tenant: Tenant, weight: u32) -> bool {
        let taken = state.queues.get(&tenant).map_or(0, |queue| queue.taken);
        taken == 0 || taken + weight <= self.limits.per_tenant
    }

    fn take(self: &Arc<Self>, state: &mut State, tenant: Tenant, weight: u32) -> Permit {
        state.taken += weight;
        state.queues.entry(tenant).or_default().taken += weight;
        Permit { shared: Arc::clone(self), tenant, weight }
    }

    /// Whether the next request of a paced queue is not due yet.
    fn is_held_back(&self, state: &mut State, tenant: Tenant) -> bool {
        if self.pause.is_none() {
            return false;
        }
        let now = Instant::now();
        let has_others = state.presence.has_others(tenant, now);
        state.queues.get_mut(&tenant).is_some_and(|queue| {
            if !has_others {
                queue.due.forget();
            }
            queue.due.is_later(now)
        })
    }

    /// To be called after a queue was served. If the tenant has a burst and other tenants are
    /// active, the next request of the queue is due after a pause.
    fn hold_back(&self, state: &mut State, tenant: Tenant) {
        let Some(pause) = self.pause else { return };
        let now = Instant::now();
        if state.presence.has_others(tenant, now)
            && let Some(queue) = state.queues.get_mut(&tenant)
            && queue.waiting_count() >= self.limits.capacity as usize
        {
            queue.due.hold_back(now, pause);
        }
    }

    /// Grants free units to waiters, and schedules a re-check if a queue is not due.
    fn serve(self: &Arc<Self>, state: &mut State) {
        if !self.grant_free_units(state) || state.is_recheck_scheduled || Handle::try_current().is_err() {
            return;
        }
        state.is_recheck_scheduled = true;
        let shared = Arc::clone(self);
        TaskGroup::new().spawn(async move {
            sleep(RECHECK_INTERVAL).await;
            let mut state = shared.state();
            state.is_recheck_scheduled = false;
            shared.serve(&mut state);
        });
    }

    /// Grants permits to one waiter of each queue, round-robin, while units are free. Returns
    /// whether a queue was skipped because it is not due.
    ///
    /// Stops at a waiter that must not be overtaken any more. Its queue and the queues behind it
    /// are checked when units are returned.
    fn grant_free_units(self: &Arc<Self>, state: &mut State) -> bool {
        let mut has_paced = false;
        // The number of consecutive queues that cannot be served now: their next request is too
        // large, not due, or above the tenant's limit.
        let mut passed_count = 0;
        while passed_count < state.order.len() {
            let Some(tenant) = state.order.pop_front() else { return has_paced };
            let Some((weight, since)) = state.queues.get(&tenant).and_then(Queue::next) else { continue };
            let is_held_back = self.is_held_back(state, tenant);
            has_paced |= is_held_back;
            let is_too_large = state.taken + weight > self.limits.capacity;
            let may_be_passed = is_too_large && state.taken < self.limits.capacity && since.elapsed() < MAX_OVERTAKING;
            if is_held_back || may_be_passed || !self.is_within_limit(state, tenant, weight) {
                state.order.push_back(tenant);
                passed_count += 1;
                continue;
            }
            if is_too_large {
                // This request must not be overtaken any more, or it could starve.
                state.order.push_front(tenant);
                return has_paced;
            }
            passed_count = 0;
            let waiter = state.queues.get_mut(&tenant).and_then(Queue::take_next);
            let is_waiting = state.queues.get(&tenant).is_some_and(|queue| queue.waiting_count() > 0);
            if is_waiting {
                state.order.push_back(tenant);
            }
            let permit = self.take(state, tenant, weight);
            if let Some(mut permit) = waiter.and_then(|waiter| waiter.sender.send(permit).err()) {
                // The waiter was dropped. A drop of the permit would take the lock that is held
                // here. So its units are returned here, and the permit is dropped without units.
                permit.weight = 0;
                state.give_back(tenant, weight);
            } else {
                self.hold_back(state, tenant);
            }
        }
        has_paced
    }

    /// The refusal for this tenant. It says whether the tenant is above its share.
    fn busy(&self, tenant: Tenant, weight: u32) -> Busy {
        let state = self.state();
        let tenant_count = u32::try_from(state.queues.len().max(1)).unwrap_or(u32::MAX);
        let queue = state.queues.get(&tenant);
        let taken = queue.map_or(0, |queue| queue.taken);
        let is_queue_full = queue.is_some_and(|queue| queue.new_count() >= self.limits.waiting_count.max(1));
        let is_above = taken > self.limits.capacity / tenant_count
            || !self.is_within_limit(&state, tenant, weight.min(self.limits.capacity));
        Busy { is_above_share: is_queue_full || is_above }
    }
}

impl State {
    /// Returns the units of a permit.
    fn give_back(&mut self, tenant: Tenant, weight: u32) {
        self.taken = self.taken.saturating_sub(weight);
        if let Some(queue) = self.queues.get_mut(&tenant) {
            queue.taken = queue.taken.saturating_sub(weight);
        }
        self.forget(tenant);
    }

    /// Removes the queue of a tenant without units and waiting requests. So the number of requests
    /// bounds the size of the map.
    fn forget(&mut self, tenant: Tenant) {
        if self.queues.get(&tenant).is_some_and(|queue| queue.taken == 0 && queue.waiting_count() == 0) {
            self.queues.remove(&tenant);
        }
    }
}

#[cfg(test)]
mod tests;
