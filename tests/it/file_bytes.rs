//! `GET /v1/files/{file}`: the bytes of a file, for clients that know nothing of chunks.

use std::fs;

use reqwest::Method;
use zorb::format::compression::Policy;

use crate::support::{
    Client, Response, Start, TestServer, Xorb, guarded, issue, random_bytes, register, rng, shard_of, stocked,
};

/// A server with a file, its path and its bytes.
async fn with_file() -> (TestServer, Client, String, Vec<u8>) {
    let (server, a, b) = stocked().await;
    let client = server.client();
    let shard = shard_of(&[(&a, 1, 4), (&b, 0, 5), (&a, 3, 7), (&a, 0, 1)]);
    register(&client, shard.bytes()).await;
    let bytes = [a.raw(1, 4), b.raw(0, 5), a.raw(3, 7), a.raw(0, 1)].concat();
    (server, client, format!("/v1/files/{}", shard.file_hash()), bytes)
}

#[tokio::test]
async fn a_file_is_served_whole_with_its_headers_and_head_alike() {
    let (server, client, path, bytes) = with_file().await;
    let get = client.get(&path).await;
    assert!(get.status == 200 && get.body == bytes, "{}", get.status);
    let head = client.head(&path).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    let hash = path.rsplit('/').next().unwrap();
    for response in [&get, &head] {
        assert_eq!(response.header("content-length"), bytes.len().to_string());
        assert_eq!(response.header("content-type"), "application/octet-stream");
        assert_eq!(response.header("etag"), format!("\"{hash}\""));
        assert_eq!(response.header("accept-ranges"), "bytes");
        assert!(response.header("cache-control").contains("immutable"));
        for absent in ["content-encoding", "transfer-encoding", "x-xorb-chunk-range", "x-xorb-byte-range"] {
            assert!(!response.headers.contains_key(absent), "{absent}");
        }
    }
    // A restarted server continues a download that has begun.
    let server = server.restart();
    let (have, tag) = (bytes.len() / 3, get.header("etag").to_owned());
    let range = format!("bytes={have}-");
    let rest = server.client().get_with(&path, &[("range", &range), ("if-range", &tag)]).await;
    assert_eq!((rest.status, rest.body == bytes[have..]), (206, true));
}

#[tokio::test]
async fn ranges_of_a_file_are_206_416_or_400_as_those_of_a_xorb() {
    let (_server, client, path, bytes) = with_file().await;
    let len = bytes.len();
    let get = async |range: &str| client.get_with(&path, &[("range", range)]).await;
    let step = len / 17;
    for start in (0..len).step_by(step) {
        for end in [start + 1, start + step / 2, start + 3 * step, len] {
            let end = end.min(len);
            let part = get(&format!("bytes={start}-{}", end - 1)).await;
            assert!(part.status == 206 && part.body == bytes[start..end], "{start}-{end}: {}", part.status);
            assert_eq!(part.header("content-range"), format!("bytes {start}-{}/{len}", end - 1));
            assert_eq!(part.header("content-length"), (end - start).to_string());
        }
    }
    assert!(get(&format!("bytes={}-", len - 5)).await.body == bytes[len - 5..]);
    assert!(get("bytes=-7").await.body == bytes[len - 7..]);
    let several = get("bytes=0-9,-3").await;
    assert_eq!(several.status, 206);
    assert!(several.header("content-type").starts_with("multipart/byteranges; boundary="));
    assert!(several.body.windows(10).any(|window| window == &bytes[..10]));

    let past = get(&format!("bytes={len}-")).await;
    past.problem(416, "range_not_satisfiable");
    assert_eq!(past.header("content-range"), format!("bytes */{len}"));
    get("bytes=9-2").await.problem(400, "invalid_range");
    assert_eq!(get("lines=1-2").await.status, 200);
    let head = Response::of(client.request(Method::HEAD, &path).header("range", "bytes=0-0")).await;
    assert_eq!((head.status, head.header("content-length")), (200, &*len.to_string()));
}

#[tokio::test]
async fn conditions_on_a_file_hold_for_its_etag_alone() {
    let (_server, client, path, bytes) = with_file().await;
    let tag = client.head(&path).await.header("etag").to_owned();
    for (headers, status) in [
        (vec![("if-none-match", tag.as_str())], 304),
        (vec![("if-none-match", "\"other\"")], 200),
        (vec![("if-match", tag.as_str())], 200),
        (vec![("if-match", "\"other\"")], 412),
        (vec![("range", "bytes=0-0"), ("if-range", tag.as_str())], 206),
        (vec![("range", "bytes=0-0"), ("if-range", "\"other\"")], 200),
    ] {
        let response = client.get_with(&path, &headers).await;
        assert_eq!(response.status, status, "{headers:?}");
        if status == 304 {
            assert_eq!((response.header("etag"), response.body.len()), (tag.as_str(), 0));
            assert!(response.headers.get("content-length").is_none_or(|len| *len == bytes.len().to_string()));
        }
    }
}

#[tokio::test]
async fn a_file_of_thousands_of_terms_is_its_bytes() {
    let server = TestServer::start();
    let (client, mut rng) = (server.client(), rng());
    let chunks: Vec<_> = (0..60).map(|_| random_bytes(&mut rng, 1000)).collect();
    let xorb = Xorb::of(Policy::None, &chunks);
    assert_eq!(client.post(&xorb.path(), xorb.bytes.to_vec()).await.status, 201);
    let order: Vec<_> = (0..2500_u32).map(|index| index * 7 % 60).collect();
    let runs: Vec<_> = order.iter().map(|chunk| (&xorb, *chunk, *chunk + 1)).collect();
    let shard = shard_of(&runs);
    register(&client, shard.bytes()).await;
    let expected: Vec<u8> = order.iter().flat_map(|chunk| chunks[*chunk as usize].clone()).collect();
    let path = format!("/v1/files/{}", shard.file_hash());
    assert!(client.get(&path).await.body == expected);
    let part = client.get_with(&path, &[("range", "bytes=499500-2000500")]).await;
    assert!(part.status == 206 && part.body == expected[499_500..=2_000_500]);
}

#[tokio::test]
async fn the_empty_file_is_there_and_has_no_bytes() {
    let server = TestServer::start();
    let (client, path) = (server.client(), format!("/v1/files/{}", "0".repeat(64)));
    for response in [client.get(&path).await, client.head(&path).await] {
        assert_eq!((response.status, response.header("content-length"), response.body.len()), (200, "0", 0));
    }
    client.get_with(&path, &[("range", "bytes=0-")]).await.problem(416, "range_not_satisfiable");
}

#[tokio::test]
async fn a_file_is_404_to_a_token_of_another_repository() {
    let server = guarded();
    let client = server.client();
    let [own, foreign] =
        ["models/a/one", "models/b/one"].map(|repo| client.bearing(&issue(&server, "write", repo, &[])));
    let xorb = Xorb::mixed(&mut rng(), 3);
    assert_eq!(own.post(&xorb.xet_path(), xorb.bytes.clone()).await.status, 200);
    let shard = shard_of(&[(&xorb, 0, 3)]);
    register(&own, shard.bytes()).await;
    let path = format!("/v1/files/{}", shard.file_hash());
    let response = own.get(&path).await;
    assert_eq!((response.status, response.body == xorb.raw), (200, true));
    assert!(response.header("cache-control").starts_with("private"));
    foreign.get(&path).await.problem(404, "not_found");
    assert_eq!(foreign.head(&path).await.status, 404);
    client.get(&path).await.problem(401, "unauthorized");
}

#[tokio::test]
async fn a_file_with_a_damaged_xorb_never_ends_as_if_it_were_whole() {
    let server = Start::default().with("scrub_rate", 0).start();
    let (client, mut rng) = (server.client(), rng());
    let (good, bad) = (Xorb::incompressible(&mut rng, 3 << 20), Xorb::incompressible(&mut rng, 3 << 20));
    for xorb in [&good, &bad] {
        assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    }
    let shard = shard_of(&[(&good, 0, good.chunk_count()), (&bad, 0, bad.chunk_count())]);
    register(&client, shard.bytes()).await;
    let hash = bad.hash();
    let blob = server.blob(&hash);
    let mut bytes = fs::read(&blob).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&blob, bytes).unwrap();
    let path = format!("/v1/files/{}", shard.file_hash());
    let whole = Response::try_of(client.request(Method::GET, &path)).await;
    assert!(whole.is_err(), "{:?}", whole.map(|response| response.status));
    // What is before the damage can be had.
    let range = format!("bytes=0-{}", good.raw.len() - 1);
    let part = client.get_with(&path, &[("range", &range)]).await;
    assert!(part.status == 206 && part.body == good.raw);
}
