//! URLs of xorb data that carry their own authority (spec 5.10): making them, and serving what they
//! allow.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::header::{CACHE_CONTROL, ETAG, RANGE};
use axum::http::{HeaderMap, HeaderValue, Method, Response};

use super::AppState;
use super::error::{Code, Problem};
use super::extract::HashPath;
use super::origin::BaseUrl;
use super::range::parse_byte_ranges;
use super::representation::{Representation, X_XORB_BYTE_RANGE, X_XORB_CHUNK_RANGE};
use super::sending::RequestContext;
use crate::format::XorbHash;
use crate::runtime::fair::Tenant;
use crate::service::Form;
use crate::service::access::{DataUrl, GRACE_SECS, KeyRing, MAX_URL_RANGE_COUNT, check_data_url};
use crate::service::gc::{MIN_CONDEMNED, OBJECT_RETENTION};
use crate::service::reconstruct::{Descriptor, XorbPlan};

/// How long a URL is good for. It is fetched soon after it was given out, but may queue behind
/// gigabytes.
const URL_LIFE_SECS: u64 = 3600;

// Nothing is written when a URL is given out: a xorb and a replaced blob outlive their URLs because
// of what the service says there.
const _: () = assert!(URL_LIFE_SECS + GRACE_SECS < MIN_CONDEMNED.as_secs());
const _: () = assert!(URL_LIFE_SECS + GRACE_SECS < OBJECT_RETENTION.as_secs());

/// Makes URLs for one response.
pub(super) struct Urls {
    base: BaseUrl,
    ring: Arc<KeyRing>,
    expires_unix_secs: u64,
    tenant: Tenant,
}

impl Urls {
    /// URLs with this base, for downloads that count towards this tenant's share. Call it before
    /// the response is planned: a URL is rejected if its blob was described anew after it was
    /// signed, which may happen while the plan waits for a permit.
    pub(super) fn new(state: &AppState, base: BaseUrl, tenant: Tenant) -> Self {
        let expires_unix_secs = state.clock.now().as_secs().saturating_add(URL_LIFE_SECS);
        Self { base, ring: state.keys.current(), expires_unix_secs, tenant }
    }

    /// A URL for these descriptors, or several where they are too many for one.
    pub(super) fn sign<'d>(&self, plan: &XorbPlan, descriptors: &'d [Descriptor]) -> Vec<(String, &'d [Descriptor])> {
        let XorbPlan { xorb, incarnation, .. } = *plan;
        let batches = descriptors.chunks(MAX_URL_RANGE_COUNT);
        batches
            .filter_map(|batch| {
                let ranges: Vec<_> = batch.iter().map(|part| part.bytes).collect();
                let expires_unix_secs = self.expires_unix_secs;
                let tenant = self.tenant;
                let url = DataUrl { xorb, incarnation, ranges: &ranges, expires_unix_secs, tenant };
                let signature = url.sign(&self.ring)?;
                Some((format!("{}/v1/data/{xorb}?s={}", self.base.0, signature.expose()), batch))
            })
            .collect()
    }
}

/// `GET /v1/data/{xorb}?s=…`: ranges that were signed, each alone or all together.
pub(super) async fn data(
    State(state): State<AppState>,
    HashPath(xorb): HashPath<XorbHash>,
    Query(pairs): Query<Vec<(String, String)>>,
    method: Method,
    mut context: RequestContext,
    headers: HeaderMap,
) -> Result<Response<Body>, Problem> {
    let signature = pairs.iter().find(|(name, _)| name == "s").map_or("", |(_, value)| value);
    let range = headers.get(RANGE).and_then(|range| range.to_str().ok()).unwrap_or_default();
    // Signed ranges lie within the xorb, so they read the same whatever its length is.
    let ranges = parse_byte_ranges(range, u64::MAX).ok().flatten().unwrap_or_default();
    let now = state.clock.now().as_secs();
    let checked = state.keys.check(|ring| check_data_url(ring, &xorb, signature, &ranges, now)).await;
    let refusal = || {
        Problem::new(
            Code::Forbidden,
            "The URL is expired or does not allow this request; request the reconstruction again.",
        )
    };
    let permitted = checked.map_err(|refused| {
        tracing::debug!(reason = refused.reason().name(), "data URL rejected");
        refusal().because(refused)
    })?;
    // Who fetches need not be who was given the URL, and comes from anywhere.
    context.tenant = permitted.tenant.unwrap_or(context.tenant);
    let stored = state.cas.find(xorb).await?;
    let stored = stored.ok_or_else(|| Problem::new(Code::NotFound, format!("Xorb {xorb} not found.")))?;
    // Where another blob has taken the place of the one that was planned with, these ranges are in
    // the middle of something. The old blob is served as long as it is retained. Clients take a 403
    // as "expired" and ask again (spec 5.10).
    let stored = if stored.incarnation() == permitted.incarnation {
        stored
    } else {
        state.cas.find_replaced(xorb, permitted.incarnation).await?.ok_or_else(refusal)?
    };
    if stored.has_moved_since(permitted.expires_unix_secs.saturating_sub(URL_LIFE_SECS)) {
        return Err(refusal());
    }
    let whole = stored.layout().whole();
    // Only the range counts here: a condition that fails would turn it into the whole xorb.
    let only_range: HeaderMap = headers.get(RANGE).map(|value| (RANGE, value.clone())).into_iter().collect();
    let representation = Representation::new(stored, Form::Serialized, whole);
    // Without its range this is nothing, so a HEAD is about the range as well, though of others it
    // is not (RFC 9110, section 14.2).
    let mut response = representation.respond(&state, &Method::GET, &only_range, context).await?;
    if method == Method::HEAD {
        *response.body_mut() = Body::empty();
    }
    // Who may have a part is not told more of the whole than its length, and the URL does not live
    // for a year.
    for name in [ETAG, X_XORB_CHUNK_RANGE, X_XORB_BYTE_RANGE] {
        response.headers_mut().remove(name);
    }
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("private, max-age=3600"));
    Ok(response)
}
