//! What people are told when something goes wrong, and what a server cannot make a terminal do.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::network::{Cut, Proxy, Script, response};
use super::push::push;
use super::{Directory, Ran};
use crate::support::{Metrics, Start, TestServer, guarded, issue, random_bytes, rng};

#[test]
fn default_server_is_shown_with_the_variable_to_change_it() {
    let directory = Directory::new();
    let text = directory.zorb(&["ls", "--help"]).ok().text();
    assert!(text.contains("[default: http://127.0.0.1:8080]"), "{text}");
    let ran = directory.zorb(&["ls", "--retries", "0"]);
    // Unless a server listens there, which this test knows nothing of.
    if TcpStream::connect("127.0.0.1:8080").is_err() {
        let expected =
            "cannot reach http://127.0.0.1:8080 (the default; name another one in ZORB_SERVER or with --server): ";
        ran.failed(1, &[expected]);
    }
    directory
        .zorb(&["ls", "--retries", "0", "--server", super::NO_SERVER])
        .failed(1, &["cannot reach http://127.0.0.1:9: "]);
}

#[test]
fn a_failure_of_the_server_names_its_request() {
    let directory = Directory::new();
    let problem = br#"{"code":"internal","detail":"It fails."}"#;
    let script = Script::start(|_, _| response("500 Internal Server Error", &[("X-Request-Id", "4711")], problem));
    let ran = directory.zorb(&["ls", "--retries", "0", "--server", &script.url]);
    ran.failed(1, &["responded with 500 internal: It fails. (request id 4711)"]);
    directory.write("x", b"x");
    let events = Script::start(|_, request| match request {
        _ if request.starts_with("post /v1/xorbs/") => response("200 OK", &[], br#"{"was_inserted":true}"#),
        _ if request.starts_with("post /v2/shards ") => {
            let event = br#"{"type":"error","message":"It fails.","code":"internal","retryable":false}"#;
            response("200 OK", &[("X-Request-Id", "4712")], event)
        }
        _ => response("404 Not Found", &[], b""),
    });
    let ran = directory.zorb(&["push", "x", "--no-resume", "--server", &events.url]);
    ran.failed(1, &["failed: internal: It fails. (request id 4712)"]);
}

#[test]
fn every_command_without_a_token_is_told_that_it_takes_one() {
    let (directory, server) = (Directory::new(), guarded());
    directory.write("x", b"x");
    let hash = "1".repeat(64);
    for args in
        [&["pull", &hash, "-o", "y"][..], &["push", "x"], &["ls"], &["rm", &hash], &["xorb", "get", &hash, "-o", "y"]]
    {
        let ran = directory.zorb(&[args, &["--retries", "0", "--server", server.url()]].concat());
        ran.failed(1, &["401 unauthorized: This request requires a token"]);
    }
}

#[test]
fn ctrl_c_is_130_and_a_push_says_that_it_goes_on() {
    let (directory, mut rng) = (Directory::new(), rng());
    directory.write("x", &random_bytes(&mut rng, 100_000));
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let child = directory.start(&["push", "x", "--server", &url]);
    let (_stream, _) = silent.accept().unwrap();
    signal(&child, Signal::INT);
    Ran::of(child).failed(130, &["zorb: stopped by SIGINT; run it again to continue\n"]);
}

fn signal(child: &std::process::Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process id is positive");
    kill_process(pid, signal).expect("the command is a child of this process");
}

/// The partial file in a directory.
fn partial(directory: &Directory) -> Option<std::path::PathBuf> {
    let names = directory.names();
    names.iter().find(|name| name.ends_with(".part")).map(|name| directory.path(name))
}

#[test]
fn an_interrupted_pull_goes_on_with_the_chunks_it_has() {
    let (directory, server, mut rng) = (Directory::new(), TestServer::start(), rng());
    // More than a xorb, so that there is something to keep before all of it is there.
    let bytes = random_bytes(&mut rng, 100 << 20);
    directory.write("file", &bytes);
    let (files, _) = push(&directory, &server, &["file"]);
    let hash = files[0]["hash"].as_str().unwrap();
    for kind in [Signal::INT, Signal::KILL] {
        let proxy = Proxy::start(server.address(), &[Cut::Stall(80 << 20), Cut::Stall(0), Cut::Stall(0)]);
        let child = directory.start(&["pull", hash, "-o", "back", "--jobs", "1", "--server", &proxy.url]);
        let deadline = Instant::now() + Duration::from_secs(120);
        let kept = || partial(&directory).map_or(0, |path| path.metadata().map_or(0, |metadata| metadata.len()));
        while kept() < 60 << 20 {
            assert!(Instant::now() < deadline, "{:?} {:?}", proxy.traffic(), directory.names());
            std::thread::sleep(Duration::from_millis(5));
        }
        signal(&child, kind);
        if kind == Signal::INT {
            Ran::of(child).failed(130, &["stopped by SIGINT; run it again to continue"]);
        } else {
            Ran::of(child);
            // Something has happened to one chunk of them since.
            let mut stored = std::fs::read(partial(&directory).unwrap()).unwrap();
            stored[50_000_000] ^= 1;
            std::fs::write(partial(&directory).unwrap(), &stored).unwrap();
        }
        assert!(!directory.path("back").exists());
        let proxy = Proxy::start(server.address(), &[]);
        let record =
            directory.zorb(&["pull", hash, "-o", "back", "--json", "--server", &proxy.url]).ok_with_remarks().record();
        let resumed = record["resumed_len"].as_u64().unwrap();
        let least = if kind == Signal::INT { 60 << 20 } else { 49_000_000 };
        assert!(resumed >= least && record["proven"] == true, "{record}");
        let (down, left) = (proxy.traffic().down_len, bytes.len() as u64 - resumed);
        assert!(down < left + (1 << 20), "{down} bytes came for {left}");
        assert!(directory.read("back") == bytes);
        assert_eq!(directory.names(), ["back", "file"]);
        std::fs::remove_file(directory.path("back")).unwrap();
    }
}

#[tokio::test]
async fn a_push_for_which_there_is_no_quota_sends_nothing() {
    let server = Start::default().with("auth", "token").with("quota_logical_bytes", 300_000).start();
    let token = issue(&server, "write", "acme/bert", &[]);
    let (directory, mut rng) = (Directory::new(), rng());
    directory.write("small", &random_bytes(&mut rng, 200_000));
    directory.write("large", &random_bytes(&mut rng, 200_001));
    let push = |name: &str| {
        directory.zorb(&["push", name, "small", "--no-resume", "--token", &token, "--server", server.url()])
    };
    push("small").ok_with_remarks();
    let received = async || {
        Metrics::of(&server.client().bearing(&issue(&server, "admin", "*", &[]))).await.get("zorb_received_bytes_total")
    };
    let before = received().await;
    let complaint = "the quota of acme/bert leaves 100000 bytes of files, and this push needs 200001; nothing was sent";
    push("large").failed(1, &[complaint]);
    assert!((received().await - before).abs() < 0.5);
    // What is there is not counted again.
    push("small").ok_with_remarks();
}

#[test]
fn nothing_that_a_server_says_drives_the_terminal() {
    let directory = Directory::new();
    let evil = "a\u{1b}[2Jb\u{202e}c\u{2066}d\u{9b}e";
    let is_tame = |ran: &Ran| {
        let shown = format!("{}{}", ran.text(), ran.stderr);
        let bad = ['\u{1b}', '\u{202e}', '\u{2066}', '\u{9b}'];
        assert!(!shown.contains(bad), "{shown:?}");
    };
    let problem = json!({"code": evil, "detail": evil}).to_string();
    let refusing = Script::start(move |_, _| response("400 Bad Request", &[], problem.as_bytes()));
    let hash = "1".repeat(64);
    let usage = json!({"files": 1, "logical_bytes": 1, "physical_bytes": 1,
        "limits": {"files": null, "logical_bytes": null, "physical_bytes": null}});
    let mut repo = usage.clone();
    repo["repo"] = evil.into();
    repo["owner"] = json!(null);
    let lying = [
        (vec!["usage"], json!({"repos": [repo], "next": null})),
        (vec!["rm", &hash], json!({"file": evil, "file_removed": true, "claims_removed": []})),
        (vec!["rm", &hash], json!({"file": hash, "file_removed": true, "claims_removed": [evil]})),
        (
            vec!["ls"],
            json!({"files": [{"hash": hash, "len": 1, "sha256": evil, "registered_unix_secs": 1}], "next": null}),
        ),
    ];
    for (args, body) in lying {
        let body = body.to_string();
        let script = Script::start(move |_, _| response("200 OK", &[], body.as_bytes()));
        for json in [&[][..], &["--json"]] {
            let ran = directory.zorb(&[&args[..], json, &["--server", &script.url]].concat());
            is_tame(&ran);
            ran.failed(1, &["does not respond like a zorb server"]);
        }
        is_tame(
            &directory.zorb(&[&args[..], &["--server", &refusing.url]].concat()).failed(1, &["responded with 400"]),
        );
    }
    // A name that is ours, and still not for a terminal, in JSON as well.
    let server = TestServer::start();
    directory.write("gpj\u{202e}exe", b"x");
    for json in [&[][..], &["--json"]] {
        let ran = directory.zorb(&[&["push", "gpj\u{202e}exe", "--server", server.url()], json].concat());
        is_tame(&ran);
        assert!(ran.text().contains("202e"), "{}", ran.text());
    }
}

#[test]
fn names_of_files_do_not_drive_the_terminal() {
    let (directory, evil, tame) = (Directory::new(), "a\u{1b}[2Jb\u{202e}c", "a\\u{1b}[2Jb\\u{202e}c");
    // The empty file takes no server.
    let text = directory.zorb(&["pull", &"0".repeat(64), "-o", evil, "--server", super::NO_SERVER]).ok().text();
    assert!(text.contains(tame) && !text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
    let ran = directory.zorb(&["xorb", "inspect", &format!("no {evil}")]).failed(1, &[tame]);
    assert!(!ran.stderr.contains(['\u{1b}', '\u{202e}']), "{:?}", ran.stderr);
}

#[test]
fn plain_http_and_tls_at_the_other_ones_port_are_told() {
    let certificates = crate::support::Certificates::new();
    let (directory, encrypted, plain) = (Directory::new(), certificates.start().start(), TestServer::start());
    let authority = certificates.authority();
    let hash = "1".repeat(64);
    for args in [&["ls"][..], &["pull", &hash, "-o", "x"]] {
        let https = format!("https://{}", plain.address());
        let more = ["--retries", "0", "--ca-file", authority.to_str().unwrap(), "--server"];
        let ran = directory.zorb(&[args, &more, &[&https]].concat());
        ran.failed(1, &["the port does not speak TLS; use http:// if the server has no TLS"]);
        let http = format!("http://{}", encrypted.address());
        directory.zorb(&[args, &more, &[&http]].concat()).failed(1, &["This port accepts https only"]);
    }
}
