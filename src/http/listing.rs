//! Lists of files and of xorbs, a page at a time.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query, State};
use axum::http::request::Parts;
use serde::Serialize;
use utoipa::ToSchema;

use super::AppState;
use super::auth::Caller;
use super::error::{Code, Problem};
use super::schema::HashText;
use crate::service::{FileEntry, ListError, XorbEntry};

/// Where a page begins, and how much is on it: the parameters `after` and `limit`.
#[derive(Debug, Default)]
pub(super) struct PageQuery {
    after: Option<String>,
    limit: Option<u32>,
}

impl<S: Send + Sync> FromRequestParts<S> for PageQuery {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let garbled = |_: QueryRejection| Problem::new(Code::InvalidRequest, "The query string is malformed.");
        let Query(pairs) = Query::<Vec<(String, String)>>::from_request_parts(parts, state).await.map_err(garbled)?;
        let mut query = Self::default();
        for (name, value) in pairs {
            match name.as_str() {
                "after" => query.after = Some(value),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| *limit > 0);
                    let malformed = || {
                        Problem::new(
                            Code::InvalidRequest,
                            "The parameter limit must be a number \
                        above 0.",
                        )
                    };
                    query.limit = Some(limit.ok_or_else(malformed)?);
                }
                // Proxies and signers add parameters of their own.
                _ => {}
            }
        }
        Ok(query)
    }
}

/// `GET /v1/files?after=HASH&limit=N`.
pub(super) async fn files(
    State(state): State<AppState>,
    Caller(claims): Caller,
    query: PageQuery,
) -> Result<Json<FilesPageJson>, Problem> {
    let after = query.after.map(|hash| hash.parse()).transpose()?;
    let page = state.cas.list_files(&claims, after, query.limit.unwrap_or(u32::MAX)).await?;
    let file = |file: &FileEntry| FileEntryJson {
        hash: file.hash.to_string(),
        len: file.raw_len,
        sha256: file.sha256.map(|sha256| sha256.to_string()),
        registered_unix_secs: file.registered.as_secs(),
    };
    let files: Vec<_> = page.entries.iter().map(file).collect();
    let next = files.last().filter(|_| page.is_full).map(|last| last.hash.clone());
    Ok(Json(FilesPageJson { files, next }))
}

/// `GET /v1/xorbs?after=HASH&limit=N`.
pub(super) async fn xorbs(
    State(state): State<AppState>,
    Caller(claims): Caller,
    query: PageQuery,
) -> Result<Json<XorbsPageJson>, Problem> {
    let after = query.after.map(|hash| hash.parse()).transpose()?;
    let page = state.cas.list_xorbs(&claims, after, query.limit.unwrap_or(u32::MAX)).await?;
    let xorb = |xorb: &XorbEntry| XorbEntryJson {
        hash: xorb.hash.to_string(),
        chunks: xorb.chunk_count,
        serialized_len: xorb.serialized_len,
        raw_len: xorb.raw_len,
    };
    let xorbs: Vec<_> = page.entries.iter().map(xorb).collect();
    let next = xorbs.last().filter(|_| page.is_full).map(|last| last.hash.clone());
    Ok(Json(XorbsPageJson { xorbs, next }))
}

/// Response to `GET /v1/files`; `next` is the `after` of the next page.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FilesPageJson {
    files: Vec<FileEntryJson>,
    #[schema(value_type = Option<HashText>)]
    next: Option<String>,
}

/// One file of [`FilesPageJson`].
#[derive(Debug, Serialize, ToSchema)]
struct FileEntryJson {
    #[schema(value_type = HashText)]
    hash: String,
    len: u64,
    #[schema(value_type = Option<HashText>)]
    sha256: Option<String>,
    registered_unix_secs: u64,
}

/// Response to `GET /v1/xorbs`; `next` is the `after` of the next page.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct XorbsPageJson {
    xorbs: Vec<XorbEntryJson>,
    #[schema(value_type = Option<HashText>)]
    next: Option<String>,
}

/// One xorb of [`XorbsPageJson`].
#[derive(Debug, Serialize, ToSchema)]
struct XorbEntryJson {
    #[schema(value_type = HashText)]
    hash: String,
    chunks: u32,
    serialized_len: u64,
    raw_len: u64,
}

impl From<ListError> for Problem {
    fn from(error: ListError) -> Self {
        match error {
            ListError::OneRepository => {
                Self::new(Code::Forbidden, "Listing xorbs requires a token for all repositories.")
            }
            ListError::Store(error) => error.into(),
        }
    }
}
