//! The routes that say what a file is made of (spec 5.1 to 5.3, 5.5).

use std::collections::{BTreeMap, HashSet};
use std::mem;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::header::RANGE;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;

use super::AppState;
use super::auth::Caller;
use super::body::PacedBody;
use super::error::{Code, Problem};
use super::extract::HashPath;
use super::origin::BaseUrl;
use super::range::{RangeError, parse_byte_ranges};
use super::render::json;
use super::sending::RequestContext;
use super::transfer::Urls;
use super::wire::{FileKeysJson, ReconstructionV1Json};
use crate::format::{ByteRange, FileHash, ParseHashError};
use crate::runtime::fair::Tenant;
use crate::service::access::Claims;
use crate::service::reconstruct::{BatchPlan, PlannedTerm, XorbPlan};
use crate::service::{BatchReconstruction, Detail, Reconstruction};
use crate::wire::{BatchJson, DescriptorJson, FetchInfoJson, FetchJson, ReconstructionV2Json, TermJson};

/// Files of one query, at most.
const MAX_BATCH_COUNT: usize = 1000;

/// Files in the query of one request, as the API description says. More do not fit into the head
/// of a request through common proxies, which is 32 KiB.
pub(super) const MAX_QUERY_COUNT: usize = 400;

/// Bytes of a query for several files, at most: some 100 for each.
const MAX_BATCH_BODY_LEN: u64 = 256 << 10;

/// `GET /v2/reconstructions/{file}`.
pub(super) async fn v2(
    State(state): State<AppState>,
    Caller(claims): Caller,
    RequestContext { tenant, .. }: RequestContext,
    base: BaseUrl,
    HashPath(file): HashPath<FileHash>,
    Query(query): Query<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let urls = Urls::new(&state, base, tenant);
    let mut found = reconstruct(&state, &claims, file, detail(&query), &headers).await?;
    let budget = mem::take(&mut found.budget);
    let item_count = item_count(&found);
    let response = move || ReconstructionV2Json {
        offset_into_first_range: found.plan.file.offset_into_first_range,
        terms: detailed_terms(&found),
        xorbs: found.plan.xorbs.iter().map(|xorb| (xorb.xorb.to_string(), fetch(&urls, xorb))).collect(),
    };
    json(&state, item_count, budget, response).await
}

/// `GET /v1/reconstructions/{file}`.
pub(super) async fn v1(
    State(state): State<AppState>,
    Caller(claims): Caller,
    RequestContext { tenant, .. }: RequestContext,
    base: BaseUrl,
    HashPath(file): HashPath<FileHash>,
    Query(query): Query<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let urls = Urls::new(&state, base, tenant);
    let mut found = reconstruct(&state, &claims, file, detail(&query), &headers).await?;
    let budget = mem::take(&mut found.budget);
    let item_count = item_count(&found);
    let response = move || ReconstructionV1Json {
        offset_into_first_range: found.plan.file.offset_into_first_range,
        terms: detailed_terms(&found),
        fetch_info: fetch_info(&urls, &found.plan.xorbs),
    };
    json(&state, item_count, budget, response).await
}

/// `GET /v1/reconstructions?file_id=…&file_id=…`.
pub(super) async fn batch_get(
    State(state): State<AppState>,
    Caller(claims): Caller,
    RequestContext { tenant, .. }: RequestContext,
    base: BaseUrl,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Result<Response, Problem> {
    let files: Vec<&str> =
        pairs.iter().filter(|(name, _)| name == "file_id").map(|(_, value)| value.as_str()).collect();
    if files.len() > MAX_QUERY_COUNT {
        let detail = format!("A query names at most {MAX_QUERY_COUNT} files; split it, or use POST with a JSON list.");
        return Err(Problem::new(Code::InvalidRequest, detail));
    }
    let files = files.into_iter().map(str::parse);
    batch(&state, (tenant, &claims), base, files.collect::<Result<_, ParseHashError>>()?).await
}

/// `POST /v1/reconstructions` with `[{"prefix":…,"hash":…}]`.
pub(super) async fn batch_post(
    State(state): State<AppState>,
    Caller(claims): Caller,
    RequestContext { tenant, .. }: RequestContext,
    base: BaseUrl,
    body: Body,
) -> Result<Response, Problem> {
    let body = PacedBody::new(body, &state).collect(MAX_BATCH_BODY_LEN).await?;
    let keys: FileKeysJson = serde_json::from_slice(&body).map_err(|error| {
        tracing::debug!(%error, "malformed batch query");
        let detail = "The body must be a JSON list of files, [{\"prefix\":\"default\",\"hash\":…}], with that \
            content type.";
        Problem::new(Code::InvalidRequest, detail)
    })?;
    let files = keys.0.iter().map(|key| key.hash.parse());
    // Only now: a permit must not be held while a body arrives.
    let _permit = state.cas.lookup_permit(tenant).await?;
    batch(&state, (tenant, &claims), base, files.collect::<Result<_, ParseHashError>>()?).await
}

/// `?chunk_byte_sizes=true` asks for the raw length of every chunk (spec 5.1).
fn detail(query: &[(String, String)]) -> Detail {
    let is_asked = query.iter().any(|(name, value)| name == "chunk_byte_sizes" && value == "true");
    if is_asked { Detail::Chunks } else { Detail::Terms }
}

async fn reconstruct(
    state: &AppState,
    claims: &Claims,
    file: FileHash,
    detail: Detail,
    headers: &HeaderMap,
) -> Result<Reconstruction, Problem> {
    let range = match headers.get(RANGE) {
        None => None,
        Some(text) => Some(file_range(state, claims, file, text).await?),
    };
    Ok(state.cas.reconstruct(claims, file, range, detail).await?)
}

/// One range of the file's bytes. A malformed one is a 400: a client reads a 416 as "past the end"
/// (spec 9, row 33).
async fn file_range(
    state: &AppState,
    claims: &Claims,
    file: FileHash,
    text: &HeaderValue,
) -> Result<ByteRange, Problem> {
    let malformed =
        || Problem::new(Code::InvalidRange, "The Range header must be `bytes=A-B`, `bytes=A-` or `bytes=-N`.");
    let len = match state.cas.file_len(claims, file).await? {
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
            let detail = format!("The file has {len} bytes; the range begins after its end.");
            Err(Problem::new(Code::RangeNotSatisfiable, detail).unsatisfied(len))
        }
    }
}

async fn batch(
    state: &AppState,
    (tenant, claims): (Tenant, &Claims),
    base: BaseUrl,
    mut files: Vec<FileHash>,
) -> Result<Response, Problem> {
    // The response has each file once, however often the request names it.
    let mut seen = HashSet::new();
    files.retain(|file| seen.insert(*file));
    if files.len() > MAX_BATCH_COUNT {
        let detail = format!("One query may name at most {MAX_BATCH_COUNT} files; split it.");
        return Err(Problem::new(Code::InvalidRequest, detail));
    }
    let urls = Urls::new(state, base, tenant);
    let BatchReconstruction { plan: BatchPlan { files: plans, xorbs }, budget } =
        state.cas.reconstruct_all(claims, &files).await?;
    let item_count = plans.iter().map(|file| file.terms.len()).sum::<usize>() + descriptor_count(&xorbs);
    let build = move || BatchJson {
        files: files.iter().zip(&plans).map(|(hash, file)| (hash.to_string(), terms(&file.terms))).collect(),
        fetch_info: fetch_info(&urls, &xorbs),
    };
    json(state, item_count, budget, build).await
}

/// Items of a response: terms, lengths of chunks, and parts of xorbs.
fn item_count(found: &Reconstruction) -> usize {
    let lens = found.chunk_raw_lens.iter().flatten();
    found.plan.file.terms.len() + lens.map(Vec::len).sum::<usize>() + descriptor_count(&found.plan.xorbs)
}

fn descriptor_count(xorbs: &[XorbPlan]) -> usize {
    xorbs.iter().map(|xorb| xorb.descriptors.len()).sum()
}

/// The terms, with the lengths of their chunks where there are any.
fn detailed_terms(found: &Reconstruction) -> Vec<TermJson> {
    let mut terms = terms(&found.plan.file.terms);
    for (term, lens) in terms.iter_mut().zip(found.chunk_raw_lens.iter().flatten()) {
        term.chunk_byte_sizes = Some(lens.clone());
    }
    terms
}

fn terms(terms: &[PlannedTerm]) -> Vec<TermJson> {
    terms.iter().map(TermJson::from).collect()
}

/// Version 2: a URL for as many descriptors as one may have.
fn fetch(urls: &Urls, xorb: &XorbPlan) -> Vec<FetchJson> {
    let parts = urls.sign(xorb, &xorb.descriptors).into_iter();
    parts
        .map(|(url, descriptors)| {
            let ranges = descriptors.iter();
            let ranges = ranges.map(|part| DescriptorJson { chunks: part.chunks.into(), bytes: part.bytes.into() });
            FetchJson { url, ranges: ranges.collect() }
        })
        .collect()
}

/// Version 1: a URL for every descriptor.
fn fetch_info(urls: &Urls, xorbs: &[XorbPlan]) -> BTreeMap<String, Vec<FetchInfoJson>> {
    let entries = |xorb: &XorbPlan| -> Vec<FetchInfoJson> {
        let signed = |part| {
            let signed = urls.sign(xorb, std::slice::from_ref(part)).into_iter();
            signed.map(move |(url, _)| FetchInfoJson { range: part.chunks.into(), url, url_range: part.bytes.into() })
        };
        xorb.descriptors.iter().flat_map(signed).collect()
    };
    xorbs.iter().map(|xorb| (xorb.xorb.to_string(), entries(xorb))).collect()
}

pub(super) fn no_such_file(file: FileHash) -> Problem {
    Problem::new(Code::NotFound, format!("File {file} not found."))
}
