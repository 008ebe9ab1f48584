//! A store with every kind of damage, checked and repaired, with a fault in every operation.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;

use super::faults::Moment;
use super::{Setup, read, upload, xorb};
use crate::blob::{BlobKey, BlobStore};
use crate::format::compression::Policy;
use crate::format::shard::Term;
use crate::format::xorb::BuiltXorb;
use crate::format::{FileHash, XorbHash};
use crate::index::{Allowance, HealthIndex, NewFile, ObjectIndex, RegisterIndex, Registration, Ticket, XorbIndex};
use crate::runtime::clock::{Clock, Timestamp};
use crate::runtime::incarnation::Incarnation;
use crate::service::fsck::{Finding, Fsck, Kind, Outcome, Presence};
use crate::service::gc::{GcAbort, MIN_GRACE, OBJECT_RETENTION, Pace as GcPace, Policy as GcPolicy};
use crate::service::{ReadError, StoreError};

const DAY: Duration = Duration::from_secs(24 * 3600);

pub(super) fn fsck(setup: &Setup, presence: Presence, is_deep: bool) -> Fsck {
    Fsck { store: Arc::clone(&setup.process().store), presence, is_deep, trusts_clock: false }
}

/// A check for an operator who confirms that the clock is right.
fn trusting(setup: &Setup, presence: Presence) -> Fsck {
    Fsck { trusts_clock: true, ..fsck(setup, presence, false) }
}

/// Walks through the store, and repairs the findings if `is_repair`.
pub(super) async fn run(fsck: &Fsck, is_repair: bool) -> Result<Vec<(Finding, Option<Outcome>)>, StoreError> {
    let (mut walk, mut all) = (fsck.walk(), Vec::new());
    while let Some(findings) = walk.next_findings().await? {
        for finding in findings {
            let outcome = if is_repair { Some(fsck.execute(&finding).await?) } else { None };
            all.push((finding, outcome));
        }
    }
    Ok(all)
}

fn kinds(findings: &[(Finding, Option<Outcome>)]) -> Vec<&'static str> {
    let mut kinds: Vec<_> = findings.iter().map(|(finding, _)| finding.kind.as_str()).collect();
    kinds.sort_unstable();
    kinds
}

/// Registers a file that consists of all chunks of these xorbs.
async fn register(setup: &Setup, xorbs: &[&BuiltXorb], byte: u8) -> FileHash {
    let term = |xorb: &&BuiltXorb| {
        let layout = xorb.xorb().layout();
        Term { xorb: xorb.xorb().hash(), chunks: layout.whole(), raw_len: u32::try_from(layout.raw_len()).unwrap() }
    };
    let terms: Vec<_> = xorbs.iter().map(term).collect();
    let raw_len = terms.iter().map(|term| u64::from(term.raw_len)).sum();
    let hash = FileHash::from_bytes([byte; 32]);
    let registration = Registration {
        repo: "org/a".to_owned(),
        xorbs: terms.iter().map(|term| term.xorb).collect(),
        files: vec![NewFile { hash, raw_len, terms, sha256: None }],
        dedup: Vec::new(),
        now: setup.clock.now(),
        allowance: Allowance::default(),
    };
    setup.index.register(&registration).await.unwrap();
    hash
}

/// The damage in [`broken`].
struct Broken {
    setup: Setup,
    sound: BuiltXorb,
    /// Xorbs whose blobs are missing, cut off, and altered.
    bad: [BuiltXorb; 3],
    /// The row describes `first`, the blob is `second`.
    other: (BuiltXorb, BuiltXorb),
    /// A xorb without a row, although a file names it.
    orphan: BuiltXorb,
    /// The name of a blob that is not a xorb and has no row.
    garbage: XorbHash,
}

async fn broken() -> Broken {
    let setup = Setup::new().await;
    let server = setup.process();
    let sound = xorb("sound", Policy::Lz4);
    let bad = ["missing", "short", "altered"].map(|text| xorb(text, Policy::None));
    let other = (xorb("other", Policy::Lz4), xorb("other", Policy::None));
    let orphan = xorb("orphan", Policy::Lz4);
    for xorb in [&sound, &bad[0], &bad[1], &bad[2], &other.0, &orphan] {
        upload(&server, xorb).await.unwrap();
    }
    register(&setup, &[&sound, &bad[0]], 1).await;
    register(&setup, &[&bad[1], &bad[2], &other.0], 2).await;
    register(&setup, &[&orphan, &sound], 3).await;
    setup.blobs.delete(setup.blobs.key_of(bad[0].xorb().hash())).await.unwrap();
    setup.blobs.damage(setup.blobs.key_of(bad[1].xorb().hash()), bad[1].bytes()[..100].to_vec());
    let mut altered = bad[2].bytes().to_vec();
    *altered.last_mut().unwrap() ^= 1;
    setup.blobs.damage(setup.blobs.key_of(bad[2].xorb().hash()), altered);
    setup.blobs.damage(setup.blobs.key_of(other.0.xorb().hash()), other.1.bytes().to_vec());
    // The orphan was uploaded last, so its row has the id 6.
    let sql = "DELETE FROM xorb_files WHERE xorb_id = 6; DELETE FROM xorb_chunks WHERE xorb_id = 6; \
         DELETE FROM xorb_domains WHERE xorb_id = 6; DELETE FROM xorbs WHERE id = 6; \
         DELETE FROM xorb_files WHERE file_id = 1; UPDATE totals SET raw_len = 0";
    setup.index.tamper(sql).await;
    let garbage = XorbHash::from_bytes([0xaa; 32]);
    setup.blobs.damage(BlobKey::new(garbage, Incarnation::UNNAMED), b"garbage".to_vec());
    setup.index.stage_xorb(XorbHash::from_bytes([0xbb; 32]), Ticket::random(), setup.clock.now()).await.unwrap();
    Broken { setup, sound, bad, other, orphan, garbage }
}

const ALL: [&str; 10] = [
    "lost_xorbs",
    "missing_blob",
    "orphan_blob",
    "orphan_garbage",
    "unfinished_row",
    "wrong_bytes",
    "wrong_length",
    "wrong_references",
    "wrong_row",
    "wrong_totals",
];

/// After a repair: sound xorbs are served, damaged ones are refused, and only an upload is still
/// needed.
async fn check_repaired(broken: &Broken, case: &str) {
    let Broken { setup, sound, bad, other, orphan, garbage } = broken;
    let left = run(&fsck(setup, Presence::Alone, true), false).await.unwrap();
    assert_eq!(kinds(&left), ["missing_blob", "wrong_bytes", "wrong_length"], "{case}");
    let server = setup.process();
    for (xorb, expected) in [(sound, sound), (&other.0, &other.1), (orphan, orphan)] {
        assert_eq!(read(&server, xorb).await.unwrap().as_deref(), Some(expected.bytes()), "{case}");
    }
    for xorb in bad {
        assert!(matches!(read(&server, xorb).await, Err(ReadError::Quarantined { .. })), "{case}");
        assert!(upload(&server, xorb).await.unwrap().was_inserted, "{case}");
        assert_eq!(read(&server, xorb).await.unwrap().as_deref(), Some(xorb.bytes()), "{case}");
    }
    // A removal that failed leaves a dead object.
    let dead = setup.index.dead_objects(setup.clock.now(), None, 9).await.unwrap();
    let is_dead = dead.iter().any(|object| object.hash == *garbage);
    assert!(is_dead || setup.blobs.list_of(*garbage).await.unwrap().is_empty(), "{case}");
    assert_eq!(setup.index.affected_files(orphan.xorb().hash(), 5).await.unwrap().count, 1, "{case}");
    assert_eq!(setup.index.affected_files(sound.xorb().hash(), 5).await.unwrap().count, 2, "{case}");
    let clean = run(&fsck(setup, Presence::Alone, true), false).await.unwrap();
    assert_eq!(kinds(&clean), [""; 0], "{case}");
}

#[tokio::test]
async fn every_fault_is_found_and_repairable_ones_are_repaired() {
    let broken = broken().await;
    let deep = fsck(&broken.setup, Presence::Alone, true);
    // Without repairs, the orphan counts as a lost xorb of its file. A run with repairs adds the
    // row of the orphan before it checks the files.
    assert_eq!(kinds(&run(&deep, false).await.unwrap()), ALL);
    let shallow = run(&fsck(&broken.setup, Presence::Alone, false), false).await.unwrap();
    assert!(!kinds(&shallow).contains(&"wrong_bytes") && kinds(&shallow).contains(&"wrong_length"));
    let hit = shallow.iter().find(|(finding, _)| finding.kind == Kind::MissingBlob).unwrap();
    // The references of its file are deleted, too, so the affected files are unknown.
    assert_eq!(hit.0.files.count, 0);
    let hit = shallow.iter().find(|(finding, _)| finding.kind == Kind::WrongLength).unwrap();
    assert_eq!(hit.0.files.files, [FileHash::from_bytes([2; 32])]);
    run(&deep, true).await.unwrap();
    check_repaired(&broken, "at once").await;
}

/// The rows of unfinished uploads are not touched.
#[tokio::test]
async fn beside_a_server_only_safe_repairs_are_made() {
    let broken = broken().await;
    let (setup, deep) = (&broken.setup, fsck(&broken.setup, Presence::Shared, true));
    let mut done = run(&deep, true).await.unwrap();
    done.retain(|(_, outcome)| *outcome == Some(Outcome::NeedsAlone));
    assert_eq!(kinds(&done), ["orphan_blob"]);
    assert_eq!(setup.index.unfinished_xorbs().await.unwrap().len(), 1);
    // The other serialization is not served until the server has checked it, or the store is used
    // alone.
    let server = setup.process();
    assert!(matches!(read(&server, &broken.other.0).await, Err(ReadError::Quarantined { .. })));
    assert!(setup.blobs.head(setup.blobs.key_of(broken.orphan.xorb().hash())).await.unwrap().is_some());
    run(&fsck(setup, Presence::Alone, true), true).await.unwrap();
    check_repaired(&broken, "after that").await;
}

#[cfg(feature = "full-tests")]
#[tokio::test]
async fn repair_with_nth_failure_loses_nothing_and_next_finishes() {
    for moment in [Moment::Before, Moment::After] {
        for n in 0.. {
            let broken = broken().await;
            let alone = fsck(&broken.setup, Presence::Alone, true);
            broken.setup.faults.arm(n, moment);
            let result = run(&alone, true).await;
            let Some(failed) = broken.setup.faults.disarm() else {
                assert!(n > 50, "a repair has more than {n} operations that can fail");
                break;
            };
            let case = format!("operation {n} ({failed}) failed {moment:?}: {result:?}");
            if n % 2 == 1 {
                // A server may start in between.
                broken.setup.process().store.recover().await.unwrap();
            }
            // Run a second time, because the fault may have ended the first run before all repairs.
            run(&alone, true).await.unwrap();
            check_repaired(&broken, &case).await;
        }
    }
}

#[tokio::test]
async fn upload_during_removal_of_a_bad_blob_is_not_touched() {
    let (setup, first) = (Setup::new().await, xorb("bytes", Policy::Lz4));
    let (server, hash) = (setup.process(), first.xorb().hash());
    let orphan = BlobKey::new(hash, Incarnation::UNNAMED);
    setup.blobs.damage(orphan, b"garbage".to_vec());
    let fsck = fsck(&setup, Presence::Shared, false);
    let found = run(&fsck, false).await.unwrap();
    assert_eq!(kinds(&found), ["orphan_garbage"]);
    // The first repair fails after the name has become a dead object.
    setup.faults.arm_at("delete", Moment::Before);
    fsck.execute(&found[0].0).await.unwrap_err();
    setup.faults.disarm();
    assert_eq!(setup.index.unknown_names(vec![(hash, Incarnation::UNNAMED)]).await.unwrap(), []);
    assert!(upload(&server, &first).await.unwrap().was_inserted);
    // The finding no longer holds, so the uploaded blob stays.
    assert_eq!(fsck.execute(&found[0].0).await.unwrap(), Outcome::Repaired);
    assert_eq!(read(&server, &first).await.unwrap().as_deref(), Some(first.bytes()));
    // The blob that the failed removal has left is deleted like any replaced blob.
    setup.clock.advance(OBJECT_RETENTION);
    server.store.collect_garbage(gc_policy(), &GcPace::default()).await.unwrap();
    assert_eq!(setup.blobs.list().await.unwrap(), [setup.blobs.key_of(hash)]);
    assert_eq!(read(&server, &first).await.unwrap().as_deref(), Some(first.bytes()));
}

/// A store whose clock ran ahead for a while, so that an unneeded xorb is condemned long before its
/// time.
async fn ahead(by: Duration) -> (Setup, BuiltXorb) {
    let (setup, garbage) = (Setup::new().await, xorb("garbage", Policy::Lz4));
    let server = setup.process();
    let retained = xorb("retained", Policy::Lz4);
    for xorb in [&garbage, &retained] {
        upload(&server, xorb).await.unwrap();
    }
    register(&setup, &[&retained], 1).await;
    let now = setup.clock.now();
    setup.clock.advance(by);
    assert_eq!(server.store.collect_garbage(gc_policy(), &GcPace::default()).await.unwrap().condemned.count, 1);
    setup.clock.set(now);
    (setup, garbage)
}

fn gc_policy() -> GcPolicy {
    GcPolicy::new(MIN_GRACE, DAY).unwrap()
}

/// Nothing is deleted too early after the repair either.
#[tokio::test]
async fn clock_ahead_stops_collections_until_it_is_confirmed() {
    let (setup, garbage) = ahead(10 * 365 * DAY).await;
    let server = setup.process();
    let collect = async || server.store.collect_garbage(gc_policy(), &GcPace::default()).await;
    assert!(matches!(collect().await, Err(GcAbort::Clock { .. })));
    // The operator has not confirmed that the clock is right. It may be behind, so nothing is
    // repaired.
    let left = run(&fsck(&setup, Presence::Alone, false), true).await.unwrap();
    assert_eq!((kinds(&left), left[0].1), (vec!["future_times"], Some(Outcome::Left)));
    assert!(left[0].0.detail.contains("by up to 87600 h"), "{}", left[0].0.detail);
    assert!(matches!(collect().await, Err(GcAbort::Clock { .. })));
    let repaired = run(&trusting(&setup, Presence::Shared), true).await.unwrap();
    assert_eq!((kinds(&repaired), repaired[0].1), (vec!["future_times"], Some(Outcome::Repaired)));
    assert_eq!(kinds(&run(&fsck(&setup, Presence::Alone, true), false).await.unwrap()), [""; 0]);
    // The whole grace period and the delay until the deletion follow.
    setup.clock.advance(MIN_GRACE - Duration::from_millis(1));
    assert_eq!(collect().await.unwrap().condemned.count, 0);
    setup.clock.advance(Duration::from_millis(1));
    assert_eq!(collect().await.unwrap().condemned.count, 1);
    assert_eq!(read(&server, &garbage).await.unwrap().as_deref(), Some(garbage.bytes()));
    setup.clock.advance(DAY);
    assert_eq!(collect().await.unwrap().deleted.count, 1);
}

#[tokio::test]
async fn times_up_to_a_minute_in_the_future_are_no_finding() {
    for (has_other_clocks, tolerated) in [(false, 60_000), (true, 90_000)] {
        let setup = Setup::new().await;
        upload(&setup.process(), &xorb("bytes", Policy::Lz4)).await.unwrap();
        if has_other_clocks {
            setup.faults.share();
        }
        let now = setup.clock.now().as_millis();
        setup.clock.set(Timestamp::from_millis(now - tolerated));
        assert_eq!(kinds(&run(&fsck(&setup, Presence::Alone, false), false).await.unwrap()), [""; 0]);
        setup.clock.set(Timestamp::from_millis(now - tolerated - 1));
        let found = run(&fsck(&setup, Presence::Alone, false), false).await.unwrap();
        assert_eq!(kinds(&found), ["future_times"]);
        let detail = &found[0].0.detail;
        assert!(detail.starts_with("times of one xorb in the future, by up to 1 h;"), "{detail}");
    }
}

/// The next run of fsck completes the repair.
#[tokio::test]
async fn resetting_times_with_nth_failure_collects_nothing_early() {
    for moment in [Moment::Before, Moment::After] {
        for n in 0.. {
            let (setup, garbage) = ahead(MIN_GRACE).await;
            let trusting = trusting(&setup, Presence::Alone);
            setup.faults.arm(n, moment);
            let result = run(&trusting, true).await;
            let Some(failed) = setup.faults.disarm() else {
                assert!(n > 8, "there are more than {n} operations that can fail");
                break;
            };
            let case = format!("operation {n} ({failed}) failed {moment:?}: {:?}", result.err());
            let server = setup.process();
            setup.clock.advance(DAY);
            // The collection aborts, or nothing is due yet.
            if let Ok(collected) = server.store.collect_garbage(gc_policy(), &GcPace::default()).await {
                assert_eq!((collected.condemned.count, collected.deleted.count), (0, 0), "{case}");
            }
            run(&trusting, true).await.unwrap();
            assert_eq!(kinds(&run(&trusting, false).await.unwrap()), [""; 0], "{case}");
            assert_eq!(
                server.store.collect_garbage(gc_policy(), &GcPace::default()).await.unwrap().condemned.count,
                0,
                "{case}"
            );
            assert_eq!(read(&server, &garbage).await.unwrap().as_deref(), Some(garbage.bytes()), "{case}");
        }
    }
}

/// A sound blob that the index does not know, beside the damaged one of its row, as after an older
/// index was restored. Neither fsck nor GC may delete it, wherever its adoption fails.
#[tokio::test]
async fn sound_blob_beside_a_damaged_one_survives_a_failed_adoption() {
    for moment in [Moment::Before, Moment::After] {
        for n in 0.. {
            let (setup, other) = (Setup::new().await, xorb("other", Policy::Lz4));
            let hash = other.xorb().hash();
            upload(&setup.process(), &other).await.unwrap();
            setup.blobs.damage(setup.blobs.key_of(hash), b"garbage".to_vec());
            setup.blobs.damage(BlobKey::new(hash, Incarnation::from_number(1)), other.bytes().to_vec());
            let alone = fsck(&setup, Presence::Alone, true);
            setup.faults.arm(n, moment);
            let result = run(&alone, true).await;
            let Some(failed) = setup.faults.disarm() else {
                assert!(n > 8, "a repair has more than {n} operations that can fail");
                break;
            };
            let case = format!("operation {n} ({failed}) failed {moment:?}: {:?}", result.err());
            register(&setup, &[&other], 1).await;
            for _ in 0..2 {
                setup.clock.advance(OBJECT_RETENTION);
                setup.process().store.collect_garbage(gc_policy(), &GcPace::default()).await.ok();
            }
            for _ in 0..2 {
                run(&alone, true).await.unwrap();
            }
            let got = read(&setup.process(), &other).await;
            assert_eq!(got.ok().flatten().as_deref(), Some(other.bytes()), "{case}");
        }
    }
}

/// No row describes bytes that were not verified.
#[tokio::test]
async fn blob_that_changes_after_its_verification_is_not_adopted() {
    let (setup, orphan) = (Setup::new().await, xorb("orphan", Policy::Lz4));
    let key = BlobKey::new(orphan.xorb().hash(), Incarnation::UNNAMED);
    for is_deleted in [true, false] {
        setup.blobs.damage(key, orphan.bytes().to_vec());
        let fsck = fsck(&setup, Presence::Alone, true);
        let found = run(&fsck, false).await.unwrap();
        let (finding, _) = found.iter().find(|(finding, _)| finding.blob == Some(key)).unwrap();
        let first = setup.faults.hold("read");
        let change = async {
            let release = first.reached().await;
            let second = setup.faults.hold("read");
            drop(release);
            // The blob was verified, and is about to be copied.
            let _release = second.reached().await;
            if is_deleted {
                setup.blobs.delete(key).await.unwrap();
            } else {
                setup.blobs.damage(key, vec![0; orphan.bytes().len()]);
            }
        };
        let (outcome, ()) = join(fsck.execute(finding), change).await;
        assert_eq!(outcome.unwrap(), Outcome::Left, "{is_deleted}");
        assert!(setup.index.find_xorb(orphan.xorb().hash()).await.unwrap().is_none(), "{is_deleted}");
    }
}
