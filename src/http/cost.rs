//! The cost class of a route decides which limits its handler has: a permit, a deadline, both or
//! none.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::timeout;

use super::AppState;
use super::error::{Code, Problem};
use super::tenant::tenant_of;

/// What a route costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CostClass {
    /// Cheap, or its handler acquires permits itself: a deadline until the response head.
    Light,
    /// Requests without a token: a permit among those of all addresses, and the deadline.
    Open,
    /// An index lookup: a permit of the lookup gate, and the deadline.
    Lookup,
    /// As long as its client sends: what its handler lets in, and the pace of its body.
    Upload,
}

/// Runs a request with its permit, and ends it at its deadline.
///
/// A request that is ended is dropped, as when its client disconnects: work that must not stop
/// half-way is in a task of its own.
pub(super) async fn bounded(
    State((state, cost)): State<(AppState, CostClass)>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let tenant = tenant_of(state.auth, request.extensions());
    let response = async {
        let _permit = match cost {
            CostClass::Lookup => Some(state.cas.lookup_permit(tenant).await?),
            CostClass::Open => Some(state.cas.open_permit(tenant).await?),
            CostClass::Light | CostClass::Upload => None,
        };
        Ok(tenant.doing(next.run(request)).await)
    };
    timeout(state.deadline, response).await.unwrap_or_else(|_| {
        tracing::warn!(after_secs = state.deadline.as_secs(), "request exceeded request_timeout");
        Err(Problem::new(
            Code::Deadline,
            "The request exceeded its time limit; retry after the delay in \
            Retry-After.",
        )
        .retry_soon())
    })
}
