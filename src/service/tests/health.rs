//! Damaged blobs: they are found, not served, and repaired, with a fault in every operation.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;

use super::faults::Moment;
use super::{Setup, read, upload, xorb};
use crate::blob::{BlobKey, BlobStore};
use crate::format::ByteRange;
use crate::format::compression::Policy;
use crate::format::xorb::BuiltXorb;
use crate::index::{Collect, HealthIndex, IndexErrorKind, NewXorb, ObjectIndex, Staging, Ticket, XorbIndex};
use crate::runtime::clock::Clock;
use crate::service::gc::{MIN_GRACE, OBJECT_RETENTION, Pace as CollectionPace, Policy as CollectionPolicy};
use crate::service::scrub::{Checked, Scrub};
use crate::service::verify::{Damage, Pace};
use crate::service::{Form, ReadError, ScrubBudget, Server, StoreError, StoredXorb, UploadError};

const DAY: Duration = Duration::from_secs(24 * 3600);

impl Setup {
    async fn key(&self, xorb: &BuiltXorb) -> BlobKey {
        let hash = xorb.xorb().hash();
        BlobKey::new(hash, self.index.incarnation_of(hash).await.unwrap().unwrap())
    }

    /// Flips a bit of the blob, somewhere in the middle.
    async fn flip(&self, xorb: &BuiltXorb) {
        let mut bytes = xorb.bytes().to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        self.blobs.damage(self.key(xorb).await, bytes);
    }

    /// A store whose only xorb is damaged and marked as such.
    async fn quarantined(xorb: &BuiltXorb) -> (Self, Arc<Server>) {
        let setup = Self::new().await;
        let server = setup.process();
        upload(&server, xorb).await.unwrap();
        setup.flip(xorb).await;
        assert!(matches!(check(&server, xorb).await, Checked::Damaged(Damage::Invalid(_) | Damage::OtherXorb { .. })));
        (setup, server)
    }

    async fn is_damaged(&self, xorb: &BuiltXorb) -> bool {
        self.index.find_health(xorb.xorb().hash()).await.unwrap().unwrap().damaged_at.is_some()
    }
}

async fn check(server: &Arc<Server>, xorb: &BuiltXorb) -> Checked {
    server.store.check_xorb(xorb.xorb().hash(), &mut Pace::new(None)).await.unwrap()
}

async fn read_again(server: &Arc<Server>, found: &StoredXorb) -> Result<Vec<u8>, ReadError> {
    let bytes = ByteRange::new(0, found.layout().serialized_len()).unwrap();
    Ok(server.store.read(found, Form::Serialized, bytes).await?.try_collect::<Vec<_>>().await?.concat())
}

#[tokio::test]
async fn damaged_blob_is_refused_and_another_serialization_heals_it() {
    let (first, second) = (xorb("bytes", Policy::Lz4), xorb("bytes", Policy::None));
    assert_ne!(first.bytes().len(), second.bytes().len());
    let (setup, server) = Setup::quarantined(&first).await;
    assert!(matches!(read(&server, &first).await, Err(ReadError::Quarantined { .. })));
    assert!(matches!(check(&server, &first).await, Checked::Damaged(_)));

    assert!(upload(&server, &second).await.unwrap().was_inserted);
    assert_eq!(read(&server, &first).await.unwrap().as_deref(), Some(second.bytes()));
    assert!(matches!(check(&server, &first).await, Checked::Sound));
    assert_eq!(setup.index.totals().await.unwrap().serialized_len, second.bytes().len() as u64);
    // The xorb is sound again, so a further upload does not replace it.
    assert!(!upload(&server, &first).await.unwrap().was_inserted);
    assert_eq!(read(&server, &first).await.unwrap().as_deref(), Some(second.bytes()));
}

/// The other damaged xorb advances the epoch, which covers all xorbs.
#[tokio::test]
async fn cached_layout_is_rechecked_once_after_other_damage() {
    let (retained, damaged) = (xorb("retained", Policy::Lz4), xorb("damaged", Policy::Lz4));
    let (setup, server) = Setup::quarantined(&damaged).await;
    upload(&server, &retained).await.unwrap();
    let find = async || server.store.find(retained.xorb().hash()).await.unwrap().unwrap();
    find().await;
    server.store.forget_layout(damaged.xorb().hash());
    let before = (server.store.metrics.layout_hits.get(), server.store.metrics.layout_misses.get());
    for _ in 0..5 {
        // The read queries the index only if the layout is of an older epoch. Then the query would
        // fail.
        let found = find().await;
        setup.faults.arm_at("find_xorb", Moment::Before);
        read_again(&server, &found).await.unwrap();
        assert_eq!(setup.faults.disarm(), None);
    }
    assert_eq!(
        (server.store.metrics.layout_hits.get(), server.store.metrics.layout_misses.get()),
        (before.0 + 4, before.1 + 1)
    );
}

#[tokio::test]
async fn reader_with_an_old_layout_gets_no_bytes_of_the_new_blob() {
    let (first, second) = (xorb("bytes", Policy::Lz4), xorb("bytes", Policy::None));
    let setup = Setup::new().await;
    let server = setup.process();
    upload(&server, &first).await.unwrap();
    let early = server.store.find(first.xorb().hash()).await.unwrap().unwrap();
    assert_eq!(read_again(&server, &early).await.unwrap(), first.bytes());
    setup.flip(&first).await;
    check(&server, &first).await;
    assert!(matches!(read_again(&server, &early).await, Err(ReadError::Quarantined { .. })));
    let late = server.store.find(first.xorb().hash()).await.unwrap().unwrap();
    assert!(late.is_damaged());
    upload(&server, &second).await.unwrap();
    assert!(matches!(read_again(&server, &early).await, Err(ReadError::Replaced { .. })));
    // The first serialization is stored again, but in another blob than the one that `early`
    // describes.
    setup.flip(&second).await;
    check(&server, &first).await;
    upload(&server, &first).await.unwrap();
    assert!(matches!(read_again(&server, &early).await, Err(ReadError::Replaced { .. })));
    assert_eq!(read(&server, &first).await.unwrap().as_deref(), Some(first.bytes()));
}

#[tokio::test]
async fn reader_of_a_deleted_xorb_gets_no_bytes_of_its_reupload() {
    let (first, second) = (xorb("bytes", Policy::Lz4), xorb("bytes", Policy::None));
    let setup = Setup::new().await;
    let server = setup.process();
    upload(&server, &first).await.unwrap();
    let early = server.store.find(first.xorb().hash()).await.unwrap().unwrap();
    for wait in [MIN_GRACE, DAY] {
        setup.clock.advance(wait);
        let policy = CollectionPolicy::new(MIN_GRACE, DAY).unwrap();
        server.store.collect_garbage(policy, &CollectionPace::default()).await.unwrap();
    }
    assert!(matches!(read_again(&server, &early).await, Err(ReadError::Deleted { .. })));
    assert!(upload(&server, &second).await.unwrap().was_inserted);
    assert!(matches!(read_again(&server, &early).await, Err(ReadError::Replaced { .. })));
    assert_eq!(read(&server, &first).await.unwrap().as_deref(), Some(second.bytes()));
}

#[tokio::test]
async fn old_layout_is_reloaded_even_if_the_checksum_is_equal() {
    let (first, second) = (xorb("bytes", Policy::Lz4), xorb("bytes", Policy::None));
    let setup = Setup::new().await;
    let server = setup.process();
    upload(&server, &first).await.unwrap();
    let early = server.store.find(first.xorb().hash()).await.unwrap().unwrap();
    let layout: String = second.xorb().layout().pack().iter().map(|byte| format!("{byte:02x}")).collect();
    setup.index.tamper(&format!("UPDATE xorbs SET layout = x'{layout}'")).await;
    server.store.forget_layout(first.xorb().hash());
    assert!(matches!(read_again(&server, &early).await, Err(ReadError::Replaced { .. })));
}

#[tokio::test]
async fn heal_of_a_removed_row_leaves_no_orphan_blob() {
    let first = xorb("bytes", Policy::Lz4);
    let (setup, server) = Setup::quarantined(&first).await;
    let (hash, ticket) = (first.xorb().hash(), Ticket::random());
    assert_eq!(setup.index.stage_xorb(hash, ticket, setup.clock.now()).await.unwrap(), Staging::Damaged);
    // The clock jumps by weeks before the blob is published. No file needs the xorb, so its row is
    // removed.
    for wait in [MIN_GRACE, DAY] {
        setup.clock.advance(wait);
        let policy = CollectionPolicy::new(MIN_GRACE, DAY).unwrap();
        server.store.collect_garbage(policy, &CollectionPace::default()).await.unwrap();
    }
    assert_eq!(setup.index.find_life(hash).await.unwrap(), None);
    let mut draft = server.store.blobs.draft().unwrap();
    draft.write(first.bytes()).unwrap();
    let (hash, layout, chunk_hashes, schemes) = first.xorb().clone().into_parts();
    let row = NewXorb { hash, crc64: 1, layout, chunk_hashes, schemes, owner: None, grant: None };
    let lost = server.store.replace_blob(draft, row, ticket).await.unwrap_err();
    assert!(matches!(&lost, StoreError::Index(error) if error.kind == IndexErrorKind::Lost), "{lost:?}");
    assert_eq!(setup.blobs.list().await.unwrap().len(), 1);
    setup.clock.advance(OBJECT_RETENTION);
    let policy = CollectionPolicy::new(MIN_GRACE, DAY).unwrap();
    server.store.collect_garbage(policy, &CollectionPace::default()).await.unwrap();
    assert_eq!(setup.blobs.list().await.unwrap(), []);
    assert!(upload(&server, &first).await.unwrap().was_inserted);
}

/// Checks the invariants after a heal (an upload that replaces a damaged blob) with a fault in the
/// `n`-th operation. Returns false if there is no such operation.
async fn check_heal_with_fault(n: usize, moment: Moment) -> bool {
    let (first, second) = (xorb("bytes", Policy::Lz4), xorb("bytes", Policy::None));
    let (setup, server) = Setup::quarantined(&first).await;
    setup.faults.arm(n, moment);
    let result = upload(&server, &second).await;
    let Some(failed) = setup.faults.disarm() else {
        assert!(result.unwrap().was_inserted);
        return false;
    };
    let case = format!("operation {n} ({failed}) failed {moment:?}: {result:?}");
    for server in [server, setup.process()] {
        match read(&server, &first).await {
            Ok(bytes) => assert_eq!(bytes.as_deref(), Some(second.bytes()), "{case}"),
            Err(ReadError::Quarantined { .. }) => assert!(result.is_err(), "{case}"),
            Err(error) => panic!("{case}: {error}"),
        }
        server.store.recover().await.unwrap();
    }
    // If the xorb is still damaged, the next upload repairs it.
    let server = setup.process();
    if let Checked::Damaged(_) = check(&server, &first).await {
        assert!(upload(&server, &second).await.unwrap().was_inserted, "{case}");
    }
    assert_eq!(read(&server, &first).await.unwrap().as_deref(), Some(second.bytes()), "{case}");
    assert_eq!(setup.index.totals().await.unwrap().serialized_len, second.bytes().len() as u64, "{case}");
    assert_eq!(setup.index.totals().await.unwrap().xorb_count, 1, "{case}");
    true
}

#[tokio::test]
async fn heal_with_nth_failure_gives_no_wrong_bytes_and_repeats() {
    for moment in [Moment::Before, Moment::After] {
        let mut n = 0;
        while check_heal_with_fault(n, moment).await {
            n += 1;
        }
        assert!(n > 5, "a heal has more than {n} operations that can fail");
    }
}

#[tokio::test]
async fn check_with_nth_failure_marks_nothing_sound_and_repeats() {
    for moment in [Moment::Before, Moment::After] {
        for is_damaged in [false, true] {
            for n in 0.. {
                let (setup, first) = (Setup::new().await, xorb("bytes", Policy::Lz4));
                let server = setup.process();
                upload(&server, &first).await.unwrap();
                if is_damaged {
                    setup.flip(&first).await;
                }
                setup.faults.arm(n, moment);
                let checked = server.store.check_xorb(first.xorb().hash(), &mut Pace::new(None)).await;
                let Some(failed) = setup.faults.disarm() else {
                    assert!(n > 3, "a check has more than {n} operations that can fail");
                    break;
                };
                let case = format!("operation {n} ({failed}) failed {moment:?}: {checked:?}");
                assert!(is_damaged || !setup.is_damaged(&first).await, "{case}");
                check(&server, &first).await;
                assert_eq!(setup.is_damaged(&first).await, is_damaged, "{case}");
                assert_eq!(read(&server, &first).await.is_ok(), !is_damaged, "{case}");
            }
        }
    }
}

#[tokio::test]
async fn every_damage_is_found_and_a_restored_blob_is_accepted() {
    let (first, other) = (xorb("bytes", Policy::Lz4), xorb("other", Policy::Lz4));
    let bytes = first.bytes();
    for damaged in [&bytes[..bytes.len() - 1], &bytes[..1], &[], other.bytes(), &[bytes, bytes].concat()] {
        let setup = Setup::new().await;
        let server = setup.process();
        upload(&server, &first).await.unwrap();
        setup.blobs.damage(setup.key(&first).await, damaged.to_vec());
        let checked = check(&server, &first).await;
        assert!(matches!(checked, Checked::Damaged(Damage::Length { .. } | Damage::OtherXorb { .. })), "{checked:?}");
        setup.blobs.delete(setup.key(&first).await).await.unwrap();
        assert!(matches!(check(&server, &first).await, Checked::Damaged(Damage::Missing)));
        assert!(matches!(read(&server, &first).await, Err(ReadError::Quarantined { .. })));
        setup.blobs.damage(setup.key(&first).await, bytes.to_vec());
        assert!(matches!(check(&server, &first).await, Checked::Sound));
        assert_eq!(read(&server, &first).await.unwrap().as_deref(), Some(bytes));
    }
}

#[tokio::test]
async fn blob_of_another_serialization_is_described_again() {
    let (first, second) = (xorb("bytes", Policy::Lz4), xorb("bytes", Policy::None));
    let setup = Setup::new().await;
    let server = setup.process();
    upload(&server, &first).await.unwrap();
    setup.blobs.damage(setup.key(&first).await, second.bytes().to_vec());
    assert!(matches!(check(&server, &first).await, Checked::Sound));
    assert_eq!(read(&server, &first).await.unwrap().as_deref(), Some(second.bytes()));
    // The check also repairs a row that cannot be parsed.
    setup.index.tamper("UPDATE xorbs SET layout = x'01'").await;
    let server = setup.process();
    assert!(matches!(check(&server, &first).await, Checked::Sound));
    assert_eq!(read(&server, &first).await.unwrap().as_deref(), Some(second.bytes()));
}

#[tokio::test]
async fn upload_begun_before_damage_was_found_must_repeat_and_heals() {
    let (setup, first) = (Setup::new().await, xorb("bytes", Policy::Lz4));
    let server = setup.process();
    upload(&server, &first).await.unwrap();
    assert!(read(&server, &first).await.unwrap().is_some());
    // Another process finds the damage.
    setup.flip(&first).await;
    check(&setup.process(), &first).await;
    assert!(matches!(upload(&server, &first).await, Err(UploadError::FoundDamaged { .. })));
    assert!(upload(&server, &first).await.unwrap().was_inserted);
    assert_eq!(read(&server, &first).await.unwrap().as_deref(), Some(first.bytes()));
}

fn scrub(server: &Arc<Server>) -> Scrub {
    let budget = ScrubBudget { bytes_per_sec: 1 << 40, interval: 30 * DAY };
    Scrub::new(Arc::clone(&server.store), budget, Duration::from_millis(1))
}

#[tokio::test]
async fn scrub_checks_due_xorbs_and_no_others() {
    let setup = Setup::new().await;
    let server = setup.process();
    let (old, young) = (xorb("old", Policy::Lz4), xorb("young", Policy::Lz4));
    upload(&server, &old).await.unwrap();
    setup.clock.advance(29 * DAY);
    upload(&server, &young).await.unwrap();
    setup.flip(&old).await;
    setup.flip(&young).await;
    setup.clock.advance(2 * DAY);
    let mut scrub = scrub(&server);
    scrub.round().await.unwrap();
    assert!(setup.is_damaged(&old).await && !setup.is_damaged(&young).await);
    // The blob of `old` is put back, and the re-check after a restart finds it. The other xorb is
    // due by now.
    setup.blobs.damage(setup.key(&old).await, old.bytes().to_vec());
    setup.clock.advance(29 * DAY);
    scrub = self::scrub(&server);
    scrub.round().await.unwrap();
    assert!(!setup.is_damaged(&old).await && setup.is_damaged(&young).await);
}

#[tokio::test]
async fn xorb_that_fails_a_read_is_checked_at_once() {
    let (setup, first) = (Setup::new().await, xorb("bytes", Policy::Lz4));
    let server = setup.process();
    upload(&server, &first).await.unwrap();
    setup.flip(&first).await;
    let found = server.store.find(first.xorb().hash()).await.unwrap().unwrap();
    let whole = ByteRange::new(0, found.layout().raw_len()).unwrap();
    let stream = server.store.read(&found, Form::Raw, whole).await.unwrap();
    assert!(stream.try_collect::<Vec<_>>().await.is_err());
    scrub(&server).round().await.unwrap();
    assert!(setup.is_damaged(&first).await);
    assert!(matches!(server.store.read(&found, Form::Raw, whole).await, Err(ReadError::Quarantined { .. })));
}

/// The file system is not mounted; the blobs are sound.
#[tokio::test]
async fn when_all_blobs_are_missing_most_are_not_marked() {
    let setup = Setup::new().await;
    let server = setup.process();
    let xorbs: Vec<_> = (0..40).map(|number| xorb(&format!("number {number}"), Policy::Lz4)).collect();
    for xorb in &xorbs {
        upload(&server, xorb).await.unwrap();
        setup.blobs.delete(setup.key(xorb).await).await.unwrap();
    }
    setup.clock.advance(31 * DAY);
    let mut scrub = scrub(&server);
    scrub.round().await.unwrap();
    scrub.round().await.unwrap();
    assert_eq!(server.store.health().await.unwrap().damaged_count, 16);
    // The file system is mounted again. After a restart the re-check finds all blobs sound.
    for xorb in &xorbs {
        setup.blobs.damage(setup.key(xorb).await, xorb.bytes().to_vec());
    }
    let mut scrub = self::scrub(&server);
    scrub.round().await.unwrap();
    assert_eq!(server.store.health().await.unwrap().damaged_count, 0);
}
