//! Downloads: which chunks, in which form, which bytes of them, and every header of the responses.

use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::json;
use zorb::format::compression::Policy;

use crate::support::{Client, Response, TestServer, Xorb, rng};

/// Chunks of the xorb that these tests store.
const COUNT: u32 = 9;

/// A server that has one xorb.
async fn stocked() -> (TestServer, Client, Xorb) {
    let (server, mut rng) = (TestServer::start(), rng());
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng, 9));
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    (server, client, xorb)
}

/// One resource: a path with its query, its chunks, and its bytes.
struct Resource<'a> {
    path: String,
    chunks: (u32, u32),
    offset: usize,
    bytes: &'a [u8],
}

/// Chunks [start, end) in one form; `query` is a way to ask for them.
fn resource<'a>(xorb: &'a Xorb, query: &str, chunks: (u32, u32), is_raw: bool) -> Resource<'a> {
    let (start, end) = chunks;
    let (bytes, before) = match is_raw {
        false => (xorb.serialized(start, end), if start == 0 { 0 } else { xorb.serialized(0, start).len() }),
        true => (xorb.raw(start, end), if start == 0 { 0 } else { xorb.raw(0, start).len() }),
    };
    let form = if is_raw { "format=raw" } else { "format=xorb" };
    let query = [query, form].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("&");
    Resource { path: format!("{}?{query}", xorb.path()), chunks, offset: before, bytes }
}

/// The headers that every response about the resource has, whatever part of it was asked for.
fn check_description(headers: &HeaderMap, resource: &Resource<'_>) {
    let header = |name: &str| headers.get(name).unwrap_or_else(|| panic!("no {name}")).to_str().expect("text");
    let (start, end) = resource.chunks;
    assert_eq!(header("x-xorb-chunk-range"), format!("{start}-{end}"));
    let (from, to) = (resource.offset, resource.offset + resource.bytes.len());
    assert_eq!(header("x-xorb-byte-range"), format!("{from}-{to}"));
    assert_eq!(header("accept-ranges"), "bytes");
    let cache: Vec<_> = header("cache-control").split(", ").collect();
    assert!(cache.contains(&"public") && cache.contains(&"immutable"), "{cache:?}");
    let tag = header("etag");
    assert!(
        tag.len() > 2 && tag.starts_with('"') && tag.ends_with('"') && !tag[1..tag.len() - 1].contains('"'),
        "{tag}"
    );
    for absent in ["content-encoding", "transfer-encoding", "last-modified", "set-cookie"] {
        assert!(!headers.contains_key(absent), "{absent}");
    }
}

/// GET and HEAD of a whole resource.
async fn check_whole(client: &Client, resource: &Resource<'_>) {
    let get = client.get_with(&resource.path, &[("accept-encoding", "gzip, zstd, br")]).await;
    assert_eq!(get.status, 200, "{}: {:?}", resource.path, get.body);
    assert!(get.body == resource.bytes, "{}", resource.path);
    let head = client.head(&resource.path).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    for response in [&get, &head] {
        check_description(&response.headers, resource);
        assert_eq!(response.header("content-length"), resource.bytes.len().to_string());
        assert_eq!(response.header("content-type"), "application/octet-stream");
        assert!(!response.headers.contains_key("content-range"));
    }
    assert_eq!(get.header("etag"), head.header("etag"));
}

#[tokio::test]
async fn every_way_to_ask_for_chunks_gives_exactly_their_bytes() {
    let (_server, client, xorb) = stocked().await;
    for is_raw in [false, true] {
        for (query, chunks) in [
            ("", (0, COUNT)),
            ("range=0-9", (0, 9)),
            ("range=2-5", (2, 5)),
            ("range=8-9", (8, 9)),
            ("range=0-1", (0, 1)),
            ("range=3-", (3, 9)),
            ("range=0-", (0, 9)),
            ("range=-1", (8, 9)),
            ("range=-9", (0, 9)),
            ("range=0", (0, 1)),
            ("range=8", (8, 9)),
            ("range=007-0008", (7, 8)),
            ("range=%32-%35", (2, 5)),
            ("signature=x&range=2-5&unknown", (2, 5)),
        ] {
            check_whole(&client, &resource(&xorb, query, chunks, is_raw)).await;
        }
    }
    // Serialized is the default.
    let plain = client.get(&format!("{}?range=2-5", xorb.path())).await;
    assert_eq!(plain.body, xorb.serialized(2, 5));
}

#[tokio::test]
async fn chunk_range_past_the_end_is_416_and_a_malformed_one_400() {
    let (_server, client, xorb) = stocked().await;
    for method in [Method::GET, Method::HEAD] {
        for (query, status) in [
            ("range=0-10", 416),
            ("range=9-10", 416),
            ("range=9", 416),
            ("range=9-", 416),
            ("range=-10", 416),
            ("range=4294967296-4294967297", 416),
            ("range=0-18446744073709551616", 416),
            ("range=", 400),
            ("range=-", 400),
            ("range=-0", 400),
            ("range=5-5", 400),
            ("range=5-4", 400),
            ("range=a-b", 400),
            ("range=1-2-3", 400),
            ("range=1-2,3-4", 400),
            ("range=%2B1", 400),
            ("range=+1", 400),
            ("range=1-2&range=1-2", 400),
            ("format=tar", 400),
            ("format=", 400),
            ("format=raw&format=raw", 400),
            ("range=%ff", 400),
        ] {
            let response = Response::of(client.request(method.clone(), &format!("{}?{query}", xorb.path()))).await;
            assert_eq!(response.status, status, "{method} {query}");
            assert_eq!(response.header("content-type"), "application/problem+json");
            if method == Method::HEAD {
                assert!(response.body.is_empty());
            } else if status == 416 {
                assert_eq!(response.problem(416, "range_not_satisfiable")["chunks"], COUNT);
            } else {
                response.problem(400, "invalid_range");
            }
        }
    }
}

#[tokio::test]
async fn the_aliases_give_the_same_responses() {
    let (_server, client, xorb) = stocked().await;
    let hash = xorb.hash();
    for query in ["", "?range=2-5", "?range=-3&format=raw"] {
        let original = client.get(&format!("/xorbs/{hash}{query}")).await;
        for path in [
            format!("/v1/xorbs/default/{hash}{query}"),
            format!("/v1/xorbs/default-merkledb/{hash}{query}"),
            format!("//v1/xorbs/default/{hash}{query}"),
            format!("/xorbs/{}{query}", hash.to_uppercase()),
        ] {
            for response in [client.get(&path).await, client.head(&path).await] {
                assert_eq!(response.status, 200, "{path}");
                assert!(response.body.is_empty() || response.body == original.body);
                for (name, value) in
                    original.headers.iter().filter(|(name, _)| !["date", "x-request-id"].contains(&name.as_str()))
                {
                    assert_eq!(response.headers.get(name), Some(value), "{name} of {path}");
                }
            }
        }
    }
}

#[tokio::test]
async fn the_list_of_chunks_says_where_each_one_is() {
    let (_server, client, xorb) = stocked().await;
    let response = client.get(&format!("{}/chunks", xorb.path())).await;
    assert_eq!((response.status, response.header("content-type")), (200, "application/json"));
    let (mut serialized_offset, mut raw_offset) = (0, 0);
    let chunks: Vec<_> = (0..COUNT)
        .map(|index| {
            let (serialized, raw) = (xorb.serialized(index, index + 1), xorb.raw(index, index + 1));
            let chunk = json!({
                "index": index,
                "hash": zorb::format::ChunkHash::of(raw).to_string(),
                "scheme": (["none", "lz4", "bg4-lz4"][usize::from(serialized[4])]),
                "serialized_offset": serialized_offset, "serialized_len": serialized.len(),
                "raw_offset": raw_offset, "raw_len": raw.len(),
            });
            (serialized_offset, raw_offset) = (serialized_offset + serialized.len(), raw_offset + raw.len());
            chunk
        })
        .collect();
    let expected = json!({
        "hash": xorb.hash(), "serialized_len": xorb.bytes.len(), "raw_len": xorb.raw.len(), "chunks": chunks,
    });
    assert_eq!(response.json(), expected);
    let head = client.head(&format!("{}/chunks", xorb.path())).await;
    assert_eq!((head.status, head.header("content-length")), (200, &*response.body.len().to_string()));
}

#[tokio::test]
async fn an_unknown_xorb_is_404_and_a_hash_that_is_none_400() {
    let (_server, client, xorb) = stocked().await;
    let hash = xorb.hash();
    let mut unknown = hash.clone();
    unknown.replace_range(..1, if hash.starts_with('0') { "1" } else { "0" });
    for (text, status, code) in [
        (unknown.as_str(), 404, "not_found"),
        (&"0".repeat(64), 404, "not_found"),
        (&hash[1..], 400, "invalid_hash"),
        (&format!("{hash}0"), 400, "invalid_hash"),
        (&format!("{}g", &hash[1..]), 400, "invalid_hash"),
        (&format!("{}%20", &hash[1..]), 400, "invalid_hash"),
        (&format!("{}%ff", &hash[1..]), 400, "invalid_hash"),
        (&format!("{}%C3%A4", &hash[2..]), 400, "invalid_hash"),
        ("%2e%2e%2findex.sqlite", 400, "invalid_hash"),
    ] {
        for path in [
            format!("/xorbs/{text}"),
            format!("/xorbs/{text}?range=0-1&format=raw"),
            format!("/v1/xorbs/default/{text}"),
            format!("/xorbs/{text}/chunks"),
        ] {
            client.get(&path).await.problem(status, code);
            assert_eq!(client.head(&path).await.status, status);
        }
    }
}

#[tokio::test]
async fn etags_tell_every_two_resources_apart_and_survive_a_restart() {
    let (server, client, xorb) = stocked().await;
    let mut tags = std::collections::HashMap::new();
    for (query, chunks) in [("", (0, 9)), ("range=0-8", (0, 8)), ("range=1-9", (1, 9)), ("range=1", (1, 2))] {
        for is_raw in [false, true] {
            let resource = resource(&xorb, query, chunks, is_raw);
            let tag = client.head(&resource.path).await.header("etag").to_owned();
            assert_eq!(tags.insert(tag, resource.path), None);
        }
    }
    // The same resource by another name has the same tag.
    let (whole, same) = (client.head(&xorb.path()).await, client.head(&format!("{}?range=0-9", xorb.path())).await);
    assert_eq!(whole.header("etag"), same.header("etag"));

    let server = server.restart();
    for (tag, path) in tags {
        assert_eq!(server.client().get(&path).await.header("etag"), tag);
    }
}

#[tokio::test]
async fn two_serializations_have_two_etags_and_one_for_raw_bytes() {
    let chunks = vec![vec![1; 5000], vec![2; 5000]];
    let mut tags = Vec::new();
    for policy in [Policy::None, Policy::Lz4] {
        let (server, xorb) = (TestServer::start(), Xorb::of(policy, &chunks));
        let client = server.client();
        assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
        for query in ["", "?range=0", "?format=raw"] {
            tags.push(client.head(&format!("{}{query}", xorb.path())).await.header("etag").to_owned());
        }
    }
    assert_ne!(tags[0], tags[3]);
    assert_ne!(tags[1], tags[4]);
    assert_eq!(tags[2], tags[5]);
}

#[tokio::test]
async fn head_of_a_xorb_is_the_same_under_each_of_its_names() {
    let (_server, client, xorb) = stocked().await;
    let hash = xorb.hash();
    let expected = client.head(&xorb.path()).await;
    for path in [format!("/v1/xorbs/default/{hash}"), format!("/xorbs/default/{hash}"), format!("/xorb/default/{hash}")]
    {
        let head = client.head(&path).await;
        assert_eq!((head.status, head.header("etag")), (200, expected.header("etag")), "{path}");
        assert_eq!(head.header("content-length"), xorb.bytes.len().to_string());
    }
}
