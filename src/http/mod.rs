//! The HTTP face of the store: routes, headers, JSON, statuses.
//!
//! A handler extracts, calls one verb of `service::Cas`, renders. It knows nothing of SQL, paths or blob
//! keys, and only `error` knows which status a failure has.

mod auth;
mod body;
mod chunk_hashes;
mod chunks;
mod code;
mod conditions;
mod error;
mod extract;
mod health;
mod layers;
mod linger;
mod range;
mod reconstructions;
mod representation;
pub mod server;
mod sha256;
mod shards;
mod transfer;
mod wire;
mod xorbs;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, head, post};
use tower_http::catch_panic::CatchPanicLayer;

pub use self::error::{Code, Problem};
use crate::runtime::clock::Clock;
use crate::runtime::metrics::Metrics;
use crate::service::Cas;
use crate::service::access::KeyRing;

/// What the handlers share.
#[derive(Clone, Debug)]
pub struct AppState {
    /// The store.
    pub cas: Cas,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// How patient the server is with a body.
    pub pace: Pace,
    /// The keys that sign.
    pub ring: Arc<KeyRing>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Where clients reach this server, without a slash at the end; where they sent their request if not set.
    pub public_url: Option<Arc<str>>,
}

/// The least progress that an upload has to make.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Longest silence between two pieces of a body.
    pub idle: Duration,
    /// Bytes per second that a body has to reach on average, after one `idle` of grace.
    pub min_bytes_per_sec: u64,
}

/// Every route on one screen. What is not here is a 404 with a JSON body, whatever the method: a 405 on a path that a
/// newer client probes would break its upload (spec 5.4.2).
pub fn router(state: AppState) -> Router {
    Router::new()
        // For people and curl.
        .route("/xorbs/{hash}", post(xorbs::upload).get(xorbs::download))
        .route("/xorbs/{hash}/chunks", get(xorbs::list_chunks))
        // For Xet clients; the prefix is `default` or `default-merkledb` and means nothing (spec 9, row 1).
        .route("/v1/xorbs/{prefix}/{hash}", post(xorbs::upload_xet).get(xorbs::download))
        .route("/v1/shards", post(shards::register))
        .route("/v2/shards", post(shards::register_events))
        .route("/v1/reconstructions", get(reconstructions::batch_get).post(reconstructions::batch_post))
        .route("/v1/reconstructions/{file}", get(reconstructions::v1))
        .route("/v2/reconstructions/{file}", get(reconstructions::v2))
        .route("/v2/file-chunk-hashes/{file}", get(chunk_hashes::find))
        .route("/v1/files/{file}", head(reconstructions::file_head))
        .route("/v1/sha256/{digest}", get(sha256::find))
        .route("/v1/chunks/{prefix}/{hash}", get(chunks::find))
        .route("/v1/telemetry", post(chunks::telemetry))
        .route("/v1/data/{xorb}", get(transfer::data))
        // The same under the names of older clients (spec 5.0).
        .route("/xorbs/{prefix}/{hash}", post(xorbs::upload_xet))
        .route("/xorb/{prefix}/{hash}", post(xorbs::upload_xet).head(xorbs::download))
        .route("/shards", post(shards::register))
        .route("/shard/{prefix}/{hash}", post(shards::register).put(shards::register))
        .route("/reconstructions", get(reconstructions::batch_get))
        .route("/reconstructions/{file}", get(reconstructions::v1))
        .route("/reconstruction/{file}", get(reconstructions::v1))
        .route("/chunks/{prefix}/{hash}", get(chunks::find))
        .route("/chunk/{prefix}/{hash}", get(chunks::find))
        // For whoever runs this.
        .route("/healthz", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(health::metrics))
        .fallback(error::unknown_route)
        .method_not_allowed_fallback(error::unknown_route)
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(from_fn_with_state(state.clone(), layers::observe))
        .with_state(state)
}
