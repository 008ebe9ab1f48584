//! What a route costs, and so what stands before its handler: a turn, a deadline, both or neither.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::timeout;

use super::AppState;
use super::error::{Code, Problem};
use super::tenant::Sharer;

/// What a route costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Next to nothing, or its handler takes the turns that it needs: a deadline until the head of its answer.
    Light,
    /// Asked by clients without a token: a turn among those of all addresses, and the deadline.
    Open,
    /// A question to the index: a turn among those who ask, and the deadline.
    Lookup,
    /// As long as its client sends: what its handler lets in, and the pace of its body.
    Upload,
}

/// Lets a request in when it is its turn, and ends it when that takes too long.
///
/// What is ended is dropped, as when a client leaves: what must not stop half-way is in a task of its own.
pub(super) async fn bounded(
    State((state, work)): State<(AppState, Work)>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let tenant = Sharer::of(state.auth, request.extensions());
    let answer = async {
        let _turn = match work {
            Work::Lookup => Some(state.cas.lookup_turn(tenant).await?),
            Work::Open => Some(state.cas.open_turn(tenant).await?),
            Work::Light | Work::Upload => None,
        };
        Ok(tenant.doing(next.run(request)).await)
    };
    timeout(state.deadline, answer).await.unwrap_or_else(|_| {
        tracing::warn!(after_secs = state.deadline.as_secs(), "a request was ended by its deadline");
        Err(Problem::new(Code::Deadline, "This takes too long at the moment; try again.").retry_soon())
    })
}
