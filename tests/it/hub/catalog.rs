//! Lists of repositories: what they are searched for, their order, and what their owner sees.

use serde_json::{Value, json};

use super::accounts::{accounts, client_of};
use super::{commit, create, next_page, put};
use crate::support::{Client, TestServer, guarded, send};

async fn with_card(client: &Client, name: &str, metadata: &str) {
    create(client, name).await;
    let card = format!("---\n{metadata}\n---\n# {name}\n");
    assert_eq!(commit(client, &format!("me/{name}"), None, &[put("README.md", card.as_bytes())]).await.0, 200);
}

/// All pages of a list.
async fn all(client: &Client, query: &str) -> Vec<Value> {
    let (mut found, mut next) = (Vec::new(), Some(format!("/api/models?{query}")));
    while let Some(path) = next.take() {
        let page = client.get(&path).await;
        assert_eq!(page.status, 200, "{path}");
        found.extend(page.json().as_array().unwrap().iter().cloned());
        next = next_page(client, &page);
    }
    found
}

async fn names(client: &Client, query: &str) -> Vec<String> {
    let found = all(client, query).await;
    found.iter().map(|repo| repo["id"].as_str().unwrap().trim_start_matches("me/").to_owned()).collect()
}

#[tokio::test]
async fn repositories_are_found_by_tags_name_and_namespace() {
    let server = TestServer::start();
    let client = server.client();
    with_card(&client, "bert", "tags: [small, new]\npipeline_tag: fill-mask\nlibrary_name: transformers").await;
    with_card(&client, "gpt", "tags: [small]\npipeline_tag: text-generation\nlicense: mit").await;
    create(&client, "none").await;
    for (query, expected) in [
        ("", vec!["none", "gpt", "bert"]),
        ("filter=small", vec!["gpt", "bert"]),
        ("filter=small&filter=new", vec!["bert"]),
        ("filter=small,license:mit", vec!["gpt"]),
        ("pipeline_tag=fill-mask", vec!["bert"]),
        ("library=transformers&filter=small", vec!["bert"]),
        ("filter=smal", vec![]),
        ("search=ER&filter=small", vec!["bert"]),
        ("author=ME&search=n", vec!["none"]),
        ("author=you", vec![]),
        // Each page has at most one, and no tag is on the first.
        ("filter=new&limit=1", vec!["bert"]),
        ("limit=1", vec!["none", "gpt", "bert"]),
    ] {
        assert_eq!(names(&client, query).await, expected, "{query}");
    }
    let found = all(&client, "search=gpt").await.remove(0);
    assert_eq!((&found["pipeline_tag"], &found["tags"][1]), (&json!("text-generation"), &json!("text-generation")));
    assert_eq!((&found["cardData"], found["sha"].as_str().unwrap().len()), (&json!(null), 40));
    let full = all(&client, "search=gpt&cardData=True").await.remove(0);
    assert_eq!(full["cardData"]["license"], "mit");
    // The card of the head counts.
    let card = b"---\ntags: [changed]\n---\n";
    assert_eq!(commit(&client, "me/gpt", None, &[put("README.md", card)]).await.0, 200);
    assert_eq!(names(&client, "filter=changed").await, ["gpt"]);
    assert_eq!(names(&client, "filter=small").await, ["bert"]);
}

/// A page ends before its metadata take much memory, and the next one goes on.
#[tokio::test]
async fn long_metadata_make_more_pages() {
    let server = TestServer::start();
    let client = server.client();
    let long = format!("text: {}", "x".repeat(60_000));
    for number in 0..12 {
        with_card(&client, &format!("m{number}"), &long).await;
    }
    let first = client.get("/api/models?full=true").await;
    let count = first.json().as_array().unwrap().len();
    assert!((2..12).contains(&count), "{count} on the first page");
    assert_eq!(all(&client, "full=true").await.len(), 12);
    let tags: Vec<String> = (0..101).map(|number| format!("t{number}")).collect();
    client.get(&format!("/api/models?filter={}", tags.join(","))).await.problem(400, "invalid_request");
    assert_eq!(all(&client, "gated=True").await, [Value::Null; 0]);
    let expanded = all(&client, "search=m11&expand=cardData").await.remove(0);
    assert_eq!(expanded["cardData"]["text"].as_str().unwrap().len(), 60_000);
}

#[tokio::test]
async fn last_changed_repositories_are_first_if_asked_for() {
    let server = TestServer::start();
    let client = server.client();
    for name in ["a", "b", "c"] {
        create(&client, name).await;
    }
    assert_eq!(commit(&client, "me/a", None, &[put("x", b"x")]).await.0, 200);
    for limit in 1..4 {
        assert_eq!(names(&client, &format!("sort=lastModified&direction=-1&limit={limit}")).await, ["a", "c", "b"]);
        assert_eq!(names(&client, &format!("sort=createdAt&limit={limit}")).await, ["c", "b", "a"]);
    }
    let too_late = format!("cursor={}-me", u64::MAX);
    for query in [
        "sort=lastModified&cursor=5",
        "sort=lastModified&cursor=x-5",
        "cursor=-me",
        "cursor=x",
        "cursor=5-%00",
        "cursor=5-M",
        &too_late,
    ] {
        client.get(&format!("/api/models?{query}")).await.problem(400, "invalid_request");
    }
}

/// The page and the place of the next one are those of a server that has only what is shown.
#[tokio::test]
async fn pages_do_not_tell_how_many_repositories_are_hidden() {
    let server = guarded();
    for user in ["alice", "bob"] {
        accounts(&server, &["user", "add", user]);
    }
    let (alice, bob) = (client_of(&server, "alice", "write"), client_of(&server, "bob", "read"));
    for (name, is_private) in [("a", true), ("b", false), ("c", true), ("d", false), ("e", true)] {
        let body = json!({ "name": name, "type": "model", "private": is_private }).to_string();
        assert_eq!(send(&alice, "POST", "/api/repos/create", None, body.into_bytes()).await.status, 200);
    }
    assert_eq!(all(&alice, "limit=1").await.len(), 5);
    for sort in ["createdAt", "lastModified"] {
        let page = bob.get(&format!("/api/models?sort={sort}&limit=1")).await;
        assert_eq!(page.json()[0]["id"], "alice/d");
        let next = next_page(&bob, &page).unwrap();
        assert!(next.ends_with("-alice%2Fd"), "{next}");
        let rest = bob.get(&next).await;
        // Only a hidden one comes after it: nothing says so.
        assert_eq!((&rest.json()[0]["id"], rest.json().as_array().unwrap().len()), (&json!("alice/b"), 1), "{sort}");
        assert_eq!(next_page(&bob, &rest), None);
    }
}

#[tokio::test]
async fn owner_sees_what_the_repositories_of_a_namespace_store() {
    let server = guarded();
    for user in ["alice", "bob"] {
        accounts(&server, &["user", "add", user]);
    }
    accounts(&server, &["org", "add", "acme", "--member", "alice:write"]);
    let (alice, bob) = (client_of(&server, "alice", "write"), client_of(&server, "bob", "write"));
    // The server may have read the accounts when she was none: it reads them again within a second.
    let is_member = async |user: &Client| user.get("/api/whoami-v2").await.json()["orgs"][0]["name"] == "acme";
    alice.eventually("she is a member", is_member).await;
    for (organization, kind, name, is_private) in
        [(None, "model", "m", false), (None, "dataset", "d", true), (Some("acme"), "model", "n", false)]
    {
        let body = json!({ "name": name, "organization": organization, "type": kind, "private": is_private });
        assert_eq!(send(&alice, "POST", "/api/repos/create", None, body.to_string().into_bytes()).await.status, 200);
    }
    let contents = [7; 5000];
    assert_eq!(commit(&alice, "alice/m", None, &[put("a.bin", &contents)]).await.0, 200);
    let own = alice.get("/api/settings/repositories").await.json();
    let seen = |repo: &Value| (repo["id"].clone(), repo["type"].clone(), repo["visibility"].clone());
    let own = own.as_array().unwrap();
    assert_eq!(
        own.iter().map(seen).collect::<Vec<_>>(),
        [(json!("alice/m"), json!("model"), json!("public")), (json!("alice/d"), json!("dataset"), json!("private")),]
    );
    let stored = |index: usize| own[index]["storage"].as_u64().unwrap();
    assert!(stored(0) > stored(1) && stored(1) > 0, "{own:?}");
    let percent: f64 = own.iter().map(|repo| repo["storagePercent"].as_f64().unwrap()).sum();
    assert!((99.0..=100.0).contains(&percent), "{own:?}");
    let of_acme = "/api/organizations/acme/settings/repositories";
    assert_eq!(alice.get(of_acme).await.json()[0]["id"], "acme/n");
    // What is public is not thereby his.
    assert_eq!(
        (bob.get(of_acme).await.json(), bob.get("/api/settings/repositories").await.json()),
        (json!([]), json!([]))
    );
}
