use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::task::unconstrained;
use tokio::time::{Instant, advance, sleep, sleep_until};

use super::{Busy, FairGate, Limits, MAX_OVERTAKING, Permit, Tenant};

const FLOOD: Tenant = Tenant::new(1);
const OTHER: Tenant = Tenant::new(2);
const THIRD: Tenant = Tenant::new(3);

fn gate(capacity: u32, per_tenant: u32) -> FairGate {
    FairGate::new(Limits { capacity, per_tenant, waiting_count: 3, patience: Duration::from_secs(30) })
}

/// A permit that is granted at once.
fn now(gate: &FairGate, tenant: Tenant, weight: u32) -> Permit {
    gate.enter(tenant, weight).now_or_never().expect("units are free").unwrap()
}

#[test]
fn single_tenant_gets_all_units_at_once() {
    let gate = gate(4, 4);
    let permits: Vec<_> = (0..4).map(|_| now(&gate, FLOOD, 1)).collect();
    assert_eq!(gate.load(), (4, 0));
    drop(permits);
    assert_eq!(gate.load(), (0, 0));
    assert!(gate.shared.state().queues.is_empty(), "a tenant without units and requests has no queue");
}

/// The requests of each tenant are served in the order of their arrival.
#[tokio::test(start_paused = true)]
async fn single_request_waits_for_one_of_each_tenant_at_most() {
    let gate = gate(1, 1);
    // Another tenant holds the permit. Otherwise the queue of its tenant would be skipped, because
    // the tenant is at its limit, and would move to the end of the order.
    let held = now(&gate, Tenant::new(4), 1);
    let mut waiting: Vec<_> = [(FLOOD, 'a'), (FLOOD, 'b'), (FLOOD, 'c'), (THIRD, 'x'), (THIRD, 'y'), (OTHER, 'm')]
        .into_iter()
        .map(|(tenant, name)| (name, Box::pin(gate.acquire_next(tenant, 1))))
        .collect();
    for (_, waiting) in &mut waiting {
        assert!(waiting.now_or_never().is_none());
    }
    assert_eq!(gate.load(), (1, 6));
    drop(held);
    let mut order = String::new();
    while !waiting.is_empty() {
        let served = waiting
            .iter_mut()
            .enumerate()
            .find_map(|(index, (name, waiting))| Some((index, *name, waiting.now_or_never()?)));
        let (index, name, permit) = served.expect("a request is served");
        order.push(name);
        drop(waiting.swap_remove(index));
        drop(permit);
    }
    assert_eq!(order, "axmbyc");
    assert_eq!(gate.load(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn wait_ends_at_the_limit_and_gives_up_its_place() {
    let gate = gate(1, 1);
    let held = now(&gate, FLOOD, 1);
    let begin = Instant::now();
    let (other, flood) = tokio::join!(gate.enter(OTHER, 1), gate.enter(FLOOD, 1));
    assert_eq!(begin.elapsed(), Duration::from_secs(30));
    assert_eq!(other.err(), Some(Busy { is_above_share: false }));
    assert_eq!(flood.err(), Some(Busy { is_above_share: true }));
    assert_eq!(gate.load(), (1, 0));
    drop(held);
    drop(now(&gate, OTHER, 1));
}

/// The refused tenant is above its share.
#[tokio::test(start_paused = true)]
async fn full_queue_refuses_its_tenant_but_admits_others() {
    let gate = gate(1, 1);
    let held = now(&gate, FLOOD, 1);
    let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(gate.enter(FLOOD, 1))).collect();
    for waiting in &mut waiting {
        assert!(waiting.now_or_never().is_none());
    }
    let refused = gate.enter(FLOOD, 1).now_or_never().expect("at once");
    assert_eq!(refused.err(), Some(Busy { is_above_share: true }));
    let mut other = Box::pin(gate.enter(OTHER, 1));
    assert!((&mut other).now_or_never().is_none());
    // The number of running requests that wait is not limited.
    assert!(gate.acquire_next(FLOOD, 1).now_or_never().is_none());
    drop(held);
    drop(waiting);
    assert!(other.await.is_ok());
}

/// The refused request leaves no queue.
#[test]
fn without_waiting_a_request_that_does_not_fit_is_refused() {
    let limits = Limits { capacity: 8, per_tenant: 6, waiting_count: 0, patience: Duration::ZERO };
    let gate = FairGate::new(limits);
    let refused = |tenant, weight| gate.enter(tenant, weight).now_or_never().expect("no request waits").unwrap_err();
    let most = now(&gate, FLOOD, 6);
    assert_eq!(refused(FLOOD, u32::MAX), Busy { is_above_share: true });
    assert_eq!(refused(OTHER, 3), Busy { is_above_share: false });
    let rest = now(&gate, OTHER, 2);
    assert_eq!(refused(THIRD, 1), Busy { is_above_share: false });
    assert_eq!(gate.shared.state().queues.len(), 2, "a refused tenant has no queue");
    drop((most, rest));
    assert!(gate.shared.state().queues.is_empty());
    assert_eq!(now(&gate, THIRD, 9).weight, 8, "a larger weight counts as the whole gate");
}

#[tokio::test(start_paused = true)]
async fn small_requests_pass_a_large_one_for_a_bounded_time() {
    let gate = FairGate::new(Limits { capacity: 8, per_tenant: 8, waiting_count: 3, patience: Duration::MAX });
    let held = now(&gate, FLOOD, 6);
    let mut large = pin!(gate.enter(OTHER, 8));
    assert!(large.as_mut().now_or_never().is_none());
    // Two units are free: enough for these requests, but not for the large one.
    drop(now(&gate, THIRD, 2));
    advance(MAX_OVERTAKING - Duration::from_millis(1)).await;
    let small = now(&gate, THIRD, 1);
    advance(Duration::from_millis(1)).await;
    let mut late = pin!(gate.enter(THIRD, 1));
    assert!(late.as_mut().now_or_never().is_none(), "the large request was overtaken for long enough");
    drop((held, small));
    let large = large.now_or_never().expect("the large request is served").unwrap();
    assert!(late.as_mut().now_or_never().is_none());
    drop(large);
    assert!(late.now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn cancelled_request_leaves_no_units_and_no_place() {
    let gate = gate(1, 1);
    let held = now(&gate, FLOOD, 1);
    let (mut cancelled, mut served) = (Box::pin(gate.enter(OTHER, 1)), Box::pin(gate.enter(THIRD, 1)));
    assert!((&mut cancelled).now_or_never().is_none() && (&mut served).now_or_never().is_none());
    drop(cancelled);
    drop(held);
    // The permit was granted to a waiter that never polls for it.
    assert_eq!(gate.load(), (1, 0));
    drop(served);
    assert_eq!(gate.load(), (0, 0));
    drop(now(&gate, FLOOD, 1));
}

/// A request above the tenant's limit still runs if the tenant holds no units.
#[tokio::test(start_paused = true)]
async fn tenant_over_its_limit_is_passed_over_large_request_runs() {
    let gate = gate(8, 6);
    let first = now(&gate, FLOOD, 6);
    let mut more = Box::pin(gate.enter(FLOOD, 1));
    assert!((&mut more).now_or_never().is_none());
    // The tenant at its limit is skipped, so another tenant does not wait for it.
    let mut other = Box::pin(gate.enter(OTHER, 2));
    let other = (&mut other).now_or_never().expect("it fits").unwrap();
    drop(first);
    drop((&mut more).now_or_never().expect("it fits now").unwrap());
    drop(other);
    drop(now(&gate, FLOOD, 8));
    drop(now(&gate, FLOOD, 99));
    assert_eq!(gate.load(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_large_request_is_not_starved_by_small_ones() {
    let gate = gate(4, 4);
    let held = now(&gate, FLOOD, 1);
    let mut large = Box::pin(gate.enter(OTHER, 4));
    assert!((&mut large).now_or_never().is_none());
    advance(MAX_OVERTAKING).await;
    let mut small = Box::pin(gate.enter(FLOOD, 1));
    assert!((&mut small).now_or_never().is_none(), "units are free, but the large request waits for them");
    drop(held);
    let large = (&mut large).now_or_never().expect("its permit").unwrap();
    assert!((&mut small).now_or_never().is_none());
    drop(large);
    assert!((&mut small).now_or_never().is_some());
}

/// Random sequences of requests, grants, cancellations and returns: no unit is lost or granted
/// twice.
#[tokio::test(start_paused = true)]
async fn units_add_up_after_random_operations() {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    for seed in 0..200 {
        let mut rng = StdRng::seed_from_u64(seed);
        let limits = Limits { capacity: 5, per_tenant: 4, waiting_count: 3, patience: Duration::from_secs(30) };
        // With a period of zero every queue is always due. With a longer period, a request may wait
        // although units are free.
        let gate = match seed % 3 {
            0 => FairGate::new(limits),
            1 => FairGate::pacing(limits, Duration::ZERO),
            _ => FairGate::pacing(limits, Duration::from_millis(10)),
        };
        let (mut waiting, mut held) = (Vec::new(), Vec::<(u32, Permit)>::new());
        for _ in 0..300 {
            match rng.random_range(0..4) {
                0 | 1 => {
                    let (tenant, weight) = (Tenant::new(rng.random_range(1..4)), rng.random_range(1..4));
                    let (gate, way) = (gate.clone(), rng.random_range(0..3));
                    let asked = async move {
                        match way {
                            0 => Ok(gate.wait(tenant, weight).await),
                            1 => gate.acquire_next(tenant, weight).await,
                            _ => gate.enter(tenant, weight).await,
                        }
                    };
                    // Unconstrained, because tokio's cooperative budget would make all requests
                    // pending after some hundred polls.
                    waiting.push((weight, unconstrained(asked).boxed()));
                }
                2 if !held.is_empty() => drop(held.swap_remove(rng.random_range(0..held.len()))),
                _ if !waiting.is_empty() => drop(waiting.swap_remove(rng.random_range(0..waiting.len()))),
                _ => {}
            }
            // Poll all requests twice: the first poll of a new request can grant permits to waiters
            // that were polled before it.
            for _ in 0..2 {
                let mut index = 0;
                while index < waiting.len() {
                    match (&mut waiting[index].1).now_or_never() {
                        Some(Ok(permit)) => {
                            let (weight, _) = waiting.swap_remove(index);
                            held.push((weight, permit));
                        }
                        // Refused, because too many requests wait already.
                        Some(Err(_)) => drop(waiting.swap_remove(index)),
                        None => index += 1,
                    }
                }
            }
            let taken: u32 = held.iter().map(|(weight, _)| weight).sum();
            assert!(taken <= 5, "seed {seed}");
            assert_eq!(gate.load(), (taken, waiting.len()), "seed {seed}");
            assert!(seed % 3 == 2 || taken > 0 || waiting.is_empty(), "seed {seed}: a request waits for free units");
            if seed % 3 == 2 {
                sleep(Duration::from_millis(rng.random_range(0..3))).await;
            }
        }
        held.clear();
        // From now on no request begins or is cancelled.
        for _ in 0..100 {
            waiting.retain_mut(|(_, waiting)| waiting.now_or_never().is_none());
            sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(waiting.len(), 0, "seed {seed}: a request waits forever");
        assert_eq!(gate.load(), (0, 0), "seed {seed}");
        assert!(gate.shared.state().queues.is_empty() && gate.shared.state().order.is_empty(), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn running_requests_do_not_count_for_the_limit_of_new_ones() {
    let gate = gate(1, 1);
    let held = now(&gate, FLOOD, 1);
    let mut running: Vec<_> = (0..5).map(|_| Box::pin(gate.acquire_next(FLOOD, 1))).collect();
    for running in &mut running {
        assert!(running.now_or_never().is_none());
    }
    let fill = || {
        let mut new: Vec<_> = (0..3).map(|_| Box::pin(gate.enter(FLOOD, 1))).collect();
        for new in &mut new {
            assert!(new.now_or_never().is_none());
        }
        let refused = gate.enter(FLOOD, 1).now_or_never().expect("at once");
        assert_eq!(refused.err(), Some(Busy { is_above_share: true }));
        new
    };
    drop(fill());
    // A cancelled request no longer counts, and neither does a served one.
    let new = fill();
    drop((held, running));
    for new in new {
        assert!(new.await.is_ok());
    }
    assert_eq!(gate.load(), (0, 0));
    let held = now(&gate, FLOOD, 1);
    drop(fill());
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn new_and_running_requests_of_a_queue_alternate() {
    let gate =
        FairGate::new(Limits { waiting_count: 9, capacity: 1, per_tenant: 1, patience: Duration::from_secs(30) });
    for (new, running, expected) in [(1, 5, "nrrrrr"), (5, 1, "nrnnnn"), (3, 3, "nrnrnr"), (0, 2, "rr"), (2, 0, "nn")] {
        let held = now(&gate, OTHER, 1);
        let mut waiting: Vec<_> = (0..running).map(|_| ('r', gate.acquire_next(FLOOD, 1).boxed())).collect();
        waiting.extend((0..new).map(|_| ('n', gate.enter(FLOOD, 1).boxed())));
        for (_, waiting) in &mut waiting {
            assert!(waiting.now_or_never().is_none());
        }
        drop(held);
        let mut order = String::new();
        while !waiting.is_empty() {
            let served = waiting.iter_mut().map(|(_, waiting)| waiting.now_or_never()).collect::<Vec<_>>();
            let place = served.iter().position(Option::is_some).expect("a request is served");
            order.push(waiting.remove(place).0);
        }
        assert_eq!(order, expected);
        assert_eq!(gate.load(), (0, 0));
    }
}

/// The number of permits that `client_count` clients of one tenant get in 200 ms. Meanwhile another
/// tenant requests one permit at each of the times `asks`, in ms. A client holds a permit for 1 ms.
async fn served(gate: &FairGate, client_count: usize, asks: &[u64]) -> usize {
    let served = AtomicUsize::new(0);
    let client = || async {
        loop {
            let permit = gate.wait(FLOOD, 1).await;
            sleep(Duration::from_millis(1)).await;
            drop(permit);
            served.fetch_add(1, Ordering::Relaxed);
        }
    };
    let begin = Instant::now();
    let other = async {
        for millis in asks {
            sleep_until(begin + Duration::from_millis(*millis)).await;
            drop(gate.enter(OTHER, 1).await.unwrap());
            let waited = begin.elapsed().saturating_sub(Duration::from_millis(*millis));
            assert!(waited <= Duration::from_millis(2), "{waited:?}");
        }
        sleep_until(begin + Duration::from_millis(200)).await;
    };
    tokio::select! {
        _ = join_all((0..client_count).map(|_| client())) => unreachable!("they never end"),
        () = other => served.load(Ordering::Relaxed),
    }
}

#[tokio::test(start_paused = true)]
async fn burst_is_paced_beside_others_and_unlimited_alone() {
    let limits = Limits { capacity: 4, per_tenant: 4, waiting_count: 3, patience: Duration::from_secs(30) };
    let often: Vec<u64> = (0..200).step_by(7).collect();
    // Without pacing the gate grants four permits per millisecond, and with pacing four per 2 ms.
    for (client_count, asks, expected) in [
        (50, often.as_slice(), 380..=430),
        (50, &[], 780..=800),
        // The other tenant counts as active for 100 ms.
        (50, &[50], 590..=640),
        (50, &[100], 590..=640),
        // The clients are too few for a burst.
        (6, &often, 760..=800),
    ] {
        let paced = FairGate::pacing(limits, Duration::from_millis(2));
        let count = served(&paced, client_count, asks).await;
        assert!(expected.contains(&count), "{client_count} clients, {asks:?}: {count}");
        let plain = served(&FairGate::new(limits), client_count, asks).await;
        assert!((760..=800).contains(&plain), "{client_count} clients, {asks:?}: {plain} without a pace");
        assert_eq!(paced.load(), (0, 0));
    }
}

/// The number of permits that fifty clients of each of two tenants get in 200 ms. A client holds a
/// permit for 1 ms.
async fn served_both(gate: &FairGate, tenants: [Tenant; 2]) -> [usize; 2] {
    let served = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let client = async |place: usize| {
        loop {
            let permit = gate.wait(tenants[place], 1).await;
            sleep(Duration::from_millis(1)).await;
            drop(permit);
            served[place].fetch_add(1, Ordering::Relaxed);
        }
    };
    tokio::select! {
        _ = join_all((0..100).map(|number| client(number % 2))) => unreachable!("they never end"),
        () = sleep(Duration::from_millis(200)) => served.map(AtomicUsize::into_inner),
    }
}

#[tokio::test(start_paused = true)]
async fn two_bursts_are_paced_and_the_server_is_a_tenant_too() {
    let limits = Limits { capacity: 4, per_tenant: 4, waiting_count: 3, patience: Duration::from_secs(30) };
    let gate = FairGate::pacing(limits, Duration::from_millis(8));
    // Each tenant gets four of the 32 permits that are possible in 8 ms.
    let [one, other] = served_both(&gate, [FLOOD, OTHER]).await;
    assert!((95..=110).contains(&one) && (95..=110).contains(&other), "{one} and {other}");
    sleep(Duration::from_secs(1)).await;
    // The server is paced beside the third tenant. The third tenant is not paced, because the
    // server does not count as active.
    let [server, third] = served_both(&gate, [Tenant::SERVER, THIRD]).await;
    assert!((95..=110).contains(&server) && (660..=710).contains(&third), "{server} and {third}");
    assert!(gate.shared.state().queues.is_empty() && gate.shared.state().order.is_empty());
}
