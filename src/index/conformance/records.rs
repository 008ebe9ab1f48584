//! The contract on the queries for registration records.

use super::files::{file, file_hash, reader, registration, sha256, term};
use super::{Db, NOW, SqliteIndex, hash, put, xorb};
use crate::format::ChunkHash;
use crate::index::{Claim, ClaimState, NewFile, NewXorb, Registered, Ticket};

suite_in_steps! {
    owned_xorbs_are_those_of_the_domain_that_can_be_seen
    readers_of_a_file_come_with_whether_they_claimed_sha256
    claimed_files_are_those_of_the_repository_and_its_sha256
    outcome_tells_additions_to_known_files_from_none
}

async fn owned_xorbs_are_those_of_the_domain_that_can_be_seen(db: Db) {
    put(&db, xorb(1, 2)).await;
    put(&db, NewXorb { owner: Some("other".to_owned()), ..xorb(2, 2) }).await;
    put(&db, NewXorb { owner: None, ..xorb(3, 2) }).await;
    db.stage_xorb(hash(4), Ticket::random(), NOW).await.unwrap();
    let owned = async |owner: &str| {
        let asked = [1, 2, 3, 4, 5].map(hash).to_vec();
        let mut owned = db.owned_xorbs(asked, owner.to_owned()).await.unwrap();
        owned.sort_unstable_by_key(|hash| *hash.as_bytes());
        owned
    };
    assert_eq!(owned("org").await, [hash(1)]);
    assert_eq!(owned("third").await, []);
    assert!(db.share_xorb(hash(1), "other".to_owned()).await.unwrap());
    assert_eq!(owned("other").await, [hash(1), hash(2)]);
    assert_eq!(db.owned_xorbs(Vec::new(), "org".to_owned()).await.unwrap(), []);
}

async fn readers_of_a_file_come_with_whether_they_claimed_sha256(db: Db) {
    put(&db, xorb(1, 3)).await;
    let register = async |repo: &str, claim: Option<u8>| {
        let new = NewFile { sha256: claim.map(sha256), ..file(9, &[term(1, 0, 1)]) };
        db.register(&registration(repo, vec![new], &[1])).await.unwrap()
    };
    for (repo, claim) in [("b", Some(1)), ("a", Some(1)), ("c", None)] {
        assert_eq!(register(repo, claim).await, Registered::New);
    }
    let readers = async || db.readers_of(file_hash(9)).await.unwrap();
    let pairs = |pairs: [(&str, bool); 3]| pairs.map(|(repo, has_claimed)| (repo.to_owned(), has_claimed));
    assert_eq!(readers().await, pairs([("a", true), ("b", true), ("c", false)]));
    assert_eq!(db.readers_of(file_hash(8)).await.unwrap(), []);
    assert_eq!(db.unverified_sha256(file_hash(9)).await.unwrap(), Some(sha256(1)));
    assert_eq!(db.unverified_sha256(file_hash(8)).await.unwrap(), None);
    let claim = Claim { file: file_hash(9), sha256: sha256(1) };
    assert!(db.settle_claim(claim, ClaimState::False { actual: sha256(2) }).await.unwrap());
    assert_eq!(db.unverified_sha256(file_hash(9)).await.unwrap(), None);
    // A verified sha256 is visible to all readers, and is no longer a claim of a repository.
    register("c", Some(2)).await;
    assert_eq!(readers().await, pairs([("a", false), ("b", false), ("c", false)]));
}

async fn claimed_files_are_those_of_the_repository_and_its_sha256(db: Db) {
    put(&db, xorb(1, 3)).await;
    let register = async |repo: &str, byte: u8, claim: Option<u8>| {
        let new = NewFile { sha256: claim.map(sha256), ..file(byte, &[term(1, 0, 1)]) };
        db.register(&registration(repo, vec![new], &[1])).await.unwrap();
    };
    register("a", 7, None).await;
    register("a", 8, Some(1)).await;
    register("b", 7, Some(2)).await;
    let claimed = async |repo: &str| {
        let mut claimed = db.claimed_files([6, 7, 8].map(file_hash).to_vec(), repo.to_owned()).await.unwrap();
        claimed.sort_unstable_by_key(|(file, _)| *file.as_bytes());
        claimed
    };
    assert_eq!(claimed("a").await, [(file_hash(7), false), (file_hash(8), true)]);
    assert_eq!(claimed("b").await, [(file_hash(7), true)]);
    assert_eq!(claimed("c").await, []);
    let claim = Claim { file: file_hash(7), sha256: sha256(2) };
    assert!(db.settle_claim(claim, ClaimState::Verified).await.unwrap());
    assert_eq!(claimed("a").await, [(file_hash(7), true), (file_hash(8), true)], "the sha256 of file 7 is verified");
}

async fn outcome_tells_additions_to_known_files_from_none(db: Db) {
    put(&db, xorb(1, 3)).await;
    let mut new = registration("r", vec![file(9, &[term(1, 0, 1)])], &[1]);
    assert_eq!(db.register(&new).await.unwrap(), Registered::New);
    assert_eq!(db.register(&new).await.unwrap(), Registered::Known);
    // New deduplication entries alone count as `Known`: they need no record, for which the
    // repository would be charged.
    new.dedup.push((ChunkHash::from_bytes([1; 32]), hash(1)));
    assert_eq!(db.register(&new).await.unwrap(), Registered::Known);
    let found = db.find_dedup(ChunkHash::from_bytes([1; 32]), None, NOW..=NOW).await.unwrap();
    assert_eq!(found.map(|found| found.xorb), Some(hash(1)));
    new.files[0].sha256 = Some(sha256(1));
    assert_eq!(db.register(&new).await.unwrap(), Registered::Added);
    assert_eq!(db.register(&new).await.unwrap(), Registered::Known);
    // One new file makes the outcome `New`, wherever it is in the shard.
    new.files.insert(0, file(8, &[term(1, 0, 2)]));
    new.dedup.push((ChunkHash::from_bytes([2; 32]), hash(1)));
    assert_eq!(db.register(&new).await.unwrap(), Registered::New);
    assert!(db.find_file(file_hash(8), reader("r"), None).await.unwrap().is_some());
}
