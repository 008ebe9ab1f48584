//! What whoever runs the server sees of it: health, metrics, request ids, logs.

use std::fs;

use serde_json::Value;

use crate::support::{
    Client, Metrics, Raw, Response, Start, TestServer, Xorb, eventually, guarded, issue, rng, upload_shard,
};

#[tokio::test]
async fn health_is_of_the_process_and_readiness_of_the_store() {
    let server = TestServer::start();
    let (client, tmp) = (server.client(), server.data_dir().join("tmp"));
    let check = async |ready: u16| {
        assert_eq!(client.get("/healthz").await.status, 200);
        assert_eq!(client.head("/healthz").await.status, 200);
        let response = client.get("/readyz").await;
        assert_eq!(client.head("/readyz").await.status, ready);
        if ready == 503 {
            response.problem(503, "not_ready");
        } else {
            assert_eq!((response.status, response.header("content-type")), (200, "application/json"));
        }
    };
    check(200).await;
    fs::remove_dir_all(&tmp).expect("the directory is there");
    check(503).await;
    fs::write(&tmp, "in the way").expect("the test can write");
    check(503).await;
    fs::remove_file(&tmp).and_then(|()| fs::create_dir(&tmp)).expect("the test can put it back");
    check(200).await;
    assert_eq!(server.drafts(), 0, "asking leaves nothing behind");
}

/// How much each metric has grown.
async fn grown(client: &Client, before: &Metrics, names: &[(&str, f64)]) {
    let after = Metrics::of(client).await;
    for (name, expected) in names {
        let grown = after.get(name) - before.get(name);
        assert!((grown - expected).abs() < 0.5, "{name} has grown by {grown}, not {expected}");
    }
}

#[tokio::test]
#[expect(clippy::cast_precision_loss, reason = "some KiB")]
async fn metrics_move_by_exactly_what_was_done() {
    let (server, mut rng) = (TestServer::start(), rng());
    let (client, xorb, other) = (server.client(), Xorb::mixed(&mut rng, 4), Xorb::mixed(&mut rng, 4));
    let before = Metrics::of(&client).await;
    let len = xorb.bytes.len() as f64;

    client.post(&xorb.path(), xorb.bytes.clone()).await;
    client.post(&xorb.path(), xorb.bytes.clone()).await;
    client.post(&xorb.xet_path(), xorb.bytes.clone()).await;
    client.post(&xorb.path(), other.bytes.clone()).await.problem(400, "hash_mismatch");
    let received = 3.0 * len + other.bytes.len() as f64;
    let request = |route: &str, method: &str, status: u16| {
        format!("zorb_http_requests_total{{route=\"{route}\",method=\"{method}\",status=\"{status}\"}}")
    };
    let (plain, xet) = ("/xorbs/{hash}", "/v1/xorbs/{prefix}/{hash}");
    grown(
        &client,
        &before,
        &[
            (&request(plain, "POST", 201), 1.0),
            (&request(plain, "POST", 200), 1.0),
            (&request(plain, "POST", 400), 1.0),
            (&request(xet, "POST", 200), 1.0),
            ("zorb_received_bytes_total", received),
            ("zorb_sent_bytes_total", 0.0),
            ("zorb_verify_seconds_count", 4.0),
            ("zorb_store_xorbs", 1.0),
            ("zorb_store_bytes", len),
            ("zorb_uploads_in_flight", 0.0),
        ],
    )
    .await;

    let before = Metrics::of(&client).await;
    let part = client.get(&format!("{}?range=1-3", xorb.path())).await.body.len();
    let raw = client.get(&format!("{}?format=raw", xorb.xet_path())).await.body.len();
    client.head(&xorb.path()).await;
    let byte = client.get_with(&xorb.path(), &[("range", "bytes=0-9")]).await.body.len();
    client.get_with(&xorb.path(), &[("if-none-match", "*")]).await;
    client.get("/v1/unknown?x=y").await;
    grown(
        &client,
        &before,
        &[
            (&request(plain, "GET", 200), 1.0),
            (&request(xet, "GET", 200), 1.0),
            (&request(plain, "HEAD", 200), 1.0),
            (&request(plain, "GET", 206), 1.0),
            (&request(plain, "GET", 304), 1.0),
            (&request("(none)", "GET", 404), 1.0),
            ("zorb_sent_bytes_total", (part + raw + byte) as f64),
            ("zorb_received_bytes_total", 0.0),
            ("zorb_verify_seconds_count", 0.0),
            ("zorb_store_xorbs", 0.0),
        ],
    )
    .await;
    let histogram = |route: &str| format!("zorb_http_request_seconds_count{{route=\"{route}\"}}");
    grown(&client, &before, &[(&histogram(plain), 4.0), (&histogram(xet), 1.0), (&histogram("/metrics"), 2.0)]).await;
}

#[tokio::test]
async fn what_is_in_flight_is_counted_and_ends_at_zero() {
    let (server, mut rng) = (TestServer::start(), rng());
    let (client, xorb) = (server.client(), Xorb::incompressible(&mut rng, 300_000));
    let mut uploads = Vec::new();
    for _ in 0..3 {
        let mut upload = Raw::begin_upload(&server, &xorb.path(), xorb.bytes.len()).await;
        upload.send(&xorb.bytes[..10]).await;
        uploads.push(upload);
    }
    let uploads_in_flight = async |count: f64| {
        eventually("the uploads are counted", async || {
            let metrics = Metrics::of(&client).await;
            // The scrape itself is a request.
            (metrics.get("zorb_uploads_in_flight"), metrics.get("zorb_http_requests_in_flight")) == (count, count + 1.0)
        })
        .await;
    };
    uploads_in_flight(3.0).await;
    assert!(Metrics::of(&client).await.get("zorb_http_connections") >= 4.0);
    uploads.pop().expect("there are three").reset();
    uploads_in_flight(2.0).await;
    let mut upload = uploads.pop().expect("there were three");
    upload.send(&xorb.bytes[10..]).await;
    assert_eq!(upload.response().await.status, 201);
    uploads_in_flight(1.0).await;
    drop(uploads);
    uploads_in_flight(0.0).await;
}

#[tokio::test]
async fn metrics_are_openmetrics_with_help_and_type_each() {
    let server = TestServer::start();
    server.client().get("/healthz").await;
    let response = server.client().get("/metrics").await;
    assert!(response.header("content-type").starts_with("application/openmetrics-text; version=1.0.0"));
    let text = std::str::from_utf8(&response.body).expect("metrics are text");
    assert!(text.ends_with("# EOF\n"));
    let families = |mark: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(mark));
        lines.map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
    };
    let (helps, types) = (families("# HELP "), families("# TYPE "));
    assert_eq!(helps, types);
    for sample in text.lines().filter(|line| !line.starts_with('#')) {
        assert!(types.iter().any(|family| sample.starts_with(family.as_str())), "{sample}");
    }
    // Clients must not be able to make up labels.
    for method in ["ZORB", "PROPFIND"] {
        let request = server.client().request(method.parse().expect("a method"), "/conjured/up");
        Response::of(request).await.problem(404, "not_found");
    }
    let text = server.client().get("/metrics").await.body;
    let text = std::str::from_utf8(&text).expect("metrics are text");
    assert!(!text.contains("conjured") && !text.contains("ZORB") && text.contains("method=\"OTHER\""));
}

#[tokio::test]
async fn a_request_id_is_taken_over_or_made_and_is_in_the_log() {
    let server = TestServer::start();
    let client = server.client();
    for path in ["/healthz", "/unknown", "/xorbs/123"] {
        let response = client.get_with(path, &[("x-request-id", "my-id/0.1")]).await;
        assert_eq!(response.header("x-request-id"), "my-id/0.1");
        let (made, again) = (client.get(path).await, client.get(path).await);
        assert_ne!(made.header("x-request-id"), again.header("x-request-id"));
        for response in [made, again] {
            assert!(server.log().contains(response.header("x-request-id")));
        }
    }
    assert_eq!(server.log().lines().filter(|line| line.contains("my-id/0.1") && line.contains("responded")).count(), 3);
    // One that could forge a log line, or fill the log, is not taken over.
    for id in ["two words", &"x".repeat(5000), ""] {
        let response = client.get_with("/healthz", &[("x-request-id", id)]).await;
        assert_ne!(response.header("x-request-id"), id);
        assert!(!response.header("x-request-id").is_empty());
    }
}

/// Requests of every kind, with secrets in all the places where clients have them.
async fn tell_secrets(server: &TestServer) {
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng(), 2));
    let paths = [xorb.path(), xorb.xet_path(), "/unknown".to_owned(), "/healthz".to_owned(), "/xorbs/123".to_owned()];
    for path in paths {
        for method in [reqwest::Method::GET, reqwest::Method::POST, reqwest::Method::HEAD] {
            let request = client
                .request(method, &format!("{path}?range=0-1&X-Signature=SECRET-query"))
                .header("authorization", "Bearer SECRET-token")
                .header("cookie", "session=SECRET-cookie")
                .body(xorb.bytes.clone());
            Response::of(request).await;
        }
    }
    client.post(&xorb.path(), "SECRET-body, which is no xorb").await.problem(400, "unsupported_version");
}

#[tokio::test]
async fn logs_have_no_query_strings_and_no_secrets_even_at_debug() {
    let server = TestServer::start();
    tell_secrets(&server).await;
    let log = server.log();
    assert!(log.contains("responded") && log.contains("/unknown"), "{log}");
    for secret in ["SECRET", "range=0-1", "X-Signature"] {
        assert!(!log.contains(secret), "{secret} in {log}");
    }
    assert!(!log.contains('\u{1b}'), "no colours where nobody sees them");
}

/// Takes a pseudoterminal.
#[cfg(feature = "full-tests")]
#[test]
fn a_log_on_a_terminal_has_colours_unless_no_color_is_set() {
    use std::io::Read;
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Command, Stdio};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let listen = taken.local_addr().expect("it has an address").to_string();
    for (no_color, is_colored) in [("", true), ("1", false)] {
        let directory = tempfile::tempdir().expect("the test can make a temporary directory");
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("there are terminals");
        grantpt(&terminal).and_then(|()| unlockpt(&terminal)).expect("it is this process's own");
        let name = ptsname(&terminal, Vec::new()).expect("it has a name");
        let screen = fs::File::options().read(true).write(true).open(std::ffi::OsStr::from_bytes(name.as_bytes()));
        // It logs that it makes a store, and ends because the port is taken.
        let mut command = Command::new(env!("CARGO_BIN_EXE_zorb"));
        command.args(["serve", "--listen", &listen, "--data-dir"]).arg(directory.path()).env("NO_COLOR", no_color);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(screen.expect("it can be opened"));
        assert_eq!(command.status().expect("the binary was built for this test").code(), Some(1));
        drop(command);
        // The read ends with an error, because no process has the other side open any more.
        let mut log = Vec::new();
        let _ = fs::File::from(terminal).read_to_end(&mut log);
        let log = String::from_utf8(log).expect("the log is text");
        assert!(log.contains("created a new store"), "{log}");
        assert_eq!(log.contains('\u{1b}'), is_colored, "NO_COLOR={no_color:?}: {log:?}");
    }
}

#[tokio::test]
async fn json_logs_are_one_object_per_line_with_the_request_in_it() {
    let server = Start::default().with("log_format", "json").start();
    tell_secrets(&server).await;
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng(), 2));
    let request = client.request(reqwest::Method::POST, &xorb.path()).header("x-request-id", "json-1");
    assert_eq!(Response::of(request.body(xorb.bytes.clone())).await.status, 201);
    let refused = client.request(reqwest::Method::POST, &xorb.path()).header("x-request-id", "json-2");
    let problem = Response::of(refused.body("no xorb")).await.json();
    let log = server.log();
    assert!(!log.contains("SECRET"));
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    let responded: Vec<_> = lines
        .iter()
        .filter(|line| line["message"] == "responded" && line["span"]["id"] == "json-1" && line["status"] == 201)
        .collect();
    assert!(matches!(responded[..], [line] if line["level"] == "INFO" && line["span"]["path"] == xorb.path()), "{log}");
    assert!(responded[0]["elapsed_ms"].is_u64() && responded[0]["status"].is_u64(), "{}", responded[0]);
    let refused = lines.iter().find(|line| line["message"] == "responded" && line["span"]["id"] == "json-2");
    let refused = refused.expect("a refused upload has a line");
    assert_eq!((refused["status"].as_u64(), &refused["code"]), (Some(400), &problem["code"]), "{refused}");
    // The operator reads what the client has got.
    assert_eq!(refused["detail"], problem["detail"]);
    assert!(problem["code"].is_string() && problem["detail"].is_string(), "{problem}");
    assert!(responded[0].get("code").is_none() && responded[0].get("detail").is_none(), "{}", responded[0]);
    assert!(lines.iter().all(|line| line.get("spans").is_none()), "the request is there once");
}

#[tokio::test]
async fn the_start_line_says_version_data_dir_mode_and_counts() {
    let server = Start::default().with("log_format", "json").with("auth", "token").start();
    let mut found = None;
    eventually("the line is written", async || {
        let log = server.log();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        found = lines.find(|line| line["message"] == "ready");
        found.is_some()
    })
    .await;
    let line = found.expect("stored");
    assert_eq!(line["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(line["data_dir"].as_str(), server.data_dir().to_str());
    assert_eq!((&line["auth"], &line["tls"]), (&"token".into(), &false.into()));
    for count in ["xorbs", "stored_bytes", "drafts_removed", "rows_removed", "files_recorded", "elapsed_ms"] {
        assert!(line[count].is_u64(), "{count} in {line}");
    }
}

#[tokio::test]
async fn debug_has_sql_only_where_its_target_is_named() {
    for (log, has_sql) in [("debug", false), ("debug,sqlx=debug", true)] {
        let server = Start::default().with("log", log).start();
        assert_eq!(server.client().get("/readyz").await.status, 200);
        assert!(server.log().contains("responded"), "{log}");
        assert_eq!(server.log().contains("SELECT"), has_sql, "{log}: {}", server.log());
    }
}

#[tokio::test]
async fn metrics_tell_of_the_process_and_of_the_build() {
    let server = TestServer::start();
    let client = server.client();
    let metrics = Metrics::of(&client).await;
    let build = format!("zorb_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    assert!((metrics.get(&build) - 1.0).abs() < f64::EPSILON);
    assert!(metrics.get("process_cpu_seconds_total") > 0.0);
    assert!(metrics.get("process_resident_memory_bytes") > 1e6);
    let (open, max) = (metrics.get("process_open_fds"), metrics.get("process_max_fds"));
    assert!(open > 5.0 && open < max, "{open} of {max}");
    let start = metrics.get("process_start_time_seconds");
    assert!(start > 1.7e9, "{start}");
    let again = Metrics::of(&client).await;
    assert!(again.get("process_cpu_seconds_total") >= metrics.get("process_cpu_seconds_total"));
    assert!((again.get("process_start_time_seconds") - start).abs() < f64::EPSILON);
}

#[tokio::test]
async fn metrics_tell_what_repositories_have() {
    let server = guarded();
    let client = server.client();
    let admin = client.bearing(&issue(&server, "admin", "*", &[]));
    let xorb = Xorb::mixed(&mut rng(), 6);
    for (repo, end) in [("models/a/one", 3), ("models/b/\"two\"", 6)] {
        let writer = client.bearing(&issue(&server, "write", repo, &[]));
        assert_eq!(writer.post(&xorb.xet_path(), xorb.bytes.clone()).await.status, 200);
        assert_eq!(writer.post("/v1/shards", upload_shard(&xorb, 0, end).bytes()).await.status, 200);
    }
    let metrics = Metrics::of(&admin).await;
    let usage = admin.get("/v1/usage").await.json();
    let repos = usage["repos"].as_array().expect("a list");
    assert_eq!(repos.len(), 2);
    for repo in repos {
        let name = repo["repo"].as_str().expect("a name").replace('"', "\\\"");
        for field in ["files", "logical_bytes", "physical_bytes"] {
            let sample = metrics.get(&format!("zorb_repo_{field}{{repo=\"{name}\"}}"));
            assert_eq!(Some(sample), repo[field].as_f64(), "{field} of {name}");
            assert!(sample > 0.0);
        }
    }
}

/// Metrics name and count all repositories.
#[tokio::test]
async fn metrics_are_not_shown_to_a_token_for_one_repository() {
    let server = guarded();
    let client = server.client();
    for repo in ["models/a/one", "models/a/*"] {
        let refused = client.bearing(&issue(&server, "admin", repo, &[])).get("/metrics").await;
        refused.problem(403, "forbidden");
    }
    assert_eq!(client.bearing(&issue(&server, "admin", "*", &[])).get("/metrics").await.status, 200);
}

#[tokio::test]
async fn metrics_have_the_hundred_largest_repositories() {
    let server = guarded();
    let client = server.client();
    let xorb = Xorb::mixed(&mut rng(), 6);
    for number in 0..101 {
        let writer = client.bearing(&issue(&server, "write", &format!("acme/{number}"), &[]));
        if number == 0 {
            assert_eq!(writer.post(&xorb.xet_path(), xorb.bytes.clone()).await.status, 200);
        }
        assert_eq!(writer.post("/v1/shards", upload_shard(&xorb, 0, 6).bytes()).await.status, 200);
    }
    let metrics = client.bearing(&issue(&server, "admin", "*", &[])).get("/metrics").await;
    let text = std::str::from_utf8(&metrics.body).expect("metrics are text");
    for name in ["zorb_repo_files", "zorb_repo_logical_bytes", "zorb_repo_physical_bytes"] {
        let samples: Vec<_> = text.lines().filter(|line| line.starts_with(&format!("{name}{{"))).collect();
        assert_eq!(samples.len(), 100, "{samples:#?}");
    }
}

#[tokio::test]
async fn default_log_level_has_uploads_and_failures_and_no_reads() {
    let (server, mut rng) = (Start::default().with("log", "info").start(), rng());
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng, 2));
    let responded = || server.log().lines().filter(|line| line.contains("responded")).count();
    client.post(&xorb.path(), xorb.bytes.clone()).await;
    assert_eq!(responded(), 1);
    client.get(&xorb.path()).await;
    client.get("/unknown").await;
    assert_eq!(responded(), 1);
    fs::remove_dir_all(server.data_dir().join("xorbs")).expect("the directory is there");
    client.get(&xorb.path()).await.problem(500, "internal");
    assert_eq!(responded(), 2);
}
