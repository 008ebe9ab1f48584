//! The HTTP face of the store: routes, headers, JSON, statuses.
//!
//! A handler extracts, calls one verb of `service::Cas`, renders. It knows nothing of SQL, paths or
//! blob keys, and only `error` knows which status a failure has.

pub mod audit;
mod auth;
mod body;
mod chunk_hashes;
mod chunks;
mod code;
mod conditions;
mod conn_state;
mod connection_limiter;
mod cors;
mod cost;
mod drain;
mod error;
mod extract;
mod files;
mod grants;
mod health;
mod keys;
mod layers;
mod listing;
mod openapi;
mod origin;
mod peer;
mod range;
mod reconstructions;
mod refresh;
mod removal;
mod render;
mod representation;
mod route;
mod routes;
mod schema;
mod security;
mod sending;
pub mod server;
mod sha256;
mod shards;
mod tenant;
#[cfg(test)]
mod tests;
pub mod tls;
mod transfer;
mod usage;
mod wire;
mod xorbs;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::{from_fn_with_state, map_response_with_state};
use tower_http::catch_panic::CatchPanicLayer;

use self::audit::{Audit, Catalog};
pub use self::auth::Auth;
pub use self::cors::Origins;
pub use self::error::{Code, Problem};
pub use self::keys::{KeySource, Keys};
pub use self::origin::PublicAddress;
use self::route::Route;
use crate::runtime::blocking::Pool;
use crate::runtime::clock::Clock;
use crate::runtime::metrics::Metrics;
use crate::service::Cas;

/// What the handlers share. Cloning it is cheap, one count: every layer around a handler does it
/// once per request.
#[derive(Clone, Debug)]
pub struct AppState {
    shared: Arc<Shared>,
}

impl From<Shared> for AppState {
    fn from(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }
}

impl Deref for AppState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// The parts of [`AppState`].
#[derive(Debug)]
pub struct Shared {
    /// The store.
    pub cas: Cas,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The minimum pace of a body.
    pub pace: Pace,
    /// How long a request may take that does not stream.
    pub deadline: Duration,
    /// Whether tokens are asked for.
    pub auth: Auth,
    /// Reads the process statistics of the operating system, one request at a time.
    pub stats_pool: Pool,
    /// The keys that sign.
    pub keys: Keys,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Where clients reach this server.
    pub address: PublicAddress,
    /// Whether there are upload grants. If not, there are no routes for them either.
    pub grants: bool,
    /// Pages of which sites may use this server.
    pub cors_origins: Origins,
    /// The audit log, if there is one.
    pub audit: Option<Audit>,
}

/// The least progress that an upload or a download has to make.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Longest wait for the client's next bytes, or for it to take any.
    pub idle: Duration,
    /// Bytes per second to be reached on average, after one `idle` of grace.
    pub min_bytes_per_sec: u64,
}

/// All of `routes`, each behind its layers. Other paths are a 404 with a JSON body, whatever the
/// method and the token: a 401 or 405 on a path that a newer client probes would break its upload
/// (spec 5.4.2).
pub fn router(state: AppState) -> Router {
    let routes = routes::routes(&state);
    let catalog = Arc::new(Catalog::of(routes.iter().map(Route::in_audit_log)));
    let router = routes.into_iter().fold(Router::new(), |router, route| route.add_to(router, &state));
    let router = router.fallback(error::unknown_route).method_not_allowed_fallback(error::unknown_route);
    // From the outermost to the innermost, in one call: each call of `layer` clones everything
    // behind it.
    let protect = map_response_with_state(state.address.is_encrypted, security::protect);
    let observe = from_fn_with_state(state.clone(), layers::observe);
    let catch = CatchPanicLayer::custom(error::panicked);
    let note = state.audit.clone().map(|audit| from_fn_with_state((state.clone(), audit, catalog), audit::note));
    let share = state.cors_origins.is_any().then(|| from_fn_with_state(state.cors_origins.clone(), cors::share));
    let router = match (note, share) {
        (Some(note), Some(share)) => router.layer((protect, observe, share, note, catch)),
        (Some(note), None) => router.layer((protect, observe, note, catch)),
        (None, Some(share)) => router.layer((protect, observe, share, catch)),
        (None, None) => router.layer((protect, observe, catch)),
    };
    router.with_state(state)
}
