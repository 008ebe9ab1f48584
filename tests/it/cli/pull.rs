//! `zorb pull`.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use zorb::format::xorb::verify;

use super::network::{Cut, Proxy, Script, response};
use super::push::{pull, push};
use super::{Directory, NO_SERVER, prose};
use crate::support::{Start, TestServer, Xorb, random_bytes, rng};

/// A server with a file of 12 MiB; the file's hash.
fn stocked() -> (Directory, TestServer, String, Vec<u8>) {
    stocked_in(TestServer::start())
}

fn stocked_in(server: TestServer) -> (Directory, TestServer, String, Vec<u8>) {
    let (directory, mut rng) = (Directory::new(), rng());
    let bytes = [random_bytes(&mut rng, 6 << 20), prose(&mut rng, 6 << 20)].concat();
    directory.write("file", &bytes);
    let (files, _) = push(&directory, &server, &["file"]);
    let hash = files[0]["hash"].as_str().unwrap().to_owned();
    (directory, server, hash, bytes)
}

#[test]
fn the_empty_file_is_what_it_is_without_any_server() {
    let directory = Directory::new();
    let (empty, url) = ("0".repeat(64), NO_SERVER);
    directory.zorb(&["pull", &empty, "-o", "empty", "--server", url]).ok();
    assert_eq!(directory.read("empty"), b"");
    directory.zorb(&["pull", &empty, "--range", "0-1", "-o", "x", "--server", url]).failed(1, &["has 0 bytes"]);
}

#[test]
fn data_goes_to_stdout_or_replaces_a_file_when_it_is_proven() {
    let (directory, server, hash, bytes) = stocked();
    let ran = directory.zorb(&["pull", &hash, "--server", server.url()]);
    assert!(ran.code == Some(0) && ran.stdout == bytes, "{}", ran.stderr);
    assert!(ran.stderr.ends_with("12.0 MiB to stdout, verified\n"), "{}", ran.stderr);
    directory.write("target", b"what was there");
    directory.zorb(&["pull", &hash, "-o", "target", "--jobs", "1", "--server", server.url()]).ok();
    assert!(directory.read("target") == bytes);
    directory.zorb(&["pull", &hash, "-o", "/dev/null", "--quiet", "--server", server.url()]).ok();
    let unknown = "1".repeat(64);
    directory
        .zorb(&["pull", &unknown, "-o", "none", "--server", server.url()])
        .failed(1, &["the server has no file 1111"]);
    assert_eq!(directory.names(), ["file", "target"]);
}

#[test]
fn a_range_is_half_open_and_never_clamped() {
    let (directory, server, hash, bytes) = stocked();
    let len = bytes.len();
    let cases = [
        ("0-1".to_owned(), 0..1),
        (format!("{}-{}", 5 << 20, 7 << 20), 5 << 20..7 << 20),
        ("1000000-".to_owned(), 1_000_000..len),
        ("-10".to_owned(), len - 10..len),
        (format!("{}", len - 1), len - 1..len),
        (format!("0-{len}"), 0..len),
    ];
    for (range, expected) in cases {
        let args = ["pull", &hash, "--range", &range, "-o", "part", "--json", "--server", server.url()];
        let record = directory.zorb(&args).ok().record();
        assert_eq!((&record["start"], &record["end"]), (&json!(expected.start), &json!(expected.end)), "{range}");
        assert_eq!(record["proven"], true, "{range}");
        assert!(directory.read("part") == bytes[expected], "{range}");
    }
    for range in [format!("0-{}", len + 1), format!("{len}"), format!("-{}", len + 1)] {
        let args = ["pull", &hash, "--range", &range, "-o", "none", "--server", server.url()];
        directory.zorb(&args).failed(1, &[&format!("has {len} bytes; the range {range} exceeds them")]);
    }
    assert_eq!(directory.names(), ["file", "part"]);
}

#[test]
fn a_damaged_blob_gives_no_file_and_leaves_the_old_one() {
    // A server that does not look after its blobs, and so sends what it has.
    let (directory, server, hash, bytes) = stocked_in(Start::default().with("scrub_rate", 0).start());
    let [blob] = server.blobs().try_into().unwrap();
    let path = server.blob(&blob);
    let mut stored = std::fs::read(&path).unwrap();
    // In the payload of a chunk that is not compressed: nothing but its hash shows it.
    let xorb = verify(&stored).unwrap();
    let mut chunks = xorb.layout().chunks();
    let chunk = chunks.find(|chunk| chunk.serialized.end() > 1_000_000).unwrap();
    stored[usize::try_from(chunk.serialized.end() - 1).unwrap()] ^= 1;
    std::fs::write(&path, &stored).unwrap();
    directory.write("target", b"what was there");
    let args = ["pull", &hash, "-o", "target", "--retries", "0", "--server", server.url()];
    directory.zorb(&args).failed(1, &["the received data is file"]);
    assert_eq!(directory.read("target"), b"what was there");
    let ran = directory
        .zorb(&["pull", &hash, "--retries", "0", "--server", server.url()])
        .failed(1, &["the received data is file"]);
    assert_eq!(ran.stdout.len(), bytes.len());
    let damaged = ["pull", &hash, "--range", "900000-1100000", "-o", "part", "--server", server.url()];
    directory.zorb(&damaged).failed(1, &["is not provably bytes 900000-1100000 of file"]);
    assert_eq!(directory.names(), ["file", "target"]);
}

#[test]
fn broken_connections_are_retried_for_a_limited_time() {
    let (directory, server, hash, bytes) = stocked();
    let cuts = [Cut::Down(0), Cut::Down(300), Cut::Down(100_000), Cut::Down(1 << 20), Cut::Down(4 << 20)];
    let proxy = Proxy::start(server.address(), &cuts);
    let ran = directory.zorb(&["pull", &hash, "-o", "back", "--server", &proxy.url]).ok_with_remarks();
    assert!(directory.read("back") == bytes);
    assert!(ran.stderr.contains("trying again in"), "{}", ran.stderr);
    drop(proxy);
    drop(server);
    // Not where the server was: others could be there by now.
    directory
        .zorb(&["pull", &hash, "-o", "gone", "--retries", "1", "--server", NO_SERVER])
        .failed(1, &["cannot reach"]);
    assert_eq!(directory.names(), ["back", "file"]);
}

/// A server of one file of one chunk whose data URLs expire: it refuses the first ones.
fn forgetful(refused_count: usize, change: fn(&mut Value)) -> (Script, Vec<u8>, String) {
    let raw = b"the one chunk of this file".to_vec();
    let xorb = Xorb::of(zorb::format::compression::Policy::None, std::slice::from_ref(&raw));
    let hash = zorb::format::merkle::file_hash([(&xorb.verified.chunk_hashes()[0], raw.len() as u64)]).to_string();
    let (xorb_hash, bytes, len) = (xorb.hash(), xorb.bytes.clone(), raw.len());
    let (asked, fetched) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let script = Script::start(move |_, request| {
        let host = request.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
        let path = request.split(' ').nth(1).unwrap();
        if path.starts_with("/v1/files/") {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
            return head.into_bytes();
        }
        if path.starts_with("/v2/file-chunk-hashes/") {
            return response("404 Not Found", &[], b"");
        }
        if path.starts_with("/v2/reconstructions/") {
            let asked = asked.fetch_add(1, Ordering::SeqCst);
            let range = json!({"start": 0, "end": 1});
            let bytes = json!({"start": 0, "end": bytes.len() - 1});
            let mut plan = json!({
                "offset_into_first_range": 0,
                "terms": [{"hash": xorb_hash, "unpacked_length": len, "range": range}],
                "xorbs": {&xorb_hash: [{
                    "url": format!("http://{host}/data/{asked}"),
                    "ranges": [{"chunks": range, "bytes": bytes}],
                }]},
            });
            if asked > 0 {
                change(&mut plan);
            }
            return response("200 OK", &[], plan.to_string().as_bytes());
        }
        assert!(!request.contains("authorization"), "the token goes to a data URL: {request}");
        if fetched.fetch_add(1, Ordering::SeqCst) < refused_count {
            return response("403 Forbidden", &[], b"");
        }
        response("206 Partial Content", &[], &bytes)
    });
    (script, raw, hash)
}

#[test]
fn expired_data_url_is_renewed_and_never_sees_the_token() {
    let directory = Directory::new();
    let pull = |script: &Script, hash: &str| {
        directory.zorb(&["pull", hash, "-o", "x", "--token", "secret-token", "--server", &script.url])
    };
    let (script, raw, hash) = forgetful(3, |_| ());
    pull(&script, &hash).ok();
    assert_eq!(directory.read("x"), raw);
    let requests = script.requests();
    let data: Vec<&str> = requests.iter().filter_map(|request| request.strip_prefix("get /data/")).collect();
    assert_eq!(data.iter().map(|rest| &rest[..1]).collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    let (own, total) = (
        requests.iter().filter(|request| request.contains("authorization: bearer secret-token")).count(),
        requests.len(),
    );
    assert_eq!(own, total - data.len());

    std::fs::remove_file(directory.path("x")).unwrap();
    let (script, _, hash) = forgetful(100, |_| ());
    pull(&script, &hash).failed(1, &["responded with 403 Forbidden"]);
    assert!(script.requests().len() < 20);
    let (script, _, hash) = forgetful(1, |plan| {
        for parts in plan["xorbs"].as_object_mut().unwrap().values_mut() {
            parts[0]["ranges"][0]["bytes"]["end"] = 9.into();
        }
    });
    pull(&script, &hash).failed(1, &["its second plan differs from the first"]);
    assert!(directory.names().is_empty());
}

/// Data may be at another host, such as an S3 store: an error is about that host, and shows no signature.
#[test]
fn error_of_a_data_host_names_it_and_no_signature() {
    let directory = Directory::new();
    let (script, _, hash) = forgetful(1, |plan| {
        for parts in plan["xorbs"].as_object_mut().unwrap().values_mut() {
            parts[0]["url"] = "http://127.0.0.1:1/bucket/xorb?signature=hunter2".into();
        }
    });
    let ran = directory.zorb(&["pull", &hash, "-o", "x", "--retries", "0", "--server", &script.url]);
    assert!(!ran.stderr.contains("hunter2") && !ran.stderr.contains(&script.url), "{}", ran.stderr);
    ran.failed(1, &["http://127.0.0.1:1"]);
}

#[test]
fn other_file_other_lengths_or_nonsense_gives_no_file() {
    let directory = Directory::new();
    let (_, _, hash) = forgetful(0, |_| ());
    let other = {
        let raw = b"another chunk".to_vec();
        Xorb::of(zorb::format::compression::Policy::None, &[raw])
    };
    let cases: [(usize, usize, &[u8], &str); 4] = [
        (13, other.bytes.len(), &other.bytes, "the received data is file"),
        (12, other.bytes.len(), &other.bytes, "sent 13 bytes of xorb"),
        (13, other.bytes.len(), &other.bytes[..20], "less of a xorb than requested"),
        (13, 20, &[9; 20], "damaged data for xorb"),
    ];
    for (len, part_len, body, complaint) in cases {
        let (xorb, body) = (other.hash(), body.to_vec());
        let script = Script::start(move |_, request| {
            let host = request.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
            match request.split(' ').nth(1).unwrap() {
                path if path.starts_with("/v1/files/") => {
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n").into_bytes()
                }
                path if path.starts_with("/v2/reconstructions/") => {
                    let (range, bytes) = (json!({"start": 0, "end": 1}), json!({"start": 0, "end": part_len - 1}));
                    let plan = json!({
                        "offset_into_first_range": 0,
                        "terms": [{"hash": xorb, "unpacked_length": len, "range": range}],
                        "xorbs": {&xorb: [{"url": format!("http://{host}/data"), "ranges": [{"chunks": range, "bytes": bytes}]}]},
                    });
                    response("200 OK", &[], plan.to_string().as_bytes())
                }
                _ => response("206 Partial Content", &[], &body),
            }
        });
        directory.zorb(&["pull", &hash, "-o", "x", "--retries", "0", "--server", &script.url]).failed(1, &[complaint]);
        assert!(directory.names().is_empty());
    }
}

#[test]
fn repetitive_file_is_assembled_from_parts_fetched_once() {
    let (directory, server, mut rng) = (Directory::new(), TestServer::start(), rng());
    let (a, b) = (random_bytes(&mut rng, 2 << 20), vec![0; 3 << 20]);
    let bytes = [&a[..], &b, &a, &b, &a].concat();
    directory.write("file", &bytes);
    let (files, total) = push(&directory, &server, &["file"]);
    let sent_len = total["sent_len"].as_u64().unwrap();
    assert!(sent_len < 4 << 20, "{total}");
    let proxy = Proxy::start(server.address(), &[]);
    let hash = files[0]["hash"].as_str().unwrap();
    directory.zorb(&["pull", hash, "-o", "back", "--quiet", "--server", &proxy.url]).ok();
    assert!(directory.read("back") == bytes);
    // The data URLs lead to where the request came in, which is the proxy.
    assert!(proxy.traffic().down_len < sent_len + (1 << 20), "{} of {sent_len} bytes", proxy.traffic().down_len);
    assert!(pull(&directory, &server, hash) == bytes);
}

#[test]
fn a_part_without_proof_is_told_from_one_that_is_proven() {
    let directory = Directory::new();
    let (script, raw, hash) = forgetful(0, |_| ());
    let ran = directory.zorb(&["pull", &hash, "--range", "0-3", "-o", "x", "--server", &script.url]).ok_with_remarks();
    assert!(ran.text().ends_with("bytes 0-3, 3 B to x, not verified\n"), "{}", ran.text());
    assert!(ran.stderr.contains("cannot prove parts of a file"), "{}", ran.stderr);
    assert_eq!(directory.read("x"), raw[..3]);
    let quiet = ["pull", &hash, "--range", "0-3", "-o", "y", "--quiet", "--server", &script.url];
    let ran = directory.zorb(&quiet).ok_with_remarks();
    assert!(ran.stderr.contains("cannot prove parts of a file"), "{}", ran.stderr);
}

#[test]
fn a_part_is_proven_without_fetching_the_rest_of_the_file() {
    let (directory, server, hash, bytes) = stocked();
    let proxy = Proxy::start(server.address(), &[]);
    let args = ["pull", &hash, "--range", "1000000-1000100", "-o", "part", "--json", "--server", &proxy.url];
    assert_eq!(directory.zorb(&args).ok().record()["proven"], true);
    assert!(directory.read("part") == bytes[1_000_000..1_000_100]);
    // One or two chunks, and lists of hashes.
    assert!(proxy.traffic().down_len < 600_000, "{} bytes", proxy.traffic().down_len);
}

/// Passes requests on to a server, but for those that it refuses.
fn guarded(server: &TestServer, is_refused: fn(&str) -> bool) -> Script {
    use std::io::{Read, Write};
    let address = server.address().to_owned();
    Script::start(move |_, request| {
        if is_refused(request.split(' ').nth(1).unwrap()) {
            return response("403 Forbidden", &[], b"");
        }
        // With its own name, so that data URLs lead to the server itself: heads are in lower case here.
        let lines = request.trim_end().lines().filter(|line| !line.starts_with("host: "));
        let method_in_capitals = |line: &str| match line.split_once(' ') {
            Some((method @ ("get" | "head"), rest)) => {
                format!("{} {}", method.to_uppercase(), rest.replace("http/1.1", "HTTP/1.1"))
            }
            _ => line.to_owned(),
        };
        let head: Vec<String> = lines.map(method_in_capitals).collect();
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        write!(stream, "{}\r\nhost: {address}\r\nconnection: close\r\n\r\n", head.join("\r\n")).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

#[test]
fn part_is_proven_by_chunks_where_the_server_has_no_lists() {
    let (directory, server, hash, bytes) = stocked();
    let script = guarded(&server, |path| path.starts_with("/xorbs/"));
    let args = ["pull", &hash, "--range", "1000000-1000100", "-o", "part", "--json", "--server", &script.url];
    assert_eq!(directory.zorb(&args).ok().record()["proven"], true);
    assert!(directory.read("part") == bytes[1_000_000..1_000_100]);
    assert!(script.requests().iter().any(|request| request.starts_with("get /xorbs/")));
}

/// The proof is about whole chunks, so the place of the part in the first of them is checked apart.
#[test]
fn part_that_begins_elsewhere_in_a_proven_chunk_is_refused() {
    let raw = b"the one chunk of this file".to_vec();
    let xorb = Xorb::of(zorb::format::compression::Policy::None, std::slice::from_ref(&raw));
    let hash = zorb::format::merkle::file_hash([(&xorb.verified.chunk_hashes()[0], raw.len() as u64)]).to_string();
    for (offset, is_true) in [(4, true), (5, false), (3, false), (0, false)] {
        let (directory, xorb_hash, bytes, len) = (Directory::new(), xorb.hash(), xorb.bytes.clone(), raw.len());
        let script = Script::start(move |_, request| {
            let host = request.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
            match request.split(' ').nth(1).unwrap() {
                path if path.starts_with("/v1/files/") => {
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n").into_bytes()
                }
                path if path.starts_with("/v2/file-chunk-hashes/") => {
                    let windows = json!([{"dirtyByteRange": [0, len]}]);
                    let around = json!({"fileSize": len, "windows": windows, "hashRanges": [null, null]});
                    response("200 OK", &[], around.to_string().as_bytes())
                }
                path if path.starts_with("/v2/reconstructions/") => {
                    let (range, part) = (json!({"start": 0, "end": 1}), json!({"start": 0, "end": bytes.len() - 1}));
                    let url = format!("http://{host}/data");
                    let plan = json!({
                        "offset_into_first_range": offset,
                        "terms": [{"hash": xorb_hash, "unpacked_length": len, "range": range}],
                        "xorbs": {&xorb_hash: [{"url": url, "ranges": [{"chunks": range, "bytes": part}]}]},
                    });
                    response("200 OK", &[], plan.to_string().as_bytes())
                }
                _ => response("206 Partial Content", &[], &bytes),
            }
        });
        let ran = directory.zorb(&["pull", &hash, "--range", "4-7", "-o", "x", "--server", &script.url]);
        if is_true {
            assert!(ran.ok().text().ends_with("bytes 4-7, 3 B to x, verified\n"), "{offset}");
            assert_eq!(directory.read("x"), raw[4..7]);
        } else {
            ran.failed(1, &["is not provably bytes 4-7 of file"]);
            assert!(directory.names().is_empty(), "{offset}");
        }
    }
}
