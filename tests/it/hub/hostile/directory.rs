//! A directory with as many entries as one may have.

use serde_json::{Value, json};

use crate::hub::{commit, commit_body, create, delete, head, next_page, put};
use crate::support::{Client, TestServer, sha256_of};

/// Maximum number of entries of a directory.
const MAX_COUNT: usize = 100_000;

/// Maximum number of changes of a commit.
const MAX_CHANGE_COUNT: usize = 25_000;

/// A line that puts the empty file, which takes no upload.
fn empty(path: &str) -> Value {
    let oid = sha256_of(b"").to_string();
    json!({ "key": "lfsFile", "value": { "path": path, "algo": "sha256", "oid": oid, "size": 0 } })
}

fn name(number: usize) -> String {
    format!("d/{number:05}.bin")
}

/// A model whose directory `d` is full.
async fn fill(client: &Client) {
    create(client, "model").await;
    let numbers: Vec<usize> = (0..MAX_COUNT).collect();
    for some in numbers.chunks(MAX_CHANGE_COUNT) {
        let lines: Vec<Value> = some.iter().map(|number| empty(&name(*number))).collect();
        assert_eq!(commit(client, "me/model", None, &lines).await.0, 200, "entries from {}", some[0]);
    }
}

#[tokio::test]
async fn full_directory_takes_no_entry_more_and_is_listed() {
    let server = TestServer::start();
    let client = server.client();
    fill(&client).await;
    let before = head(&client, "me/model").await;
    let copy = json!({ "key": "copyFile", "value": { "path": "d/more", "srcPath": ".gitattributes" } });
    for more in [put("d/more", b"x"), empty("d/more"), copy, put("d/more/x", b"x")] {
        let body = commit_body("a commit", None, std::slice::from_ref(&more));
        let refused = client.post(super::COMMIT, body).await.problem(400, "invalid_request");
        assert_eq!(refused["detail"], "A directory has at most 100000 entries.", "{more}");
    }
    assert_eq!(head(&client, "me/model").await, before, "no refusal moves the branch");
    // A file in place of another one is no entry more, and neither is one after a deletion.
    let lines = [put(&name(7), b"seven"), delete("deletedFile", &name(8)), put("d/more", b"more")];
    assert_eq!(commit(&client, "me/model", None, &lines).await.0, 200);
    for (path, contents) in [(name(7), &b"seven"[..]), (name(9), b""), ("d/more".to_owned(), b"more")] {
        let found = client.get(&format!("/me/model/resolve/main/{path}")).await;
        assert_eq!((found.status, &found.body[..]), (200, contents), "{path}");
    }
    // A page has its entries and no more, whatever the client asks for.
    let page = client.get("/api/models/me/model/tree/main/d?limit=100000").await;
    assert_eq!(page.json().as_array().unwrap().len(), 1000);
    let next = client.get(&next_page(&client, &page).unwrap()).await.json();
    assert_eq!(next[0]["path"], name(1001), "without the deleted file");
    let described = client.get("/api/models/me/model").await.json();
    assert_eq!(described["siblings"].as_array().unwrap().len(), 50_001);
}
