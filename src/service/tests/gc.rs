//! Deleted and retained xorbs, and the order of deletions: garbage, aborts, and a fault in every
//! operation.

use std::time::Duration;

use super::claims::{File, writer};
use super::{Moment, Setup, read, upload, xorb};
use crate::blob::{BlobKey, BlobStore};
use crate::format::compression::Policy as Compression;
use crate::format::xorb::BuiltXorb;
use crate::index::{Collect, Index, Ticket, XorbState};
use crate::runtime::clock::{Clock, ManualClock, Timestamp};
use crate::service::access::{Claims, RepoScope};
use crate::service::gc::{Action, Collected, GcAbort, MIN_CONDEMNED, MIN_GRACE, Pace, Policy, PolicyError};
use crate::service::{Cas, Form, ReadError, RemoveError, UploadError};

const DAY: Duration = Duration::from_secs(24 * 3600);

const MILLI: Duration = Duration::from_millis(1);

fn policy() -> Policy {
    Policy::new(MIN_GRACE, DAY).unwrap()
}

async fn collect(cas: &Cas) -> Collected {
    let collected = cas.collect_garbage(policy(), &Pace::default()).await.unwrap();
    assert!(collected.failure.is_none() && !collected.is_stopped, "{collected:?}");
    collected
}

/// Condemned and deleted, by number.
async fn counts(cas: &Cas) -> (u64, u64) {
    let collected = collect(cas).await;
    (collected.condemned.count, collected.deleted.count)
}

async fn actions(cas: &Cas) -> Vec<Action> {
    cas.plan_collection(policy()).await.unwrap().xorbs().iter().map(|xorb| xorb.action).collect()
}

async fn stored(text: &str, cas: &Cas) -> BuiltXorb {
    let xorb = xorb(text, Compression::Lz4);
    upload(cas, &xorb).await.unwrap();
    xorb
}

/// It stays readable for that day.
#[tokio::test]
async fn garbage_is_condemned_after_grace_then_deleted_after_a_day() {
    let setup = Setup::new().await;
    let cas = setup.process();
    let garbage = stored("garbage", &cas).await;
    let file = File::upload("file", &cas).await;
    file.register(&cas, "org/a", file.sha256).await.unwrap();
    let born = setup.clock.now();
    setup.clock.advance(MIN_GRACE - MILLI);
    assert_eq!(counts(&cas).await, (0, 0));
    setup.clock.advance(MILLI);
    assert_eq!(actions(&cas).await, [Action::Condemn { idle_since: born }]);
    assert_eq!(counts(&cas).await, (1, 0));
    let condemned_since = setup.clock.now();
    setup.clock.advance(DAY - MILLI);
    let plan = cas.plan_collection(policy()).await.unwrap();
    assert_eq!((plan.xorbs(), plan.retained().condemned.count, plan.retained().referenced.count), (&[][..], 1, 1));
    assert_eq!(plan.freed_later().serialized_len, garbage.bytes().len() as u64);
    assert_eq!(read(&cas, &garbage).await.unwrap().as_deref(), Some(garbage.bytes()));
    setup.clock.advance(MILLI);
    assert_eq!(actions(&cas).await, [Action::Delete { condemned_since }]);
    let collected = collect(&cas).await;
    assert_eq!((collected.deleted.count, collected.deleted.serialized_len), (1, garbage.bytes().len() as u64));
    assert_eq!(read(&cas, &garbage).await.unwrap(), None);
    assert_eq!(setup.blobs.list().await.unwrap(), [file.key(&setup)]);
    assert_eq!(counts(&cas).await, (0, 0));
    assert!(upload(&cas, &garbage).await.unwrap().was_inserted);
    assert_eq!(read(&cas, &garbage).await.unwrap().as_deref(), Some(garbage.bytes()));
}

#[tokio::test]
async fn promised_xorb_stays_for_the_grace() {
    for touch in 0..4 {
        let setup = Setup::new().await;
        let cas = setup.process();
        let file = File::upload("file", &cas).await;
        setup.clock.advance(MIN_GRACE);
        assert_eq!(counts(&cas).await, (1, 0));
        match touch {
            0 => assert!(!upload(&cas, &file.xorb).await.unwrap().was_inserted),
            1 => assert!(cas.renew(&Claims::UNRESTRICTED, file.xorb.xorb().hash()).await.unwrap()),
            2 => {
                file.register(&cas, "org/a", file.sha256).await.unwrap();
                assert_eq!(counts(&cas).await, (0, 0));
                cas.remove_file(&writer("org/a"), file.hash, None).await.unwrap();
            }
            _ => {
                // A removal in steps touches when the last reference is deleted, which may be
                // later.
                file.register(&cas, "org/a", file.sha256).await.unwrap();
                setup.clock.advance(MIN_GRACE * 3);
                cas.remove_file(&Claims::UNRESTRICTED, file.hash, None).await.unwrap();
            }
        }
        setup.clock.advance(MIN_GRACE - MILLI);
        assert_eq!(counts(&cas).await, (0, 0), "touch {touch}");
        setup.clock.advance(MILLI);
        assert_eq!(counts(&cas).await, (1, 0), "touch {touch}");
        setup.clock.advance(DAY);
        assert_eq!(counts(&cas).await, (0, 1), "touch {touch}");
        assert_eq!(setup.blobs.list().await.unwrap(), []);
    }
}

#[tokio::test]
async fn dedup_response_keeps_its_xorb_until_its_key_expires() {
    let setup = Setup::new().await;
    let cas = setup.process();
    let file = File::upload("file", &cas).await;
    let all = Claims { repo: RepoScope::All, ..writer("org/a") };
    file.register(&cas, "org/a", file.sha256).await.unwrap();
    cas.remove_file(&writer("org/a"), file.hash, None).await.unwrap();
    setup.clock.advance(MIN_GRACE - MILLI);
    let chunk = file.xorb.xorb().chunk_hashes()[0];
    assert!(cas.dedup_response(&all, chunk).await.unwrap().is_some());
    setup.clock.advance(MIN_GRACE - MILLI);
    let plan = cas.plan_collection(policy()).await.unwrap();
    assert_eq!((plan.xorbs().len(), plan.retained().leased.count), (0, 1));
    setup.clock.advance(MILLI);
    assert_eq!(counts(&cas).await, (1, 0));
    // A condemned xorb is leased again, and retained for as long.
    assert!(cas.dedup_response(&all, chunk).await.unwrap().is_some());
    setup.clock.advance(MIN_GRACE - MILLI);
    assert_eq!(counts(&cas).await, (0, 0));
    setup.clock.advance(MILLI);
    assert_eq!(counts(&cas).await, (1, 0));
    setup.clock.advance(DAY);
    assert_eq!(counts(&cas).await, (0, 1));
    assert_eq!(cas.dedup_response(&all, chunk).await.unwrap(), None);
}

#[tokio::test]
async fn an_old_plan_takes_nothing_that_somebody_has_come_for_since() {
    let setup = Setup::new().await;
    let cas = setup.process();
    let condemned = [File::upload("a", &cas).await, File::upload("b", &cas).await];
    setup.clock.advance(MIN_GRACE);
    assert_eq!(counts(&cas).await, (2, 0));
    let live = [File::upload("c", &cas).await, File::upload("d", &cas).await];
    setup.clock.advance(MIN_GRACE);
    let plan = cas.plan_collection(policy()).await.unwrap();
    assert_eq!(plan.xorbs().len(), 4);
    // One of each is registered or requested after the plan was made.
    condemned[0].register(&cas, "org/a", condemned[0].sha256).await.unwrap();
    assert!(cas.renew(&Claims::UNRESTRICTED, live[0].xorb.xorb().hash()).await.unwrap());
    let collected = cas.collect(plan.clone(), &Pace::default()).await;
    assert_eq!((collected.condemned.count, collected.deleted.count, collected.spared), (1, 1, 2));
    assert_eq!(read(&cas, &condemned[0].xorb).await.unwrap().as_deref(), Some(condemned[0].xorb.bytes()));
    assert_eq!(setup.blobs.list().await.unwrap().len(), 3);
    // The same plan once more finds nothing to do, and deletes nothing.
    upload(&cas, &condemned[1].xorb).await.unwrap();
    let again = cas.collect(plan, &Pace::default()).await;
    assert_eq!((again.condemned.count, again.deleted.count, again.spared), (0, 0, 4));
    assert_eq!(setup.blobs.list().await.unwrap().len(), 4);
}

#[tokio::test]
async fn doubt_of_any_kind_condemns_and_deletes_nothing() {
    let statements = [
        // A file that has lost its references, and so its xorb seems to be garbage.
        "DELETE FROM xorb_files",
        "UPDATE file_terms SET terms = zeroblob(44)",
        "DELETE FROM files",
        "UPDATE xorbs SET since = -1",
        "UPDATE xorbs SET lease_until = -1",
        "UPDATE visibility SET collected_at = 9000000000000",
    ];
    for sql in statements {
        let setup = Setup::new().await;
        let cas = setup.process();
        stored("garbage", &cas).await;
        let file = File::upload("file", &cas).await;
        file.register(&cas, "org/a", file.sha256).await.unwrap();
        setup.clock.advance(MIN_GRACE * 2);
        assert_eq!(actions(&cas).await.len(), 1, "{sql}");
        setup.index.corrupt(sql).await;
        let abort = cas.collect_garbage(policy(), &Pace::default()).await.unwrap_err();
        match sql {
            "DELETE FROM xorb_files" => assert!(matches!(abort, GcAbort::Reference { .. }), "{abort:?}"),
            _ if sql.starts_with("UPDATE visibility") => assert!(matches!(abort, GcAbort::Clock { .. }), "{abort:?}"),
            _ => assert!(matches!(abort, GcAbort::Store(_)), "{sql}: {abort:?}"),
        }
        assert_eq!(cas.metrics.collection.aborted.get(), 1);
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
    let plan = setup.process().plan_collection(policy()).await.unwrap();
    setup.clock = ManualClock::new(Timestamp::from_millis(later.as_millis() - 1)).into();
    let cas = setup.process();
    assert!(matches!(cas.plan_collection(policy()).await, Err(GcAbort::Clock { .. })));
    assert!(cas.collect(plan, &Pace::default()).await.deleted.count == 0);
    setup.clock.advance(MILLI);
    assert_eq!(counts(&cas).await, (0, 0));
}

#[test]
fn a_policy_below_what_clients_were_promised_is_refused() {
    assert_eq!(Policy::new(MIN_GRACE - Duration::from_secs(1), DAY), Err(PolicyError));
    assert_eq!(Policy::new(MIN_GRACE, MIN_CONDEMNED - Duration::from_secs(1)), Err(PolicyError));
    assert!(Policy::new(MIN_GRACE, MIN_CONDEMNED).is_ok());
}

#[tokio::test]
async fn leftovers_of_uploads_and_deletions_are_removed_when_old() {
    let setup = Setup::new().await;
    let cas = setup.process();
    let (staged, deleting) = (xorb("staged", Compression::Lz4), xorb("deleting", Compression::Lz4));
    setup.faults.arm_at("publish_xorb", Moment::Before);
    upload(&cas, &staged).await.unwrap_err();
    setup.faults.disarm();
    setup.index.stage_xorb(deleting.xorb().hash(), Ticket::random(), setup.clock.now()).await.unwrap();
    setup.index.abandon_xorb(deleting.xorb().hash(), setup.clock.now()).await.unwrap();
    assert_eq!(setup.blobs.list().await.unwrap(), [setup.blobs.key_of(staged.xorb().hash())]);
    setup.clock.advance(DAY - MILLI);
    assert_eq!(counts(&cas).await, (0, 1));
    assert_eq!(setup.index.unfinished_xorbs().await.unwrap(), [(staged.xorb().hash(), XorbState::Staged)]);
    setup.clock.advance(MILLI);
    assert_eq!(counts(&cas).await, (0, 1));
    assert_eq!(setup.index.unfinished_xorbs().await.unwrap(), []);
    assert_eq!(setup.blobs.list().await.unwrap(), []);
}

/// Although it is still cached.
#[tokio::test]
async fn xorb_deleted_by_another_process_can_be_uploaded_again() {
    let setup = Setup::new().await;
    let (server, command) = (setup.process(), setup.process());
    let xorb = stored("garbage", &server).await;
    assert!(server.find(xorb.xorb().hash()).await.unwrap().is_some(), "now it is in memory");
    setup.clock.advance(MIN_GRACE);
    assert_eq!(counts(&command).await, (1, 0));
    setup.clock.advance(DAY);
    assert_eq!(counts(&command).await, (0, 1));
    // Nothing was written, since the xorb seemed to exist; but that happens only once.
    assert!(matches!(upload(&server, &xorb).await, Err(UploadError::BeingDeleted { .. })));
    assert!(upload(&server, &xorb).await.unwrap().was_inserted);
    assert_eq!(read(&server, &xorb).await.unwrap().as_deref(), Some(xorb.bytes()));
}

#[tokio::test]
async fn a_xorb_that_another_process_has_deleted_vanishes_from_memory() {
    for is_told in [true, false] {
        let setup = Setup::new().await;
        let (server, command) = (setup.process(), setup.process());
        let xorb = stored("garbage", &server).await;
        let hash = xorb.xorb().hash();
        let found = server.find(hash).await.unwrap().unwrap();
        let seen = Some(server.forget_hidden(None).await.unwrap());
        setup.clock.advance(MIN_GRACE);
        collect(&command).await;
        assert_eq!(Some(server.forget_hidden(seen).await.unwrap()), seen, "what is condemned is visible");
        assert!(server.find(hash).await.unwrap().is_some());
        setup.clock.advance(DAY);
        collect(&command).await;
        if is_told {
            assert_ne!(Some(server.forget_hidden(seen).await.unwrap()), seen);
        } else {
            // The first reader notices.
            let bytes = crate::format::ByteRange::new(0, 1).unwrap();
            let missing = server.read(&found, Form::Serialized, bytes).await.err();
            assert!(matches!(missing, Some(ReadError::Deleted { .. })), "{missing:?}");
        }
        assert!(server.find(hash).await.unwrap().is_none());
        assert!(!server.renew(&Claims::UNRESTRICTED, hash).await.unwrap());
    }
}

#[tokio::test]
async fn a_file_is_removed_by_those_who_have_it_and_by_nobody_else() {
    let setup = Setup::new().await;
    let cas = setup.process();
    let file = File::upload("file", &cas).await;
    let everybody = Claims { repo: RepoScope::All, ..writer("org/a") };
    for claims in [writer("org/a"), writer("org/b"), everybody.clone()] {
        let shard = file.shard(None);
        cas.register(&claims, shard.into()).await.unwrap();
    }
    let repo = |name: &str| Some(name.parse::<RepoScope>().unwrap());
    let remove = async |claims: &Claims, repo| {
        cas.remove_file(claims, file.hash, repo).await.map(|removed| (removed.repos.join(" "), removed.is_file_removed))
    };
    assert!(matches!(remove(&writer("org/c"), None).await, Err(RemoveError::NotFound)));
    for other in ["org/b", "*"] {
        assert!(matches!(remove(&writer("org/a"), repo(other)).await, Err(RemoveError::Foreign)));
    }
    assert!(matches!(remove(&everybody, repo("org/a")).await, Err(RemoveError::Foreign)));
    assert_eq!(remove(&writer("org/a"), repo("org/a")).await.unwrap(), ("org/a".to_owned(), true), "nothing of others");
    assert!(matches!(remove(&writer("org/a"), None).await, Err(RemoveError::NotFound)));
    assert_eq!(cas.file_len(&writer("org/a"), file.hash).await.unwrap(), None);
    assert!(cas.file_len(&writer("org/b"), file.hash).await.unwrap().is_some());
    // A writer for all repositories has claims of its own, and no others.
    assert_eq!(remove(&everybody, None).await.unwrap(), ("*".to_owned(), false));
    assert!(matches!(remove(&Claims::UNRESTRICTED, repo("org/c")).await, Err(RemoveError::NotFound)));
    assert_eq!(remove(&Claims::UNRESTRICTED, None).await.unwrap(), ("org/b".to_owned(), true));
    assert_eq!(cas.file_len(&Claims::UNRESTRICTED, file.hash).await.unwrap(), None);
    assert_eq!(read(&cas, &file.xorb).await.unwrap().as_deref(), Some(file.xorb.bytes()));
}

/// A store with some of everything: a file, a removed one, condemned and other garbage, and a row
/// that an upload has left. Whatever fails in a collection, the file reads as before, and all else
/// is deleted in the end.
async fn check_collection_with_fault(n: usize, moment: Moment) -> bool {
    let setup = Setup::new().await;
    let cas = setup.process();
    let condemned = stored("condemned", &cas).await;
    setup.clock.advance(MIN_GRACE);
    assert_eq!(counts(&cas).await, (1, 0));
    let file = File::upload("file", &cas).await;
    file.register(&cas, "org/a", file.sha256).await.unwrap();
    let removed = File::upload("removed", &cas).await;
    removed.register(&cas, "org/a", removed.sha256).await.unwrap();
    stored("garbage", &cas).await;
    setup.faults.arm_at("publish_xorb", Moment::Before);
    upload(&cas, &xorb("staged", Compression::Lz4)).await.unwrap_err();
    setup.faults.disarm();
    setup.clock.advance(MIN_GRACE);
    setup.index.remove_claims(removed.hash, None, setup.clock.now()).await.unwrap();

    setup.faults.arm(n, moment);
    let result = cas.collect_garbage(policy(), &Pace::default()).await;
    let failed = setup.faults.disarm();
    let case = format!("operation {n} ({failed:?}) failed {moment:?}: {result:?}");
    let read_file = async |cas: &Cas| read(cas, &file.xorb).await.unwrap();
    assert_eq!(read_file(&cas).await.as_deref(), Some(file.xorb.bytes()), "{case}");
    // Every visible xorb has its blob, and every blob is visible.
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
    let cas = setup.process();
    stored("garbage", &cas).await;
    setup.clock.advance(MIN_GRACE);
    collect(&cas).await;
    setup.clock.advance(DAY);
    let pace = Pace::default();
    pace.stop.cancel();
    let stopped = cas.collect_garbage(policy(), &pace).await.unwrap();
    assert!(stopped.is_stopped && stopped.deleted.count == 0, "{stopped:?}");
    assert_eq!(setup.blobs.list().await.unwrap().len(), 1);
    assert_eq!(counts(&cas).await, (0, 1));
    assert_eq!(setup.blobs.list().await.unwrap(), []);
}
