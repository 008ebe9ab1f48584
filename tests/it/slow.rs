//! Slow senders and readers: what they hold is not what others wait for.

use std::time::Duration;

use tokio::time::timeout;

use crate::support::{Metrics, Raw, Start, TestServer, Xorb, eventually, guarded, issue, rng, send, upload_shard};

/// Longest wait for a connection that the server has to close or to serve.
const PATIENCE: Duration = Duration::from_secs(40);

/// A request with a token that declares so many bytes, and what it sends of them.
async fn begin(server: &TestServer, path: &str, token: &str, len: usize, sent: &[u8]) -> Raw {
    let mut connection = Raw::connect(server).await;
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: zorb\r\nauthorization: Bearer {token}\r\ncontent-length: {len}\r\n\r\n");
    connection.send(head).await;
    connection.send(sent).await;
    connection
}

/// Waits until the server has counted so many bytes of bodies.
#[expect(clippy::cast_precision_loss, reason = "some bytes")]
async fn received(server: &TestServer, admin: &str, len: usize) {
    let client = server.client().bearing(admin);
    let is_there = async || Metrics::of(&client).await.get("zorb_received_bytes_total") >= len as f64;
    eventually("what was sent is there", is_there).await;
}

/// More than the memory for small shards, by what they declare.
#[tokio::test]
async fn slow_shards_of_one_owner_do_not_block_other_tenants() {
    const COUNT: usize = 48;
    let (server, mut rng) = (guarded(), rng());
    let [one, two] = ["a/one", "a/two"].map(|repo| issue(&server, "write", repo, &[]));
    let (other, admin) = (issue(&server, "write", "b/x", &[]), issue(&server, "admin", "*", &[]));
    let mut slow = Vec::new();
    for number in 0..COUNT {
        let token = if number % 2 == 0 { &one } else { &two };
        slow.push(begin(&server, "/v1/shards", token, 1 << 20, &[0; 1100]).await);
    }
    received(&server, &admin, COUNT * 1100).await;
    let (xorb, client) = (Xorb::mixed(&mut rng, 3), server.client());
    assert_eq!(send(&client, "POST", &xorb.path(), Some(&other), xorb.bytes.to_vec()).await.status, 201);
    let shard = upload_shard(&xorb, 0, 3).bytes();
    let registered = send(&client, "POST", "/v1/shards", Some(&other), shard).await;
    assert_eq!(registered.status, 200, "{registered:?}");
    for slow in &mut slow {
        assert!(slow.is_silent().await, "nobody needs what they have");
    }
}

#[tokio::test]
async fn a_shard_that_was_spooled_is_registered_as_it_was_sent() {
    let (server, mut rng) = (TestServer::start(), rng());
    // Some 100 bytes for each of its chunks: more than is held in memory while it arrives.
    let xorb = Xorb::stored(crate::support::random_bytes(&mut rng, 4000).chunks(1));
    let client = server.client();
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let shard = upload_shard(&xorb, 0, 4000);
    let bytes = shard.bytes();
    assert!(bytes.len() > 128 << 10, "{}", bytes.len());
    let mut sender = Raw::begin_upload(&server, "/v1/shards", bytes.len()).await;
    let (first, rest) = bytes.split_at(100 << 10);
    sender.send(first).await;
    eventually("it is spooled", async || server.drafts() == 1).await;
    sender.send(rest).await;
    assert_eq!(sender.response().await.json()["result"], 1);
    assert_eq!(server.drafts(), 0);
    let contents = crate::support::read_file(&client, "v1", &shard.file_hash(), None).await.unwrap();
    assert_eq!(contents, xorb.raw);
}

#[tokio::test]
async fn two_repositories_of_one_owner_are_one_tenant() {
    let (server, mut rng) = (Start::default().with("auth", "token").with("max_uploads", 6).start(), rng());
    let [one, two] = ["a/one", "a/two"].map(|repo| issue(&server, "write", repo, &[]));
    let (other, admin) = (issue(&server, "write", "b/x", &[]), issue(&server, "admin", "*", &[]));
    let xorb = Xorb::mixed(&mut rng, 3);
    let (client, counting) = (server.client(), server.client().bearing(&admin));
    let mut uploads = Vec::new();
    for token in [&one, &one, &one, &two, &two, &two] {
        uploads.push(begin(&server, &xorb.path(), token, 1000, b"").await);
    }
    let under_way = async |count: f64| Metrics::of(&counting).await.get("zorb_uploads_in_flight") == count;
    eventually("they are under way", async || under_way(6.0).await).await;
    let post = async |token: &str| send(&client, "POST", &xorb.path(), Some(token), xorb.bytes.to_vec()).await;
    post(&other).await.problem(503, "overloaded");
    drop(uploads.split_off(4));
    eventually("two have ended", async || under_way(4.0).await).await;
    // The second repository alone has one of six, and its owner four.
    post(&two).await.problem(429, "too_many_requests");
    assert_eq!(post(&other).await.status, 201);
}

#[tokio::test]
async fn slowest_upload_is_cut_off_for_another_tenant() {
    let start = Start::default().with("auth", "token").with("max_uploads", 4).with("body_timeout", "600s");
    let (server, mut rng) = (start.start(), rng());
    let (slow, other) = (issue(&server, "write", "a/one", &[]), issue(&server, "write", "b/two", &[]));
    let admin = issue(&server, "admin", "*", &[]);
    let (xorb, client) = (Xorb::incompressible(&mut rng, 1 << 20), server.client());
    let (mut uploads, mut sent) = (Vec::new(), 0);
    // The slowest begins first, and the server has its bytes before the next one begins. Otherwise
    // another one could be the only one that is old enough to be cut. Which one is cut among those
    // that are old enough is tested with a clock of the test (`service::admission`).
    for sent_len in [1000, 3000, 4000, 2000] {
        uploads.push(begin(&server, &xorb.path(), &slow, xorb.bytes.len(), &xorb.bytes[..sent_len]).await);
        sent += sent_len;
        received(&server, &admin, sent).await;
    }
    eventually("one of them makes room", async || {
        let response = send(&client, "POST", &xorb.path(), Some(&other), xorb.bytes.to_vec()).await;
        assert!([201, 503].contains(&response.status), "{response:?}");
        response.status == 201
    })
    .await;
    let cut = timeout(PATIENCE, uploads[0].response()).await.expect("the slowest is cut");
    cut.problem(408, "body_timeout");
    for left in [1, 2, 3] {
        assert!(uploads[left].is_silent().await, "{left}");
    }
    uploads[1].send(&xorb.bytes[3000..]).await;
    assert_eq!(uploads[1].response().await.status, 200);
}

#[tokio::test]
async fn idle_connection_is_closed_for_a_new_one() {
    // Beyond eight there are four for this machine itself, where all of these come from.
    const COUNT: usize = 12;
    let start = Start::default().with("max_connections", 8).with("trusted_proxies", "127.0.0.0/8");
    let (server, mut rng) = (start.with("idle_timeout", "600s").start(), rng());
    let xorb = Xorb::incompressible(&mut rng, 100_000);
    let mut busy = Raw::begin_awaited(&server, &xorb.path(), xorb.bytes.len()).await;
    let mut idle = Vec::new();
    for number in 0..3 * COUNT {
        let mut connection = Raw::connect(&server).await;
        let request = "GET /healthz HTTP/1.1\r\nhost: zorb\r\n\r\n";
        // Half a head, or one request and no other.
        if number < COUNT - 1 && number % 2 == 0 {
            connection.send(&request[..20]).await;
        } else {
            connection.send(request).await;
            let status = timeout(PATIENCE, connection.status()).await.expect("an idle one makes room");
            assert_eq!(status, Some(200), "connection {number}");
        }
        idle.push(connection);
    }
    // Ended, in whatever way: the first ones, and not the one with a request in flight.
    for connection in &mut idle[..COUNT] {
        timeout(PATIENCE, connection.drain()).await.expect("it made room");
    }
    busy.send(&xorb.bytes).await;
    assert_eq!(busy.response().await.status, 201);
}

#[tokio::test]
async fn the_first_head_of_a_connection_has_ten_seconds() {
    let server = Start::default().with("idle_timeout", "600s").start();
    let mut asked = Raw::connect(&server).await;
    let request = "GET /healthz HTTP/1.1\r\nhost: zorb\r\n\r\n";
    asked.send(request).await;
    assert_eq!(asked.status().await, Some(200));
    let mut half = Raw::connect(&server).await;
    half.send("GET /healthz HTTP/1.1\r\nhost:").await;
    timeout(PATIENCE, half.drain()).await.expect("it is closed long before the idle time is over");
    // The time between two requests is another one.
    asked.send(request).await;
    assert_eq!(asked.status().await, Some(200));
}

#[tokio::test]
async fn http_1_1_without_exactly_one_host_is_400() {
    let server = TestServer::start();
    for hosts in ["", "host: a\r\nhost: a\r\n", "host: a/b\r\n", "host: \r\n", "host: a:b\r\n"] {
        let mut connection = Raw::connect(&server).await;
        connection.send(format!("GET /healthz HTTP/1.1\r\n{hosts}\r\n")).await;
        let response = connection.response().await;
        response.problem(400, "invalid_request");
        assert_eq!(response.header("x-request-id").len(), 32, "it is in the log");
    }
    let mut old = Raw::connect(&server).await;
    old.send("GET /healthz HTTP/1.0\r\n\r\n").await;
    assert!(old.rest().await.starts_with(b"HTTP/1.0 200"));
}

#[tokio::test]
async fn a_path_of_thousands_of_characters_is_cut_in_the_log() {
    let server = TestServer::start();
    server.client().get(&format!("/{}", "x".repeat(6000))).await.problem(404, "not_found");
    let line = async || server.log().lines().rfind(|line| line.contains("/xxx")).map(str::to_owned);
    eventually("it is logged", async || line().await.is_some()).await;
    let line = line().await.expect("stored");
    assert!(line.contains(&"x".repeat(199)) && !line.contains(&"x".repeat(200)), "{line}");
}
