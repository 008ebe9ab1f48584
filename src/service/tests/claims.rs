//! The verification of sha256 claims.

use std::sync::Arc;
use std::time::Duration;

use sha2::Digest;
use tokio::time::{Instant, sleep, timeout};

use super::watched::WatchedBlobs;
use super::{Moment, Setup, upload, xorb};
use crate::blob::{BlobKey, BlobStore};
use crate::format::compression::Policy;
use crate::format::shard::{FileInfo, Sha256, Shard, Term, parse, write_upload};
use crate::format::xorb::BuiltXorb;
use crate::format::{ChunkRange, FileHash, RangeHash, merkle};
use crate::index::{Claim, ClaimState};
use crate::service::access::{Claims, RepoScope, Scope};
use crate::service::claims::{Pauses, Progress, Unsettled};
use crate::service::store_locks::FileChange;
use crate::service::{RegisterError, RegisteredShard, RemoveError, Server, Sha256File};

/// Short, so that no test waits long.
const PAUSES: Pauses =
    Pauses { index: Duration::from_millis(1), first: Duration::from_millis(1), longest: Duration::from_millis(4) };

pub(super) fn writer(repo: &str) -> Claims {
    let repo = RepoScope::One(repo.parse().unwrap());
    Claims { scope: Scope::Write, repo, subject: None, issued_unix_secs: 0, expires_unix_secs: u64::MAX, user: None }
}

/// A file that is one xorb.
pub(super) struct File {
    pub(super) xorb: BuiltXorb,
    /// Its real sha256.
    pub(super) sha256: Sha256,
    pub(super) hash: FileHash,
}

impl File {
    pub(super) fn new(text: &str) -> Self {
        let xorb = xorb(text, Policy::None);
        let raw: String = (0..5).map(|index| format!("{index} {text}").repeat(2000)).collect();
        let chunks = xorb.xorb().layout().chunks().zip(xorb.xorb().chunk_hashes());
        let hash = merkle::file_hash(chunks.map(|(place, hash)| (hash, place.raw.byte_len())));
        Self { sha256: Sha256::from_digest(sha2::Sha256::digest(&raw).into()), hash, xorb }
    }

    /// Makes a file and uploads its xorb.
    pub(super) async fn upload(text: &str, server: &Arc<Server>) -> Self {
        let file = Self::new(text);
        upload(server, &file.xorb).await.unwrap();
        file
    }

    pub(super) fn shard(&self, sha256: Option<Sha256>) -> Vec<u8> {
        let xorb = self.xorb.xorb();
        let raw_len = u32::try_from(xorb.layout().raw_len()).unwrap();
        let terms = vec![Term { xorb: xorb.hash(), raw_len, chunks: xorb.layout().whole() }];
        let range_hashes = Some(vec![RangeHash::of(xorb.chunk_hashes())]);
        let file = FileInfo { hash: self.hash, terms, range_hashes, sha256 };
        write_upload(&Shard { files: vec![file], xorbs: Vec::new() }).unwrap()
    }

    /// The same file with a term for each chunk.
    fn shard_of_chunks(&self, sha256: Sha256) -> Vec<u8> {
        let xorb = self.xorb.xorb();
        let mut shard = parse(&self.shard(Some(sha256))).unwrap();
        let places = xorb.layout().chunks().zip(0..);
        shard.files[0].terms = places
            .map(|(place, index)| Term {
                xorb: xorb.hash(),
                raw_len: u32::try_from(place.raw.byte_len()).unwrap(),
                chunks: ChunkRange::new(index, index + 1).unwrap(),
            })
            .collect();
        shard.files[0].range_hashes = Some(xorb.chunk_hashes().chunks(1).map(RangeHash::of).collect());
        write_upload(&shard).unwrap()
    }

    pub(super) async fn register(
        &self,
        server: &Arc<Server>,
        repo: &str,
        sha256: Sha256,
    ) -> Result<RegisteredShard, RegisterError> {
        server.register(&writer(repo), self.shard(Some(sha256)).into()).await
    }

    fn raw_len(&self) -> u64 {
        self.xorb.xorb().layout().raw_len()
    }

    pub(super) fn key(&self, setup: &Setup) -> BlobKey {
        setup.blobs.key_of(self.xorb.xorb().hash())
    }
}

fn false_sha256(byte: u8) -> Sha256 {
    Sha256::from_digest([byte; 32])
}

async fn find(server: &Arc<Server>, repo: &str, sha256: Sha256) -> Option<Sha256File> {
    server.find_sha256(&writer(repo), sha256).await.unwrap()
}

async fn is_verified(server: &Arc<Server>, repo: &str, file: &File) -> bool {
    find(server, repo, file.sha256).await == Some(Sha256File { file: file.hash, is_verified: true })
}

/// Verifies claims until a condition holds.
async fn verify_until(server: &Arc<Server>, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let held = async {
        while !holds().await {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let verified = async {
        tokio::select! {
            () = server.clone().verify_claims_with(PAUSES) => unreachable!("it never ends"),
            () = held => {}
        }
    };
    timeout(Duration::from_secs(60), verified).await.unwrap_or_else(|_| panic!("timed out before {what}"));
}

#[tokio::test]
async fn claim_is_private_until_verified_then_shared_by_readers() {
    let setup = Setup::new().await;
    let server = setup.process();
    let file = File::upload("true", &server).await;
    file.register(&server, "org/a", file.sha256).await.unwrap();
    server.register(&writer("org/b"), file.shard(None).into()).await.unwrap();
    assert_eq!(find(&server, "org/a", file.sha256).await, Some(Sha256File { file: file.hash, is_verified: false }));
    assert_eq!(find(&server, "org/b", file.sha256).await, None);

    // The verified claim is counted when the index has it, and not before.
    let is_counted = || server.store.metrics.sha256_verified.get() == 1;
    verify_until(&server, "the claim is verified", async || is_verified(&server, "org/a", &file).await && is_counted())
        .await;
    assert!(is_verified(&server, "org/b", &file).await);
    assert_eq!(find(&server, "org/c", file.sha256).await, None, "org/c cannot read the file");
    assert_eq!((server.store.metrics.sha256_verified.get(), server.store.metrics.sha256_mismatch.get()), (1, 0));
}

#[tokio::test]
async fn claim_made_while_verification_idles_is_noticed() {
    let setup = Setup::new().await;
    let server = setup.process();
    let (first, second) = (File::upload("one", &server).await, File::upload("two", &server).await);
    first.register(&server, "r", first.sha256).await.unwrap();
    let mut is_second_there = false;
    verify_until(&server, "both are verified", async || {
        if !is_second_there && is_verified(&server, "r", &first).await {
            second.register(&server, "r", second.sha256).await.unwrap();
            is_second_there = true;
        }
        is_verified(&server, "r", &second).await
    })
    .await;
}

#[tokio::test]
async fn false_claim_is_replaced_and_cannot_be_made_again() {
    let setup = Setup::new().await;
    let server = setup.process();
    let file = File::upload("victim", &server).await;
    file.register(&server, "liar", false_sha256(7)).await.unwrap();
    verify_until(&server, "the claim is found false", async || server.store.metrics.sha256_mismatch.get() == 1).await;
    assert_eq!(find(&server, "liar", false_sha256(7)).await, None);
    assert!(is_verified(&server, "liar", &file).await);
    file.register(&server, "honest", file.sha256).await.unwrap();
    assert!(is_verified(&server, "honest", &file).await);
    let refused = file.register(&server, "liar", false_sha256(7)).await;
    assert!(matches!(refused, Err(RegisterError::OtherSha256 { is_verified: true, .. })), "{refused:?}");
}

#[tokio::test]
async fn a_sha256_of_zeros_claims_nothing_however_often_it_is_sent() {
    let setup = Setup::new().await;
    let server = setup.process();
    let file = File::upload("not hashed", &server).await;
    for repo in ["r", "r", "s"] {
        file.register(&server, repo, false_sha256(0)).await.unwrap();
        assert_eq!(setup.index_claims().await, 0);
    }
    file.register(&server, "r", file.sha256).await.unwrap();
    verify_until(&server, "the true one is verified", async || is_verified(&server, "s", &file).await).await;
    file.register(&server, "s", false_sha256(0)).await.unwrap();
    assert!(is_verified(&server, "s", &file).await);
}

#[tokio::test]
async fn repository_that_contradicts_itself_is_decided_by_the_file() {
    let setup = Setup::new().await;
    let server = setup.process();
    let file = File::upload("first a lie", &server).await;
    file.register(&server, "liar", false_sha256(1)).await.unwrap();
    let refused = file.register(&server, "liar", false_sha256(2)).await;
    assert!(matches!(refused, Err(RegisterError::OtherSha256 { is_verified: true, .. })), "{refused:?}");
    file.register(&server, "honest", file.sha256).await.unwrap();
    assert!(is_verified(&server, "honest", &file).await);

    // The truth is taken at once, although the same repository has lied before.
    let file = File::upload("then the truth", &server).await;
    file.register(&server, "liar", false_sha256(3)).await.unwrap();
    file.register(&server, "liar", file.sha256).await.unwrap();
    assert!(is_verified(&server, "liar", &file).await);

    // An unreadable file settles nothing, and known digests stay.
    let file = File::upload("a file without another claim", &server).await;
    file.register(&server, "someone", false_sha256(4)).await.unwrap();
    setup.blobs.delete(file.key(&setup)).await.unwrap();
    let refused = file.register(&server, "someone", file.sha256).await;
    assert!(matches!(refused, Err(RegisterError::OtherSha256 { is_verified: false, .. })), "{refused:?}");
    assert!(find(&server, "someone", false_sha256(4)).await.is_some());
}

#[tokio::test]
async fn unverified_claim_refuses_no_claim_of_another_repository() {
    let setup = Setup::new().await;
    let blobs = WatchedBlobs::new(setup.blobs.clone());
    let server = setup.process_over(blobs.clone());
    let file = File::upload("claimed by many", &server).await;
    // From now on no read ends, and the registrations need none.
    blobs.set_stuck(true);
    let before = blobs.call_count();
    let claims = [("liar", false_sha256(1)), ("honest", file.sha256), ("other", false_sha256(2))];
    for (repo, sha256) in claims {
        assert!(file.register(&server, repo, sha256).await.unwrap().was_new);
        assert!(!file.register(&server, repo, sha256).await.unwrap().was_new, "it is known");
    }
    assert_eq!(blobs.call_count(), before);
    for (repo, own) in claims {
        for (_, sha256) in claims {
            let known = (sha256 == own).then_some(Sha256File { file: file.hash, is_verified: false });
            assert_eq!(find(&server, repo, sha256).await, known, "{repo}");
        }
    }
    // When the first repository removes the file, its claim is removed, and the others keep their
    // claims.
    server.remove_file(&writer("liar"), file.hash, None).await.unwrap();
    assert_eq!(find(&server, "liar", false_sha256(1)).await, None);
    for (repo, own) in &claims[1..] {
        assert!(find(&server, repo, *own).await.is_some_and(|known| !known.is_verified), "{repo}");
    }
    blobs.set_stuck(false);
    verify_until(&server, "the file was read", async || setup.index_claims().await == 0).await;
    for (repo, own) in &claims[1..] {
        assert!(is_verified(&server, repo, &file).await);
        assert_eq!(find(&server, repo, *own).await.is_some(), *own == file.sha256);
    }
}

#[tokio::test]
async fn verification_is_round_robin_over_repositories() {
    let setup = Setup::new().await;
    let server = setup.process();
    let mut files = Vec::new();
    for index in 0..70 {
        let file = File::upload(&format!("of many, and longer than a round: {index}"), &server).await;
        file.register(&server, "hog", file.sha256).await.unwrap();
        files.push(file);
    }
    let file = File::upload("the only one", &server).await;
    file.register(&server, "small", file.sha256).await.unwrap();
    let (mut progress, all) = (Progress::default(), 0..u64::MAX);
    // A round reads only one file of each repository, because a file is longer than the limit of a
    // round. The hash of the file is compared in the next round.
    for _ in 0..2 {
        assert!(server.store.settle_some(&all, &mut progress, PAUSES).await.unwrap());
    }
    assert_eq!((is_verified(&server, "small", &file).await, setup.index_claims().await), (true, 70 - 1));
    while server.store.settle_some(&all, &mut progress, PAUSES).await.unwrap() {}
    assert_eq!(setup.index_claims().await, 0);
}

#[tokio::test]
async fn long_file_is_verified_in_parts_and_holds_up_no_other() {
    let setup = Setup::new().await;
    let server = setup.process();
    let long = File::upload("each chunk of this one is as long as a round", &server).await;
    server.register(&writer("a"), long.shard_of_chunks(false_sha256(1)).into()).await.unwrap();
    let short = File::upload("short", &server).await;
    short.register(&server, "b", short.sha256).await.unwrap();
    let (mut progress, all) = (Progress::default(), 0..u64::MAX);
    for round in 0..5 {
        assert!(server.store.settle_some(&all, &mut progress, PAUSES).await.unwrap());
        assert!(round == 0 || is_verified(&server, "b", &short).await);
        assert!(!is_verified(&server, "a", &long).await, "round {round}");
    }
    while server.store.settle_some(&all, &mut progress, PAUSES).await.unwrap() {}
    assert!(is_verified(&server, "a", &long).await);
}

/// Unreadable files are tried again until they are readable.
#[tokio::test]
async fn unreadable_files_settle_nothing_and_delay_no_others() {
    let setup = Setup::new().await;
    let server = setup.process();
    // More files than are listed at once: missing ones, short ones, and ones with other bytes. The
    // latter decode as well as the uploaded ones, so only their hashes reveal them.
    let mut altered = Vec::new();
    for index in 0..150 {
        let file = File::upload(&format!("altered {index}"), &server).await;
        file.register(&server, "r", file.sha256).await.unwrap();
        let key = file.key(&setup);
        match index % 3 {
            0 => drop(setup.blobs.delete(key).await.unwrap()),
            1 => setup.blobs.damage(key, file.xorb.bytes()[..100].to_vec()),
            _ => {
                let other = File::new(&format!("another {index}")).xorb;
                assert_eq!(other.xorb().layout(), file.xorb.xorb().layout());
                setup.blobs.damage(key, other.bytes().to_vec());
            }
        }
        altered.push((key, file));
    }
    let good = File::upload("good", &server).await;
    good.register(&server, "r", good.sha256).await.unwrap();
    verify_until(&server, "the last one is verified", async || is_verified(&server, "r", &good).await).await;
    let unsettled = setup.index_claims().await;
    assert_eq!((unsettled, server.store.metrics.sha256_mismatch.get()), (150, 0));

    for (key, file) in &altered {
        setup.blobs.damage(*key, file.xorb.bytes().to_vec());
    }
    verify_until(&server, "all are verified", async || setup.index_claims().await == 0).await;
    for file in altered.iter().map(|(_, file)| file).chain([&good]) {
        assert!(is_verified(&server, "r", file).await);
    }
}

#[tokio::test]
async fn verification_with_nth_failure_repeats_until_it_succeeds() {
    for moment in [Moment::Before, Moment::After] {
        for n in 0.. {
            let setup = Setup::new().await;
            let server = setup.process();
            let file = File::upload("persistent", &server).await;
            file.register(&server, "r", file.sha256).await.unwrap();
            setup.faults.arm(n, moment);
            verify_until(&server, "the claim is settled", async || setup.index_claims().await == 0).await;
            if setup.faults.disarm().is_none() {
                assert!(n > 3, "a verification has more than {n} operations that can fail");
                break;
            }
            assert!(is_verified(&server, "r", &file).await, "operation {n} {moment:?}");
        }
    }
}

#[tokio::test]
async fn dropped_verification_leaves_the_claim_to_the_next_process() {
    let setup = Setup::new().await;
    let blobs = WatchedBlobs::new(setup.blobs.clone());
    let server = setup.process_over(blobs.clone());
    let file = File::upload("interrupted", &server).await;
    file.register(&server, "r", file.sha256).await.unwrap();
    blobs.set_stuck(true);
    let before = blobs.call_count();
    verify_until(&server, "the file is being read", async || blobs.call_count() > before).await;
    assert_eq!(setup.index_claims().await, 1);
    let server = setup.process();
    verify_until(&server, "the claim is verified", async || is_verified(&server, "r", &file).await).await;
}

#[tokio::test]
async fn endless_read_of_a_large_file_does_not_delay_smaller_ones() {
    let setup = Setup::new().await;
    let blobs = WatchedBlobs::new(setup.blobs.clone());
    let mut server = setup.process_over(blobs.clone());
    let (large, small) =
        (File::upload("a large one, for what it is worth", &server).await, File::upload("small", &server).await);
    let (large_len, small_len) = (large.raw_len(), small.raw_len());
    assert!(small_len < large_len);
    let parts = Arc::get_mut(&mut server).unwrap();
    parts.unsettled = Arc::new(Unsettled::new(large_len));
    large.register(&server, "r", large.sha256).await.unwrap();
    blobs.stick_to(large.key(&setup));
    let before = blobs.call_count();
    verify_until(&server, "the small one, which comes while the large one is read, is verified", async || {
        if blobs.call_count() > before && setup.index_claims().await == 1 {
            small.register(&server, "r", small.sha256).await.unwrap();
        }
        is_verified(&server, "r", &small).await
    })
    .await;
    assert!(!is_verified(&server, "r", &large).await);
    blobs.set_stuck(false);
    verify_until(&server, "the large one is verified", async || is_verified(&server, "r", &large).await).await;
}

#[tokio::test]
async fn contradiction_not_decided_in_time_goes_to_the_background() {
    let setup = Setup::new().await;
    let blobs = WatchedBlobs::new(setup.blobs.clone());
    let server = setup.process_over(blobs.clone());
    let file = File::upload("slow", &server).await;
    let claim = Claim { file: file.hash, sha256: false_sha256(1) };
    file.register(&server, "liar", claim.sha256).await.unwrap();
    blobs.set_stuck(true);
    let in_time = || Instant::now() + Duration::from_millis(20);
    assert_eq!(server.settle_before(claim, in_time()).await, None);
    assert_eq!(setup.index_claims().await, 1);
    blobs.set_stuck(false);
    verify_until(&server, "the claim is settled", async || setup.index_claims().await == 0).await;
    let (later, state) = (Instant::now() + Duration::from_secs(60), ClaimState::False { actual: file.sha256 });
    assert_eq!(server.settle_before(claim, later).await, Some(state), "it can be requested again");
}

/// A client that asks to remove a file of others does not make their registrations wait.
#[tokio::test]
async fn removal_of_a_file_of_others_does_not_take_its_lock() {
    let setup = Setup::new().await;
    let server = setup.process();
    let file = File::upload("of others", &server).await;
    file.register(&server, "owner/one", file.sha256).await.unwrap();
    let lock = server.store.lock_files([file.hash], FileChange::Other, Duration::ZERO).await.unwrap();
    let (own, other) = (writer("owner/one"), writer("owner/two"));
    // It does not wait for the lock, and that of the owner does.
    let refused = timeout(Duration::from_secs(20), server.remove_file(&other, file.hash, None)).await.unwrap();
    assert!(matches!(refused, Err(RemoveError::NotFound)), "{refused:?}");
    let mut removing = std::pin::pin!(server.remove_file(&own, file.hash, None));
    assert!(timeout(Duration::from_millis(50), &mut removing).await.is_err());
    drop(lock);
    assert!(removing.await.unwrap().is_file_removed);
}
