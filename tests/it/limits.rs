//! Limits: at each one, one beyond it, and how many and how slow clients may be.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::iter;
use reqwest::Body;
use zorb::format::compression::Policy;

use crate::support::{Metrics, Raw, Start, TestServer, Xorb, eventually, header, random_bytes, rng};

const MIB_64: usize = 64 << 20;

/// A status, and the code where it is a refusal.
type Outcome = (u16, &'static str);

const CREATED: Outcome = (201, "");
const OK: Outcome = (200, "");
const TOO_LARGE: Outcome = (413, "too_large");

/// Uploads with the length declared, and again without; both must get `expected`, or 200 where it was stored already.
async fn check(server: &TestServer, path: &str, body: impl Into<Bytes>, expected: Outcome) {
    let body = body.into();
    check_once(server, path, body.clone(), expected).await;
    let again = if expected == CREATED { OK } else { expected };
    let pieces: Vec<_> =
        (0..body.len()).step_by(1 << 16).map(|at| body.slice(at..body.len().min(at + (1 << 16)))).collect();
    check_once(server, path, Body::wrap_stream(iter(pieces.into_iter().map(Ok::<_, io::Error>))), again).await;
}

async fn check_once(server: &TestServer, path: &str, body: impl Into<Body>, (status, code): Outcome) {
    let response = server.client().post(path, body).await;
    match code {
        "" => assert_eq!(response.status, status, "{:?}", response.body),
        code => drop(response.problem(status, code)),
    }
}

#[tokio::test]
async fn the_strict_route_takes_64_mib_serialized_and_not_a_byte_more() {
    let (server, mut rng) = (TestServer::start(), rng());
    let raw = random_bytes(&mut rng, MIB_64 - 512 * 8 + 1);
    let at = Xorb::stored(raw[1..].chunks(128 << 10));
    let above = Xorb::stored(raw.chunks(128 << 10));
    assert_eq!((at.bytes.len(), above.bytes.len()), (MIB_64, MIB_64 + 1));

    check(&server, &at.path(), at.bytes.clone(), CREATED).await;
    check(&server, &above.path(), above.bytes.clone(), TOO_LARGE).await;
    assert_eq!(server.client().get(&at.path()).await.body, at.bytes);
    // A footer counts.
    check(&server, &at.path(), at.with_footer_v1(0), TOO_LARGE).await;
    check(&server, &at.xet_path(), at.with_footer_v1(0), OK).await;
    check(&server, &above.xet_path(), above.bytes.clone(), OK).await;
    assert_eq!((server.blobs().len(), server.drafts()), (2, 0));
}

#[tokio::test]
async fn xet_route_takes_incompressible_64_mib_with_headers_footer() {
    let (server, mut rng) = (TestServer::start(), rng());
    let xorb = Xorb::stored(random_bytes(&mut rng, MIB_64).chunks(8 << 10));
    let with_footer = xorb.with_footer_v1(0);
    assert_eq!((xorb.bytes.len(), with_footer.len()), (67_174_400, 67_502_176));

    check(&server, &xorb.path(), xorb.bytes.clone(), TOO_LARGE).await;
    check(&server, &xorb.xet_path(), xorb.bytes.clone(), OK).await;
    check(&server, &xorb.xet_path(), with_footer.clone(), OK).await;
    let longer = [&with_footer[..], &[0]].concat();
    check_once(&server, &xorb.xet_path(), longer, TOO_LARGE).await;
    assert_eq!(server.client().get(&xorb.path()).await.body, xorb.bytes);
    let last = server.client().get(&format!("{}?range=8191", xorb.xet_path())).await;
    assert_eq!(last.body, xorb.bytes[67_174_400 - 8200..]);
}

#[tokio::test]
async fn a_xorb_has_8192_chunks_at_most() {
    let (server, mut rng) = (TestServer::start(), rng());
    let raw = random_bytes(&mut rng, 8192);
    let xorb = Xorb::stored(raw.chunks(1));
    check(&server, &xorb.path(), xorb.bytes.clone(), CREATED).await;
    let one_more = [&xorb.bytes[..], &header(0, 1, 1), b"x"].concat();
    for path in [xorb.path(), xorb.xet_path()] {
        check(&server, &path, one_more.clone(), (400, "too_many_chunks")).await;
    }
}

#[tokio::test]
async fn a_chunk_has_128_kib_at_most() {
    let (server, mut rng) = (TestServer::start(), rng());
    let raw = random_bytes(&mut rng, 131_073);
    let xorb = Xorb::stored([&raw[..131_072]]);
    check(&server, &xorb.path(), xorb.bytes.clone(), CREATED).await;
    for path in [xorb.path(), xorb.xet_path()] {
        check(&server, &path, [&header(0, 131_073, 131_073), &raw[..]].concat(), (400, "malformed_xorb")).await;
        // The header is refused whatever follows it, and whatever it says of the payload.
        check(&server, &path, [&header(1, 100, 131_073), &raw[..100]].concat(), (400, "malformed_xorb")).await;
        check(&server, &path, [&header(1, 262_145, 131_072), &raw[..]].concat(), (400, "malformed_xorb")).await;
    }
}

#[tokio::test]
async fn a_xorb_decompresses_to_64_mib_at_most() {
    let server = TestServer::start();
    let xorb = Xorb::of(Policy::Lz4, &vec![vec![7; 131_072]; 512]);
    assert_eq!(xorb.raw.len(), MIB_64);
    check(&server, &xorb.path(), xorb.bytes.clone(), CREATED).await;
    let one_more = [&xorb.bytes[..], &header(0, 1, 1), b"x"].concat();
    for path in [xorb.path(), xorb.xet_path()] {
        check(&server, &path, one_more.clone(), TOO_LARGE).await;
    }
    let raw = server.client().get(&format!("{}?format=raw", xorb.path())).await;
    assert!(raw.body == xorb.raw);
}

#[tokio::test]
async fn upload_that_declares_too_much_is_refused_before_its_body() {
    let server = TestServer::start();
    let hash = "0".repeat(64);
    for (path, len) in [("/xorbs", MIB_64 + 1), ("/v1/xorbs/default", 67_502_177), ("/xorbs", usize::MAX >> 1)] {
        let mut connection = Raw::begin_upload(&server, &format!("{path}/{hash}"), len).await;
        connection.response().await.problem(413, "too_large");
    }
    assert_eq!(Metrics::of(&server.client()).await.get("zorb_received_bytes_total"), 0.0);
}

/// Begins uploads until the server counts `count` of them, and what they have sent.
#[expect(clippy::cast_precision_loss, reason = "some bytes")]
async fn occupy(server: &TestServer, count: usize, xorb: &Xorb) -> Vec<Raw> {
    let client = server.client();
    let received = async || Metrics::of(&client).await.get("zorb_received_bytes_total");
    let before = received().await;
    let mut uploads = Vec::new();
    for _ in 0..count {
        let mut upload = Raw::begin_upload(server, &xorb.path(), xorb.bytes.len()).await;
        upload.send(&xorb.bytes[..100]).await;
        uploads.push(upload);
    }
    wait_for_uploads(server, count).await;
    eventually("their first bytes are there", async || received().await >= before + (100 * count) as f64).await;
    uploads
}

#[expect(clippy::cast_precision_loss, reason = "a handful")]
async fn wait_for_uploads(server: &TestServer, count: usize) {
    let client = server.client();
    eventually("the uploads are counted", async || {
        Metrics::of(&client).await.get("zorb_uploads_in_flight") == count as f64
    })
    .await;
}

/// Until an upload ends.
#[tokio::test]
async fn beyond_max_uploads_is_503_before_the_body_is_read() {
    let (server, mut rng) = (Start::default().with("max_uploads", 2).start(), rng());
    let (client, xorb) = (server.client(), Xorb::incompressible(&mut rng, 300_000));
    for how in ["finishes", "leaves"] {
        let mut uploads = occupy(&server, 2, &xorb).await;
        let received = Metrics::of(&client).await.get("zorb_received_bytes_total");

        let mut refused = Raw::begin_upload(&server, &xorb.path(), MIB_64).await;
        let response = refused.response().await;
        response.problem(503, "overloaded");
        assert!(response.header("retry-after").parse::<u64>().expect("whole seconds") >= 1);
        client.post(&xorb.path(), xorb.bytes.clone()).await.problem(503, "overloaded");
        client.post(&xorb.xet_path(), xorb.bytes.clone()).await.problem(503, "overloaded");
        assert_eq!(Metrics::of(&client).await.get("zorb_received_bytes_total"), received);
        // Everything else goes on.
        assert_eq!(client.get("/readyz").await.status, 200);

        let mut upload = uploads.pop().expect("there are two");
        if how == "finishes" {
            upload.send(&xorb.bytes[100..]).await;
            assert_eq!(upload.response().await.status, 201);
        }
        drop(upload);
        wait_for_uploads(&server, 1).await;
        assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 200, "{how}");
        drop(uploads);
        wait_for_uploads(&server, 0).await;
    }
}

#[tokio::test]
async fn where_every_connection_is_busy_one_more_waits_for_an_end() {
    let (server, mut rng) = (Start::default().with("max_connections", 2).start(), rng());
    let xorb = Xorb::incompressible(&mut rng, 100_000);
    let mut busy = Vec::new();
    // Two, and four from this machine itself.
    for _ in 0..6 {
        busy.push(Raw::begin_awaited(&server, &xorb.path(), xorb.bytes.len()).await);
    }
    let request = "GET /healthz HTTP/1.1\r\nhost: zorb\r\n\r\n";
    let mut waiting = Raw::connect(&server).await;
    waiting.send(request).await;
    // One waits at a time, and further ones are told to come back: this one was accepted after it.
    let mut refused = Raw::connect(&server).await;
    let _ = refused.try_send(request).await;
    assert!(matches!(refused.status().await, Some(503) | None));
    assert!(waiting.is_silent().await);
    busy[0].send(&xorb.bytes).await;
    assert_eq!(busy[0].response().await.status, 201);
    assert_eq!(waiting.response().await.status, 200);
}

#[tokio::test]
async fn stalled_or_slow_body_is_408() {
    let (mut rng, start) = (rng(), || Start::default().with("body_timeout", "1s"));
    let xorb = Xorb::mixed(&mut rng, 5);
    let server = start().start();
    for sent in [0, 1, xorb.bytes.len() - 1] {
        let mut connection = Raw::begin_upload(&server, &xorb.path(), xorb.bytes.len()).await;
        connection.send(&xorb.bytes[..sent]).await;
        connection.response().await.problem(408, "body_timeout");
        assert_eq!(connection.rest().await, b"", "what comes next could be the body, so the connection must end");
    }
    let server = start().with("min_upload_rate", 100_000).start();
    let mut connection = Raw::begin_upload(&server, &xorb.path(), xorb.bytes.len()).await;
    // Never silent for long, yet far below the rate: 50 bytes per 50 ms.
    for piece in xorb.bytes.chunks(50) {
        if connection.try_send(piece).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        if !connection.is_silent().await {
            break;
        }
    }
    connection.response().await.problem(408, "body_timeout");
    eventually("the draft is gone", async || server.drafts() == 0).await;
}

#[tokio::test]
async fn slow_body_above_the_minimum_rate_is_never_cut_off() {
    let start = Start::default().with("body_timeout", "3s").with("min_upload_rate", 1024);
    let (server, mut rng) = (start.start(), rng());
    let xorb = Xorb::incompressible(&mut rng, 64_000);
    let mut connection = Raw::begin_upload(&server, &xorb.path(), xorb.bytes.len()).await;
    // Longer than the timeout in all, and never silent for as long.
    for piece in xorb.bytes.chunks(4000) {
        connection.send(piece).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(connection.response().await.status, 201);
}

#[tokio::test]
async fn connection_without_a_request_head_is_closed() {
    let server = Start::default().with("idle_timeout", "2s").start();
    for sent in ["", "GET /healthz HTTP/1.1\r\nhost:", "GET /healthz HTTP/1.1\r\nhost: zorb\r\n\r\n"] {
        let mut connection = Raw::connect(&server).await;
        connection.send(sent).await;
        if sent.ends_with("\r\n\r\n") {
            assert_eq!(connection.response().await.status, 200);
        }
        // Either nothing or a bare 408; what counts is that it ends.
        connection.rest().await;
    }
}

#[tokio::test]
async fn more_than_100_header_fields_are_refused_and_100_served() {
    let server = TestServer::start();
    for (count, status) in [(100, 200), (101, 431)] {
        let fields: String = (0..count - 1).map(|nth| format!("x-{nth}: 1\r\n")).collect();
        let mut connection = Raw::connect(&server).await;
        connection.send(format!("GET /healthz HTTP/1.1\r\nhost: zorb\r\n{fields}\r\n")).await;
        assert_eq!(connection.status().await, Some(status), "{count} fields");
    }
}

/// However it is split.
#[tokio::test]
async fn head_of_63_kib_is_served_and_one_above_64_refused() {
    let server = TestServer::start();
    let begin = "GET /healthz HTTP/1.1\r\nhost: zorb\r\nx: ";
    for (len, end, status) in [(63 << 10, "\r\n\r\n", 200), (64 << 10, "", 431)] {
        for piece_len in [1000, len] {
            let mut connection = Raw::connect(&server).await;
            let head = format!("{begin}{}{end}", "1".repeat(len - begin.len() - end.len()));
            for piece in head.as_bytes().chunks(piece_len) {
                connection.send(piece).await;
            }
            assert_eq!(connection.status().await, Some(status), "{len} bytes in pieces of {piece_len}");
        }
    }
}

#[tokio::test]
async fn stalled_reader_of_a_response_is_cut_off() {
    let (server, mut rng) = (Start::default().with("send_timeout", "1s").start(), rng());
    let (client, xorb) = (server.client(), Xorb::incompressible(&mut rng, MIB_64 - 5000));
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let before = Metrics::of(&client).await.get("zorb_http_connections");
    let mut connections = Vec::new();
    for query in ["", "?format=raw"] {
        let mut connection = Raw::connect(&server).await;
        connection.send(format!("GET {}{query} HTTP/1.1\r\nhost: zorb\r\n\r\n", xorb.path())).await;
        assert_eq!(connection.head().await.status, 200);
        connections.push(connection);
    }
    eventually("they are cut off", async || Metrics::of(&client).await.get("zorb_http_connections") <= before).await;
    let sent = Metrics::of(&client).await.get("zorb_sent_bytes_total");
    assert!(sent < 2.0 * 67_000_000.0, "{sent}");
}
