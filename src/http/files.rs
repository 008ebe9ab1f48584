//! The bytes of files, for curl, wget, browsers, and loaders that know nothing of chunks.

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

/// `GET /v1/files/{file}` and `HEAD`: a file, or bytes of it.
pub(super) async fn read(
    State(state): State<AppState>,
    Caller(claims): Caller,
    HashPath(file): HashPath<FileHash>,
    method: Method,
    context: RequestContext,
    headers: HeaderMap,
) -> Result<Response<Body>, Problem> {
    // Only for the question: the permit of a lookup does not wait for that of a read.
    let permit = state.cas.lookup_permit(context.tenant).await?;
    let found = state.cas.find_file(&claims, file).await?.ok_or_else(|| no_such_file(file))?;
    drop(permit);
    Representation::of_file(found).respond(&state, &method, &headers, context).await
}
