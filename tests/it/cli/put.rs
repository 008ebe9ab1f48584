//! `zorb xorb put`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use zorb::format::chunk::ChunkHeader;
use zorb::format::compression::Scheme;
use zorb::format::limits::MAX_XORB_SERIALIZED_LEN;
use zorb::format::xorb::write_v1;

use super::files::unpack_file;
use super::network::{Cut, Proxy, Script, response};
use super::{Directory, NO_SERVER, floats, of_type, prose};
use crate::support::{TestServer, Xorb, random_bytes, rng};

const CREATED: &[u8] = br#"{"hash":"","was_inserted":true,"chunks":1,"serialized_len":1,"raw_len":1}"#;

#[test]
fn files_go_from_pack_to_put_to_get_to_unpack_over_a_restart() {
    let (directory, server, mut rng) = (Directory::new(), TestServer::start(), rng());
    let noise = random_bytes(&mut rng, 9 << 20);
    let files = [
        ("a", prose(&mut rng, 5 << 20)),
        ("b", floats(&mut rng, 6 << 20)),
        ("c", [&noise[1_000_000..], &noise[..2_000_000]].concat()),
        ("d", noise),
        ("empty", Vec::new()),
    ];
    for (name, bytes) in &files {
        directory.write(name, bytes);
    }
    // Two runs for two xorbs; their second xorb shares most of its bytes with the first.
    let first = directory.pack(&["a", "b", "c"]);
    let second = directory.pack(&["d", "empty"]);
    let xorbs: Vec<&Value> = of_type(&first, "xorb").into_iter().chain(of_type(&second, "xorb")).collect();
    assert_eq!(xorbs.len(), 2);
    let paths: Vec<&str> = xorbs.iter().map(|xorb| xorb["path"].as_str().unwrap()).collect();

    let put = [&["xorb", "put", "--server", server.url(), "--jobs", "2"], &paths[..]].concat();
    let text = directory.zorb(&put).ok().text();
    for xorb in &xorbs {
        assert!(text.contains(&format!("new   {}  ", xorb["hash"].as_str().unwrap())), "{text}");
    }
    let server = server.restart();
    let put = [&["xorb", "put", "--server", server.url(), "--json"], &paths[..]].concat();
    for record in directory.zorb(&put).ok().records() {
        let xorb = xorbs.iter().find(|xorb| xorb["hash"] == record["hash"]).unwrap();
        assert_eq!(record["was_inserted"], false);
        for field in ["path", "chunks", "serialized_len", "raw_len"] {
            assert_eq!(record[field], xorb[field], "{field}");
        }
    }

    for path in &paths {
        let hash = path.strip_prefix("out/").and_then(|name| name.strip_suffix(".xorb")).unwrap();
        let before = directory.read(path);
        std::fs::remove_file(directory.path(path)).unwrap();
        directory.zorb(&["xorb", "get", hash, "-o", path, "--server", server.url()]).ok();
        assert!(directory.read(path) == before, "the server gave another serialization of {hash}");
    }
    let packed = [of_type(&first, "file"), of_type(&second, "file")].concat();
    for ((name, bytes), record) in files.iter().zip(packed) {
        assert!(unpack_file(&directory, record) == *bytes, "{name} is different");
    }
}

#[test]
fn file_that_is_no_xorb_is_skipped_and_the_others_sent() {
    let (directory, server, mut rng) = (Directory::new(), TestServer::start(), rng());
    let (good, mut bad) = (Xorb::mixed(&mut rng, 3), Xorb::mixed(&mut rng, 3).bytes.to_vec());
    bad.pop();
    directory.write("good", &good.bytes);
    directory.write("bad", &bad);
    let put = |files: &[&str]| directory.zorb(&[&["xorb", "put", "--json", "--server", server.url()], files].concat());
    let ran = put(&["bad", "missing", "good"]).failed(
        1,
        &["bad is not a valid xorb: chunk 2 at byte", "cannot read missing: No such file", "2 of 3 files not put"],
    );
    let records = ran.records();
    let of = |path: &str| records.iter().find(|record| record["path"] == path).unwrap();
    assert_eq!((&of("good")["was_inserted"], &of("good")["hash"]), (&json!(true), &json!(good.hash())));
    assert_eq!(of("bad")["code"], "incomplete_body");
    assert!(of("missing")["error"].as_str().unwrap().contains("No such file"));
    assert_eq!(server.blobs(), [good.hash()]);
    put(&["bad"]).failed(1, &["zorb: bad is not a valid xorb"]);
}

#[test]
fn footer_is_not_sent_and_stock_xorb_may_exceed_64_mib() {
    let (directory, server, mut rng) = (Directory::new(), TestServer::start(), rng());
    let xorb = Xorb::mixed(&mut rng, 5);
    let mut with_footer = xorb.bytes.to_vec();
    write_v1(&xorb.verified, &mut with_footer);
    directory.write("footer", &with_footer);
    let record = directory.zorb(&["xorb", "put", "footer", "--json", "--server", server.url()]).ok().record();
    assert_eq!((&record["hash"], &record["serialized_len"]), (&json!(xorb.hash()), &json!(xorb.bytes.len())));

    // 64 MiB that do not compress, and their 512 headers.
    let header = ChunkHeader::new(Scheme::None, 131_072, 131_072).unwrap().to_bytes();
    let mut long = Vec::new();
    for raw in random_bytes(&mut rng, 64 << 20).chunks(131_072) {
        long.extend_from_slice(&header);
        long.extend_from_slice(raw);
    }
    assert!(long.len() as u64 > MAX_XORB_SERIALIZED_LEN);
    directory.write("long", &long);
    let record = directory.zorb(&["xorb", "put", "long", "--json", "--server", server.url()]).ok().record();
    assert_eq!((&record["was_inserted"], &record["chunks"]), (&json!(true), &json!(512)));
    let hash = record["hash"].as_str().unwrap();
    directory.zorb(&["xorb", "get", hash, "-o", "back", "--server", server.url()]).ok();
    assert!(directory.read("back") == long, "the long xorb came back different");
}

#[test]
fn a_connection_that_breaks_is_tried_again() {
    let (directory, server, mut rng) = (Directory::new(), TestServer::start(), rng());
    let xorb = Xorb::incompressible(&mut rng, 3 << 20);
    directory.write("x", &xorb.bytes);
    // Within the head, within the body, and after it: then the server has stored it and nobody was told.
    let cuts = [Cut::Up(20), Cut::Up(1 << 20), Cut::Down(0)];
    let proxy = Proxy::start(server.address(), &cuts);
    let ran = directory.zorb(&["xorb", "put", "x", "--server", &proxy.url]).ok_with_remarks();
    assert_eq!(ran.stderr.matches("x: cannot reach").count(), 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("; trying again in 0."), "{}", ran.stderr);
    assert_eq!(server.blobs(), [xorb.hash()]);
    assert_eq!(proxy.traffic().requests.len(), 4);

    let proxy = Proxy::start(server.address(), &cuts);
    let put = ["xorb", "put", "x", "--retries", "1", "--server", &proxy.url];
    directory.zorb(&put).failed(1, &["zorb: cannot put x: cannot reach"]);
    assert_eq!(proxy.traffic().requests.len(), 2);
}

#[test]
fn retry_after_is_honoured_and_a_refusal_is_final() {
    let (directory, mut rng) = (Directory::new(), rng());
    directory.write("x", &Xorb::mixed(&mut rng, 2).bytes);
    let overloaded = br#"{"code":"overloaded","detail":"Too many uploads."}"#;
    let script = Script::start(move |index, _| match index {
        0 => response("503 Service Unavailable", &[("Retry-After", "1")], overloaded),
        1 => response("429 Too Many Requests", &[], b"<html>"),
        _ => response("201 Created", &[], CREATED),
    });
    let begin = Instant::now();
    let ran = directory.zorb(&["xorb", "put", "x", "--server", &script.url]).ok_with_remarks();
    assert!(begin.elapsed() >= Duration::from_secs(1));
    assert!(
        ran.stderr.contains("responded with 503 overloaded: Too many uploads.; trying again in 1."),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("responded with 429 Too Many Requests; trying again"), "{}", ran.stderr);
    let requests = script.requests();
    assert_eq!(requests.len(), 3);
    for request in requests {
        assert!(request.starts_with("post /xorbs/") && request.contains("content-length: "), "{request}");
        let agent = format!("user-agent: zorb/{}\r\n", env!("CARGO_PKG_VERSION"));
        assert!(request.contains(&agent) && !request.contains("transfer-encoding"), "{request}");
    }

    for (status, code) in [("507 Insufficient Storage", "out_of_space"), ("400 Bad Request", "malformed_xorb")] {
        let problem = format!(r#"{{"code":"{code}","detail":"No."}}"#);
        let script = Script::start(move |_, _| response(status, &[], problem.as_bytes()));
        let ran = directory.zorb(&["xorb", "put", "x", "--json", "--server", &script.url]);
        let ran = ran.failed(1, &[status.split(' ').next().unwrap(), &format!("{code}: No.")]);
        assert_eq!((&ran.record()["code"], script.requests().len()), (&json!(code), 1));
    }
    for (status, body) in [("200 OK", &b"hello"[..]), ("204 No Content", b""), ("301 Moved Permanently", b"")] {
        let script = Script::start(move |_, _| response(status, &[("Location", "http://127.0.0.1:9/")], body));
        directory
            .zorb(&["xorb", "put", "x", "--server", &script.url])
            .failed(1, &["zorb: cannot put x: http://127.0.0.1"]);
        assert_eq!(script.requests().len(), 1);
    }
}

#[test]
fn nobody_there_is_a_sentence() {
    let directory = Directory::new();
    directory.write("x", b"\0\x01\0\0\0\x01\0\0a");
    let ran = directory.zorb(&["xorb", "put", "x", "--retries", "0", "--server", NO_SERVER]).failed(1, &[]);
    assert_eq!(
        ran.stderr,
        format!("zorb: cannot put x: cannot reach {NO_SERVER}: Connection refused (os error 111)\n")
    );
}
