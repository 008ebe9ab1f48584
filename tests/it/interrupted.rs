//! Uploads that go wrong half-way: refused ones, duplicates that are none, clients that leave.

use rand::RngExt;
use serde_json::json;
use zorb::format::compression::Policy;

use crate::support::{Metrics, Raw, Start, TestServer, Xorb, eventually, random_bytes, rng};

/// Nothing is under way, nothing is left over, nothing of these is visible; and the server takes and serves a xorb.
async fn check_untouched(server: &TestServer, unwanted: &[&Xorb], health: &Xorb) {
    let client = server.client();
    eventually("every draft is gone", async || server.drafts() == 0).await;
    eventually("no upload is under way", async || Metrics::of(&client).await.get("zorb_uploads_in_flight") == 0.0)
        .await;
    for xorb in unwanted {
        client.get(&xorb.path()).await.problem(404, "not_found");
        client.get(&format!("{}/chunks", xorb.path())).await.problem(404, "not_found");
    }
    assert!([200, 201].contains(&client.post(&health.path(), health.bytes.clone()).await.status));
    assert_eq!(client.get(&health.path()).await.body, health.bytes);
    assert_eq!(server.blobs(), [health.hash()]);
}

#[tokio::test]
async fn duplicate_is_verified_and_never_changes_the_stored_xorb() {
    let (server, mut rng) = (TestServer::start(), rng());
    let client = server.client();
    let chunks: Vec<_> = (0..6).map(|index| vec![index; 5_000]).collect();
    let (xorb, other) = (Xorb::of(Policy::Lz4, &chunks), Xorb::mixed(&mut rng, 6));
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);

    let problem = client.post(&xorb.path(), other.bytes.clone()).await.problem(400, "hash_mismatch");
    assert_eq!((&problem["claimed"], &problem["actual"]), (&json!(xorb.hash()), &json!(other.hash())));
    let mut garbled = xorb.bytes.to_vec();
    garbled[0] = 1;
    client.post(&xorb.path(), garbled).await.problem(400, "unsupported_version");
    client.post(&xorb.path(), xorb.bytes.slice(..xorb.bytes.len() - 1)).await.problem(400, "incomplete_body");
    // The same chunks in another form are the same xorb, and the first form stays.
    let same = Xorb::of(Policy::None, &chunks);
    assert_eq!((same.hash(), same.bytes == xorb.bytes), (xorb.hash(), false));
    assert_eq!(client.post(&xorb.path(), same.bytes.clone()).await.status, 200);

    check_untouched(&server, &[&other], &xorb).await;
}

#[tokio::test]
async fn hanging_up_at_any_byte_leaves_nothing_and_the_server_goes_on() {
    let (server, mut rng) = (TestServer::start(), rng());
    let xorbs: Vec<_> = (0..4).map(|_| Xorb::incompressible(&mut rng, 2 << 20)).collect();
    for round in 0..80 {
        let xorb = &xorbs[round % xorbs.len()];
        let len = xorb.bytes.len();
        let sent = match round % 8 {
            0 => 0,
            1 => rng.random_range(1..16),
            2 => len - 1,
            _ => rng.random_range(0..len),
        };
        let mut connection = Raw::begin_upload(&server, &xorb.path(), len).await;
        connection.send(&xorb.bytes[..sent]).await;
        match round % 3 {
            0 => connection.reset(),
            1 => drop(connection),
            // Only this client hears about it: it has stopped sending, and still listens.
            _ => {
                connection.finish_sending().await;
                connection.response().await.problem(400, "incomplete_body");
            }
        }
    }
    check_untouched(&server, &xorbs.iter().collect::<Vec<_>>(), &Xorb::mixed(&mut rng, 3)).await;
}

#[tokio::test]
async fn hanging_up_within_a_chunked_body_leaves_nothing() {
    let (server, mut rng) = (TestServer::start(), rng());
    let xorb = Xorb::incompressible(&mut rng, 1 << 20);
    for round in 0..20 {
        let mut connection = Raw::connect(&server).await;
        let path = xorb.path();
        let head = format!("POST {path} HTTP/1.1\r\nhost: zorb\r\ntransfer-encoding: chunked\r\n\r\n");
        connection.send(head).await;
        // The last time everything is there but the chunk of length 0 that ends the body.
        let len = if round == 19 { xorb.bytes.len() } else { rng.random_range(1..xorb.bytes.len()) };
        connection.send(format!("{len:x}\r\n")).await;
        connection.send(&xorb.bytes[..len]).await;
        connection.send("\r\n").await;
        if round % 2 == 0 { connection.reset() } else { drop(connection) }
    }
    check_untouched(&server, &[&xorb], &Xorb::mixed(&mut rng, 3)).await;
}

#[tokio::test]
async fn drafts_of_stalled_clients_are_removed_while_serving() {
    let (server, mut rng) = (Start::default().with("body_timeout", "1s").start(), rng());
    let xorb = Xorb::incompressible(&mut rng, 2 << 20);
    let mut connections = Vec::new();
    for _ in 0..4 {
        let mut connection = Raw::begin_upload(&server, &xorb.path(), xorb.bytes.len()).await;
        connection.send(&xorb.bytes[..1 << 20]).await;
        connections.push(connection);
    }
    for connection in &mut connections {
        connection.response().await.problem(408, "body_timeout");
    }
    check_untouched(&server, &[&xorb], &Xorb::mixed(&mut rng, 3)).await;
}

#[tokio::test]
async fn client_that_half_closes_still_gets_its_response() {
    let (server, mut rng) = (TestServer::start(), rng());
    let xorb = Xorb::mixed(&mut rng, 5);
    let mut connection = Raw::begin_upload(&server, &xorb.path(), xorb.bytes.len()).await;
    connection.send(&xorb.bytes).await;
    connection.finish_sending().await;
    assert_eq!(connection.response().await.status, 201);

    let mut connection = Raw::connect(&server).await;
    connection.send(format!("GET {} HTTP/1.1\r\nhost: zorb\r\n\r\n", xorb.path())).await;
    connection.finish_sending().await;
    let response = connection.response().await;
    assert_eq!((response.status, response.body), (200, xorb.bytes));
}

#[tokio::test]
async fn a_connection_goes_on_after_a_refused_upload() {
    let (server, mut rng) = (Start::default().with("grants", false).start(), rng());
    let (xorb, other) = (Xorb::mixed(&mut rng, 3), Xorb::mixed(&mut rng, 3));
    let mut connection = Raw::connect(&server).await;
    let garbage = random_bytes(&mut rng, 10_000);
    let refused =
        [(&other.bytes[..], "hash_mismatch"), (&xorb.bytes[..xorb.bytes.len() - 1], "incomplete_body"), (&garbage, "")];
    for (body, code) in refused {
        connection.send(request(&xorb.path(), body)).await;
        let response = connection.response().await;
        assert_eq!((response.status, response.headers.get("connection")), (400, None));
        assert!(code.is_empty() || response.json()["code"] == code);
    }
    connection.send(request("/xorbs/123", &xorb.bytes)).await;
    connection.response().await.problem(400, "invalid_hash");
    connection.send(request(&format!("/v1/xorb-grants/default/{}", xorb.hash()), b"{}")).await;
    connection.response().await.problem(404, "not_found");
    connection.send(request(&xorb.path(), &xorb.bytes)).await;
    assert_eq!(connection.response().await.status, 201);
    connection.send(format!("GET {} HTTP/1.1\r\nhost: zorb\r\n\r\n", xorb.path())).await;
    assert_eq!(connection.response().await.body, xorb.bytes);
}

fn request(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nhost: zorb\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

#[tokio::test]
async fn a_client_that_goes_on_sending_after_it_was_refused_reads_why() {
    let server = Start::default().with("grants", false).start();
    let hash = "0".repeat(64);
    for (path, len, status, code) in [
        // The first chunk header says it all.
        (format!("/xorbs/{hash}"), 60 << 20, 400, "unsupported_version"),
        (format!("/v1/xorbs/default/{hash}"), 60 << 20, 400, "unsupported_version"),
        // The length says it all.
        (format!("/xorbs/{hash}"), 100 << 20, 413, "too_large"),
        // The path says it all.
        ("/xorbs/123".to_owned(), 60 << 20, 400, "invalid_hash"),
        (format!("/v1/xorb-grants/default/{hash}"), 60 << 20, 404, "not_found"),
    ] {
        for _ in 0..3 {
            let mut connection = Raw::begin_upload(&server, &path, len).await;
            let piece = vec![0xff; 1 << 20];
            for _ in 0..len >> 20 {
                // A client may notice that the server reads no more; what counts is that the response arrives.
                if connection.try_send(&piece).await.is_err() {
                    break;
                }
            }
            connection.response().await.problem(status, code);
        }
    }
}

#[tokio::test]
async fn body_of_a_refused_request_is_never_the_next_request() {
    let (server, mut rng) = (TestServer::start(), rng());
    let xorb = Xorb::mixed(&mut rng, 3);
    let hidden = format!("GET /hidden HTTP/1.1\r\nhost: zorb\r\nx-pad: {}\r\n\r\n", "x".repeat(1000)).repeat(20);
    let next = b"GET /healthz HTTP/1.1\r\nhost: zorb\r\n\r\n";
    for path in [&xorb.path(), "/xorbs/123", "/unknown", "/v1/xorbs/default/x"] {
        for is_split in [false, true] {
            let mut connection = Raw::connect(&server).await;
            let [head, body] = [request(path, b""), hidden.clone().into_bytes()];
            let head = String::from_utf8(head).unwrap().replace("length: 0", &format!("length: {}", body.len()));
            connection.send(&head).await;
            let (begin, rest) = body.split_at(if is_split { body.len() / 2 } else { 0 });
            connection.send(begin).await;
            if is_split {
                // The head is read by now; the rest of the body comes when the response may be there already.
                server.client().get("/healthz").await;
            }
            connection.send([rest, next].concat()).await;
            let response = connection.response().await;
            assert!([400, 404].contains(&response.status));
            assert_eq!(connection.response().await.status, 200, "{path}");
        }
    }
    // A body that is too long to be swallowed ends the connection instead.
    let mut connection = Raw::begin_upload(&server, "/unknown", 1 << 20).await;
    connection.send(&hidden).await;
    let response = connection.response().await;
    assert_eq!((response.status, response.header("connection")), (404, "close"));
    assert_eq!(connection.rest().await, b"");
    assert!(!server.log().contains("/hidden"));
}

#[tokio::test]
async fn an_upload_that_could_not_be_published_can_be_sent_again() {
    let (mut server, mut rng) = (TestServer::start(), rng());
    for restart in [false, true] {
        let group_of = |xorb: &Xorb| server.data_dir().join("xorbs").join(&xorb.hash()[..2]);
        let xorb = loop {
            let xorb = Xorb::mixed(&mut rng, 3);
            // A directory that is empty can be removed.
            if std::fs::remove_dir(group_of(&xorb)).is_ok() {
                break xorb;
            }
        };
        let group = group_of(&xorb);
        std::fs::write(&group, "in the way").expect("the test can write");
        let client = server.client();
        client.post(&xorb.path(), xorb.bytes.clone()).await.problem(500, "internal");
        client.get(&xorb.path()).await.problem(404, "not_found");
        assert_eq!(server.drafts(), 0);
        std::fs::remove_file(&group).expect("it is in the way");
        if restart {
            // A start makes what is missing.
            server = server.restart();
        } else {
            std::fs::create_dir(&group).expect("it was there before");
        }
        assert_eq!(server.client().post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
        assert_eq!(server.client().get(&xorb.path()).await.body, xorb.bytes);
    }
}
