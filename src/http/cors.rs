//! Cross-origin requests (CORS, in the Fetch standard): the setting `cors_origins` lists the sites
//! whose pages may use this server in a browser.
//!
//! Responses do not allow credentials. A page sends its token in `Authorization`, which it sets
//! itself, and never in a cookie.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HOST, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// The methods of all routes. A preflight allows them for every route. If a route lacks the method,
/// the server responds with 404 to the request itself.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE");

/// Response headers that a page may read, in addition to those that every page may read.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "Accept-Ranges, Content-Length, Content-Range, ETag, Retry-After, WWW-Authenticate, X-Request-Id, \
     X-Xorb-Byte-Range, X-Xorb-Chunk-Range",
);

/// Seconds for which a browser caches the response to a preflight: the maximum of Chromium.
const MAX_AGE: HeaderValue = HeaderValue::from_static("7200");

/// The allowed origins. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Origins(Arc<[String]>);

impl Origins {
    /// Allows these origins, which are given in the form of the `Origin` header.
    #[must_use]
    pub fn new(origins: &[String]) -> Self {
        Self(origins.into())
    }

    /// Whether any origin is allowed.
    pub(super) fn is_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Whether a browser has sent this request for a page of a site that is neither allowed nor
    /// this server itself. The page cannot read the response, but without tokens it could change
    /// everything: a browser sends some requests without a preflight.
    pub(super) fn forbid(&self, headers: &HeaderMap) -> bool {
        let Some(origin) = headers.get(ORIGIN) else { return false };
        let site = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, site)| site);
        let is_own = site.is_some_and(|site| headers.get(HOST).is_some_and(|host| host.as_bytes() == site.as_bytes()));
        !is_own && self.find(headers).is_none()
    }

    /// The origin of a request, if it is allowed.
    fn find(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(ORIGIN)?;
        self.0.iter().any(|known| known.as_bytes() == origin.as_bytes()).then(|| origin.clone())
    }
}

/// Responds to preflights from allowed origins, and lets their pages read the responses to
/// requests.
pub(super) async fn share(State(origins): State<Origins>, request: Request, next: Next) -> Response {
    let Some(origin) = origins.find(request.headers()) else {
        let mut response = next.run(request).await;
        // A shared cache must not serve this response to an allowed origin, and must not serve the
        // response for an allowed origin to another one.
        response.headers_mut().append(VARY, ORIGIN.into());
        return response;
    };
    let is_preflight =
        *request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if is_preflight {
        // A preflight has no token. Its response only says what the page may request. The request
        // itself is authenticated like any other.
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
