//! The queue of one tenant: running and new requests, served alternately.

use std::collections::VecDeque;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Permit;
use super::pacing::Due;

/// What one tenant has, and those of its requests that wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Units that it has.
    pub(super) taken: u32,
    /// Those who wait and have not begun yet.
    entering: VecDeque<Waiter>,
    /// Those who wait for another permit.
    begun: VecDeque<Waiter>,
    /// When the next one is served, where that is at a pace.
    pub(super) due: Due,
    /// Whether the one who was served last had not begun yet.
    has_entered: bool,
}

impl Queue {
    /// Adds a waiter to the end of the running or of the new requests.
    pub(super) fn push(&mut self, waiter: Waiter, is_entering: bool) {
        if is_entering { self.entering.push_back(waiter) } else { self.begun.push_back(waiter) }
    }

    pub(super) fn entering_count(&self) -> usize {
        self.entering.len()
    }

    pub(super) fn waiting_count(&self) -> usize {
        self.entering.len() + self.begun.len()
    }

    /// Whether the next one to be served has not begun yet.
    fn is_next_entering(&self) -> bool {
        !self.entering.is_empty() && (self.begun.is_empty() || !self.has_entered)
    }

    /// Units that the next one wants, and since when it waits.
    pub(super) fn next(&self) -> Option<(u32, Instant)> {
        let next = if self.is_next_entering() { &self.entering } else { &self.begun };
        next.front().map(|waiter| (waiter.weight, waiter.since))
    }

    pub(super) fn take_next(&mut self) -> Option<Waiter> {
        self.has_entered = self.is_next_entering();
        if self.has_entered { self.entering.pop_front() } else { self.begun.pop_front() }
    }

    /// Lets this one leave; whether it was there.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        [&mut self.entering, &mut self.begun].into_iter().any(|waiting| {
            let place = waiting.iter().position(|waiter| waiter.number == number);
            place.and_then(|place| waiting.remove(place)).is_some()
        })
    }
}

/// One who waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) number: u64,
    pub(super) weight: u32,
    /// When it came.
    pub(super) since: Instant,
    pub(super) sender: oneshot::Sender<Permit>,
}
