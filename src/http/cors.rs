//! Cross-origin requests (the Fetch standard's CORS protocol): which sites' pages a browser lets
//! use this server.
//!
//! Tokens travel in `Authorization`, which a page sets itself, and never in a cookie: credentials
//! mode is not needed.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Every method that a route has. What is not there is a 404 to the request itself.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE");

/// What a page may read of a response, beside the few headers that it always may.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "Accept-Ranges, Content-Length, Content-Range, ETag, Retry-After, WWW-Authenticate, X-Request-Id, \
     X-Xorb-Byte-Range, X-Xorb-Chunk-Range",
);

/// Seconds for which a browser need not ask again: the longest that Chromium takes.
const MAX_AGE: HeaderValue = HeaderValue::from_static("7200");

/// The origins that are allowed. Cloning it is cheap.
#[derive(Clone, Debug, Default)]
pub struct Origins(Arc<[String]>);

impl Origins {
    /// These, as browsers write them in `Origin`.
    #[must_use]
    pub fn new(origins: &[String]) -> Self {
        Self(origins.into())
    }

    pub(super) fn is_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// The origin of a request, if it is one of them.
    fn find(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(ORIGIN)?;
        self.0.iter().any(|known| known.as_bytes() == origin.as_bytes()).then(|| origin.clone())
    }
}

/// Responds to preflights from these origins, and lets their pages read the responses to the
/// requests.
pub(super) async fn share(State(origins): State<Origins>, request: Request, next: Next) -> Response {
    let Some(origin) = origins.find(request.headers()) else {
        let mut response = next.run(request).await;
        // A shared cache must not give this response to an origin that is allowed, nor the reverse.
        response.headers_mut().append(VARY, ORIGIN.into());
        return response;
    };
    let is_preflight =
        *request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if is_preflight {
        // A preflight has no token. It says only what a page may try: the request itself has to be
        // let in as any other.
        let asked = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS).cloned();
        let mut response = StatusCode::NO_CONTENT.into_response();
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        if let Some(asked) = asked {
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked);
        }
        headers.append(VARY, ACCESS_CONTROL_REQUEST_HEADERS.into());
        response
    } else {
        let mut response = next.run(request).await;
        response.headers_mut().insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        response
    };
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(VARY, ORIGIN.into());
    response
}
