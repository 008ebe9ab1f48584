//! Security headers for browsers. The server is not made for browsers, but a user may open its URLs
//! in one. A browser must not render a response as a page, run it as a script or embed it into
//! another site, and must not pass its URL on.

use axum::extract::State;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// One year. Without `includeSubDomains`, because the server does not know whether its subdomains
/// use TLS.
const ONE_YEAR: HeaderValue = HeaderValue::from_static("max-age=31536000");

/// Security headers of every response that comes from the router. `REFUSAL` in
/// `connection_limiter.rs` has none of them.
const ALWAYS: [(HeaderName, HeaderValue); 4] = [
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'; frame-ancestors 'none'")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (CROSS_ORIGIN_RESOURCE_POLICY, HeaderValue::from_static("same-origin")),
];

/// Adds the headers to a response. If this server itself uses TLS (`is_encrypted`), it also adds
/// `Strict-Transport-Security`. Otherwise this is the task of a TLS proxy.
pub(super) async fn protect(State(is_encrypted): State<bool>, mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.extend(ALWAYS);
    // The default is that no cache may store a response, because reconstructions contain signed
    // URLs.
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if is_encrypted {
        headers.insert(STRICT_TRANSPORT_SECURITY, ONE_YEAR);
    }
    response
}
