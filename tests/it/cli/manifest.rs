//! `zorb push --manifest` and `zorb pull --manifest`: a directory by name.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use serde_json::{Value, json};

use super::push::push;
use super::{Directory, of_type, prose};
use crate::support::{Metrics, TestServer, random_bytes, rng};

const BATCHES: &str = r#"zorb_http_requests_total{route="/v1/reconstructions",method="POST",status="200"}"#;
const QUESTIONS: &str = r#"zorb_http_requests_total{route="/v1/chunks/{prefix}/{hash}",method="GET",status="200"}"#;

/// A directory with files of all sorts; returns their names.
fn directory(dir: &Directory) -> Vec<String> {
    let mut rng = rng();
    let mut names: Vec<String> = (0..300).map(|index| format!("d/{}/{index}.txt", index % 7)).collect();
    for (index, name) in names.iter().enumerate() {
        write(dir, name, &prose(&mut rng, 100 + 50 * index));
    }
    let large = [random_bytes(&mut rng, 3 << 20), prose(&mut rng, 3 << 20)].concat();
    for (name, bytes) in [
        ("d/empty", &[][..]),
        ("d/large", &large),
        ("d/large again", &large),
        ("d/run", b"#!/bin/sh\n"),
        ("d/same/as run", b"#!/bin/sh\n"),
        ("d/größe \"1\"", b"1"),
    ] {
        write(dir, name, bytes);
        names.push(name.to_owned());
    }
    let mode = |name, mode| std::fs::set_permissions(dir.path(name), PermissionsExt::from_mode(mode)).unwrap();
    mode("d/run", 0o755);
    mode("d/0/0.txt", 0o600);
    names
}

fn write(directory: &Directory, name: &str, bytes: &[u8]) {
    std::fs::create_dir_all(directory.path(name).parent().unwrap()).unwrap();
    directory.write(name, bytes);
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

/// Files below a directory, by their paths.
fn count(path: &Path) -> usize {
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { count(&path) } else { 1 }).sum()
}

fn pull(directory: &Directory, server: &TestServer, manifest: &str, target: &str) -> super::Ran {
    directory.zorb(&["pull", "--manifest", manifest, "-o", target, "--json", "--server", server.url()])
}

#[tokio::test]
async fn a_directory_comes_back_by_its_manifest() {
    let (dir, server) = (Directory::new(), TestServer::start());
    let names = directory(&dir);
    push(&dir, &server, &["d", "--manifest", "m.jsonl"]);
    let manifest = String::from_utf8(dir.read("m.jsonl")).unwrap();
    let lines: Vec<Value> = manifest.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), names.len());
    let line = lines.iter().find(|line| line["path"] == "run").unwrap();
    assert_eq!((&line["size"], &line["mode"]), (&json!(10), &json!("0755")));

    let records = pull(&dir, &server, "m.jsonl", "back").ok().records();
    assert!(of_type(&records, "file").iter().all(|file| file["state"] == "written"));
    assert_eq!(count(&dir.path("back")), names.len());
    for name in &names {
        let back = name.replacen('d', "back", 1);
        assert!(dir.read(name) == dir.read(&back), "{name}");
        assert_eq!(mode(&dir.path(name)), mode(&dir.path(&back)), "{name}");
    }
    // One plan for all small files.
    let batches = Metrics::of(&server.client()).await.get(BATCHES);
    assert!((batches - 1.0).abs() < 0.5, "{batches} plans");

    // What is there stays, what is not there, or changed, comes again.
    std::fs::remove_file(dir.path("back/3/10.txt")).unwrap();
    dir.write("back/run", b"#!/bin/zz\n");
    std::fs::remove_file(dir.path("back/large")).unwrap();
    let records = pull(&dir, &server, "m.jsonl", "back").ok().records();
    let written = of_type(&records, "file").into_iter().filter(|file| file["state"] == "written");
    let mut written: Vec<&str> = written.map(|file| file["path"].as_str().unwrap()).collect();
    written.sort_unstable();
    assert_eq!(written, ["3/10.txt", "large", "run"]);
    assert!(dir.read("back/large") == dir.read("d/large"));
    assert_eq!(dir.read("back/run"), b"#!/bin/sh\n");
    let total = of_type(&records, "total")[0];
    assert_eq!((&total["files"], &total["present"]), (&json!(names.len()), &json!(names.len() - 3)));
}

#[test]
fn a_manifest_never_leads_out_of_its_directory() {
    let (directory, server) = (Directory::new(), TestServer::start());
    write(&directory, "d/a", b"something");
    let (files, _) = push(&directory, &server, &["d"]);
    let hash = files[0]["hash"].as_str().unwrap();
    write(&directory, "outside/kept", b"kept");
    write(&directory, "back/in the way/x", b"x");
    symlink("../outside", directory.path("back/link")).unwrap();
    symlink("../outside/kept", directory.path("back/final")).unwrap();
    let absolute = directory.path("outside/absolute").to_str().unwrap().to_owned();
    let bad = [
        absolute.as_str(),
        "../outside/x",
        "a/../../outside/x",
        "link/x",
        "in the way",
        "",
        ".",
        "..",
        "a//b",
        "nul\0x",
        ".zorb-0123456789abcdef-0123456789abcdef.part",
        "a/.zorb-1.tmp/x",
    ];
    let line = |path: &str| json!({"path": path, "hash": hash, "size": 9, "mode": "4777"}).to_string();
    let lines: Vec<String> = bad.iter().chain(&["final", "good/x"]).map(|path| line(path)).collect();
    directory.write("m", lines.join("\n").as_bytes());
    let ran = pull(&directory, &server, "m", "back")
        .failed(1, &["12 of 14 files not pulled", "it is absolute", "a temporary file"]);
    let records = ran.records();
    assert_eq!((of_type(&records, "file").len(), of_type(&records, "failed").len()), (2, 12));
    assert_eq!((count(&directory.path("outside")), directory.read("outside/kept")), (1, b"kept".to_vec()));
    // The link itself was replaced.
    assert!(!directory.path("back/final").is_symlink());
    assert_eq!(
        (directory.read("back/final"), directory.read("back/good/x")),
        (b"something".to_vec(), b"something".to_vec())
    );
    assert_eq!(mode(&directory.path("back/good/x")) & 0o7000, 0);
    assert_eq!(directory.read("back/in the way/x"), b"x");
}

#[test]
fn files_that_the_server_lacks_do_not_stop_the_others() {
    let (directory, server) = (Directory::new(), TestServer::start());
    write(&directory, "d/a", b"something");
    write(&directory, "d/b", b"else");
    push(&directory, &server, &["d", "--manifest", "m"]);
    let mut manifest = directory.read("m");
    let absent = json!({"path": "absent", "hash": "1".repeat(64), "size": 5});
    manifest.extend_from_slice(absent.to_string().as_bytes());
    directory.write("m", &manifest);
    let complaints = ["cannot pull absent: the server has no file 1111", "1 of 3 files not pulled"];
    pull(&directory, &server, "m", "back").failed(1, &complaints);
    assert_eq!((directory.read("back/a"), directory.read("back/b")), (b"something".to_vec(), b"else".to_vec()));
    assert_eq!(count(&directory.path("back")), 2);
}

#[test]
fn a_manifest_is_of_one_directory_in_which_every_name_is_text() {
    use std::os::unix::ffi::OsStrExt;
    let (dir, server) = (Directory::new(), TestServer::start());
    write(&dir, "d/a", b"something");
    let odd = dir.path("d").join(std::ffi::OsStr::from_bytes(b"\xff"));
    std::fs::write(&odd, b"x").unwrap();
    let args = ["push", "d", "--manifest", "m", "--server", server.url()];
    dir.zorb(&args).failed(1, &["is not valid UTF-8"]);
    assert!(server.blobs().is_empty() && !dir.path("m").exists());
    dir.zorb(&["push", "d/a", "--manifest", "m", "--server", server.url()]).failed(2, &["for a directory"]);
    dir.write("m", b"{}\n");
    pull(&dir, &server, "m", "back").failed(1, &["m is not a manifest: line 1"]);
    assert!(!dir.path("back").exists());
}

#[test]
fn several_files_are_pulled_by_the_first_digits_of_their_hashes() {
    let (directory, server) = (Directory::new(), TestServer::start());
    for name in ["a", "b", "c"] {
        directory.write(name, name.as_bytes());
    }
    let (files, _) = push(&directory, &server, &["a", "b", "c"]);
    let hash = |index: usize| files[index]["hash"].as_str().unwrap();
    let args = ["pull", &hash(0)[..12], hash(1), &hash(0)[..9], "-o", "back", "--server", server.url()];
    directory.zorb(&args).ok_with_remarks();
    assert_eq!(count(&directory.path("back")), 2);
    for (index, name) in [(0, "a"), (1, "b")] {
        assert_eq!(directory.read(&format!("back/{}", hash(index))), name.as_bytes());
    }
    let one = ["pull", &hash(2)[..12].to_uppercase(), "-o", "one", "-q", "--server", server.url()];
    directory.zorb(&one).ok();
    assert_eq!(directory.read("one"), b"c");
    let none = ["rm", "ffff0000ffff", &hash(2)[..12], "--server", server.url()];
    directory.zorb(&none).failed(1, &["a hash that begins with ffff0000ffff"]);
    let text = directory.zorb(&["rm", &hash(2)[..12], &hash(1)[..12], "--server", server.url()]).ok().text();
    assert!(text.starts_with(hash(2)) && text.lines().count() == 2, "{text}");
    assert_eq!(directory.zorb(&["ls", "--json", "--server", server.url()]).ok().records().len(), 1);
}

#[test]
fn a_prefix_of_two_hashes_names_neither() {
    let directory = Directory::new();
    let entry = |hash: &str| json!({"hash": hash, "len": 1, "sha256": null, "registered_unix_secs": 1});
    let (one, two) = (format!("{:0>64}", "01"), format!("{:0>64}", "02"));
    let page = json!({"files": [entry(&one), entry(&two)], "next": null}).to_string();
    let script = super::network::Script::start(move |_, _| super::network::response("200 OK", &[], page.as_bytes()));
    let complaints = ["the hashes of 2 files begin with 0000: ", &one, &two];
    for verb in [&["rm", "0000"][..], &["pull", "0000", "-o", "x"]] {
        directory.zorb(&[verb, &["--server", &script.url]].concat()).failed(1, &complaints);
    }
    assert!(script.requests().iter().all(|request| request.starts_with("get /v1/files")));
}

#[tokio::test]
async fn known_small_files_are_asked_for_by_few_requests() {
    let server = TestServer::start();
    let directories = [Directory::new(), Directory::new()];
    for directory in &directories {
        for index in 0..1500 {
            write(directory, &format!("d/{index}"), format!("the file {index}").as_bytes());
        }
    }
    let (first, _) = push(&directories[0], &server, &["d"]);
    let before = Metrics::of(&server.client()).await;
    assert!(before.get(QUESTIONS) < 0.5);
    let (second, total) = push(&directories[1], &server, &["d"]);
    assert_eq!((first.len(), &total["sent_len"]), (second.len(), &json!(0)));
    let asked = Metrics::of(&server.client()).await.get(QUESTIONS);
    assert!(asked < 20.0, "{asked} responses with a xorb each");
}
