//! Metadata of a README.md that take much memory, stack or time, or that two readers read in two
//! ways.

use serde_json::{Value, json};

use crate::hub::{commit, create, put};
use crate::support::TestServer;

/// Maximum length of metadata in bytes.
const MAX_LEN: usize = 64 << 10;

/// So many lists in each other.
fn lists(count: usize) -> String {
    format!("a: {}{}", "[".repeat(count), "]".repeat(count))
}

/// So many maps in each other, with something before each.
fn maps(count: usize, before: &str) -> String {
    let begin = format!("{before}{{a: ");
    format!("a: {}1{}", begin.repeat(count), "}".repeat(count))
}

/// Metadata that are refused, by what is wrong with them.
fn hostile() -> Vec<(&'static str, String)> {
    // Each of nine lists has the one before ten times.
    let laughs: String =
        (1..10).map(|n| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(", "))).collect();
    vec![
        ("a billion laughs", format!("a0: &a0 lol\n{laughs}")),
        ("one alias", "a: &a x\nb: *a".to_owned()),
        ("an alias of itself", "a: &a [*a]".to_owned()),
        ("a merge", "a: &a {b: c}\nd:\n  <<: *a".to_owned()),
        ("32 lists in each other", lists(32)),
        ("32 maps in each other", maps(32, "")),
        // Each level takes more of the stack than a list.
        ("65 maps in each other", maps(65, "")),
        ("65 maps with tags", maps(65, "!x ")),
        ("maps and lists", format!("a: {}1{}", "[{a: ".repeat(33), "}]".repeat(33))),
        ("maps as keys", format!("a: {}1{}", "{? ".repeat(65), "}".repeat(65))),
        ("as many lists as there is space for", lists(30_000)),
        ("as many maps as there is space for", maps(12_000, "")),
        ("64 KiB and a byte", format!("a: {}", "x".repeat(MAX_LEN - "a: \n".len() + 1))),
        ("20 001 values", format!("a: [{}]", "1,".repeat(20_001))),
        ("two values of one name", "license: mit\nlicense: other".to_owned()),
        ("no map", "- license: mit".to_owned()),
        ("two documents", "license: mit\n...\nlicense: other".to_owned()),
        ("a NUL", "license: \"a\0b\"".to_owned()),
        ("half of a character", "license: \"\\ud800\"".to_owned()),
        ("bytes that are no text", "license: !!binary gIGC".to_owned()),
    ]
}

#[tokio::test]
async fn hostile_metadata_are_refused_and_hide_no_repository() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    for (what, yaml) in hostile() {
        let card = format!("---\n{yaml}\n---\n# A model\n");
        let refused = client.post("/api/validate-yaml", json!({ "content": card }).to_string()).await;
        let errors = refused.problem(400, "invalid_request")["errors"].clone();
        assert!(errors[0]["message"].as_str().is_some_and(|message| message.len() < 400), "{what}: {errors}");
        // A commit takes any text, and the description is one without metadata.
        assert_eq!(commit(&client, "me/model", None, &[put("README.md", card.as_bytes())]).await.0, 200, "{what}");
        let described = client.get("/api/models/me/model").await.json();
        assert_eq!((&described["id"], &described["cardData"]), (&json!("me/model"), &Value::Null), "{what}");
        let listed = client.get("/api/models?full=true&search=model").await.json();
        assert_eq!((&listed[0]["id"], &listed[0]["tags"]), (&json!("me/model"), &json!([])), "{what}: {listed}");
    }
}

#[tokio::test]
async fn metadata_at_each_limit_are_described() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    for (what, yaml, expected) in [
        ("64 KiB", format!("a: {}", "x".repeat(MAX_LEN - "a: \n".len())), None),
        ("31 lists in each other", lists(31), None),
        ("31 maps in each other", maps(31, ""), None),
        ("19 000 values", format!("a: [{}]", "1,".repeat(19_000)), None),
        // Tags mean nothing: no file is read, and no program runs.
        ("a file of the server", "a: !include /etc/passwd".to_owned(), Some(json!("/etc/passwd"))),
        ("a program", "a: !!python/object/apply:os.system [id]".to_owned(), Some(json!(["id"]))),
    ] {
        let card = format!("---\n{yaml}\n---\n");
        let response = client.post("/api/validate-yaml", json!({ "content": card }).to_string()).await;
        assert_eq!(response.status, 200, "{what}: {:?}", response.body);
        assert_eq!(commit(&client, "me/model", None, &[put("README.md", card.as_bytes())]).await.0, 200, "{what}");
        let described = client.get("/api/models/me/model").await.json();
        let found = &described["cardData"]["a"];
        assert!(expected.as_ref().map_or(!found.is_null(), |expected| expected == found), "{what}: {found}");
    }
}
