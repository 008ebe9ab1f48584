//! Deleted and retained xorbs, and the order of deletions: garbage, aborts, and a fault in every
//! operation.

use std::sync::Arc;
use std::time::Duration;

use super::claims::{File, writer};
use super::{Moment, Setup, read, upload, xorb};
use crate::blob::{BlobKey, BlobStore};
use crate::format::compression::Policy as Compression;
use crate::format::xorb::BuiltXorb;
use crate::index::{Collect, Ticket, XorbIndex, XorbState};
use crate::runtime::clock::{Clock, ManualClock, Timestamp};
use crate::service::access::{Claims, RepoScope};
use crate::service::gc::compact::MinLive;
use crate::service::gc::{Action, Collected, GcAbort, MIN_CONDEMNED, MIN_GRACE, Pace, Policy, PolicyError};
use crate::service::{Form, ReadError, RemoveError, Server, UploadError};

const DAY: Duration = Duration::from_secs(24 * 3600);

const MILLI: Duration = Duration::from_millis(1);

fn policy() -> Policy {
    Policy::new(MIN_GRACE, DAY).unwrap()
}

async fn collect(server: &Arc<Server>) -> Collected {
    let collected = server.store.collect_garbage(policy(), &Pace::default()).await.unwrap();
    assert!(collected.failure.is_none() && !collected.is_stopped, "{collected:?}");
    collected
}

/// Collects; returns the numbers of condemned and deleted xorbs.
async fn counts(server: &Arc<Server>) -> (u64, u64) {
    let collected = collect(server).await;
    (collected.condemned.count, collected.deleted.count)
}

async fn actions(server: &Arc<Server>) -> Vec<Action> {
    server.store.plan_collection(policy()).await.unwrap().xorbs().iter().map(|xorb| xorb.action).collect()
}

async fn stored(text: &str, server: &Arc<Server>) -> BuiltXorb {
    let xorb = xorb(text, Compression::Lz4);
    upload(server, &xorb).await.unwrap();
    xorb
}

/// A condemned xorb is readable during that day.
#[tokio::test]
async fn garbage_is_condemned_after_grace_then_deleted_after_a_day() {
    let setup = Setup::new().await;
    let server = setup.process();
    let garbage = stored("garbage", &server).await;
    let file = File::upload("file", &server).await;
    file.register(&server, "org/a", file.sha256).await.unwrap();
    let born = setup.clock.now();
    setup.clock.advance(MIN_GRACE - MILLI);
    assert_eq!(counts(&server).await, (0, 0));
    setup.clock.advance(MILLI);
    assert_eq!(actions(&server).await, [Action::Condemn { idle_since: born }]);
    assert_eq!(counts(&server).await, (1, 0));
    let condemned_since = setup.clock.now();
    setup.clock.advance(DAY - MILLI);
    let plan = server.store.plan_collection(policy()).await.unwrap();
    assert_eq!((plan.xorbs(), plan.retained().condemned.count, plan.retained().referenced.count), (&[][..], 1, 1));
    assert_eq!(plan.freed_later().serialized_len, garbage.bytes().len() as u64);
    assert_eq!(read(&server, &garbage).await.unwrap().as_deref(), Some(garbage.bytes()));
    setup.clock.advance(MILLI);
    assert_eq!(actions(&server).await, [Action::Delete { condemned_since }]);
    let collected = collect(&server).await;
    assert_eq!((collected.deleted.count, collected.deleted.serialized_len), (1, garbage.bytes().len() as u64));
    assert_eq!(read(&server, &garbage).await.unwrap(), None);
    assert_eq!(setup.blobs.list().await.unwrap(), [file.key(&setup)]);
    assert_eq!(counts(&server).await, (0, 0));
    assert!(upload(&server, &garbage).await.unwrap().was_inserted);
    assert_eq!(read(&server, &garbage).await.unwrap().as_deref(), Some(garbage.bytes()));
}

#[tokio::test]
async fn touched_xorb_stays_for_the_grace_period() {
    for touch in 0..4 {
        let setup = Setup::new().await;
        let server = setup.process();
        let file = File::upload("file", &server).await;
        setup.clock.advance(MIN_GRACE);
        assert_eq!(counts(&server).await, (1, 0));
        match touch {
            0 => assert!(!upload(&server, &file.xorb).await.unwrap().was_inserted),
            1 => assert!(server.renew(&Claims::UNRESTRICTED, file.xorb.xorb().hash()).await.unwrap()),
            2 => {
                file.register(&server, "org/a", file.sha256).await.unwrap();
                assert_eq!(counts(&server).await, (0, 0));
                server.remove_file(&writer("org/a"), file.hash, None).await.unwrap();
            }
            _ => {
                // The xorb is touched when its last reference is deleted, however late that is.
                file.register(&server, "org/a", file.sha256).await.unwrap();
                setup.clock.advance(MIN_GRACE * 3);
                server.remove_file(&Claims::UNRESTRICTED, file.hash, None).await.unwrap();
            }
        }
        setup.clock.advance(MIN_GRACE - MILLI);
        assert_eq!(counts(&server).await, (0, 0), "touch {touch}");
        setup.clock.advance(MILLI);
        assert_eq!(counts(&server).await, (1, 0), "touch {touch}");
        setup.clock.advance(DAY);
        assert_eq!(counts(&server).await, (0, 1), "touch {touch}");
        assert_eq!(setup.blobs.list().await.unwrap(), []);
    }
}

#[tokio::test]
async fn dedup_response_keeps_its_xorb_until_its_key_expires() {
    let setup = Setup::new().await;
    let server = setup.process();
    let file = File::upload("file", &server).await;
    let all = Claims { repo: RepoScope::All, ..writer("org/a") };
    file.register(&server, "org/a", file.sha256).await.unwrap();
    server.remove_file(&writer("org/a"), file.hash, None).await.unwrap();
    setup.clock.advance(MIN_GRACE - MILLI);
    let chunk = file.xorb.xorb().chunk_hashes()[0];
    assert!(server.dedup_response(&all, chunk).await.unwrap().is_some());
    // The lease is an hour longer than the response is used, so that others need none meanwhile.
    let lease = MIN_GRACE + Duration::from_secs(3600);
    setup.clock.advance(lease - MILLI);
    let plan = server.store.plan_collection(policy()).await.unwrap();
    assert_eq!((plan.xorbs().len(), plan.retained().leased.count), (0, 1));
    setup.clock.advance(MILLI);
    assert_eq!(counts(&server).await, (1, 0));
    // A condemned xorb is leased again, and retained for as long.
    assert!(server.dedup_response(&all, chunk).await.unwrap().is_some());
    setup.clock.advance(lease - MILLI);
    assert_eq!(counts(&server).await, (0, 0));
    setup.clock.advance(MILLI);
    assert_eq!(counts(&server).await, (1, 0));
    setup.clock.advance(DAY);
    assert_eq!(counts(&server).await, (0, 1));
    assert_eq!(server.dedup_response(&all, chunk).await.unwrap(), None);
}

#[tokio::test]
async fn old_plan_spares_xorbs_that_were_used_since() {
    let setup = Setup::new().await;
    let server = setup.process();
    let condemned = [File::upload("a", &server).await, File::upload("b", &server).await];
    setup.clock.advance(MIN_GRACE);
    assert_eq!(counts(&server).await, (2, 0));
    let live = [File::upload("c", &server).await, File::upload("d", &server).await];
    setup.clock.advance(MIN_GRACE);
    let plan = server.store.plan_collection(policy()).await.unwrap();
    assert_eq!(plan.xorbs().len(), 4);
    // One of each is registered or requested after the plan was made.
    condemned[0].register(&server, "org/a", condemned[0].sha256).await.unwrap();
    assert!(server.renew(&Claims::UNRESTRICTED, live[0].xorb.xorb().hash()).await.unwrap());
    let collected = server.store.collect(plan.clone(), &Pace::default()).await;
    assert_eq!((collected.condemned.count, collected.deleted.count, collected.spared), (1, 1, 2));
    assert_eq!(read(&server, &condemned[0].xorb).await.unwrap().as_deref(), Some(condemned[0].xorb.bytes()));
    assert_eq!(setup.blobs.list().await.unwrap().len(), 3);
    // The same plan once more finds nothing to do, and deletes nothing.
    upload(&server, &condemned[1].xorb).await.unwrap();
    let again = server.store.collect(plan, &Pace::default()).await;
    assert_eq!((again.condemned.count, again.deleted.count, again.spared), (0, 0, 4));
    assert_eq!(setup.blobs.list().await.unwrap().len(), 4);
}

/// The clocks of two servers of one store differ by some seconds.
#[tokio::test]
async fn time_of_another_server_aborts_no_collection() {
    let (setup, seconds) = (Setup::new().await, Duration::from_secs);
    let server = setup.process();
    let now = setup.clock.now();
    setup.clock.advance(seconds(90));
    stored("touched by the other one", &server).await;
    setup.index.record_collection(setup.clock.now()).await.unwrap();
    setup.clock.set(now);
    assert!(matches!(server.store.plan_collection(policy()).await, Err(GcAbort::Clock { .. })));
    setup.faults.share();
    let collected = server.store.collect_garbage(policy(), &Pace::default()).await.unwrap();
    assert!(collected.failure.is_none() && !collected.is_stopped, "{collected:?}");
    server.store.plan_compaction(policy(), MinLive::new(0.5).unwrap()).await.unwrap();
    setup.clock.set(Timestamp::from_millis(now.as_millis() - 1));
    assert!(matches!(server.store.plan_collection(policy()).await, Err(GcAbort::Clock { .. })));
    // Its time counts as it is: nothing is deleted early.
    setup.clock.set(now);
    setup.clock.advance(MIN_GRACE);
    assert!(actions(&server).await.is_empty());
    setup.clock.advance(seconds(90));
    assert_eq!(actions(&server).await.len(), 1);
}

#[tokio::test]
async fn aborted_collection_condemns_and_deletes_nothing() {
    let statements = [
        // The references of a file are lost, so its xorb looks like garbage.
        "DELETE FROM xorb_files",
        "UPDATE file_terms SET terms = zeroblob(44)",
        "DELETE FROM files",
        "UPDATE xorbs SET since = -1",
        "UPDATE xorbs SET lease_until = -1",
        "UPDATE visibility SET collected_at = 9000000000000",
    ];
    for sql in statements {
        let setup = Setup::new().await;
        let server = setup.process();
        stored("garbage", &server).await;
        let file = File::upload("file", &server).await;
        file.register(&server, "org/a", file.sha256).await.unwrap();
        setup.clock.advance(MIN_GRACE * 2);
        assert_eq!(actions(&server).await.len(), 1, "{sql}");
        setup.index.corrupt(sql).await;
        let abort = server.store.collect_garbage(policy(), &Pace::default()).await.unwrap_err();
        match sql {
            "DELETE FROM xorb_files" => assert!(matches!(abort, GcAbort::Reference { .. }), "{abort:?}"),
            _ if sql.starts_with("UPDATE visibility") => assert!(matches!(abort, GcAbort::Clock { .. }), "{abort:?}"),
            _ => assert!(matches!(abort, GcAbort::Store(_)), "{sql}: {abort:?}"),
        }
        assert_eq!(server.store.metrics.collection.aborted.get(), 1);
        assert_eq!(setup.blobs.list().await.unwrap().len(), 2, "{sql}");
        assert_eq!(setup.index.unfinished_xorbs().await.unwrap(), [], "{sql}");
        assert_eq!(setup.index.totals().await.unwrap().xorb_count, 2);
    }
}

#[tokio::test]
async fn clock_set_back_collects_nothing_until_it_catches_up() {
    let mut setup = Setup::new().await;
    stored("garbage", &setup.process()).await;
    setup.clock.advance(MIN_GRACE);
    let later = setup.clock.now();
    assert_eq!(counts(&setup.process()).await, (1, 0));
    let plan = setup.process().store.plan_collection(policy()).await.unwrap();
    setup.clock = ManualClock::new(Timestamp::from_millis(later.as_millis() - 1)).into();
    let server = setup.process();
    assert!(matches!(server.store.plan_collection(policy()).await, Err(GcAbort::Clock { .. })));
    assert!(server.store.collect(plan, &Pace::default()).await.deleted.count == 0);
    setup.clock.advance(MILLI);
    assert_eq!(counts(&server).await, (0, 0));
}

#[test]
fn policy_with_too_short_times_is_refused() {
    assert_eq!(Policy::new(MIN_GRACE - Duration::from_secs(1), DAY), Err(PolicyError));
    assert_eq!(Policy::new(MIN_GRACE, MIN_CONDEMNED - Duration::from_secs(1)), Err(PolicyError));
    assert!(Policy::new(MIN_GRACE, MIN_CONDEMNED).is_ok());
}

#[tokio::test]
async fn leftovers_of_uploads_and_deletions_are_removed_when_old() {
    let setup = Setup::new().await;
    let server = setup.process();
    let (staged, deleting) = (xorb("staged", Compression::Lz4), xorb("deleting", Compression::Lz4));
    setup.faults.arm_at("publish_xorb", Moment::Before);
    upload(&server, &staged).await.unwrap_err();
    setup.faults.disarm();
    setup.index.stage_xorb(deleting.xorb().hash(), Ticket::random(), setup.clock.now()).await.unwrap();
    setup.index.abandon_xorb(deleting.xorb().hash(), setup.clock.now()).await.unwrap();
    assert_eq!(setup.blobs.list().await.unwrap(), [setup.blobs.key_of(staged.xorb().hash())]);
    setup.clock.advance(DAY - MILLI);
    assert_eq!(counts(&server).await, (0, 1));
    assert_eq!(setup.index.unfinished_xorbs().await.unwrap(), [(staged.xorb().hash(), XorbState::Staged)]);
    setup.clock.advance(MILLI);
    assert_eq!(counts(&server).await, (0, 1));
    assert_eq!(setup.index.unfinished_xorbs().await.unwrap(), []);
    assert_eq!(setup.blobs.list().await.unwrap(), []);
}

/// The server still has the layout of the xorb in its cache.
#[tokio::test]
async fn xorb_deleted_by_another_process_can_be_uploaded_again() {
    let setup = Setup::new().await;
    let (server, command) = (setup.process(), setup.process());
    let xorb = stored("garbage", &server).await;
    assert!(server.store.find(xorb.xorb().hash()).await.unwrap().is_some(), "now it is in memory");
    setup.clock.advance(MIN_GRACE);
    assert_eq!(counts(&command).await, (1, 0));
    setup.clock.advance(DAY);
    assert_eq!(counts(&command).await, (0, 1));
    // The first upload was not written, since the xorb seemed to be stored. The second one is.
    assert!(matches!(upload(&server, &xorb).await, Err(UploadError::BeingDeleted { .. })));
    assert!(upload(&server, &xorb).await.unwrap().was_inserted);
    assert_eq!(read(&server, &xorb).await.unwrap().as_deref(), Some(xorb.bytes()));
}

#[tokio::test]
async fn layout_of_xorb_deleted_by_another_process_is_forgotten() {
    for is_told in [true, false] {
        let setup = Setup::new().await;
        let (server, command) = (setup.process(), setup.process());
        let xorb = stored("garbage", &server).await;
        let hash = xorb.xorb().hash();
        let found = server.store.find(hash).await.unwrap().unwrap();
        let seen = Some(server.store.forget_hidden(None).await.unwrap());
        setup.clock.advance(MIN_GRACE);
        collect(&command).await;
        assert_eq!(Some(server.store.forget_hidden(seen).await.unwrap()), seen, "condemned xorbs are visible");
        assert!(server.store.find(hash).await.unwrap().is_some());
        setup.clock.advance(DAY);
        collect(&command).await;
        if is_told {
            assert_ne!(Some(server.store.forget_hidden(seen).await.unwrap()), seen);
        } else {
            // The first reader detects the deletion.
            let bytes = crate::format::ByteRange::new(0, 1).unwrap();
            let missing = server.store.read(&found, Form::Serialized, bytes).await.err();
            assert!(matches!(missing, Some(ReadError::Deleted { .. })), "{missing:?}");
        }
        assert!(server.store.find(hash).await.unwrap().is_none());
        assert!(!server.renew(&Claims::UNRESTRICTED, hash).await.unwrap());
    }
}

#[tokio::test]
async fn file_is_removed_only_by_repositories_that_have_it() {
    let setup = Setup::new().await;
    let server = setup.process();
    let file = File::upload("file", &server).await;
    let all_repos = Claims { repo: RepoScope::All, ..writer("org/a") };
    for claims in [writer("org/a"), writer("org/b"), all_repos.clone()] {
        let shard = file.shard(None);
        server.register(&claims, shard.into()).await.unwrap();
    }
    let repo = |name: &str| Some(name.parse::<RepoScope>().unwrap());
    let remove = async |claims: &Claims, repo| {
        server
            .remove_file(claims, file.hash, repo)
            .await
            .map(|removed| (removed.repos.join(" "), removed.is_file_removed))
    };
    assert!(matches!(remove(&writer("org/c"), None).await, Err(RemoveError::NotFound)));
    for other in ["org/b", "*"] {
        assert!(matches!(remove(&writer("org/a"), repo(other)).await, Err(RemoveError::Foreign)));
    }
    assert!(matches!(remove(&all_repos, repo("org/a")).await, Err(RemoveError::Foreign)));
    assert_eq!(
        remove(&writer("org/a"), repo("org/a")).await.unwrap(),
        ("org/a".to_owned(), true),
        "others are not revealed"
    );
    assert!(matches!(remove(&writer("org/a"), None).await, Err(RemoveError::NotFound)));
    assert_eq!(server.file_len(&writer("org/a"), file.hash).await.unwrap(), None);
    assert!(server.file_len(&writer("org/b"), file.hash).await.unwrap().is_some());
    // A writer with a token for all repositories has the claims of `*`, and no others.
    assert_eq!(remove(&all_repos, None).await.unwrap(), ("*".to_owned(), false));
    assert!(matches!(remove(&Claims::UNRESTRICTED, repo("org/c")).await, Err(RemoveError::NotFound)));
    assert_eq!(remove(&Claims::UNRESTRICTED, None).await.unwrap(), ("org/b".to_owned(), true));
    assert_eq!(server.file_len(&Claims::UNRESTRICTED, file.hash).await.unwrap(), None);
    assert_eq!(read(&server, &file.xorb).await.unwrap().as_deref(), Some(file.xorb.bytes()));
}

/// A collection whose `n`-th operation fails. The store has a file, a removed file, condemned and
/// other garbage, and the row of an interrupted upload. The file then reads as before, and later
/// collections delete everything else. Returns false if a collection has no `n`-th operation.
async fn check_collection_with_fault(n: usize, moment: Moment) -> bool {
    let setup = Setup::new().await;
    let server = setup.process();
    let condemned = stored("condemned", &server).await;
    setup.clock.advance(MIN_GRACE);
    assert_eq!(counts(&server).await, (1, 0));
    let file = File::upload("file", &server).await;
    file.register(&server, "org/a", file.sha256).await.unwrap();
    let removed = File::upload("removed", &server).await;
    removed.register(&server, "org/a", removed.sha256).await.unwrap();
    stored("garbage", &server).await;
    setup.faults.arm_at("publish_xorb", Moment::Before);
    upload(&server, &xorb("staged", Compression::Lz4)).await.unwrap_err();
    setup.faults.disarm();
    setup.clock.advance(MIN_GRACE);
    setup.index.remove_claims(removed.hash, None, setup.clock.now()).await.unwrap();

    setup.faults.arm(n, moment);
    let result = server.store.collect_garbage(policy(), &Pace::default()).await;
    let failed = setup.faults.disarm();
    let case = format!("operation {n} ({failed:?}) failed {moment:?}: {result:?}");
    let read_file = async |server: &Arc<Server>| read(server, &file.xorb).await.unwrap();
    assert_eq!(read_file(&server).await.as_deref(), Some(file.xorb.bytes()), "{case}");
    // Every visible xorb has its blob, and the condemned xorb loses its row only after its blob.
    let visible = setup.index.list_xorbs().await.unwrap();
    let blobs: Vec<_> = setup.blobs.list().await.unwrap().iter().map(BlobKey::xorb_hash).collect();
    assert!(visible.iter().all(|hash| blobs.contains(hash)), "{case}");
    if blobs.contains(&condemned.xorb().hash()) {
        assert!(setup.index.find_life(condemned.xorb().hash()).await.unwrap().is_some(), "{case}");
    }
    let process = setup.process();
    for _ in 0..3 {
        collect(&process).await;
        setup.clock.advance(MIN_GRACE);
    }
    assert_eq!(setup.blobs.list().await.unwrap(), [file.key(&setup)], "{case}");
    assert_eq!(setup.index.list_xorbs().await.unwrap(), [file.xorb.xorb().hash()], "{case}");
    assert_eq!(setup.index.unfinished_xorbs().await.unwrap(), [], "{case}");
    assert_eq!(setup.index.totals().await.unwrap().xorb_count, 1, "{case}");
    assert_eq!(read_file(&process).await.as_deref(), Some(file.xorb.bytes()), "{case}");
    failed.is_some()
}

#[tokio::test]
async fn collection_with_nth_failure_loses_nothing_and_resumes() {
    for moment in [Moment::Before, Moment::After] {
        let mut n = 0;
        while check_collection_with_fault(n, moment).await {
            n += 1;
        }
        assert!(n > 10, "a collection has more than {n} operations that can fail");
    }
}

#[tokio::test]
async fn stopped_collection_leaves_rows_that_the_next_one_finishes() {
    let setup = Setup::new().await;
    let server = setup.process();
    stored("garbage", &server).await;
    setup.clock.advance(MIN_GRACE);
    collect(&server).await;
    setup.clock.advance(DAY);
    let pace = Pace::default();
    pace.stop.cancel();
    let stopped = server.store.collect_garbage(policy(), &pace).await.unwrap();
    assert!(stopped.is_stopped && stopped.deleted.count == 0, "{stopped:?}");
    assert_eq!(setup.blobs.list().await.unwrap().len(), 1);
    assert_eq!(counts(&server).await, (0, 1));
    assert_eq!(setup.blobs.list().await.unwrap(), []);
}
