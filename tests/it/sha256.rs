//! Files by their sha256: claimed first, and known when the server has read them.

use serde_json::Value;
use zorb::format::shard::Sha256;

use crate::support::{Client, Metrics, TestServer, Xorb, eventually, guarded, issue};
use crate::support::{register, rng, sha256_of, upload_shard};

async fn find(client: &Client, sha256: Sha256) -> Option<Value> {
    let response = client.get(&format!("/v1/sha256/{sha256}")).await;
    if response.status == 404 {
        response.problem(404, "not_found");
        return None;
    }
    assert_eq!(response.status, 200);
    let found = response.json();
    assert_eq!(found["sha256"], sha256.to_string());
    Some(found)
}

async fn is_verified(client: &Client, sha256: Sha256, file: &str) -> bool {
    find(client, sha256).await.is_some_and(|found| found["state"] == "verified" && found["file"] == file)
}

async fn stored(client: &Client, count: usize) -> Xorb {
    let xorb = Xorb::mixed(&mut rng(), count);
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    xorb
}

#[tokio::test]
async fn a_file_is_found_by_its_sha256_and_soon_verified() {
    let server = TestServer::start();
    let client = server.client();
    let xorb = stored(&client, 7).await;
    let sha256 = sha256_of(xorb.raw(2, 6));
    assert_eq!(find(&client, sha256).await, None);
    let shard = upload_shard(&xorb, 2, 6).claiming(sha256);
    register(&client, shard.bytes()).await;
    // At once, in one state or the other.
    assert_eq!(find(&client, sha256).await.unwrap()["file"], shard.file_hash());
    eventually("it is verified", async || is_verified(&client, sha256, &shard.file_hash()).await).await;
    assert_eq!(Metrics::of(&client).await.get("zorb_sha256_verified_total"), 1.0);

    let (upper, path) = (sha256.to_string().to_uppercase(), |text: &str| format!("/v1/sha256/{text}"));
    assert_eq!(client.get(&path(&upper)).await.status, 200);
    for text in ["", "zz", &sha256.to_string()[1..], &format!("{sha256}0")] {
        let response = client.get(&path(text)).await;
        if text.is_empty() {
            response.problem(404, "not_found")
        } else {
            response.problem(400, "invalid_hash")
        };
    }
    // It is still known after a restart, and another one is refused for ever.
    let server = server.restart();
    assert!(is_verified(&server.client(), sha256, &shard.file_hash()).await);
    let other = upload_shard(&xorb, 2, 6).with_sha256(1).bytes();
    server.client().post("/v1/shards", other).await.problem(400, "sha256_conflict");
}

/// Then the true one can be registered.
#[tokio::test]
async fn false_sha256_finds_nothing_after_verification() {
    let server = TestServer::start();
    let client = server.client();
    let xorb = stored(&client, 5).await;
    let (lie, truth) = (Sha256::from_digest([1; 32]), sha256_of(&xorb.raw));
    register(&client, upload_shard(&xorb, 0, 5).claiming(lie).bytes()).await;
    // Whether it was verified by now or not.
    let shard = upload_shard(&xorb, 0, 5).claiming(truth);
    register(&client, shard.bytes()).await;
    assert_eq!(find(&client, lie).await, None);
    eventually("it is verified", async || is_verified(&client, truth, &shard.file_hash()).await).await;
    assert_eq!(Metrics::of(&client).await.get("zorb_sha256_mismatch_total"), 1.0);
    assert!(server.log().contains("sha256 mismatch"));
}

#[tokio::test]
async fn verification_of_a_killed_server_is_done_by_the_next() {
    let server = TestServer::start();
    let client = server.client();
    let mut files = Vec::new();
    for count in 1..20 {
        let xorb = stored(&client, count).await;
        let sha256 = sha256_of(&xorb.raw);
        let shard = upload_shard(&xorb, 0, xorb.chunk_count()).claiming(sha256);
        register(&client, shard.bytes()).await;
        files.push((sha256, shard.file_hash()));
    }
    let (directories, data_dir) = (server.directory(), server.data_dir().to_owned());
    server.kill();
    let server = crate::support::Start::default().data_dir(&data_dir).start();
    for (sha256, file) in &files {
        eventually("it is verified", async || is_verified(&server.client(), *sha256, file).await).await;
    }
    drop(directories);
}

#[tokio::test]
async fn file_of_a_missing_blob_is_logged_once_and_stays_a_claim() {
    let server = TestServer::start();
    let client = server.client();
    let (lost, kept) = (stored(&client, 3).await, stored(&client, 4).await);
    std::fs::remove_file(server.blob(&lost.hash())).unwrap();
    let (lost_sha256, kept_sha256) = (sha256_of(&lost.raw), sha256_of(&kept.raw));
    let lost = upload_shard(&lost, 0, 3).claiming(lost_sha256);
    register(&client, lost.bytes()).await;
    let kept = upload_shard(&kept, 0, 4).claiming(kept_sha256);
    register(&client, kept.bytes()).await;
    eventually("the other is verified", async || is_verified(&client, kept_sha256, &kept.file_hash()).await).await;
    assert_eq!(find(&client, lost_sha256).await.unwrap()["state"], "claimed");
    let unreadable = async || Metrics::of(&client).await.get("zorb_sha256_unreadable") == 1.0;
    eventually("it is counted", unreadable).await;
    let sentence = "cannot read a file to verify its sha256";
    assert_eq!(server.log().matches(sentence).count(), 1);
    assert!(server.log().contains(&lost.file_hash()));
}

#[tokio::test]
async fn false_sha256_does_not_show_the_file_of_another_repository() {
    let server = guarded();
    let of_repo = |repo: &str| server.client().bearing(&issue(&server, "write", repo, &[]));
    let (owner, guest) = (of_repo("a/one"), of_repo("b/two"));
    let known = stored(&owner, 3).await;
    let truth = upload_shard(&known, 0, 3).claiming(sha256_of(&known.raw));
    register(&owner, truth.bytes()).await;
    eventually("it is verified", async || is_verified(&owner, sha256_of(&known.raw), &truth.file_hash()).await).await;

    let lie = Sha256::from_digest([1; 32]);
    let mut responses = Vec::new();
    for xorb in [Xorb::mixed(&mut rng(), 4), known] {
        guest.post(&xorb.path(), xorb.bytes.clone()).await;
        let shard = upload_shard(&xorb, 0, 3).claiming(lie);
        let response = guest.post("/v1/shards", shard.bytes()).await;
        responses.push((response.status, response.body));
        // The lie finds nothing, and the next one is refused.
        eventually("it is dropped", async || find(&guest, lie).await.is_none()).await;
        let again = guest.post("/v1/shards", shard.bytes()).await;
        again.problem(400, "sha256_conflict");
    }
    assert_eq!(responses[0], responses[1]);
    assert_eq!(responses[0].0, 200);
}
