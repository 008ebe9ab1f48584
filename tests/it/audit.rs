//! The audit log: who did what, and how it ended; whole lines, and no secrets.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{
    Client, Grant, Metrics, Raw, Response, Start, Xorb, eventually, issue, rng, routes, send, upload_shard,
};

/// A file for an audit log in a directory of its own.
struct Log {
    directory: tempfile::TempDir,
}

impl Log {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("the test can make a temporary directory") }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("audit.log")
    }

    /// A server that asks for tokens and notes into this.
    fn start(&self, scope: &str) -> Start {
        let path = self.path().to_str().expect("temporary directories have names").to_owned();
        Start::default().with("auth", "token").with("audit_log", path).with("audit", scope)
    }

    /// Its lines, when there are so many.
    async fn lines(&self, count: usize) -> Vec<Value> {
        let mut found = Vec::new();
        eventually("the lines are written", async || {
            found = lines_of(&self.path());
            found.len() >= count
        })
        .await;
        assert_eq!(found.len(), count, "{found:#?}");
        found
    }
}

/// Every line of a file must be a JSON object, and the last one must have its end.
fn lines_of(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("the log is text");
    let Some((whole, "")) = text.rsplit_once('\n').or(text.is_empty().then_some(("", ""))) else { return Vec::new() };
    whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}"))).collect()
}

/// Of a line, what is the same every time.
fn gist(line: &Value) -> String {
    let field = |name: &str| line[name].as_str().unwrap_or("-").to_owned();
    let status = line["status"].as_u64().unwrap_or_default();
    format!("{} {status} {} {} {} {}", field("action"), field("code"), field("repo"), field("subject"), field("scope"))
}

/// It says who did what.
#[tokio::test]
async fn writes_and_refusals_have_a_line_and_reads_have_none() {
    let log = Log::new();
    let server = log.start("writes").start();
    let (client, mut rng) = (server.client(), rng());
    let writer = issue(&server, "write", "models/a/one", &["--subject", "ci\"x\"é"]);
    let reader = issue(&server, "read", "models/a/one", &[]);
    let xorb = Xorb::mixed(&mut rng, 3);
    let upload = format!("/v1/xorbs/default/{}", xorb.hash());
    let shard = upload_shard(&xorb, 0, 3);
    let plan = format!("/v1/reconstructions/{}", shard.file_hash());
    assert_eq!(send(&client, "POST", &upload, Some(&writer), xorb.bytes.to_vec()).await.status, 200);
    assert_eq!(send(&client, "POST", "/v1/shards", Some(&writer), shard.clone().bytes()).await.status, 200);
    assert_eq!(send(&client, "GET", &plan, Some(&reader), Vec::new()).await.status, 200);
    assert_eq!(send(&client, "GET", &plan, None, Vec::new()).await.status, 401);
    let expired = issue(&server, "write", "*", &["--ttl", "1s"]);
    assert_eq!(send(&client, "POST", "/shards", Some(&reader), Vec::new()).await.status, 403);
    let other = if &expired[20..21] == "A" { 'B' } else { 'A' };
    let altered = format!("{}{other}{}", &expired[..20], &expired[21..]);
    assert_eq!(send(&client, "POST", "/shards", Some(&altered), Vec::new()).await.status, 401);
    let data = format!("/v1/data/{}?s=forged-secret", xorb.hash());
    assert_eq!(client.get_with(&data, &[("range", "bytes=0-1")]).await.status, 403);
    assert_eq!(send(&client, "POST", &upload, Some(&writer), b"no xorb".to_vec()).await.status, 400);
    assert_eq!(client.get("/unknown?secret").await.status, 404);
    assert_eq!(client.post("/v1/telemetry", "").await.status, 401);
    let lines = log.lines(8).await;
    let gists: Vec<_> = lines.iter().map(gist).collect();
    let (one, who) = ("models/a/one", "ci\"x\"é");
    assert_eq!(
        gists,
        [
            format!("POST /v1/xorbs/{{prefix}}/{{hash}} 200 - {one} {who} write"),
            format!("POST /v1/shards 200 - {one} {who} write"),
            "GET /v1/reconstructions/{file} 401 unauthorized - - -".to_owned(),
            format!("POST /v1/shards 403 forbidden {one} - read"),
            "POST /v1/shards 401 unauthorized - - -".to_owned(),
            "GET /v1/data/{xorb} 403 forbidden - - -".to_owned(),
            format!("POST /v1/xorbs/{{prefix}}/{{hash}} 400 incomplete_body {one} {who} write"),
            "POST /v1/telemetry 401 unauthorized - - -".to_owned(),
        ]
    );
    let resources: Vec<_> = lines.iter().map(|line| line["resource"].as_str().map(str::to_owned)).collect();
    let hash = Some(xorb.hash());
    assert_eq!(resources, [hash.clone(), None, Some(shard.file_hash()), None, None, hash.clone(), hash, None]);
    assert_eq!(lines[0]["received"], xorb.bytes.len());
    assert_eq!(lines[0]["sent"], r#"{"was_inserted":true}"#.len());
    let reasons: Vec<_> = lines.iter().filter_map(|line| line["reason"].as_str()).collect();
    assert_eq!(reasons, ["missing", "scope", "signature", "malformed", "missing"]);
    for line in &lines {
        let time = line["time"].as_str().expect("a time");
        assert!(time.len() == 24 && time.ends_with('Z') && time.starts_with("20"), "{time}");
        assert!(line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{line}");
        assert!(line["elapsed_ms"].is_u64() && line.get("is_cut").is_none(), "{line}");
    }
    let text = fs::read_to_string(log.path()).expect("the log is text");
    for secret in ["secret", &writer[10..30], &reader[10..30], &expired[10..30], "?"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    let mode = fs::metadata(log.path()).expect("stored").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// What the route table says of a request is what the line says: nobody has to think of the audit log who adds a route.
#[tokio::test]
async fn every_route_and_alias_but_health_probes_has_its_line() {
    for scope in ["all", "writes"] {
        let log = Log::new();
        let server = log.start(scope).with("grants", true).start();
        let admin = issue(&server, "admin", "*", &[]);
        let client = server.client();
        let cases = routes(&client.bearing(&admin)).await;
        let mut expected = BTreeMap::new();
        if scope == "all" {
            expected.insert("GET /openapi.json 200".to_owned(), 1);
        }
        let mut count = expected.len();
        for case in &cases {
            let path = case.path(&"0".repeat(64));
            let status = send(&client, &case.method, &path, Some(&admin), Vec::new()).await.status;
            // These issue tokens.
            let issues = case.template.contains("/xet-");
            let reads = ["GET", "HEAD"].contains(&case.method.as_str()) || case.scope.as_deref() == Some("read");
            let is_read = reads && !issues;
            let is_sign = ["/healthz", "/readyz"].contains(&case.template.as_str());
            if !is_sign && (scope == "all" || !is_read || [401, 403].contains(&status)) {
                *expected.entry(format!("{} {} {status}", case.method, case.canonical)).or_insert(0) += 1;
                count += 1;
            }
        }
        assert!(count >= if scope == "all" { 35 } else { 12 }, "{expected:?}");
        let mut found = BTreeMap::new();
        for line in log.lines(count).await {
            *found.entry(format!("{} {}", line["action"].as_str().unwrap(), line["status"])).or_insert(0) += 1;
        }
        assert_eq!(found, expected, "with audit = {scope}");
    }
}

#[tokio::test]
async fn reads_are_recorded_with_bytes_sent_and_completeness() {
    let log = Log::new();
    let server = log.start("all").with("send_timeout", "600s").start();
    let admin = issue(&server, "admin", "*", &[]);
    let client = server.client().bearing(&admin);
    let xorb = Xorb::incompressible(&mut rng(), 60 << 20);
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    assert_eq!(client.get(&xorb.path()).await.body.len(), xorb.bytes.len());
    assert_eq!(client.get(&format!("{}?format=raw&range=0-2", xorb.path())).await.status, 200);
    assert_eq!(client.head(&xorb.path()).await.status, 200);
    assert_eq!(client.get_with(&xorb.path(), &[("if-none-match", "*")]).await.status, 304);
    assert_eq!(client.get("/nothing").await.status, 404);
    // A client that leaves in the middle of a response, and one that leaves in the middle of its upload.
    let mut reader = Raw::connect(&server).await;
    reader.send(format!("GET {} HTTP/1.1\r\nhost: zorb\r\nauthorization: Bearer {admin}\r\n\r\n", xorb.path())).await;
    assert_eq!(reader.head().await.status, 200);
    drop(reader);
    log.lines(7).await;
    let mut writer = Raw::connect(&server).await;
    let head = format!("POST {} HTTP/1.1\r\nhost: zorb\r\nauthorization: Bearer {admin}\r\n", xorb.path());
    writer.send(format!("{head}content-length: 100000\r\n\r\n")).await;
    writer.send([0; 1000]).await;
    eventually("it is under way", async || Metrics::of(&client).await.get("zorb_uploads_in_flight") == 1.0).await;
    writer.reset();
    let mut lines = Vec::new();
    eventually("both are noted", async || {
        lines = lines_of(&log.path());
        lines.retain(|line| line["action"] != "GET /metrics");
        lines.len() == 8
    })
    .await;
    let len = xorb.bytes.len() as u64;
    assert_eq!((lines[1]["sent"].as_u64(), &lines[1]["action"]), (Some(len), &"GET /xorbs/{hash}".into()));
    assert!(lines[..6].iter().all(|line| line.get("is_cut").is_none()), "{lines:#?}");
    let of = |index: usize| (lines[index]["action"].as_str().unwrap(), lines[index]["status"].as_u64().unwrap());
    assert_eq!((of(3), of(4), of(5)), (("HEAD /xorbs/{hash}", 200), ("GET /xorbs/{hash}", 304), ("(none)", 404)));
    assert_eq!(lines[3]["sent"], 0);
    assert_eq!((of(6), &lines[6]["is_cut"]), (("GET /xorbs/{hash}", 200), &true.into()));
    assert!(lines[6]["sent"].as_u64().is_some_and(|sent| sent < len));
    assert_eq!(of(7).0, "POST /xorbs/{hash}");
    assert!([400, 499].contains(&of(7).1), "{}", lines[7]);
    assert_eq!(
        (&lines[7]["scope"], &lines[7]["repo"]),
        (&"admin".into(), &"*".into()),
        "who it was is known all the same"
    );
}

#[tokio::test]
async fn sighup_reopens_the_log_after_it_was_moved_away() {
    let log = Log::new();
    let server = log.start("writes").start();
    let client = server.client();
    let moved = log.directory.path().join("audit.log.1");
    client.post("/v1/shards", "").await;
    log.lines(1).await;
    fs::rename(log.path(), &moved).expect("the test can rename");
    client.post("/v2/shards", "").await;
    eventually("it goes where the file went", async || lines_of(&moved).len() == 2).await;
    server.hang_up();
    eventually("there is a new file", async || log.path().exists()).await;
    client.post("/v1/shards", "").await;
    let lines = log.lines(1).await;
    assert_eq!((lines_of(&moved).len(), gist(&lines[0]).as_str()), (2, "POST /v1/shards 401 unauthorized - - -"));
    assert_eq!(fs::metadata(log.path()).expect("stored").permissions().mode() & 0o777, 0o600);
}

/// It is reported once.
#[tokio::test]
async fn unwritable_log_counts_lost_lines_and_stops_no_requests() {
    let (server, mut rng) = (Start::default().with("audit_log", "/dev/full").start(), rng());
    let client = server.client();
    for _ in 0..20 {
        let xorb = Xorb::mixed(&mut rng, 1);
        assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    }
    eventually("they are counted", async || Metrics::of(&client).await.get("zorb_audit_lines_lost_total") == 20.0)
        .await;
    assert_eq!(Metrics::of(&client).await.get("zorb_audit_lines_total"), 0.0);
    assert_eq!(server.log().lines().filter(|line| line.contains("cannot write the audit log")).count(), 1);
}

#[test]
fn a_log_that_cannot_be_opened_ends_the_start() {
    let directory = tempfile::tempdir().expect("the test can make a temporary directory");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_zorb"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(directory.path().join("data"));
    let output =
        command.env("ZORB_AUDIT_LOG", directory.path().join("no/such/directory")).output().expect("it was built");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("cannot append to the audit log"), "{text}");
}

/// Those that were cut off too.
#[tokio::test]
async fn after_sigterm_every_request_has_a_whole_line() {
    let log = Log::new();
    let server = log.start("writes").with("drain_timeout", "1s").start();
    let writer = issue(&server, "write", "*", &[]);
    let client = server.client().bearing(&writer);
    let mut rng = rng();
    let stuck = Xorb::incompressible(&mut rng, 1 << 20);
    let mut upload = Raw::connect(&server).await;
    let head = format!("POST {} HTTP/1.1\r\nhost: zorb\r\nauthorization: Bearer {writer}\r\n", stuck.path());
    upload.send(format!("{head}content-length: {}\r\n\r\n", stuck.bytes.len())).await;
    upload.send(&stuck.bytes[..1000]).await;
    let admin = server.client().bearing(&issue(&server, "admin", "*", &[]));
    eventually("it is under way", async || Metrics::of(&admin).await.get("zorb_uploads_in_flight") == 1.0).await;
    let xorbs: Vec<_> = (0..50).map(|_| Xorb::mixed(&mut rng, 1)).collect();
    let uploads = xorbs.iter().map(|xorb| async {
        Response::try_of(client.request(reqwest::Method::POST, &xorb.path()).body(xorb.bytes.clone())).await
    });
    let uploads = futures_util::future::join_all(uploads);
    let (responses, ()) = tokio::join!(uploads, async { server.terminate() });
    let (status, text) = server.exit().await;
    assert_eq!(status.code(), Some(0), "{text}");
    let lines = lines_of(&log.path());
    for (xorb, response) in xorbs.iter().zip(responses) {
        if response.is_ok_and(|response| response.status == 201) {
            let found = lines.iter().any(|line| line["resource"] == xorb.hash() && line["status"] == 201);
            assert!(found, "no line for {}", xorb.hash());
        }
    }
    let cut = lines.iter().filter(|line| line["resource"] == stuck.hash()).collect::<Vec<_>>();
    assert!(matches!(cut[..], [line] if line["status"] == 499 && line["scope"] == "write"), "{cut:#?}");
}

/// Who asks through a proxy that is trusted is known by the address that the proxy gives; nobody else's word counts.
#[tokio::test]
async fn client_behind_a_trusted_proxy_is_recorded() {
    for (trusted, expected) in [("127.0.0.1", Some("203.0.113.9")), ("10.0.0.0/8", None)] {
        let log = Log::new();
        let server = log.start("writes").with("trusted_proxies", trusted).start();
        let request = server.client().request(reqwest::Method::POST, "/v1/shards");
        Response::of(request.header("x-forwarded-for", "192.0.2.1, 203.0.113.9")).await.problem(401, "unauthorized");
        assert_eq!(log.lines(1).await[0]["client"].as_str(), expected);
    }
}

/// A token of a user or a namespace does not say which repository it was used for.
#[tokio::test]
async fn line_names_the_hub_repository_of_the_path_or_body() {
    let log = Log::new();
    let server = log.start("writes").start();
    let client = server.client().bearing(&issue(&server, "write", "*/me/*", &[]));
    let body = r#"{"name":"model","organization":"me"}"#;
    assert_eq!(client.post("/api/repos/create", body).await.status, 200);
    assert_eq!(client.post("/api/datasets/me/absent/branch/x", "{}").await.status, 404);
    let body = body.replace("model", "MODEL");
    let delete = client.request(reqwest::Method::DELETE, "/api/repos/delete").body(body);
    assert_eq!(Response::of(delete).await.status, 200);
    let lines = log.lines(3).await;
    let named: Vec<_> = lines.iter().map(|line| line["hub_repo"].as_str().unwrap()).collect();
    assert_eq!(named, ["models/me/model", "datasets/me/absent", "models/me/model"]);
}

#[tokio::test]
async fn grants_are_noted_without_what_they_are_made_of() {
    let log = Log::new();
    let server = log.start("writes").with("grants", true).start();
    let client = server.client().bearing(&issue(&server, "write", "models/a/one", &[]));
    let xorb = Xorb::mixed(&mut rng(), 3);
    let grant = Grant::of(&client, &xorb).await;
    assert_eq!(grant.send(&Client::new(server.url()), xorb.bytes.clone()).await.status, 200);
    assert_eq!(grant.commit(&client).await.status, 200);
    let lines = log.lines(3).await;
    assert!(lines.iter().all(|line| line["resource"] == xorb.hash()), "{lines:#?}");
    let text = fs::read_to_string(log.path()).expect("the log is text");
    assert!(!text.contains(&grant.path[grant.path.len() - 40..]), "{text}");
}

/// A server whose stdout is this; killed when dropped.
struct Child(std::process::Child);

impl Child {
    fn start(directory: &Path, stdout: impl Into<std::process::Stdio>) -> Self {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_zorb"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(directory.join("data"));
        let command = command.env("ZORB_AUDIT_LOG", "stdout").stdout(stdout).stderr(std::process::Stdio::null());
        Self(command.spawn().expect("the binary was built for this test"))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn on_stdout_the_lines_come_after_the_one_that_scripts_wait_for() {
    let directory = tempfile::tempdir().expect("the test can make a temporary directory");
    let path = directory.path().join("stdout");
    let child = Child::start(directory.path(), fs::File::create(&path).expect("the test can write"));
    let text = || fs::read_to_string(&path).expect("stdout is text");
    eventually("it listens", async || text().ends_with('\n')).await;
    let first = text();
    let url = first.trim_end().strip_prefix("zorb listening on ").expect("the line that scripts wait for").to_owned();
    Client::new(&url).post("/v1/shards", "").await.problem(400, "malformed_shard");
    eventually("it is written", async || text().lines().count() == 2 && text().ends_with('\n')).await;
    let line: Value = serde_json::from_str(text().lines().nth(1).expect("a second line")).expect("it is JSON");
    assert_eq!(gist(&line), "POST /v1/shards 400 malformed_shard - - -");
    drop(child);
}

#[tokio::test]
async fn closed_stdout_does_not_delay_shutdown() {
    use std::io::BufRead;
    let directory = tempfile::tempdir().expect("the test can make a temporary directory");
    let mut child = Child::start(directory.path(), std::process::Stdio::piped());
    // Held, and not read: what the server writes fills the pipe, and then it waits.
    let mut stdout = std::io::BufReader::with_capacity(1, child.0.stdout.take().expect("stdout is piped"));
    let mut first = String::new();
    stdout.read_line(&mut first).expect("the server writes text");
    let client =
        Client::new(first.trim_end().strip_prefix("zorb listening on ").expect("the line that scripts wait for"));
    for _ in 0..400 {
        assert_eq!(client.post("/v1/shards", "").await.status, 400, "requests do not wait for the log");
    }
    let pid = i32::try_from(child.0.id()).ok().and_then(rustix::process::Pid::from_raw).expect("a process id");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("the child is there");
    eventually("it ends", async || child.0.try_wait().expect("it is a child").is_some()).await;
    assert_eq!(child.0.wait().expect("it is a child").code(), Some(0));
    drop(stdout);
}

#[tokio::test]
async fn issued_tokens_and_rotated_keys_are_recorded_by_the_command() {
    let log = Log::new();
    let server = log.start("writes").start();
    let path = log.path();
    let path = path.to_str().expect("temporary directories have names");
    let token = issue(&server, "write", "models/a/one", &["--subject", "ci", "--audit-log", path]);
    let rotated = crate::support::token_command(&server, &["rotate-key", "--audit-log", path]);
    assert!(rotated.status.success(), "{rotated:?}");
    let lines = log.lines(2).await;
    assert_eq!(gist(&lines[0]), "zorb token issue 0 - models/a/one ci write");
    assert_eq!(gist(&lines[1]), "zorb token rotate-key 0 - - - -");
    assert!(!fs::read_to_string(path).expect("the log is text").contains(&token[10..30]));
}

#[tokio::test]
async fn refusals_beyond_sixty_in_a_minute_are_summed_by_address() {
    let log = Log::new();
    let server = log.start("writes").start();
    let client = server.client();
    for _ in 0..200 {
        client.post("/v1/shards", "").await.problem(401, "unauthorized");
    }
    server.terminate();
    let (status, text) = server.exit().await;
    assert_eq!(status.code(), Some(0), "{text}");
    let lines = lines_of(&log.path());
    let (sums, refused): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line["action"] == "(refused)");
    assert!(refused.iter().all(|line| line["status"] == 401), "{refused:#?}");
    let summed: u64 = sums.iter().filter_map(|line| line["count"].as_u64()).sum();
    assert_eq!(refused.len() as u64 + summed, 200, "none is forgotten: {sums:#?}");
    // More than one where this took more than a minute.
    assert_eq!(refused.len(), 60 * sums.len());
    assert!(sums.iter().all(|line| line["peer"] == "127.0.0.1"), "{sums:#?}");
}

#[tokio::test]
async fn a_file_at_its_maximum_loses_lines_and_counts_them() {
    let log = Log::new();
    let server = log.start("writes").with("audit_max_size", 1000).start();
    let admin = server.client().bearing(&issue(&server, "admin", "*", &[]));
    for _ in 0..20 {
        server.client().post("/v1/shards", "").await.problem(401, "unauthorized");
    }
    let counts = async |name: &str| Metrics::of(&admin).await.get(name);
    let all = async || counts("zorb_audit_lines_total").await + counts("zorb_audit_lines_lost_total").await;
    eventually("each is written or lost", async || all().await == 20.0).await;
    let lines = lines_of(&log.path());
    assert!((1..20).contains(&lines.len()), "{lines:#?}");
    assert!(fs::metadata(log.path()).expect("stored").len() <= 1000);
    assert_eq!(server.log().lines().filter(|line| line.contains("cannot write the audit log")).count(), 1);
}
