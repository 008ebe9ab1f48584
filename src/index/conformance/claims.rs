//! The contract on claims of a sha256.

use super::files::{file, file_hash, reader, registration, sha256, term};
use super::{ANY_LEN, Db, NOW, SqliteIndex, put, xorb};
use crate::format::ByteRange;
use crate::format::shard::Sha256;
use crate::index::{Claim, ClaimState, KnownSha256, NewFile, Reader, Registered};

suite_in_steps! {
    a_file_is_not_known_with_another_sha256
    unverified_claims_of_two_repositories_may_differ
    unverified_claim_is_visible_to_its_makers_only
    unverified_claims_are_listed_in_order_after_any_of_them
    true_sha256_replaces_a_false_claim_and_bars_others
    a_verified_claim_is_settled_once
    a_false_sha256_of_a_file_of_others_counts_as_none
}

const WHOLE: Option<ByteRange> = ByteRange::new(0, u64::MAX);

fn claimed_file(byte: u8) -> Option<KnownSha256> {
    Some(KnownSha256 { file: file_hash(byte), raw_len: 1000, is_verified: false })
}

async fn a_file_is_not_known_with_another_sha256(db: Db) {
    put(&db, xorb(1, 3)).await;
    let claimed = |sha256| NewFile { sha256, ..file(9, &[term(1, 0, 1)]) };
    // Registrations without a claim, or with the same claim, are never refused.
    for sha256 in [None, Some(sha256(1)), Some(sha256(1)), None] {
        let outcome = db.register(&registration("r", vec![claimed(sha256)], &[1])).await.unwrap();
        assert!(matches!(outcome, Registered::New | Registered::Added | Registered::Known), "{outcome:?}");
    }
    let other = registration("r", vec![file(8, &[term(1, 0, 1)]), claimed(Some(sha256(2)))], &[1]);
    assert_eq!(
        db.register(&other).await.unwrap(),
        Registered::OtherSha256 { file: file_hash(9), unverified: Some(sha256(1)) }
    );
    assert_eq!(db.find_file(file_hash(8), Reader::All, WHOLE).await.unwrap(), None);
    assert_eq!(db.find_sha256(sha256(1), reader("r")).await.unwrap(), claimed_file(9));
    assert_eq!(db.find_sha256(sha256(1), reader("s")).await.unwrap(), None);
    assert_eq!(db.find_sha256(sha256(2), Reader::All).await.unwrap(), None);
}

async fn unverified_claims_of_two_repositories_may_differ(db: Db) {
    put(&db, xorb(1, 3)).await;
    let register = async |repo: &str, byte: u8| {
        let new = NewFile { sha256: Some(sha256(byte)), ..file(9, &[term(1, 0, 1)]) };
        db.register(&registration(repo, vec![new], &[1])).await.unwrap()
    };
    for (repo, byte) in [("a", 1), ("b", 2), ("c", 2)] {
        assert_eq!(register(repo, byte).await, Registered::New);
        assert_eq!(register(repo, byte).await, Registered::Known);
    }
    let refused = |byte| Registered::OtherSha256 { file: file_hash(9), unverified: Some(sha256(byte)) };
    assert_eq!((register("b", 1).await, register("a", 2).await), (refused(2), refused(1)));
    let found = async |repo: &str| {
        let mut found = Vec::new();
        for byte in 1..4 {
            found.push(db.find_sha256(sha256(byte), reader(repo)).await.unwrap().map(|known| known.is_verified));
        }
        found
    };
    assert_eq!(found("a").await, [Some(false), None, None]);
    assert_eq!(found("b").await, [None, Some(false), None]);
    let listed = async |repo: &str| db.files_after(reader(repo), None, 1).await.unwrap()[0].sha256;
    assert_eq!((listed("a").await, listed("c").await), (Some(sha256(1)), Some(sha256(2))));
    let sha256_claims_of = async |repo: &str| db.sha256_claims_of(repo.to_owned(), ANY_LEN, None, 9).await.unwrap();
    let claim = |byte| Claim { file: file_hash(9), sha256: sha256(byte) };
    assert_eq!((sha256_claims_of("a").await, sha256_claims_of("b").await), (vec![claim(1)], vec![claim(2)]));
    let next = async |after: Option<&str>| db.next_claimant(ANY_LEN, after.map(str::to_owned)).await.unwrap();
    assert_eq!((next(None).await.as_deref(), next(Some("a")).await.as_deref()), (Some("a"), Some("b")));
    assert_eq!(next(Some("c")).await, None);

    // When a repository loses its claim to the file, its claim of a sha256 is removed, too. Then
    // the claim of another repository is listed.
    db.remove_claims(file_hash(9), Some("a".to_owned()), NOW).await.unwrap();
    assert_eq!(db.unverified_claims(ANY_LEN, None, 9).await.unwrap(), [claim(2)]);
    assert_eq!(found("b").await, [None, Some(false), None]);
    assert_eq!(register("a", 3).await, Registered::New);
    assert!(db.settle_claim(claim(3), ClaimState::Verified).await.unwrap());
    for repo in ["a", "b", "c"] {
        assert_eq!(found(repo).await, [None, None, Some(true)]);
        assert_eq!(sha256_claims_of(repo).await, []);
    }
    assert_eq!(next(None).await, None);
    assert_eq!(register("b", 2).await, Registered::OtherSha256 { file: file_hash(9), unverified: None });
}

async fn unverified_claim_is_visible_to_its_makers_only(db: Db) {
    put(&db, xorb(1, 3)).await;
    let register = async |repo: &str, claim: Option<Sha256>| {
        let new = NewFile { sha256: claim, ..file(9, &[term(1, 0, 1)]) };
        db.register(&registration(repo, vec![new], &[1])).await.unwrap();
    };
    let found = async |byte: u8, repo: &str| db.find_sha256(sha256(byte), reader(repo)).await.unwrap();
    register("first", Some(sha256(1))).await;
    register("second", Some(sha256(1))).await;
    register("silent", None).await;
    assert_eq!(found(1, "first").await, claimed_file(9));
    assert_eq!(found(1, "second").await, claimed_file(9));
    assert_eq!(found(1, "silent").await, None);

    let claim = Claim { file: file_hash(9), sha256: sha256(1) };
    db.settle_claim(claim, ClaimState::Verified).await.unwrap();
    for (repo, sees) in [("first", true), ("second", true), ("silent", true), ("stranger", false)] {
        assert_eq!(found(1, repo).await.is_some_and(|known| known.is_verified), sees, "{repo}");
    }
}

async fn unverified_claims_are_listed_in_order_after_any_of_them(db: Db) {
    put(&db, xorb(1, 3)).await;
    let new = |byte| NewFile { sha256: Some(sha256(byte)), ..file(byte, &[term(1, 0, 1)]) };
    for byte in [7, 3, 5, 9] {
        db.register(&registration("r", vec![new(byte)], &[1])).await.unwrap();
    }
    db.settle_claim(Claim { file: file_hash(3), sha256: sha256(3) }, ClaimState::Verified).await.unwrap();
    let list = async |after: Option<u8>, limit: u32| {
        let claims = db.unverified_claims(ANY_LEN, after.map(file_hash), limit).await.unwrap();
        claims.iter().map(|claim| claim.file.as_bytes()[0]).collect::<Vec<_>>()
    };
    assert_eq!(list(None, 10).await, [7, 5, 9]);
    assert_eq!(list(None, 2).await, [7, 5]);
    assert_eq!(list(Some(7), 1).await, [5]);
    assert_eq!(list(Some(3), 10).await, [5, 9], "`after` can be a settled claim");
    assert_eq!(list(Some(9), 10).await, [0_u8; 0]);
    assert_eq!(list(Some(1), 10).await, [7, 5, 9], "an unknown `after` lists from the beginning");

    let long = NewFile { sha256: Some(sha256(4)), ..file(4, &[term(1, 0, 2)]) };
    let (short_len, long_len) = (new(1).raw_len, long.raw_len);
    assert!(short_len < long_len);
    db.register(&registration("r", vec![long], &[1])).await.unwrap();
    let of_len = async |lens| {
        let claims = db.unverified_claims(lens, None, 10).await.unwrap();
        claims.iter().map(|claim| claim.file.as_bytes()[0]).collect::<Vec<_>>()
    };
    assert_eq!(of_len(0..long_len).await, [7, 5, 9]);
    assert_eq!(of_len(long_len..u64::MAX).await, [4]);
    assert_eq!(of_len(short_len..long_len + 1).await, [7, 5, 9, 4]);
}

async fn true_sha256_replaces_a_false_claim_and_bars_others(db: Db) {
    put(&db, xorb(1, 3)).await;
    let claimed =
        |byte| registration("r", vec![NewFile { sha256: Some(sha256(byte)), ..file(9, &[term(1, 0, 1)]) }], &[1]);
    db.register(&claimed(1)).await.unwrap();
    let claim = Claim { file: file_hash(9), sha256: sha256(1) };
    assert_eq!(db.unverified_claims(ANY_LEN, None, 10).await.unwrap(), [claim]);
    assert!(db.settle_claim(claim, ClaimState::False { actual: sha256(2) }).await.unwrap());
    assert_eq!(db.find_sha256(sha256(1), Reader::All).await.unwrap(), None);
    assert_eq!(db.unverified_claims(ANY_LEN, None, 10).await.unwrap(), []);
    let known = Some(KnownSha256 { file: file_hash(9), raw_len: 1000, is_verified: true });
    assert_eq!(db.find_sha256(sha256(2), reader("r")).await.unwrap(), known);

    // The false claim cannot be made again, by any repository.
    let refused = Registered::OtherSha256 { file: file_hash(9), unverified: None };
    assert_eq!(db.register(&claimed(1)).await.unwrap(), refused);
    assert_eq!(db.register(&claimed(3)).await.unwrap(), refused);
    assert_eq!(db.register(&claimed(2)).await.unwrap(), Registered::Known);
    assert_eq!(db.find_sha256(sha256(2), Reader::All).await.unwrap(), known);
}

async fn a_verified_claim_is_settled_once(db: Db) {
    put(&db, xorb(1, 3)).await;
    let new = NewFile { sha256: Some(sha256(1)), ..file(9, &[term(1, 0, 1)]) };
    db.register(&registration("r", vec![new], &[1])).await.unwrap();
    let claim = Claim { file: file_hash(9), sha256: sha256(1) };
    assert!(db.settle_claim(claim, ClaimState::Verified).await.unwrap());
    assert!(!db.settle_claim(claim, ClaimState::False { actual: sha256(2) }).await.unwrap());
    let found = db.find_sha256(sha256(1), Reader::All).await.unwrap();
    assert_eq!(found, Some(KnownSha256 { file: file_hash(9), raw_len: 1000, is_verified: true }));
    assert_eq!(db.unverified_claims(ANY_LEN, None, 10).await.unwrap(), []);
    let other = NewFile { sha256: Some(sha256(2)), ..file(9, &[term(1, 0, 1)]) };
    let outcome = db.register(&registration("r", vec![other], &[1])).await.unwrap();
    assert_eq!(outcome, Registered::OtherSha256 { file: file_hash(9), unverified: None });
}

/// Otherwise the refusal would tell that another repository has the file.
async fn a_false_sha256_of_a_file_of_others_counts_as_none(db: Db) {
    put(&db, xorb(1, 3)).await;
    let register = async |repo: &str, claimed: &[Option<u8>]| {
        let files = claimed.iter().map(|byte| NewFile { sha256: byte.map(sha256), ..file(9, &[term(1, 0, 1)]) });
        db.register(&registration(repo, files.collect(), &[1])).await.unwrap()
    };
    let claim = |byte| Claim { file: file_hash(9), sha256: sha256(byte) };
    register("owner", &[Some(1)]).await;
    assert!(db.settle_claim(claim(1), ClaimState::Verified).await.unwrap());
    assert_eq!(register("guest", &[Some(2)]).await, Registered::New);
    assert!(db.find_file(file_hash(9), reader("guest"), WHOLE).await.unwrap().is_some());
    for repo in ["owner", "guest"] {
        assert_eq!(db.find_sha256(sha256(2), reader(repo)).await.unwrap(), None, "{repo}");
        let known = KnownSha256 { file: file_hash(9), raw_len: 1000, is_verified: true };
        assert_eq!(db.find_sha256(sha256(1), reader(repo)).await.unwrap(), Some(known), "{repo}");
    }
    assert_eq!(db.unverified_claims(ANY_LEN, None, 9).await.unwrap(), []);
    assert_eq!(db.next_claimant(ANY_LEN, None).await.unwrap(), None);
    // Now the repository has the file, and could have computed its sha256.
    let refused = Registered::OtherSha256 { file: file_hash(9), unverified: None };
    assert_eq!(register("guest", &[Some(2)]).await, refused);
    // A repository that contradicts itself is refused, and does not have the file.
    assert_eq!(register("other", &[Some(2), Some(3)]).await, refused);
    assert_eq!(db.find_file(file_hash(9), reader("other"), WHOLE).await.unwrap(), None);
}
