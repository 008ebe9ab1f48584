//! A store that lost bytes: no client may take what is left for the whole, and the log says once what is wrong.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;

use zorb::format::compression::Policy;

use crate::support::{Raw, Response, Start, TestServer, Xorb, random_bytes, rng};

/// A server with one xorb, and the file of its blob.
async fn stocked(xorb: &Xorb) -> (TestServer, PathBuf) {
    // Errors only: whatever else is not logged, an error says which request it belongs to. And nobody who finds out what
    // they come from, and takes it out of service: tests/it/scrub.rs has that.
    let server = Start::default().with("log", "error").with("scrub_rate", 0).start();
    assert_eq!(server.client().post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let hash = xorb.hash();
    let blob = server.blob(&hash);
    assert_eq!(fs::read(&blob).expect("the blob is there"), xorb.bytes);
    (server, blob)
}

fn cut(blob: &PathBuf, len: usize) {
    let file = OpenOptions::new().write(true).open(blob).expect("the blob is there");
    file.set_len(len as u64).expect("it can be cut");
}

/// Lines of the log about a request that are errors.
fn errors(server: &TestServer, id: &str) -> Vec<String> {
    let log = server.log();
    let lines = log.lines().filter(|line| line.contains(id) && line.contains("ERROR"));
    lines.map(str::to_owned).collect()
}

/// The response must not arrive whole: either it is a 500, or its body breaks. Then the log says why, once.
async fn check_broken(server: &TestServer, xorb: &Xorb, query: &str, range: Option<&str>, why: &str) {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let id = format!("broken-{}-", NEXT.fetch_add(1, std::sync::atomic::Ordering::SeqCst));
    let path = format!("{}{query}", xorb.path());
    let mut request = server.client().request(reqwest::Method::GET, &path).header("x-request-id", &id);
    if let Some(range) = range {
        request = request.header("range", range);
    }
    if let Ok(response) = Response::try_of(request).await {
        check_opaque(server, &response);
    }
    let errors = errors(server, &id);
    assert!(matches!(&errors[..], [line] if line.contains(why) && line.contains(&xorb.hash())), "{path}: {errors:?}");
}

/// A 500 that says nothing of the inside.
fn check_opaque(server: &TestServer, response: &Response) {
    let problem = response.problem(500, "internal").to_string();
    let directory = server.data_dir().to_str().expect("the path is text").to_owned();
    for inside in [&directory, "SELECT", "sqlite", "No such file", "os error", "blob"] {
        assert!(!problem.contains(inside), "{problem}");
    }
}

#[tokio::test]
async fn a_blob_that_is_shorter_than_its_index_breaks_the_response() {
    let xorb = Xorb::incompressible(&mut rng(), 5 << 20);
    let (server, blob) = stocked(&xorb).await;
    let len = xorb.bytes.len();
    for left in [len - 1, 3 << 20, 1 << 20, 100, 0] {
        cut(&blob, left);
        let why = format!("the blob ends at byte {left}");
        check_broken(&server, &xorb, "", None, &why).await;
        check_broken(&server, &xorb, "?format=raw", None, &why).await;
        check_broken(&server, &xorb, "?range=-1", None, "the blob ends at byte").await;
        check_broken(&server, &xorb, "", Some("bytes=0-9,-9"), "the blob ends at byte").await;
        check_broken(&server, &xorb, "?format=raw", Some("bytes=-9"), "the blob ends at byte").await;
    }
    // What is whole is served still, and so is everything else.
    cut(&blob, 0);
    fs::OpenOptions::new()
        .write(true)
        .open(&blob)
        .and_then(|mut file| std::io::Write::write_all(&mut file, &xorb.bytes[..len / 2]))
        .expect("the blob can be written");
    let head = server.client().get(&format!("{}?range=0-3", xorb.path())).await;
    assert_eq!((head.status, &head.body[..]), (200, xorb.serialized(0, 3)));
}

#[tokio::test]
async fn a_short_response_is_cut_off_before_its_declared_length() {
    let xorb = Xorb::incompressible(&mut rng(), 5 << 20);
    let (server, blob) = stocked(&xorb).await;
    cut(&blob, 3 << 20);
    let mut connection = Raw::connect(&server).await;
    connection.send(format!("GET {} HTTP/1.1\r\nhost: zorb\r\n\r\n", xorb.path())).await;
    let head = connection.head().await;
    assert_eq!((head.status, head.header("content-length")), (200, &*xorb.bytes.len().to_string()));
    let body = connection.rest().await;
    assert!(body.len() <= 3 << 20 && body == xorb.bytes[..body.len()]);
}

#[tokio::test]
async fn missing_blob_is_500_without_internal_details() {
    let xorb = Xorb::mixed(&mut rng(), 6);
    let (server, blob) = stocked(&xorb).await;
    fs::remove_file(blob).expect("the blob is there");
    for (query, range) in [("", None), ("?range=1-2", None), ("?format=raw", None), ("", Some("bytes=0-1"))] {
        check_broken(&server, &xorb, query, range, "its blob is missing").await;
    }
    let response = server.client().get_with(&xorb.path(), &[("range", "bytes=0-0,2-2")]).await;
    check_opaque(&server, &response);
    let response = server.client().get(&xorb.path()).await;
    check_opaque(&server, &response);
    assert!(!response.headers.contains_key("etag"), "nobody is to keep a failure");
    assert_eq!(response.headers["cache-control"], "no-store", "nobody is to keep a failure");
    // The index still knows where its chunks were.
    assert_eq!(server.client().get(&format!("{}/chunks", xorb.path())).await.status, 200);
}

#[tokio::test]
async fn stored_bytes_that_do_not_decode_break_the_raw_response() {
    let xorb = Xorb::of(Policy::Lz4, &(0..6).map(|index| vec![index; 50_000]).collect::<Vec<_>>());
    let (server, blob) = stocked(&xorb).await;
    let offset = xorb.serialized(0, 3).len();
    // The version, a length and the scheme of chunk 3's header; the mark and the first block of its LZ4 frame.
    for at in [0, 1, 4, 5, 8, 9, 15] {
        let mut bytes = xorb.bytes.to_vec();
        bytes[offset + at] ^= 0x55;
        fs::write(&blob, &bytes).expect("the blob can be written");
        check_broken(&server, &xorb, "?format=raw", None, "is damaged").await;
        check_broken(&server, &xorb, "?range=3&format=raw", None, "is damaged").await;
        let before = server.client().get(&format!("{}?range=0-3&format=raw", xorb.path())).await;
        assert_eq!((before.status, &before.body[..]), (200, xorb.raw(0, 3)));
    }
}

#[tokio::test]
async fn corrupt_stored_bytes_break_off_the_raw_response() {
    let mut rng = rng();
    let chunks: Vec<_> = (0..6).map(|_| random_bytes(&mut rng, 5_000)).collect();
    let xorb = Xorb::of(Policy::None, &chunks);
    let (server, blob) = stocked(&xorb).await;
    for at in [8, 2_500, 5_007] {
        let mut bytes = xorb.bytes.to_vec();
        bytes[xorb.serialized(0, 3).len() + at] ^= 1;
        fs::write(&blob, &bytes).expect("the blob can be written");
        for (query, range) in [("?format=raw", None), ("?range=2-&format=raw", Some("bytes=-10001"))] {
            check_broken(&server, &xorb, query, range, "chunk 3 of").await;
        }
        check_broken(&server, &xorb, "?range=3&format=raw", Some("bytes=100-101"), "chunk 3 of").await;
        for (start, end) in [(0, 3), (4, 6)] {
            let intact = server.client().get(&format!("{}?range={start}-{end}&format=raw", xorb.path())).await;
            assert_eq!((intact.status, &intact.body[..]), (200, xorb.raw(start, end)));
        }
    }
}
