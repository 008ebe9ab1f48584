//! The route that finds a file by its sha256, by which hubs and Git LFS name files.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::auth::Caller;
use super::error::{Code, Problem};
use super::extract::HashPath;
use super::schema;
use crate::format::shard::Sha256;
use crate::service::Server;
use crate::wire::HashText;

/// `GET /v1/sha256/{digest}`: the file, and whether its sha256 is verified.
pub(super) async fn find(
    State(server): State<Arc<Server>>,
    Caller(claims): Caller,
    HashPath(sha256): HashPath<Sha256>,
) -> Result<Json<Sha256Json>, Problem> {
    let known = server.find_sha256(&claims, sha256).await?;
    let known = known.ok_or_else(|| Problem::new(Code::NotFound, format!("No file has the sha256 {sha256}.")))?;
    let state = if known.is_verified { "verified" } else { "claimed" };
    Ok(Json(Sha256Json { file: known.file.to_string(), sha256: sha256.to_string(), state }))
}

/// Response to `GET /v1/sha256/{digest}`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Sha256Json {
    #[schema(value_type = HashText)]
    file: String,
    #[schema(value_type = HashText)]
    sha256: String,
    /// `verified`, or `claimed` by the reader's own repository.
    #[schema(schema_with = schema::sha256_states)]
    state: &'static str,
}
