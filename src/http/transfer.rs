//! Signed URLs of xorb data (spec 5.10): signs them, and serves their ranges.
//!
//! If clients reach the S3 store of the blobs, most URLs lead there, and this server neither sends
//! these bytes nor sees the requests. A URL of the S3 store opens one range until it expires.
//! Nothing that `data` checks ends it earlier: neither the removal of the file, nor that the blob
//! turned out to be damaged. GC retains blobs for longer than URLs are valid.

use std::sync::Arc;
use std::time::Duration;

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
use crate::service::access::{DataUrl, GRACE_SECS, KeyRing, MAX_URL_RANGE_COUNT, Reason, check_data_url};
use crate::service::gc::{MIN_CONDEMNED, OBJECT_RETENTION};
use crate::service::reconstruct::{Descriptor, XorbPlan};
use crate::service::{Form, Store};

/// Lifetime of a URL. A client usually uses it at once, but it may have to download gigabytes from
/// other URLs first.
const URL_LIFE_SECS: u64 = 3600;

// The store does not record which URLs exist. So GC must retain xorbs and replaced blobs for longer
// than any URL is valid.
const _: () = assert!(URL_LIFE_SECS + GRACE_SECS < MIN_CONDEMNED.as_secs());
const _: () = assert!(URL_LIFE_SECS + GRACE_SECS < OBJECT_RETENTION.as_secs());

/// Maximum number of URLs of the S3 store in a response. Each opens one range, and takes some 500
/// bytes and 25 µs. A plan of more ranges has URLs of this server, with 256 ranges each. The limit
/// is about the plan alone, because a client compares a plan with the one that it asked for before.
const MAX_DIRECT_COUNT: usize = 4096;

/// Such a URL takes as long as so many other items of a response.
const DIRECT_ITEM_COUNT: usize = 25;

/// Signs the URLs of one response.
pub(super) struct Urls {
    /// Signs URLs of the S3 store, if clients reach it.
    direct: Option<Arc<Store>>,
    base: BaseUrl,
    ring: Arc<KeyRing>,
    expires_unix_secs: u64,
    tenant: Tenant,
}

impl Urls {
    /// URLs with this base, for downloads that count towards the share of this tenant. To be called
    /// before the reconstruction is planned, because `data` rejects a URL if the layout of its blob
    /// has changed since this call.
    pub(super) fn new(state: &AppState, base: BaseUrl, tenant: Tenant) -> Self {
        let expires_unix_secs = state.shared.clock.now().as_secs().saturating_add(URL_LIFE_SECS);
        let store = &state.server.store;
        let direct = store.has_direct_urls().then(|| Arc::clone(store));
        Self { direct, base, ring: state.shared.keys.current(), expires_unix_secs, tenant }
    }

    /// The same for a response with so many parts of xorbs.
    pub(super) fn of(self, part_count: usize) -> Self {
        Self { direct: self.direct.filter(|_| part_count <= MAX_DIRECT_COUNT), ..self }
    }

    /// The time that it takes to sign URLs for so many parts, as a number of items of a response.
    pub(super) fn item_count(&self, part_count: usize) -> usize {
        if self.direct.is_some() { part_count * DIRECT_ITEM_COUNT } else { part_count }
    }

    /// Signs one URL for these parts of a xorb, or several URLs if the parts are too many for one.
    pub(super) fn sign<'d>(&self, plan: &XorbPlan, descriptors: &'d [Descriptor]) -> Vec<(String, &'d [Descriptor])> {
        let XorbPlan { xorb, incarnation, .. } = *plan;
        let direct = |part: &'d Descriptor| {
            let life = Duration::from_secs(URL_LIFE_SECS);
            let url = self.direct.as_ref()?.direct_url(xorb, incarnation, part.bytes, life)?;
            Some((url, std::slice::from_ref(part)))
        };
        if let Some(urls) = descriptors.iter().map(direct).collect() {
            return urls;
        }
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

/// `GET /v1/data/{xorb}?s=…`: the bytes of one signed range, or of all of them.
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
    // The length of the xorb is not known yet, and need not be: signed ranges are within the xorb.
    let ranges = parse_byte_ranges(range, u64::MAX).ok().flatten().unwrap_or_default();
    let now = state.shared.clock.now().as_secs();
    let checked = state.shared.keys.check(|ring| check_data_url(ring, &xorb, signature, &ranges, now)).await;
    let refusal = || {
        Problem::new(
            Code::Forbidden,
            "The URL is expired or does not allow this request; request the reconstruction again.",
        )
    };
    let replaced = || refusal().because(Reason::Replaced);
    let permitted = checked.map_err(|refused| {
        tracing::debug!(reason = refused.reason().name(), "data URL rejected");
        refusal().because(refused.reason())
    })?;
    // A download counts towards the share of the tenant that requested the URL, because another
    // machine may use the URL.
    context.tenant = permitted.tenant.unwrap_or(context.tenant);
    let stored = state.server.store.find(xorb).await?;
    let stored = stored.ok_or_else(|| Problem::new(Code::NotFound, format!("Xorb {xorb} not found.")))?;
    // The signed ranges are ranges of one blob of the xorb. If another blob has replaced it, the
    // old one is served as long as GC retains it. After that, a client takes the 403 for "expired"
    // and requests the reconstruction again (spec 5.10).
    let stored = if stored.incarnation() == permitted.incarnation {
        stored
    } else {
        state.server.store.find_other_blob(xorb, permitted.incarnation).await?.ok_or_else(replaced)?
    };
    // When the URL was signed, the index may have had wrong offsets of the chunks of this blob.
    if stored.has_moved_since(permitted.expires_unix_secs.saturating_sub(URL_LIFE_SECS)) {
        return Err(replaced());
    }
    let whole = stored.layout().whole();
    // All other headers are dropped, because a failed `If-Range` would select the whole xorb.
    let only_range: HeaderMap = headers.get(RANGE).map(|value| (RANGE, value.clone())).into_iter().collect();
    let representation = Representation::new(stored, Form::Serialized, whole);
    // A HEAD is handled like a GET with the range, because the URL permits nothing but its ranges.
    // By RFC 9110 (section 14.2), a server would ignore `Range` for HEAD.
    let mut response = representation.respond(&state, &Method::GET, &only_range, context).await?;
    if method == Method::HEAD {
        *response.body_mut() = Body::empty();
    }
    // About the whole xorb, the holder of a URL may learn only its length. A cache must not keep
    // the response for longer than a URL is valid.
    for name in [ETAG, X_XORB_CHUNK_RANGE, X_XORB_BYTE_RANGE] {
        response.headers_mut().remove(name);
    }
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("private, max-age=3600"));
    Ok(response)
}
