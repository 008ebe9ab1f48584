//! The cost class of a route decides which limits its requests have: a permit, a deadline, both or
//! none.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::timeout;

use super::AppState;
use super::error::{Code, Problem};
use super::tenant::tenant_of;

/// The limits that apply to a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CostClass {
    /// A deadline for the response head, and no permit. Either the work is cheap, or the handler
    /// acquires permits itself.
    Light,
    /// For a route without a token: a permit of the gate for such requests, and the deadline.
    Open,
    /// An index lookup: a permit of the lookup gate, and the deadline.
    Lookup,
    /// No permit and no deadline. The handler itself limits the number of bodies, and each body has
    /// a minimum pace. [`bounded`] is not called for such a route.
    Upload,
}

/// The middleware for the limits: runs a request with its permit, and drops its future at the
/// deadline.
///
/// The future is also dropped when the client disconnects. So work that must not stop half-way runs
/// in a task of its own.
pub(super) async fn bounded(
    State((state, cost)): State<(AppState, CostClass)>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let tenant = tenant_of(state.shared.auth, &state.shared.address, request.headers(), request.extensions());
    let response = async {
        let _permit = match cost {
            CostClass::Lookup => Some(state.server.lookup_permit(tenant).await?),
            CostClass::Open => Some(state.server.open_permit(tenant).await?),
            CostClass::Light | CostClass::Upload => None,
        };
        Ok(tenant.doing(next.run(request)).await)
    };
    timeout(state.shared.deadline, response).await.unwrap_or_else(|_| {
        tracing::warn!(after_secs = state.shared.deadline.as_secs(), "request exceeded request_timeout");
        let detail = "The request exceeded its time limit; retry after the delay in Retry-After.";
        Err(Problem::new(Code::Deadline, detail).retry_soon())
    })
}
