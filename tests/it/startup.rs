//! Starting: the first line, where settings come from, and when a start is refused.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use tempfile::TempDir;

use crate::support::{Client, TestServer, Xorb, output_of, rng};

/// `zorb serve` in a directory, with nothing said but the arguments.
fn zorb(directory: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zorb"));
    command.arg("serve").args(args).current_dir(directory).stdin(Stdio::null());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ZORB_")) {
        command.env_remove(name);
    }
    command
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("the test can make a temporary directory")
}

/// A server that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts it; returns its first line and what ends it.
fn started(command: Command) -> (String, Running) {
    let (mut lines, running) = spawned(command);
    (line_of(&mut lines), running)
}

/// Starts it; returns its stdout and what ends it.
fn spawned(mut command: Command) -> (BufReader<ChildStdout>, Running) {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut running = Running(child.expect("the binary was built for this test"));
    let stdout = running.0.stdout.take().expect("stdout is piped");
    (BufReader::new(stdout), running)
}

fn line_of(stdout: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    stdout.read_line(&mut line).expect("the server writes text");
    line
}

/// The start must be refused with a sentence that has all of these words, and nothing on stdout.
fn check_refused(mut command: Command, words: &[&str]) {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Output { status, stdout, stderr } = output_of(child.expect("the binary was built for this test"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.code().is_some_and(|code| code != 0), "{status}: {stderr}");
    assert_eq!(stdout, "");
    assert!(words.iter().all(|word| stderr.contains(word)), "{words:?} in {stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("RUST_BACKTRACE"), "{stderr}");
}

#[tokio::test]
async fn first_line_names_the_listening_address() {
    let directory = directory();
    let (line, _running) = started(zorb(directory.path(), &["--listen", "127.0.0.1:0", "--data-dir", "new/data"]));
    let url = line.strip_prefix("zorb listening on ").and_then(|rest| rest.strip_suffix('\n')).expect("the line");
    let port: u16 = url.strip_prefix("http://127.0.0.1:").expect("a URL").parse().expect("a port");
    assert_ne!(port, 0);
    assert_eq!(Client::new(url).get("/readyz").await.status, 200);
    assert!(directory.path().join("new/data/index.sqlite").exists());
}

#[test]
fn second_line_says_how_clients_of_the_hub_use_the_server() {
    const PUBLIC: &str = "https://store.example";
    for (auth, public_url, token) in [("off", "", "any"), ("token", "", "TOKEN"), ("token", PUBLIC, "TOKEN")] {
        let directory = directory();
        let mut command = zorb(directory.path(), &["--listen", "127.0.0.1:0", "--auth", auth]);
        command.env("ZORB_PUBLIC_URL", public_url);
        let (mut lines, _running) = spawned(command);
        let first = line_of(&mut lines);
        let own = first.trim_end().strip_prefix("zorb listening on ").expect("the line");
        let url = if public_url.is_empty() { own } else { public_url };
        let expected = format!("for hf and transformers: export HF_ENDPOINT={url} HF_TOKEN={token}\n");
        assert_eq!(line_of(&mut lines), expected);
    }
}

#[tokio::test]
async fn second_server_on_a_directory_refuses_without_disturbing() {
    let (server, mut rng) = (TestServer::start(), rng());
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng, 3));
    let mut upload = crate::support::Raw::begin_upload(&server, &xorb.path(), xorb.bytes.len()).await;
    upload.send(&xorb.bytes[..10]).await;
    let (data_dir, elsewhere) = (server.data_dir().to_str().expect("text"), directory());
    let second = zorb(elsewhere.path(), &["--listen", "127.0.0.1:0", "--data-dir", data_dir]);
    check_refused(second, &["another zorb", data_dir]);
    upload.send(&xorb.bytes[10..]).await;
    assert_eq!(upload.response().await.status, 201);
    assert_eq!(client.get(&xorb.path()).await.body, xorb.bytes);
    assert_eq!(client.get("/readyz").await.status, 200);
}

#[test]
fn a_port_that_is_taken_is_refused_with_its_address() {
    let server = TestServer::start();
    check_refused(zorb(directory().path(), &["--listen", server.address()]), &["cannot listen on", server.address()]);
}

#[tokio::test]
async fn other_machines_are_served_only_if_somebody_said_so() {
    let directory = directory();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
        check_refused(zorb(directory.path(), &["--listen", address]), &["refusing", address, "--allow-anonymous"]);
    }
    assert!(!directory.path().join("zorb-data").exists(), "a refused start leaves nothing behind");
    let mut by_env = zorb(directory.path(), &["--listen", "0.0.0.0:0"]);
    by_env.env("ZORB_ALLOW_ANONYMOUS", "true");
    for command in [by_env, zorb(directory.path(), &["--listen", "0.0.0.0:0", "--allow-anonymous"])] {
        let (line, _running) = started(command);
        let port = line.trim_end().rsplit_once(':').expect("the line has a port").1.to_owned();
        assert_eq!(Client::new(&format!("http://127.0.0.1:{port}")).get("/healthz").await.status, 200);
    }
}

#[test]
fn flags_win_over_environment_over_file_over_default() {
    let sources = ["flag", "environment", "file", "zorb-data"];
    for first in 0..sources.len() {
        let directory = directory();
        fs::write(directory.path().join("zorb.toml"), "data_dir = \"file\"\n").expect("the test can write");
        let mut args = vec!["--listen", "127.0.0.1:0"];
        if first == 0 {
            args.extend(["--data-dir", "flag"]);
        }
        if first <= 2 {
            args.extend(["--config", "zorb.toml"]);
        }
        let mut command = zorb(directory.path(), &args);
        if first <= 1 {
            command.env("ZORB_DATA_DIR", "environment");
        }
        let (line, _running) = started(command);
        assert!(line.starts_with("zorb listening on http://127.0.0.1:"), "{line}");
        for source in sources {
            assert_eq!(directory.path().join(source).exists(), source == sources[first], "{source}");
        }
    }
}

#[test]
fn settings_that_make_no_sense_are_refused_by_name() {
    let directory = directory();
    let file = |text: &str, words: &[&str]| {
        fs::write(directory.path().join("zorb.toml"), text).expect("the test can write");
        check_refused(zorb(directory.path(), &["--config", "zorb.toml"]), words);
    };
    file("max_upload = 3\n", &["zorb.toml", "max_upload"]);
    file("[server]\nlisten = \"x\"\n", &["zorb.toml", "server"]);
    file("max_uploads = \"many\"\n", &["zorb.toml", "max_uploads"]);
    file("max_uploads = 0\n", &["max_uploads", "at least 1"]);
    file("max_uploads = \n", &["zorb.toml"]);
    file("log_format = \"xml\"\n", &["log_format", "xml"]);
    file("listen = \"nowhere\"\n", &["listen", "nowhere"]);
    check_refused(zorb(directory.path(), &["--config", "missing.toml"]), &["missing.toml"]);
    check_refused(zorb(directory.path(), &["--lisen", "127.0.0.1:0"]), &["--lisen"]);
    let mut command = zorb(directory.path(), &[]);
    command.env("ZORB_MAX_UPLOADS", "many");
    check_refused(command, &["max_uploads", "many"]);
    let mut command = zorb(directory.path(), &[]);
    command.env("ZORB_LOG", "zorb=nonsense=x");
    check_refused(command, &["log"]);
    for log in ["warning", "verbose", "inof", "zorb=inof,info"] {
        file(&format!("log = {log:?}\n"), &["log = ", "error, warn, info, debug, trace, off"]);
    }
    file("log = \"\"\n", &["log", "empty"]);
    assert!(!directory.path().join("zorb-data").exists(), "a refused start leaves nothing behind");
}

#[test]
fn a_data_directory_that_cannot_be_one_is_refused_by_name() {
    let dir = directory();
    fs::write(dir.path().join("file"), "in the way").expect("the test can write");
    check_refused(zorb(dir.path(), &["--listen", "127.0.0.1:0", "--data-dir", "file"]), &["data directory", "file"]);
    fs::create_dir(dir.path().join("data")).expect("the test can make a dir");
    fs::write(dir.path().join("data/index.sqlite"), "not a database".repeat(1000)).expect("the test can write");
    check_refused(zorb(dir.path(), &["--listen", "127.0.0.1:0", "--data-dir", "data"]), &["database"]);
}

#[test]
fn unknown_variables_of_the_environment_are_refused_by_name() {
    let directory = directory();
    let with = |name: &str, value: &str| {
        let mut command = zorb(directory.path(), &["--listen", "127.0.0.1:0"]);
        command.env(name, value);
        command
    };
    check_refused(with("ZORB_MAX_UPLAODS", "64"), &["ZORB_MAX_UPLAODS", "did you mean ZORB_MAX_UPLOADS?"]);
    check_refused(with("ZORB_ALLOW_EVERYBODY", "true"), &["ZORB_ALLOW_EVERYBODY"]);
    assert!(!directory.path().join("zorb-data").exists(), "a refused start leaves nothing behind");
    // What Kubernetes sets for a service of this name, and what the commands of a client read.
    for (name, value) in [("ZORB_PORT", "tcp://10.0.0.1:8080"), ("ZORB_SERVICE_HOST", "10.0.0.1"), ("ZORB_TOKEN", "x")]
    {
        let (line, _running) = started(with(name, value));
        assert!(line.starts_with("zorb listening on "), "{name}: {line}");
    }
    let client = Command::new(env!("CARGO_BIN_EXE_zorb"))
        .args(["ls", "--server", "http://127.0.0.1:1"])
        .env("ZORB_SEVER", "http://127.0.0.1:1")
        .output();
    let stderr = String::from_utf8(client.expect("the binary was built for this test").stderr).expect("text");
    assert!(stderr.contains("ZORB_SEVER (did you mean ZORB_SERVER?)"), "{stderr}");
}

#[cfg(not(feature = "postgres"))]
#[test]
fn database_url_is_refused_by_a_build_without_postgresql() {
    let directory = directory();
    let url = "postgres://zorb:hunter2@db.example/zorb";
    let mut command = zorb(directory.path(), &[]);
    command.env("ZORB_DATABASE_URL", url);
    check_refused(command, &["built without PostgreSQL", "--features postgres"]);
    assert!(!directory.path().join("zorb-data").exists(), "a refused start leaves nothing behind");
}
