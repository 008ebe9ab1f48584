//! The routes that list files and xorbs, one page per request, in the order of the hashes.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query, State};
use axum::http::request::Parts;

use super::auth::Caller;
use super::error::{Code, Problem};
use crate::service::access::Reason;
use crate::service::{FileEntry, ListError, Server, XorbEntry};
use crate::wire::{FilesPage, ListedFile, ListedXorb, XorbsPage};

/// The query parameters `after` and `limit` of a page.
#[derive(Debug, Default)]
pub(super) struct PageQuery {
    /// The hash after which the page begins.
    after: Option<String>,
    /// Maximum number of entries.
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
                    let detail = "The parameter limit must be a number above 0.";
                    let malformed = || Problem::new(Code::InvalidRequest, detail);
                    query.limit = Some(limit.ok_or_else(malformed)?);
                }
                // Unknown parameters are ignored, because proxies and signers add their own.
                _ => {}
            }
        }
        Ok(query)
    }
}

/// `GET /v1/files?after=HASH&limit=N`: a page of the files that the token may read.
pub(super) async fn files(
    State(server): State<Arc<Server>>,
    Caller(claims): Caller,
    query: PageQuery,
) -> Result<Json<FilesPage>, Problem> {
    let after = query.after.map(|hash| hash.parse()).transpose()?;
    let page = server.list_files(&claims, after, query.limit.unwrap_or(u32::MAX)).await?;
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

/// `GET /v1/xorbs?after=HASH&limit=N`: a page of all xorbs.
pub(super) async fn xorbs(
    State(server): State<Arc<Server>>,
    Caller(claims): Caller,
    query: PageQuery,
) -> Result<Json<XorbsPage>, Problem> {
    let after = query.after.map(|hash| hash.parse()).transpose()?;
    let page = server.list_xorbs(&claims, after, query.limit.unwrap_or(u32::MAX)).await?;
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
                Self::new(Code::Forbidden, "Listing xorbs requires a token for all repositories.").because(Reason::Repo)
            }
            ListError::Store(error) => error.into(),
        }
    }
}
