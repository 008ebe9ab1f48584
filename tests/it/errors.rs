//! docs/errors.md, line by line: the table is the list of codes, and each of them is provoked.

use std::fs;

use zorb::http::Code;

use crate::outages::Shimmed;
use crate::support::{
    Certificates, Client, Grant, Metrics, Raw, Response, Start, TestServer, Xorb, eventually, header, issue,
    random_bytes, read, rng, sha256_of, upload_shard,
};

/// Fields that every problem has.
const COMMON: [&str; 5] = ["type", "title", "status", "code", "detail"];

/// A row of the table.
#[derive(Debug)]
struct Row {
    code: String,
    status: u16,
    fields: Vec<String>,
}

fn table() -> Vec<Row> {
    let text = read("docs/errors.md");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [code, status, _, fields, _] = cells[..] else { panic!("no row of five cells: {line}") };
        let quoted = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        Row { code: quoted(code).concat(), status: status.parse().expect("a status"), fields: quoted(fields) }
    })
    .collect()
}

#[test]
fn the_table_lists_every_code_once_with_its_status() {
    let mut documented: Vec<_> = table().iter().map(|row| (row.code.clone(), row.status)).collect();
    let mut existing: Vec<_> =
        Code::ALL.iter().map(|code| (code.as_str().to_owned(), code.status().as_u16())).collect();
    assert!(documented.is_sorted_by_key(|(_, status)| *status), "the table is sorted by status");
    documented.sort();
    existing.sort();
    assert_eq!(documented, existing);
}

#[tokio::test]
async fn every_documented_error_code_is_returned_for_its_cause() {
    for row in table() {
        let response = provoke(&row.code).await;
        let problem = response.problem(row.status, &row.code);
        let names: Vec<_> = problem.as_object().expect("a problem is an object").keys().cloned().collect();
        let extra: Vec<_> = names.iter().filter(|name| !COMMON.contains(&name.as_str())).collect();
        assert!(extra.iter().all(|name| row.fields.contains(name)), "{problem} has other fields than {row:?}");
        assert!(row.fields.is_empty() || !extra.is_empty(), "{problem} has none of the fields of {row:?}");
        assert!(problem["detail"].as_str().is_some_and(|text| text.ends_with('.')), "no sentence: {problem}");
        let comes_back = ["overloaded", "too_many_requests", "deadline", "unavailable"].contains(&row.code.as_str());
        assert_eq!(response.headers.contains_key("retry-after"), comes_back);
        assert_eq!(response.headers.contains_key("x-request-id"), row.code != "https_required");
    }
}

/// Brings an error about.
async fn provoke(code: &str) -> Response {
    let mut rng = rng();
    let xorb = Xorb::mixed(&mut rng, 3);
    let (path, part) = (xorb.path(), format!("{}?range=", xorb.path()));
    let start = Start::default();
    let server = match code {
        "deadline" => start.with("request_timeout", "1s").start(),
        "body_timeout" => start.with("body_timeout", "1s").start(),
        "conflict" | "https_required" | "overloaded" | "quota_exceeded" | "out_of_space" | "too_many_requests"
        | "unavailable" => {
            return provoke_elsewhere(code, &xorb).await;
        }
        _ => start.start(),
    };
    let client = server.client();
    let needs_xorb = ["range_not_satisfiable", "invalid_range", "precondition_failed", "internal", "shard_mismatch"];
    let needs_xorb = [&needs_xorb[..], &["xorb_damaged", "no_proof", "file_hash_mismatch", "sha256_conflict"]].concat();
    if needs_xorb.contains(&code) {
        assert_eq!(client.post(&path, xorb.bytes.clone()).await.status, 201);
    }
    match code {
        "invalid_hash" => client.get("/xorbs/abc").await,
        "invalid_range" => client.get(&format!("{part}x")).await,
        "malformed_xorb" => client.post(&path, header(0, 5, 6).to_vec()).await,
        "unsupported_version" => client.post(&path, b"a text of more than eight bytes".as_slice()).await,
        "unsupported_compression" => client.post(&path, header(99, 5, 5).to_vec()).await,
        "grant_mismatch" => grant_mismatch(&xorb, Xorb::mixed(&mut rng, 2)).await,
        "hash_mismatch" => client.post(&path, Xorb::mixed(&mut rng, 2).bytes).await,
        "too_many_chunks" => client.post(&path, [&header(0, 1, 1)[..], b"x"].concat().repeat(8193)).await,
        "incomplete_body" => client.post(&path, xorb.bytes.slice(..xorb.bytes.len() - 1)).await,
        "malformed_shard" => client.post("/v1/shards", "not a shard").await,
        "missing_xorb" => client.post("/v1/shards", upload_shard(&xorb, 0, 3).bytes()).await,
        "shard_mismatch" => client.post("/v1/shards", upload_shard(&xorb, 0, 3).with_term_len(1).bytes()).await,
        "no_proof" => client.post("/v1/shards", upload_shard(&xorb, 0, 3).with_wrong_proof().bytes()).await,
        "file_hash_mismatch" => client.post("/v1/shards", upload_shard(&xorb, 0, 3).with_wrong_hash().bytes()).await,
        "sha256_conflict" => {
            let first = upload_shard(&xorb, 0, 3).claiming(sha256_of(&xorb.raw));
            assert_eq!(client.post("/v1/shards", first.bytes()).await.status, 200);
            client.post("/v1/shards", upload_shard(&xorb, 0, 3).with_sha256(2).bytes()).await
        }
        "invalid_request" => client.post("/v1/reconstructions", "no json").await,
        "unauthorized" => Start::default().with("auth", "token").start().client().get("/v1/reconstructions").await,
        "forbidden" => client.get(&format!("/v1/data/{}?s=forged", xorb.hash())).await,
        "not_found" => client.get(&path).await,
        "body_timeout" => Raw::begin_upload(&server, &path, 10).await.response().await,
        "precondition_failed" => client.get_with(&path, &[("if-match", "\"another\"")]).await,
        "too_large" => Raw::begin_upload(&server, &path, 1 << 30).await.response().await,
        "range_not_satisfiable" => client.get(&format!("{part}3")).await,
        "xorb_damaged" => xorb_damaged(&server, &client, &xorb).await,
        "internal" => {
            fs::remove_dir_all(server.data_dir().join("xorbs")).expect("the directory is there");
            client.get(&path).await
        }
        "deadline" => Raw::begin_upload(&server, "/v1/reconstructions", 10).await.response().await,
        "not_ready" => {
            fs::remove_dir_all(server.data_dir().join("tmp")).expect("the directory is there");
            client.get("/readyz").await
        }
        code => panic!("docs/errors.md has the code {code}, and this test does not know how to provoke it"),
    }
}

/// The same for errors that need a server of a kind of its own.
async fn provoke_elsewhere(code: &str, xorb: &Xorb) -> Response {
    match code {
        "https_required" => plain_to_tls().await,
        "overloaded" => busy(1, 1, xorb).await,
        // The last one is for somebody else.
        "too_many_requests" => busy(8, 7, xorb).await,
        "quota_exceeded" => quota_exceeded(xorb).await,
        "conflict" => conflict().await,
        "out_of_space" => out_of_space().await,
        _ => {
            let shimmed = Shimmed::start();
            shimmed.set("r");
            shimmed.server.client().post(&xorb.path(), xorb.bytes.clone()).await
        }
    }
}

/// One more upload, where so many of those that may be under way are.
async fn busy(max_count: u32, count: u32, xorb: &Xorb) -> Response {
    let server = Start::default().with("max_uploads", max_count).start();
    let (client, mut uploads) = (server.client(), Vec::new());
    for count in 1..=count {
        uploads.push(Raw::begin_upload(&server, &xorb.path(), 10).await);
        let is_under_way = async || Metrics::of(&client).await.get("zorb_uploads_in_flight") == f64::from(count);
        eventually("it is under way", is_under_way).await;
    }
    client.post(&xorb.path(), xorb.bytes.clone()).await
}

/// A xorb of which the blob is gone, once somebody has noticed.
async fn xorb_damaged(server: &TestServer, client: &Client, xorb: &Xorb) -> Response {
    fs::remove_file(crate::scrub::blob(server.data_dir(), xorb)).expect("the blob is there");
    assert_eq!(client.get(&xorb.path()).await.status, 500);
    let found = async || Metrics::of(client).await.get("zorb_store_damaged_xorbs") == 1.0;
    eventually("it is found", found).await;
    client.get(&xorb.path()).await
}

/// Plain HTTP where TLS is spoken. No layer but one has seen it, so it has no id.
async fn plain_to_tls() -> Response {
    let server = Certificates::new().start().start();
    let mut connection = Raw::connect(&server).await;
    connection.send("GET /healthz HTTP/1.1\r\nhost: zorb\r\n\r\n").await;
    connection.response().await
}

/// A second file of a repository that may have one.
async fn quota_exceeded(xorb: &Xorb) -> Response {
    let server = Start::default().with("auth", "token").with("quota_files", 1).start();
    let client = server.client().bearing(&issue(&server, "write", "acme/bert", &[]));
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    assert_eq!(client.post("/v1/shards", upload_shard(xorb, 0, 3).bytes()).await.status, 200);
    client.post("/v1/shards", upload_shard(xorb, 0, 2).bytes()).await
}

/// A branch that exists already.
async fn conflict() -> Response {
    let server = Start::default().start();
    let client = server.client();
    assert_eq!(client.post("/api/repos/create", r#"{"name":"bert","organization":"acme"}"#).await.status, 200);
    client.post("/api/models/acme/bert/branch/main", "{}").await
}

/// Other bytes than the grant is for.
async fn grant_mismatch(granted: &Xorb, sent: Xorb) -> Response {
    let server = Start::default().with("grants", true).start();
    let grant = Grant::of(&server.client(), granted).await;
    grant.send(&server.client(), sent.bytes).await
}

/// An upload to a store that is to keep more free than its disk has; what it has is still served. That a disk which is
/// really full gets the same response is shown in `full_disk`, which needs one of its own.
async fn out_of_space() -> Response {
    let (server, mut rng) = (TestServer::start(), rng());
    let kept = Xorb::mixed(&mut rng, 3);
    assert_eq!(server.client().post(&kept.path(), kept.bytes.clone()).await.status, 201);
    let server = server.restart_with(|start| start.with("min_free_space", i64::MAX));
    let client = server.client();
    let refused = Xorb::incompressible(&mut rng, 4 << 20);
    let response = client.post(&refused.path(), refused.bytes.clone()).await;
    client.get(&refused.path()).await.problem(404, "not_found");
    assert_eq!(client.get(&kept.path()).await.body, kept.bytes);
    response
}

/// Everything that is no route is 404 with a problem, whatever the method, with and without a body.
async fn check_unknown(server: &TestServer, method: &str, path: &str) {
    let mut connection = Raw::connect(server).await;
    connection.send(format!("{method} {path} HTTP/1.1\r\nhost: zorb\r\ncontent-length: 2\r\n\r\n{{}}")).await;
    if method == "HEAD" {
        let head = connection.head().await;
        assert_eq!((head.status, head.header("content-type")), (404, "application/problem+json"), "{method} {path}");
        return;
    }
    let response = connection.response().await;
    assert_eq!(response.status, 404, "{method} {path}: {:?}", response.body);
    let problem = response.problem(404, "not_found");
    assert!(response.headers.get("allow").is_none(), "{method} {path}: {:?}", response.headers);
    let query = path.split_once('?').map_or("", |(_, query)| query);
    assert!(query.is_empty() || !problem.to_string().contains(query), "queries may be secret: {problem}");
}

#[tokio::test]
async fn every_unknown_path_is_404_with_every_method() {
    let server = Start::default().with("grants", false).start();
    let hash = "0".repeat(64);
    let methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "PROPFIND", "ZORB"];
    for path in [
        "/".to_owned(),
        "/v1".to_owned(),
        "/xorbs".to_owned(),
        "/xorbs/".to_owned(),
        format!("/xorbs/{hash}/"),
        format!("/xorbs/{hash}/chunks/0"),
        format!("/v1/xorbs/{hash}"),
        format!("/v1/xorbs/a/b/{hash}"),
        format!("/v1/xorb-grants/default/{hash}"),
        format!("/v1/xorb-commits/default/{hash}/grant/1"),
        "/favicon.ico?token=secret".to_owned(),
        "/%2e%2e/%2e%2e/etc/passwd".to_owned(),
        "/../../etc/passwd".to_owned(),
        "/%ff%00".to_owned(),
    ] {
        for method in methods {
            check_unknown(&server, method, &path).await;
        }
    }
    check_unknown(&server, "OPTIONS", "*").await;
}

#[tokio::test]
async fn a_known_path_is_404_with_every_method_that_it_does_not_have() {
    let server = TestServer::start();
    let hash = "0".repeat(64);
    let (read, all) = (["GET", "HEAD"], ["GET", "HEAD", "POST"]);
    for (path, has) in [
        (format!("/xorbs/{hash}"), &all[..]),
        (format!("/v1/xorbs/default/{hash}"), &all),
        (format!("/xorbs/{hash}/chunks"), &read),
        ("/v1/shards".to_owned(), &["POST"]),
        ("/v2/shards".to_owned(), &["POST"]),
        ("/v1/telemetry".to_owned(), &["POST"]),
        (format!("/v2/reconstructions/{hash}"), &read),
        (format!("/v1/chunks/default/{hash}"), &read),
        (format!("/v1/files/{hash}"), &["GET", "HEAD", "DELETE"]),
        ("/healthz".to_owned(), &read),
        ("/readyz".to_owned(), &read),
        ("/metrics".to_owned(), &read),
    ] {
        for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "ZORB"] {
            if !has.contains(&method) {
                check_unknown(&server, method, &path).await;
            }
        }
    }
}

#[tokio::test]
async fn requests_that_are_no_http_do_not_disturb_the_others() {
    let (server, mut rng) = (TestServer::start(), rng());
    for garbage in [b"\x16\x03\x01\x02\x00\x01".to_vec(), b"GET\r\n\r\n".to_vec(), random_bytes(&mut rng, 100_000)] {
        let mut connection = Raw::connect(&server).await;
        // It may hang up before it has read all of this.
        let _ = connection.try_send(&garbage).await;
        let _ = connection.try_send("\r\n\r\n").await;
        connection.drain().await;
    }
    let long = format!("GET /{} HTTP/1.1\r\nhost: zorb\r\n\r\n", "x".repeat(100_000));
    let mut connection = Raw::connect(&server).await;
    let _ = connection.try_send(long).await;
    connection.drain().await;
    assert_eq!(server.client().get("/healthz").await.status, 200);
    assert!(!server.log().contains("panicked"));
}
