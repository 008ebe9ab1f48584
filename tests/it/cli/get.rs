//! `zorb xorb get`.

use std::time::{Duration, Instant};

use rand::RngExt;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::network::{Cut, Proxy, Script, response};
use super::{Directory, NO_SERVER, Ran};
use crate::support::{TestServer, Xorb, rng};

/// A server that has this xorb.
fn server_with(directory: &Directory, xorb: &Xorb) -> TestServer {
    let server = TestServer::start();
    directory.write("x", &xorb.bytes);
    directory.zorb(&["xorb", "put", "x", "--server", server.url()]).ok();
    server
}

#[test]
fn any_part_comes_in_either_form_to_a_file_or_to_stdout() {
    let (directory, mut rng) = (Directory::new(), rng());
    let xorb = Xorb::mixed(&mut rng, 9);
    let server = server_with(&directory, &xorb);
    let hash = xorb.hash();
    let get = |args: &[&str]| directory.zorb(&[&["xorb", "get", &hash, "--server", server.url()], args].concat());
    for (range, (start, end)) in
        [(None, (0, 9)), (Some("0-9"), (0, 9)), (Some("4"), (4, 5)), (Some("-3"), (6, 9)), (Some("7-"), (7, 9))]
    {
        for raw in [false, true] {
            let expected = if raw { xorb.raw(start, end) } else { xorb.serialized(start, end) };
            let mut args: Vec<&str> = range.map_or(vec![], |range| vec!["--range", range]);
            args.extend(raw.then_some("--raw"));
            let ran = get(&args);
            assert_eq!((ran.code, &ran.stdout[..] == expected), (Some(0), true), "{args:?}: {}", ran.stderr);
            assert!(ran.stderr.contains(&format!("chunks {start}-{end}")), "{}", ran.stderr);
            args.extend(["-o", "back", "--json"]);
            let record = get(&args).ok().record();
            assert_eq!(directory.read("back"), expected, "{args:?}");
            let expected = json!({
                "hash": hash, "path": "back", "raw": raw, "start": start, "end": end,
                "serialized_len": xorb.serialized(start, end).len(), "raw_len": xorb.raw(start, end).len(),
            });
            assert_eq!(record, expected);
        }
    }
    assert_eq!(get(&["-q"]).ok().stdout, xorb.bytes);
    assert_eq!(get(&["-o", "-", "-q"]).ok().stdout, xorb.bytes);
    assert_eq!(directory.names(), ["back", "x"]);
}

#[test]
fn what_is_not_there_leaves_the_old_file() {
    let (directory, mut rng) = (Directory::new(), rng());
    let xorb = Xorb::mixed(&mut rng, 3);
    let server = server_with(&directory, &xorb);
    directory.write("back", b"before");
    let url = server.url().to_owned();
    let get = |args: &[&str]| {
        directory.zorb(&[&["xorb", "get", "-o", "back", "--retries", "1", "--server", &url], args].concat())
    };
    let (hash, other) = (xorb.hash(), "1".repeat(64));
    for args in [&[other.as_str()][..], &[&other, "--range", "0"], &[&other, "--raw"]] {
        get(args).failed(1, &["responded with 404 not_found: Xorb 1111"]);
    }
    for range in ["3", "0-4", "-4", "3-"] {
        get(&[&hash, "--range", range])
            .failed(1, &["has 3 chunks, numbered from 0", &format!("the range {range} exceeds")]);
    }
    let begin = Instant::now();
    directory
        .zorb(&["xorb", "get", &hash, "-o", "back", "--retries", "1", "--server", NO_SERVER])
        .failed(1, &["trying again in", "cannot get xorb", "Connection refused"]);
    assert!(begin.elapsed() < Duration::from_secs(30));
    assert_eq!(
        (directory.read("back"), directory.names()),
        (b"before".to_vec(), vec!["back".to_owned(), "x".to_owned()])
    );
    directory
        .zorb(&["xorb", "get", &hash, "-o", "no/such", "--server", NO_SERVER])
        .failed(1, &["cannot write no/such"]);
}

#[test]
fn a_transfer_that_breaks_off_goes_on_where_it_was() {
    let (directory, mut rng) = (Directory::new(), rng());
    let xorb = Xorb::incompressible(&mut rng, 4 << 20);
    let server = server_with(&directory, &xorb);
    let len = xorb.bytes.len() as u64;
    for (args, expected) in [(&[][..], &xorb.bytes), (&["--raw"], &xorb.raw)] {
        // Before the response, within its head, within a chunk, and more often than it is tried in a row.
        let mut cuts = vec![Cut::Up(5), Cut::Down(0), Cut::Down(100), Cut::Down(1 << 20)];
        cuts.extend([Cut::Down(300_000); 8]);
        let proxy = Proxy::start(server.address(), &cuts);
        let get = ["xorb", "get", &xorb.hash(), "-o", "back", "--server", &proxy.url];
        let ran = directory.zorb(&[&get, args].concat()).ok_with_remarks();
        assert!(directory.read("back") == *expected, "{args:?}");
        assert_eq!(ran.stderr.matches("trying again").count(), 12, "{}", ran.stderr);
        let traffic = proxy.traffic();
        assert_eq!(traffic.requests.len(), 13);
        // What was on its way when a connection was cut is lost: less than the buffers of the loopback device hold.
        assert!(traffic.down_len < len + 13 * 1_000, "{} of {len} bytes, {:?}", traffic.down_len, traffic.requests);
        let last = traffic.requests[12].to_ascii_lowercase();
        assert!(last.contains("\r\nrange: bytes=") && last.contains("\r\nif-range: \""), "{last}");
        assert_eq!(directory.names(), ["back", "x"]);
    }
}

#[test]
fn a_part_goes_on_too_and_its_list_is_asked_for_again() {
    let (directory, mut rng) = (Directory::new(), rng());
    let xorb = Xorb::incompressible(&mut rng, 2 << 20);
    let server = server_with(&directory, &xorb);
    // The first connection breaks within the list; the second gives the list, then breaks within the chunks.
    let proxy = Proxy::start(server.address(), &[Cut::Down(1_000), Cut::Down(600_000)]);
    let get = ["xorb", "get", &xorb.hash(), "--range", "2-12", "-o", "back", "--server", &proxy.url];
    let ran = directory.zorb(&get).ok_with_remarks();
    assert_eq!(directory.read("back"), xorb.serialized(2, 12));
    assert_eq!(ran.stderr.matches("was closed").count(), 2, "{}", ran.stderr);
    let last = &proxy.traffic().requests[2];
    assert!(last.contains("?range=2-12") && last.contains("bytes="), "{last}");
}

#[test]
fn transfer_restarts_when_the_server_would_send_other_bytes() {
    let (directory, mut rng) = (Directory::new(), rng());
    let xorb = Xorb::mixed(&mut rng, 20);
    let bytes = xorb.bytes.clone();
    let half = bytes.len() / 2;
    let cut = move |tag: &'static str, body: &[u8]| {
        let whole = response("200 OK", &[("ETag", tag)], body);
        whole[..whole.len() - half].to_vec()
    };
    let script = Script::start(move |index, head| match index {
        0 => cut("\"one\"", &bytes),
        1 => {
            assert!(
                head.contains(&format!("range: bytes={}-", bytes.len() - half)) && head.contains("if-range: \"one\"")
            );
            cut("\"two\"", &bytes)
        }
        // Without a tag, or with a weak one, there is no telling, so nothing is asked for in part.
        2 => cut("W/\"three\"", &bytes),
        _ => {
            assert!(!head.contains("range: "), "{head}");
            response("200 OK", &[], &bytes)
        }
    });
    let ran = directory.zorb(&["xorb", "get", &xorb.hash(), "-o", "back", "--server", &script.url]).ok_with_remarks();
    assert_eq!((directory.read("back"), script.requests().len()), (xorb.bytes.to_vec(), 4), "{}", ran.stderr);

    // Another beginning, and an end before the end of the xorb.
    let len = xorb.bytes.len();
    for range in ["bytes 0-9/10".to_owned(), format!("bytes {}-{}/{len}", len - half, len - half + 9)] {
        let other = xorb.bytes.clone();
        let script = Script::start(move |index, _| match index {
            0 => cut("\"one\"", &other),
            _ => response("206 Partial Content", &[("Content-Range", &range), ("ETag", "\"one\"")], &other[..10]),
        });
        let get = ["xorb", "get", &xorb.hash(), "-o", "none", "--server", &script.url];
        directory.zorb(&get).failed(1, &["another range than requested"]);
    }
    assert_eq!(directory.names(), ["back"]);
}

/// The list of a xorb's chunks as the server gives it.
fn list(xorb: &Xorb) -> Value {
    let hashes = xorb.verified.chunk_hashes().iter();
    let chunks = xorb.verified.layout().chunks().zip(hashes);
    let chunks = chunks.map(|(place, hash)| json!({ "hash": hash.to_string(), "raw_len": place.raw.byte_len() }));
    json!({ "hash": xorb.hash(), "chunks": chunks.collect::<Vec<_>>() })
}

/// What `zorb xorb get` with these arguments says of a server that sends this list and these bytes. It must fail, whatever
/// it was asked to write to.
fn check_lie(xorb: &Xorb, args: &[&str], list: &Value, body: &[u8], complaint: &str) {
    let directory = Directory::new();
    let (list, body) = (list.to_string(), body.to_vec());
    let script = Script::start(move |_, head| {
        let body = if head.contains("/chunks ") { list.as_bytes() } else { &body };
        response("200 OK", &[("ETag", "\"x\"")], body)
    });
    for form in [&[][..], &["--raw"], &["-o", "back"], &["--raw", "-o", "back"]] {
        let ran = directory.zorb(&[&["xorb", "get", &xorb.hash(), "--server", &script.url], args, form].concat());
        let ran = ran.failed(1, &[complaint]);
        assert_eq!((ran.stdout.len(), directory.names().len()), (0, 0), "{args:?} {form:?}");
    }
}

#[test]
fn nothing_is_taken_from_a_server_that_lies() {
    let mut rng = rng();
    let (xorb, other) = (Xorb::mixed(&mut rng, 6), Xorb::mixed(&mut rng, 6));
    let (honest, part) = (list(&xorb), xorb.serialized(1, 3));
    let whole = &[][..];
    let range = &["--range", "1-3"][..];
    check_lie(&xorb, whole, &honest, &other.bytes, &format!("sent xorb {} for xorb", other.hash()));
    check_lie(&xorb, whole, &honest, &xorb.bytes[..xorb.bytes.len() - 1], ": chunk 5 at byte");
    check_lie(&xorb, whole, &honest, xorb.serialized(0, 5), "sent xorb");
    check_lie(&xorb, whole, &honest, b"", ": byte 0: the body is empty");
    check_lie(&xorb, whole, &honest, b"<html>not what you think</html>", ": chunk 0 at byte 0");
    check_lie(&xorb, range, &honest, xorb.serialized(2, 4), &format!("as chunk 1 of xorb {}", xorb.hash()));
    check_lie(&xorb, range, &honest, &xorb.bytes, "as chunk 1 of xorb");
    check_lie(&xorb, range, &honest, xorb.serialized(1, 4), "sent 3 chunks of xorb");
    check_lie(&xorb, range, &honest, xorb.serialized(1, 2), "sent 1 chunks of xorb");
    check_lie(&xorb, range, &honest, &part[..part.len() - 1], "damaged data");
    check_lie(&xorb, range, &list(&other), other.serialized(1, 3), "list of the chunks of xorb");
    let mut swapped = honest.clone();
    swapped["chunks"].as_array_mut().unwrap().swap(1, 2);
    check_lie(&xorb, range, &swapped, part, "is that of another xorb");
    check_lie(&xorb, range, &json!({ "chunks": 7 }), part, "does not respond like a zorb server");
    // One bit, anywhere. (Of chunks as they are: some bits of compressed ones do not matter.)
    let xorb = Xorb::incompressible(&mut rng, 10_000);
    let mut flipped = xorb.bytes.to_vec();
    let at = rng.random_range(0..flipped.len());
    flipped[at] ^= 1 << rng.random_range(0..8);
    check_lie(&xorb, whole, &list(&xorb), &flipped, "the server sent");
}

#[test]
fn a_signal_removes_what_is_not_complete() {
    let (directory, mut rng) = (Directory::new(), rng());
    let xorb = Xorb::incompressible(&mut rng, 2 << 20);
    let server = server_with(&directory, &xorb);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 1)] {
        let proxy = Proxy::start(server.address(), &[Cut::Stall(1 << 20)]);
        let child = directory.start(&["xorb", "get", &xorb.hash(), "-o", "back", "--server", &proxy.url]);
        let deadline = Instant::now() + Duration::from_secs(60);
        // Not before there is something to remove.
        while proxy.traffic().down_len < 1 << 20 || directory.names().len() < 2 {
            assert!(Instant::now() < deadline, "{:?} {:?}", proxy.traffic(), directory.names());
            std::thread::sleep(Duration::from_millis(5));
        }
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process id is positive");
        kill_process(pid, signal).expect("the command is a child of this process");
        let ran = Ran::of(child).failed(code, &["stopped by SIG"]);
        assert!(!ran.stderr.contains("run it again"), "{}", ran.stderr);
        assert_eq!(directory.names(), ["x"]);
    }
}
