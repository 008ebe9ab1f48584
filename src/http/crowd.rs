//! Connections by the address that they come from: when they run out, nobody takes the last ones who has many.
//!
//! The last eighth of `max_connections` is for addresses that have less than an eighth each. A proxy speaks for many, and
//! is taken as it comes where it is named in `trusted_proxies`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;

use super::tenant::network;

/// The part that is kept.
const RESERVE: usize = 8;

/// What a refused connection is told: to come back, in the only words that need no head.
pub(super) const REFUSAL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 2\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// The connections that are there.
#[derive(Debug)]
pub(super) struct Crowd {
    max_count: usize,
    trusted: Arc<[IpNet]>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    total: usize,
    addresses: HashMap<IpAddr, usize>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Member {
    crowd: Arc<Crowd>,
    address: IpAddr,
}

impl Crowd {
    pub(super) fn new(max_count: usize, trusted: Arc<[IpNet]>) -> Arc<Self> {
        Arc::new(Self { max_count, trusted, table: Mutex::default() })
    }

    /// Lets a connection in, unless its address has too many.
    pub(super) fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<Member> {
        let peer = peer.to_canonical();
        let is_trusted = self.trusted.iter().any(|net| net.contains(&peer));
        let (address, reserve) = (network(peer), self.max_count / RESERVE);
        let mut table = self.table();
        let has = table.addresses.get(&address).copied().unwrap_or_default();
        let is_last = table.total >= self.max_count - reserve;
        if is_last && reserve > 0 && has >= reserve && !is_trusted {
            return None;
        }
        table.total += 1;
        table.addresses.insert(address, has + 1);
        Some(Member { crowd: Arc::clone(self), address })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut table = self.crowd.table();
        table.total = table.total.saturating_sub(1);
        match table.addresses.get_mut(&self.address) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(table.addresses.remove(&self.address)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(crowd: &Arc<Crowd>, address: &str) -> Vec<Member> {
        std::iter::from_fn(|| crowd.admit(address.parse().unwrap())).take(99).collect()
    }

    #[test]
    fn one_address_gets_all_but_the_last_eighth_and_another_one_gets_of_that() {
        let crowd = Crowd::new(16, [].into());
        let many = fill(&crowd, "10.0.0.1");
        assert_eq!(many.len(), 14);
        assert_eq!(fill(&crowd, "::ffff:10.0.0.1").len(), 0, "the same address");
        assert_eq!(fill(&crowd, "10.0.0.2").len(), 2);
        drop(many);
        let table = crowd.table();
        assert_eq!((table.total, table.addresses.len()), (0, 0));
    }

    #[test]
    fn of_a_network_of_ipv6_all_addresses_are_one() {
        let crowd = Crowd::new(16, [].into());
        let many: Vec<_> =
            (0..99).map_while(|host| crowd.admit(format!("2001:db8::{host:x}").parse().unwrap())).collect();
        assert_eq!(many.len(), 14);
        assert!(crowd.admit("2001:db8:0:1::1".parse().unwrap()).is_some());
    }

    #[test]
    fn a_trusted_proxy_speaks_for_many_and_few_connections_have_no_reserve() {
        let crowd = Crowd::new(16, ["10.0.0.0/8".parse().unwrap()].into());
        assert_eq!(fill(&crowd, "10.0.0.1").len(), 99, "the number of slots is somebody else's business");
        assert_eq!(fill(&Crowd::new(7, [].into()), "10.0.0.1").len(), 99);
    }
}
