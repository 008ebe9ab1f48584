//! Files that the server cuts itself: the bytes are those that were sent, whatever their pieces
//! were, and each store operation of an upload fails once.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{TryStreamExt, stream};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sha2::Digest;

use super::faults::Moment;
use super::{BodyError, Setup};
use crate::format::chunker::chunks;
use crate::format::shard::{FileInfo, Sha256};
use crate::format::{ByteRange, ChunkHash, FileHash, merkle};
use crate::index::Limits;
use crate::runtime::fair::Tenant;
use crate::service::access::{Claims, RepoScope, Scope};
use crate::service::upload::Packing;
use crate::service::{HubError, Quotas, RegisterError, Server, WholeFile};

const REPO: &str = "models/me/model";

fn claims() -> Claims {
    Claims { scope: Scope::Write, repo: RepoScope::One(REPO.parse().unwrap()), ..Claims::UNRESTRICTED }
}

fn rng() -> StdRng {
    let seed = rand::random();
    println!("seed {seed}");
    StdRng::seed_from_u64(seed)
}

fn random(rng: &mut StdRng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill_bytes(&mut bytes);
    bytes
}

fn sha256_of(contents: &[u8]) -> Sha256 {
    Sha256::from_digest(sha2::Sha256::digest(contents).into())
}

/// The hash of a file, from its definition.
fn hash_of(contents: &[u8]) -> FileHash {
    let chunks: Vec<_> = chunks(contents).map(|chunk| (ChunkHash::of(chunk), chunk.len() as u64)).collect();
    merkle::file_hash(chunks.iter().map(|(hash, len)| (hash, *len)))
}

/// Sends a file in pieces of this length.
async fn send(server: &Arc<Server>, contents: &[u8], piece_len: usize, sha256: Sha256) -> Result<(), HubError> {
    let pieces: Vec<_> =
        contents.chunks(piece_len).map(|piece| Ok::<_, BodyError>(Bytes::copy_from_slice(piece))).collect();
    let (claims, len, body) = (claims(), contents.len() as u64, stream::iter(pieces));
    server.receive_whole_file(WholeFile { tenant: claims.tenant(), claims: &claims, sha256, len, body }).await
}

/// The contents of a registered file; `None` if it is not registered.
async fn read(server: &Arc<Server>, file: FileHash) -> Option<Vec<u8>> {
    let found = server.find_file(&claims(), file).await.unwrap()?;
    if found.len == 0 {
        return Some(Vec::new());
    }
    let range = ByteRange::new(0, found.len).unwrap();
    Some(server.read_file(found, range).await.unwrap().try_collect::<Vec<_>>().await.unwrap().concat())
}

#[tokio::test]
async fn whole_file_is_what_was_sent_in_pieces_of_any_size() {
    let (setup, mut rng) = (Setup::new().await, rng());
    let server = setup.process();
    for (len, piece_len) in [(0, 1), (1, 1), (70_000, 7), (300_000, 1000), (3_000_000, 65_537), (900_000, 900_000)] {
        let contents = random(&mut rng, len);
        let (file, sha256) = (hash_of(&contents), sha256_of(&contents));
        send(&server, &contents, piece_len, sha256).await.unwrap();
        assert!(read(&server, file).await.as_deref() == Some(&contents[..]), "{len} bytes in pieces of {piece_len}");
        if len > 0 {
            let found = server.find_sha256(&claims(), sha256).await.unwrap().unwrap();
            assert_eq!((found.file, found.is_verified), (file, true));
        }
    }
    assert_eq!(setup.index_claims().await, 0);
}

#[tokio::test]
async fn whole_file_of_other_bytes_than_stated_is_not_registered() {
    let (setup, mut rng) = (Setup::new().await, rng());
    let server = setup.process();
    let (contents, other) = (random(&mut rng, 200_000), random(&mut rng, 200_000));
    let refused = send(&server, &contents, 5000, sha256_of(&other)).await;
    assert!(matches!(&refused, Err(HubError::Invalid(detail)) if detail.contains("was announced")), "{refused:?}");
    let (claims, sha256) = (claims(), sha256_of(&contents));
    let tenant = claims.tenant();
    for len in [contents.len() as u64 - 1, contents.len() as u64 + 1] {
        let body = stream::iter([Ok::<_, BodyError>(Bytes::from(contents.clone()))]);
        server.receive_whole_file(WholeFile { tenant, claims: &claims, sha256, len, body }).await.unwrap_err();
    }
    let body = stream::iter([Ok(Bytes::from(contents.clone())), Err(BodyError::Stalled)]);
    let len = contents.len() as u64;
    server.receive_whole_file(WholeFile { tenant, claims: &claims, sha256, len, body }).await.unwrap_err();
    assert_eq!(read(&server, hash_of(&contents)).await, None);
    assert_eq!(server.find_sha256(&claims, sha256).await.unwrap(), None);
}

#[tokio::test]
async fn whole_file_beyond_the_quota_is_refused_before_its_bytes() {
    let setup = Setup::new().await;
    let limits = Limits { logical_len: Some(1000), ..Limits::default() };
    let server = setup.process_limited(Quotas::new(limits, [].into(), [].into()));
    let (claims, sha256) = (claims(), sha256_of(&[7; 1001]));
    let body = stream::poll_fn(|_| -> std::task::Poll<Option<Result<Bytes, BodyError>>> { panic!("the body is read") });
    let tenant = claims.tenant();
    let refused = server.receive_whole_file(WholeFile { tenant, claims: &claims, sha256, len: 1001, body }).await;
    assert!(matches!(refused, Err(HubError::Register(RegisterError::OverQuota(_)))), "{refused:?}");
    // Twice, as after a lost response.
    for _ in 0..2 {
        send(&server, &[7; 1000], 100, sha256_of(&[7; 1000])).await.unwrap();
    }
}

/// Checks an upload with a fault in its `n`-th operation. Returns false if it has none.
async fn check_upload_with_fault(n: usize, moment: Moment, contents: &[u8]) -> bool {
    let setup = Setup::new().await;
    let (server, file, sha256) = (setup.process(), hash_of(contents), sha256_of(contents));
    setup.faults.arm(n, moment);
    let result = send(&server, contents, 10_000, sha256).await;
    let Some(failed) = setup.faults.disarm() else {
        result.unwrap();
        return false;
    };
    let case = format!("operation {n} ({failed}) failed {moment:?}: {result:?}");
    let seen = read(&setup.process(), file).await;
    assert!(seen.is_none() || seen.as_deref() == Some(contents), "{case}");
    assert!(result.is_err() || seen.is_some(), "{case}");
    let server = setup.process();
    server.store.agree(false).await.unwrap();
    server.store.recover().await.unwrap();
    send(&server, contents, 10_000, sha256).await.unwrap();
    assert_eq!(read(&server, file).await.as_deref(), Some(contents), "{case}");
    assert_eq!(setup.index_claims().await, 0, "{case}");
    true
}

#[tokio::test]
async fn whole_file_with_nth_failure_is_registered_or_not_there() {
    // Of several xorbs, which are published while the rest arrives.
    let contents = random(&mut rng(), 700_000);
    for moment in [Moment::Before, Moment::After] {
        let mut n = 0;
        while check_upload_with_fault(n, moment, &contents).await {
            n += 1;
        }
        assert!(n > 15, "an upload has {n} operations");
    }
}

/// Packs files, and returns the number of xorbs and the files.
async fn packed(files: Vec<Vec<u8>>) -> (usize, Vec<FileInfo>) {
    let setup = Setup::new().await;
    let store = Arc::clone(&setup.process().store);
    let mut packing = Packing::new(&store, Tenant::SERVER);
    let pack = move || {
        for file in files {
            packing.push(&file).unwrap();
            assert_eq!(packing.end_file().unwrap(), hash_of(&file));
        }
        let (xorbs, files) = packing.finish().unwrap();
        (xorbs.len(), files)
    };
    store.pool.run(pack).await
}

#[tokio::test]
async fn files_of_a_commit_share_a_xorb_and_their_chunks() {
    let long = random(&mut rng(), 200_000);
    let (xorb_count, files) = packed(vec![b"one".to_vec(), Vec::new(), long.clone(), b"one".to_vec()]).await;
    assert_eq!((xorb_count, files.len()), (1, 4));
    assert_eq!(files[0], files[3]);
    assert_eq!((files[1].hash, files[1].terms.len()), (FileHash::EMPTY, 0));
    assert_eq!((files[2].raw_len(), files[2].terms.len()), (long.len() as u64, 1));
    assert_eq!(files[2].terms[0].chunks.start(), 1, "after the chunk of the first file");
}

#[tokio::test]
async fn more_chunks_or_bytes_than_a_xorb_has_go_into_the_next() {
    let (xorb_count, files) = packed((0..9000_u32).map(|n| n.to_le_bytes().to_vec()).collect()).await;
    assert_eq!((xorb_count, files.len()), (2, 9000));
    assert_eq!(files.iter().filter(|file| file.terms[0].xorb == files[0].terms[0].xorb).count(), 8192);
    // One that compresses reaches the limit of raw bytes first.
    let numbers: String = (0..100_000).map(|n| format!("{n:08}\n")).collect();
    for long in [random(&mut rng(), 900_000), numbers.into_bytes()] {
        let len = long.len() as u64;
        let (xorb_count, files) = packed(vec![long]).await;
        assert!((4..8).contains(&xorb_count), "{xorb_count} xorbs");
        assert_eq!((files[0].terms.len(), files[0].raw_len()), (xorb_count, len));
    }
}

/// A chunk that repeats is stored once, unless the file would get too many terms.
#[tokio::test]
async fn file_that_repeats_a_chunk_has_a_limited_number_of_terms() {
    let contents = vec![0; 128 << 17];
    let chunk_count = chunks(&contents).count();
    let (xorb_count, files) = packed(vec![contents]).await;
    let terms = &files[0].terms;
    let stored = terms.iter().map(|term| term.chunks.end()).max().unwrap();
    assert_eq!(chunk_count, 128);
    // Four without a condition, one for each eight chunks, and one more in each xorb.
    let most = 4 + chunk_count / 8 + xorb_count;
    assert!(terms.len() <= most && stored > 1, "{} terms, {stored} chunks stored", terms.len());
}
