//! Upload grants (spec 5.4.2): ask, send, commit.

mod hostile;

use serde_json::json;

use crate::support::{
    Client, Grant, Metrics, Raw, Response, Start, TestServer, Xorb, ask, body_for_grant, crc64, guarded, issue, rng,
    send, upload_shard,
};

fn granting() -> TestServer {
    Start::default().with("grants", true).start()
}

fn granting_with_tokens() -> TestServer {
    Start::default().with("grants", true).with("auth", "token").start()
}

/// The bytes that readers get, if they get any.
async fn stored(client: &Client, xorb: &Xorb) -> Option<Response> {
    let response = client.get(&xorb.path()).await;
    if response.status == 404 {
        return None;
    }
    assert_eq!(response.status, 200, "{response:?}");
    Some(response)
}

/// Nobody sees anything of this xorb.
async fn check_invisible(server: &TestServer, xorb: &Xorb) {
    let client = server.client();
    for path in [xorb.path(), xorb.xet_path(), format!("{}/chunks", xorb.path())] {
        client.get(&path).await.problem(404, "not_found");
    }
    assert_eq!(client.head(&xorb.path()).await.status, 404);
    client.post("/v1/shards", upload_shard(xorb, 0, 1).bytes()).await.problem(400, "missing_xorb");
    assert_eq!(Metrics::of(&client).await.get("zorb_store_xorbs"), 0.0);
    assert_eq!(server.blobs(), Vec::<String>::new());
}

#[tokio::test]
async fn granted_bytes_are_invisible_until_the_commit() {
    let (server, mut rng) = (granting(), rng());
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng, 7));
    let grant = Grant::of(&client, &xorb).await;
    check_invisible(&server, &xorb).await;
    let sent = grant.send(&client, xorb.bytes.clone()).await;
    assert_eq!((sent.status, sent.body.len()), (200, 0));
    assert_eq!(server.drafts(), 1);
    check_invisible(&server, &xorb).await;
    // As stock clients do it: neither a body nor a length.
    let mut connection = Raw::connect(&server).await;
    connection.send(format!("POST {} HTTP/1.1\r\nhost: zorb\r\n\r\n", grant.commit_path())).await;
    assert_eq!(connection.response().await.status, 200);
    assert_eq!(stored(&client, &xorb).await.unwrap().body, xorb.bytes);
    assert_eq!((server.blobs(), server.drafts()), (vec![xorb.hash()], 0));
    assert_eq!(client.post("/v1/shards", upload_shard(&xorb, 0, 7).bytes()).await.status, 200);
    // Whoever has it here already sends nothing.
    let known = ask(&client, &xorb.hash(), &xorb.bytes).await;
    assert_eq!((known.status, known.json()), (200, json!({ "was_inserted": false })));
}

#[tokio::test]
async fn a_committed_xorb_is_there_after_the_process_was_killed() {
    let (server, mut rng) = (granting(), rng());
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng, 7));
    let grant = Grant::of(&client, &xorb).await;
    assert_eq!(grant.send(&client, xorb.bytes.clone()).await.status, 200);
    assert_eq!(grant.commit(&client).await.status, 200);
    let (data_dir, _directory) = (server.data_dir().to_owned(), server.directory());
    server.kill();
    let server = Start::default().data_dir(&data_dir).with("grants", true).start();
    assert_eq!(stored(&server.client(), &xorb).await.unwrap().body, xorb.bytes);
    // And the grant is as spent as it was.
    grant.send(&server.client(), xorb.bytes.clone()).await.problem(412, "precondition_failed");
    assert_eq!(grant.commit(&server.client()).await.status, 200);
    assert_eq!(server.drafts(), 0);
}

#[tokio::test]
async fn killed_server_forgets_uncommitted_bytes_and_regrants() {
    let (server, mut rng) = (granting(), rng());
    let xorb = Xorb::mixed(&mut rng, 7);
    let grant = Grant::of(&server.client(), &xorb).await;
    assert_eq!(grant.send(&server.client(), xorb.bytes.clone()).await.status, 200);
    let (data_dir, _directory) = (server.data_dir().to_owned(), server.directory());
    server.kill();
    let server = Start::default().data_dir(&data_dir).with("grants", true).start();
    let client = server.client();
    assert_eq!(server.drafts(), 0);
    check_invisible(&server, &xorb).await;
    grant.commit(&client).await.problem(404, "not_found");
    let again = Grant::of(&client, &xorb).await;
    assert_eq!(again.send(&client, xorb.bytes.clone()).await.status, 200);
    assert_eq!(again.commit(&client).await.status, 200);
    assert_eq!(stored(&client, &xorb).await.unwrap().body, xorb.bytes);
}

#[tokio::test]
async fn stopped_server_leaves_nothing_uncommitted() {
    let (server, mut rng) = (granting(), rng());
    let xorb = Xorb::mixed(&mut rng, 7);
    let grant = Grant::of(&server.client(), &xorb).await;
    assert_eq!(grant.send(&server.client(), xorb.bytes.clone()).await.status, 200);
    let (data_dir, _directory) = (server.data_dir().to_owned(), server.directory());
    server.terminate();
    assert!(server.wait().success());
    assert_eq!(std::fs::read_dir(data_dir.join("tmp")).unwrap().count(), 0);
}

#[tokio::test]
async fn the_checksum_is_of_the_body_and_what_is_stored_has_no_footer() {
    let (server, mut rng) = (granting(), rng());
    let client = server.client();
    for version in [0, 1] {
        let xorb = Xorb::mixed(&mut rng, 4);
        let body = if version == 0 { xorb.with_footer_v0() } else { xorb.with_footer_v1(7) };
        let grant = Grant::from_response(&client, &xorb.hash(), &ask(&client, &xorb.hash(), &body).await);
        grant.send(&client, xorb.bytes.clone()).await.problem(400, "grant_mismatch");
        assert_eq!(grant.send(&client, body).await.status, 200);
        assert_eq!(grant.commit(&client).await.status, 200);
        assert_eq!(stored(&client, &xorb).await.unwrap().body, xorb.bytes);
    }
}

#[tokio::test]
async fn xorb_uploaded_directly_meanwhile_stays_and_commit_succeeds() {
    let (server, mut rng) = (granting(), rng());
    let (client, other) = (server.client(), Xorb::mixed(&mut rng, 7));
    let xorb = other.clone();
    // Longer, so that it does not replace the other.
    let xorb = Xorb::stored(xorb.verified.layout().chunks().map(|place| {
        &xorb.raw[usize::try_from(place.raw.start()).unwrap()..usize::try_from(place.raw.end()).unwrap()]
    }));
    assert_eq!((other.hash(), other.bytes == xorb.bytes), (xorb.hash(), false), "another serialization");
    let (early, late) = (Grant::of(&client, &xorb).await, Grant::of(&client, &xorb).await);
    assert_eq!(early.send(&client, xorb.bytes.clone()).await.status, 200);
    assert_eq!(client.post(&xorb.path(), other.bytes.clone()).await.status, 201);
    let etag = stored(&client, &xorb).await.unwrap().header("etag").to_owned();
    assert_eq!(early.commit(&client).await.status, 200);
    assert_eq!(late.send(&client, xorb.bytes.clone()).await.status, 200, "it is verified all the same");
    assert_eq!(late.commit(&client).await.status, 200);
    let response = stored(&client, &xorb).await.unwrap();
    assert_eq!((response.header("etag"), &response.body), (etag.as_str(), &other.bytes));
    assert_eq!((server.blobs().len(), server.drafts()), (1, 0));
}

/// A granted upload counts as having it.
#[tokio::test]
async fn only_owners_of_a_xorb_are_told_so() {
    let (server, mut rng) = (granting_with_tokens(), rng());
    let client = server.client();
    // One chunk: its hash is known to whoever has seen a reconstruction, and must not do for its bytes.
    let xorb = Xorb::mixed(&mut rng, 1);
    let [a, a_too, b] = ["models/a/one", "models/a/two", "models/b/one"]
        .map(|repo| client.bearing(&issue(&server, "write", repo, &[])));
    let all = client.bearing(&issue(&server, "write", "*", &[]));
    let asked = async |client: &Client| ask(client, &xorb.hash(), &xorb.bytes).await.status;
    assert_eq!(a.post(&xorb.xet_path(), xorb.bytes.clone()).await.status, 200);
    assert_eq!((asked(&a).await, asked(&a_too).await, asked(&all).await), (200, 200, 200));
    assert_eq!(asked(&b).await, 201, "as if it were not there");
    let grant = Grant::of(&b, &xorb).await;
    assert_eq!(grant.send(&client, xorb.bytes.clone()).await.status, 200);
    assert_eq!(asked(&b).await, 201, "not committed yet");
    assert_eq!(grant.commit(&b).await.status, 200);
    assert_eq!(asked(&b).await, 200);
    // Deduplication may mention it to b now, as after a direct upload.
    assert_eq!(b.post("/v1/shards", upload_shard(&xorb, 0, 1).bytes()).await.status, 200);
    assert_eq!(b.get(&format!("/v1/chunks/default/{}", xorb.chunk_hash(0))).await.status, 200);
}

#[tokio::test]
async fn a_request_for_a_grant_that_is_not_of_its_form_is_refused() {
    let (server, mut rng) = (granting(), rng());
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng, 3));
    let path = format!("/v1/xorb-grants/default/{}", xorb.hash());
    let checksum = |algo: &str, value: serde_json::Value| {
        json!({ "length": 100, "checksum": { "algo": algo, "value": value } }).to_string()
    };
    for (body, status, code) in [
        (String::new(), 400, "invalid_request"),
        ("{}".to_owned(), 400, "invalid_request"),
        ("no json".to_owned(), 400, "invalid_request"),
        (json!({ "length": 100 }).to_string(), 400, "invalid_request"),
        (
            json!({ "length": -1, "checksum": { "algo": "crc64nvme", "value": "1" } }).to_string(),
            400,
            "invalid_request",
        ),
        (checksum("crc64nvme", json!(1)), 400, "invalid_request"),
        (checksum("crc64nvme", json!("")), 400, "invalid_request"),
        (checksum("crc64nvme", json!("+1")), 400, "invalid_request"),
        (checksum("crc64nvme", json!("0x1")), 400, "invalid_request"),
        (checksum("crc64nvme", json!("18446744073709551616")), 400, "invalid_request"),
        (body_for_grant(0, 1), 400, "invalid_request"),
        (body_for_grant(67_502_177, 1), 413, "too_large"),
        (format!("{}{}", body_for_grant(100, 1), " ".repeat(5000)), 413, "too_large"),
        // A client of tomorrow, which then uploads directly.
        (checksum("sha256", json!("1")), 404, "not_found"),
    ] {
        client.post(&path, body.clone()).await.problem(status, code);
    }
    client.post("/v1/xorb-grants/default/123", body_for_grant(100, 1)).await.problem(400, "invalid_hash");
    assert_eq!(client.post(&path, body_for_grant(67_502_176, 1)).await.status, 201);
    assert_eq!(client.post(&path, checksum("crc64nvme", json!("18446744073709551615"))).await.status, 201);
    assert_eq!(crc64(b"123456789"), 0xAE8B_1486_0A79_9888, "the checksum of the protocol");
}

/// With a token and without.
#[tokio::test]
async fn without_grants_all_grant_paths_are_404() {
    let mut rng = rng();
    let xorb = Xorb::mixed(&mut rng, 3);
    for (server, token) in [(guarded(), true), (Start::default().with("grants", false).start(), false)] {
        let server =
            if token { server.restart_with(|start| start.with("auth", "token").with("grants", false)) } else { server };
        let client = server.client();
        let token = token.then(|| issue(&server, "write", "*", &[]));
        let body = body_for_grant(xorb.bytes.len(), crc64(&xorb.bytes)).into_bytes();
        let hash = xorb.hash();
        for (method, path) in [
            ("POST", format!("/v1/xorb-grants/default/{hash}")),
            ("PUT", format!("/v1/grants/{hash}?s=x")),
            ("POST", format!("/v1/xorb-commits/default/{hash}/grant/x")),
        ] {
            for token in [None, Some("zorb_forged"), token.as_deref()] {
                send(&client, method, &path, token, body.clone()).await.problem(404, "not_found");
            }
        }
        let paths = client.get("/openapi.json").await.json()["paths"].clone();
        assert!(!paths.as_object().unwrap().keys().any(|path| path.contains("grant")), "{paths}");
    }
}
