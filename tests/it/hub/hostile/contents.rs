//! Hostile contents: pages for a browser, many ranges, and two files of one SHA-1.

use reqwest::Method;
use serde_json::{Value, json};

use crate::hub::{commit, create, ids, put};
use crate::support::{Client, Response, TestServer, register, sha256_of, stocked, upload_shard};

/// A page that would run a script, if a browser took it for one.
const PAGE: &[u8] = b"<!DOCTYPE html><html><body onload=\"alert(1)\"><script>alert(1)</script></body></html>";

/// Checks that a browser cannot take this response for a page.
fn check_is_no_page(what: &str, response: &Response) {
    let kind = response.header("content-type");
    let is_inert = ["text/plain; charset=utf-8", "application/octet-stream", "application/problem+json"]
        .contains(&kind)
        || kind.starts_with("multipart/byteranges; boundary=");
    assert!(is_inert, "{kind} of {what}");
    assert_eq!(response.header("x-content-type-options"), "nosniff", "{what}");
    let policy = response.header("content-security-policy");
    assert_eq!(policy, "sandbox; default-src 'none'; frame-ancestors 'none'", "{what}");
    assert_eq!(response.headers.get_all("content-type").iter().count(), 1, "{what}");
}

#[tokio::test]
async fn page_is_served_as_text_whatever_its_name_says() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let paths = [
        "README.md",
        "index.html",
        "a.htm",
        "a.xhtml",
        "a.svg",
        "a.xml",
        "a.js",
        "a.mjs",
        "a.css",
        "a.pdf",
        "a.json",
        "a.wasm",
        "a",
        ".htaccess",
        "a.html.txt",
        "a.shtml",
    ];
    assert_eq!(commit(&client, "me/model", None, &paths.map(|path| put(path, PAGE))).await.0, 200);
    for path in paths {
        let url = format!("/me/model/resolve/main/{path}");
        // A client cannot ask for another type.
        let whole = client.get_with(&url, &[("accept", "text/html"), ("sec-fetch-dest", "document")]).await;
        assert_eq!((whole.status, &whole.body[..]), (200, PAGE), "{path}");
        assert_eq!(whole.header("content-type"), "text/plain; charset=utf-8", "{path}");
        check_is_no_page(path, &whole);
        check_is_no_page(path, &client.head(&url).await);
        for (range, status) in [("bytes=0-9", 206), ("bytes=0-9,20-29", 206), ("bytes=999-", 416)] {
            let part = client.get_with(&url, &[("range", range)]).await;
            assert_eq!(part.status, status, "{range} of {path}");
            check_is_no_page(&format!("{range} of {path}"), &part);
        }
    }
    check_is_no_page("a missing page", &client.get("/me/model/resolve/main/%3Cscript%3E.html").await);
}

/// Large files have a type of their own.
#[tokio::test]
async fn large_page_is_served_as_octets() {
    let (server, xorb, _) = stocked().await;
    let client = server.client();
    create(&client, "model").await;
    let contents = xorb.raw(0, 3);
    let sha256 = sha256_of(contents);
    register(&client, upload_shard(&xorb, 0, 3).claiming(sha256).bytes()).await;
    let large = json!({ "key": "lfsFile", "value": {
        "path": "index.html", "algo": "sha256", "oid": sha256.to_string(), "size": contents.len(),
    } });
    assert_eq!(commit(&client, "me/model", None, &[large]).await.0, 200);
    let found = client.get_with("/me/model/resolve/main/index.html", &[("accept", "text/html")]).await;
    assert!(found.status == 200 && found.body == contents, "{}", found.status);
    assert_eq!(found.header("content-type"), "application/octet-stream");
    check_is_no_page("a large file", &found);
}

#[tokio::test]
async fn name_of_a_file_ends_no_header() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    for (path, shown) in [
        ("a\"; filename=\"b.exe", "a%22%3B%20filename%3D%22b.exe"),
        ("a;b,c", "a%3Bb%2Cc"),
        ("dir/\u{202e}gpj.exe", "%E2%80%AEgpj.exe"),
        ("dir/a%0D%0Ab", "a%250D%250Ab"),
        ("'()*", "%27%28%29%2A"),
    ] {
        assert_eq!(commit(&client, "me/model", None, &[put(path, PAGE)]).await.0, 200, "{path}");
        let encoded: String = path.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let found = client.get(&format!("/me/model/resolve/main/{encoded}")).await;
        assert_eq!(found.header("content-disposition"), format!("inline; filename*=UTF-8''{shown}"), "{path}");
    }
}

/// Many small ranges, each of which is a part with a head of its own; then more than there may be.
#[tokio::test]
async fn flood_of_ranges_is_served_to_1024_and_refused_above() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let contents: Vec<u8> = (0..3000_u32).map(|n| b'a' + u8::try_from(n % 26).unwrap()).collect();
    assert_eq!(commit(&client, "me/model", None, &[put("a.txt", &contents)]).await.0, 200);
    let singles = |count: usize| (0..count).map(|n| format!("{0}-{0}", 2 * n)).collect::<Vec<_>>().join(",");
    let path = "/me/model/resolve/main/a.txt";
    let ask = async |list: &str| client.get_with(path, &[("range", format!("bytes={list}").as_str())]).await;
    for count in [1000, 1024] {
        let response = ask(&singles(count)).await;
        assert_eq!(response.status, 206, "{count} ranges");
        let boundary = response.header("content-type").strip_prefix("multipart/byteranges; boundary=").unwrap();
        let text = std::str::from_utf8(&response.body).unwrap();
        let parts: Vec<&str> = text.split(&format!("--{boundary}")).collect();
        // Nothing before the first one, and the end of the body after the last one.
        assert_eq!((parts.len(), parts[0], parts[count + 1]), (count + 2, "", "--\r\n"));
        for (n, part) in parts[1..=count].iter().enumerate() {
            let head = "\r\nContent-Type: application/octet-stream\r\nContent-Range: bytes";
            let byte = char::from(contents[2 * n]);
            assert_eq!(*part, format!("{head} {0}-{0}/3000\r\n\r\n{byte}\r\n", 2 * n), "part {n}");
        }
    }
    for list in [singles(1025), ["0-"; 2].join(","), ["-3000"; 100].join(","), ["0-0"; 3001].join(",")] {
        let refused = ask(&list).await;
        refused.problem(416, "range_not_satisfiable");
        assert_eq!(refused.header("content-range"), "bytes */3000");
    }
    let many = ask("0-2999").await;
    assert_eq!((many.status, &many.body[..]), (206, &contents[..]), "one range is not refused");
    let head = client.request(Method::HEAD, path).header("range", format!("bytes={}", singles(1025)));
    assert_eq!(Response::of(head).await.status, 200, "a HEAD has no ranges");
}

/// The files of <https://shattered.io> up to the end of their difference. Their SHA-1 is the same.
/// Git puts kind and length before the contents, so as blobs they are two.
const COLLISION: [&[u8; 320]; 2] = [
    include_bytes!("../../../../crates/git/testdata/sha1-collision-1"),
    include_bytes!("../../../../crates/git/testdata/sha1-collision-2"),
];

#[tokio::test]
async fn files_of_one_sha_1_keep_their_own_contents() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let lines: Vec<Value> = ["1.pdf", "2.pdf"].into_iter().zip(COLLISION).map(|(name, file)| put(name, file)).collect();
    // In one commit, and the second one again in place of the first.
    assert_eq!(commit(&client, "me/model", None, &lines).await.0, 200);
    let read = async |client: &Client, name: &str| client.get(&format!("/me/model/resolve/main/{name}")).await.body;
    let found = ids(&client, "me/model").await;
    let expected = ["6e98aef8bba6ff517f5b164d7418c5e2a6cf90c9", "ef380704685cc8e54de9bc13556d1ff7026ec0cc"];
    assert_eq!([&found["1.pdf"], &found["2.pdf"]], expected, "the ids that git gives them");
    for (name, file) in ["1.pdf", "2.pdf"].into_iter().zip(COLLISION) {
        assert!(read(&client, name).await == file[..], "{name} has the bytes of the other file");
    }
    assert_eq!(commit(&client, "me/model", None, &[put("1.pdf", COLLISION[1])]).await.0, 200);
    assert!(read(&client, "1.pdf").await == COLLISION[1][..], "the commit has changed the file");
}
