//! The queue of one tenant in a [`FairGate`](super::FairGate).
//!
//! A new request waits for its first permit, and a running one for its next permit. The queue
//! serves both kinds alternately, and the requests of one kind in the order in which they came.
//! The gate checks limits and grants permits, not the queue.

use std::collections::VecDeque;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Permit;
use super::pacing::Due;

/// The units that one tenant holds, and its waiting requests.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Units of the tenant's permits.
    pub(super) taken: u32,
    /// Requests that wait for their first permit.
    new: VecDeque<Waiter>,
    /// Requests that wait for another permit.
    running: VecDeque<Waiter>,
    /// When the next request may be served, if the gate paces this tenant.
    pub(super) due: Due,
    /// Whether the last served request was a new one.
    was_new: bool,
}

impl Queue {
    /// Adds a waiter behind the other requests of its kind.
    pub(super) fn push(&mut self, waiter: Waiter, is_new: bool) {
        if is_new { self.new.push_back(waiter) } else { self.running.push_back(waiter) }
    }

    pub(super) fn new_count(&self) -> usize {
        self.new.len()
    }

    pub(super) fn waiting_count(&self) -> usize {
        self.new.len() + self.running.len()
    }

    /// Whether the next request to serve is a new one.
    fn is_next_new(&self) -> bool {
        !self.new.is_empty() && (self.running.is_empty() || !self.was_new)
    }

    /// The units that the next request needs, and when it began to wait.
    pub(super) fn next(&self) -> Option<(u32, Instant)> {
        let next = if self.is_next_new() { &self.new } else { &self.running };
        next.front().map(|waiter| (waiter.weight, waiter.since))
    }

    /// Removes the next request from the queue.
    pub(super) fn take_next(&mut self) -> Option<Waiter> {
        self.was_new = self.is_next_new();
        if self.was_new { self.new.pop_front() } else { self.running.pop_front() }
    }

    /// Removes a waiter that gives up. Returns whether it was still queued.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        [&mut self.new, &mut self.running].into_iter().any(|waiting| {
            let place = waiting.iter().position(|waiter| waiter.number == number);
            place.and_then(|place| waiting.remove(place)).is_some()
        })
    }
}

/// A waiting request.
#[derive(Debug)]
pub(super) struct Waiter {
    /// Identifies the request in its queue.
    pub(super) number: u64,
    /// The units that it needs.
    pub(super) weight: u32,
    /// When it began to wait.
    pub(super) since: Instant,
    /// Where its permit is sent.
    pub(super) sender: oneshot::Sender<Permit>,
}
