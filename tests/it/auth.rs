//! Tokens: what each opens, on every route there is, and what it takes to make and void one.

use std::collections::BTreeSet;

use crate::scrub::{fetch, first_fetch};
use crate::support::{
    Client, Grant, Response, Start, TestServer, UploadShard, Xorb, guarded, issue, rng, send, sha256_of, token_command,
    upload_shard,
};

/// What is served to everybody: signs of life, the list of routes, and what carries its own authority.
const OPEN: [&str; 5] = ["/healthz", "/readyz", "/openapi.json", "/v1/data/{xorb}", "/v1/grants/{xorb}"];

/// Every way to change something, by method and first words of the path. All else reads.
const WRITES: [(&str, &str); 10] = [
    ("delete", "/v1/files/"),
    ("post", "/xorbs/"),
    ("post", "/xorb/"),
    ("post", "/v1/xorbs/"),
    ("post", "/v1/xorb-grants/"),
    ("post", "/v1/xorb-commits/"),
    ("post", "/shard"),
    ("put", "/shard/"),
    ("post", "/v1/shards"),
    ("post", "/v2/shards"),
];

/// What takes a refresh token, and no other one.
const REFRESH: &str = "/v1/token";

/// What only whoever runs the server may do.
const ADMINISTRATION: [(&str, &str); 1] = [("get", "/metrics")];

/// On every alias too.
#[tokio::test]
async fn every_route_needs_a_token_of_its_scope() {
    // The walk of the routes of the Hub is in `hub/rights.rs`.
    let server = Start::default().with("auth", "token").with("grants", true).with("hub", false).start();
    let client = server.client();
    let tokens = ["read", "write", "admin"].map(|scope| issue(&server, scope, "*", &[]));
    let document = client.get("/openapi.json").await.json();
    let paths = document["paths"].as_object().expect("the document has paths");
    assert!(paths.len() >= 28, "{paths:?}");
    let zeros = "0".repeat(64);
    let mut walked = BTreeSet::new();
    for (template, item) in paths {
        for method in item.as_object().expect("methods").keys() {
            let path = ["{hash}", "{file}", "{xorb}", "{digest}"]
                .iter()
                .fold(template.clone(), |path, name| path.replace(name, &zeros));
            let path = path.replace("{prefix}", "default").replace("{id}", "x");
            assert!(!path.contains('{'), "{path} has a parameter that this test does not know");
            // Whoever may not GET may not HEAD.
            let listed_as = if method == "head" { "get" } else { method };
            let listed =
                |list: &[(&str, &str)]| list.iter().any(|(verb, begin)| *verb == listed_as && path.starts_with(begin));
            let needed = match template.as_str() {
                open if OPEN.contains(&open) => 0,
                _ if listed(&ADMINISTRATION) => 3,
                _ if listed(&WRITES) => 2,
                _ => 1,
            };
            let method_name = method.to_uppercase();
            if template == REFRESH {
                for token in [None, Some("zorb_"), Some(tokens[0].as_str()), Some(&tokens[1]), Some(&tokens[2])] {
                    assert_eq!(send(&client, &method_name, &path, token, Vec::new()).await.status, 401, "{token:?}");
                }
            } else {
                check_route(&client, &method_name, &path, needed, &tokens).await;
            }
            walked.insert((method.clone(), template.clone()));
        }
    }
    assert!(walked.len() >= 50, "{walked:?}");
}

/// `needed` counts scopes: 0 none, 1 read, 2 write, 3 admin.
async fn check_route(client: &Client, method: &str, path: &str, needed: usize, tokens: &[String; 3]) {
    let none = send(client, method, path, None, Vec::new()).await;
    assert_eq!(none.status == 401, needed > 0, "{method} {path} without a token: {}", none.status);
    if needed > 0 {
        assert_eq!(none.header("www-authenticate"), "Bearer realm=\"zorb\"");
        let altered = format!("{}x", tokens[2]);
        for wrong in ["", "zorb_", "zorb_AAAA", altered.as_str(), tokens[2].strip_prefix("zorb_").unwrap()] {
            let refused = send(client, method, path, Some(wrong), Vec::new()).await;
            assert_eq!(refused.status, 401, "{method} {path} with {wrong:?}");
        }
    }
    for (token, scope) in tokens.iter().zip(1..) {
        let status = send(client, method, path, Some(token), Vec::new()).await.status;
        assert_ne!(status, 401, "{method} {path} with scope {scope}");
        // A URL with its own authority is a 403 for everybody where it has none.
        let is_forbidden = ["/v1/data/", "/v1/grants/"].iter().any(|begin| path.starts_with(begin));
        if is_forbidden {
            assert_eq!(status, 403, "{method} {path} with scope {scope}");
        } else {
            assert_eq!(status == 403, scope < needed, "{method} {path} with scope {scope} of {needed}: {status}");
        }
    }
}

#[tokio::test]
async fn unknown_routes_are_404_for_all_so_newer_clients_fall_back() {
    let server = guarded();
    let zeros = "0".repeat(64);
    for path in ["/v1/xorb-grants-2/default/", "/v3/shards/", "/v1/xorbs/default/x/y/", "/nothing/"] {
        for method in ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
            let response = send(&server.client(), method, &format!("{path}{zeros}"), None, Vec::new()).await;
            assert_eq!(response.status, 404, "{method} {path}");
        }
    }
    assert_eq!(send(&server.client(), "DELETE", "/v1/shards", None, Vec::new()).await.status, 404);
}

/// Two repositories with a file each; the files share a xorb.
struct Tenants {
    server: TestServer,
    client: Client,
    /// Of the owners `a` and `b`.
    writers: [String; 2],
    xorb: Xorb,
    /// One of each.
    files: [String; 2],
}

async fn tenants() -> Tenants {
    let (server, mut rng) = (guarded(), rng());
    let client = server.client();
    let writers = ["models/a/one", "models/b/one"].map(|repo| issue(&server, "write", repo, &[]));
    let xorb = Xorb::mixed(&mut rng, 9);
    let path = format!("/v1/xorbs/default/{}", xorb.hash());
    assert_eq!(send(&client, "POST", &path, Some(&writers[0]), xorb.bytes.to_vec()).await.status, 200);
    let shards = [upload_shard(&xorb, 0, 5), upload_shard(&xorb, 3, 9)];
    for (shard, writer) in shards.iter().zip(&writers) {
        let response = send(&client, "POST", "/v1/shards", Some(writer), shard.clone().bytes()).await;
        assert_eq!((response.status, response.json()["result"].as_u64()), (200, Some(1)), "{response:?}");
    }
    let files = shards.map(|shard| shard.file_hash());
    Tenants { server, client, writers, xorb, files }
}

/// Tokens of all repositories.
#[tokio::test]
async fn file_is_visible_to_its_repository_and_all_tokens_only() {
    let tenants = tenants().await;
    let all = issue(&tenants.server, "read", "*", &[]);
    let same_owner = issue(&tenants.server, "read", "models/a/two", &[]);
    let missing = "1".repeat(64);
    for (index, file) in tenants.files.iter().enumerate() {
        let paths = |file: &str| {
            let v1 = ["/v1/reconstructions/", "/reconstructions/", "/reconstruction/", "/v2/reconstructions/"];
            let mut paths: Vec<_> = v1.map(|begin| ("GET", format!("{begin}{file}"))).to_vec();
            paths.push(("GET", format!("/v1/reconstructions?file_id={file}")));
            paths.push(("HEAD", format!("/v1/files/{file}")));
            paths
        };
        for ((method, path), (_, unknown)) in paths(file).iter().zip(paths(&missing)) {
            let get =
                async |token: &str, path: &str| send(&tenants.client, method, path, Some(token), Vec::new()).await;
            assert_eq!(get(&tenants.writers[index], path).await.status, 200, "{path}");
            assert_eq!(get(&all, path).await.status, 200, "{path}");
            let (foreign, none) =
                (get(&tenants.writers[1 - index], path).await, get(&tenants.writers[1 - index], &unknown).await);
            assert_eq!((foreign.status, none.status), (404, 404), "{path}");
            let text =
                |response: &Response| String::from_utf8_lossy(&response.body).replace(file, "").replace(&missing, "");
            assert_eq!(text(&foreign), text(&none), "unknown and forbidden look the same");
            if index == 0 {
                assert_eq!(get(&same_owner, path).await.status, 404, "{path}");
            }
        }
    }
}

#[tokio::test]
async fn whole_xorb_needs_a_token_for_all_repositories() {
    let tenants = tenants().await;
    let all = issue(&tenants.server, "read", "*", &[]);
    let hash = tenants.xorb.hash();
    for path in [format!("/xorbs/{hash}"), format!("/v1/xorbs/default/{hash}"), format!("/xorbs/{hash}/chunks")] {
        for method in ["GET", "HEAD"] {
            let own = send(&tenants.client, method, &path, Some(&tenants.writers[0]), Vec::new()).await;
            assert_eq!(own.status, 404, "{method} {path}: even the one who uploaded it sees it only through files");
            let response = send(&tenants.client, method, &path, Some(&all), Vec::new()).await;
            assert_eq!(response.status, 200, "{method} {path}");
        }
    }
    let response = send(&tenants.client, "GET", &format!("/xorbs/{hash}"), Some(&all), Vec::new()).await;
    assert_eq!(response.header("cache-control"), "private, immutable, max-age=31536000");
}

#[tokio::test]
async fn dedup_never_tells_one_owner_of_the_chunks_of_another() {
    let tenants = tenants().await;
    // The first chunk of a file may be asked for.
    let path = format!("/v1/chunks/default/{}", tenants.xorb.chunk_hash(0));
    let ask = async |token: &str| send(&tenants.client, "GET", &path, Some(token), Vec::new()).await.status;
    assert_eq!(ask(&tenants.writers[0]).await, 200);
    assert_eq!(ask(&issue(&tenants.server, "read", "models/a/two", &[])).await, 200, "the owner is models/a");
    assert_eq!(ask(&tenants.writers[1]).await, 404, "models/b uses a part of that xorb, but has not uploaded it");
    assert_eq!(ask(&issue(&tenants.server, "read", "*", &[])).await, 200);
}

#[tokio::test]
async fn foreign_single_chunk_needs_its_bytes_not_its_hashes() {
    let (server, mut rng) = (guarded(), rng());
    let client = server.client();
    let writers = ["models/a/one", "models/b/one"].map(|repo| issue(&server, "write", repo, &[]));
    let (lone, other) = (Xorb::mixed(&mut rng, 1), Xorb::mixed(&mut rng, 1));
    for xorb in [&lone, &other] {
        let stored = send(&client, "POST", &xorb.xet_path(), Some(&writers[0]), xorb.bytes.to_vec()).await;
        assert_eq!(stored.status, 200);
    }
    assert_eq!(lone.hash(), lone.chunk_hash(0), "the hash of the xorb is all that a verification hash takes");
    let shard = upload_shard(&lone, 0, 1);
    let register =
        async |writer: &str, shard: &[u8]| send(&client, "POST", "/v1/shards", Some(writer), shard.to_vec()).await;
    // A client that only knows hashes, be it all of them, gets the response for a xorb that does not exist. So it does for the
    // length: a guess that is right is told like one that is wrong, also where the shard has no file.
    let known = shard.clone().claiming(sha256_of(&lone.raw));
    let mut listing = shard.clone();
    listing.shard.files.clear();
    let mut files = shard.clone();
    files.shard.xorbs.clear();
    let guessed = files.clone().with_term_len(1);
    for guess in [&shard, &known, &listing, &files, &guessed] {
        register(&writers[1], &guess.bytes()).await.problem(400, "missing_xorb");
    }
    assert_eq!(register(&writers[0], &shard.bytes()).await.status, 200, "its owner needs no more proof");
    register(&writers[1], &known.bytes()).await.problem(400, "missing_xorb");
    // A client that uploads it has it.
    for (xorb, shard) in [(&lone, &known), (&other, &upload_shard(&other, 0, 1))] {
        let again = send(&client, "POST", &xorb.xet_path(), Some(&writers[1]), xorb.bytes.to_vec()).await;
        assert_eq!(again.status, 200);
        assert_eq!(register(&writers[1], &shard.bytes()).await.status, 200);
    }
}

#[tokio::test]
async fn false_statements_about_foreign_xorbs_tell_nothing() {
    let (server, mut rng) = (guarded(), rng());
    let client = server.client();
    let [owner, stranger] = ["models/a/one", "models/b/one"].map(|repo| issue(&server, "write", repo, &[]));
    let xorbs: Vec<_> = (0..2).map(|_| Xorb::mixed(&mut rng, 5)).collect();
    let (stored, absent) = (&xorbs[0], &xorbs[1]);
    let response = send(&client, "POST", &stored.xet_path(), Some(&owner), stored.bytes.to_vec()).await;
    assert_eq!(response.status, 200);
    let guesses = |xorb: &Xorb| {
        let good = upload_shard(xorb, 0, 3);
        let mut listed = good.clone();
        listed.shard.files.clear();
        listed.shard.xorbs[0].chunks.pop();
        listed.shard.xorbs[0].raw_len = listed.shard.xorbs[0].chunks.iter().map(|chunk| chunk.raw_len).sum();
        let mut unlisted = good;
        unlisted.shard.xorbs.clear();
        [listed, unlisted.clone().with_wrong_proof(), unlisted.with_term_len(1)]
    };
    let register =
        async |token: &str, shard: &UploadShard| send(&client, "POST", "/v1/shards", Some(token), shard.bytes()).await;
    for (guess, same) in guesses(stored).iter().zip(&guesses(absent)) {
        let (of_stored, of_absent) = (register(&stranger, guess).await, register(&stranger, same).await);
        let [told, expected] = [(of_stored, stored), (of_absent, absent)].map(|(response, xorb)| {
            let problem = response.problem(400, "missing_xorb");
            problem["detail"].as_str().unwrap().replace(&xorb.hash(), "H")
        });
        assert_eq!(told, expected);
    }
    // Its owner is told what is wrong, and who knows the chunks needs no upload.
    for (guess, code) in guesses(stored).iter().zip(["shard_mismatch", "no_proof", "shard_mismatch"]) {
        register(&owner, guess).await.problem(400, code);
    }
    assert_eq!(register(&stranger, &upload_shard(stored, 0, 3)).await.status, 200);
}

/// Also if a later xorb of the shard has one chunk and belongs to another owner.
#[tokio::test]
async fn error_names_the_first_missing_xorb_whatever_else_exists() {
    let (server, mut rng) = (guarded(), rng());
    let client = server.client();
    let [owner, stranger] = ["models/a/one", "models/b/one"].map(|repo| issue(&server, "write", repo, &[]));
    let [absent, other, stored] = std::array::from_fn(|_| Xorb::mixed(&mut rng, 1));
    let response = send(&client, "POST", &stored.xet_path(), Some(&owner), stored.bytes.to_vec()).await;
    assert_eq!(response.status, 200);
    let named = async |xorbs: [&Xorb; 2], are_listed: bool| {
        let [mut shard, second] = xorbs.map(|xorb| upload_shard(xorb, 0, 1));
        shard.shard.files.extend(second.shard.files);
        shard.shard.xorbs.extend(second.shard.xorbs);
        if !are_listed {
            shard.shard.xorbs.clear();
        }
        let response = send(&client, "POST", "/v1/shards", Some(&stranger), shard.bytes()).await;
        response.problem(400, "missing_xorb")["xorb"].as_str().unwrap().to_owned()
    };
    for second in [&other, &stored] {
        for are_listed in [false, true] {
            assert_eq!(named([&absent, second], are_listed).await, absent.hash());
            assert_eq!(named([second, &absent], are_listed).await, second.hash());
        }
    }
}

#[tokio::test]
async fn token_of_a_second_is_still_accepted_at_its_end() {
    let server = guarded();
    let short = issue(&server, "read", "*", &["--ttl", "1s"]);
    let output = token_command(&server, &["inspect", &short, "--json"]);
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a line of JSON");
    assert_eq!((told["scope"].as_str(), told["repo"].as_str()), (Some("read"), Some("*")));
    let (issued, expires) = (told["issued_unix_secs"].as_u64().unwrap(), told["expires_unix_secs"].as_u64().unwrap());
    assert_eq!(expires - issued, 1);
    // That it is accepted for 60 seconds after its expiry, and then refused, is tested with a clock
    // that can be moved (`service::access`).
    let zeros = "0".repeat(64);
    let response =
        send(&server.client(), "GET", &format!("/v1/reconstructions/{zeros}"), Some(&short), Vec::new()).await;
    assert_eq!(response.status, 200, "the empty file is there for everybody with a token");
}

#[tokio::test]
async fn rotated_key_is_used_at_once_and_a_dropped_one_refused() {
    let server = guarded();
    let client = server.client();
    let path = format!("/v1/reconstructions/{}", "0".repeat(64));
    let get = async |token: &str| send(&client, "GET", &path, Some(token), Vec::new()).await.status;
    let old = issue(&server, "read", "*", &[]);
    assert_eq!(get(&old).await, 200);
    let writer = client.bearing(&issue(&server, "write", "models/a/one", &[]));
    let xorb = Xorb::mixed(&mut rng(), 3);
    let shard = upload_shard(&xorb, 0, 3);
    assert_eq!(writer.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    assert_eq!(writer.post("/v1/shards", shard.bytes()).await.status, 200);
    let data = first_fetch(&writer, &shard.file_hash()).await;
    let get_data = async || fetch(&client, &data).await.status;
    assert_eq!(get_data().await, 206);
    assert!(token_command(&server, &["rotate-key"]).status.success());
    let new = issue(&server, "read", "*", &[]);
    assert_eq!((get(&new).await, get(&old).await, get_data().await), (200, 200, 206));
    assert!(token_command(&server, &["rotate-key", "--keep", "0"]).status.success());
    let newest = issue(&server, "read", "*", &[]);
    assert_eq!((get(&newest).await, get(&new).await, get(&old).await, get_data().await), (200, 401, 401, 403));
    let inspected = token_command(&server, &["inspect", &old]);
    assert_eq!(inspected.status.code(), Some(1), "{inspected:?}");
    let server = server.restart_with(|start| start.with("auth", "token"));
    let status = send(&server.client(), "GET", &path, Some(&newest), Vec::new()).await.status;
    assert_eq!(status, 200, "keys survive a restart");
}

#[tokio::test]
async fn nothing_of_a_token_or_a_signature_is_in_the_log() {
    let server = Start::default().with("auth", "token").with("grants", true).with("log", "trace").start();
    let client = server.client();
    let writer = issue(&server, "write", "models/a/one", &["--subject", "alice"]);
    let mut rng = rng();
    let xorb = Xorb::mixed(&mut rng, 3);
    let path = format!("/v1/xorbs/default/{}", xorb.hash());
    assert_eq!(send(&client, "POST", &path, Some(&writer), xorb.bytes.to_vec()).await.status, 200);
    let shard = upload_shard(&xorb, 0, 3);
    assert_eq!(send(&client, "POST", "/v1/shards", Some(&writer), shard.clone().bytes()).await.status, 200);
    let altered = format!("{}AAAA", &writer[..writer.len() - 4]);
    assert_eq!(send(&client, "POST", "/v1/shards", Some(&altered), Vec::new()).await.status, 401);
    let plan =
        send(&client, "GET", &format!("/v1/reconstructions/{}", shard.file_hash()), Some(&writer), Vec::new()).await;
    let url = plan.json()["fetch_info"][&xorb.hash()][0]["url"].as_str().expect("a URL").to_owned();
    let signature = url.split_once("?s=").expect("a signature").1;
    assert_eq!(client.get(client.path_of(&url)).await.status, 403, "without a range");
    let granted = Xorb::mixed(&mut rng, 3);
    let grant = Grant::of(&client.bearing(&writer), &granted).await;
    assert_eq!(grant.send(&client, granted.bytes.clone()).await.status, 200);
    assert_eq!(grant.commit(&client.bearing(&writer)).await.status, 200);
    // Only its end is secret: what it says, the id of the commit says as well.
    let upload = &grant.path[grant.path.len() - 40..];
    let (_, log) = {
        server.terminate();
        server.exit().await
    };
    assert!(log.contains("models/a/one") && log.contains("alice"), "who did what is there");
    for secret in [&writer[5..], &altered[5..], signature, upload] {
        for piece in [&secret[..20], &secret[secret.len() - 24..secret.len() - 4]] {
            assert!(!log.contains(piece), "the log has {piece}");
        }
    }
}
