//! Pushes that were interrupted, and servers that have lost what they had.

use rustix::process::{Pid, Signal, kill_process};

use super::network::{Script, response};
use super::push::{pull, push};
use super::{Directory, Ran};
use crate::support::{Metrics, TestServer, eventually, random_bytes, rng};

/// Shards in the cache, one per xorb that was acknowledged.
fn noted(directory: &Directory) -> usize {
    let servers = std::fs::read_dir(directory.path("cache/zorb/push")).into_iter().flatten();
    let entries = servers.flat_map(|server| std::fs::read_dir(server.unwrap().path()).unwrap());
    entries.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|name| name == "shard")).count()
}

#[tokio::test]
async fn killed_push_resumes_with_what_the_server_lacks() {
    let (directory, server, mut rng) = (Directory::new(), TestServer::start(), rng());
    let bytes = random_bytes(&mut rng, 270 << 20);
    directory.write("large", &bytes);
    let mut first = directory.start(&["push", "large", "--jobs", "1", "--server", server.url()]);
    eventually("two xorbs are acknowledged", async || noted(&directory) >= 2).await;
    first.kill().unwrap();
    first.wait().unwrap();
    let is_over = async || Metrics::of(&server.client()).await.get("zorb_uploads_in_flight") == 0.0;
    eventually("what it had sent has come", is_over).await;
    let (kept, before) = (noted(&directory), Metrics::of(&server.client()).await.get("zorb_received_bytes_total"));
    assert!((2..5).contains(&kept), "{kept} xorbs were acknowledged");

    let (files, total) = push(&directory, &server, &["large"]);
    let sent = Metrics::of(&server.client()).await.get("zorb_received_bytes_total") - before;
    // What was acknowledged is full but for a chunk.
    let known = kept as f64 * f64::from((64 << 20) - (128 << 10) - (8 << 13));
    assert!(sent < bytes.len() as f64 - known + f64::from(1 << 20), "{sent} bytes after {kept} xorbs");
    assert!(total["xorbs"].as_u64().unwrap() <= 5 - kept as u64, "{total}");
    // Registered, and therefore forgotten.
    assert_eq!(noted(&directory), 0);
    assert!(pull(&directory, &server, files[0]["hash"].as_str().unwrap()) == bytes);
}

#[test]
fn stopped_push_says_so_and_leaves_only_its_state() {
    let (directory, mut rng) = (Directory::new(), rng());
    directory.write("x", &random_bytes(&mut rng, 100_000));
    // Listens, and never responses.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let child = directory.start(&["push", "x", "--server", &url]);
    let (_stream, _) = silent.accept().unwrap();
    kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), Signal::TERM).unwrap();
    Ran::of(child).failed(1, &["stopped by SIGTERM"]);
    assert_eq!(directory.names(), ["x"]);
}

#[test]
fn a_server_that_was_wiped_gets_everything_again() {
    let (directory, mut rng) = (Directory::new(), rng());
    let (first, second) = (random_bytes(&mut rng, 3 << 20), random_bytes(&mut rng, 1 << 20));
    directory.write("first", &first);
    directory.write("both", &[first.clone(), second].concat());
    let server = TestServer::start();
    // Takes the xorb and never registers it.
    let full = Script::start(|_, request| match request {
        _ if request.starts_with("post /v1/xorbs/") => response("200 OK", &[], br#"{"was_inserted":true}"#),
        _ if request.starts_with("get /v1/chunks/") => response("404 Not Found", &[], b""),
        _ => response("507 Insufficient Storage", &[], b""),
    });
    directory
        .zorb(&["push", "first", "--server", &full.url])
        .failed(1, &["cannot register the files", "responded with 507"]);
    assert_eq!(noted(&directory), 1);
    // The notes of that server, as if they were of this one.
    let of = |url: &str| {
        let name = format!("http---{}", url.strip_prefix("http://").unwrap().replace(['.', ':'], "-"));
        let servers = std::fs::read_dir(directory.path("cache/zorb/push")).unwrap();
        let mut paths = servers.map(|entry| entry.unwrap().path());
        paths.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&name))
    };
    directory.write("other", b"other");
    let stopped = ["push", "other", "--server", server.url()];
    directory.zorb(&stopped).ok_with_remarks();
    let (from, to) = (of(&full.url).unwrap(), of(server.url()).unwrap());
    for entry in std::fs::read_dir(&from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }

    let ran = directory.zorb(&["push", "both", "--json", "--server", server.url()]).ok_with_remarks();
    assert!(ran.stderr.contains("missing_xorb") && ran.stderr.contains("starting over"), "{}", ran.stderr);
    let records = ran.records();
    assert_eq!(records[1]["xorbs"], 2, "what this push has sent itself is not sent again");
    assert!(pull(&directory, &server, records[0]["hash"].as_str().unwrap()) == directory.read("both"));
}

#[test]
fn notes_that_cannot_be_written_are_done_without() {
    let (directory, server) = (Directory::new(), TestServer::start());
    directory.write("x", b"x");
    directory.write("no-directory", b"");
    let args = ["push", "x", "--cache-dir", "no-directory/cache", "--server", server.url()];
    let ran = directory.zorb(&args).ok_with_remarks();
    assert!(ran.stderr.contains("cannot save the resume state"), "{}", ran.stderr);
    directory.write("y", b"y");
    directory.zorb(&["push", "y", "--no-resume", "--server", server.url()]).ok_with_remarks();
    assert_eq!(noted(&directory), 0);
}
