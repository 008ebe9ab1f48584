//! The comparison of the index with the records: records left by a crash are applied, and a wrong
//! index is refused.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;

use super::records::{check_same, delete_xorb, file_of, register, remove, upload_as, writer, xorb_of};
use super::{Moment, Setup, policy_of_gc, read, upload};
use crate::blob::records::{RecordStore, Seq};
use crate::blob::{BlobKey, BlobStore};
use crate::format::StoreId;
use crate::format::shard::{Shard, write_upload};
use crate::format::xorb::BuiltXorb;
use crate::index::sqlite::SqliteIndex;
use crate::index::{
    Collect, FileIndex, ObjectIndex, ObjectSums, Reader, RecordIndex, RepairIndex, TotalsError, XorbIndex,
};
use crate::runtime::clock::Clock;
use crate::service::gc::{GcAbort, Pace};
use crate::service::{Gap, Pruning, Server};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A registration whose record is written and whose transaction is not, as after a crash between
/// the two.
pub(super) async fn register_half(setup: &Setup, xorb: &BuiltXorb) {
    let server = setup.process();
    upload_as(&server, "org/a", xorb).await;
    setup.faults.crash_at("register", Moment::Before);
    let shard = write_upload(&Shard { files: vec![file_of(xorb, 0, 2, None)], xorbs: Vec::new() }).unwrap();
    server.register(&writer("org/a"), shard.into()).await.unwrap_err();
    setup.faults.disarm().unwrap();
}

pub(super) async fn is_known(setup: &Setup, xorb: &BuiltXorb) -> bool {
    setup.index.find_file(file_of(xorb, 0, 2, None).hash, Reader::All, None).await.unwrap().is_some()
}

/// Collects and prunes once a day for 30 days.
pub(super) async fn collect_for_weeks(setup: &Setup, server: &Arc<Server>) {
    for _ in 0..30 {
        let _ = server.store.collect_garbage(policy_of_gc(), &Pace::default()).await;
        let mut pruning = Pruning::default();
        while server.store.prune_records(&mut pruning, 64).await.unwrap().is_none() {}
        setup.clock.advance(DAY);
    }
}

#[tokio::test]
async fn start_applies_the_record_that_a_crash_has_left() {
    let (setup, first, second) = (Setup::new().await, xorb_of(&[0, 1, 2]), xorb_of(&[3, 4, 5]));
    let server = setup.process();
    upload_as(&server, "org/a", &first).await;
    register(&server, "org/a", vec![file_of(&first, 0, 2, None)], &[]).await;
    register_half(&setup, &second).await;
    assert!(!is_known(&setup, &second).await);
    assert_eq!(setup.process().store.compare().await.unwrap().len(), 1);
    let agreed = setup.process().store.agree(false).await.unwrap();
    assert_eq!((agreed.is_new, agreed.applied_count), (false, 1));
    assert!(is_known(&setup, &second).await);
    assert!(setup.process().store.compare().await.unwrap().is_empty());
    assert_eq!(setup.process().store.agree(false).await.unwrap().applied_count, 0);
    // An interrupted removal is completed.
    let removed = file_of(&first, 0, 2, None).hash;
    server.store.append_removal(removed, Some("org/a".to_owned())).await.unwrap().retain();
    assert_eq!(setup.process().store.agree(false).await.unwrap().applied_count, 1);
    assert!(!is_known(&setup, &first).await && is_known(&setup, &second).await);
}

/// The registration changes nothing, so it has no record of its own.
#[tokio::test]
async fn file_that_is_pushed_again_after_a_failed_removal_stays() {
    for moment in [Moment::Before, Moment::After] {
        let (setup, xorb) = (Setup::new().await, xorb_of(&[0, 1, 2]));
        let server = setup.process();
        let file = file_of(&xorb, 0, 2, None);
        upload_as(&server, "org/a", &xorb).await;
        for repo in ["org/a", "org/b"] {
            register(&server, repo, vec![file.clone()], &[]).await;
        }
        setup.faults.arm_at("remove_claims", moment);
        server.remove_file(&writer("org/a"), file.hash, None).await.unwrap_err();
        setup.faults.disarm().unwrap();
        register(&server, "org/a", vec![file.clone()], &[]).await;
        assert_eq!(setup.index.abandoned_records().await.unwrap(), [0; 0], "{moment:?}");
        // The repository also finds it after a restart, in a rebuilt index, and without a further
        // change of the store.
        setup.process().store.agree(false).await.unwrap();
        let readers = setup.index.readers_of(file.hash).await.unwrap();
        assert_eq!(readers, [("org/a".to_owned(), false), ("org/b".to_owned(), false)], "{moment:?}");
        assert!(setup.process().store.compare().await.unwrap().is_empty(), "{moment:?}");
        check_same(&setup, &format!("{moment:?}")).await;
    }
}

#[tokio::test]
async fn a_record_whose_xorb_was_deleted_does_not_stop_a_start() {
    let (setup, retained, lost) = (Setup::new().await, xorb_of(&[0, 1, 2]), xorb_of(&[3, 4, 5]));
    let server = setup.process();
    upload_as(&server, "org/a", &retained).await;
    register(&server, "org/a", vec![file_of(&retained, 0, 2, None)], &[]).await;
    // This registration was refused because a collection was faster. Then the process died before
    // it could roll back the record.
    register_half(&setup, &lost).await;
    delete_xorb(&setup, lost.xorb().hash()).await;
    setup.process().store.agree(false).await.unwrap();
    setup.process().store.compare().await.unwrap();
    assert!(is_known(&setup, &retained).await && !is_known(&setup, &lost).await);
}

#[tokio::test]
async fn start_restores_half_deleted_xorb_of_unapplied_record() {
    let (setup, needed, garbage) = (Setup::new().await, xorb_of(&[0, 1, 2]), xorb_of(&[3, 4, 5]));
    upload_as(&setup.process(), "org/a", &garbage).await;
    register_half(&setup, &needed).await;
    let (now, xorbs) = (setup.clock.now(), vec![needed.xorb().hash(), garbage.xorb().hash()]);
    setup.index.condemn_xorbs(xorbs.clone(), now, now).await.unwrap();
    assert_eq!(setup.index.begin_deletions(xorbs, now, now).await.unwrap().len(), 2);
    let server = setup.process();
    assert_eq!(server.store.restore_half_deleted().await.unwrap(), 1);
    assert_eq!(server.store.agree(false).await.unwrap().applied_count, 1);
    assert!(is_known(&setup, &needed).await);
    // The deletion of xorbs that no record needs is completed.
    assert_eq!(server.store.recover().await.unwrap().rows, 1);
    assert!(setup.blobs.list_of(garbage.xorb().hash()).await.unwrap().is_empty());
    assert_eq!(setup.index.totals().await.unwrap().xorb_count, 1);
    assert_eq!(server.store.restore_half_deleted().await.unwrap(), 0);
}

/// A registration that lost a race against a collection, whose process then died: the record
/// exists, and the row is `Deleting`. Returns the key of the blob.
async fn delete_half(setup: &Setup, xorb: &BuiltXorb) -> BlobKey {
    register_half(setup, xorb).await;
    let (now, hash) = (setup.clock.now(), xorb.xorb().hash());
    setup.index.condemn_xorbs(vec![hash], now, now).await.unwrap();
    assert_eq!(setup.index.begin_deletions(vec![hash], now, now).await.unwrap(), [hash]);
    setup.blobs.key_of(hash)
}

async fn assert_served(setup: &Setup, xorb: &BuiltXorb) {
    assert!(is_known(setup, xorb).await);
    assert_eq!(read(&setup.process(), xorb).await.unwrap().unwrap(), xorb.bytes());
    assert_eq!(setup.index.totals_drift().await.unwrap(), TotalsError::default());
}

#[tokio::test]
async fn a_late_deletion_does_not_hit_a_restored_xorb() {
    let (setup, needed) = (Setup::new().await, xorb_of(&[0, 1, 2]));
    let former = delete_half(&setup, &needed).await;
    let server = setup.process();
    assert_eq!(server.store.restore_half_deleted().await.unwrap(), 1);
    assert_eq!(server.store.agree(false).await.unwrap().applied_count, 1);
    // The request of the process that has ended.
    setup.blobs.delete(former).await.unwrap();
    assert_served(&setup, &needed).await;
    // The former name is not lost either.
    collect_for_weeks(&setup, &server).await;
    assert_eq!(setup.blobs.list_of(needed.xorb().hash()).await.unwrap().len(), 1);
    assert_eq!(setup.index.object_sums().await.unwrap(), ObjectSums::default());
    assert_served(&setup, &needed).await;
}

#[tokio::test]
async fn a_start_that_dies_while_it_restores_a_xorb_is_repeated() {
    for n in 0.. {
        let mut died_count = 0;
        for moment in [Moment::Before, Moment::After] {
            let (setup, needed) = (Setup::new().await, xorb_of(&[0, 1, 2]));
            delete_half(&setup, &needed).await;
            setup.faults.arm(n, moment);
            died_count += usize::from(setup.process().store.restore_half_deleted().await.is_err());
            setup.faults.disarm();
            let server = setup.process();
            server.store.restore_half_deleted().await.unwrap();
            assert_eq!(server.store.agree(false).await.unwrap().applied_count, 1, "{n} {moment:?}");
            server.store.recover().await.unwrap();
            assert_served(&setup, &needed).await;
            collect_for_weeks(&setup, &server).await;
            assert_eq!(setup.blobs.list().await.unwrap().len(), 1, "{n} {moment:?}");
        }
        if died_count == 0 {
            assert!(n >= 6, "{n}");
            break;
        }
    }
}

#[tokio::test]
async fn an_interrupted_upload_of_a_deleted_xorb_is_completed() {
    let (setup, needed) = (Setup::new().await, xorb_of(&[0, 1, 2]));
    let server = setup.process();
    let former = delete_half(&setup, &needed).await;
    setup.blobs.delete(former).await.unwrap();
    setup.index.forget_xorb(needed.xorb().hash()).await.unwrap();
    // The blob of this upload is published, and its row is not.
    setup.faults.arm_at("publish_xorb", Moment::Before);
    upload(&server, &needed).await.unwrap_err();
    setup.faults.disarm().unwrap();
    assert!(matches!(setup.process().store.agree(false).await, Err(Gap::Behind { .. })));
    let server = setup.process();
    assert_eq!(server.store.restore_half_deleted().await.unwrap(), 1);
    assert_eq!(server.store.agree(false).await.unwrap().applied_count, 1);
    server.store.recover().await.unwrap();
    assert_served(&setup, &needed).await;
}

#[tokio::test]
async fn damaged_half_deleted_xorb_is_not_restored() {
    let (setup, needed) = (Setup::new().await, xorb_of(&[0, 1, 2]));
    register_half(&setup, &needed).await;
    let (now, hash) = (setup.clock.now(), needed.xorb().hash());
    setup.index.condemn_xorbs(vec![hash], now, now).await.unwrap();
    setup.index.begin_deletions(vec![hash], now, now).await.unwrap();
    setup.blobs.damage(setup.blobs.key_of(hash), "no xorb");
    assert_eq!(setup.process().store.restore_half_deleted().await.unwrap(), 0);
    // It is not deleted either. The start is refused, so that the operator decides.
    assert!(matches!(setup.process().store.agree(false).await, Err(Gap::Behind { .. })));
}

/// The records after the first one are open, as those of servers that have ended.
async fn open_later_records(setup: &Setup) -> Vec<Seq> {
    let later: Vec<Seq> = setup.record_seqs().await.split_off(1);
    setup.faults.others().open = later.iter().map(|seq| seq.number()).collect();
    later
}

/// A registered file, and then a registration and the removal of that file that were not made.
async fn with_open_records() -> (Setup, BuiltXorb, BuiltXorb) {
    let (setup, made, open) = (Setup::new().await, xorb_of(&[0, 1, 2]), xorb_of(&[3, 4, 5]));
    let server = setup.process();
    upload_as(&server, "org/a", &made).await;
    register(&server, "org/a", vec![file_of(&made, 0, 2, None)], &[]).await;
    register_half(&setup, &open).await;
    let removed = file_of(&made, 0, 2, None).hash;
    server.store.append_removal(removed, Some("org/a".to_owned())).await.unwrap().retain();
    setup.faults.share();
    (setup, made, open)
}

/// Lets a start die at each of its steps, and then starts again.
async fn start_and_die(setup: &Setup, n: usize, moment: Moment) -> bool {
    setup.faults.arm(n, moment);
    let died = setup.process().store.agree(false).await.is_err();
    setup.faults.disarm();
    setup.process().store.agree(false).await.unwrap();
    died
}

#[tokio::test]
async fn open_records_are_not_applied_whichever_step_dies() {
    let mut death_count = 0;
    for n in 0..25 {
        for moment in [Moment::Before, Moment::After] {
            let (setup, made, open) = with_open_records().await;
            let later = open_later_records(&setup).await;
            assert_eq!(later.len(), 2);
            death_count += usize::from(start_and_die(&setup, n, moment).await);
            assert!(is_known(&setup, &made).await && !is_known(&setup, &open).await, "{n} {moment:?}");
            // They stay open, because they may be stored late. The next start removes such a record.
            assert_eq!(setup.faults.others().open.len(), 2, "{n} {moment:?}");
            assert_eq!(setup.record_seqs().await.len(), 1, "{n} {moment:?}");
            assert!(setup.process().store.compare().await.unwrap().is_empty());
        }
    }
    assert!(death_count > 20, "{death_count}");
}

#[tokio::test]
async fn all_open_records_are_applied_if_the_index_was_set_back() {
    let mut death_count = 0;
    for n in 0..60 {
        for moment in [Moment::Before, Moment::After] {
            let (setup, removed, open) = with_open_records().await;
            let later = open_later_records(&setup).await;
            // The index has a change with a later number, but not those two.
            let other = xorb_of(&[6, 7, 8]);
            let server = setup.process();
            upload_as(&server, "org/a", &other).await;
            register(&server, "org/a", vec![file_of(&other, 0, 2, None)], &[]).await;
            let mark = setup.index.store_mark().await.unwrap().last_record;
            assert!(later.iter().all(|seq| Some(seq.number()) < mark));
            setup.faults.others().was_set_back = true;
            death_count += usize::from(start_and_die(&setup, n, moment).await);
            assert!(is_known(&setup, &open).await && is_known(&setup, &other).await, "{n} {moment:?}");
            assert!(!is_known(&setup, &removed).await, "{n} {moment:?}");
            assert!(setup.faults.others().open.is_empty() && !setup.faults.others().was_set_back);
            assert!(setup.process().store.compare().await.unwrap().is_empty());
        }
    }
    assert!(death_count > 20, "{death_count}");
}

/// A standby that was promoted may lack the deletion of a xorb whose blob was deleted. Its upload
/// was acknowledged, and nothing was stored.
#[tokio::test]
async fn xorb_without_blob_is_stored_again_if_the_index_was_set_back() {
    let (setup, lost, kept) = (Setup::new().await, xorb_of(&[0, 1, 2]), xorb_of(&[3, 4, 5]));
    let server = setup.process();
    for xorb in [&lost, &kept] {
        upload_as(&server, "org/a", xorb).await;
        register(&server, "org/a", vec![file_of(xorb, 0, 1, None)], &[]).await;
    }
    let blob = setup.blobs.key_of(lost.xorb().hash());
    setup.blobs.delete(blob).await.unwrap();
    setup.faults.share();
    for was_set_back in [false, true] {
        setup.faults.others().was_set_back = was_set_back;
        let server = setup.process();
        server.store.agree(false).await.unwrap();
        for (xorb, is_stored_again) in [(&lost, was_set_back), (&kept, false)] {
            assert_eq!(upload(&server, xorb).await.unwrap().was_inserted, is_stored_again, "{was_set_back}");
        }
    }
    assert_eq!(read(&setup.process(), &lost).await.unwrap().as_deref(), Some(lost.bytes()));
}

/// The removal of a file is open, and the index has applied a later registration of the file: so
/// the removal was not made, whether the index was set back or not.
#[tokio::test]
async fn open_record_before_an_applied_one_of_its_file_was_not_made() {
    let (setup, made, open) = with_open_records().await;
    let later = open_later_records(&setup).await;
    let server = setup.process();
    register(&server, "org/b", vec![file_of(&made, 0, 2, None)], &[]).await;
    assert_eq!(setup.record_seqs().await.len(), 4);
    setup.faults.others().was_set_back = true;
    assert_eq!(setup.process().store.agree(false).await.unwrap().applied_count, 1);
    assert!(is_known(&setup, &open).await);
    let repos = setup.index.readers_of(file_of(&made, 0, 2, None).hash).await.unwrap();
    assert_eq!(repos.iter().map(|(repo, _)| repo.as_str()).collect::<Vec<_>>(), ["org/a", "org/b"]);
    // It stays open, and is removed like those of other ended servers.
    assert_eq!(setup.faults.others().open, [later[1].number()].into());
}

/// An open registration is followed by an applied record of another file, and that by the removal
/// of the first file, which the index does not know.
#[tokio::test]
async fn records_of_an_index_that_was_set_back_are_applied_in_order() {
    let (setup, made, other) = (Setup::new().await, xorb_of(&[0, 1, 2]), xorb_of(&[3, 4, 5]));
    let server = setup.process();
    upload_as(&server, "org/a", &other).await;
    register(&server, "org/a", vec![file_of(&other, 0, 1, None)], &[]).await;
    register_half(&setup, &made).await;
    setup.faults.others().open = [1].into();
    register(&server, "org/a", vec![file_of(&other, 0, 2, None)], &[]).await;
    // The index knew the file when this was recorded.
    let removal = server.store.append_removal(file_of(&made, 0, 2, None).hash, Some("org/a".to_owned())).await;
    removal.unwrap().retain();
    setup.faults.share();
    setup.faults.others().was_set_back = true;
    assert_eq!(setup.process().store.agree(false).await.unwrap().applied_count, 2);
    assert!(!is_known(&setup, &made).await && is_known(&setup, &other).await);
    assert!(setup.faults.others().open.is_empty());
    // The last applied record is one of the start, which no late request removes.
    let mark = setup.index.store_mark().await.unwrap().last_record;
    assert_eq!(mark, setup.record_seqs().await.last().map(|seq| seq.number()));
    assert_eq!((mark, setup.record_seqs().await.len()), (Some(4), 5));
}

/// A request of an ended server stores a removal after the start has looked for open records.
#[tokio::test]
async fn record_that_is_stored_during_a_start_is_not_replayed() {
    let (setup, made, open) = (Setup::new().await, xorb_of(&[0, 1, 2]), xorb_of(&[3, 4, 5]));
    let server = setup.process();
    upload_as(&server, "org/a", &made).await;
    register(&server, "org/a", vec![file_of(&made, 0, 2, None)], &[]).await;
    register_half(&setup, &open).await;
    let (held, starting) = (setup.faults.hold("abandon_registrations"), setup.process());
    let store_late = async {
        let release = held.reached().await;
        setup.faults.arm_at("remove_claims", Moment::Before);
        server.remove_file(&writer("org/a"), file_of(&made, 0, 2, None).hash, None).await.unwrap_err();
        setup.faults.disarm().unwrap();
        drop(release);
    };
    let (agreed, ()) = join(starting.store.agree(false), store_late).await;
    assert_eq!(agreed.unwrap().applied_count, 1);
    assert!(is_known(&setup, &made).await && is_known(&setup, &open).await);
}

#[tokio::test]
async fn collection_retains_xorb_that_an_unapplied_record_needs() {
    let (setup, needed, garbage) = (Setup::new().await, xorb_of(&[0, 1, 2]), xorb_of(&[3, 4, 5]));
    upload_as(&setup.process(), "org/a", &garbage).await;
    register_half(&setup, &needed).await;
    collect_for_weeks(&setup, &setup.process()).await;
    let xorbs = setup.index.list_xorbs().await.unwrap();
    assert_eq!(xorbs, [needed.xorb().hash()]);
    assert_eq!(setup.process().store.agree(false).await.unwrap().applied_count, 1);
    assert!(is_known(&setup, &needed).await);
}

#[tokio::test]
async fn index_that_does_not_belong_to_the_records_is_refused() {
    let (setup, xorb) = (Setup::new().await, xorb_of(&[0, 1, 2]));
    let server = setup.process();
    upload_as(&server, "org/a", &xorb).await;
    register(&server, "org/a", vec![file_of(&xorb, 0, 2, None)], &[]).await;
    let directory = tempfile::tempdir().unwrap();
    let other = SqliteIndex::open(&directory.path().join("index.sqlite")).await.unwrap();
    let server = setup.process_with(&other);
    assert!(matches!(server.store.agree(true).await, Err(Gap::EmptyIndex)));
    assert!(matches!(server.store.compare().await, Err(Gap::EmptyIndex)));
    // The index has the right id, but is older than the first registration.
    let id = setup.records.store_id().await.unwrap().unwrap();
    other.set_store(id, None).await.unwrap();
    assert!(matches!(server.store.agree(true).await, Err(Gap::Behind { .. })));
    assert!(matches!(server.store.plan_collection(policy_of_gc()).await, Err(GcAbort::Gap(Gap::Behind { .. }))));
    other.set_store(StoreId::from_bytes([7; 16]), None).await.unwrap();
    assert!(matches!(server.store.agree(true).await, Err(Gap::OtherStore { .. })));
    assert!(matches!(server.store.compare().await, Err(Gap::OtherStore { .. })));
    // The refused comparisons have not changed the store.
    assert_eq!(setup.process().store.agree(false).await.unwrap().applied_count, 0);
    assert!(is_known(&setup, &xorb).await);
}

#[tokio::test]
async fn records_that_are_older_than_the_index_are_refused() {
    let (mut setup, xorb) = (Setup::new().await, xorb_of(&[0, 1, 2]));
    let server = setup.process();
    server.store.complete_records().await.unwrap();
    upload_as(&server, "org/a", &xorb).await;
    register(&server, "org/a", vec![file_of(&xorb, 0, 2, None)], &[]).await;
    let last = setup.records.last().await.unwrap().unwrap();
    setup.records.remove(last).await.unwrap();
    assert!(matches!(setup.process().store.compare().await, Err(Gap::RecordsMissing { seq }) if seq == last));
    // The number of the missing record is not used again.
    assert!(setup.records.append("x".into()).await.unwrap() > last);
    // Nor is it if the operator has moved the whole directory away.
    setup.records = Default::default();
    setup.process().store.agree(false).await.unwrap();
    assert!(setup.records.append("x".into()).await.unwrap() > last);
}

#[tokio::test]
async fn pruning_keeps_the_last_applied_record_and_later_ones() {
    let (setup, xorb) = (Setup::new().await, xorb_of(&[0, 1, 2]));
    let server = setup.process();
    server.store.complete_records().await.unwrap();
    upload_as(&server, "org/a", &xorb).await;
    register(&server, "org/a", vec![file_of(&xorb, 0, 2, None)], &[]).await;
    remove(&server, file_of(&xorb, 0, 2, None).hash, None).await;
    collect_for_weeks(&setup, &server).await;
    // The file and its xorb are gone. The record of the removal stays, because it is the last one
    // that the index has applied.
    assert_eq!(setup.record_seqs().await, [Seq::new(1)]);
    setup.process().store.agree(false).await.unwrap();
    // A record that the index has not applied stays, too, although its xorb is deleted.
    let other = xorb_of(&[3, 4, 5]);
    register_half(&setup, &other).await;
    setup.clock.advance(2 * DAY);
    delete_xorb(&setup, other.xorb().hash()).await;
    let mut pruning = Pruning::default();
    while server.store.prune_records(&mut pruning, 64).await.unwrap().is_none() {}
    assert_eq!(setup.record_seqs().await.len(), 2);
}

#[tokio::test]
async fn a_first_start_that_dies_between_both_ids_is_completed() {
    for n in 0..12 {
        for moment in [Moment::Before, Moment::After] {
            let mut setup = Setup::new().await;
            (setup.records, setup.index) = (Default::default(), setup.empty_index().await);
            setup.faults.arm(n, moment);
            let died = setup.process().store.agree(true).await.is_err();
            setup.faults.disarm();
            setup.process().store.agree(true).await.unwrap();
            let id = setup.records.store_id().await.unwrap();
            assert!(id.is_some() && id == setup.index.store_mark().await.unwrap().id, "{n} {moment:?} {died}");
        }
    }
}

#[tokio::test]
async fn store_without_an_id_gets_one_and_keeps_its_files() {
    let (mut setup, xorb, other) = (Setup::new().await, xorb_of(&[0, 1, 2]), xorb_of(&[3, 4, 5]));
    setup.records = Default::default();
    setup.index.tamper("UPDATE store SET store_id = NULL").await;
    let server = setup.process();
    upload_as(&server, "org/a", &xorb).await;
    register(&server, "org/a", vec![file_of(&xorb, 0, 2, None)], &[]).await;
    register_half(&setup, &other).await;
    setup.index.tamper("UPDATE store SET last_record = NULL").await;
    assert!(matches!(setup.process().store.compare().await, Err(Gap::Unidentified)));
    let agreed = setup.process().store.agree(false).await.unwrap();
    assert_eq!((agreed.is_new, agreed.applied_count), (false, 1));
    assert!(is_known(&setup, &xorb).await && is_known(&setup, &other).await);
    setup.process().store.compare().await.unwrap();
}

#[tokio::test]
async fn new_terms_that_may_roll_back_are_not_applied_at_a_start() {
    let (setup, old, new) = (Setup::new().await, xorb_of(&[0, 1, 2, 3]), xorb_of(&[1, 2]));
    let server = setup.process();
    server.store.complete_records().await.unwrap();
    upload_as(&server, "org/a", &old).await;
    upload_as(&server, "org/a", &new).await;
    register(&server, "org/a", vec![file_of(&old, 1, 3, None)], &[]).await;
    let switched = Shard { files: vec![file_of(&new, 0, 2, None)], xorbs: Vec::new() };
    let appended = server.store.append_terms(&switched, Vec::new()).await.unwrap();
    assert_eq!(setup.process().store.agree(false).await.unwrap().applied_count, 0);
    appended.roll_back().await;
    setup.process().store.compare().await.unwrap();
    // With the old xorbs deleted, the index is older than the switch.
    server.store.append_terms(&switched, Vec::new()).await.unwrap().retain();
    setup.process().store.agree(false).await.unwrap();
    setup.blobs.delete(setup.blobs.key_of(old.xorb().hash())).await.unwrap();
    assert!(matches!(setup.process().store.agree(false).await, Err(Gap::Behind { .. })));
}
