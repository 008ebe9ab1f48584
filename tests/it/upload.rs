//! Uploads: the response, what is stored, what is left behind.

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream::iter;
use rand::RngExt;
use reqwest::Body;
use serde_json::{Value, json};
use zorb::format::XorbHash;
use zorb::format::compression::Policy;

use crate::support::{Client, Raw, Response, TestServer, Xorb, eventually, random_bytes, rng};

/// What an upload must get.
enum Expect<'a> {
    /// This status and exactly this JSON.
    Stored(u16, Value),
    /// This status and code, and exactly these fields beside those that every problem has.
    Refused(u16, &'a str, Value),
}
use Expect::{Refused, Stored};

async fn check(client: &Client, path: &str, body: impl Into<Body>, expected: Expect<'_>) {
    check_response(&client.post(path, body).await, expected);
}

fn check_response(response: &Response, expected: Expect<'_>) {
    match expected {
        Stored(status, json) => {
            assert_eq!((response.status, response.json()), (status, json));
            assert_eq!(response.header("content-type"), "application/json");
        }
        Refused(status, code, fields) => {
            let problem = response.problem(status, code);
            let mut extra = problem.as_object().expect("a problem is an object").clone();
            extra.retain(|name, _| !["type", "title", "status", "code", "detail"].contains(&name.as_str()));
            assert_eq!(Value::Object(extra), fields, "{problem}");
        }
    }
}

/// What `POST /xorbs/{hash}` responses for a xorb.
fn stored(xorb: &Xorb, was_inserted: bool) -> Expect<'static> {
    let json = json!({
        "hash": xorb.hash(), "was_inserted": was_inserted, "chunks": xorb.chunk_count(),
        "serialized_len": xorb.bytes.len(), "raw_len": xorb.raw.len(),
    });
    Stored(if was_inserted { 201 } else { 200 }, json)
}

/// What the Xet route responses.
fn stored_xet(was_inserted: bool) -> Expect<'static> {
    Stored(200, json!({ "was_inserted": was_inserted }))
}

/// A body of unknown length, which goes out in chunked transfer encoding.
fn chunked(bytes: &Bytes, piece_len: usize) -> Body {
    let pieces: Vec<_> = bytes.chunks(piece_len).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect();
    Body::wrap_stream(iter(pieces))
}

/// Exactly this is stored: as a blob, and as what is served.
async fn check_stored(server: &TestServer, xorbs: &[&Xorb]) {
    let mut hashes: Vec<_> = xorbs.iter().map(|xorb| xorb.hash()).collect();
    hashes.sort();
    assert_eq!((server.blobs(), server.drafts()), (hashes, 0));
    for xorb in xorbs {
        let whole = server.client().get(&xorb.path()).await;
        assert_eq!((whole.status, &whole.body), (200, &xorb.bytes));
    }
}

#[tokio::test]
async fn a_new_xorb_gets_201_and_the_same_again_200() {
    let (server, mut rng) = (TestServer::start(), rng());
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng, 5));
    check(&client, &xorb.path(), xorb.bytes.clone(), stored(&xorb, true)).await;
    check(&client, &xorb.path(), xorb.bytes.clone(), stored(&xorb, false)).await;
    check(&client, &xorb.xet_path(), xorb.bytes.clone(), stored_xet(false)).await;
    check_stored(&server, &[&xorb]).await;
}

#[tokio::test]
async fn xet_route_responds_200_under_any_prefix_and_two_slashes() {
    let (server, mut rng) = (TestServer::start(), rng());
    for prefix in ["/v1/xorbs/default", "/v1/xorbs/default-merkledb", "//v1/xorbs/default", "/v1/xorbs/a%20b"] {
        let xorb = Xorb::mixed(&mut rng, 2);
        let path = format!("{prefix}/{}", xorb.hash());
        check(&server.client(), &path, xorb.bytes.clone(), stored_xet(true)).await;
        check(&server.client(), &path, xorb.bytes.clone(), stored_xet(false)).await;
        check(&server.client(), &xorb.path(), xorb.bytes.clone(), stored(&xorb, false)).await;
    }
}

#[tokio::test]
async fn upper_case_hash_in_the_path_is_returned_in_lower_case() {
    let (server, mut rng) = (TestServer::start(), rng());
    let xorb = Xorb::mixed(&mut rng, 2);
    let path = format!("/xorbs/{}", xorb.hash().to_uppercase());
    check(&server.client(), &path, xorb.bytes.clone(), stored(&xorb, true)).await;
    check_stored(&server, &[&xorb]).await;
}

#[tokio::test]
async fn a_body_of_unknown_length_is_taken_in_pieces_of_any_size() {
    let (server, mut rng) = (TestServer::start(), rng());
    for piece_len in [1, 7, 8, 1000, 65_536, usize::MAX] {
        let xorb = Xorb::mixed(&mut rng, 2);
        check(&server.client(), &xorb.path(), chunked(&xorb.bytes, piece_len), stored(&xorb, true)).await;
        check(&server.client(), &xorb.xet_path(), chunked(&xorb.bytes, piece_len), stored_xet(false)).await;
    }
}

#[tokio::test]
async fn the_content_type_does_not_matter() {
    let (server, mut rng) = (TestServer::start(), rng());
    for content_type in ["", "content-type: application/octet-stream\r\n", "content-type: text/html\r\n"] {
        let xorb = Xorb::mixed(&mut rng, 2);
        let mut connection = Raw::connect(&server).await;
        let (path, len) = (xorb.path(), xorb.bytes.len());
        let head = format!("POST {path} HTTP/1.1\r\nhost: zorb\r\ncontent-length: {len}\r\n{content_type}\r\n");
        connection.send(head).await;
        connection.send(&xorb.bytes).await;
        check_response(&connection.response().await, stored(&xorb, true));
    }
}

#[tokio::test]
async fn expect_100_continue_is_granted_or_refused_before_the_body() {
    let (server, mut rng) = (TestServer::start(), rng());
    let xorb = Xorb::mixed(&mut rng, 3);
    let head = |len: usize| {
        let path = xorb.path();
        format!("POST {path} HTTP/1.1\r\nhost: zorb\r\nexpect: 100-continue\r\ncontent-length: {len}\r\n\r\n")
    };
    let mut connection = Raw::connect(&server).await;
    connection.send(head(xorb.bytes.len())).await;
    assert_eq!(connection.head().await.status, 100);
    connection.send(&xorb.bytes).await;
    check_response(&connection.response().await, stored(&xorb, true));

    let mut connection = Raw::connect(&server).await;
    connection.send(head((64 << 20) + 1)).await;
    check_response(&connection.response().await, Refused(413, "too_large", json!({ "limit": 64 << 20 })));
    assert_eq!(connection.rest().await, b"", "what comes next could be the body, so the connection must end");
}

#[tokio::test]
async fn footers_of_both_versions_are_accepted_and_not_stored() {
    let (server, mut rng) = (TestServer::start(), rng());
    let xorbs: [_; 3] = std::array::from_fn(|_| Xorb::mixed(&mut rng, 4));
    let client = server.client();
    check(&client, &xorbs[0].path(), xorbs[0].with_footer_v0(), stored(&xorbs[0], true)).await;
    check(&client, &xorbs[1].path(), xorbs[1].with_footer_v1(0), stored(&xorbs[1], true)).await;
    check(&client, &xorbs[2].xet_path(), xorbs[2].with_footer_v1(0xaa), stored_xet(true)).await;
    check_stored(&server, &xorbs.each_ref()).await;
    check(&client, &xorbs[2].path(), xorbs[2].bytes.clone(), stored(&xorbs[2], false)).await;
}

#[tokio::test]
async fn a_footer_that_contradicts_the_chunks_is_refused_at_its_byte() {
    let (server, mut rng) = (TestServer::start(), rng());
    let xorb = Xorb::mixed(&mut rng, 3);
    let (end, whole) = (xorb.bytes.len(), xorb.with_footer_v1(0));
    let with = |at: usize, byte: u8| {
        let mut body = whole.clone();
        assert_ne!(std::mem::replace(&mut body[at], byte), byte);
        body
    };
    let wrong = |at: usize| with(at, whole[at].wrapping_add(1));
    let malformed = |at: usize| Refused(400, "malformed_xorb", json!({ "offset": at }));
    let client = server.client();
    // Offsets of the fields of version 1 with three chunks, in spec 3.5's order.
    for (field, corrupted) in [
        (8, 8),
        (8, 39),
        (48, 48),
        (84, 90),
        (156, 156),
        (168, 169),
        (180, 180),
        (184, 184),
        (188, 191),
        (192, 192),
        (212, 212),
    ] {
        check(&client, &xorb.path(), wrong(end + corrupted), malformed(end + field)).await;
    }
    let unsupported = |at: usize| Refused(400, "unsupported_version", json!({ "offset": at }));
    check(&client, &xorb.path(), with(end + 7, 2), unsupported(end + 7)).await;
    check(&client, &xorb.path(), with(end + 47, 9), unsupported(end + 47)).await;

    let longer = [&whole[..], b"x"].concat();
    check(&client, &xorb.path(), longer, malformed(whole.len())).await;
    let foreign = [&xorb.bytes[..], &Xorb::mixed(&mut rng, 3).with_footer_v1(0)[..]].concat();
    let Refused(status, code, _) = malformed(0) else { unreachable!() };
    client.post(&xorb.path(), foreign).await.problem(status, code);
    for len in [end + 1, end + 8, end + 100, whole.len() - 1] {
        let incomplete = Refused(400, "incomplete_body", json!({ "offset": len }));
        let incomplete = if len == end + 1 {
            // One byte could still become a header.
            Refused(400, "incomplete_body", json!({ "offset": len, "chunk": 3 }))
        } else {
            incomplete
        };
        check(&client, &xorb.path(), whole[..len].to_vec(), incomplete).await;
    }
    check_stored(&server, &[]).await;
}

#[tokio::test]
async fn an_empty_body_is_incomplete() {
    let (server, mut rng) = (TestServer::start(), rng());
    let xorb = Xorb::mixed(&mut rng, 1);
    for path in [xorb.path(), xorb.xet_path()] {
        let incomplete = || Refused(400, "incomplete_body", json!({ "offset": 0 }));
        check(&server.client(), &path, Bytes::new(), incomplete()).await;
        check(&server.client(), &path, chunked(&Bytes::new(), 1), incomplete()).await;
        let mut connection = Raw::connect(&server).await;
        connection.send(format!("POST {path} HTTP/1.1\r\nhost: zorb\r\n\r\n")).await;
        check_response(&connection.response().await, incomplete());
    }
    check_stored(&server, &[]).await;
}

#[tokio::test]
async fn every_proper_prefix_of_a_xorb_is_incomplete_or_another_xorb() {
    let (server, mut rng) = (TestServer::start(), rng());
    let chunks: Vec<_> = (0..4).map(|_| random_bytes(&mut rng, 9)).collect();
    let xorb = Xorb::of(Policy::None, &chunks);
    for len in 1..xorb.bytes.len() {
        let response = server.client().post(&xorb.path(), xorb.bytes.slice(..len)).await;
        if len % 17 == 0 {
            assert_eq!(response.problem(400, "hash_mismatch")["claimed"], xorb.hash());
        } else {
            check_response(&response, Refused(400, "incomplete_body", json!({ "offset": len, "chunk": len / 17 })));
        }
    }
    check_stored(&server, &[]).await;
}

/// One blob is left.
#[tokio::test]
async fn of_eight_concurrent_uploads_one_is_inserted() {
    let (server, mut rng) = (TestServer::start(), rng());
    for _ in 0..5 {
        let xorb = Xorb::incompressible(&mut rng, 3 << 20);
        let (path, before) = (xorb.path(), server.blobs().len());
        let uploads = (0..8).map(|_| async { server.client().post(&path, xorb.bytes.clone()).await });
        let responses = join_all(uploads).await;
        let inserted = responses.iter().filter(|response| response.status == 201).count();
        assert_eq!(inserted, 1, "{responses:?}");
        for response in &responses {
            check_response(response, stored(&xorb, response.status == 201));
        }
        assert_eq!((server.blobs().len(), server.drafts()), (before + 1, 0));
        assert_eq!(server.client().get(&path).await.body, xorb.bytes);
    }
}

/// Every range of it decodes.
#[tokio::test]
async fn of_two_concurrent_serializations_one_is_stored_whole() {
    let (server, mut rng) = (TestServer::start(), rng());
    for round in 0..10 {
        let chunks: Vec<Vec<u8>> = (0..12)
            .map(|_| {
                let len = rng.random_range(1..60_000);
                let pattern = random_bytes(&mut rng, 300);
                pattern.iter().copied().cycle().take(len).collect()
            })
            .collect();
        let forms = [Policy::None, Policy::Lz4, Policy::BruteForce].map(|policy| Xorb::of(policy, &chunks));
        let path = forms[0].path();
        let uploads = forms.iter().cycle().skip(round % 3).take(6);
        let uploads = uploads.map(|form| async { server.client().post(&path, form.bytes.clone()).await.status });
        let mut statuses = join_all(uploads).await;
        statuses.sort_unstable();
        // A much shorter one may have replaced the first.
        let stored_count = statuses.iter().filter(|status| **status == 201).count();
        assert!(statuses.iter().all(|status| [200, 201].contains(status)) && stored_count >= 1, "{statuses:?}");

        let client = server.client();
        let whole = client.get(&path).await.body;
        let won = forms.iter().find(|form| form.bytes == whole).expect("what is served is one of the bodies");
        for start in 0..12 {
            let end = rng.random_range(start + 1..=12);
            let part = client.get(&format!("{path}?range={start}-{end}")).await;
            assert_eq!(part.body, won.serialized(start, end));
            let raw = client.get(&format!("{path}?range={start}-{end}&format=raw")).await;
            assert_eq!(raw.body, won.raw(start, end));
        }
        assert_eq!(server.drafts(), 0);
    }
}

#[tokio::test]
async fn wal_is_checkpointed_into_the_index_file_while_serving() {
    let (server, xorb) = (TestServer::start(), Xorb::mixed(&mut rng(), 3));
    let (path, hash) = (server.data_dir().join("index.sqlite"), xorb.hash().parse::<XorbHash>().unwrap());
    assert_eq!(server.client().post(&xorb.path(), xorb.bytes.to_vec()).await.status, 201);
    eventually("the file has the row", async || {
        std::fs::read(&path).unwrap().windows(32).any(|bytes| bytes == hash.as_bytes())
    })
    .await;
}
