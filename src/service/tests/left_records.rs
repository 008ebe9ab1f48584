//! Records that a crash or a failed long registration has left, and how the next start applies
//! them.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::{FutureExt, stream};
use tokio::task::yield_now;
use tokio::time::timeout;

use super::records::{file_of, remove, upload_as, writer, xorb_of};
use super::{Moment, Setup};
use crate::blob::records::RecordStore;
use crate::format::FileHash;
use crate::format::shard::{FileInfo, Shard, write_upload};
use crate::format::xorb::BuiltXorb;
use crate::index::{RecordIndex, UsageIndex};
use crate::runtime::fair::Tenant;
use crate::service::error::{RegisterError, StoreError};
use crate::service::permits::PATIENCE;
use crate::service::{BodyError, Limits, Quotas, ReceivedShard};

/// More files than a test registers in one transaction.
fn files(xorb: &BuiltXorb) -> Vec<FileInfo> {
    (0..5).map(|start| file_of(xorb, start, 6, None)).collect()
}

fn shard(files: &[FileInfo]) -> ReceivedShard {
    write_upload(&Shard { files: files.to_vec(), xorbs: Vec::new() }).unwrap().into()
}

/// Makes a long registration fail at this operation. If the process dies there, the record stays.
async fn register_until(setup: &Setup, xorb: &BuiltXorb, operation: &'static str, dies: bool) -> Vec<FileInfo> {
    let (server, files) = (setup.process(), files(xorb));
    upload_as(&server, "org/a", xorb).await;
    if dies {
        setup.faults.crash_at(operation, Moment::Before);
    } else {
        setup.faults.arm_at(operation, Moment::Before);
    }
    server.register(&writer("org/a"), shard(&files)).await.unwrap_err();
    assert_eq!(setup.faults.disarm(), Some(operation));
    assert_eq!(visible(setup, &files).await, 0);
    files
}

async fn visible(setup: &Setup, files: &[FileInfo]) -> usize {
    let hashes: Vec<FileHash> = files.iter().map(|file| file.hash).collect();
    setup.index.visible_files(hashes).await.unwrap().len()
}

#[tokio::test]
async fn start_applies_a_long_record_in_steps_whole_or_not_at_all() {
    let xorb = xorb_of(&[0, 1, 2, 3, 4, 5]);
    let mut failed = Vec::new();
    for moment in [Moment::Before, Moment::After] {
        for n in 0.. {
            let setup = Setup::new().await;
            let files = register_until(&setup, &xorb, "begin_registration", true).await;
            setup.faults.arm(n, moment);
            let agreed = setup.process().store.agree(false).await;
            let Some(operation) = setup.faults.disarm() else {
                agreed.unwrap();
                break;
            };
            failed.push(operation);
            let count = visible(&setup, &files).await;
            assert!(count == 0 || count == files.len(), "{count} files after {operation} failed {moment:?}");
            // The next start continues, although the interrupted one has left rows.
            let server = setup.process();
            assert!(server.store.agree(false).await.is_ok(), "after {operation} failed {moment:?}");
            assert_eq!(visible(&setup, &files).await, files.len(), "after {operation} failed {moment:?}");
            assert_eq!(server.store.agree(false).await.unwrap().applied_count, 0);
            server.store.recover().await.unwrap();
            let usage = setup.index.repo_usage("org/a".to_owned()).await.unwrap();
            assert_eq!(usage.file_count, files.len() as u64, "after {operation} failed {moment:?}");
            for file in &files {
                remove(&server, file.hash, None).await;
            }
            assert_eq!(setup.index.repo_usage("org/a".to_owned()).await.unwrap(), Default::default());
        }
    }
    for operation in
        ["begin_registration", "write_step", "publish_registration", "write_dedup_step", "sweep_registrations"]
    {
        assert!(failed.contains(&operation), "{operation} did not fail: {failed:?}");
    }
}

#[tokio::test]
async fn start_discards_an_interrupted_registration_and_repeats_it() {
    for operation in ["write_step", "publish_registration"] {
        let (setup, xorb) = (Setup::new().await, xorb_of(&[0, 1, 2, 3, 4, 5]));
        let files = register_until(&setup, &xorb, operation, true).await;
        assert_eq!(setup.process().store.agree(false).await.unwrap().applied_count, 1);
        assert_eq!(visible(&setup, &files).await, files.len());
    }
}

/// The locks last as long, so that a later change of the files does not precede this one.
#[tokio::test]
async fn outage_leaves_nothing_of_a_registration_after_it() {
    for operation in ["register", "write_step", "publish_registration"] {
        let (setup, xorb) = (Setup::new().await, xorb_of(&[0, 1, 2, 3, 4, 5]));
        let (server, files) =
            (setup.process(), if operation == "register" { files(&xorb)[..1].to_vec() } else { files(&xorb) });
        let lock = |patience| server.store.file_locks.lock_within(patience, files.iter().map(|file| file.hash));
        upload_as(&server, "org/a", &xorb).await;
        setup.faults.break_at(operation, Moment::Before);
        server.register(&writer("org/a"), shard(&files)).await.unwrap_err();
        assert_eq!(setup.record_seqs().await.len(), 1, "{operation}");
        assert!(lock(Duration::ZERO).await.is_err(), "{operation}");
        assert!(server.deleting.has_registration("org/a"), "{operation}");
        assert_eq!(setup.faults.disarm(), Some(operation));
        drop(lock(PATIENCE).await.unwrap());
        assert_eq!(setup.record_seqs().await, [], "{operation}");
        assert!(!server.deleting.has_registration("org/a"), "{operation}");
        let is_cleared = async {
            while setup.index.left_row_count().await != 0 {
                yield_now().await;
            }
        };
        timeout(PATIENCE, is_cleared).await.unwrap();
        assert_eq!(setup.index.repo_usage("org/a".to_owned()).await.unwrap(), Default::default(), "{operation}");
        assert_eq!(setup.process().store.agree(false).await.unwrap().applied_count, 0);
        assert_eq!(visible(&setup, &files).await, 0, "{operation}");
        server.register(&writer("org/a"), shard(&files)).await.unwrap();
        assert_eq!(visible(&setup, &files).await, files.len(), "{operation}");
    }
}

#[tokio::test]
async fn outage_refuses_further_changes_before_their_records() {
    let (setup, xorb) = (Setup::new().await, xorb_of(&[0, 1, 2, 3, 4, 5]));
    let (server, files) = (setup.process(), files(&xorb));
    upload_as(&server, "org/a", &xorb).await;
    server.register(&writer("org/a"), shard(&files[..1])).await.unwrap();
    // Only this question fails, so nothing else refuses the next changes.
    setup.faults.others().is_silent = true;
    setup.faults.arm_at("register", Moment::Before);
    server.register(&writer("org/a"), shard(&files[1..2])).await.unwrap_err();
    let refused = server.register(&writer("org/a"), shard(&files[2..3])).await.unwrap_err();
    assert!(matches!(refused, RegisterError::Store(StoreError::Index(_))), "{refused:?}");
    assert!(server.remove_file(&writer("org/a"), files[0].hash, None).await.is_err());
    assert!(server.lock_hub_repo("models/org/a").await.is_err());
    assert_eq!(setup.record_seqs().await.len(), 2);
    setup.faults.others().is_silent = false;
    let is_accepted = async {
        while server.register(&writer("org/a"), shard(&files)).await.is_err() {
            yield_now().await;
        }
    };
    timeout(PATIENCE, is_accepted).await.unwrap();
    assert_eq!(visible(&setup, &files).await, files.len());
}

#[tokio::test]
async fn failed_registration_leaves_nothing_in_a_running_server() {
    for operation in ["write_step", "publish_registration"] {
        let (setup, xorb) = (Setup::new().await, xorb_of(&[0, 1, 2, 3, 4, 5]));
        let files = register_until(&setup, &xorb, operation, false).await;
        // No start is needed: neither the record nor rows nor usage are left.
        assert_eq!(setup.record_seqs().await, [], "{operation}");
        assert_eq!(setup.index.left_row_count().await, 0, "{operation}");
        assert_eq!(setup.index.repo_usage("org/a".to_owned()).await.unwrap(), Default::default(), "{operation}");
        setup.process().register(&writer("org/a"), shard(&files)).await.unwrap();
        assert_eq!(visible(&setup, &files).await, files.len(), "{operation}");
    }
}

#[tokio::test]
async fn write_that_outlives_its_client_holds_the_budget() {
    let (setup, xorb) = (Setup::new().await, xorb_of(&[0, 1, 2, 3, 4, 5]));
    let (server, files) = (setup.process(), files(&xorb));
    upload_as(&server, "org/a", &xorb).await;
    let body = stream::iter([Ok::<_, BodyError>(shard(&files).bytes)]);
    let received = server.receive_shard(Tenant::new(1), None, body).await.unwrap();
    let budget = &server.permits.small_shard_budget;
    let taken = budget.load();
    assert!(taken.0 > 0);
    let held = setup.faults.hold("publish_registration");
    let claims = writer("org/a");
    let mut registering = server.register(&claims, received).boxed();
    let release = tokio::select! {
        release = held.reached() => release,
        registered = &mut registering => panic!("{registered:?} without its publication"),
    };
    // The client disconnects.
    drop(registering);
    assert_eq!(budget.load(), taken, "while its rows are written");
    drop(release);
    server.finish().await;
    assert_eq!(budget.load(), (0, 0));
    assert_eq!(visible(&setup, &files).await, files.len());
}

#[tokio::test]
async fn refused_registration_is_not_applied_by_the_next_start() {
    for moment in [Moment::Before, Moment::After] {
        let (setup, xorb) = (Setup::new().await, xorb_of(&[0, 1, 2, 3, 4, 5]));
        let limits = Limits { physical_len: Some(1), ..Limits::default() };
        let quotas = Quotas::new(limits, HashMap::new(), HashMap::new());
        let server = setup.process_limited(quotas);
        server.store.complete_records().await.unwrap();
        upload_as(&server, "org/a", &xorb).await;
        for files in [files(&xorb), vec![file_of(&xorb, 0, 1, None)]] {
            // Rolling the record back fails.
            setup.faults.arm_at("remove_record", moment);
            let refused = server.register(&writer("org/a"), shard(&files)).await;
            assert!(matches!(refused, Err(RegisterError::OverQuota(_))), "{refused:?}");
            assert_eq!(setup.faults.disarm(), Some("remove_record"));
            let left = usize::from(moment == Moment::Before);
            assert_eq!(setup.records.last().await.unwrap().iter().count(), left);
            assert_eq!(setup.process().store.agree(false).await.unwrap().applied_count, 0, "{moment:?}");
            assert_eq!(visible(&setup, &files).await, 0, "{moment:?}");
        }
    }
}
