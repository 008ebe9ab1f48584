//! Lists of files and of xorbs, a page at a time.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query, State};
use axum::http::request::Parts;

use super::AppState;
use super::auth::Caller;
use super::error::{Code, Problem};
use crate::service::{FileEntry, ListError, XorbEntry};
use crate::wire::{FilesPage, ListedFile, ListedXorb, XorbsPage};

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
) -> Result<Json<FilesPage>, Problem> {
    let after = query.after.map(|hash| hash.parse()).transpose()?;
    let page = state.cas.list_files(&claims, after, query.limit.unwrap_or(u32::MAX)).await?;
    let file = |file: &FileEntry| ListedFile {
        hash: file.hash.to_string(),
        len: file.raw_len,
        sha256: file.sha256.map(|sha256| sha256.to_string()),
        registered_unix_secs: file.registered.as_secs(),
    };
    let files: Vec<_> = page.entries.iter().map(file).collect();
    let next = files.last().filter(|_| page.is_full).map(|last| last.hash.clone());
    Ok(Json(FilesPage { files, next }))
}

/// `GET /v1/xorbs?after=HASH&limit=N`.
pub(super) async fn xorbs(
    State(state): State<AppState>,
    Caller(claims): Caller,
    query: PageQuery,
) -> Result<Json<XorbsPage>, Problem> {
    let after = query.after.map(|hash| hash.parse()).transpose()?;
    let page = state.cas.list_xorbs(&claims, after, query.limit.unwrap_or(u32::MAX)).await?;
    let xorb = |xorb: &XorbEntry| ListedXorb {
        hash: xorb.hash.to_string(),
        chunks: xorb.chunk_count,
        serialized_len: xorb.serialized_len,
        raw_len: xorb.raw_len,
    };
    let xorbs: Vec<_> = page.entries.iter().map(xorb).collect();
    let next = xorbs.last().filter(|_| page.is_full).map(|last| last.hash.clone());
    Ok(Json(XorbsPage { xorbs, next }))
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
