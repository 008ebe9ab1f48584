//! Limits the lines of refusals in the audit log. Of each address, the first `LINE_COUNT` refusals
//! within a minute have a line each, and the others share one line with their number.
//!
//! Without the limit, any client could fill the disk and hide other lines, because a refused
//! request needs no token.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::http::peer::network;
use crate::runtime::clock::Timestamp;

/// Number of refusals of one address within [`PERIOD`] that have a line each. It is enough to see
/// what a client tries, and takes 24 KB of the log.
const LINE_COUNT: u32 = 60;

/// The time for which the refusals of an address are counted before their sum is appended.
const PERIOD: Duration = Duration::from_secs(60);

/// Number of addresses that are counted separately, which takes about 100 KB of memory. All others
/// are counted together.
const MAX_ADDRESS_COUNT: usize = 1024;

/// The refusals of the last minute.
#[derive(Debug, Default)]
pub struct Refusals {
    /// By address; `None` for all addresses that are not counted separately.
    tallies: Mutex<HashMap<Option<IpAddr>, Tally>>,
}

/// The refusals of one address.
#[derive(Debug)]
struct Tally {
    /// When counting began.
    since: Instant,
    /// `since` as wall-clock time.
    time: Timestamp,
    /// Refusals that have a line each.
    line_count: u32,
    /// Refusals that share a line.
    summed_count: u64,
}

/// The refusals of an address that share a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    /// When counting began.
    pub(super) time: Timestamp,
    /// The address, or the network for IPv6; `None` for all addresses that are not counted
    /// separately.
    pub(super) address: Option<IpAddr>,
    pub(super) count: u64,
}

impl Refusals {
    /// Counts a refusal. Returns whether it gets a line of its own. An IPv6 address counts as its
    /// network, because a client can have all addresses of a network.
    pub(super) fn count(&self, address: Option<IpAddr>, time: Timestamp) -> bool {
        let mut tallies = self.tallies();
        let address = address
            .map(network)
            .filter(|address| tallies.len() < MAX_ADDRESS_COUNT || tallies.contains_key(&Some(*address)));
        let new = || Tally { since: Instant::now(), time, line_count: 0, summed_count: 0 };
        let tally = tallies.entry(address).or_insert_with(new);
        let has_line = tally.line_count < LINE_COUNT;
        if has_line {
            tally.line_count += 1
        } else {
            tally.summed_count += 1
        }
        has_line
    }

    /// Removes the tallies whose minute is over, or with `is_end` all. Returns their sums, without
    /// those that are 0.
    pub(super) fn take_sums(&self, is_end: bool) -> Vec<Sum> {
        let mut tallies = self.tallies();
        if tallies.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        let over = tallies.extract_if(|_, tally| is_end || now.duration_since(tally.since) >= PERIOD);
        let sums = over.map(|(address, tally)| Sum { time: tally.time, address, count: tally.summed_count });
        sums.filter(|sum| sum.count > 0).collect()
    }

    fn tallies(&self) -> MutexGuard<'_, HashMap<Option<IpAddr>, Tally>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const TIME: Timestamp = Timestamp::from_millis(1_000);

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_beyond_the_limit_are_summed_by_address() {
        let refusals = Refusals::default();
        let line_count = (0..1000).filter(|_| refusals.count(ip("10.0.0.1"), TIME)).count();
        assert_eq!(line_count, LINE_COUNT as usize);
        assert!(refusals.count(ip("10.0.0.2"), TIME), "each address is counted by itself");
        assert_eq!(refusals.take_sums(false), []);
        advance(PERIOD).await;
        let sum = Sum { time: TIME, address: ip("10.0.0.1"), count: 1000 - u64::from(LINE_COUNT) };
        assert_eq!(refusals.take_sums(false), [sum]);
        assert!(refusals.count(ip("10.0.0.1"), TIME), "counting begins again");
        assert_eq!(refusals.take_sums(true), []);
        assert!(refusals.tallies().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn thousands_of_addresses_take_bounded_memory_and_few_lines() {
        let refusals = Refusals::default();
        let line_count = (0..100_000_u32).filter(|host| refusals.count(Some(IpAddr::from(host.to_be_bytes())), TIME));
        assert_eq!(line_count.count(), MAX_ADDRESS_COUNT + LINE_COUNT as usize);
        assert!(refusals.tallies().len() <= MAX_ADDRESS_COUNT + 1);
        let sum = Sum { time: TIME, address: None, count: 100_000 - 1024 - 60 };
        assert_eq!(refusals.take_sums(true), [sum]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_of_ipv6_is_one_address() {
        let refusals = Refusals::default();
        let hosts = (0..1000).map(|host| ip(&format!("2001:db8::{host:x}")));
        assert_eq!(hosts.filter(|host| refusals.count(*host, TIME)).count(), LINE_COUNT as usize);
    }
}
