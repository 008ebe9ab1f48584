//! A xorb that is uploaded again in a shorter serialization, with a fault in every operation, and
//! the deletion of the longer blob.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{TryStreamExt, stream};

use super::records::rebuild;
use super::{Moment, Server, Setup, policy_of_gc, read, upload, xorb};
use crate::blob::{BlobKey, BlobStore};
use crate::format::ByteRange;
use crate::format::compression::Policy;
use crate::format::limits::MAX_XORB_SERIALIZED_LEN;
use crate::format::xorb::BuiltXorb;
use crate::index::{ObjectIndex, ObjectSums, Ticket, Totals, XorbIndex};
use crate::runtime::clock::Clock;
use crate::service::access::Claims;
use crate::service::fsck::{Fsck, Outcome, Presence};
use crate::service::gc::{Collected, OBJECT_RETENTION, Pace};
use crate::service::heal::{is_worth, max_worth};
use crate::service::{BodyError, Form, ReadError, StoredXorb, Upload, UploadError, Uploaded};

/// An upload that declares the length of its body, as stock clients do.
async fn declare(server: &Arc<Server>, xorb: &BuiltXorb) -> Result<Uploaded, UploadError> {
    let pieces: Vec<Result<Bytes, BodyError>> =
        xorb.bytes().chunks(3000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    let (claims, claimed, declared_len) = (&Claims::UNRESTRICTED, xorb.xorb().hash(), Some(xorb.bytes().len() as u64));
    let body = stream::iter(pieces);
    server.upload(Upload { claims, claimed, max_len: MAX_XORB_SERIALIZED_LEN, declared_len, body }).await
}

async fn collect(server: &Arc<Server>) -> Collected {
    let collected = server.store.collect_garbage(policy_of_gc(), &Pace::default()).await.unwrap();
    assert!(collected.failure.is_none() && !collected.is_stopped, "{collected:?}");
    collected
}

async fn whole(server: &Arc<Server>, xorb: &StoredXorb) -> Result<Vec<u8>, ReadError> {
    let bytes = ByteRange::new(0, xorb.layout().serialized_len()).unwrap();
    Ok(server.store.read(xorb, Form::Serialized, bytes).await?.try_collect::<Vec<Bytes>>().await?.concat())
}

/// A long serialization of a xorb, and one that is short enough to replace it.
fn long_and_short() -> (BuiltXorb, BuiltXorb) {
    let (long, short) = (xorb("bytes", Policy::None), xorb("bytes", Policy::Lz4));
    assert!(is_worth(short.bytes().len() as u64, long.bytes().len() as u64));
    (long, short)
}

/// A store with the long serialization, and the key of its blob.
async fn stored(long: &BuiltXorb) -> (Setup, BlobKey) {
    let setup = Setup::new().await;
    assert!(upload(&setup.process(), long).await.unwrap().was_inserted);
    let key = setup.blobs.key_of(long.xorb().hash());
    (setup, key)
}

#[test]
fn three_quarters_are_worth_a_replacement_and_no_more() {
    for (stored, max) in [(0, 0), (1, 0), (3, 2), (4, 3), (5, 3), (1000, 750), (u64::MAX, u64::MAX / 4 * 3 + 2)] {
        assert_eq!(max_worth(stored), max, "{stored}");
        assert!(is_worth(max, stored) && !is_worth(max.saturating_add(1), stored), "{stored}");
    }
}

#[tokio::test]
async fn upload_of_a_shorter_form_replaces_the_blob_once() {
    let (long, short) = long_and_short();
    let (setup, old) = stored(&long).await;
    let server = setup.process();
    let seen = server.store.find(old.xorb_hash()).await.unwrap().unwrap();
    assert!(!upload(&server, &short).await.unwrap().was_inserted, "without a declared length it is not written");
    assert!(declare(&server, &short).await.unwrap().was_inserted);
    assert_eq!(read(&server, &long).await.unwrap().as_deref(), Some(short.bytes()));
    let len = short.bytes().len() as u64;
    let Totals { serialized_len, .. } = setup.index.totals().await.unwrap();
    assert_eq!((serialized_len, server.store.replaced_len().await.unwrap()), (len, long.bytes().len() as u64));
    // A reader of the old layout gets the old bytes, also in another process.
    for server in [&server, &setup.process()] {
        assert_eq!(whole(server, &seen).await.unwrap(), long.bytes());
    }
    for again in [&short, &long] {
        assert!(!declare(&server, again).await.unwrap().was_inserted);
        assert_eq!(read(&server, &long).await.unwrap().as_deref(), Some(short.bytes()));
    }
    assert_eq!(setup.blobs.list().await.unwrap().len(), 2);
}

/// A server learns a moment later that another one has replaced a blob. It serves the URLs of both.
#[tokio::test]
async fn new_blob_is_found_by_a_process_that_remembers_the_old_one() {
    let (long, short) = long_and_short();
    let (setup, old) = stored(&long).await;
    let ([first, second], hash) = ([setup.process(), setup.process()], old.xorb_hash());
    let current = async |server: &Arc<Server>| server.store.find(hash).await.unwrap().unwrap().incarnation();
    let before = current(&second).await;
    assert!(declare(&first, &short).await.unwrap().was_inserted);
    let after = current(&first).await;
    assert_ne!(after, before);
    assert_eq!(current(&second).await, before, "it remembers the old one");
    let found = second.store.find_other_blob(hash, after).await.unwrap().unwrap();
    assert_eq!(whole(&second, &found).await.unwrap(), short.bytes());
    assert_eq!(current(&second).await, after);
    let found = second.store.find_other_blob(hash, before).await.unwrap().unwrap();
    assert_eq!(whole(&second, &found).await.unwrap(), long.bytes());
    setup.clock.advance(OBJECT_RETENTION);
    collect(&first).await;
    assert!(second.store.find_other_blob(hash, before).await.unwrap().is_none(), "it was deleted");
}

/// The blob is deleted exactly when its retention is over.
#[tokio::test]
async fn replaced_blob_is_retained_and_then_deleted() {
    let (long, short) = long_and_short();
    let (setup, old) = stored(&long).await;
    let server = setup.process();
    let seen = server.store.find(old.xorb_hash()).await.unwrap().unwrap();
    let plan = server.store.plan_collection(policy_of_gc()).await.unwrap();
    declare(&server, &short).await.unwrap();
    setup.clock.advance(OBJECT_RETENTION - Duration::from_millis(1));
    assert_eq!(collect(&server).await.replaced.count, 0);
    // An earlier plan does not delete it either.
    assert_eq!(server.store.collect(plan, &Pace::default()).await.replaced.count, 0);
    assert_eq!(whole(&server, &seen).await.unwrap(), long.bytes());
    assert_eq!(
        server.store.find_other_blob(seen.hash(), seen.incarnation()).await.unwrap().unwrap().layout(),
        seen.layout()
    );
    setup.clock.advance(Duration::from_millis(1));
    let collected = collect(&server).await;
    assert_eq!((collected.replaced.count, collected.replaced.serialized_len), (1, long.bytes().len() as u64));
    assert_eq!(setup.index.object_sums().await.unwrap(), ObjectSums::default());
    assert_ne!(setup.blobs.key_of(seen.hash()), old);
    for server in [&server, &setup.process()] {
        assert!(matches!(whole(server, &seen).await, Err(ReadError::Replaced { .. })));
        assert!(server.store.find_other_blob(seen.hash(), seen.incarnation()).await.unwrap().is_none());
        assert_eq!(read(server, &long).await.unwrap().as_deref(), Some(short.bytes()));
    }
}

/// A failed deletion of a dead object is counted, and the others are deleted in the same run.
#[tokio::test]
async fn dead_object_that_cannot_be_deleted_blocks_no_other() {
    for operation in ["delete", "forget_object"] {
        let setup = Setup::new().await;
        let server = setup.process();
        for text in ["bytes", "other bytes"] {
            assert!(upload(&server, &xorb(text, Policy::None)).await.unwrap().was_inserted);
            assert!(declare(&server, &xorb(text, Policy::Lz4)).await.unwrap().was_inserted);
        }
        setup.clock.advance(OBJECT_RETENTION);
        setup.faults.arm_at(operation, Moment::Before);
        let collected = server.store.collect_garbage(policy_of_gc(), &Pace::default()).await.unwrap();
        assert_eq!(setup.faults.disarm(), Some(operation));
        assert_eq!((collected.replaced.count, collected.failed), (1, 1), "{operation}");
        assert!(collected.failure.is_some(), "{operation}");
        assert_eq!(collect(&server).await.replaced.count, 1, "{operation}");
        assert_eq!(setup.index.object_sums().await.unwrap(), ObjectSums::default());
    }
}

/// A step of GC that concerns no single xorb counts as one failure.
#[tokio::test]
async fn every_failed_step_of_gc_is_counted() {
    for operation in ["sweep_removed", "set_objects_back", "abandon_objects", "dead_objects", "record_collection"] {
        let setup = Setup::new().await;
        let server = setup.process();
        setup.faults.arm_at(operation, Moment::Before);
        let collected = server.store.collect_garbage(policy_of_gc(), &Pace::default()).await.unwrap();
        assert_eq!(setup.faults.disarm(), Some(operation));
        assert_eq!((collected.failed, collected.failure.is_some()), (1, true), "{operation}");
    }
}

/// Checks that after a start and two collections only the blob that the row names is left.
async fn check_nothing_left(setup: &Setup, xorb: &BuiltXorb, case: &str) {
    let server = setup.process();
    server.store.recover().await.unwrap();
    for _ in 0..2 {
        setup.clock.advance(OBJECT_RETENTION);
        collect(&server).await;
    }
    let incarnation = setup.index.incarnation_of(xorb.xorb().hash()).await.unwrap().unwrap();
    let named = BlobKey::new(xorb.xorb().hash(), incarnation);
    assert_eq!(setup.blobs.list().await.unwrap(), [named], "{case}");
    assert_eq!(setup.index.object_sums().await.unwrap(), ObjectSums::default(), "{case}");
    let len = setup.blobs.head(named).await.unwrap().unwrap();
    assert_eq!(setup.index.totals().await.unwrap().serialized_len, len, "{case}");
}

/// The xorb is served at any time in one of the two serializations, and nothing else is left.
#[tokio::test]
async fn replacement_with_nth_failure_serves_one_form() {
    for moment in [Moment::Before, Moment::After] {
        for n in 0.. {
            let (long, short) = long_and_short();
            let (setup, _) = stored(&long).await;
            let server = setup.process();
            setup.faults.arm(n, moment);
            let result = declare(&server, &short).await;
            let Some(failed) = setup.faults.disarm() else {
                assert!(result.unwrap().was_inserted);
                assert!(n > 8, "a replacement has more than {n} operations that can fail");
                break;
            };
            let case = format!("operation {n} ({failed}) failed {moment:?}: {result:?}");
            for server in [&server, &setup.process()] {
                let seen = read(server, &long).await.unwrap().unwrap();
                assert!(seen == long.bytes() || seen == short.bytes(), "{case}");
                if result.as_ref().is_ok_and(|uploaded| uploaded.was_inserted) {
                    assert_eq!(seen, short.bytes(), "{case}");
                }
            }
            if n % 2 == 0 {
                // The same client or another one uploads it again.
                declare(&server, &short).await.unwrap();
                assert_eq!(read(&server, &long).await.unwrap().as_deref(), Some(short.bytes()), "{case}");
            }
            check_nothing_left(&setup, &long, &case).await;
        }
    }
}

#[tokio::test]
async fn deletion_of_replaced_blobs_with_nth_failure_is_finished() {
    for moment in [Moment::Before, Moment::After] {
        for n in 0.. {
            let (long, short) = long_and_short();
            let (setup, _) = stored(&long).await;
            declare(&setup.process(), &short).await.unwrap();
            setup.clock.advance(OBJECT_RETENTION);
            setup.faults.arm(n, moment);
            let result = setup.process().store.collect_garbage(policy_of_gc(), &Pace::default()).await;
            let Some(failed) = setup.faults.disarm() else {
                assert_eq!(result.unwrap().replaced.count, 1);
                break;
            };
            let case = format!("operation {n} ({failed}) failed {moment:?}: {result:?}");
            assert_eq!(read(&setup.process(), &long).await.unwrap().as_deref(), Some(short.bytes()), "{case}");
            check_nothing_left(&setup, &long, &case).await;
        }
    }
}

/// If an upload takes longer than its pending object lives, the row must not name its blob.
#[tokio::test]
async fn abandoned_replacement_is_lost_and_its_blob_deleted() {
    let (long, short) = long_and_short();
    let (setup, old) = stored(&long).await;
    let (server, ticket) = (setup.process(), Ticket::random());
    let hash = old.xorb_hash();
    setup.index.stage_xorb(hash, ticket, setup.clock.now()).await.unwrap();
    setup.index.begin_object(hash, ticket.incarnation(), 1, setup.clock.now()).await.unwrap();
    for _ in 0..2 {
        setup.clock.advance(OBJECT_RETENTION);
        collect(&server).await;
    }
    assert_eq!(setup.index.object_sums().await.unwrap(), ObjectSums::default());
    // The blob is published now, and becomes a dead object.
    setup.blobs.damage(BlobKey::new(hash, ticket.incarnation()), short.bytes().to_vec());
    server.store.discard_lost_blob(hash, ticket, 1).await;
    assert_eq!(read(&server, &long).await.unwrap().as_deref(), Some(long.bytes()));
    check_nothing_left(&setup, &long, "late").await;
}

/// The damaged blob is the shortest one, and gets no row.
#[tokio::test]
async fn rebuild_adopts_shortest_sound_blob_others_become_dead() {
    let (long, short) = long_and_short();
    let (mut setup, old) = stored(&long).await;
    declare(&setup.process(), &short).await.unwrap();
    let hash = old.xorb_hash();
    let torn = BlobKey::new(hash, Ticket::random().incarnation());
    setup.blobs.damage(torn, short.bytes()[..100].to_vec());
    let made = rebuild(&setup).await.unwrap();
    assert_eq!((made.rebuilt.xorb_count, made.rebuilt.damaged_xorb_count, made.problems.len()), (1, 0, 0));
    assert_eq!(made.rebuilt.serialized_len, short.bytes().len() as u64);
    setup.index = made.index.clone();
    let server = setup.process();
    assert_eq!(read(&server, &long).await.unwrap().as_deref(), Some(short.bytes()));
    assert_eq!(setup.index.object_sums().await.unwrap().count, 2);
    check_nothing_left(&setup, &long, "rebuilt").await;
}

/// The row may name a missing blob, as in an index that was restored from a copy.
#[tokio::test]
async fn fsck_adopts_the_existing_blob_and_removes_surplus_ones() {
    let (long, short) = long_and_short();
    let (setup, old) = stored(&long).await;
    let hash = old.xorb_hash();
    let unknown = BlobKey::new(hash, Ticket::random().incarnation());
    setup.blobs.damage(unknown, short.bytes().to_vec());
    let fsck = || Fsck {
        store: std::sync::Arc::clone(&setup.process().store),
        presence: Presence::Alone,
        is_deep: false,
        trusts_clock: false,
    };
    let repair = async || {
        let fsck = fsck();
        let (mut walk, mut outcomes) = (fsck.walk(), Vec::new());
        while let Some(findings) = walk.next_findings().await.unwrap() {
            for finding in findings {
                outcomes.push((finding.kind.as_str(), fsck.execute(&finding).await.unwrap()));
            }
        }
        outcomes
    };
    assert_eq!(repair().await, [("orphan_blob", Outcome::Repaired)]);
    assert_eq!(setup.blobs.list().await.unwrap(), [old], "the row names a sound blob");
    setup.blobs.delete(old).await.unwrap();
    setup.blobs.damage(unknown, short.bytes().to_vec());
    assert_eq!(repair().await, [("missing_blob", Outcome::Quarantined), ("orphan_blob", Outcome::Repaired)]);
    assert_eq!(read(&setup.process(), &long).await.unwrap().as_deref(), Some(short.bytes()));
    check_nothing_left(&setup, &long, "repaired").await;
}
