//! SIGTERM: what is in flight ends well, nothing new begins, and nobody can hold the server back for long.

use tokio::net::TcpStream;

use crate::support::{Client, Metrics, Raw, Start, TestServer, Xorb, eventually, rng};

/// Sends SIGTERM and waits until nobody can connect any more.
async fn stop(server: &TestServer) {
    server.terminate();
    eventually("new connections are refused", async || TcpStream::connect(server.address()).await.is_err()).await;
}

/// The server must end with 0, and say that it does.
async fn check_ended(server: TestServer) {
    let (status, log) = server.exit().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("stopping") && log.contains("stopped") && !log.contains("panicked"), "{log}");
}

/// A server that would wait for its clients for longer than this test may take.
fn with_long_timeouts() -> TestServer {
    Start::default().with("drain_timeout", "600s").with("idle_timeout", "600s").start()
}

async fn wait_for_uploads(client: &Client, count: f64) {
    eventually("the upload is counted", async || Metrics::of(client).await.get("zorb_uploads_in_flight") == count)
        .await;
}

#[tokio::test]
async fn an_upload_in_flight_is_finished_and_acknowledged() {
    let (server, xorb) = (with_long_timeouts(), Xorb::incompressible(&mut rng(), 2 << 20));
    let client = server.client();
    let (mut early, mut late) = (
        Raw::begin_upload(&server, &xorb.path(), xorb.bytes.len()).await,
        Raw::begin_upload(&server, &xorb.xet_path(), xorb.bytes.len()).await,
    );
    early.send(&xorb.bytes[..1 << 20]).await;
    late.send(&xorb.bytes[..10]).await;
    wait_for_uploads(&client, 2.0).await;
    stop(&server).await;
    early.send(&xorb.bytes[1 << 20..]).await;
    let response = early.response().await;
    assert_eq!((response.status, response.header("connection")), (201, "close"));
    late.send(&xorb.bytes[10..]).await;
    assert_eq!(late.response().await.status, 200);
    let data_dir = server.data_dir().to_owned();
    let (blobs, drafts) = (server.blobs(), server.drafts());
    assert_eq!((blobs, drafts), (vec![xorb.hash()], 0));
    // The directory of the data goes with the server that made it, so the next one is started before that one is let go.
    let directory = server.directory();
    check_ended(server).await;
    let server = Start::default().data_dir(&data_dir).start();
    assert_eq!(server.client().get(&xorb.path()).await.body, xorb.bytes);
    drop(directory);
}

#[tokio::test]
async fn a_download_in_flight_is_completed() {
    let (server, xorb) = (with_long_timeouts(), Xorb::incompressible(&mut rng(), 60 << 20));
    assert_eq!(server.client().post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    for query in ["", "?format=raw"] {
        let mut connection = Raw::connect(&server).await;
        connection.send(format!("GET {}{query} HTTP/1.1\r\nhost: zorb\r\n\r\n", xorb.path())).await;
        let head = connection.head().await;
        let begin = connection.read(1 << 20).await;
        if query.is_empty() {
            // The first one is read to its end while the server runs, so that both forms are known to work.
            assert_eq!(connection.read(xorb.bytes.len() - (1 << 20)).await, xorb.bytes[1 << 20..]);
            continue;
        }
        stop(&server).await;
        let len: usize = head.header("content-length").parse().expect("a length");
        let rest = connection.rest().await;
        assert_eq!(begin.len() + rest.len(), len);
        assert!([begin, rest].concat() == xorb.raw);
    }
    check_ended(server).await;
}

#[tokio::test]
async fn connections_on_which_nothing_is_asked_do_not_delay_the_end() {
    let server = with_long_timeouts();
    let mut used = Raw::connect(&server).await;
    used.send("GET /healthz HTTP/1.1\r\nhost: zorb\r\n\r\n").await;
    assert_eq!(used.response().await.status, 200);
    let mut unused = Raw::connect(&server).await;
    let client = server.client();
    eventually("all are accepted", async || Metrics::of(&client).await.get("zorb_http_connections") >= 3.0).await;
    stop(&server).await;
    check_ended(server).await;
    assert_eq!((used.rest().await, unused.rest().await), (vec![], vec![]));
}

#[tokio::test]
async fn half_a_head_does_not_delay_the_end() {
    let server = with_long_timeouts();
    let mut used = Raw::connect(&server).await;
    used.send("GET /healthz HTTP/1.1\r\nhost: zorb\r\n\r\n").await;
    assert_eq!(used.response().await.status, 200);
    let mut first = Raw::connect(&server).await;
    for connection in [&mut used, &mut first] {
        connection.send("GET /healthz HTTP/1.1\r\nhost:").await;
    }
    let client = server.client();
    eventually("all are accepted", async || Metrics::of(&client).await.get("zorb_http_connections") >= 3.0).await;
    stop(&server).await;
    check_ended(server).await;
}

#[tokio::test]
async fn clients_that_stall_are_cut_off_after_the_time_for_draining() {
    let (server, mut rng) = (Start::default().with("drain_timeout", "1s").start(), rng());
    let (client, xorb) = (server.client(), Xorb::incompressible(&mut rng, 60 << 20));
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let unfinished = Xorb::incompressible(&mut rng, 1 << 20);
    let mut upload = Raw::begin_upload(&server, &unfinished.path(), unfinished.bytes.len()).await;
    upload.send(&unfinished.bytes[..1 << 19]).await;
    let mut download = Raw::connect(&server).await;
    download.send(format!("GET {} HTTP/1.1\r\nhost: zorb\r\n\r\n", xorb.path())).await;
    assert_eq!(download.head().await.status, 200);
    wait_for_uploads(&client, 1.0).await;
    let directory = server.directory();
    let data_dir = server.data_dir().to_owned();
    stop(&server).await;
    check_ended(server).await;
    let server = Start::default().data_dir(&data_dir).start();
    server.client().get(&unfinished.path()).await.problem(404, "not_found");
    assert_eq!(server.client().get(&xorb.path()).await.body, xorb.bytes);
    assert_eq!((server.blobs(), server.drafts()), (vec![xorb.hash()], 0));
    drop(directory);
}

#[tokio::test]
async fn uploads_in_flight_are_acknowledged_and_stored_or_neither() {
    let (server, mut rng) = (with_long_timeouts(), rng());
    let xorbs: Vec<_> = (0..12).map(|_| Xorb::incompressible(&mut rng, 1 << 20)).collect();
    let client = server.client();
    let uploads = xorbs.iter().map(|xorb| async {
        let request = client.request(reqwest::Method::POST, &xorb.path()).body(xorb.bytes.clone());
        crate::support::Response::try_of(request).await.is_ok_and(|response| response.status == 201)
    });
    let uploads = futures_util::future::join_all(uploads);
    let (acknowledged, ()) = tokio::join!(uploads, async {
        // Wherever they are just now.
        server.terminate();
    });
    let (directory, data_dir) = (server.directory(), server.data_dir().to_owned());
    check_ended(server).await;
    let server = Start::default().data_dir(&data_dir).start();
    for (xorb, acknowledged) in xorbs.iter().zip(acknowledged) {
        let response = server.client().get(&xorb.path()).await;
        assert!(if acknowledged { response.body == xorb.bytes } else { response.status == 404 }, "{acknowledged}");
    }
    drop(directory);
}
