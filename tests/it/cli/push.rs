//! `zorb push`, and `zorb pull` of what it has pushed.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use super::network::{Script, response};
use super::{Directory, floats, of_type, prose, sample_files};
use crate::support::{Metrics, TestServer, random_bytes, rng};

/// Pushes these paths; returns the records of the files and that of the total.
pub fn push(directory: &Directory, server: &TestServer, args: &[&str]) -> (Vec<Value>, Value) {
    let args = [&["push", "--json", "--server", server.url()], args].concat();
    let records = directory.zorb(&args).ok().records();
    let files = of_type(&records, "file").into_iter().cloned().collect();
    let [total] = of_type(&records, "total").try_into().expect("there is one total");
    (files, total.clone())
}

/// Pulls a file; returns what is in it.
pub fn pull(directory: &Directory, server: &TestServer, hash: &str) -> Vec<u8> {
    let record = directory.zorb(&["pull", hash, "-o", "pulled", "--json", "--server", server.url()]).ok().record();
    assert_eq!(record["proven"], true);
    directory.read("pulled")
}

/// Bytes of xorbs and shards that a server has received.
async fn received(server: &TestServer) -> f64 {
    Metrics::of(&server.client()).await.get("zorb_received_bytes_total")
}

#[test]
fn files_of_all_sorts_round_trip_in_the_order_given() {
    let (directory, server, mut rng) = (Directory::new(), TestServer::start(), rng());
    let files = sample_files(&mut rng);
    for (name, bytes) in &files {
        directory.write(name, bytes);
    }
    let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    let args = [&["push", "--server", server.url()], &names[..]].concat();
    let ran = directory.zorb(&args).ok_with_remarks();
    let text = ran.text();
    let lines: Vec<(&str, &str)> = text.lines().map(|line| line.split_once("  ").unwrap()).collect();
    assert_eq!(lines.iter().map(|(_, name)| *name).collect::<Vec<_>>(), names);
    assert!(ran.stderr.starts_with("9 files, "), "{}", ran.stderr);

    // The same hashes as a packer gives, which knows nothing of servers.
    let packed = directory.pack(&names);
    for (record, (hash, _)) in of_type(&packed, "file").iter().zip(&lines) {
        assert_eq!(record["file_hash"], *hash);
    }
    let server = server.restart();
    for ((name, bytes), (hash, _)) in files.iter().zip(&lines) {
        assert!(pull(&directory, &server, hash) == *bytes, "{name} came back different");
    }
    let (records, total) = push(&directory, &server, &["noise", "again", "empty"]);
    assert_eq!((&total["sent_len"], &total["duplicate_len"]), (&json!(0), &json!(600_000)));
    assert_eq!(records[0]["hash"], records[1]["hash"]);
    assert_eq!(records[2]["hash"], "0".repeat(64));
    assert_eq!(records[2]["sha256"], "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

#[test]
fn directory_is_walked_in_order_without_its_links() {
    let (directory, server) = (Directory::new(), TestServer::start());
    for name in ["d/b/deep/1", "d/b.txt", "d/a", "target/x"] {
        std::fs::create_dir_all(directory.path(name).parent().unwrap()).unwrap();
        directory.write(name, name.as_bytes());
    }
    // What an interrupted pull leaves.
    directory.write("d/.zorb-0123456789abcdef-0123456789abcdef.part", b"a part");
    symlink("a", directory.path("d/link")).unwrap();
    symlink("../target", directory.path("d/directory-link")).unwrap();
    symlink("target", directory.path("typed")).unwrap();
    let args = ["push", "--json", "--server", server.url(), "d", "typed", "d/link"];
    let ran = directory.zorb(&args).ok_with_remarks();
    assert!(ran.stderr.contains("skipped 3 in the directories"), "{}", ran.stderr);
    let records = ran.records();
    let paths: Vec<&str> = of_type(&records, "file").iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["d/a", "d/b/deep/1", "d/b.txt", "typed/x", "d/link"]);
    for file in of_type(&records, "file") {
        let contents = pull(&directory, &server, file["hash"].as_str().unwrap());
        assert!(contents == directory.read(file["path"].as_str().unwrap()));
    }
    // Small files share a xorb.
    assert_eq!(server.blobs().len(), 1);
}

/// Also from a machine without the first file.
#[tokio::test]
async fn near_duplicate_costs_only_its_new_data() {
    let (directory, server, mut rng) = (Directory::new(), TestServer::start(), rng());
    let mut bytes = [prose(&mut rng, 10 << 20), random_bytes(&mut rng, 30 << 20), floats(&mut rng, 10 << 20)].concat();
    directory.write("first", &bytes);
    push(&directory, &server, &["first"]);
    bytes.splice(20_000_000..20_000_000, *b"inserted");
    bytes[45_000_000..45_010_000].fill(7);
    let elsewhere = Directory::new();
    elsewhere.write("second", &bytes);
    let before = received(&server).await;
    let (files, total) = push(&elsewhere, &server, &["second"]);
    let sent = received(&server).await - before;
    assert!(sent < 0.04 * bytes.len() as f64, "{sent} bytes sent");
    let record = &files[0];
    assert_eq!(record["new_len"].as_u64().unwrap() + record["duplicate_len"].as_u64().unwrap(), bytes.len() as u64);
    assert!(total["sent_len"].as_f64().unwrap() <= sent);
    assert!(pull(&elsewhere, &server, record["hash"].as_str().unwrap()) == bytes);
}

#[test]
fn unreadable_file_is_skipped_and_a_wrong_name_stops_all() {
    let (dir, server) = (Directory::new(), TestServer::start());
    dir.write("good", b"good");
    let push = |paths: &[&str]| dir.zorb(&[&["push", "--json", "--server", server.url()], paths].concat());
    push(&["good", "missing"]).failed(1, &["zorb: cannot read missing: No such file"]);
    push(&["/dev/null"]).failed(1, &["/dev/null is neither a file nor a directory"]);
    assert!(server.blobs().is_empty());
    // Readable for `stat` and not for `read`: the memory of another address space.
    let ran = push(&["good", "/proc/self/mem"]).failed(1, &["cannot read /proc/self/mem", "1 of 2 files not pushed"]);
    let records = ran.records();
    assert_eq!((of_type(&records, "file").len(), of_type(&records, "failed").len()), (1, 1));
    assert_eq!(server.blobs().len(), 1);
}

#[test]
fn older_server_gets_the_shard_on_its_route_after_the_xorbs() {
    let directory = Directory::new();
    directory.write("x", &vec![7; 300_000]);
    let script = Script::start(|_, request| match request {
        _ if request.starts_with("post /v1/xorbs/") => response("200 OK", &[], br#"{"was_inserted":true}"#),
        _ if request.starts_with("post /v1/shards ") => response("200 OK", &[], br#"{"result":1}"#),
        _ => response("404 Not Found", &[], b""),
    });
    let args = ["push", "x", "--token", "secret-token", "--server", &script.url];
    let ran = directory.zorb(&args).ok_with_remarks();
    assert!(ran.text().ends_with("  x\n"), "{}", ran.text());
    let requests = script.requests();
    let lines: Vec<&str> = requests.iter().map(|request| request.split(' ').nth(1).unwrap()).collect();
    let starts = ["/v1/chunks/default/", "/v1/usage?", "/v1/xorbs/default/", "/v2/shards", "/v1/shards"];
    assert!(lines.len() == 5 && lines.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{lines:?}");
    assert!(requests.iter().all(|request| request.contains("authorization: bearer secret-token\r\n")));
    let ran = directory.zorb(&["push", "x", "--token", "not one word", "--server", &script.url]);
    assert!(!ran.failed(1, &["a token is one word"]).stderr.contains("not one word"));
    directory.write("token", b"from-file\n");
    directory.zorb(&["push", "x", "--token-file", "token", "--no-resume", "--server", &script.url]).ok_with_remarks();
    assert!(script.requests().last().unwrap().contains("authorization: bearer from-file\r\n"));
}

#[test]
fn malformed_shard_is_a_miss_and_malformed_events_fail() {
    let directory = Directory::new();
    directory.write("x", b"x");
    let events = |lines: &str| {
        let lines = lines.to_owned();
        Script::start(move |_, request| match request {
            _ if request.starts_with("post /v1/xorbs/") => response("200 OK", &[], br#"{"was_inserted":true}"#),
            _ if request.starts_with("post /v2/shards ") => response("200 OK", &[], lines.as_bytes()),
            _ => response("200 OK", &[], b"nonsense"),
        })
    };
    let push =
        |script: &Script| directory.zorb(&["push", "x", "--retries", "1", "--no-resume", "--server", &script.url]);
    let heartbeat = "{\"type\":\"validating\",\"verified\":0,\"total\":1}\n\n{\"type\":\"news\",\"x\":1}\n";
    push(&events(&format!("{heartbeat}{{\"type\":\"result\",\"result\":1}}"))).ok_with_remarks();
    push(&events(heartbeat)).failed(1, &["its events end without a result"]);
    push(&events("<html>\n")).failed(1, &["a line of its events is not an event"]);
    let error = events(r#"{"type":"error","message":"Disk \u001b[31mfull.","code":"internal","retryable":true}"#);
    let ran = push(&error).failed(1, &["failed: internal: Disk [31mfull.; trying again in"]);
    assert!(ran.text().is_empty(), "{}", ran.text());
}

#[test]
fn control_characters_are_escaped_in_text_and_raw_in_json() {
    let (directory, server) = (Directory::new(), TestServer::start());
    let name = "a\nb\u{1b}[2Jc";
    directory.write(name, b"something");
    let ran = directory.zorb(&["push", "--server", server.url(), name]);
    let text = ran.text();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(text.ends_with("  a\\nb\\u{1b}[2Jc\n") && text.lines().count() == 1, "{text:?}");
    assert_eq!(push(&directory, &server, &[name]).0[0]["path"], name);
}
