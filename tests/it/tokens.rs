//! Revoked tokens, and refresh tokens.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use zorb::service::access::TokenId;

use crate::support::{Client, Start, TestServer, Xorb, eventually, guarded, issue, rng, send, token_command};

/// The second within which a revocation takes effect, and what a busy machine takes.
const REVOKED_WITHIN: Duration = Duration::from_secs(3);

/// A path that every valid token opens: the empty file.
fn open_path() -> String {
    format!("/v1/reconstructions/{}", "0".repeat(64))
}

async fn status(client: &Client, token: &str) -> u16 {
    send(client, "GET", &open_path(), Some(token), Vec::new()).await.status
}

async fn wait_until_refused(client: &Client, token: &str) {
    eventually("the token is refused", async || status(client, token).await == 401).await;
}

/// What `zorb token inspect --json` says, and whether the token is valid.
fn inspected(server: &TestServer, token: &str) -> (bool, Value) {
    let output = token_command(server, &["inspect", token, "--json"]);
    (output.status.success(), serde_json::from_slice(&output.stdout).expect("a line of JSON"))
}

fn id_of(server: &TestServer, token: &str) -> String {
    inspected(server, token).1["id"].as_str().expect("every token has an id").to_owned()
}

fn revoke(server: &TestServer, what: &str) {
    let output = token_command(server, &["revoke", what]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn a_revoked_token_is_refused_by_a_running_server() {
    let server = guarded();
    let client = server.client();
    let [leaked, other] = [(); 2].map(|()| issue(&server, "read", "models/a/one", &["--subject", "ci"]));
    assert_ne!(leaked, other, "each has an id of its own");
    assert_eq!((status(&client, &leaked).await, status(&client, &other).await), (200, 200));
    let id = id_of(&server, &leaked);
    revoke(&server, &id);
    let begin = Instant::now();
    wait_until_refused(&client, &leaked).await;
    assert!(begin.elapsed() < REVOKED_WITHIN, "{:?}", begin.elapsed());
    assert_eq!(status(&client, &other).await, 200);
    let (is_valid, told) = inspected(&server, &leaked);
    assert_eq!((is_valid, &told["valid"], &told["revoked"]), (false, &false.into(), &true.into()));
    assert!(inspected(&server, &other).0);

    assert!(token_command(&server, &["rotate-key"]).status.success());
    let newest = issue(&server, "read", "*", &[]);
    assert_eq!((status(&client, &newest).await, status(&client, &leaked).await), (200, 401), "after a rotation");
    let server = server.restart_with(|start| start.with("auth", "token"));
    let client = server.client();
    assert_eq!((status(&client, &other).await, status(&client, &leaked).await), (200, 401), "after a restart");
}

#[tokio::test]
async fn what_is_revoked_is_an_id_or_a_token_and_never_a_mistake() {
    let server = guarded();
    let client = server.client();
    let tokens = [(); 3].map(|()| issue(&server, "write", "*", &[]));
    revoke(&server, &tokens[0]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_zorb"));
    command.args(["token", "revoke", "-", "--data-dir"]).arg(server.data_dir());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the binary was built");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    writeln!(stdin, "{}", tokens[1]).expect("the command reads");
    drop(stdin);
    assert!(child.wait().expect("it ends").success());
    wait_until_refused(&client, &tokens[0]).await;
    wait_until_refused(&client, &tokens[1]).await;

    let id = id_of(&server, &tokens[2]);
    let last = if id.ends_with('0') { '1' } else { '0' };
    let mistyped = format!("{}{last}", &id[..id.len() - 1]);
    for wrong in [mistyped.as_str(), "", "zorb_AAAA", &id[1..]] {
        let output = token_command(&server, &["revoke", wrong]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && stderr.contains("not a token id"), "{wrong}: {stderr}");
    }
    assert_eq!(status(&client, &tokens[2]).await, 200);
    let elsewhere = tempfile::tempdir().expect("the test can make a temporary directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_zorb"));
    let output = command.args(["token", "revoke", &id, "--data-dir"]).arg(elsewhere.path()).output();
    let output = output.expect("the binary was built");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no keys"), "{output:?}");
    assert_eq!(
        elsewhere.path().read_dir().expect("the directory is there").count(),
        0,
        "nothing is made where there is no store"
    );
}

#[test]
fn a_revocation_is_kept_until_the_token_has_long_expired() {
    let server = guarded();
    let keys = server.data_dir().join("keys");
    let text = || std::fs::read_to_string(&keys).expect("the keys are text");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs();
    let day = 24 * 3600;
    let [long_ago, lately] = [60, 20].map(|days| TokenId::new(days, now - days * day).to_string());
    std::fs::write(&keys, format!("{}revoked {long_ago}\nrevoked {lately}\n", text())).expect("the test can write");
    let id = id_of(&server, &issue(&server, "read", "*", &[]));
    revoke(&server, &id);
    assert!(text().contains(&id) && text().contains(&lately), "{lately} expired less than 30 days ago");
    assert!(!text().contains(&long_ago), "the file does not grow for ever");
}

#[tokio::test]
async fn a_refresh_token_makes_tokens_and_opens_nothing_else() {
    let server = guarded();
    let client = server.client();
    let more = ["--refresh", "--ttl", "7d", "--token-ttl", "10m", "--subject", "ci"];
    let refresh = issue(&server, "write", "models/a/one", &more);
    let response = send(&client, "GET", "/v1/token", Some(&refresh), Vec::new()).await;
    assert_eq!((response.status, response.header("cache-control")), (200, "no-store"));
    let json = response.json();
    let (token, exp) = (json["accessToken"].as_str().expect("a token"), json["exp"].as_u64().expect("a number"));
    assert_eq!(json["casUrl"].as_str(), Some(server.url()));
    assert_eq!(response.header("x-xet-cas-url"), server.url());
    assert_eq!(response.header("x-xet-access-token"), token);
    assert_eq!(response.header("x-xet-token-expiration"), exp.to_string());
    let (is_valid, told) = inspected(&server, token);
    assert!(is_valid);
    assert_eq!(told["expires_unix_secs"].as_u64(), Some(exp));
    // A revocation of all tokens until a time includes this one with its refresh token.
    assert_eq!(told["issued_unix_secs"], inspected(&server, &refresh).1["issued_unix_secs"]);
    assert!(exp - told["issued_unix_secs"].as_u64().expect("a number") >= 600);
    assert_eq!(
        (&told["scope"], &told["repo"], &told["subject"]),
        (&"write".into(), &"models/a/one".into(), &"ci".into())
    );
    assert_eq!(told["parent"].as_str(), Some(id_of(&server, &refresh).as_str()));

    let xorb = Xorb::mixed(&mut rng(), 2);
    let stored = send(&client, "POST", &xorb.xet_path(), Some(token), xorb.bytes.to_vec()).await;
    assert_eq!(stored.status, 200);
    assert_eq!(send(&client, "GET", "/metrics", Some(token), Vec::new()).await.status, 403);
    assert_eq!(send(&client, "HEAD", "/v1/token", Some(&refresh), Vec::new()).await.status, 200);
    assert_eq!(status(&client, &refresh).await, 401, "it opens nothing");
    for wrong in [None, Some(token), Some(""), Some("zorb_refresh_AAAA")] {
        let refused = send(&client, "GET", "/v1/token", wrong, Vec::new()).await;
        refused.problem(401, "unauthorized");
        assert_eq!(refused.header("www-authenticate"), "Bearer realm=\"zorb\"");
    }
}

#[tokio::test]
async fn revoking_a_refresh_token_revokes_its_tokens() {
    let server = guarded();
    let client = server.client();
    let refresh = issue(&server, "read", "models/a/one", &["--refresh"]);
    let make = async || send(&client, "GET", "/v1/token", Some(&refresh), Vec::new()).await;
    let made = [make().await, make().await].map(|response| response.json()["accessToken"].as_str().unwrap().to_owned());
    assert_eq!((status(&client, &made[0]).await, status(&client, &made[1]).await), (200, 200));
    revoke(&server, &id_of(&server, &made[0]));
    wait_until_refused(&client, &made[0]).await;
    assert_eq!((status(&client, &made[1]).await, make().await.status), (200, 200), "the others go on");
    revoke(&server, &id_of(&server, &refresh));
    wait_until_refused(&client, &made[1]).await;
    assert_eq!(make().await.status, 401);
    assert!(!inspected(&server, &made[1]).0);
}

#[tokio::test]
async fn tokens_are_in_the_audit_log_and_the_log_by_their_ids() {
    let directory = tempfile::tempdir().expect("the test can make a temporary directory");
    let path = directory.path().join("audit.log").to_str().expect("text").to_owned();
    let server = Start::default().with("auth", "token").with("audit_log", &path).start();
    let client = server.client();
    let refresh = issue(&server, "write", "models/a/one", &["--refresh", "--audit-log", &path]);
    let response = send(&client, "GET", "/v1/token", Some(&refresh), Vec::new()).await;
    let token = response.json()["accessToken"].as_str().expect("a token").to_owned();
    let xorb = Xorb::mixed(&mut rng(), 2);
    assert_eq!(send(&client, "POST", &xorb.xet_path(), Some(&token), xorb.bytes.to_vec()).await.status, 200);
    let ids = [id_of(&server, &refresh), id_of(&server, &token)];
    assert!(token_command(&server, &["revoke", &ids[0], "--audit-log", &path]).status.success());
    wait_until_refused(&client, &token).await;
    let mut lines = Vec::new();
    eventually("the lines are written", async || {
        let text = std::fs::read_to_string(&path).expect("the log is text");
        lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")).collect();
        lines.iter().any(|line| line["reason"] == "revoked")
    })
    .await;
    let found = |action: &str| lines.iter().find(|line| line["action"] == action).expect("there is a line");
    assert_eq!(found("zorb token issue --refresh")["token"], ids[0]);
    for action in ["GET /v1/token", "POST /v1/xorbs/{prefix}/{hash}"] {
        let line = found(action);
        assert_eq!((&line["token"], &line["parent"]), (&ids[1].as_str().into(), &ids[0].as_str().into()), "{line}");
    }
    assert_eq!(found("zorb token revoke")["token"], ids[0]);
    let log = server.log();
    assert!(log.contains(&ids[1]) && log.contains(&ids[0]), "{log}");
    for secret in [&refresh, &token] {
        let text = std::fs::read_to_string(&path).expect("the log is text");
        assert!(!text.contains(&secret[20..40]) && !log.contains(&secret[20..40]));
    }
}

#[test]
fn a_refresh_token_that_makes_no_sense_is_not_made() {
    let server = guarded();
    for (args, words) in [
        (&["issue", "--scope", "admin", "--repo", "*", "--refresh"][..], "read or write"),
        (&["issue", "--scope", "read", "--repo", "*", "--refresh", "--token-ttl", "59s"], "at least 60s"),
        (&["issue", "--scope", "read", "--repo", "*", "--token-ttl", "2h"], "--refresh"),
    ] {
        let output = token_command(&server, args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && stderr.contains(words), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn default_lifetimes_are_those_of_the_page_about_access() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/access.md")).expect("the page is there");
    let row = page.lines().find(|line| line.starts_with("| expiry |")).expect("it has a row about expiry");
    let server = guarded();
    for (more, text, secs) in [(&[][..], "1 hour", 3600), (&["--refresh"], "30 days", 30 * 24 * 3600)] {
        assert!(row.contains(text), "{row}");
        let told = inspected(&server, &issue(&server, "read", "*", more)).1;
        let [issued, expires] = ["issued", "expires"].map(|name| told[format!("{name}_unix_secs")].as_u64().unwrap());
        assert_eq!(expires - issued, secs, "{more:?}");
    }
}
