//! The HTTP layer: routes, headers, JSON, status codes.
//!
//! A handler extracts its arguments from the request, calls a method of `service::Server`, and
//! renders the result. It knows nothing about SQL, paths or blob keys. Only the module `error`
//! knows which status a failure has.

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
mod hub;
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

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{FromRef, State};
use axum::http::{Method, Uri};
use axum::middleware::{from_fn_with_state, map_response_with_state};
use axum::response::{IntoResponse, Response};
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
use crate::service::{Server, Store};

/// The state that all handlers share. Every layer around a handler clones it once per request,
/// which is cheap: it increments two reference counts. A handler that needs only the server or the
/// store takes only that.
#[derive(Clone, Debug)]
pub struct AppState {
    /// The server.
    pub server: Arc<Server>,
    /// Everything except the server.
    pub shared: Arc<Shared>,
}

/// The state that the handlers share in addition to the server.
#[derive(Debug)]
pub struct Shared {
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The minimum pace of a request body.
    pub pace: Pace,
    /// Time limit for the head of a response, except for uploads.
    pub deadline: Duration,
    /// Whether requests need tokens.
    pub auth: Auth,
    /// Reads the process statistics of the operating system, one request at a time.
    pub stats_pool: Pool,
    /// The signing keys.
    pub keys: Keys,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The settings for the base URL that clients see.
    pub address: PublicAddress,
    /// Whether the server issues upload grants. If not, their routes do not exist.
    pub grants: bool,
    /// Whether the server has the routes of the Hub.
    pub hub: bool,
    /// Whether clients without a token read public repositories of the Hub.
    pub anonymous_read: bool,
    /// Whether a new repository of the Hub is private if its client does not say.
    pub creates_private: bool,
    /// Sites whose pages may use this server.
    pub cors_origins: Origins,
    /// The audit log, if one is configured.
    pub audit: Option<Audit>,
}

impl FromRef<AppState> for Arc<Server> {
    fn from_ref(state: &AppState) -> Self {
        Self::clone(&state.server)
    }
}

impl FromRef<AppState> for Arc<Store> {
    fn from_ref(state: &AppState) -> Self {
        Self::clone(&state.server.store)
    }
}

/// The minimum progress of an upload or a download.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Maximum time for which the server waits until the client sends or takes bytes.
    pub idle: Duration,
    /// Minimum average rate. `idle` is added once to the time that it allows.
    pub min_bytes_per_sec: u64,
}

/// All routes, each with its layers. The response to any other path or method is a 404 with a JSON
/// body, whatever the token. It is never a 401 or 405, because a newer client may probe a path, and
/// these would end its upload (spec 5.4.2).
pub fn router(state: AppState) -> Router {
    let routes = routes::routes(&state);
    let catalog = Arc::new(Catalog::of(routes.iter().map(Route::in_audit_log)));
    let router = routes.into_iter().fold(Router::new(), |router, route| route.add_to(router, &state));
    let router = router.fallback(unknown_route).method_not_allowed_fallback(unknown_route);
    // The layers, from the outermost to the innermost. They are added with one call of `layer`,
    // because each call would clone everything inside it for each request.
    let protect = map_response_with_state(state.shared.address.is_encrypted, security::protect);
    let observe = from_fn_with_state(state.clone(), layers::observe);
    let catch = CatchPanicLayer::custom(error::panicked);
    let note = state.shared.audit.clone().map(|audit| from_fn_with_state((state.clone(), audit, catalog), audit::note));
    let share =
        state.shared.cors_origins.is_any().then(|| from_fn_with_state(state.shared.cors_origins.clone(), cors::share));
    let router = match (note, share) {
        (Some(note), Some(share)) => router.layer((protect, observe, share, note, catch)),
        (Some(note), None) => router.layer((protect, observe, note, catch)),
        (None, Some(share)) => router.layer((protect, observe, share, catch)),
        (None, None) => router.layer((protect, observe, catch)),
    };
    router.with_state(state)
}

/// The response to an unknown path or method.
async fn unknown_route(State(state): State<AppState>, method: Method, uri: Uri) -> Response {
    let unnamed = if state.shared.hub { hub::no_namespace(uri.path()) } else { None };
    unnamed.unwrap_or_else(|| error::unknown_route(&method, &uri).into_response())
}
