//! Conditional requests and the HTTP Range header (RFC 9110, sections 13 and 14), on top of every form of a xorb.

use reqwest::header::HeaderMap;

use crate::support::{Client, Response, TestServer, Xorb, rng};

/// A server with a xorb, and the resources that the tests ask for: path and bytes.
async fn stocked() -> (TestServer, Client, Vec<(String, Vec<u8>)>) {
    let (server, mut rng) = (TestServer::start(), rng());
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng, 9));
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let path = xorb.path();
    let resources = vec![
        (path.clone(), xorb.bytes.to_vec()),
        (format!("{path}?range=2-7"), xorb.serialized(2, 7).to_vec()),
        (format!("{path}?format=raw"), xorb.raw.to_vec()),
        (format!("{}?format=raw&range=-4", xorb.xet_path()), xorb.raw(5, 9).to_vec()),
    ];
    (server, client, resources)
}

/// What a Range header must give: nothing special, a part, several, or a refusal.
#[derive(Debug)]
enum Expect {
    Whole,
    Part(usize, usize),
    Parts(Vec<(usize, usize)>),
    Unsatisfiable,
    Malformed,
}
use Expect::{Malformed, Part, Parts, Unsatisfiable, Whole};

/// Asks with a Range header; parts are half-open.
async fn check(client: &Client, (path, bytes): &(String, Vec<u8>), range: &str, expected: Expect) {
    let whole = client.head(path).await;
    let response = client.get_with(path, &[("range", range)]).await;
    let context = format!("{range} of {path}, {} bytes: {expected:?}", bytes.len());
    match expected {
        Whole => assert!((response.status, &response.body[..]) == (200, &bytes[..]), "{context}"),
        Part(start, end) => {
            assert_eq!(response.status, 206, "{context}");
            assert!(response.body == bytes[start..end], "{context}");
            assert_eq!(response.header("content-range"), format!("bytes {start}-{}/{}", end - 1, bytes.len()));
            assert_eq!(response.header("content-length"), (end - start).to_string());
            assert_eq!(response.header("content-type"), "application/octet-stream");
        }
        Parts(parts) => {
            assert_eq!(response.status, 206, "{context}");
            assert!(!response.headers.contains_key("content-range"), "{context}");
            assert_eq!(response.header("content-length"), response.body.len().to_string());
            let expected: Vec<_> = parts.iter().map(|(start, end)| (*start, bytes[*start..*end].to_vec())).collect();
            assert!(multipart(&response, bytes.len()) == expected, "{context}");
        }
        Unsatisfiable => {
            response.problem(416, "range_not_satisfiable");
            assert_eq!(response.header("content-range"), format!("bytes */{}", bytes.len()), "{context}");
            return;
        }
        Malformed => return drop(response.problem(400, "invalid_range")),
    }
    for name in ["etag", "cache-control", "accept-ranges", "x-xorb-chunk-range", "x-xorb-byte-range"] {
        assert_eq!(response.header(name), whole.header(name), "{name}, {context}");
    }
    assert!(!response.headers.contains_key("content-encoding"), "{context}");
}

/// Takes `multipart/byteranges` apart: the offset and the bytes of each part.
fn multipart(response: &Response, len: usize) -> Vec<(usize, Vec<u8>)> {
    let boundary = response.header("content-type").strip_prefix("multipart/byteranges; boundary=").expect("multipart");
    let boundary = boundary.trim_matches('"');
    let delimiter = format!("--{boundary}");
    let mut rest = response.body.strip_prefix(delimiter.as_bytes()).expect("it begins with the boundary");
    let mut parts = Vec::new();
    while let Some(part) = rest.strip_prefix(b"\r\n") {
        let end_of_head = find(part, b"\r\n\r\n");
        let mut headers = HeaderMap::new();
        for line in std::str::from_utf8(&part[..end_of_head]).expect("headers are text").split("\r\n") {
            let (name, value) = line.split_once(": ").expect("a header has a colon");
            let name: reqwest::header::HeaderName = name.parse().expect("a header has a name");
            assert!(headers.insert(name, value.parse().expect("a value")).is_none());
        }
        assert_eq!(headers["content-type"], "application/octet-stream");
        let range = headers["content-range"].to_str().expect("text").strip_prefix("bytes ").expect("bytes");
        let (range, total) = range.split_once('/').expect("a total");
        let (first, last) = range.split_once('-').expect("a range");
        let (first, last): (usize, usize) = (first.parse().expect("a number"), last.parse().expect("a number"));
        assert_eq!(total, len.to_string());
        let body = &part[end_of_head + 4..];
        parts.push((first, body[..last - first + 1].to_vec()));
        rest = body[last - first + 1..].strip_prefix(format!("\r\n{delimiter}").as_bytes()).expect("a boundary");
    }
    assert_eq!(rest, b"--\r\n");
    parts
}

fn find(bytes: &[u8], text: &[u8]) -> usize {
    bytes.windows(text.len()).position(|window| window == text).expect("stored")
}

#[tokio::test]
async fn a_single_byte_range_is_206_with_exactly_its_bytes() {
    let (_server, client, resources) = stocked().await;
    for resource in &resources {
        let len = resource.1.len();
        for (range, start, end) in [
            ("bytes=0-0".to_owned(), 0, 1),
            ("bytes=1-9".to_owned(), 1, 10),
            (format!("bytes=0-{}", len - 1), 0, len),
            (format!("bytes=0-{len}"), 0, len),
            (format!("bytes={}-", len - 1), len - 1, len),
            ("bytes=5-".to_owned(), 5, len),
            ("bytes=-1".to_owned(), len - 1, len),
            (format!("bytes=-{len}"), 0, len),
            ("bytes=-99999999999".to_owned(), 0, len),
            ("bytes=0-18446744073709551615".to_owned(), 0, len),
            ("bytes=3-99999999999999999999999".to_owned(), 3, len),
            ("BYTES=1-2".to_owned(), 1, 3),
            ("bytes= 1-2 ".to_owned(), 1, 3),
            ("bytes=,1-2,,".to_owned(), 1, 3),
            // The one of two that there is.
            (format!("bytes=1-2,{len}-"), 1, 3),
        ] {
            check(&client, resource, &range, Part(start, end)).await;
        }
    }
}

#[tokio::test]
async fn several_byte_ranges_are_206_in_parts_in_the_order_asked_for() {
    let (_server, client, resources) = stocked().await;
    for resource in &resources {
        let len = resource.1.len();
        for (range, parts) in [
            ("bytes=0-0,2-2".to_owned(), vec![(0, 1), (2, 3)]),
            ("bytes=9-19, 0-4".to_owned(), vec![(9, 20), (0, 5)]),
            (format!("bytes=0-1,{len}-,-2"), vec![(0, 2), (len - 2, len)]),
            (format!("bytes=0-{},{}-", len / 2, len / 2 + 1), vec![(0, len / 2 + 1), (len / 2 + 1, len)]),
            ("bytes=0-9,5-14".to_owned(), vec![(0, 10), (5, 15)]),
            ("bytes=0-0,0-0,0-0".to_owned(), vec![(0, 1), (0, 1), (0, 1)]),
        ] {
            check(&client, resource, &range, Parts(parts)).await;
        }
        let many: Vec<_> = (0..500).map(|index| (index * 3, index * 3 + 2)).filter(|(_, end)| *end <= len).collect();
        let list: Vec<_> = many.iter().map(|(start, end)| format!("{start}-{}", end - 1)).collect();
        check(&client, resource, &format!("bytes={}", list.join(",")), Parts(many)).await;
    }
}

#[tokio::test]
async fn unsatisfiable_or_excessive_byte_ranges_are_416_with_length() {
    let (_server, client, resources) = stocked().await;
    for resource in &resources {
        let len = resource.1.len();
        for range in [
            format!("bytes={len}-"),
            format!("bytes={len}-{}", len + 5),
            "bytes=-0".to_owned(),
            "bytes=18446744073709551615-".to_owned(),
            format!("bytes={len}-,{}-", len + 1),
            // Overlapping abuse: each one is fine, together they ask for far more than there is.
            format!("bytes={}", vec!["0-"; 100].join(",")),
            format!("bytes={}", vec!["0-0"; 3000].join(",")),
        ] {
            check(&client, resource, &range, Unsatisfiable).await;
        }
    }
}

#[tokio::test]
async fn malformed_byte_range_is_400_and_another_unit_ignored() {
    let (_server, client, resources) = stocked().await;
    let resource = &resources[1];
    for range in [
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=a-b",
        "bytes=5-4",
        "bytes=1-2-3",
        "bytes=1",
        "bytes=1-2;3-4",
        "bytes=,",
        "bytes=0x1-2",
        "bytes=+1-2",
        "bytes=1-2,x",
        "bytes 1-2",
        "bytes=--1",
    ] {
        check(&client, resource, range, Malformed).await;
    }
    for range in ["items=0-1", "chunks=0-1", "seconds=-5"] {
        check(&client, resource, range, Whole).await;
    }
}

#[tokio::test]
async fn head_ignores_the_range_header() {
    let (_server, client, resources) = stocked().await;
    for (path, bytes) in &resources {
        for range in ["bytes=0-0", "bytes=0-0,2-2", "bytes=999999999-", "bytes=x"] {
            let response = Response::of(client.request(reqwest::Method::HEAD, path).header("range", range)).await;
            assert_eq!((response.status, response.header("content-length")), (200, &*bytes.len().to_string()));
            assert!(!response.headers.contains_key("content-range"));
        }
    }
}

/// Asks with conditions, in which `TAG` stands for the resource's ETag without its quotes.
async fn check_condition(client: &Client, path: &str, headers: &[(&'static str, &[u8])], status: u16) {
    let whole = client.head(path).await;
    let tag = whole.header("etag").trim_matches('"').to_owned();
    for method in [reqwest::Method::GET, reqwest::Method::HEAD] {
        let mut request = client.request(method.clone(), path);
        for (name, value) in headers {
            let at = value.windows(3).position(|window| window == b"TAG");
            let value = at.map_or(value.to_vec(), |at| [&value[..at], tag.as_bytes(), &value[at + 3..]].concat());
            request = request.header(*name, reqwest::header::HeaderValue::from_bytes(&value).expect("a value"));
        }
        let response = Response::of(request).await;
        // The Range header is for GET only.
        let expected = if (&method, status) == (&reqwest::Method::HEAD, 206) { 200 } else { status };
        let names: Vec<_> = headers.iter().map(|(name, value)| (*name, String::from_utf8_lossy(value))).collect();
        assert_eq!(response.status, expected, "{method} {path} {names:?}");
        if status == 304 {
            assert!(response.body.is_empty());
            for name in ["etag", "cache-control", "x-xorb-chunk-range", "x-xorb-byte-range"] {
                assert_eq!(response.header(name), whole.header(name));
            }
            assert!(!response.headers.contains_key("content-type"));
            // RFC 9110, section 8.6: it is that of the 200, or not there.
            if let Some(len) = response.headers.get("content-length") {
                assert_eq!(len, whole.header("content-length"));
            }
        }
        if status == 412 && method == reqwest::Method::GET {
            response.problem(412, "precondition_failed");
        }
    }
}

#[tokio::test]
async fn if_none_match_is_304_for_a_tag_a_list_a_weak_tag_and_a_star() {
    let (_server, client, resources) = stocked().await;
    for (path, _) in &resources {
        for (value, status) in [
            (&br#""TAG""#[..], 304),
            (br#"W/"TAG""#, 304),
            (b"*", 304),
            (br#""x", "TAG""#, 304),
            (br#""x",W/"TAG" , "y""#, 304),
            (br#"  "TAG"  "#, 304),
            (br#", "TAG","#, 304),
            (br#""x""#, 200),
            (br#""x", "y""#, 200),
            (b"TAG", 200),
            (br#""TAGx""#, 200),
            // A tag may hold anything but quotes: commas, stars, and bytes that are not ASCII.
            (br#""x,*,y""#, 200),
            (b"\"\xe4\"", 200),
            (b"\"\xe4\", \"TAG\"", 304),
        ] {
            check_condition(&client, path, &[("if-none-match", value)], status).await;
        }
        // A list may be spread over several lines.
        check_condition(&client, path, &[("if-none-match", br#""x""#), ("if-none-match", br#""TAG""#)], 304).await;
        // 304 comes before the range.
        check_condition(&client, path, &[("if-none-match", b"*"), ("range", b"bytes=0-1")], 304).await;
        check_condition(&client, path, &[("if-none-match", br#""x""#), ("range", b"bytes=0-1")], 206).await;
    }
}

#[tokio::test]
async fn if_match_is_412_unless_a_strong_tag_matches() {
    let (_server, client, resources) = stocked().await;
    for (path, _) in &resources {
        for (value, status) in [
            (&br#""TAG""#[..], 200),
            (b"*", 200),
            (br#""x", "TAG""#, 200),
            (br#"W/"TAG""#, 412),
            (br#""x""#, 412),
            (br#""x,*,y""#, 412),
            (b"\"\xe4\"", 412),
        ] {
            check_condition(&client, path, &[("if-match", value)], status).await;
        }
        check_condition(&client, path, &[("if-match", br#""x""#), ("if-match", br#""TAG""#)], 200).await;
        // If-Match is evaluated first (RFC 9110, section 13.2.2).
        check_condition(&client, path, &[("if-match", br#""x""#), ("if-none-match", br#""TAG""#)], 412).await;
        check_condition(&client, path, &[("if-match", br#""TAG""#), ("if-none-match", br#""TAG""#)], 304).await;
    }
}

#[tokio::test]
async fn if_range_gives_the_part_only_for_the_strong_tag() {
    let (_server, client, resources) = stocked().await;
    let range = ("range", &b"bytes=0-1"[..]);
    for (path, _) in &resources {
        for (value, status) in [
            (&br#""TAG""#[..], 206),
            (br#"W/"TAG""#, 200),
            (br#""x""#, 200),
            (b"Wed, 21 Oct 2099 07:28:00 GMT", 200),
            (b"*", 200),
            (b"\"\xe4\"", 200),
        ] {
            check_condition(&client, path, &[range, ("if-range", value)], status).await;
            // Without a range it means nothing.
            check_condition(&client, path, &[("if-range", value)], 200).await;
        }
        // A range that does not count cannot be wrong.
        check_condition(&client, path, &[("range", b"bytes=999999999-"), ("if-range", br#""x""#)], 200).await;
        check_condition(&client, path, &[("range", b"bytes=x"), ("if-range", br#""x""#)], 200).await;
    }
}
