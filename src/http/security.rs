//! Security headers for browsers, even though this is not a server for browsers: a response must
//! not be rendered as a page, run as a script or embedded into another site, and its URL must not
//! leak.

use axum::extract::State;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// A year, as is the custom; not for other hosts below this one, of which this server knows
/// nothing.
const ONE_YEAR: HeaderValue = HeaderValue::from_static("max-age=31536000");

/// Headers of every response.
const ALWAYS: [(HeaderName, HeaderValue); 4] = [
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (CROSS_ORIGIN_RESOURCE_POLICY, HeaderValue::from_static("same-origin")),
];

/// Adds them to a response. `is_encrypted`: this server speaks TLS itself, so it adds HSTS; behind
/// a proxy that is the proxy's task.
pub(super) async fn protect(State(is_encrypted): State<bool>, mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.extend(ALWAYS);
    // What says nothing of caches is for who has asked, and for now: a plan has URLs with an
    // authority of their own.
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if is_encrypted {
        headers.insert(STRICT_TRANSPORT_SECURITY, ONE_YEAR);
    }
    response
}
