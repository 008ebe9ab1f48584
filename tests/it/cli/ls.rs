//! `zorb ls`, and the routes that it reads.

use serde_json::{Value, json};

use super::Directory;
use super::network::{Script, response};
use super::push::push;
use crate::support::{TestServer, random_bytes, rng};

#[tokio::test]
async fn files_and_xorbs_are_listed_by_page_with_their_details() {
    let (directory, server, mut rng) = (Directory::new(), TestServer::start(), rng());
    directory.zorb(&["ls", "--server", server.url()]).ok();
    // More than a page holds.
    std::fs::create_dir(directory.path("many")).unwrap();
    for index in 0..1203 {
        directory.write(&format!("many/{index}"), format!("file {index}").as_bytes());
    }
    directory.write("large", &random_bytes(&mut rng, 300_000));
    let (mut pushed, _) = push(&directory, &server, &["many", "large"]);
    push(&directory, &server, &["large"]);

    let listed = directory.zorb(&["ls", "files", "--json", "--server", server.url()]).ok().records();
    let key = |file: &Value| file["hash"].as_str().unwrap().to_owned();
    let mut sorted = listed.clone();
    sorted.sort_by_key(key);
    pushed.sort_by_key(key);
    assert_eq!(listed.len(), 1204);
    for (listed, pushed) in sorted.iter().zip(&pushed) {
        assert_eq!(
            (&listed["hash"], &listed["len"], &listed["sha256"]),
            (&pushed["hash"], &pushed["len"], &pushed["sha256"])
        );
        assert!(listed["registered_unix_secs"].as_u64().unwrap() > 1_700_000_000);
    }
    let text = directory.zorb(&["ls", "--server", server.url()]).ok().text();
    let large = pushed.iter().find(|file| file["path"] == "large").unwrap();
    let line = format!("{}   293.0 KiB  {}\n", large["hash"].as_str().unwrap(), large["sha256"].as_str().unwrap());
    assert!(text.contains(&line), "no {line:?}");

    let xorbs = directory.zorb(&["ls", "xorbs", "--json", "--server", server.url()]).ok().records();
    let [xorb] = xorbs.try_into().unwrap();
    assert_eq!(server.blobs(), [xorb["hash"].as_str().unwrap()]);
    let chunks = server.client().get(&format!("/xorbs/{}/chunks", xorb["hash"].as_str().unwrap())).await.json();
    assert_eq!(xorb["chunks"], chunks["chunks"].as_array().unwrap().len());
    assert_eq!((&xorb["serialized_len"], &xorb["raw_len"]), (&chunks["serialized_len"], &chunks["raw_len"]));
}

#[tokio::test]
async fn a_page_has_a_limit_a_place_and_a_next_one() {
    let (directory, server) = (Directory::new(), TestServer::start());
    for name in ["a", "b", "c"] {
        directory.write(name, name.as_bytes());
    }
    push(&directory, &server, &["a", "b", "c"]);
    let client = server.client();
    let all = client.get("/v1/files").await.json();
    assert_eq!((all["files"].as_array().unwrap().len(), &all["next"]), (3, &Value::Null));
    let first = client.get("/v1/files?limit=2").await.json();
    assert_eq!(first["files"], json!(all["files"].as_array().unwrap()[..2]));
    assert_eq!(first["next"], all["files"][1]["hash"]);
    let rest = client.get(&format!("/v1/files?limit=9&after={}", first["next"].as_str().unwrap())).await.json();
    assert_eq!((&rest["files"], &rest["next"]), (&json!([all["files"][2]]), &Value::Null));
    assert_eq!(client.get("/v1/files?limit=4000000000").await.json(), all);
    for route in ["/v1/files", "/v1/xorbs"] {
        client.get(&format!("{route}?after=xyz")).await.problem(400, "invalid_hash");
        for limit in ["0", "-1", "x", "4294967296"] {
            client.get(&format!("{route}?limit={limit}")).await.problem(400, "invalid_request");
        }
    }
}

#[test]
fn a_list_that_is_damaged_or_would_never_end_is_refused() {
    let directory = Directory::new();
    let entry = |hash: &str| json!({"hash": hash, "len": 1, "sha256": null, "registered_unix_secs": 1});
    let (one, two) = ("1".repeat(64), "2".repeat(64));
    let odd = json!({"hash": one, "len": 1, "sha256": "\u{1b}[2J", "registered_unix_secs": 1});
    for page in [
        json!({"files": [entry(&one)], "next": one}),
        json!({"files": [entry(&two), entry(&one)], "next": null}),
        json!({"files": [entry("\u{1b}[2J")], "next": null}),
        json!({"files": [odd], "next": null}),
        json!({"files": [entry(&one)], "next": two}),
        json!({"files": [], "next": one}),
        json!({"next": null}),
    ] {
        let body = page.to_string();
        let script = Script::start(move |_, _| response("200 OK", &[], body.as_bytes()));
        let ran = directory.zorb(&["ls", "--server", &script.url]).failed(1, &["does not respond like a zorb server"]);
        assert!(script.requests().len() <= 2 && !ran.text().contains('\u{1b}'), "{page}");
    }
}
