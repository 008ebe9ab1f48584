//! A start with an index that was set back, as that of a promoted standby that lacks the last
//! changes.

use std::fs;

use super::records::{delete_xorb, file_of, register, upload_as, xorb_of};
use super::{Faults, Moment, Setup, read, upload};
use crate::blob::{BlobKey, BlobStore};
use crate::format::xorb::BuiltXorb;
use crate::index::sqlite::SqliteIndex;
use crate::index::{Collect, FileIndex, HealthIndex, ObjectIndex, Reader, RepairIndex, TotalsError, XorbIndex};
use crate::runtime::clock::Clock;

/// The index as it is now.
async fn copy_of_index(setup: &Setup) -> SqliteIndex {
    let path = |name: &str| setup.directory.path().join(name);
    for suffix in ["", "-wal"] {
        fs::copy(path(&format!("index.sqlite{suffix}")), path(&format!("older.sqlite{suffix}"))).unwrap();
    }
    SqliteIndex::open(&path("older.sqlite")).await.unwrap()
}

/// A store whose index was set back, with the xorbs that were acknowledged. The last one has no
/// file. The first two are damaged in the copy of the index; that of the second one has the name of
/// the blob that has repaired it.
async fn set_back() -> (Setup, Vec<BuiltXorb>) {
    let mut setup = Setup::new().await;
    let (server, now) = (setup.process(), setup.clock.now());
    let xorbs: Vec<BuiltXorb> = (0..7).map(|n| xorb_of(&[10 * n, 10 * n + 1, 10 * n + 2])).collect();
    let [damaged, repaired, garbage, deleting, staged, _new, without_file] = &xorbs[..] else { unreachable!() };
    for xorb in [damaged, repaired, garbage, deleting] {
        upload_as(&server, "org/a", xorb).await;
    }
    for xorb in [damaged, repaired] {
        let seen = setup.index.find_health(xorb.xorb().hash()).await.unwrap().unwrap();
        assert!(setup.index.mark_damaged(seen, now).await.unwrap());
    }
    let hash = deleting.xorb().hash();
    setup.index.condemn_xorbs(vec![hash], now, now).await.unwrap();
    assert_eq!(setup.index.begin_deletions(vec![hash], now, now).await.unwrap(), [hash]);
    setup.faults.arm_at("publish_xorb", Moment::Before);
    upload(&server, staged).await.unwrap_err();
    setup.faults.disarm().unwrap();
    let held = setup.faults.hold("replace_xorb");
    let copying = async {
        let release = held.reached().await;
        let older = copy_of_index(&setup).await;
        drop(release);
        older
    };
    let (stored, older) = tokio::join!(upload(&server, repaired), copying);
    assert!(stored.unwrap().was_inserted);

    // What the copy lacks: deletions, and uploads of all.
    setup.blobs.delete(setup.blobs.key_of(hash)).await.unwrap();
    assert!(setup.index.forget_xorb(hash).await.unwrap());
    assert!(delete_xorb(&setup, garbage.xorb().hash()).await);
    for xorb in &xorbs {
        upload_as(&server, "org/a", xorb).await;
        if xorb.xorb().hash() != without_file.xorb().hash() {
            assert!(register(&server, "org/a", vec![file_of(xorb, 0, 2, None)], &[]).await);
        }
        let current = setup.index.incarnation_of(xorb.xorb().hash()).await.unwrap().unwrap();
        for blob in setup.blobs.list_of(xorb.xorb().hash()).await.unwrap() {
            if blob.incarnation() != current {
                setup.blobs.delete(blob).await.unwrap();
            }
        }
    }
    setup.index = older;
    setup.faults.share();
    setup.faults.others().was_set_back = true;
    (setup, xorbs)
}

/// Starts, and checks that all is served, also after late deletions of the names from before.
async fn check_start(setup: &Setup, xorbs: &[BuiltXorb], former: Vec<BlobKey>, case: &str) {
    let server = setup.process();
    server.store.agree(false).await.unwrap();
    server.store.recover().await.unwrap();
    for blob in former {
        setup.blobs.delete(blob).await.unwrap();
    }
    for (number, xorb) in xorbs.iter().enumerate() {
        let found = setup.index.find_file(file_of(xorb, 0, 2, None).hash, Reader::All, None).await.unwrap();
        assert_eq!(found.is_some(), number < 6, "{number}, {case}");
        assert_eq!(read(&server, xorb).await.unwrap().as_deref(), Some(xorb.bytes()), "{number}, {case}");
        assert!(!upload(&server, xorb).await.unwrap().was_inserted, "{number}, {case}");
    }
    assert_eq!(setup.index.totals_drift().await.unwrap(), TotalsError::default(), "{case}");
    let names = setup.blobs.list().await.unwrap();
    let names = names.iter().map(|blob| (blob.xorb_hash(), blob.incarnation())).collect();
    assert_eq!(setup.index.unknown_names(names).await.unwrap(), [], "{case}");
    assert!(setup.process().store.compare().await.unwrap().is_empty(), "{case}");
}

#[tokio::test]
async fn index_that_was_set_back_serves_all_that_was_acknowledged() {
    let (setup, xorbs) = set_back().await;
    let former = setup.blobs.list().await.unwrap();
    assert_eq!(former.len(), xorbs.len());
    check_start(&setup, &xorbs, former, "whole").await;
    // Each has one blob, and the copied ones have no other name.
    assert_eq!(setup.blobs.list().await.unwrap().len(), xorbs.len());
    assert!(!setup.faults.others().was_set_back);
}

/// A start that dies at an operation, and the next one. Returns whether it died.
async fn start_twice(arm: impl FnOnce(&Faults), case: &str) -> bool {
    let (setup, xorbs) = set_back().await;
    let former = setup.blobs.list().await.unwrap();
    arm(&setup.faults);
    let agreed = setup.process().store.agree(false).await;
    let died = setup.faults.disarm();
    if died.is_none() {
        agreed.unwrap();
    }
    check_start(&setup, &xorbs, former, &format!("{case}: {died:?}")).await;
    died.is_some()
}

#[tokio::test]
async fn start_that_dies_after_an_index_was_set_back_is_repeated() {
    for moment in [Moment::Before, Moment::After] {
        for name in ["begin_object", "publish", "replace_xorb", "restore_xorb", "adopt_xorb", "mark_object_dead"] {
            let case = format!("{name} {moment:?}");
            assert!(start_twice(|faults| faults.arm_at(name, moment), &case).await, "{case}");
        }
        let mut n = 0;
        while cfg!(feature = "full-tests") && start_twice(|faults| faults.arm(n, moment), &format!("{n}")).await {
            n += 1;
        }
    }
}

#[tokio::test]
async fn unsound_blob_is_not_adopted() {
    let (setup, xorbs) = set_back().await;
    let (new, other) = (xorbs[5].xorb().hash(), xorbs[6].xorb().hash());
    setup.blobs.damage(setup.blobs.key_of(other), xorbs[6].bytes()[1..].to_vec());
    let server = setup.process();
    server.store.agree(false).await.unwrap();
    assert!(server.store.find(other).await.unwrap().is_none());
    assert!(server.store.find(new).await.unwrap().is_some());
    assert!(upload(&server, &xorbs[6]).await.unwrap().was_inserted);
}
