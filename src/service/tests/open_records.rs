//! Open records of one server: a later change was applied before the process died, or before the
//! transaction failed.

use std::sync::Arc;

use futures_util::future::join;

use super::agree::{collect_for_weeks, is_known, register_half};
use super::records::{check_same, file_of, register, upload_as, writer, xorb_of};
use super::{Moment, Setup};
use crate::blob::BlobStore;
use crate::blob::records::Seq;
use crate::format::FileHash;
use crate::format::shard::{Shard, write_upload};
use crate::format::xorb::BuiltXorb;
use crate::index::sqlite::SqliteIndex;
use crate::index::{Collect, RecordIndex};
use crate::runtime::clock::Clock;
use crate::service::{Gap, Server};

/// The file of a xorb in these tests.
fn hash_of(xorb: &BuiltXorb) -> FileHash {
    file_of(xorb, 0, 2, None).hash
}

/// Uploads a xorb and registers its file.
async fn add(server: &Arc<Server>, repo: &str, xorb: &BuiltXorb) {
    upload_as(server, repo, xorb).await;
    register(server, repo, vec![file_of(xorb, 0, 2, None)], &[]).await;
}

/// A removal whose record is written and whose transaction is not, as after a crash between the
/// two.
async fn remove_half(setup: &Setup, file: FileHash) {
    setup.faults.crash_at("remove_claims", Moment::Before);
    setup.process().remove_file(&writer("org/a"), file, None).await.unwrap_err();
    setup.faults.disarm().unwrap();
}

async fn open(setup: &Setup) -> Vec<u64> {
    setup.index.abandoned_records().await.unwrap()
}

/// A removal and a registration that were not made, and later changes: one that was made and one
/// that was not. Returns the xorbs of the four, in this order.
async fn overtaken() -> (Setup, [BuiltXorb; 4]) {
    let (setup, xorbs) = (Setup::new().await, [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]].map(|of| xorb_of(&of)));
    let server = setup.process();
    server.store.complete_records().await.unwrap();
    add(&server, "org/a", &xorbs[0]).await;
    remove_half(&setup, hash_of(&xorbs[0])).await;
    register_half(&setup, &xorbs[1]).await;
    add(&server, "org/a", &xorbs[2]).await;
    register_half(&setup, &xorbs[3]).await;
    assert_eq!(open(&setup).await, [1, 2]);
    assert_eq!(setup.index.store_mark().await.unwrap().last_record, Some(3));
    (setup, xorbs)
}

/// The start completes the removal. Without that, the second push of the file would change nothing
/// and have no record, and a rebuild would complete the removal after it.
#[tokio::test]
async fn file_that_is_pushed_after_an_overtaken_removal_stays() {
    let (setup, removed, later) = (Setup::new().await, xorb_of(&[0, 1, 2]), xorb_of(&[3, 4, 5]));
    let server = setup.process();
    server.store.complete_records().await.unwrap();
    add(&server, "org/a", &removed).await;
    register(&server, "org/b", vec![file_of(&removed, 0, 2, None)], &[]).await;
    remove_half(&setup, hash_of(&removed)).await;
    add(&server, "org/a", &later).await;
    let restarted = setup.process();
    restarted.store.agree(false).await.unwrap();
    add(&restarted, "org/a", &removed).await;
    let readers = setup.index.readers_of(hash_of(&removed)).await.unwrap();
    assert_eq!(readers, [("org/a".to_owned(), false), ("org/b".to_owned(), false)]);
    check_same(&setup, "pushed again").await;
}

#[tokio::test]
async fn start_that_dies_at_any_step_settles_open_records() {
    let mut died_count = 0;
    for n in 0.. {
        let mut has_died = false;
        for moment in [Moment::Before, Moment::After] {
            let (setup, xorbs) = overtaken().await;
            setup.faults.arm(n, moment);
            has_died |= setup.process().store.agree(false).await.is_err();
            let case = format!("{n} {moment:?} {:?}", setup.faults.disarm());
            setup.process().store.agree(false).await.unwrap();
            let mut known = Vec::new();
            for xorb in &xorbs {
                known.push(is_known(&setup, xorb).await);
            }
            assert_eq!(known, [false, true, true, true], "{case}");
            assert_eq!(open(&setup).await, [0; 0], "{case}");
            assert_eq!(setup.index.store_mark().await.unwrap().last_record, Some(4), "{case}");
            assert_eq!(setup.process().store.agree(false).await.unwrap().applied_count, 0, "{case}");
            assert!(setup.process().store.compare().await.unwrap().is_empty(), "{case}");
            check_same(&setup, &case).await;
        }
        if !has_died {
            break;
        }
        died_count += 1;
    }
    assert!(died_count > 20, "{died_count}");
}

/// The index is a copy from before a registration whose number is lower than that of the last
/// applied record. The registration was acknowledged after the copy.
#[tokio::test]
async fn older_copy_of_the_index_gets_what_was_open_then() {
    let (mut setup, overtaken, later) = (Setup::new().await, xorb_of(&[0, 1, 2]), xorb_of(&[3, 4, 5]));
    let server = setup.process();
    server.store.complete_records().await.unwrap();
    for xorb in [&overtaken, &later] {
        upload_as(&server, "org/a", xorb).await;
    }
    let copy = setup.directory.path().join("copy.sqlite");
    let held = setup.faults.hold("register");
    let copying = async {
        let release = held.reached().await;
        register(&server, "org/a", vec![file_of(&later, 0, 2, None)], &[]).await;
        assert_eq!(open(&setup).await, [0]);
        setup.index.tamper(&format!("VACUUM INTO '{}'", copy.display())).await;
        drop(release);
    };
    join(register(&server, "org/a", vec![file_of(&overtaken, 0, 2, None)], &[]), copying).await;
    assert_eq!(open(&setup).await, [0; 0]);
    setup.index = SqliteIndex::open(&copy).await.unwrap();
    assert!(!is_known(&setup, &overtaken).await);
    assert_eq!(setup.process().store.agree(false).await.unwrap().applied_count, 1);
    assert!(is_known(&setup, &overtaken).await && is_known(&setup, &later).await);
    check_same(&setup, "up to date").await;
}

#[tokio::test]
async fn transaction_that_fails_leaves_no_record() {
    for moment in [Moment::Before, Moment::After] {
        let (setup, xorb, later) = (Setup::new().await, xorb_of(&[0, 1, 2]), xorb_of(&[3, 4, 5]));
        let server = setup.process();
        server.store.complete_records().await.unwrap();
        upload_as(&server, "org/a", &xorb).await;
        setup.faults.arm_at("register", moment);
        let shard = write_upload(&Shard { files: vec![file_of(&xorb, 0, 2, None)], xorbs: Vec::new() }).unwrap();
        server.register(&writer("org/a"), shard.into()).await.unwrap_err();
        setup.faults.disarm().unwrap();
        let was_made = moment == Moment::After;
        assert_eq!(setup.record_seqs().await.len(), usize::from(was_made));
        assert_eq!(is_known(&setup, &xorb).await, was_made);
        add(&server, "org/a", &later).await;
        assert_eq!(open(&setup).await, [0; 0], "the removed record is not open");
        assert_eq!(setup.process().store.agree(false).await.unwrap().applied_count, 0);
        check_same(&setup, &format!("{moment:?}")).await;
    }
}

/// A later applied change of the same file proves that the removal was not made, also in an older
/// copy of the index.
#[tokio::test]
async fn open_removal_before_an_applied_claim_is_not_applied() {
    let (setup, xorb) = (Setup::new().await, xorb_of(&[0, 1, 2]));
    let server = setup.process();
    server.store.complete_records().await.unwrap();
    add(&server, "org/a", &xorb).await;
    server.store.append_removal(hash_of(&xorb), Some("org/a".to_owned())).await.unwrap().retain();
    register(&server, "org/b", vec![file_of(&xorb, 0, 2, None)], &[]).await;
    assert_eq!(open(&setup).await, [1]);
    assert_eq!(setup.process().store.agree(false).await.unwrap().applied_count, 0);
    assert_eq!(setup.index.readers_of(hash_of(&xorb)).await.unwrap().len(), 2);
    assert_eq!(open(&setup).await, [0; 0]);
    assert_eq!(setup.record_seqs().await.len(), 3, "the record stays");
}

/// A compaction by a command takes no lock of the server, so it may overtake a removal of its file.
#[tokio::test]
async fn removal_that_a_compaction_has_overtaken_is_completed() {
    let (setup, xorb) = (Setup::new().await, xorb_of(&[0, 1, 2]));
    let server = setup.process();
    server.store.complete_records().await.unwrap();
    add(&server, "org/a", &xorb).await;
    remove_half(&setup, hash_of(&xorb)).await;
    let switched = Shard { files: vec![file_of(&xorb, 0, 2, None)], xorbs: Vec::new() };
    let terms = server.store.append_terms(&switched, Vec::new()).await.unwrap();
    setup.index.take_records(vec![terms.number()]).await.unwrap();
    terms.retain();
    assert_eq!(open(&setup).await, [1]);
    let restarted = setup.process();
    assert_eq!(restarted.store.agree(false).await.unwrap().applied_count, 1);
    assert!(!is_known(&setup, &xorb).await);
    add(&restarted, "org/a", &xorb).await;
    check_same(&setup, "pushed again").await;
}

#[tokio::test]
async fn damaged_open_record_is_left_and_the_others_are_applied() {
    let (setup, xorbs) = overtaken().await;
    setup.records.damage(Seq::new(2), vec![0]);
    assert_eq!(setup.process().store.agree(false).await.unwrap().applied_count, 2);
    assert!(!is_known(&setup, &xorbs[0]).await && is_known(&setup, &xorbs[3]).await);
    assert_eq!(setup.index.store_mark().await.unwrap().left, [2]);
    assert_eq!(open(&setup).await, [0; 0]);
}

#[tokio::test]
async fn xorb_of_an_open_record_is_retained_and_restored() {
    let (setup, xorbs) = overtaken().await;
    collect_for_weeks(&setup, &setup.process()).await;
    // A collection has condemned the xorb before the crash, and then deletes it.
    let (now, hash) = (setup.clock.now(), xorbs[1].xorb().hash());
    setup.index.condemn_xorbs(vec![hash], now, now).await.unwrap();
    assert_eq!(setup.index.begin_deletions(vec![hash], now, now).await.unwrap(), [hash]);
    let server = setup.process();
    assert_eq!(server.store.restore_half_deleted().await.unwrap(), 1);
    assert_eq!(server.store.agree(false).await.unwrap().applied_count, 3);
    server.store.recover().await.unwrap();
    assert!(is_known(&setup, &xorbs[1]).await && is_known(&setup, &xorbs[3]).await);
    check_same(&setup, "restored").await;
}

/// If the old xorbs are deleted, the index is a copy from before the switch.
#[tokio::test]
async fn index_before_an_overtaken_switch_must_be_rebuilt() {
    let (setup, old, new) = (Setup::new().await, xorb_of(&[0, 1, 2, 3]), xorb_of(&[1, 2]));
    let server = setup.process();
    server.store.complete_records().await.unwrap();
    for xorb in [&old, &new] {
        upload_as(&server, "org/a", xorb).await;
    }
    register(&server, "org/a", vec![file_of(&old, 1, 3, None)], &[]).await;
    let switched = Shard { files: vec![file_of(&new, 0, 2, None)], xorbs: Vec::new() };
    for is_deleted in [false, true] {
        server.store.append_terms(&switched, Vec::new()).await.unwrap().retain();
        let other = xorb_of(&[20 + u32::from(is_deleted), 30, 31]);
        add(&server, "org/a", &other).await;
        assert_eq!(open(&setup).await.len(), 1);
        if is_deleted {
            setup.blobs.delete(setup.blobs.key_of(old.xorb().hash())).await.unwrap();
            assert!(matches!(setup.process().store.agree(false).await, Err(Gap::Behind { .. })));
        } else {
            setup.process().store.agree(false).await.unwrap();
            assert_eq!(open(&setup).await, [0; 0]);
        }
    }
}
