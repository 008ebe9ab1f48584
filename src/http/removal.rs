//! The route that removes files.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};

use super::auth::{Caller, foreign};
use super::error::{Code, Problem};
use super::extract::HashPath;
use crate::format::FileHash;
use crate::service::access::RepoScope;
use crate::service::{RemoveError, Server};
use crate::wire::RemovedFile;

/// `DELETE /v1/files/{file}?repo=NAME`: removes the claim of a repository to a file. Removing the
/// last claim removes the file.
pub(super) async fn file(
    State(server): State<Arc<Server>>,
    Caller(claims): Caller,
    HashPath(file): HashPath<FileHash>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Json<RemovedFile>, Problem> {
    let Query(pairs) = query.map_err(|_| Problem::new(Code::InvalidRequest, "The query string is malformed."))?;
    let mut repos = pairs.iter().filter(|(name, _)| name == "repo").map(|(_, value)| value.parse::<RepoScope>());
    // A malformed name is an error, because without a name all claims may be removed. Two names are
    // an error, because the choice of one would be arbitrary.
    let repo = match (repos.next().transpose(), repos.next()) {
        (Ok(repo), None) => repo,
        (Err(error), _) => {
            let detail = format!("The parameter repo is not a repository name: {error}.");
            return Err(Problem::new(Code::InvalidRequest, detail));
        }
        (Ok(_), Some(_)) => return Err(Problem::new(Code::InvalidRequest, "Duplicate parameter repo.")),
    };
    let removed = server.remove_file(&claims, file, repo).await.map_err(|error| match error {
        RemoveError::NotFound => Problem::new(Code::NotFound, format!("File {file} not found.")),
        RemoveError::Foreign => {
            let detail = "Removing claims of other repositories requires an admin token for all repositories.";
            foreign(&claims, detail)
        }
        RemoveError::Store(error) => error.into(),
    })?;
    tracing::info!(%file, repos = removed.repos.len(), is_file_removed = removed.is_file_removed, "removed claims");
    Ok(Json(RemovedFile {
        file: file.to_string(),
        file_removed: removed.is_file_removed,
        claims_removed: removed.repos,
    }))
}
