//! Downloads from the S3 store, past the server.

use reqwest::Method;
use zorb_fake_s3::{Fault, Op};

use super::{add, check_refused, start, zorb};
use crate::cli::Directory;
use crate::support::backend::Backend;
use crate::support::{Client, Metrics, Response, Xorb, random_bytes, read_file, register, rng, shard_of, urls_of};

/// The same store, whose S3 store clients reach at the same URL as the server.
pub(super) fn public(backend: Backend) -> Backend {
    let endpoint = backend.get("s3_endpoint").to_owned();
    backend.set("s3_public_endpoint", &endpoint)
}

/// A start of this store must fail with these words.
fn check_not_started(backend: &Backend, directory: &Directory, words: &[&str]) {
    let data = directory.path("data");
    let ran = zorb(backend, &["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(words.iter().all(|word| ran.stderr.contains(word)), "{words:?} in {}", ran.stderr);
}

/// The response of the S3 store to a URL with these headers.
async fn fetch(method: Method, url: &str, headers: &[(&str, &str)]) -> Response {
    let request = Client::new("").request(method, url);
    Response::of(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await
}

#[tokio::test]
async fn files_are_read_from_the_s3_store_and_not_through_the_server() {
    let (backend, directory) = (public(Backend::fake().await), Directory::new());
    let server = start(&backend, &directory.path("data"));
    let (mut rng, client) = (rng(), server.client());
    // The last one is read with several ranges of one xorb.
    let mut files = vec![add(&client, &Xorb::mixed(&mut rng, 7)).await];
    let xorb = Xorb::incompressible(&mut rng, 20 << 20);
    files.push(add(&client, &xorb).await);
    let parts = shard_of(&[(&xorb, 0, 3), (&xorb, 50, 60), (&xorb, 100, 101)]);
    assert_eq!(register(&client, parts.bytes()).await, 1);
    files.push((parts.file_hash(), [xorb.raw(0, 3), xorb.raw(50, 60), xorb.raw(100, 101)].concat()));
    let before = Metrics::of(&client).await.get("zorb_sent_bytes_total");
    for (hash, contents) in &files {
        for version in ["v1", "v2"] {
            let plan = client.get(&format!("/{version}/reconstructions/{hash}")).await.json();
            for (url, ranges) in urls_of(&plan) {
                assert!(url.starts_with(backend.get("s3_endpoint")) && ranges.len() == 1, "{url}: {ranges:?}");
            }
            assert_eq!(&read_file(&client, version, hash, None).await.unwrap(), contents);
        }
        // Its lengths are random.
        let last = contents.len() - 2;
        assert_eq!(read_file(&client, "v2", hash, Some((5, last as u64))).await.unwrap(), contents[5..=last]);
    }
    let batch = client.get(&format!("/v1/reconstructions?file_id={}&file_id={}", files[0].0, files[1].0)).await.json();
    assert!(urls_of(&batch).iter().all(|(url, _)| url.starts_with(backend.get("s3_endpoint"))), "{batch}");
    let sent = Metrics::of(&client).await.get("zorb_sent_bytes_total") - before;
    assert!(sent < 1e6, "{sent} bytes went through the server");
}

#[tokio::test]
async fn url_of_the_s3_store_opens_its_range_and_nothing_else() {
    let (backend, directory) = (public(Backend::fake().await), Directory::new());
    let server = start(&backend, &directory.path("data"));
    let client = server.client();
    let xorb = Xorb::incompressible(&mut rng(), 1 << 20);
    add(&client, &xorb).await;
    let part = shard_of(&[(&xorb, 2, 4)]);
    assert_eq!(register(&client, part.bytes()).await, 1);
    let plan = client.get(&format!("/v2/reconstructions/{}", part.file_hash())).await.json();
    let [(url, ranges)] = &urls_of(&plan)[..] else { panic!("{plan}") };
    let [(first, last)] = ranges[..] else { panic!("{plan}") };
    let own = format!("bytes={first}-{last}");
    let response = fetch(Method::GET, url, &[("range", &own)]).await;
    assert_eq!((response.status, &response.body[..]), (206, xorb.serialized(2, 4)));
    for other in [
        format!("bytes={}-{last}", first - 1),
        format!("bytes={first}-{}", last + 1),
        format!("bytes={first}-{}", last - 1),
        format!("bytes={first}-{last},0-1"),
        format!("bytes={first}-"),
        "bytes=0-".to_owned(),
    ] {
        assert_eq!(fetch(Method::GET, url, &[("range", &other)]).await.status, 403, "{other}");
    }
    assert_eq!(fetch(Method::GET, url, &[]).await.status, 403, "the whole object");
    for method in [Method::HEAD, Method::PUT, Method::DELETE] {
        assert_eq!(fetch(method.clone(), url, &[("range", &own)]).await.status, 403, "{method}");
    }
    // Another object, another lifetime, and another signature.
    let (hash, other) = (xorb.hash(), "ab".repeat(32));
    let digit = if url.ends_with('0') { "1" } else { "0" };
    for changed in [
        url.replace(&hash, &other),
        url.replace("X-Amz-Expires=3600", "X-Amz-Expires=36000"),
        format!("{}{digit}", &url[..url.len() - 1]),
    ] {
        assert!(changed != *url && fetch(Method::GET, &changed, &[("range", &own)]).await.status == 403, "{changed}");
    }
    // The secret part of the key, and tokens, are not in it.
    assert!(!url.contains(backend.get("s3_secret_key")), "{url}");
}

/// A plan of more ranges than the S3 store shall get has URLs of the server, each for many of them.
#[tokio::test]
async fn plans_of_very_many_ranges_lead_through_the_server() {
    let (backend, directory) = (public(Backend::fake().await), Directory::new());
    let server = start(&backend, &directory.path("data"));
    let (mut rng, client) = (rng(), server.client());
    let xorbs = [0; 2].map(|_| Xorb::stored(random_bytes(&mut rng, 5000 * 16).chunks(16)));
    for xorb in &xorbs {
        assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    }
    for (count, is_direct) in [(4096, true), (4097, false)] {
        // Every second chunk, so that no two ranges touch.
        let runs: Vec<_> =
            (0..count).map(|index| (&xorbs[index as usize % 2], index / 2 * 2, index / 2 * 2 + 1)).collect();
        let shard = shard_of(&runs);
        assert_eq!(register(&client, shard.bytes()).await, 1);
        let plan = client.get(&format!("/v2/reconstructions/{}", shard.file_hash())).await.json();
        let urls = urls_of(&plan);
        assert_eq!(urls.iter().map(|(_, ranges)| ranges.len()).sum::<usize>(), count as usize);
        let origin = if is_direct { backend.get("s3_endpoint") } else { client.url() };
        assert!(urls.iter().all(|(url, _)| url.starts_with(origin)), "{count}: {:?}", urls[0]);
    }
}

#[tokio::test]
async fn s3_store_that_serves_more_than_was_signed_is_refused() {
    let (backend, directory) = (public(Backend::fake().await), Directory::new());
    backend.s3().ignore_signatures(true);
    check_not_started(&backend, &directory, &["s3_public_endpoint", "opens another one (bytes=0-8)"]);
    backend.s3().ignore_signatures(false);
    backend.s3().obey_if_range(true);
    check_not_started(&backend, &directory, &["s3_public_endpoint", "opens another one (the header If-Range)"]);
    backend.s3().obey_if_range(false);
    backend.s3().fail(Op::Signed, Fault::Refused(403), 1);
    check_not_started(&backend, &directory, &["s3_public_endpoint", "does not send the range"]);
    // An S3 store that does not respond has neither opened nor refused anything.
    backend.s3().fail(Op::Signed, Fault::Refused(503), 5);
    check_not_started(&backend, &directory, &["bucket stores at http://127.0.0.1", "with 503"]);
    backend.s3().fail(Op::Signed, Fault::Refused(503), 1);
    assert_eq!(start(&backend, &directory.path("data")).client().get("/readyz").await.status, 200);
    assert_eq!(backend.s3().forgive(), 0);
    let url = backend.with("s3_public_endpoint", "s3.example");
    check_refused(&url, &directory.path("data"), &["s3_public_endpoint", "expected http:// or https://"]);
}
