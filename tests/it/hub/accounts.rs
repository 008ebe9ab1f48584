//! Users and organizations: who sees, reads and writes which repository.

use std::process::Output;

use reqwest::Method;
use serde_json::{Value, json};

use super::{commit, files, head, put, stored_xorb, zorb};
use crate::support::{Client, Response, TestServer, Xorb, guarded, issue, register, rng, sha256_of, upload_shard};

/// Runs a command of zorb with the data directory of a server.
fn run(server: &TestServer, arguments: &[&str]) -> Output {
    let mut command = server.command();
    command.args(arguments).arg("--data-dir").arg(server.data_dir()).output().unwrap()
}

/// What a command for the accounts of a server prints.
pub(super) fn accounts(server: &TestServer, arguments: &[&str]) -> String {
    let output = run(server, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The error of a command that is refused.
fn refused(server: &TestServer, arguments: &[&str]) -> String {
    let output = run(server, arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A client with a new token of a user.
pub(super) fn client_of(server: &TestServer, user: &str, scope: &str) -> Client {
    let token = accounts(server, &["user", "token", user, "--scope", scope]);
    server.client().bearing(token.trim_end())
}

/// A server with alice and bob, and their clients, which may write.
async fn with_two_users() -> (TestServer, Client, Client) {
    let server = guarded();
    for user in ["alice", "bob"] {
        accounts(&server, &["user", "add", user]);
    }
    let (alice, bob) = (client_of(&server, "alice", "write"), client_of(&server, "bob", "write"));
    // A new user is known at once.
    assert_eq!(alice.get("/api/whoami-v2").await.json()["name"], "alice");
    (server, alice, bob)
}

async fn create(client: &Client, organization: Option<&str>, name: &str, is_private: bool) -> u16 {
    let body = json!({ "name": name, "organization": organization, "type": "model", "private": is_private });
    client.post("/api/repos/create", body.to_string()).await.status
}

async fn listed(client: &Client) -> Vec<String> {
    let listed = client.get("/api/models").await.json();
    listed.as_array().unwrap().iter().map(|repo| repo["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn users_write_their_own_namespace_and_read_what_is_public() {
    let (server, alice, bob) = with_two_users().await;
    assert_eq!(create(&alice, None, "open", false).await, 200);
    assert_eq!(create(&alice, Some("alice"), "secret", true).await, 200);
    assert_eq!(create(&bob, Some("alice"), "new", true).await, 403);
    assert_eq!(create(&bob, Some("absent"), "new", true).await, 403);
    assert_eq!(create(&alice, Some("Alice"), "new", true).await, 403, "another case");
    for repo in ["alice/open", "alice/secret"] {
        assert_eq!(commit(&alice, repo, None, &[put("a.txt", b"of alice")]).await.0, 200);
    }
    assert_eq!(listed(&alice).await, ["alice/secret", "alice/open"]);
    assert_eq!(listed(&bob).await, ["alice/open"]);
    let changed = bob.get("/api/models?sort=lastModified").await.json();
    assert_eq!((changed.as_array().unwrap().len(), &changed[0]["id"]), (1, &json!("alice/open")));
    assert_eq!(files(&bob, "alice/open", "main", 9).await["a.txt"], b"of alice");
    // Public is for reading.
    let before = head(&alice, "alice/open").await;
    assert_eq!(commit(&bob, "alice/open", None, &[put("b.txt", b"of bob")]).await.0, 403);
    let private = json!({ "private": true }).to_string();
    let set = bob.request(Method::PUT, "/api/models/alice/open/settings").body(private);
    assert_eq!(Response::of(set).await.status, 403);
    let delete = json!({ "name": "open", "organization": "alice" }).to_string();
    let delete = |client: &Client| client.request(Method::DELETE, "/api/repos/delete").body(delete.clone());
    assert_eq!(Response::of(delete(&bob)).await.status, 403);
    assert_eq!(bob.get("/api/models/alice/open/xet-write-token/main").await.status, 403);
    assert_eq!(head(&alice, "alice/open").await, before);
    // A private one is nowhere different from none.
    for (path, absent) in [
        ("/api/models/alice/secret", "/api/models/alice/absent"),
        ("/api/models/alice/secret/tree/main", "/api/models/alice/absent/tree/main"),
        ("/api/models/alice/secret/xet-read-token/main", "/api/models/alice/absent/xet-read-token/main"),
        ("/alice/secret/resolve/main/a.txt", "/alice/absent/resolve/main/a.txt"),
    ] {
        let (hidden, missing) = (bob.get(path).await, bob.get(absent).await);
        assert_eq!((hidden.status, missing.status, hidden.body.len()), (404, 404, missing.body.len()), "{path}");
    }
    // A token with the scope read does not write its own.
    let reader = client_of(&server, "alice", "read");
    assert_eq!(files(&reader, "alice/secret", "main", 9).await["a.txt"], b"of alice");
    assert_eq!(commit(&reader, "alice/secret", None, &[put("b.txt", b"b")]).await.0, 403);
    assert_eq!(Response::of(delete(&alice)).await.status, 200);
}

#[tokio::test]
async fn members_do_what_their_role_in_an_organization_permits() {
    let (server, alice, bob) = with_two_users().await;
    let added = accounts(&server, &["org", "add", "acme", "--member", "alice:write", "--member", "bob:read"]);
    assert_eq!(added, "added the organization acme\n");
    let role = async |client: &Client| client.get("/api/whoami-v2").await.json()["orgs"][0]["roleInOrg"].clone();
    bob.eventually("bob is a member", async |bob| role(bob).await == "read").await;
    assert_eq!(role(&alice).await, "write");
    assert_eq!(
        (create(&bob, Some("acme"), "m", true).await, create(&alice, Some("acme"), "m", true).await),
        (403, 200)
    );
    assert_eq!(commit(&alice, "acme/m", None, &[put("a.txt", b"a")]).await.0, 200);
    assert_eq!(files(&bob, "acme/m", "main", 9).await["a.txt"], b"a");
    assert_eq!(commit(&bob, "acme/m", None, &[put("b.txt", b"b")]).await.0, 403);
    // Their roles change with the same tokens.
    let changed = accounts(&server, &["org", "member", "acme", "alice:none", "bob:write"]);
    assert_eq!(changed, "alice in acme: none\nbob in acme: write\n");
    alice.eventually("she is no member", async |alice| alice.get("/api/models/acme/m").await.status == 404).await;
    assert_eq!(listed(&alice).await, [""; 0]);
    assert_eq!(commit(&bob, "acme/m", None, &[put("b.txt", b"b")]).await.0, 200);
    assert_eq!(accounts(&server, &["org", "list"]), "acme  bob:write\n");
    assert_eq!(accounts(&server, &["user", "list"]), "alice  enabled  -\nbob  enabled  acme:write\n");
    let lines = accounts(&server, &["user", "list", "--json"]);
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!(last, json!({ "user": "bob", "enabled": true, "organizations": { "acme": "write" } }));
}

#[tokio::test]
async fn disabled_user_and_revoked_tokens_are_refused_everywhere() {
    let (server, alice, bob) = with_two_users().await;
    assert_eq!(create(&alice, None, "m", true).await, 200);
    let transfer = async || {
        let given = alice.get("/api/models/alice/m/xet-write-token/main").await.json();
        server.client().bearing(given["accessToken"].as_str().unwrap())
    };
    let object = json!({ "oid": sha256_of(b"sent as a whole").to_string(), "size": 15 });
    let batch = json!({ "operation": "upload", "transfers": ["basic"], "objects": [object] }).to_string();
    let batch = alice.post("/alice/m.git/info/lfs/objects/batch", batch).await.json();
    let href = batch["objects"][0]["actions"]["upload"]["href"].as_str().unwrap();
    let url = server.client().path_of(href).to_owned();
    let xet = transfer().await;
    assert_eq!(xet.get("/v1/files").await.status, 200);
    assert_eq!(accounts(&server, &["user", "disable", "alice"]), "disabled alice\n");
    alice.eventually("she is refused", async |alice| alice.get("/api/whoami-v2").await.status == 401).await;
    assert_eq!(xet.get("/v1/files").await.status, 401);
    let send = || server.client().request(Method::PUT, &url).body("sent as a whole");
    assert_eq!(Response::of(send()).await.status, 403);
    assert!(refused(&server, &["user", "token", "alice", "--scope", "read"]).contains("zorb user enable alice"));
    assert_eq!(bob.get("/api/whoami-v2").await.status, 200);
    accounts(&server, &["user", "enable", "alice"]);
    alice.eventually("she is back", async |alice| alice.get("/api/whoami-v2").await.status == 200).await;
    assert_eq!(xet.get("/v1/files").await.status, 200);
    assert_eq!(accounts(&server, &["user", "revoke", "alice"]), "revoked all tokens of alice\n");
    alice.eventually("they are revoked", async |alice| alice.get("/api/whoami-v2").await.status == 401).await;
    assert_eq!(xet.get("/v1/files").await.status, 401);
    assert_eq!(Response::of(send()).await.status, 403);
    // The next one is valid at once, has all that she had, and so have the tokens for transfers.
    let again = client_of(&server, "alice", "write");
    assert_eq!(listed(&again).await, ["alice/m"]);
    let given = again.get("/api/models/alice/m/xet-write-token/main").await.json();
    let xet = server.client().bearing(given["accessToken"].as_str().unwrap());
    assert_eq!(xet.get("/v1/files").await.status, 200);
}

/// A client that remembers a short file from another owner names its xorb without an upload. The user's other tokens
/// for transfers permit that, those of other users do not.
#[tokio::test]
async fn short_file_is_registered_for_each_owner_of_its_user() {
    let (server, alice, bob) = with_two_users().await;
    accounts(&server, &["org", "add", "team", "--member", "alice:write", "--member", "bob:write"]);
    let is_member = async |user: &Client| user.get("/api/whoami-v2").await.json()["orgs"][0]["name"] == "team";
    alice.eventually("she is a member", is_member).await;
    bob.eventually("he is a member", is_member).await;
    let transfer = async |client: &Client, kind: &str, namespace: Option<&str>, name: &str| {
        let new = json!({ "name": name, "organization": namespace, "type": kind, "private": true }).to_string();
        assert_eq!(client.post("/api/repos/create", new).await.status, 200);
        let owner = namespace.map_or_else(|| "alice".to_owned(), str::to_owned);
        let given = client.get(&format!("/api/{kind}s/{owner}/{name}/xet-write-token/main")).await.json();
        server.client().bearing(given["accessToken"].as_str().unwrap())
    };
    let first = transfer(&alice, "model", None, "m").await;
    let data = transfer(&alice, "dataset", None, "d").await;
    let team = transfer(&alice, "model", Some("team"), "a").await;
    let of_bob = transfer(&bob, "model", Some("team"), "b").await;
    let xorb = Xorb::mixed(&mut rng(), 1);
    assert_eq!(first.post(&xorb.xet_path(), xorb.bytes.clone()).await.status, 200);
    let shard = upload_shard(&xorb, 0, 1).bytes();
    of_bob.post("/v1/shards", shard.clone()).await.problem(400, "missing_xorb");
    for client in [&first, &data, &team] {
        assert_eq!(register(client, shard.clone()).await, 1);
    }
    // The organization has it now, as if she had uploaded it again.
    assert_eq!(register(&of_bob, shard).await, 1);
    // What she may no longer write counts no more.
    let other = Xorb::mixed(&mut rng(), 1);
    assert_eq!(team.post(&other.xet_path(), other.bytes.clone()).await.status, 200);
    let shard = upload_shard(&other, 0, 1).bytes();
    accounts(&server, &["org", "member", "team", "alice:read"]);
    let is_reader = async |user: &Client| user.get("/api/whoami-v2").await.json()["orgs"][0]["roleInOrg"] == "read";
    alice.eventually("her role is lost", is_reader).await;
    data.post("/v1/shards", shard).await.problem(400, "missing_xorb");
}

/// Alice has a chunk in a private repository. A reader of a public one of hers learns nothing of it
/// by deduplication.
#[tokio::test]
async fn reader_of_a_public_repository_gets_no_deduplication() {
    let (server, alice, bob) = with_two_users().await;
    for (name, is_private) in [("open", false), ("second", false), ("secret", true)] {
        assert_eq!(create(&alice, None, name, is_private).await, 200);
    }
    let token = async |client: &Client, path: &str| {
        let given = client.get(path).await.json();
        server.client().bearing(given["accessToken"].as_str().unwrap())
    };
    let writer = token(&alice, "/api/models/alice/secret/xet-write-token/main").await;
    let xorb = stored_xorb(&writer).await;
    assert_eq!(register(&writer, upload_shard(&xorb, 0, 5).bytes()).await, 1);
    let path = format!("/v1/chunks/default/{}", xorb.chunk_hash(0));
    let own = token(&alice, "/api/models/alice/open/xet-read-token/main").await;
    assert_eq!(own.get(&path).await.status, 200, "it is her own");
    let foreign = token(&bob, "/api/models/alice/open/xet-read-token/main").await;
    assert_eq!(foreign.get(&path).await.status, 404);
    // What no revision has any more is not listed.
    assert_eq!(foreign.get("/v1/files").await.json()["files"], json!([]));
    assert_ne!(own.get("/v1/files").await.json()["files"], json!([]));
    // It is for this repository, and not longer than the repository is public.
    assert_eq!(foreign.get("/api/models/alice/open").await.status, 200);
    for other in ["secret", "second"] {
        assert_eq!(foreign.get(&format!("/api/models/alice/{other}")).await.status, 404, "{other}");
    }
    let private = json!({ "private": true }).to_string();
    let set = alice.request(Method::PUT, "/api/models/alice/open/settings").body(private);
    assert_eq!(Response::of(set).await.status, 200);
    assert_eq!(foreign.get("/api/models/alice/open").await.status, 401);
}

#[tokio::test]
async fn commands_for_accounts_say_what_is_wrong_and_change_nothing() {
    let (server, ..) = with_two_users().await;
    let before = std::fs::read(server.data_dir().join("keys")).unwrap();
    for (arguments, expected) in [
        (&["user", "add", "Alice"][..], "Alice is a user or organization already"),
        (&["user", "add", "a/b"], "letters, digits"),
        (&["user", "add", "api"], "reserved"),
        (&["user", "token", "carol", "--scope", "read"], "zorb user list"),
        (&["user", "token", "alice", "--scope", "admin"], "invalid value 'admin'"),
        (&["user", "disable", "carol"], "no user carol"),
        (&["org", "add", "acme", "--member", "carol:read"], "no user carol"),
        (&["org", "add", "acme", "--member", "alice:admin"], "like alice:write"),
        (&["org", "member", "acme", "alice:read"], "no organization acme"),
    ] {
        let stderr = refused(&server, arguments);
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    assert_eq!(std::fs::read(server.data_dir().join("keys")).unwrap(), before);
    let empty = tempfile::tempdir().unwrap();
    let output = zorb(&["user", "add", "alice", "--data-dir", empty.path().to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no store in"), "{output:?}");
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0);
}

/// Each change has its line in the audit log before it takes effect, and a refused one has none.
#[tokio::test]
async fn audit_log_says_who_got_which_role() {
    let (server, ..) = with_two_users().await;
    let log = server.data_dir().join("audit.jsonl");
    let audited = ["--json", "--audit-log", log.to_str().unwrap()];
    let run = |arguments: &[&str]| run(&server, &[arguments, &audited].concat());
    let added = run(&["org", "add", "acme", "--member", "alice:write"]);
    assert_eq!(String::from_utf8(added.stdout).unwrap(), "{\"organization\":\"acme\",\"done\":\"zorb org add\"}\n");
    assert!(!run(&["user", "disable", "carol"]).status.success());
    assert!(run(&["org", "member", "acme", "bob:read", "alice:none"]).status.success());
    assert!(run(&["user", "disable", "bob"]).status.success());
    let lines = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seen =
        |line: &Value| ["action", "subject", "repo", "scope"].map(|name| line[name].as_str().unwrap_or("-").to_owned());
    assert_eq!(
        lines.iter().map(seen).collect::<Vec<_>>(),
        [
            ["zorb org add", "-", "acme", "-"],
            ["zorb org add", "alice", "acme", "write"],
            ["zorb org member", "bob", "acme", "read"],
            ["zorb org member", "alice", "acme", "none"],
            ["zorb user disable", "bob", "-", "-"],
        ]
    );
}

/// Other routes are about the one repository that the token names.
#[tokio::test]
async fn token_of_a_user_is_refused_by_all_other_routes() {
    let (server, alice, _) = with_two_users().await;
    for path in ["/v1/files", "/v1/usage"] {
        let refused = alice.get(path).await;
        assert_eq!(refused.status, 403, "{path}");
        assert!(refused.json()["detail"].as_str().unwrap().contains("of the user alice"), "{path}");
    }
    assert_eq!(alice.post(&format!("/xorbs/{}", "0".repeat(64)), "x").await.status, 403);
    // An administrator sees all namespaces.
    assert_eq!(create(&alice, None, "m", true).await, 200);
    assert_eq!(listed(&server.client().bearing(&issue(&server, "admin", "*", &[]))).await, ["alice/m"]);
}
