//! Turns that are shared out fairly: a semaphore that knows who is asking.
//!
//! While there is room, whoever comes is let in. When there is none, everybody waits in a line of their own, and the
//! lines are served in turn: who has one request waiting is served after at most one of everybody else, however many of
//! those there are. Nobody is pushed out who is in; fairness therefore takes turns that are short. In a line those who have
//! begun and those who have not are served in turn, so that who comes waits for one of the large requests of its own tenant, and
//! not for all of them.
//!
//! Who needs more units than there are is passed by those who need less, for two seconds at most.
//!
//! A gate may also [leave room](FairGate::leaving_room): then who has a crowd waiting does not get all that there is while
//! others ask as well.
//!
//! What it does not do: a turn that is held for long is held. [`Limits::per_tenant`] keeps one tenant from holding all.

mod limits;
mod line;
mod room;
mod tenant;
mod turn;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

pub use self::limits::{Busy, Limits};
use self::line::{Line, Waiter};
use self::room::{LOOK_PERIOD, Presence};
pub use self::tenant::Tenant;
pub use self::turn::{Paused, Turn};
use super::task::TaskGroup;

/// For how long those who need less may go before one who needs more than there is.
const PASSING: Duration = Duration::from_secs(2);

/// A counted number of units, shared out in turn. Cloning it is cheap and gives the same gate.
#[derive(Clone, Debug)]
pub struct FairGate {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limits: Limits,
    /// Time between two turns of a crowd while others are there; `None` where no room is left.
    pause: Option<Duration>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Units that are out.
    taken: u32,
    /// Everybody who has units or waits.
    lines: HashMap<Tenant, Line>,
    /// Whose line is served next: everybody who waits, once.
    ring: VecDeque<Tenant>,
    presence: Presence,
    /// Whether somebody will look again for lines that are not due.
    is_watched: bool,
    /// Counts requests that waited.
    number: u64,
}

impl FairGate {
    /// A gate with these limits.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self::with_pause(limits, None)
    }

    /// A gate that gives a tenant of whom more wait than there are units only so many turns as there are units in such a time,
    /// while others ask as well. Turns of it must be given back within the runtime.
    #[must_use]
    pub fn leaving_room(limits: Limits, period: Duration) -> Self {
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

    /// A gate of so many units for turns that are always waited for.
    #[must_use]
    pub fn patient(capacity: u32) -> Self {
        Self::new(Limits { capacity, per_tenant: capacity, waiting_count: usize::MAX, patience: Duration::MAX })
    }

    /// A turn of so many units, waited for as long as the limits say.
    ///
    /// # Errors
    ///
    /// There was none in that time, or too many requests of this tenant wait already.
    pub async fn enter(&self, tenant: Tenant, weight: u32) -> Result<Turn, Busy> {
        let asked = self.ask(tenant, weight, true);
        self.await_turn((tenant, weight), asked?).await
    }

    /// The same for who has begun: however many wait. To be used where those are bounded by something else.
    ///
    /// # Errors
    ///
    /// There was none in the time that the limits allow.
    pub async fn go_on(&self, tenant: Tenant, weight: u32) -> Result<Turn, Busy> {
        let asked = self.ask(tenant, weight, false);
        self.await_turn((tenant, weight), asked?).await
    }

    /// A turn of so many units, however long that takes.
    pub async fn wait(&self, tenant: Tenant, weight: u32) -> Turn {
        match self.ask(tenant, weight, false) {
            Ok(Asked::Turn(turn)) => turn,
            Ok(Asked::Queued(queued)) => queued.turn().await,
            Err(_) => unreachable!("any number may wait"),
        }
    }

    /// A turn for later, as if it had been given back.
    pub fn later(&self, tenant: Tenant, weight: u32) -> Paused {
        Paused { gate: self.clone(), tenant, weight }
    }

    /// Units that are out, and requests that wait.
    #[must_use]
    pub fn load(&self) -> (u32, usize) {
        let state = self.shared.state();
        (state.taken, state.lines.values().map(Line::waiting_count).sum())
    }

    async fn await_turn(&self, (tenant, weight): (Tenant, u32), asked: Asked) -> Result<Turn, Busy> {
        match asked {
            Asked::Turn(turn) => Ok(turn),
            Asked::Queued(queued) => match timeout(self.shared.limits.patience, queued.turn()).await {
                Ok(turn) => Ok(turn),
                Err(_) => Err(self.shared.busy(tenant, weight)),
            },
        }
    }

    fn ask(&self, tenant: Tenant, weight: u32, is_entering: bool) -> Result<Asked, Busy> {
        let weight = weight.clamp(1, self.shared.limits.capacity);
        let mut state = self.shared.state();
        if self.shared.pause.is_some() {
            state.presence.note(tenant, Instant::now());
        }
        if state.ring.is_empty() && self.shared.fits(&state, tenant, weight) {
            return Ok(Asked::Turn(self.shared.take(&mut state, tenant, weight)));
        }
        let line = state.lines.entry(tenant).or_default();
        if is_entering && line.entering_count() >= self.shared.limits.waiting_count {
            state.forget(tenant);
            drop(state);
            return Err(self.shared.busy(tenant, weight));
        }
        let (sender, receiver) = oneshot::channel();
        let is_first = line.waiting_count() == 0;
        state.number += 1;
        let number = state.number;
        if let Some(line) = state.lines.get_mut(&tenant) {
            line.push(Waiter { number, weight, since: Instant::now(), sender }, is_entering);
        }
        if is_first {
            state.ring.push_back(tenant);
        }
        // Whoever waits before may wait for what this one does not need.
        self.shared.serve(&mut state);
        Ok(Asked::Queued(Queued { shared: Arc::clone(&self.shared), tenant, number, receiver }))
    }
}

enum Asked {
    Turn(Turn),
    Queued(Queued),
}

/// A place in a line. Dropping it leaves the line.
struct Queued {
    shared: Arc<Shared>,
    tenant: Tenant,
    number: u64,
    receiver: oneshot::Receiver<Turn>,
}

impl Queued {
    async fn turn(mut self) -> Turn {
        (&mut self.receiver).await.expect("whoever is in a line stays there until it is served or leaves")
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        // A turn that was given meanwhile is in the channel, and ends with it.
        let mut state = self.shared.state();
        if let Some(line) = state.lines.get_mut(&self.tenant)
            && line.remove(self.number)
        {
            if line.waiting_count() == 0 {
                state.ring.retain(|tenant| *tenant != self.tenant);
            }
            state.forget(self.tenant);
            // The next one may need less.
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
        let taken = state.lines.get(&tenant).map_or(0, |line| line.taken);
        taken == 0 || taken + weight <= self.limits.per_tenant
    }

    fn take(self: &Arc<Self>, state: &mut State, tenant: Tenant, weight: u32) -> Turn {
        state.taken += weight;
        state.lines.entry(tenant).or_default().taken += weight;
        Turn { shared: Arc::clone(self), tenant, weight }
    }

    /// Whether a line is not to be served yet, to leave room for others.
    fn is_put_off(&self, state: &mut State, tenant: Tenant) -> bool {
        if self.pause.is_none() {
            return false;
        }
        let now = Instant::now();
        let has_others = state.presence.has_others(tenant, now);
        state.lines.get_mut(&tenant).is_some_and(|line| {
            if !has_others {
                line.due.forget();
            }
            line.due.is_later(now)
        })
    }

    /// A line was served; if it is a crowd, the next of them waits while others are there.
    fn put_off(&self, state: &mut State, tenant: Tenant) {
        let Some(pause) = self.pause else { return };
        let now = Instant::now();
        if state.presence.has_others(tenant, now)
            && let Some(line) = state.lines.get_mut(&tenant)
            && line.waiting_count() >= self.limits.capacity as usize
        {
            line.due.put_off(now, pause);
        }
    }

    /// Gives out what there is to those who wait, and looks again where somebody is not due.
    fn serve(self: &Arc<Self>, state: &mut State) {
        if !self.hand_out(state) || state.is_watched || Handle::try_current().is_err() {
            return;
        }
        state.is_watched = true;
        let shared = Arc::clone(self);
        TaskGroup::new().spawn(async move {
            sleep(LOOK_PERIOD).await;
            let mut state = shared.state();
            state.is_watched = false;
            shared.serve(&mut state);
        });
    }

    /// One of each line in turn, as far as there is something; whether a line was passed over that is not due. Where that is not
    /// seen because somebody else waits for units before it, those are given back.
    fn hand_out(self: &Arc<Self>, state: &mut State) -> bool {
        let mut has_put_off = false;
        // Lines in a row that cannot be served because of their tenant's own limit, or for the sake of others.
        let mut passed_count = 0;
        while passed_count < state.ring.len() {
            let Some(tenant) = state.ring.pop_front() else { return has_put_off };
            let Some((weight, since)) = state.lines.get(&tenant).and_then(Line::next) else { continue };
            let is_put_off = self.is_put_off(state, tenant);
            has_put_off |= is_put_off;
            let is_too_large = state.taken + weight > self.limits.capacity;
            let may_be_passed = is_too_large && state.taken < self.limits.capacity && since.elapsed() < PASSING;
            if is_put_off || may_be_passed || !self.is_within_limit(state, tenant, weight) {
                state.ring.push_back(tenant);
                passed_count += 1;
                continue;
            }
            if is_too_large {
                // It is this one's turn, and who needs less has gone before it for long enough: otherwise it might never come.
                state.ring.push_front(tenant);
                return has_put_off;
            }
            passed_count = 0;
            let waiter = state.lines.get_mut(&tenant).and_then(Line::take_next);
            let is_waiting = state.lines.get(&tenant).is_some_and(|line| line.waiting_count() > 0);
            if is_waiting {
                state.ring.push_back(tenant);
            }
            let turn = self.take(state, tenant, weight);
            if let Some(mut turn) = waiter.and_then(|waiter| waiter.sender.send(turn).err()) {
                // It has just gone. Given back by hand: the turn's own end would want the lock that is held here.
                turn.weight = 0;
                state.give_back(tenant, weight);
            } else {
                self.put_off(state, tenant);
            }
        }
        has_put_off
    }

    /// The refusal of so many units for this tenant, with the reason.
    fn busy(&self, tenant: Tenant, weight: u32) -> Busy {
        let state = self.state();
        let sharer_count = u32::try_from(state.lines.len().max(1)).unwrap_or(u32::MAX);
        let line = state.lines.get(&tenant);
        let taken = line.map_or(0, |line| line.taken);
        let is_crowd = line.is_some_and(|line| line.entering_count() >= self.limits.waiting_count.max(1));
        let is_above = taken > self.limits.capacity / sharer_count
            || !self.is_within_limit(&state, tenant, weight.min(self.limits.capacity));
        Busy { is_above_share: is_crowd || is_above }
    }
}

impl State {
    fn give_back(&mut self, tenant: Tenant, weight: u32) {
        self.taken = self.taken.saturating_sub(weight);
        if let Some(line) = self.lines.get_mut(&tenant) {
            line.taken = line.taken.saturating_sub(weight);
        }
        self.forget(tenant);
    }

    /// Forgets a tenant that neither has nor wants anything, so that the table is as long as there are requests.
    fn forget(&mut self, tenant: Tenant) {
        if self.lines.get(&tenant).is_some_and(|line| line.taken == 0 && line.waiting_count() == 0) {
            self.lines.remove(&tenant);
        }
    }
}

#[cfg(test)]
mod tests;
