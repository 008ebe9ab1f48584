//! A plain HTTP client that hands out everything a response has.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};

use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, HeaderMap};
use reqwest::{Method, RequestBuilder};
use serde_json::Value;

use super::eventually;

/// Talks to one server, or to several of one store in turn; every response is read whole.
#[derive(Clone, Debug)]
pub struct Client {
    urls: Arc<[String]>,
    /// Requests so far: two that follow each other reach different servers.
    count: Arc<AtomicUsize>,
    http: reqwest::Client,
}

/// A response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Client {
    pub fn new(url: &str) -> Self {
        Self::in_turn([url.to_owned()].into(), Arc::default())
    }

    /// Sends each request to the next of these servers. Clients with the same count take turns.
    pub fn in_turn(urls: Arc<[String]>, count: Arc<AtomicUsize>) -> Self {
        static PROVIDER: Once = Once::new();
        PROVIDER.call_once(|| {
            rustls::crypto::ring::default_provider().install_default().expect("nobody installed one before");
        });
        let http = reqwest::Client::builder().no_proxy().build().expect("the client's settings are valid");
        Self { urls, count, http }
    }

    /// A client that believes the authorities in a PEM text and no other.
    pub fn trusting(url: &str, authorities: &[u8]) -> Self {
        let client = Self::new(url);
        let certificates = reqwest::Certificate::from_pem_bundle(authorities).expect("it is PEM");
        let http = reqwest::Client::builder().no_proxy().tls_certs_only(certificates).build();
        Self { http: http.expect("the client's settings are valid"), ..client }
    }

    /// The same with a token in every request.
    pub fn bearing(&self, token: &str) -> Self {
        let value = format!("Bearer {token}").parse().expect("a token is text");
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
        let http = reqwest::Client::builder().no_proxy().default_headers(headers).build();
        Self { http: http.expect("the client's settings are valid"), ..self.clone() }
    }

    /// The same without a token.
    pub fn without_token(&self) -> Self {
        Self { http: Self::new("").http, ..self.clone() }
    }

    /// Waits until this holds at every server: each knows a moment later what another one was told.
    #[expect(clippy::future_not_send, reason = "only tests wait for it, and none spawns it")]
    pub async fn eventually(&self, what: &str, holds: impl AsyncFn(&Self) -> bool) {
        for url in &*self.urls {
            let one = Self { urls: [url.clone()].into(), ..self.clone() };
            eventually(what, async || holds(&one).await).await;
        }
    }

    /// Where the server is, or the first of them, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.urls[0]
    }

    /// The path and query of a URL of one of the servers.
    pub fn path_of<'a>(&self, url: &'a str) -> &'a str {
        let path = self.urls.iter().find_map(|server| url.strip_prefix(server.as_str()));
        path.unwrap_or_else(|| panic!("{url} is on none of {:?}", self.urls))
    }

    /// A request that is not sent yet; the path begins with a slash.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let number = self.count.fetch_add(1, Ordering::Relaxed) % self.urls.len();
        self.http.request(method, format!("{}{path}", self.urls[number]))
    }

    pub async fn get(&self, path: &str) -> Response {
        Response::of(self.request(Method::GET, path)).await
    }

    pub async fn get_with(&self, path: &str, headers: &[(&'static str, &str)]) -> Response {
        let request = headers
            .iter()
            .fold(self.request(Method::GET, path), |request, (name, value)| request.header(*name, *value));
        Response::of(request).await
    }

    pub async fn head(&self, path: &str) -> Response {
        Response::of(self.request(Method::HEAD, path)).await
    }

    pub async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> Response {
        Response::of(self.request(Method::POST, path).body(body)).await
    }
}

impl Response {
    /// Sends a request and reads the response to its end.
    pub async fn of(request: RequestBuilder) -> Self {
        Self::try_of(request).await.expect("the server responds")
    }

    /// The same where the connection may break.
    pub async fn try_of(request: RequestBuilder) -> reqwest::Result<Self> {
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Self { status, headers, body: response.bytes().await? })
    }

    /// A header that must be there, as text.
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.headers));
        value.to_str().expect("the header is text")
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.body))
    }

    /// Checks that this is problem JSON of this status and code, and returns it.
    pub fn problem(&self, status: u16, code: &str) -> Value {
        let problem = self.json();
        assert_eq!((self.status, problem["code"].as_str()), (status, Some(code)), "{problem}");
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert_eq!(problem["status"], status);
        for field in ["type", "title", "detail"] {
            assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{field} of {problem}");
        }
        problem
    }
}
