//! What holds for every route, new ones included; and that docs/security-tests.md names a test for each promise of
//! docs/security.md.

use crate::support::{Raw, Response, Start, Xorb, issue, read, register, rng, routes, send, shard_of};

/// Headers of every response, with their values.
const ALWAYS: [(&str, &str); 4] = [
    ("x-content-type-options", "nosniff"),
    ("content-security-policy", "sandbox; default-src 'none'; frame-ancestors 'none'"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
];

fn check_headers(what: &str, response: &Response) {
    for (name, value) in ALWAYS {
        assert_eq!(response.headers.get(name).map(|found| found.to_str().unwrap()), Some(value), "{name} of {what}");
    }
    assert_eq!(response.headers.get_all("cache-control").iter().count(), 1, "{what}: {:?}", response.headers);
    assert_eq!(response.headers.get("server"), None, "{what}");
}

#[tokio::test]
async fn every_response_of_every_route_has_its_security_headers() {
    let server = Start::default().with("auth", "token").with("grants", true).start();
    let client = server.client();
    let token = issue(&server, "admin", "*", &[]);
    let mut count = 0;
    for case in routes(&client).await {
        for value in ["0".repeat(64), "x".to_owned()] {
            for token in [None, Some(token.as_str())] {
                let response = send(&client, &case.method, &case.path(&value), token, Vec::new()).await;
                check_headers(&format!("{} {}: {}", case.method, case.template, response.status), &response);
                if response.status >= 400 {
                    assert_eq!(response.header("cache-control"), "no-store", "{case:?}");
                }
                count += usize::from(response.status < 300);
            }
        }
    }
    assert!(count >= 10, "{count} responses were successes");
    for path in ["/", "/unknown", "/v1"] {
        check_headers(path, &client.get(path).await);
    }
}

#[tokio::test]
async fn cacheable_responses_say_so_and_are_not_overruled() {
    let (server, mut rng) = (Start::default().start(), rng());
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng, 3));
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.header("cache-control"), "no-store");
    assert_eq!(client.get(&xorb.path()).await.header("cache-control"), "public, immutable, max-age=31536000");
    let response = client.get_with(&xorb.path(), &[("if-none-match", "*")]).await;
    assert_eq!((response.status, response.header("cache-control")), (304, "public, immutable, max-age=31536000"));
}

#[tokio::test]
async fn malformed_path_gets_problem_json_on_every_route() {
    let server = Start::default().with("grants", true).start();
    let client = server.client();
    let mut count = 0;
    // Clients of the Hub report anything there, which the server ignores.
    let is_ignored = |template: &str| template.starts_with("/api/telemetry/");
    let cases = routes(&client).await;
    for case in cases.iter().filter(|case| case.template.contains('{') && !is_ignored(&case.template)) {
        for value in ["%ff", "%00", "%c3%28", "%2F..%2F", "%E2%80%AE"] {
            // A client that does not mend the path for us.
            let mut connection = Raw::connect(&server).await;
            let head = format!("{} {}?%ff=%ff HTTP/1.1\r\nhost: zorb\r\n", case.method, case.path(value));
            connection.send(format!("{head}connection: close\r\ncontent-length: 0\r\n\r\n")).await;
            if case.method == "HEAD" {
                let head = connection.head().await;
                assert_eq!(
                    (head.status / 100, head.header("content-type")),
                    (4, "application/problem+json"),
                    "{case:?}"
                );
            } else {
                let response = connection.response().await;
                let code = response.json()["code"].as_str().expect("a code").to_owned();
                response.problem(response.status, &code);
                assert_eq!(response.status / 100, 4, "{case:?} with {value}: {code}");
            }
            count += 1;
        }
    }
    assert!(count >= 100, "{count}");
}

#[tokio::test]
async fn head_on_a_data_url_gives_the_length_of_its_range() {
    let (server, mut rng) = (Start::default().start(), rng());
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng, 9));
    // Chunks 1 and 5, so that there are two ranges in one URL.
    let shard = shard_of(&[(&xorb, 1, 2), (&xorb, 5, 6)]);
    let file = shard.file_hash();
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    assert_eq!(register(&client, shard.bytes()).await, 1);
    let plan = client.get(&format!("/v2/reconstructions/{file}")).await.json();
    let fetch = &plan["xorbs"][&xorb.hash()][0];
    let path = client.path_of(fetch["url"].as_str().expect("a URL")).to_owned();
    let ranges: Vec<_> = fetch["ranges"]
        .as_array()
        .expect("ranges")
        .iter()
        .map(|range| {
            let at = |name: &str| range["bytes"][name].as_u64().expect("a number");
            (at("start"), at("end"))
        })
        .collect();
    assert_eq!(ranges.len(), 2, "{fetch}");
    let one = format!("bytes={}-{}", ranges[0].0, ranges[0].1);
    let both = format!("{one},{}-{}", ranges[1].0, ranges[1].1);
    for range in [one, both] {
        let got = client.get_with(&path, &[("range", range.as_str())]).await;
        let head = Response::of(client.request(reqwest::Method::HEAD, &path).header("range", &range)).await;
        assert_eq!((got.status, head.status), (206, 206), "{range}");
        assert_eq!(got.header("content-length"), head.header("content-length"), "{range}");
        assert_eq!(got.headers.get("content-range"), head.headers.get("content-range"), "{range}");
        assert!(head.body.is_empty() && head.headers.get("etag").is_none());
    }
    assert_eq!(client.head(&path).await.status, 403, "without a range it is nothing");
}

#[test]
fn every_test_that_the_threat_model_names_exists() {
    let text = read("docs/security-tests.md");
    let mut count = 0;
    for name in text.split('`').skip(1).step_by(2).filter(|code| code.contains(".rs::")) {
        let (file, test) = name.split_once("::").expect("it has two parts");
        let source = read(file);
        let at = source
            .find(&format!("fn {test}("))
            .unwrap_or_else(|| panic!("docs/security-tests.md names {test} of {file}"));
        let mut before = source[..at].lines().rev().take_while(|line| !line.is_empty() && *line != "}");
        assert!(before.any(|line| line.contains("test]") || line.contains("tokio::test(")), "{name} is no test");
        count += 1;
    }
    assert!(count >= 25, "only {count} tests are named");
}

/// In the same words, so that a reader can go from one page to the other.
#[test]
fn every_promise_of_the_threat_model_names_its_tests() {
    let (model, tests) = (read("docs/security.md"), read("docs/security-tests.md"));
    let mut is_promise = false;
    let mut promises = Vec::new();
    for line in model.lines() {
        match line.strip_prefix("| ").and_then(|row| row.split_once(" |")) {
            Some((cell, _)) if is_promise && !cell.starts_with("---") => promises.push(cell.trim_end_matches('.')),
            Some((cell, _)) => is_promise |= cell == "promise",
            None => is_promise = false,
        }
    }
    assert!(promises.len() >= 40, "only {} promises were found", promises.len());
    // A remark in parentheses may follow the promise.
    let is_tested = |promise: &&str| {
        tests.lines().filter_map(|line| line.strip_prefix("* ")?.strip_prefix(*promise)).any(|rest| rest.ends_with(':'))
    };
    let missing: Vec<_> = promises.into_iter().filter(|promise| !is_tested(promise)).collect();
    assert!(missing.is_empty(), "docs/security-tests.md lacks {missing:?}");
}
