//! Limits connections: in total, and per address.
//!
//! Up to `max_connections` connections have a *seat*, which means that they are served. The last
//! eighth of the seats is reserved for addresses that have less than an eighth each. A proxy in
//! `trusted_proxies` stands for many clients, so it is exempt.
//!
//! If no seat is free, a few connections may wait for one, and further ones are refused. For each
//! waiting connection, the connection that has been idle for longest is closed, even within a
//! request head. If every connection has a request in flight, the first connection that has sent
//! its response is closed. A few more seats are for connections from this machine itself, for its
//! health probes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::conn_state::ConnState;
use super::peer::network;

/// One of this many seats is reserved.
const RESERVE: usize = 8;

/// Number of additional seats for this machine: for a health probe of the container and one of a
/// supervisor, twice each.
const SPARE_COUNT: usize = 4;

/// For this many seats, one connection may wait. A waiting connection takes only a file descriptor.
const WAITING: usize = 64;

/// Interval at which a waiting connection checks for an idle one that can be closed.
const RECHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The response to a refused connection, sent without reading a request.
pub(super) const REFUSAL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 2\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// The open connections.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    max_count: usize,
    /// The networks of proxies that stand for many clients.
    trusted: Arc<[IpNet]>,
    seats: Arc<Semaphore>,
    /// Seats for this machine.
    spare: Arc<Semaphore>,
    /// Permits to wait for a seat.
    waiting: Arc<Semaphore>,
    table: Mutex<Table>,
}

/// The admitted connections.
#[derive(Debug, Default)]
struct Table {
    /// Number of admitted connections, with those that wait.
    total: usize,
    /// Number of admitted connections of each address. An IPv6 network is one address.
    addresses: HashMap<IpAddr, usize>,
    /// Connections with a seat, by their numbers.
    seated: HashMap<u64, Seated>,
    /// The number of the last connection.
    number: u64,
    /// Connections that wait for a seat.
    waiting_count: usize,
}

/// A connection that has a seat.
#[derive(Debug)]
struct Seated {
    conn: Arc<ConnState>,
    /// Cancelled when the connection must end for the sake of a waiting one.
    evicted: CancellationToken,
}

/// An admitted connection. Dropping it releases its seat.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    address: IpAddr,
    number: u64,
    place: Place,
    evicted: CancellationToken,
}

/// Whether an admitted connection has a seat or waits for one.
#[derive(Debug)]
enum Place {
    Seat(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit),
    Waiting(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit),
}

impl ConnectionLimiter {
    pub(super) fn new(max_count: usize, trusted: Arc<[IpNet]>) -> Arc<Self> {
        let places = |count| Arc::new(Semaphore::new(count));
        let waiting = places((max_count / WAITING).max(1));
        let (seats, spare) = (places(max_count), places(SPARE_COUNT));
        Arc::new(Self { max_count, trusted, seats, spare, waiting, table: Mutex::default() })
    }

    /// Admits a connection. `None` if its address has too many, or too many connections wait.
    pub(super) fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionPermit> {
        let peer = peer.to_canonical();
        let is_trusted = self.trusted.iter().any(|net| net.contains(&peer));
        let (address, reserve) = (network(peer), self.max_count / RESERVE);
        let mut table = self.table();
        let address_count = table.addresses.get(&address).copied().unwrap_or_default();
        // Whether only the reserved seats are left.
        let is_reserve = table.total >= self.max_count - reserve;
        if is_reserve && reserve > 0 && address_count >= reserve && !is_trusted {
            return None;
        }
        let take = |places: &Arc<Semaphore>| Arc::clone(places).try_acquire_owned().ok();
        let spare = || if peer.is_loopback() { take(&self.spare) } else { None };
        let place = match take(&self.seats).or_else(spare) {
            Some(seat) => Place::Seat(seat),
            None => Place::Waiting(take(&self.waiting)?),
        };
        table.waiting_count += usize::from(matches!(place, Place::Waiting(_)));
        table.total += 1;
        table.number += 1;
        table.addresses.insert(address, address_count + 1);
        let (limiter, number) = (Arc::clone(self), table.number);
        Some(ConnectionPermit { limiter, address, number, place, evicted: CancellationToken::new() })
    }

    /// Evicts the connection that has been idle for longest. Does nothing if enough connections are
    /// evicted already: one for each that waits.
    fn evict_idle(&self) {
        let table = self.table();
        let (ending, seated): (Vec<_>, Vec<_>) =
            table.seated.values().partition(|seated| seated.evicted.is_cancelled());
        if ending.len() >= table.waiting_count {
            return;
        }
        let mut idle: Vec<_> =
            seated.into_iter().filter_map(|seated| Some((seated.conn.activity().idle_since()?, seated))).collect();
        idle.sort_unstable_by_key(|(since, _)| *since);
        // `evict` fails if a request has begun meanwhile.
        if let Some((_, oldest)) = idle.into_iter().find(|(_, seated)| seated.conn.activity().evict()) {
            oldest.evicted.cancel();
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPermit {
    /// Waits until this connection has a seat. From then on it can be evicted while it is idle.
    pub(super) async fn seat(&mut self, conn: &Arc<ConnState>) {
        if matches!(self.place, Place::Waiting(_)) {
            let mut seat = pin!(Arc::clone(&self.limiter.seats).acquire_owned());
            let seat = loop {
                self.limiter.evict_idle();
                tokio::select! {
                    seat = &mut seat => break seat.expect("this semaphore is never closed"),
                    () = sleep(RECHECK_INTERVAL) => {}
                }
            };
            self.place = Place::Seat(seat);
            self.limiter.table().waiting_count -= 1;
        }
        let seated = Seated { conn: Arc::clone(conn), evicted: self.evicted.clone() };
        self.limiter.table().seated.insert(self.number, seated);
    }

    /// Completes when the connection must end for the sake of a waiting one.
    pub(super) fn evicted(&self) -> WaitForCancellationFutureOwned {
        self.evicted.clone().cancelled_owned()
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut table = self.limiter.table();
        table.waiting_count -= usize::from(matches!(self.place, Place::Waiting(_)));
        table.seated.remove(&self.number);
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

    /// Admits connections of one address until one is refused.
    fn fill(limiter: &Arc<ConnectionLimiter>, address: &str) -> Vec<ConnectionPermit> {
        std::iter::from_fn(|| limiter.admit(address.parse().unwrap())).take(99).collect()
    }

    #[test]
    fn one_address_gets_seven_eighths_and_another_gets_the_rest() {
        let limiter = ConnectionLimiter::new(16, [].into());
        let many = fill(&limiter, "10.0.0.1");
        assert_eq!(many.len(), 14);
        assert_eq!(fill(&limiter, "::ffff:10.0.0.1").len(), 0, "the same address");
        assert_eq!(fill(&limiter, "10.0.0.2").len(), 2);
        drop(many);
        let table = limiter.table();
        assert_eq!((table.total, table.addresses.len()), (0, 0));
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let limiter = ConnectionLimiter::new(16, [].into());
        let many: Vec<_> =
            (0..99).map_while(|host| limiter.admit(format!("2001:db8::{host:x}").parse().unwrap())).collect();
        assert_eq!(many.len(), 14);
        assert!(limiter.admit("2001:db8:0:1::1".parse().unwrap()).is_some());
    }

    #[test]
    fn trusted_proxy_has_no_address_limit_nor_has_a_small_server() {
        let limiter = ConnectionLimiter::new(16, ["10.0.0.0/8".parse().unwrap()].into());
        assert_eq!(fill(&limiter, "10.0.0.1").len(), 17, "one waits");
        assert_eq!(fill(&ConnectionLimiter::new(7, [].into()), "10.0.0.1").len(), 8);
    }

    /// Admits a connection, and waits until it has a seat.
    async fn sit(limiter: &Arc<ConnectionLimiter>) -> (ConnectionPermit, Arc<ConnState>) {
        let (mut permit, conn) = (limiter.admit("10.0.0.1".parse().unwrap()).unwrap(), Arc::new(ConnState::default()));
        permit.seat(&conn).await;
        (permit, conn)
    }

    fn is_evicted(permit: &ConnectionPermit) -> bool {
        permit.evicted.is_cancelled()
    }

    #[tokio::test(start_paused = true)]
    async fn longest_idle_connection_is_evicted_for_a_waiting_one() {
        let limiter = ConnectionLimiter::new(3, [].into());
        let (busy, idle, new) = (sit(&limiter).await, sit(&limiter).await, sit(&limiter).await);
        let in_flight = busy.1.begin().unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(new);
        let new = sit(&limiter).await;
        let next = sit(&limiter);
        let leaving = async {
            idle.0.evicted().await;
            assert!(idle.1.begin().is_none(), "a request now would get no response");
            assert!(!is_evicted(&busy.0) && !is_evicted(&new.0));
            drop(idle);
        };
        let both = async { tokio::join!(next, leaving) };
        let (next, ()) = tokio::time::timeout(Duration::from_secs(9), both).await.unwrap();
        assert!(!is_evicted(&busy.0) && !is_evicted(&new.0), "one is evicted for each that waits");
        drop((in_flight, next, new, busy));
        let table = limiter.table();
        assert_eq!((table.total, table.seated.len(), table.waiting_count), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn connection_waits_until_a_response_of_another_is_sent() {
        let limiter = ConnectionLimiter::new(1, [].into());
        let busy = sit(&limiter).await;
        let in_flight = busy.1.begin().unwrap();
        let mut next = Box::pin(sit(&limiter));
        assert!(tokio::time::timeout(Duration::from_secs(9), &mut next).await.is_err());
        assert!(limiter.admit("10.0.0.1".parse().unwrap()).is_none(), "one waits already");
        assert!(limiter.admit("127.0.0.1".parse().unwrap()).is_some(), "a health probe does not wait");
        drop(in_flight);
        assert!(tokio::time::timeout(Duration::from_secs(9), &mut next).await.is_err(), "the response is not sent yet");
        busy.1.activity().flushed();
        let evicted = async { busy.0.evicted().await };
        tokio::time::timeout(Duration::from_secs(9), async {
            tokio::select! { () = evicted => {}, _ = &mut next => {} }
        })
        .await
        .unwrap();
        drop(busy);
        let _next = next.await;
    }
}
