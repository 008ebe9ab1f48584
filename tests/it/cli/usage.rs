//! What can be typed, and what cannot.

use super::{Directory, NO_SERVER, Ran};
use crate::support::{TestServer, Xorb, rng};

#[test]
fn a_command_line_that_makes_no_sense_exits_with_2() {
    let directory = Directory::new();
    directory.write("x", b"");
    let hash = "0".repeat(64);
    let url = ["--server", NO_SERVER];
    for args in [
        &[][..],
        &["frobnicate"],
        &["xorb"],
        &["xorb", "pack"],
        &["xorb", "pack", "x", "--compression", "zip"],
        &["xorb", "inspect"],
        &["xorb", "verify", "x", "--hash", "xyz"],
        &["xorb", "unpack", "x", "--range", "5-4"],
        &["xorb", "unpack", "x", "-o", "."],
        &["xorb", "unpack", "x", "--json"],
        &["xorb", "inspect", "x", "--json", "--quiet"],
        &["push"],
        &["push", url[0], url[1]],
        &["push", "x", "--jobs", "0", url[0], url[1]],
        &["push", "x", "--no-resume", "--cache-dir", "c", url[0], url[1]],
        &["pull"],
        &["pull", "012", url[0], url[1]],
        &["pull", "012x", url[0], url[1]],
        &["pull", &hash, "0123", url[0], url[1]],
        &["pull", &hash, "0123", "-o", "d", "--range", "0-1", url[0], url[1]],
        &["pull", &hash, "--manifest", "x", "-o", "d", url[0], url[1]],
        &["pull", "--manifest", "x", url[0], url[1]],
        &["push", "x", "--manifest", "m", url[0], url[1]],
        &["push", ".", ".", "--manifest", "m", url[0], url[1]],
        &["pull", &hash, "--range", "5-5", url[0], url[1]],
        &["pull", &hash, "--json", url[0], url[1]],
        &["pull", &hash, "-o", ".", url[0], url[1]],
        &["ls", "chunks", url[0], url[1]],
        &["xorb", "put", "x", "--server", "localhost:8080"],
        &["xorb", "put", "x", "--server", "ftp://localhost"],
        &["xorb", "put", "x", "--server", "http://me:secret@localhost"],
        &["xorb", "put", url[0], url[1]],
        &["xorb", "put", "x", "--jobs", "0", url[0], url[1]],
        &["put", "x", url[0], url[1]],
        &["get", &hash, url[0], url[1]],
        &["xorb", "get", "0123", url[0], url[1]],
        &["xorb", "get", &hash, "--range", "x", url[0], url[1]],
        &["xorb", "get", &hash, "--json", url[0], url[1]],
        &["xorb", "get", &hash, "-o", ".", url[0], url[1]],
        &["healthcheck", "--server", "x"],
        &["completions", "cmd.exe"],
        &["rca"],
        &["rca", "create"],
        &["rca", "create", "a", "x", "--level", "23"],
        &["rca", "append", "x"],
        &["rca", "append", "x", "-"],
        &["rca", "append", "a", "x", "x", "--name", "y"],
        &["rca", "append", "a", "x", "-r", "--name", "y"],
        &["rca", "cat", "x"],
        &["rca", "cat", "x", "name", "--index", "0"],
        &["rca", "ls", "x", "--json", "--quiet"],
    ] {
        let ran = directory.zorb(args).failed(2, &[]);
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{args:?}: {ran:?}");
    }
    assert_eq!(directory.names(), ["x"]);
}

#[test]
fn every_command_has_help_and_the_first_page_exit_codes() {
    let directory = Directory::new();
    for command in [
        &["serve"][..],
        &["xorb", "pack"],
        &["xorb", "inspect"],
        &["xorb", "verify"],
        &["xorb", "unpack"],
        &["rca", "create"],
        &["rca", "append"],
        &["rca", "ls"],
        &["rca", "cat"],
        &["rca", "extract"],
        &["rca", "verify"],
        &["push"],
        &["pull"],
        &["ls"],
        &["rm"],
        &["xorb", "put"],
        &["xorb", "get"],
        &["backup"],
        &["restore"],
        &["gc"],
        &["healthcheck"],
        &["completions"],
    ] {
        let text = directory.zorb(&[command, &["--help"]].concat()).ok().text();
        assert!(text.contains(&format!("Usage: zorb {}", command.join(" "))), "{text}");
    }
    for (command, promise) in [("put", "growing delays"), ("get", "verified before it is written")] {
        let text = directory.zorb(&["xorb", command, "--help"]).ok().text();
        assert!(text.contains(promise), "{text}");
    }
    let text = directory.zorb(&["--help"]).ok().text();
    assert!(text.contains("Exit codes") && text.contains("healthcheck"), "{text}");
    let version = directory.zorb(&["--version"]).ok().text();
    assert_eq!(version, format!("zorb {}\n", env!("CARGO_PKG_VERSION")));
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        assert!(directory.zorb(&["completions", shell]).ok().text().contains("inspect"), "{shell}");
    }
}

#[test]
fn man_pages_are_written_for_every_command() {
    let directory = Directory::new();
    std::fs::create_dir(directory.path("man")).unwrap();
    directory.zorb(&["man-pages", "man"]).ok();
    let names = ["zorb.1", "zorb-serve.1", "zorb-push.1", "zorb-token-issue.1", "zorb-index-rebuild.1"];
    for name in names {
        let page = String::from_utf8(directory.read(&format!("man/{name}"))).unwrap();
        assert!(page.contains(".TH") && page.contains(".SH OPTIONS"), "{name}: {page}");
    }
    directory.zorb(&["man-pages", "none"]).failed(1, &["cannot write manual pages into none"]);
    assert!(!directory.zorb(&["--help"]).ok().text().contains("man-pages"));
}

#[test]
fn healthcheck_tells_a_ready_server_from_one_that_is_not() {
    let (directory, server) = (Directory::new(), TestServer::start());
    let url = server.url().to_owned();
    let check = || directory.zorb(&["healthcheck", "--server", &url]);
    assert_eq!(check().ok().text(), format!("{url} is ready\n"));
    let record = directory.zorb(&["healthcheck", "--server", &url, "--json"]).ok().record();
    assert_eq!(record, serde_json::json!({ "server": url, "ready": true }));
    // It responses, but it could not store anything.
    let tmp = server.data_dir().join("tmp");
    std::fs::remove_dir_all(&tmp).unwrap();
    check().failed(1, &["503 not_ready"]);
    std::fs::create_dir(&tmp).unwrap();
    check().ok();
    let unreachable = directory.zorb(&["healthcheck", "--server", NO_SERVER]);
    unreachable.failed(1, &[&format!("cannot reach {NO_SERVER}: Connection refused")]);
}

#[test]
fn the_server_may_be_named_by_the_environment() {
    let (directory, server, mut rng) = (Directory::new(), TestServer::start(), rng());
    let xorb = Xorb::mixed(&mut rng, 2);
    directory.write("x", &xorb.bytes);
    let put = |variables: &[(&str, &str)]| {
        let child = std::process::Command::new(env!("CARGO_BIN_EXE_zorb"))
            .args(["xorb", "put", "x", "--retries", "0"])
            .current_dir(directory.path(""))
            .env_remove("NO_PROXY")
            .env_remove("no_proxy")
            .envs(variables.iter().copied())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn();
        Ran::of(child.expect("the binary was built for this test"))
    };
    // A proxy of the environment is none for this machine.
    let proxy = ("HTTP_PROXY", NO_SERVER);
    assert_eq!(put(&[("ZORB_SERVER", server.url()), proxy]).ok().text().split(' ').next(), Some("new"));
    put(&[("ZORB_SERVER", NO_SERVER)]).failed(1, &[&format!("cannot put x: cannot reach {NO_SERVER}")]);
    // For others it is one, and nobody is there.
    put(&[("ZORB_SERVER", "http://store.invalid"), proxy, ("http_proxy", proxy.1)]).failed(1, &["Connection refused"]);
}
