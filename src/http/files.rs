//! The route for the bytes of a file, for clients that do not know chunks, such as curl, wget and
//! browsers.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, Response};

use super::AppState;
use super::auth::Caller;
use super::error::Problem;
use super::extract::HashPath;
use super::reconstructions::no_such_file;
use super::representation::Representation;
use super::sending::RequestContext;
use crate::format::FileHash;

/// `GET` and `HEAD /v1/files/{file}`: a whole file, or byte ranges of it.
pub(super) async fn read(
    State(state): State<AppState>,
    Caller(claims): Caller,
    HashPath(file): HashPath<FileHash>,
    method: Method,
    context: RequestContext,
    headers: HeaderMap,
) -> Result<Response<Body>, Problem> {
    // The permit of the lookup is released before the first permit for reading is acquired, so that
    // waiting readers do not hold up lookups.
    let permit = state.server.lookup_permit(context.tenant).await?;
    let found = state.server.find_file(&claims, file).await?.ok_or_else(|| no_such_file(file))?;
    drop(permit);
    Representation::of_file(found).respond(&state, &method, &headers, context).await
}
