//! Grants that are replayed, forged, stolen, or used for something else. Each is refused with its code, and a file that
//! was there before reads the same.

use reqwest::Method;
use tokio::task::JoinSet;
use zorb::service::access::{Claims, GrantRequest, IssuedGrant, KeyRing};

use super::{granting, granting_with_tokens};
use crate::support::{
    Client, Grant, Raw, Response, TestServer, Xorb, ask, body_for_grant, crc64, issue, read_file, rng, shard_of,
    upload_shard,
};

/// A file that must stay what it is.
struct Kept {
    xorb: Xorb,
    file: String,
}

impl Kept {
    /// Stores a file, with a client that may.
    async fn store(client: &Client) -> Self {
        let xorb = Xorb::mixed(&mut rng(), 9);
        assert_eq!(client.post(&xorb.xet_path(), xorb.bytes.clone()).await.status, 200);
        let shard = shard_of(&[(&xorb, 2, 9), (&xorb, 0, 3)]);
        assert_eq!(client.post("/v1/shards", shard.bytes()).await.status, 200);
        Self { xorb, file: shard.file_hash() }
    }

    async fn check(&self, client: &Client) {
        for version in ["v1", "v2"] {
            let bytes = read_file(client, version, &self.file, None).await.unwrap();
            assert!(bytes == [self.xorb.raw(2, 9), self.xorb.raw(0, 3)].concat(), "the file has changed");
        }
    }
}

/// Nothing of this xorb is there, and nothing waits.
async fn check_nothing(server: &TestServer, client: &Client, xorb: &Xorb) {
    client.get(&xorb.path()).await.problem(404, "not_found");
    client.post("/v1/shards", upload_shard(xorb, 0, 1).bytes()).await.problem(400, "missing_xorb");
    assert_eq!(server.drafts(), 0);
}

#[tokio::test]
async fn a_grant_is_good_for_one_upload_also_after_a_restart() {
    let mut server = granting();
    let (mut rng, kept) = (rng(), Kept::store(&server.client()).await);
    let xorb = Xorb::mixed(&mut rng, 5);
    let grant = Grant::of(&server.client(), &xorb).await;
    grant.commit(&server.client()).await.problem(404, "not_found");
    assert_eq!(grant.send(&server.client(), xorb.bytes.clone()).await.status, 200);
    // Once more before the commit, as a client that did not get its response; a stock client takes 412 for done.
    grant.send(&server.client(), xorb.bytes.clone()).await.problem(412, "precondition_failed");
    for _ in 0..2 {
        let client = server.client();
        for _ in 0..2 {
            assert_eq!(grant.commit(&client).await.status, 200);
            grant.send(&client, xorb.bytes.clone()).await.problem(412, "precondition_failed");
            grant.send(&client, "something else").await.problem(412, "precondition_failed");
        }
        assert_eq!(client.get(&xorb.path()).await.body, xorb.bytes);
        assert_eq!((server.blobs().len(), server.drafts()), (2, 0));
        kept.check(&client).await;
        server = server.restart_with(|start| start.with("grants", true));
    }
}

/// By both its texts.
#[tokio::test]
async fn forged_altered_or_foreign_grant_is_refused() {
    let server = granting();
    let (client, mut rng) = (server.client(), rng());
    let kept = Kept::store(&client).await;
    let (xorb, other) = (Xorb::mixed(&mut rng, 5), Xorb::mixed(&mut rng, 5));
    let (grant, for_other) = (Grant::of(&client, &xorb).await, Grant::of(&client, &other).await);
    let signature = |grant: &Grant| grant.path.split_once("?s=").unwrap().1.to_owned();
    let text = signature(&grant);
    let mut altered: Vec<_> = (0..text.len())
        .map(|index| {
            let flipped = if &text[index..=index] == "A" { "B" } else { "A" };
            format!("{}{flipped}{}", &text[..index], &text[index + 1..])
        })
        .collect();
    altered.extend([String::new(), "AAAA".to_owned(), grant.id.clone(), signature(&for_other), text[..60].to_owned()]);
    for wrong in &altered {
        let path = format!("/v1/grants/{}?s={wrong}", xorb.hash());
        let response = Response::of(client.request(Method::PUT, &path).body(xorb.bytes.clone())).await;
        response.problem(403, "forbidden");
    }
    let without = Response::of(client.request(Method::PUT, &format!("/v1/grants/{}", xorb.hash()))).await;
    without.problem(403, "forbidden");
    check_nothing(&server, &client, &xorb).await;

    assert_eq!(grant.send(&client, xorb.bytes.clone()).await.status, 200);
    for wrong in [text.clone(), for_other.id.clone(), "AAAA".to_owned(), format!("{}A", grant.id), "%20".to_owned()] {
        let wrong = Grant { id: wrong, ..grant.clone() };
        // Not a 403: to a stock client that is the end, while a 404 makes it ask for a new grant.
        wrong.commit(&client).await.problem(404, "not_found");
    }
    Grant { xorb: other.hash(), ..grant.clone() }.commit(&client).await.problem(404, "not_found");
    client.get(&xorb.path()).await.problem(404, "not_found");
    kept.check(&client).await;
    assert_eq!(grant.commit(&client).await.status, 200, "the true one still does");
}

#[tokio::test]
async fn an_expired_grant_is_refused_and_its_commit_finds_nothing() {
    let server = granting();
    let (client, mut rng) = (server.client(), rng());
    let kept = Kept::store(&client).await;
    let xorb = Xorb::mixed(&mut rng, 5);
    let ring = KeyRing::parse(&std::fs::read_to_string(server.data_dir().join("keys")).unwrap()).unwrap();
    let IssuedGrant { id, upload } = GrantRequest {
        claims: &Claims::UNRESTRICTED,
        xorb: xorb.verified.hash(),
        body_len: xorb.bytes.len() as u64,
        crc64nvme: crc64(&xorb.bytes),
        expires_unix_secs: 1_700_000_000,
        nonce: [7; 16],
    }
    .issue(&ring);
    let (hash, id) = (xorb.hash(), id.expose().to_owned());
    let grant = Grant { path: format!("/v1/grants/{hash}?s={}", upload.expose()), xorb: hash, id };
    grant.send(&client, xorb.bytes.clone()).await.problem(403, "forbidden");
    // Not a 403: to a stock client that is the end, while a 404 makes it ask for a new grant.
    grant.commit(&client).await.problem(404, "not_found");
    check_nothing(&server, &client, &xorb).await;
    kept.check(&client).await;
}

#[tokio::test]
async fn grant_of_another_repository_or_subject_is_not_committed() {
    let server = granting_with_tokens();
    let (client, mut rng) = (server.client(), rng());
    let token =
        |scope: &str, repo: &str, subject: &str| client.bearing(&issue(&server, scope, repo, &["--subject", subject]));
    let (all, alice) = (token("write", "*", "alice"), token("write", "models/a/one", "alice"));
    let kept = Kept::store(&all).await;
    let xorb = Xorb::mixed(&mut rng, 5);
    let grant = Grant::of(&alice, &xorb).await;
    assert_eq!(grant.send(&client, xorb.bytes.clone()).await.status, 200);
    let (mallory, nobody) = (token("write", "models/a/one", "mallory"), issue(&server, "write", "models/a/one", &[]));
    let others = [mallory, token("write", "models/a/two", "alice"), token("write", "models/b/one", "alice")];
    for other in others.iter().chain([&all, &client.bearing(&nobody), &token("read", "models/a/one", "alice")]) {
        grant.commit(other).await.problem(403, "forbidden");
    }
    grant.commit(&client).await.problem(401, "unauthorized");
    ask(&client, &xorb.hash(), &xorb.bytes).await.problem(401, "unauthorized");
    ask(&token("read", "models/a/one", "alice"), &xorb.hash(), &xorb.bytes).await.problem(403, "forbidden");
    all.get(&xorb.path()).await.problem(404, "not_found");
    kept.check(&all).await;
    // A token that was refreshed meanwhile does.
    assert_eq!(grant.commit(&token("write", "models/a/one", "alice")).await.status, 200);
    assert_eq!(all.get(&xorb.path()).await.body, xorb.bytes);
    // What is committed is told to nobody else either.
    grant.commit(&others[0]).await.problem(403, "forbidden");
}

#[tokio::test]
async fn wrong_bytes_are_refused_and_the_grant_stays_usable() {
    let server = granting();
    let (client, mut rng) = (server.client(), rng());
    let kept = Kept::store(&client).await;
    let (xorb, other) = (Xorb::mixed(&mut rng, 5), Xorb::mixed(&mut rng, 5));
    let (hash, bytes) = (xorb.hash(), &xorb.bytes);
    let granted = async |len: usize, crc: u64| {
        let response = client.post(&format!("/v1/xorb-grants/default/{hash}"), body_for_grant(len, crc)).await;
        Grant::from_response(&client, &hash, &response)
    };
    let mut damaged = bytes.to_vec();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    // What was announced, what is sent, and what it gets.
    let (same, len) = (crc64(bytes), bytes.len());
    for (announced, sent, code) in [
        ((len, same ^ 1), bytes.to_vec(), "grant_mismatch"),
        ((len + 1, same), bytes.to_vec(), "grant_mismatch"),
        ((len - 1, same), bytes.to_vec(), "grant_mismatch"),
        ((len, same), bytes[..len - 1].to_vec(), "grant_mismatch"),
        ((len, same), [bytes, &b"x"[..]].concat(), "grant_mismatch"),
        ((len, same), Vec::new(), "grant_mismatch"),
        ((len - 1, crc64(&bytes[..len - 1])), bytes[..len - 1].to_vec(), "incomplete_body"),
        ((other.bytes.len(), crc64(&other.bytes)), other.bytes.to_vec(), "hash_mismatch"),
        ((20, crc64(b"not a xorb, 20 bytes")), b"not a xorb, 20 bytes".to_vec(), "unsupported_version"),
        ((len, crc64(&damaged)), damaged, ""),
    ] {
        let grant = granted(announced.0, announced.1).await;
        let response = grant.send(&client, sent).await;
        let code = if code.is_empty() { response.json()["code"].as_str().unwrap().to_owned() } else { code.to_owned() };
        response.problem(400, &code);
        grant.commit(&client).await.problem(404, "not_found");
        check_nothing(&server, &client, &xorb).await;
        kept.check(&client).await;
    }
    let grant = granted(len, same).await;
    grant.send(&client, other.bytes.clone()).await.problem(400, "grant_mismatch");
    // Without a length.
    let mut connection = Raw::connect(&server).await;
    connection.send(format!("PUT {} HTTP/1.1\r\nhost: zorb\r\ntransfer-encoding: chunked\r\n\r\n", grant.path)).await;
    connection.response().await.problem(400, "grant_mismatch");
    // A body that breaks off.
    let mut connection = Raw::connect(&server).await;
    connection.send(format!("PUT {} HTTP/1.1\r\nhost: zorb\r\ncontent-length: {len}\r\n\r\n", grant.path)).await;
    connection.send(&bytes[..len - 1]).await;
    connection.finish_sending().await;
    connection.response().await.problem(400, "incomplete_body");
    check_nothing(&server, &client, &xorb).await;
    assert_eq!(grant.send(&client, bytes.clone()).await.status, 200);
    assert_eq!(grant.commit(&client).await.status, 200);
    assert_eq!(client.get(&xorb.path()).await.body, *bytes);
    kept.check(&client).await;
}

#[tokio::test]
async fn of_concurrent_uploads_and_commits_one_takes_effect() {
    let server = granting();
    let (client, mut rng) = (server.client(), rng());
    let xorb = Xorb::incompressible(&mut rng, 8 << 20);
    let grant = Grant::of(&client, &xorb).await;
    let mut uploads = JoinSet::new();
    for _ in 0..6 {
        let (grant, client, bytes) = (grant.clone(), client.clone(), xorb.bytes.clone());
        uploads.spawn(async move { grant.send(&client, bytes).await.status });
    }
    let statuses = uploads.join_all().await;
    assert!(statuses.contains(&200) && statuses.iter().all(|status| [200, 412].contains(status)), "{statuses:?}");
    assert_eq!(server.drafts(), 1);
    let mut commits = JoinSet::new();
    for _ in 0..6 {
        let (grant, client) = (grant.clone(), client.clone());
        commits.spawn(async move { grant.commit(&client).await.status });
    }
    assert_eq!(commits.join_all().await, [200; 6]);
    assert_eq!((server.blobs(), server.drafts()), (vec![xorb.hash()], 0));
    assert_eq!(client.get(&xorb.path()).await.body, xorb.bytes);
}
