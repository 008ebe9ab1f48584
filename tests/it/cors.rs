//! Pages of other sites: which may use the server, and what they are told.

use reqwest::Method;

use crate::support::{Client, Response, Start, TestServer, Xorb, rng, routes};

const SITE: &str = "https://models.example";

async fn preflight(client: &Client, path: &str, method: &str, origin: &str) -> Response {
    let request = client.request(Method::OPTIONS, path).header("origin", origin);
    let request = request.header("access-control-request-method", method);
    Response::of(request.header("access-control-request-headers", "authorization,range,x-xet-session-id")).await
}

fn sharing() -> TestServer {
    Start::default().with("cors_origins", format!("http://localhost:3000, {SITE}")).start()
}

#[tokio::test]
async fn a_preflight_from_an_allowed_origin_succeeds_on_every_route() {
    let server = sharing();
    let client = server.client();
    for case in routes(&client).await {
        let response = preflight(&client, &case.path(&"0".repeat(64)), &case.method, SITE).await;
        assert_eq!(response.status, 204, "{case:?}");
        assert_eq!(response.header("access-control-allow-origin"), SITE);
        assert!(response.header("access-control-allow-methods").contains(&case.method), "{case:?}");
        assert_eq!(response.header("access-control-allow-headers"), "authorization,range,x-xet-session-id");
        assert!(!response.headers.contains_key("access-control-allow-credentials"));
        assert!(response.headers.get_all("vary").iter().any(|value| value == "origin"), "{:?}", response.headers);
    }
}

#[tokio::test]
async fn every_response_to_an_allowed_origin_says_so() {
    let server = sharing();
    for (path, status) in [("/healthz", 200), ("/nothing", 404), ("/v1/data/0?s=x", 400)] {
        let response = server.client().get_with(path, &[("origin", SITE)]).await;
        assert_eq!((response.status, response.header("access-control-allow-origin")), (status, SITE), "{path}");
        let exposed = response.header("access-control-expose-headers").to_ascii_lowercase();
        for name in ["content-range", "etag", "x-request-id", "www-authenticate", "retry-after", "content-length"] {
            assert!(exposed.contains(name), "{name}");
        }
    }
}

#[tokio::test]
async fn other_origins_get_no_cors_headers() {
    for (server, origins) in [
        (
            sharing(),
            vec!["https://evil.example", "null", "https://models.example.evil.example", "http://models.example"],
        ),
        (TestServer::start(), vec![SITE]),
    ] {
        let client = server.client();
        for origin in origins {
            let refused = preflight(&client, "/healthz", "GET", origin).await;
            assert_eq!(refused.status, 404, "{origin}");
            let read = client.get_with("/healthz", &[("origin", origin)]).await;
            assert_eq!(read.status, 200);
            for response in [refused, read] {
                let names: Vec<_> = response.headers.keys().map(|name| name.as_str()).collect();
                assert!(!names.iter().any(|name| name.starts_with("access-control-")), "{origin}: {names:?}");
            }
        }
    }
}

/// To a browser this server is then the site of the page.
#[tokio::test]
async fn names_of_other_sites_read_nothing_without_tokens() {
    let server = sharing();
    let client = server.client();
    let xorb = Xorb::mixed(&mut rng(), 3);
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let read = |host: &str| Response::of(client.request(Method::GET, &xorb.path()).header("host", host));
    for host in ["evil.example", "evil.example:3001"] {
        read(host).await.problem(403, "forbidden");
    }
    for host in ["localhost", "127.0.0.1:3001"] {
        assert_eq!(read(host).await.status, 200, "{host}");
    }
}

/// A browser sends a request like these without a preflight.
#[tokio::test]
async fn pages_of_other_sites_change_nothing_without_tokens() {
    let server = sharing();
    let client = server.client();
    let xorb = Xorb::mixed(&mut rng(), 3);
    let send = |origin: String| {
        let request = client.request(Method::POST, &xorb.path()).header("origin", origin);
        Response::of(request.header("content-type", "text/plain").body(xorb.bytes.clone()))
    };
    for origin in ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost:3001"] {
        send(origin.to_owned()).await.problem(403, "forbidden");
    }
    assert_eq!(client.head(&xorb.path()).await.status, 404);
    assert_eq!(send(client.url().trim_end_matches('/').to_owned()).await.status, 201);
    assert_eq!(send(SITE.to_owned()).await.status, 200);
}
