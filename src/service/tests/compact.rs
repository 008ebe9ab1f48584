//! Compaction: the contents of new xorbs, reads meanwhile, and a fault in every operation.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryStreamExt};

use super::records::{check_same, file_of, prune, rebuild, register, remove, said, upload_as, xorb_of};
use super::{Moment, Setup, backup};
use crate::blob::memory::MemoryBlobStore;
use crate::blob::{BlobError, BlobKey, BlobStore, BlobStream, Draft};
use crate::format::compression::Policy as Compression;
use crate::format::shard::{FileInfo, Term};
use crate::format::xorb::{BuiltXorb, XorbBuilder};
use crate::format::{ByteRange, ChunkRange, FileHash, RangeHash, XorbHash, merkle};
use crate::index::{ArchiveIndex, Collect, FileIndex, HealthIndex, UsageIndex, XorbIndex, XorbState};
use crate::runtime::clock::{Clock, Timestamp};
use crate::service::access::Claims;
use crate::service::fsck::Presence;
use crate::service::gc::compact::{Compacted, CompactionPlan, MinLive};
use crate::service::gc::{GcAbort, MIN_GRACE, Pace, Policy};
use crate::service::{Detail, Form, ReconstructError, Server};

pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);

fn policy() -> Policy {
    Policy::new(MIN_GRACE, DAY).unwrap()
}

fn half() -> MinLive {
    MinLive::new(0.5).unwrap()
}

async fn plan(server: &Arc<Server>) -> CompactionPlan {
    server.store.plan_compaction(policy(), half()).await.unwrap()
}

/// Compacts, and checks that nothing failed.
pub(super) async fn compact(server: &Arc<Server>) -> Compacted {
    let done = server.store.compact_garbage(policy(), half(), Presence::Alone, &Pace::default()).await.unwrap();
    assert!(done.failure.is_none() && !done.is_stopped && done.failed == 0, "{done:?}");
    done
}

/// Collects until nothing is left to be collected.
pub(super) async fn collect_all(setup: &Setup, server: &Arc<Server>) {
    for _ in 0..3 {
        let done = server.store.collect_garbage(policy(), &Pace::default()).await.unwrap();
        assert!(done.failure.is_none(), "{done:?}");
        setup.clock.advance(MIN_GRACE);
    }
}

/// The numbers from `start` up to but not including `end`.
pub(super) fn numbers(start: u32, end: u32) -> Vec<u32> {
    (start..end).collect()
}

/// A file that is made of these chunks of these xorbs.
pub(super) fn file_across(parts: &[(&BuiltXorb, u32, u32)]) -> FileInfo {
    let (mut terms, mut range_hashes, mut chunks) = (Vec::new(), Vec::new(), Vec::new());
    for (xorb, start, end) in parts {
        let verified = xorb.xorb();
        let inside = *start as usize..*end as usize;
        let hashes = &verified.chunk_hashes()[inside.clone()];
        let lens: Vec<u64> = verified.layout().chunks().map(|place| place.raw.byte_len()).collect();
        let raw_len = u32::try_from(lens[inside.clone()].iter().sum::<u64>()).unwrap();
        terms.push(Term { xorb: verified.hash(), chunks: ChunkRange::new(*start, *end).unwrap(), raw_len });
        range_hashes.push(RangeHash::of(hashes));
        chunks.extend(hashes.iter().copied().zip(lens[inside].iter().copied()));
    }
    let hash = merkle::file_hash(chunks.iter().map(|(hash, len)| (hash, *len)));
    FileInfo { hash, terms, range_hashes: Some(range_hashes), sha256: None }
}

/// The bytes of these chunks.
pub(super) fn bytes_of(chunks: impl IntoIterator<Item = u32>) -> String {
    chunks.into_iter().map(|chunk| format!("chunk {chunk} ").repeat(100)).collect()
}

/// The contents of a file as a reader gets them.
async fn contents(server: &Arc<Server>, file: FileHash) -> Result<String, ReconstructError> {
    let found = server.reconstruct(&Claims::UNRESTRICTED, file, None, Detail::Terms).await?;
    let mut contents = Vec::new();
    for term in found.plan.file.terms {
        let xorb = server.store.find(term.xorb).await.unwrap().unwrap();
        let raw = xorb.layout().raw_range(term.chunks).unwrap();
        let pieces: Vec<bytes::Bytes> =
            server.store.read(&xorb, Form::Raw, raw).await.unwrap().try_collect().await.unwrap();
        contents.extend(pieces.concat());
    }
    Ok(String::from_utf8(contents).unwrap())
}

async fn xorbs_of(server: &Arc<Server>, file: FileHash) -> BTreeSet<String> {
    let found = server.reconstruct(&Claims::UNRESTRICTED, file, None, Detail::Terms).await.unwrap();
    found.plan.file.terms.iter().map(|term| term.xorb.to_string()).collect()
}

/// The runs of each source of a plan, in the order of the plan.
fn runs(plan: &CompactionPlan) -> Vec<Vec<(u32, u32)>> {
    let sources = plan.rewrites().iter().flat_map(|rewrite| &rewrite.sources);
    sources.map(|source| source.runs.iter().map(|run| (run.start(), run.end())).collect()).collect()
}

async fn blobs(setup: &Setup) -> BTreeSet<String> {
    setup.blobs.list().await.unwrap().iter().map(|key| key.xorb_hash().to_string()).collect()
}

/// A store with one xorb of ten chunks, of which a file needs two. The xorb is old enough to be
/// rewritten.
async fn mostly_dead() -> (Setup, Arc<Server>, BuiltXorb, FileInfo) {
    let setup = Setup::new().await;
    let server = setup.process();
    let old = xorb_of(&numbers(0, 10));
    upload_as(&server, "org/a", &old).await;
    let file = file_of(&old, 3, 5, None);
    register(&server, "org/a", vec![file.clone()], &[&old]).await;
    setup.clock.advance(MIN_GRACE);
    (setup, server, old, file)
}

/// The file is readable at every step, and after the old xorb is deleted.
#[tokio::test]
async fn mostly_dead_xorb_is_rewritten_and_its_file_stays_readable() {
    let (setup, server, old, file) = mostly_dead().await;
    let (expected, new) = (bytes_of(3..5), xorb_of(&[3, 4]));
    let planned = plan(&server).await;
    let [rewrite] = planned.rewrites() else { panic!("{planned:?}") };
    assert_eq!(
        (rewrite.hash, rewrite.serialized_len, rewrite.chunk_count),
        (new.xorb().hash(), new.bytes().len() as u64, 2)
    );
    assert_eq!((rewrite.sources[0].xorb, rewrite.sources[0].live_len), (old.xorb().hash(), new.bytes().len() as u64));
    assert_eq!(planned.saved_len(), (old.bytes().len() - new.bytes().len()) as u64);
    // The compaction fails after the new xorb is stored and before the file is switched.
    setup.faults.arm_at("switch_terms", Moment::Before);
    let done = server.store.compact_garbage(policy(), half(), Presence::Alone, &Pace::default()).await.unwrap();
    assert_eq!(setup.faults.disarm(), Some("switch_terms"));
    assert!(done.failure.is_some() && done.made.count == 1 && done.file_count == 0, "{done:?}");
    assert_eq!(contents(&server, file.hash).await.unwrap(), expected);
    assert_eq!(xorbs_of(&server, file.hash).await, BTreeSet::from([old.xorb().hash().to_string()]));
    // The record of the switch was removed.
    assert_eq!(setup.record_seqs().await.len(), 1);
    assert_eq!(rebuild(&setup).await.unwrap().problems, [""; 0]);

    let done = compact(&server).await;
    assert_eq!((done.made.count, done.found.count, done.file_count, done.rewritten.count), (0, 1, 1, 1), "{done:?}");
    assert_eq!(contents(&server, file.hash).await.unwrap(), expected);
    assert_eq!(xorbs_of(&server, file.hash).await, BTreeSet::from([new.xorb().hash().to_string()]));
    assert_eq!(
        super::read(&server, &old).await.unwrap().as_deref(),
        Some(old.bytes()),
        "readers with the old plan continue"
    );
    assert_eq!(super::read(&server, &new).await.unwrap().as_deref(), Some(new.bytes()), "as it was stored");
    let usage = setup.index.repo_usage("org/a".to_owned()).await.unwrap();
    assert_eq!((usage.file_count, usage.physical_len), (1, new.bytes().len() as u64));
    // The grace period of the old xorb begins with the switch.
    setup.clock.advance(MIN_GRACE - Duration::from_millis(1));
    assert_eq!(server.store.collect_garbage(policy(), &Pace::default()).await.unwrap().condemned.count, 0);
    collect_all(&setup, &server).await;
    collect_all(&setup, &server).await;
    assert_eq!(blobs(&setup).await, BTreeSet::from([new.xorb().hash().to_string()]));
    assert_eq!(contents(&server, file.hash).await.unwrap(), expected);
    check_same(&setup, "the old one is gone").await;
    assert!(plan(&server).await.rewrites().is_empty());
    prune(&setup, 100).await;
    check_same(&setup, "pruned").await;
}

/// The terms may belong to one file. The chunks to copy are merged, and the terms of the file are
/// not.
#[tokio::test]
async fn overlapping_or_touching_terms_are_one_run() {
    let setup = Setup::new().await;
    let server = setup.process();
    let old = xorb_of(&numbers(0, 40));
    upload_as(&server, "org/a", &old).await;
    let files = [
        (file_across(&[(&old, 20, 23), (&old, 2, 4), (&old, 20, 23)]), bytes_of([20, 21, 22, 2, 3, 20, 21, 22])),
        (file_across(&[(&old, 22, 25)]), bytes_of(22..25)),
        (file_across(&[(&old, 4, 6), (&old, 39, 40)]), bytes_of([4, 5, 39])),
    ];
    register(&server, "org/a", files.iter().map(|(file, _)| file.clone()).collect(), &[&old]).await;
    setup.clock.advance(MIN_GRACE);
    assert_eq!(runs(&plan(&server).await), [[(2, 6), (20, 25), (39, 40)]]);
    assert_eq!(compact(&server).await.file_count, 3);
    for (file, expected) in &files {
        assert_eq!(contents(&server, file.hash).await.unwrap(), *expected);
    }
    let new = xorb_of(&[2, 3, 4, 5, 20, 21, 22, 23, 24, 39]);
    let row = setup.index.find_file(files[0].0.hash, crate::index::Reader::All, ByteRange::new(0, u64::MAX)).await;
    let terms: Vec<_> = row.unwrap().unwrap().terms.iter().map(|term| (term.xorb, term.chunks.start())).collect();
    assert_eq!(terms, [(new.xorb().hash(), 4), (new.xorb().hash(), 0), (new.xorb().hash(), 4)]);
    check_same(&setup, "after").await;
}

#[tokio::test]
async fn file_across_old_xorbs_is_switched_once_to_a_shared_new_one() {
    let setup = Setup::new().await;
    let server = setup.process();
    let old: Vec<BuiltXorb> = (0..5).map(|number| xorb_of(&numbers(number * 10, number * 10 + 10))).collect();
    for xorb in &old {
        upload_as(&server, "org/a", xorb).await;
    }
    // Another term needs the whole last xorb, so it is not rewritten.
    let parts: Vec<_> =
        old.iter().zip([(0, 1), (3, 5), (9, 10), (0, 2), (0, 10)]).map(|(xorb, (a, b))| (xorb, a, b)).collect();
    let file = file_across(&parts);
    let expected = bytes_of([0, 13, 14, 29, 30, 31].into_iter().chain(40..50));
    register(&server, "org/a", vec![file.clone()], &[]).await;
    setup.clock.advance(MIN_GRACE);
    let planned = plan(&server).await;
    assert_eq!((planned.rewrites().len(), planned.old().count, planned.retained().needed.count), (1, 4, 1));
    let records = setup.record_seqs().await.len();
    let done = compact(&server).await;
    assert_eq!((done.file_count, done.rewritten.count, done.made.count), (1, 4, 1));
    assert_eq!(setup.record_seqs().await.len(), records + 1);
    assert_eq!(xorbs_of(&server, file.hash).await.len(), 2);
    assert_eq!(contents(&server, file.hash).await.unwrap(), expected);
    collect_all(&setup, &server).await;
    assert_eq!(blobs(&setup).await.len(), 2);
    assert_eq!(contents(&server, file.hash).await.unwrap(), expected);
    check_same(&setup, "after").await;
}

/// Two chunks that dedup may find.
fn eligible(from: u32) -> Vec<u32> {
    let is_eligible = |chunk: &u32| xorb_of(&[*chunk]).xorb().chunk_hashes()[0].is_dedup_eligible();
    (from..).filter(is_eligible).take(2).collect()
}

#[tokio::test]
async fn owners_are_not_mixed_and_dedup_gives_the_same_chunks() {
    let setup = Setup::new().await;
    let server = setup.process();
    let asked = eligible(1000);
    let [first, second] = asked[..] else { panic!("two") };
    let (alone, other, both) = (
        xorb_of(&[0, first, 2, 3, 4, 5, 6, 7]),
        xorb_of(&[10, 11, second, 13, 14, 15, 16, 17]),
        xorb_of(&[20, 21, 22, 23, 24, 25, 26, 27]),
    );
    for (repo, xorb) in [("org/a", &alone), ("other/b", &other), ("org/a", &both), ("other/b", &both)] {
        upload_as(&server, repo, xorb).await;
    }
    register(&server, "org/a", vec![file_of(&alone, 0, 2, None)], &[&alone]).await;
    register(&server, "other/b", vec![file_of(&other, 2, 4, None)], &[&other]).await;
    register(&server, "org/a", vec![file_of(&both, 1, 3, None)], &[&both]).await;
    setup.clock.advance(MIN_GRACE);
    let chunks: Vec<u32> = [0, 2, 11, 13, 21, 22].into_iter().chain(asked.clone()).collect();
    let told = said(&setup.index, &chunks).await;
    assert!(told.dedup.iter().flatten().any(|is_told| !is_told) && told.dedup.iter().flatten().any(|is_told| *is_told));
    // The dedup queries in `said` lease xorbs. A lease is not a touch, so all three xorbs are
    // rewritten.
    let planned = plan(&server).await;
    assert_eq!((planned.rewrites().len(), planned.old().count), (3, 3), "{planned:?}");
    assert_eq!(compact(&server).await.rewritten.count, 3);
    assert_eq!(said(&setup.index, &chunks).await.dedup, told.dedup);
    for (new, owners) in [
        (xorb_of(&[0, first]), &["org"][..]),
        (xorb_of(&[second, 13]), &["other"]),
        (xorb_of(&[21, 22]), &["org", "other"]),
    ] {
        let found = crate::index::Compact::owners_of(&setup.index, vec![new.xorb().hash()]).await.unwrap();
        assert_eq!(found.iter().map(|(_, owner)| owner.as_str()).collect::<Vec<_>>(), owners);
    }
    // Dedup responses name the new xorbs, so that no lease retains the old ones.
    setup.clock.advance(MIN_GRACE);
    collect_all(&setup, &server).await;
    assert_eq!(blobs(&setup).await.len(), 3);
    assert_eq!(said(&setup.index, &chunks).await.dedup, told.dedup);
    check_same(&setup, "after").await;
    let made = rebuild(&setup).await.unwrap();
    assert_eq!((made.problems.len(), said(&made.index, &chunks).await.dedup), (0, told.dedup));
}

#[tokio::test]
async fn foreign_single_chunk_does_not_hinder_a_rebuilt_index() {
    let setup = Setup::new().await;
    let server = setup.process();
    let old = xorb_of(&numbers(0, 10));
    upload_as(&server, "org/a", &old).await;
    // `other` has not uploaded the xorb, but proves that it knows the chunk, so it may refer to it.
    register(&server, "other/b", vec![file_of(&old, 3, 4, None)], &[]).await;
    setup.clock.advance(MIN_GRACE);
    assert_eq!(compact(&server).await.file_count, 1);
    collect_all(&setup, &server).await;
    assert_eq!(blobs(&setup).await, BTreeSet::from([xorb_of(&[3]).xorb().hash().to_string()]));
    assert_eq!(contents(&server, file_of(&old, 3, 4, None).hash).await.unwrap(), bytes_of([3]));
    check_same(&setup, "a xorb of one chunk").await;
}

#[tokio::test]
async fn a_plan_changes_nothing_and_is_always_the_same() {
    let (setup, server, _, file) = mostly_dead().await;
    let everything = async || {
        let chunks = numbers(0, 12);
        (
            format!("{:?}", said(&setup.index, &chunks).await),
            blobs(&setup).await,
            setup.record_seqs().await.len(),
            format!("{:?}", setup.index.xorb_lives(None, 9).await.unwrap()),
        )
    };
    // The first queries lease the xorb; the same queries later change nothing.
    let _ = said(&setup.index, &numbers(0, 12)).await;
    let before = everything().await;
    let (first, second) = (plan(&server).await, plan(&setup.process()).await);
    assert_eq!(first.rewrites(), second.rewrites());
    assert_eq!(first.rewrites().len(), 1);
    assert_eq!(everything().await, before);
    assert_eq!(contents(&server, file.hash).await.unwrap(), bytes_of(3..5));
}

#[tokio::test]
async fn recent_well_used_and_unused_xorbs_are_left_alone() {
    let setup = Setup::new().await;
    let server = setup.process();
    let (young, needed, garbage) = (xorb_of(&numbers(0, 10)), xorb_of(&numbers(10, 20)), xorb_of(&numbers(20, 30)));
    for xorb in [&young, &needed, &garbage] {
        upload_as(&server, "org/a", xorb).await;
    }
    register(&server, "org/a", vec![file_of(&young, 0, 1, None), file_of(&needed, 0, 5, None)], &[]).await;
    setup.clock.advance(MIN_GRACE - Duration::from_millis(1));
    assert_eq!((plan(&server).await.retained().in_grace.count, plan(&server).await.rewrites().len()), (2, 0));
    setup.clock.advance(Duration::from_millis(1));
    // Five of ten chunks of the same length are half of a xorb, which is not below the limit.
    let planned = plan(&server).await;
    assert_eq!((planned.old().count, planned.retained().needed.count, planned.retained().in_grace.count), (1, 1, 0));
    let most = MinLive::new(0.51).unwrap();
    assert_eq!(server.store.plan_compaction(policy(), most).await.unwrap().old().count, 2);
    // A client renews `young`, which is in use from then on.
    assert!(server.renew(&Claims::UNRESTRICTED, young.xorb().hash()).await.unwrap());
    let planned = plan(&server).await;
    assert_eq!((planned.old().count, planned.retained().in_grace.count), (0, 1));
    assert_eq!(compact(&server).await.made.count, 0);
}

#[tokio::test]
async fn at_full_share_one_dead_chunk_counts_and_none_does_not() {
    let setup = Setup::new().await;
    let server = setup.process();
    let (almost, whole) = (xorb_of(&numbers(0, 10)), xorb_of(&numbers(10, 20)));
    for xorb in [&almost, &whole] {
        upload_as(&server, "org/a", xorb).await;
    }
    let (a, b) = (file_of(&almost, 0, 9, None), file_of(&whole, 0, 10, None));
    register(&server, "org/a", vec![a.clone(), b.clone()], &[]).await;
    setup.clock.advance(MIN_GRACE);
    let all = MinLive::new(1.0).unwrap();
    let planned = server.store.plan_compaction(policy(), all).await.unwrap();
    assert_eq!(runs(&planned), [[(0, 9)]]);
    let done = server.store.compact(planned, Presence::Shared, &Pace::default()).await;
    assert_eq!((done.rewritten.count, done.failed), (1, 0), "{done:?}");
    assert_eq!(contents(&server, a.hash).await.unwrap(), bytes_of(0..9));
    assert_eq!(contents(&server, b.hash).await.unwrap(), bytes_of(10..20));
}

#[tokio::test]
async fn more_chunks_than_a_xorb_takes_make_a_second_one() {
    let setup = Setup::new().await;
    let server = setup.process();
    let mut files = Vec::new();
    for number in 0..3_u32 {
        let mut builder = XorbBuilder::new(Compression::None);
        // The last chunk is most of the xorb, and no file needs it.
        for chunk in 0..3001_u32 {
            builder.push(format!("{number} {chunk}").as_bytes()).unwrap();
        }
        builder.push(&[7; 100_000]).unwrap();
        let xorb = builder.finish().unwrap();
        upload_as(&server, "org/a", &xorb).await;
        files.push(file_of(&xorb, 0, 3001, None));
    }
    register(&server, "org/a", files.clone(), &[]).await;
    setup.clock.advance(MIN_GRACE);
    let before: Vec<String> = futures_util::future::join_all(files.iter().map(|file| contents(&server, file.hash)))
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let planned = plan(&server).await;
    assert_eq!(planned.rewrites().iter().map(|rewrite| rewrite.chunk_count).collect::<Vec<_>>(), [6002, 3001]);
    assert_eq!(compact(&server).await.rewritten.count, 3);
    for (file, before) in files.iter().zip(before) {
        assert_eq!(contents(&server, file.hash).await.unwrap(), before);
    }
}

#[tokio::test]
async fn damaged_chunk_is_found_while_copied_and_others_rewritten() {
    for presence in [Presence::Alone, Presence::Shared] {
        let setup = Setup::new().await;
        let server = setup.process();
        let (bad, good) = (xorb_of(&numbers(0, 10)), xorb_of(&numbers(10, 20)));
        for xorb in [&bad, &good] {
            upload_as(&server, "org/a", xorb).await;
        }
        let files = [file_of(&bad, 3, 5, None), file_of(&good, 3, 5, None)];
        register(&server, "org/a", files.to_vec(), &[]).await;
        setup.clock.advance(MIN_GRACE);
        let (key, place) =
            (setup.blobs.key_of(bad.xorb().hash()), bad.xorb().layout().chunks().nth(4).unwrap().serialized);
        let mut altered = bad.bytes().to_vec();
        altered[usize::try_from(place.end()).unwrap() - 1] ^= 1;
        setup.blobs.damage(key, altered);
        let done = server.store.compact_garbage(policy(), half(), presence, &Pace::default()).await.unwrap();
        assert_eq!(
            (done.damaged, done.failed, done.made.count, done.file_count),
            (1, 0, 1, 1),
            "{presence:?}: {done:?}"
        );
        assert!(setup.index.find_health(bad.xorb().hash()).await.unwrap().unwrap().damaged_at.is_some());
        assert_eq!(contents(&server, files[1].hash).await.unwrap(), bytes_of(13..15));
        let refused = contents(&server, files[0].hash).await.unwrap_err();
        assert!(matches!(refused, ReconstructError::DamagedXorb { xorb } if xorb == bad.xorb().hash()));
        // The next run does not rewrite a damaged xorb, until an upload has repaired it.
        assert_eq!(plan(&server).await.retained().damaged.count, 1);
        upload_as(&server, "org/a", &bad).await;
        assert_eq!(contents(&server, files[0].hash).await.unwrap(), bytes_of(3..5));
        setup.clock.advance(MIN_GRACE);
        assert_eq!(compact(&server).await.rewritten.count, 1);
        assert_eq!(contents(&server, files[0].hash).await.unwrap(), bytes_of(3..5));
    }
}

#[tokio::test]
async fn changes_between_plan_and_execution_count() {
    let (setup, server, old, file) = mostly_dead().await;
    let more = [file_of(&old, 4, 5, None), file_of(&old, 4, 6, None), file_of(&old, 9, 10, None)];
    let planned = plan(&server).await;
    register(&server, "org/b", more.to_vec(), &[]).await;
    let done = server.store.compact(planned, Presence::Alone, &Pace::default()).await;
    // Terms within a copied run are switched, and others keep the old xorb.
    assert_eq!((done.file_count, done.rewritten.count, done.failed), (2, 0, 0), "{done:?}");
    for (file, expected) in [(&file, 3..5), (&more[0], 4..5), (&more[1], 4..6), (&more[2], 9..10)] {
        assert_eq!(contents(&server, file.hash).await.unwrap(), bytes_of(expected));
    }
    check_same(&setup, "registered meanwhile").await;
    let planned = plan(&server).await;
    assert_eq!(runs(&planned), [[(4, 6), (9, 10)]]);
    remove(&server, more[2].hash, None).await;
    let done = server.store.compact(planned, Presence::Alone, &Pace::default()).await;
    assert_eq!((done.file_count, done.rewritten.count), (1, 1), "{done:?}");
    assert_eq!(contents(&server, more[1].hash).await.unwrap(), bytes_of(4..6));
    assert!(contents(&server, more[2].hash).await.is_err());
    collect_all(&setup, &server).await;
    for (file, expected) in [(&file, 3..5), (&more[0], 4..5), (&more[1], 4..6)] {
        assert_eq!(contents(&server, file.hash).await.unwrap(), bytes_of(expected));
    }
    // A rebuilt index is the same, except for dedup chunks of xorbs that no file needs any more.
    let mut both = [said(&setup.index, &[]).await, said(&rebuild(&setup).await.unwrap().index, &[]).await];
    both.iter_mut().for_each(|said| said.dedup.clear());
    assert_eq!(both[0], both[1]);
}

#[tokio::test]
async fn many_files_are_switched_in_batches_and_each_once() {
    let setup = Setup::new().await;
    let server = setup.process();
    let (a, b) = (xorb_of(&numbers(0, 100)), xorb_of(&numbers(100, 200)));
    for xorb in [&a, &b] {
        upload_as(&server, "org/a", xorb).await;
    }
    // Files of one or two chunks of each xorb, and files of chunks of both xorbs.
    let mut files = Vec::new();
    for start in 0..18 {
        for len in 1..3 {
            files.push((file_of(&a, start, start + len, None), bytes_of(start..start + len)));
            let of_both = file_across(&[(&b, start, start + len), (&a, start, start + 1)]);
            files.push((of_both, bytes_of((100 + start..100 + start + len).chain([start]))));
            files.push((file_of(&b, start, start + len, None), bytes_of(100 + start..100 + start + len)));
        }
    }
    assert!(files.len() > 100);
    register(&server, "org/a", files.iter().map(|(file, _)| file.clone()).collect(), &[]).await;
    setup.clock.advance(MIN_GRACE);
    let records = setup.record_seqs().await.len();
    let done = compact(&server).await;
    assert_eq!((done.file_count, done.rewritten.count), (files.len() as u64, 2));
    assert_eq!(setup.record_seqs().await.len() - records, files.len().div_ceil(64));
    for (file, expected) in &files {
        assert_eq!(contents(&server, file.hash).await.unwrap(), *expected);
    }
    check_same(&setup, "many files").await;
}

#[tokio::test]
async fn inconsistent_index_or_early_clock_aborts_the_plan() {
    let statements: [(&str, &str); 4] = [
        (
            "a term that names a missing xorb",
            "UPDATE file_terms SET terms = CAST(randomblob(32) || substr(terms, 33) AS BLOB)",
        ),
        ("a row that does not parse", "UPDATE file_terms SET terms = zeroblob(44)"),
        (
            "chunks that the xorb does not have",
            "UPDATE file_terms SET terms = CAST(substr(terms, 1, 36) || x'0b000000' || substr(terms, 41) AS BLOB)",
        ),
        (
            "chunks that no xorb can have",
            "UPDATE file_terms SET terms = CAST(substr(terms, 1, 36) || x'ffffffff' || substr(terms, 41) AS BLOB)",
        ),
    ];
    for (what, sql) in statements {
        let (setup, server, ..) = mostly_dead().await;
        setup.index.corrupt(sql).await;
        let result = server.store.compact_garbage(policy(), half(), Presence::Alone, &Pace::default()).await;
        let abort = result.map(|done| panic!("{what}: {done:?}")).unwrap_err();
        assert!(!matches!(abort, GcAbort::Clock { .. }), "{what}: {abort:?}");
        assert_eq!(blobs(&setup).await.len(), 1, "{what}");
    }
    let (setup, server, ..) = mostly_dead().await;
    setup.index.record_collection(Timestamp::from_millis(setup.clock.now().as_millis() + 1)).await.unwrap();
    assert!(matches!(server.store.plan_compaction(policy(), half()).await, Err(GcAbort::Clock { .. })));
}

#[tokio::test]
async fn stopped_compaction_is_completed_by_the_next_one() {
    let (setup, server, _, file) = mostly_dead().await;
    let pace = Pace::default();
    pace.stop.cancel();
    let done = server.store.compact_garbage(policy(), half(), Presence::Alone, &pace).await.unwrap();
    assert!(done.is_stopped && done.failure.is_none() && done.made.count == 0, "{done:?}");
    assert_eq!(blobs(&setup).await.len(), 1);
    assert_eq!(compact(&server).await.file_count, 1);
    assert_eq!(contents(&server, file.hash).await.unwrap(), bytes_of(3..5));
}

#[tokio::test]
async fn new_xorb_published_by_an_upload_meanwhile_is_left_to_it() {
    let (setup, server, _, file) = mostly_dead().await;
    let new: XorbHash = xorb_of(&[3, 4]).xorb().hash();
    // A server has claimed the row, and may publish its blob at any time.
    setup.index.stage_xorb(new, crate::index::Ticket::random(), setup.clock.now()).await.unwrap();
    let done = server.store.compact_garbage(policy(), half(), Presence::Shared, &Pace::default()).await.unwrap();
    assert_eq!((done.failed, done.made.count, done.file_count), (1, 0, 0), "{done:?}");
    assert_eq!(setup.index.find_life(new).await.unwrap().unwrap().state, XorbState::Staged);
    assert_eq!(blobs(&setup).await.len(), 1);
    upload_as(&server, "org/b", &xorb_of(&[3, 4])).await;
    let done = server.store.compact_garbage(policy(), half(), Presence::Shared, &Pace::default()).await.unwrap();
    assert_eq!((done.failed, done.found.count, done.file_count), (0, 1, 1), "{done:?}");
    assert_eq!(contents(&server, file.hash).await.unwrap(), bytes_of(3..5));
}

#[tokio::test]
async fn recorded_unswitched_terms_cost_nothing_without_their_xorb() {
    let (setup, server, _, file) = mostly_dead().await;
    assert_eq!(compact(&server).await.file_count, 1);
    collect_all(&setup, &server).await;
    // A record of a second switch, to a xorb that does not exist.
    let gone = xorb_of(&[2, 3, 4]);
    let moved = file_of(&gone, 1, 3, None);
    assert_eq!(moved.hash, file.hash);
    let shard = crate::format::shard::Shard { files: vec![moved], xorbs: Vec::new() };
    server.store.append_terms(&shard, Vec::new()).await.unwrap().retain();
    check_same(&setup, "the first switch counts").await;
    // The file is removed and registered with its first terms again, and then their xorb is lost.
    // Only the terms of the earlier switch still prove the file.
    remove(&server, file.hash, None).await;
    let old = xorb_of(&numbers(0, 10));
    upload_as(&server, "org/a", &old).await;
    register(&server, "org/a", vec![file_of(&old, 3, 5, None)], &[]).await;
    setup.blobs.delete(setup.blobs.key_of(old.xorb().hash())).await.unwrap();
    let made = rebuild(&setup).await.unwrap();
    assert_eq!(made.problems, [""; 0]);
    let [found] = &made.index.file_records(None).await.unwrap()[..] else { panic!("a file") };
    assert_eq!(found.terms[0].xorb, xorb_of(&[3, 4]).xorb().hash());
}

/// A compaction whose `n`-th operation fails, on a store with two mostly unneeded xorbs and three
/// files of them. The files then read as before, and another run completes the compaction. Returns
/// false if a compaction has no `n`-th operation.
#[cfg(feature = "full-tests")]
async fn check_compaction_with_fault(n: usize, moment: Moment, presence: Presence) -> bool {
    let setup = Setup::new().await;
    let server = setup.process();
    let (a, b) = (xorb_of(&numbers(0, 10)), xorb_of(&numbers(10, 20)));
    for xorb in [&a, &b] {
        upload_as(&server, "org/a", xorb).await;
    }
    let files = [
        (file_of(&a, 3, 5, None), bytes_of(3..5)),
        (file_of(&b, 0, 1, None), bytes_of(10..11)),
        (file_across(&[(&b, 2, 3), (&a, 4, 5)]), bytes_of([12, 4])),
    ];
    register(&server, "org/a", files.iter().map(|(file, _)| file.clone()).collect(), &[&a, &b]).await;
    setup.clock.advance(MIN_GRACE);

    setup.faults.arm(n, moment);
    let result = server.store.compact_garbage(policy(), half(), presence, &Pace::default()).await;
    let failed = setup.faults.disarm();
    let case = format!("operation {n} ({failed:?}) failed {moment:?}, {presence:?}: {result:?}");
    if let (Some(_), Ok(done)) = (failed, &result) {
        assert!(done.failure.is_some() || failed == Some("remove_record") || failed == Some("free_len"), "{case}");
    }
    let check_files = async |server: &Arc<Server>| {
        for (file, expected) in &files {
            assert_eq!(contents(server, file.hash).await.unwrap(), *expected, "{case}");
        }
    };
    check_files(&server).await;
    assert_eq!(crate::index::RepairIndex::faulty_files(&setup.index, None).await.unwrap().faults, [], "{case}");
    for hash in setup.index.list_xorbs().await.unwrap() {
        assert!(setup.blobs.head(setup.blobs.key_of(hash)).await.unwrap().is_some(), "{case}: {hash}");
    }
    let made = rebuild(&setup).await.unwrap();
    assert_eq!((made.problems, made.index.file_records(None).await.unwrap().len()), (Vec::new(), 3), "{case}");

    // The files read as before after a restart, too, and another run completes the compaction.
    let process = setup.process();
    process.store.recover().await.unwrap();
    check_files(&process).await;
    let done = process.store.compact_garbage(policy(), half(), presence, &Pace::default()).await.unwrap();
    assert!(done.failure.is_none() && done.failed == 0, "{case}: {done:?}");
    check_files(&process).await;
    let old = [&a, &b].map(|xorb| xorb.xorb().hash());
    for hash in old {
        assert!(!setup.index.find_life(hash).await.unwrap().unwrap().is_referenced, "{case}");
    }
    setup.clock.advance(MIN_GRACE);
    collect_all(&setup, &process).await;
    assert_eq!(setup.index.list_xorbs().await.unwrap().len(), 1, "{case}");
    assert_eq!(blobs(&setup).await.len(), 1, "{case}");
    check_files(&process).await;
    check_same(&setup, &case).await;
    failed.is_some()
}

#[cfg(feature = "full-tests")]
#[tokio::test]
async fn compaction_with_nth_failure_loses_nothing_and_resumes() {
    for presence in [Presence::Alone, Presence::Shared] {
        for moment in [Moment::Before, Moment::After] {
            let mut n = 0;
            while check_compaction_with_fault(n, moment, presence).await {
                n += 1;
            }
            assert!(n > 25, "a compaction has more than {n} operations that can fail");
        }
    }
}

/// A blob store that runs a compaction when a blob is read for the first time.
#[derive(Debug)]
struct CompactedBlobs {
    inner: MemoryBlobStore,
    server: Arc<Server>,
    is_done: AtomicBool,
}

impl BlobStore for CompactedBlobs {
    fn draft(&self) -> Result<Box<dyn Draft>, BlobError> {
        self.inner.draft()
    }

    fn read(&self, key: BlobKey, range: ByteRange) -> BoxFuture<'_, Result<Option<BlobStream>, BlobError>> {
        async move {
            if !self.is_done.swap(true, Ordering::SeqCst) {
                assert_eq!(compact(&self.server).await.file_count, 1);
            }
            self.inner.read(key, range).await
        }
        .boxed()
    }

    fn head(&self, key: BlobKey) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        self.inner.head(key)
    }

    fn delete(&self, key: BlobKey) -> BoxFuture<'_, Result<bool, BlobError>> {
        self.inner.delete(key)
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        self.inner.list()
    }

    fn remove_stray_drafts(&self) -> BoxFuture<'_, Result<usize, BlobError>> {
        self.inner.remove_stray_drafts()
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), BlobError>> {
        self.inner.probe()
    }

    fn free_len(&self) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        self.inner.free_len()
    }
}

#[tokio::test]
async fn file_switched_during_a_backup_is_in_its_archive() {
    let (setup, server, _, file) = mostly_dead().await;
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("b.rca");
    backup::new_archive(&archive);
    let blobs = CompactedBlobs { inner: setup.blobs.clone(), server: server.clone(), is_done: AtomicBool::new(false) };
    let done = backup::back_up_from(&setup, blobs, &archive).await.unwrap();
    assert_eq!((done.xorb_count, done.file_count, done.waiting_count, done.problem_count), (2, 1, 0, 0), "{done:?}");
    let copy = Setup::new().await;
    assert_eq!(backup::restore(&copy, &archive).await.unwrap(), 1);
    assert_eq!(backup::records(&copy).await, backup::records(&setup).await);
    assert_eq!(contents(&copy.process(), file.hash).await.unwrap(), bytes_of(3..5));
}
