//! Hostile requests to the Hub: bodies here, and the rest in the modules.

mod contents;
mod directory;
mod metadata;
mod names;

use std::io;

use bytes::Bytes;
use futures_util::stream::iter;
use reqwest::Body;
use serde_json::{Value, json};

use super::{commit, commit_body, create, files, head, put};
use crate::support::{Client, Raw, Response, TestServer, sha256_of};

const COMMIT: &str = "/api/models/me/model/commit/main";

/// Commits these bytes after a header, which is line 1.
async fn commit_bytes(client: &Client, lines: &[u8]) -> Response {
    let header = commit_body("a commit", None, &[]);
    client.post(COMMIT, [header.as_bytes(), lines].concat()).await
}

/// A line that puts a file, with its contents as they are sent.
fn put_encoded(content: &str) -> String {
    json!({ "key": "file", "value": { "path": "a.txt", "content": content, "encoding": "base64" } }).to_string()
}

#[tokio::test]
async fn contents_in_any_other_form_of_base64_are_refused() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let before = head(&client, "me/model").await;
    let long = format!("{}!", "A".repeat(8 << 20));
    for content in [
        // Padding that is missing, too short, too long or at a wrong place, and bits after the end.
        "YQ",
        "YQ=",
        "YQ===",
        "Y===",
        "=",
        "====",
        "=YQ=",
        "YR==",
        "YWJ=",
        "YQ==YQ==",
        "Y",
        // Other characters.
        " YQ==",
        "YQ== ",
        "Y Q==",
        "YQ==\n",
        "YW\r\nJj",
        "-_-_",
        "YQ\0=",
        "Y\u{fc}==",
        "data:,a",
        &long,
    ] {
        let refused = commit_bytes(&client, put_encoded(content).as_bytes()).await;
        let detail = refused.problem(400, "invalid_request")["detail"].as_str().unwrap().to_owned();
        let is_named = detail.starts_with("Line 2 of the commit: a.txt: ");
        assert!(is_named && detail.len() < 200, "{detail} for {} bytes", content.len());
    }
    assert_eq!(head(&client, "me/model").await, before, "no refusal moves the branch");
}

#[tokio::test]
async fn large_file_of_another_length_than_stated_is_refused() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let line = |size: Value| {
        let oid = sha256_of(b"").to_string();
        json!({ "key": "lfsFile", "value": { "path": "a.bin", "algo": "sha256", "oid": oid, "size": size } })
    };
    for size in [json!(1), json!(u64::MAX), json!(-1), json!(1e300), json!("0"), json!([])] {
        assert_eq!(commit(&client, "me/model", None, &[line(size.clone())]).await.0, 400, "a length of {size}");
    }
    assert_eq!(commit(&client, "me/model", None, &[line(json!(0))]).await.0, 200);
    assert_eq!(files(&client, "me/model", "main", 9).await["a.bin"], b"");
}

#[tokio::test]
async fn line_that_is_not_one_operation_refuses_the_commit() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let before = head(&client, "me/model").await;
    let good = put("good.txt", b"good").to_string();
    let deep = "[".repeat(1 << 20);
    let lines = [
        // Not one object.
        "null".to_owned(),
        "[]".to_owned(),
        "7".to_owned(),
        "\"file\"".to_owned(),
        "{}".to_owned(),
        "x".to_owned(),
        format!("{good}{good}"),
        format!("{good},"),
        format!("[{good}]"),
        format!("\u{feff}{good}"),
        good.replace(':', "="),
        // Two values of one name: another reader may take the other one.
        r#"{"key":"file","key":"deletedFile","value":{"path":"a","content":""}}"#.to_owned(),
        r#"{"key":"file","value":{"path":"a","path":"b","content":""}}"#.to_owned(),
        r#"{"key":"file","value":{"path":"a","content":""},"value":{"path":"b","content":""}}"#.to_owned(),
        // Text that is none, and lists in lists.
        r#"{"key":"file","value":{"path":"\ud800","content":""}}"#.to_owned(),
        r#"{"key":"file","value":{"path":"a\u0000","content":""}}"#.to_owned(),
        format!(r#"{{"key":"file","value":{{"path":"a","content":{deep}}}}}"#),
        format!(r#"{{"other":{deep}"#),
        format!(r#"{{"key":{deep}"#),
    ];
    let mut bodies: Vec<Vec<u8>> = lines.map(String::into_bytes).into();
    bodies.push(b"{\"key\":\"deletedFile\",\"value\":{\"path\":\"\xff\"}}".to_vec());
    bodies.push(b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec());
    for body in bodies {
        let body = [good.as_bytes(), b"\n", &body].concat();
        let detail = commit_bytes(&client, &body).await.problem(400, "invalid_request")["detail"].clone();
        let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
        assert!(detail.as_str().unwrap().starts_with("Line 3 of the commit: "), "{detail} for {shown}");
    }
    assert_eq!(head(&client, "me/model").await, before, "the good line before has no effect");
}

#[tokio::test]
async fn million_empty_lines_of_a_commit_are_skipped() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let empty = "\n".repeat(500_000) + &" \r\n".repeat(500_000);
    let good = put("a.txt", b"a").to_string();
    assert_eq!(commit_bytes(&client, format!("{empty}{good}{empty}").as_bytes()).await.status, 200);
    assert_eq!(files(&client, "me/model", "main", 9).await["a.txt"], b"a");
    let refused = commit_bytes(&client, format!("{empty}x").as_bytes()).await.problem(400, "invalid_request");
    assert!(refused["detail"].as_str().unwrap().starts_with("Line 1000002 of the commit: "), "{refused}");
}

#[tokio::test]
async fn commit_has_25_000_changes_and_not_one_more() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let lines = |count: usize| format!("{}\n", super::delete("deletedFile", "absent")).repeat(count);
    let refused = commit_bytes(&client, lines(25_001).as_bytes()).await.problem(400, "invalid_request");
    assert_eq!(refused["detail"], "A commit has at most 25000 changes.");
    // So many are applied: the first one names a file that does not exist.
    let applied = commit_bytes(&client, lines(25_000).as_bytes()).await;
    assert_eq!((applied.status, applied.header("x-error-code")), (404, "EntryNotFound"));
}

#[tokio::test]
async fn commit_longer_than_80_mib_is_refused() {
    const MAX_LEN: usize = 80 << 20;
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    // With a declared length before a byte of it is sent.
    let mut connection = Raw::begin_upload(&server, COMMIT, MAX_LEN + 1).await;
    let declared = connection.response().await;
    // Without one, at the first byte that is too much.
    let mib = Bytes::from(vec![b'\n'; 1 << 20]);
    let pieces = [vec![mib.clone(); MAX_LEN >> 20], vec![mib.slice(..1)]].concat();
    let stream = Body::wrap_stream(iter(pieces.into_iter().map(Ok::<_, io::Error>)));
    let counted = client.post(COMMIT, stream).await;
    for refused in [declared, counted] {
        assert_eq!(refused.problem(413, "too_large")["limit"], MAX_LEN, "{:?}", refused.headers);
    }
    assert_eq!(commit(&client, "me/model", None, &[put("a.txt", b"a")]).await.0, 200, "the server serves others");
}
