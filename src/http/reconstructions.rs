//! The routes that say what a file is made of (spec 5.1 to 5.3, 5.5).

use std::collections::HashMap;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::header::{CONTENT_LENGTH, RANGE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::IntoResponse;
use serde_json::{Map, Value, json};

use super::AppState;
use super::auth::anonymous;
use super::error::{Code, Problem};
use super::range::{RangeError, parse_byte_ranges};
use super::transfer::Urls;
use crate::format::{ByteRange, FileHash, ParseHashError};
use crate::service::reconstruct::{PlannedTerm, XorbPlan};
use crate::service::{Detail, Reconstruction};

/// `GET /v2/reconstructions/{file}`.
pub(super) async fn v2(
    State(state): State<AppState>,
    Path(file): Path<String>,
    Query(query): Query<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Result<Json<Value>, Problem> {
    let (found, urls) = reconstruct(&state, &file, detail(&query), &headers).await?;
    let mut xorbs = Map::new();
    for xorb in &found.plan.xorbs {
        let entries = urls.sign(xorb.xorb, &xorb.descriptors).into_iter().map(|(url, descriptors)| {
            let ranges: Vec<Value> = descriptors
                .iter()
                .map(|part| {
                    json!({
                        "chunks": { "start": part.chunks.start(), "end": part.chunks.end() },
                        "bytes": { "start": part.bytes.start(), "end": part.bytes.last() },
                    })
                })
                .collect();
            json!({ "url": url, "ranges": ranges })
        });
        xorbs.insert(xorb.xorb.to_string(), entries.collect());
    }
    Ok(Json(json!({
        "offset_into_first_range": found.plan.file.offset_into_first_range,
        "terms": detailed_terms(&found),
        "xorbs": xorbs,
    })))
}

/// `GET /v1/reconstructions/{file}`.
pub(super) async fn v1(
    State(state): State<AppState>,
    Path(file): Path<String>,
    Query(query): Query<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Result<Json<Value>, Problem> {
    let (found, urls) = reconstruct(&state, &file, detail(&query), &headers).await?;
    Ok(Json(json!({
        "offset_into_first_range": found.plan.file.offset_into_first_range,
        "terms": detailed_terms(&found),
        "fetch_info": fetch_info(&urls, &found.plan.xorbs),
    })))
}

/// `GET /v1/reconstructions?file_id=…&file_id=…`.
pub(super) async fn batch_get(
    State(state): State<AppState>,
    Query(pairs): Query<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Result<Json<Value>, Problem> {
    let files = pairs.iter().filter(|(name, _)| name == "file_id").map(|(_, value)| value.parse());
    batch(&state, files.collect::<Result<_, ParseHashError>>()?, &headers).await
}

/// `POST /v1/reconstructions` with `[{"prefix":…,"hash":…}]`.
pub(super) async fn batch_post(
    State(state): State<AppState>,
    headers: HeaderMap,
    Json(keys): Json<Vec<HashMap<String, String>>>,
) -> Result<Json<Value>, Problem> {
    let files = keys.iter().map(|key| key.get("hash").map_or("", String::as_str).parse());
    batch(&state, files.collect::<Result<_, ParseHashError>>()?, &headers).await
}

/// `HEAD /v1/files/{file}`: the length of a file.
pub(super) async fn file_head(
    State(state): State<AppState>,
    Path(file): Path<String>,
) -> Result<impl IntoResponse, Problem> {
    let file: FileHash = file.parse()?;
    let len = state.cas.file_len(&anonymous(), file).await?.ok_or_else(|| no_such_file(file))?;
    Ok((StatusCode::OK, [(CONTENT_LENGTH, HeaderValue::from(len))]))
}

/// `?chunk_byte_sizes=true` asks for the raw length of every chunk (spec 5.1).
fn detail(query: &[(String, String)]) -> Detail {
    let is_asked = query.iter().any(|(name, value)| name == "chunk_byte_sizes" && value == "true");
    if is_asked { Detail::Chunks } else { Detail::Terms }
}

async fn reconstruct(
    state: &AppState,
    file: &str,
    detail: Detail,
    headers: &HeaderMap,
) -> Result<(Reconstruction, Urls), Problem> {
    let file: FileHash = file.parse()?;
    let range = match headers.get(RANGE) {
        None => None,
        Some(text) => Some(file_range(state, file, text).await?),
    };
    let found = state.cas.reconstruct(&anonymous(), file, range, detail).await?;
    Ok((found, Urls::new(state, headers)))
}

/// One range of the file's bytes. A malformed one is a 400: a client reads a 416 as "past the end" (spec 9, row 33).
async fn file_range(state: &AppState, file: FileHash, text: &HeaderValue) -> Result<ByteRange, Problem> {
    let malformed =
        || Problem::new(Code::InvalidRange, "The Range header is not `bytes=A-B`, `bytes=A-` or `bytes=-N`.");
    let len = match state.cas.file_len(&anonymous(), file).await? {
        Some(len) => len,
        None if file == FileHash::EMPTY => 0,
        None => return Err(no_such_file(file)),
    };
    match parse_byte_ranges(text.to_str().map_err(|_| malformed())?, len) {
        Ok(Some(ranges)) => match ranges.as_slice() {
            [range] => Ok(*range),
            _ => Err(malformed()),
        },
        Ok(None) | Err(RangeError::Malformed) => Err(malformed()),
        Err(RangeError::NotSatisfiable) => {
            let detail = format!("The file has {len} bytes; the range begins behind them.");
            Err(Problem::new(Code::RangeNotSatisfiable, detail).unsatisfied(len))
        }
    }
}

async fn batch(state: &AppState, files: Vec<FileHash>, headers: &HeaderMap) -> Result<Json<Value>, Problem> {
    let found = state.cas.reconstruct_all(&anonymous(), &files).await?;
    let files: Map<String, Value> =
        files.iter().zip(&found.files).map(|(hash, file)| (hash.to_string(), terms(&file.terms))).collect();
    let urls = Urls::new(state, headers);
    Ok(Json(json!({ "files": files, "fetch_info": fetch_info(&urls, &found.xorbs) })))
}

/// The terms, with the lengths of their chunks where there are any.
fn detailed_terms(found: &Reconstruction) -> Value {
    let Some(lens) = &found.chunk_raw_lens else { return terms(&found.plan.file.terms) };
    let term = |(term, lens): (&PlannedTerm, &Vec<u32>)| {
        let mut term = term_json(term);
        term["chunk_byte_sizes"] = json!(lens);
        term
    };
    found.plan.file.terms.iter().zip(lens).map(term).collect()
}

fn terms(terms: &[PlannedTerm]) -> Value {
    terms.iter().map(term_json).collect()
}

fn term_json(term: &PlannedTerm) -> Value {
    json!({
        "hash": term.xorb.to_string(),
        "unpacked_length": term.raw_len,
        "range": { "start": term.chunks.start(), "end": term.chunks.end() },
    })
}

/// Version 1: a URL for every descriptor.
fn fetch_info(urls: &Urls, xorbs: &[XorbPlan]) -> Value {
    let entries = |xorb: &XorbPlan| -> Value {
        let parts = xorb.descriptors.iter().flat_map(|part| urls.sign(xorb.xorb, std::slice::from_ref(part)));
        parts
            .flat_map(|(url, descriptors)| descriptors.iter().map(move |part| (url.clone(), *part)).collect::<Vec<_>>())
            .map(|(url, part)| {
                json!({
                    "range": { "start": part.chunks.start(), "end": part.chunks.end() },
                    "url": url,
                    "url_range": { "start": part.bytes.start(), "end": part.bytes.last() },
                })
            })
            .collect()
    };
    let xorbs: Map<String, Value> = xorbs.iter().map(|xorb| (xorb.xorb.to_string(), entries(xorb))).collect();
    Value::Object(xorbs)
}

fn no_such_file(file: FileHash) -> Problem {
    Problem::new(Code::NotFound, format!("There is no file {file}."))
}
