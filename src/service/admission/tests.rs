use std::time::Duration;

use tokio::time::advance;

use super::{Admission, Admitted, Limits, Refusal};
use crate::runtime::fair::Tenant;

const FLOOD: Tenant = Tenant::new(1);
const OTHER: Tenant = Tenant::new(2);
const MIB_64: u64 = 64 << 20;

fn admission(count: usize, len: u64) -> Admission {
    Admission::new(Limits { count, len })
}

/// As many as are let in, up to so many, and why the next one is not.
fn fill(admission: &Admission, tenant: Tenant, count: usize) -> (Vec<Admitted<'_>>, Option<Refusal>) {
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
async fn alone_a_tenant_gets_all_but_the_last_eighth_which_is_for_who_comes_next() {
    let admission = admission(16, u64::MAX);
    let (flood, refusal) = fill(&admission, FLOOD, 99);
    assert_eq!((flood.len(), refusal), (14, Some(Refusal::AboveShare)));
    let (other, refusal) = fill(&admission, OTHER, 99);
    assert_eq!((other.len(), refusal), (2, Some(Refusal::Full)));
}

#[tokio::test(start_paused = true)]
async fn below_eight_slots_one_tenant_may_have_all_of_them_and_then_it_is_full_not_unfair() {
    let admission = admission(7, u64::MAX);
    let (flood, refusal) = fill(&admission, FLOOD, 99);
    assert_eq!((flood.len(), refusal), (7, Some(Refusal::Full)));
}

#[tokio::test(start_paused = true)]
async fn what_ends_goes_to_who_was_refused_until_both_have_their_share() {
    let admission = admission(4, u64::MAX);
    let (mut flood, _) = fill(&admission, FLOOD, 4);
    let mut other = Vec::new();
    for had in [4, 3] {
        assert_eq!(admission.admit(OTHER, 1).unwrap_err(), Refusal::Full);
        assert_eq!(admission.admit(FLOOD, 1).unwrap_err(), Refusal::AboveShare);
        assert_eq!(flood.len(), had);
        drop(flood.pop());
        // There is room, and it is not for who has more than its share.
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
