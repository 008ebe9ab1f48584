//! Lists of files and of xorbs, a page at a time.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query, State};
use axum::http::request::Parts;
use serde_json::{Value, json};

use super::AppState;
use super::auth::anonymous;
use super::error::{Code, Problem};
use crate::service::{FileEntry, ListError, Page, XorbEntry};

/// Where a page begins, and how much is on it: the parameters `after` and `limit`.
#[derive(Debug, Default)]
pub(super) struct PageQuery {
    after: Option<String>,
    limit: Option<u32>,
}

impl<S: Send + Sync> FromRequestParts<S> for PageQuery {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let garbled = |_: QueryRejection| Problem::new(Code::InvalidRange, "The query string is garbled.");
        let Query(pairs) = Query::<Vec<(String, String)>>::from_request_parts(parts, state).await.map_err(garbled)?;
        let mut query = Self::default();
        for (name, value) in pairs {
            match name.as_str() {
                "after" => query.after = Some(value),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| *limit > 0);
                    let malformed = || Problem::new(Code::InvalidRange, "The parameter limit is a number above 0.");
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
pub(super) async fn files(State(state): State<AppState>, query: PageQuery) -> Result<Json<Value>, Problem> {
    let after = query.after.map(|hash| hash.parse()).transpose()?;
    let page = state.cas.list_files(&anonymous(), after, query.limit.unwrap_or(u32::MAX)).await?;
    let file = |file: &FileEntry| {
        json!({
            "hash": file.hash.to_string(),
            "len": file.raw_len,
            "sha256": file.sha256.map(|sha256| sha256.to_string()),
            "registered_unix_secs": file.registered.as_secs(),
        })
    };
    Ok(Json(answer("files", &page, file)))
}

/// `GET /v1/xorbs?after=HASH&limit=N`.
pub(super) async fn xorbs(State(state): State<AppState>, query: PageQuery) -> Result<Json<Value>, Problem> {
    let after = query.after.map(|hash| hash.parse()).transpose()?;
    let page = state.cas.list_xorbs(&anonymous(), after, query.limit.unwrap_or(u32::MAX)).await?;
    let xorb = |xorb: &XorbEntry| {
        json!({
            "hash": xorb.hash.to_string(),
            "chunks": xorb.chunk_count,
            "serialized_len": xorb.serialized_len,
            "raw_len": xorb.raw_len,
        })
    };
    Ok(Json(answer("xorbs", &page, xorb)))
}

/// A page; `next` is what to give as `after` for the next one.
fn answer<E>(name: &str, page: &Page<E>, entry: impl Fn(&E) -> Value) -> Value {
    let entries: Vec<Value> = page.entries.iter().map(entry).collect();
    let last = entries.last().filter(|_| page.is_full).map(|last| last["hash"].clone());
    json!({ name: entries, "next": last })
}

impl From<ListError> for Problem {
    fn from(error: ListError) -> Self {
        match error {
            ListError::OneRepository => {
                Self::new(Code::Forbidden, "Xorbs belong to no repository; listing them takes a token for all of them.")
            }
            ListError::Store(error) => error.into(),
        }
    }
}
