use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, advance};

use super::{Admission, Admitted, Limits, Refusal, Transfer};
use crate::runtime::fair::Tenant;

const FLOOD: Tenant = Tenant::new(1);
const OTHER: Tenant = Tenant::new(2);
const MIB_64: u64 = 64 << 20;

fn admission(count: usize, len: u64) -> Arc<Admission> {
    Admission::new(Limits { count, len })
}

/// Admits up to `count` transfers; returns them, and the refusal of the next one.
fn fill(admission: &Arc<Admission>, tenant: Tenant, count: usize) -> (Vec<Admitted>, Option<Refusal>) {
    let mut admitted = Vec::new();
    while admitted.len() < count {
        match admission.admit(tenant, MIB_64) {
            Ok(one) => admitted.push(one),
            Err(refusal) => return (admitted, Some(refusal)),
        }
    }
    (admitted, None)
}

#[tokio::test(start_paused = true)]
async fn single_tenant_gets_seven_eighths_and_the_next_the_rest() {
    let admission = admission(16, u64::MAX);
    let (flood, refusal) = fill(&admission, FLOOD, 99);
    assert_eq!((flood.len(), refusal), (14, Some(Refusal::AboveShare)));
    let (other, refusal) = fill(&admission, OTHER, 99);
    assert_eq!((other.len(), refusal), (2, Some(Refusal::Full)));
}

/// The next transfer is then refused as `Full`, not as `AboveShare`.
#[tokio::test(start_paused = true)]
async fn below_eight_slots_one_tenant_may_have_all_of_them() {
    let admission = admission(7, u64::MAX);
    let (flood, refusal) = fill(&admission, FLOOD, 99);
    assert_eq!((flood.len(), refusal), (7, Some(Refusal::Full)));
}

#[tokio::test(start_paused = true)]
async fn freed_slots_go_to_the_refused_tenant_until_shares_match() {
    let admission = admission(4, u64::MAX);
    let (mut flood, _) = fill(&admission, FLOOD, 4);
    let mut other = Vec::new();
    for had in [4, 3] {
        assert_eq!(admission.admit(OTHER, 1).unwrap_err(), Refusal::Full);
        assert_eq!(admission.admit(FLOOD, 1).unwrap_err(), Refusal::AboveShare);
        assert_eq!(flood.len(), had);
        drop(flood.pop());
        // There is capacity left, but not for tenants above their share.
        assert_eq!(admission.admit(FLOOD, 1).unwrap_err(), Refusal::AboveShare);
        other.push(admission.admit(OTHER, 1).unwrap());
    }
    assert_eq!(admission.admit(OTHER, 1).unwrap_err(), Refusal::AboveShare, "it has its share now");
    drop(flood.pop());
    let back = admission.admit(FLOOD, 1).unwrap();
    drop((flood, other, back));
    let table = admission.table();
    assert!(table.tenants.values().all(|entry| entry.usage.count == 0));
    assert_eq!((table.total.count, table.total.len), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn who_does_not_come_back_is_waited_for_half_a_minute_only() {
    let admission = admission(4, u64::MAX);
    let (mut flood, _) = fill(&admission, FLOOD, 4);
    assert_eq!(admission.admit(OTHER, 1).unwrap_err(), Refusal::Full);
    drop(flood.pop());
    advance(Duration::from_secs(29)).await;
    assert_eq!(admission.admit(FLOOD, 1).unwrap_err(), Refusal::AboveShare);
    advance(Duration::from_secs(2)).await;
    flood.push(admission.admit(FLOOD, 1).unwrap());
    assert!(!admission.table().tenants.contains_key(&OTHER), "and then forgotten");
}

#[tokio::test(start_paused = true)]
async fn bytes_count_like_uploads_and_one_upload_is_never_too_long() {
    let admission = admission(100, 8 * MIB_64);
    let (flood, refusal) = fill(&admission, FLOOD, 99);
    assert_eq!((flood.len(), refusal), (7, Some(Refusal::AboveShare)));
    let (other, refusal) = fill(&admission, OTHER, 99);
    assert_eq!((other.len(), refusal), (1, Some(Refusal::Full)));
    drop((flood, other));
    let long = admission.admit(FLOOD, 99 * MIB_64).unwrap();
    assert_eq!(admission.admit(OTHER, 1).unwrap_err(), Refusal::Full);
    drop(long);
    drop(admission.admit(OTHER, 1).unwrap());
}

#[tokio::test(start_paused = true)]
async fn more_tenants_than_slots_get_one_each() {
    let admission = admission(3, u64::MAX);
    let (flood, _) = fill(&admission, FLOOD, 3);
    for stranger in 10..20 {
        assert_eq!(admission.admit(Tenant::new(stranger), 1).unwrap_err(), Refusal::Full);
    }
    drop(flood);
    let held: Vec<_> = (10..13).map(|stranger| admission.admit(Tenant::new(stranger), 1).unwrap()).collect();
    assert_eq!(admission.admit(Tenant::new(10), 1).unwrap_err(), Refusal::AboveShare);
    drop(held);
    advance(Duration::from_secs(60)).await;
    drop(admission.admit(FLOOD, 1).unwrap());
    assert_eq!(admission.table().tenants.len(), 0, "a table of refused strangers does not grow");
}

/// Whether a transfer was cut.
fn is_cut(admitted: &Admitted) -> bool {
    admitted.transfer().cut_off().now_or_never().is_some()
}

#[tokio::test(start_paused = true)]
async fn the_slowest_above_its_share_makes_room_at_once() {
    let admission = admission(4, u64::MAX);
    let (flood, _) = fill(&admission, FLOOD, 4);
    for (admitted, len) in flood.iter().zip([4000, 1000, 2000, 3000]) {
        admitted.transfer().begin();
        admitted.transfer().moved(len);
    }
    assert_eq!(admission.admit(OTHER, 1).unwrap_err(), Refusal::Full, "they have just begun");
    advance(Duration::from_secs(6)).await;
    let first = admission.admit(OTHER, 1).unwrap();
    assert_eq!(flood.iter().map(is_cut).collect::<Vec<_>>(), [false, true, false, false]);
    let second = admission.admit(OTHER, 1).unwrap();
    assert_eq!(flood.iter().map(is_cut).collect::<Vec<_>>(), [false, true, true, false]);
    // Both have their share now.
    assert_eq!(admission.admit(OTHER, 1).unwrap_err(), Refusal::AboveShare);
    assert_eq!(admission.admit(FLOOD, 1).unwrap_err(), Refusal::AboveShare);
    assert_eq!((admission.count(), admission.len()), (4, 2 * MIB_64 + 2));
    drop(flood);
    assert_eq!(admission.count(), 2, "what was cut is given back once");
    drop((first, second));
    assert_eq!((admission.count(), admission.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_cut_that_ends_soon_or_waits_for_the_server() {
    let admission = admission(2, u64::MAX);
    let (flood, _) = fill(&admission, FLOOD, 2);
    // One will end in ten seconds at its rate, and the client's part of the other one is over.
    flood[0].transfer().begin();
    flood[1].transfer().begin();
    advance(Duration::from_secs(10)).await;
    flood[0].transfer().moved(MIB_64 / 2 + 100);
    flood[1].transfer().end();
    assert_eq!(admission.admit(OTHER, 1).unwrap_err(), Refusal::Full);
    assert!(!flood.iter().any(is_cut));
    advance(Duration::from_secs(10)).await;
    let _other = admission.admit(OTHER, 1).unwrap();
    assert_eq!(flood.iter().map(is_cut).collect::<Vec<_>>(), [true, false]);
}

#[tokio::test(start_paused = true)]
async fn as_many_are_cut_as_it_takes_and_none_in_vain() {
    let admission = admission(100, 8 * MIB_64);
    let (flood, _) = fill(&admission, FLOOD, 7);
    for admitted in &flood {
        admitted.transfer().begin();
    }
    advance(Duration::from_secs(10)).await;
    assert_eq!(admission.admit(OTHER, 6 * MIB_64).unwrap_err(), Refusal::Full, "its share is half");
    assert!(!flood.iter().any(is_cut));
    let _other = admission.admit(OTHER, 3 * MIB_64).unwrap();
    assert_eq!(flood.iter().filter(|admitted| is_cut(admitted)).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_a_transfer_has_no_use_for_is_for_others() {
    let admission = admission(100, 8 * MIB_64);
    let one = admission.admit(FLOOD, 8 * MIB_64).unwrap();
    assert_eq!(admission.admit(OTHER, MIB_64).unwrap_err(), Refusal::Full);
    one.shrink(2 * MIB_64);
    one.shrink(3 * MIB_64);
    assert_eq!((one.declared_len(), admission.len()), (2 * MIB_64, 2 * MIB_64));
    drop(admission.admit(OTHER, MIB_64).unwrap());
    drop(one);
    assert_eq!(admission.len(), 0);
}

/// A file that is sent as a whole is judged by each of its parts.
#[tokio::test(start_paused = true)]
async fn transfer_of_several_parts_can_be_slow_in_each() {
    let transfer = Transfer::default();
    transfer.begin();
    transfer.moved(MIB_64);
    advance(Duration::from_secs(10)).await;
    assert_eq!(transfer.rate_if_slow(MIB_64, Instant::now()), None);
    transfer.begin_part();
    advance(Duration::from_secs(10)).await;
    assert_eq!(transfer.rate_if_slow(MIB_64, Instant::now()), Some(0));
}

#[tokio::test(start_paused = true)]
async fn transfer_that_withholds_its_last_bytes_is_spared_once() {
    let transfer = Transfer::default();
    transfer.begin();
    transfer.moved(MIB_64 - 2000);
    for (secs, rate) in [(5, None), (10, None), (1, Some(0))] {
        advance(Duration::from_secs(secs)).await;
        assert_eq!(transfer.rate_if_slow(MIB_64, Instant::now()), rate, "{secs} s later");
    }
    // It sends again, but would take another minute for the rest.
    transfer.moved(300);
    assert_eq!(transfer.rate_if_slow(MIB_64, Instant::now()), Some(27));
    transfer.moved(1600);
    assert_eq!(transfer.rate_if_slow(MIB_64, Instant::now()), None, "100 bytes are left");
    advance(Duration::from_secs(11)).await;
    assert_eq!(transfer.rate_if_slow(MIB_64, Instant::now()), Some(0));
    transfer.begin_part();
    transfer.moved(MIB_64 - 2000);
    advance(Duration::from_secs(6)).await;
    assert_eq!(transfer.rate_if_slow(MIB_64, Instant::now()), None, "another part");
}

/// The estimate of the rate rounds down, so that it can be spared a little too early.
#[tokio::test(start_paused = true)]
async fn transfer_at_a_constant_rate_that_was_spared_is_not_cut() {
    let (transfer, len) = (Transfer::default(), 17_500);
    transfer.begin();
    advance(Duration::from_millis(5900)).await;
    transfer.moved(5900);
    assert_eq!(transfer.rate_if_slow(len, Instant::now()), None);
    advance(Duration::from_millis(11_000)).await;
    transfer.moved(11_000);
    assert_eq!(transfer.rate_if_slow(len, Instant::now()), None);
}
