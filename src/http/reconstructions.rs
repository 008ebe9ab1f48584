//! The routes for reconstructions of files (spec 5.1 to 5.3, 5.5). A reconstruction lists the terms
//! of a file, which are runs of chunks of xorbs, and signed URLs for the bytes of these xorbs.

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

/// Maximum number of files in one query.
const MAX_BATCH_COUNT: usize = 1000;

/// Maximum number of files in the query string of a request. The API description has it, too. More
/// files do not fit into a request head of 32 KiB, which is the limit of common proxies.
pub(super) const MAX_QUERY_COUNT: usize = 400;

/// Maximum length of the body of a query for several files. Each file takes about 100 bytes.
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
    let urls = urls.of(descriptor_count(&found.plan.xorbs));
    let item_count = item_count(&found, &urls);
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
    let urls = urls.of(descriptor_count(&found.plan.xorbs));
    let item_count = item_count(&found, &urls);
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
    // Acquired after the body was received, because a permit must not wait for a client.
    let _permit = state.server.lookup_permit(tenant).await?;
    batch(&state, (tenant, &claims), base, files.collect::<Result<_, ParseHashError>>()?).await
}

/// How detailed the response is: `?chunk_byte_sizes=true` requests the raw length of every chunk
/// (spec 5.1).
fn detail(query: &[(String, String)]) -> Detail {
    let is_asked = query.iter().any(|(name, value)| name == "chunk_byte_sizes" && value == "true");
    if is_asked { Detail::Chunks } else { Detail::Terms }
}

/// Plans the reconstruction of a file, or of the range in the `Range` header.
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
    Ok(state.server.reconstruct(claims, file, range, detail).await?)
}

/// Parses a `Range` header with one range of the file's bytes. The response to a malformed range is
/// a 400, because a client takes a 416 for "past the end" (spec 9, row 33).
async fn file_range(
    state: &AppState,
    claims: &Claims,
    file: FileHash,
    text: &HeaderValue,
) -> Result<ByteRange, Problem> {
    let malformed =
        || Problem::new(Code::InvalidRange, "The Range header must be `bytes=A-B`, `bytes=A-` or `bytes=-N`.");
    let len = match state.server.file_len(claims, file).await? {
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

/// Responds to a query for several files.
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
        state.server.reconstruct_all(claims, &files).await?;
    let urls = urls.of(descriptor_count(&xorbs));
    let term_count: usize = plans.iter().map(|file| file.terms.len()).sum();
    let item_count = term_count + urls.item_count(descriptor_count(&xorbs));
    let build = move || BatchJson {
        files: files.iter().zip(&plans).map(|(hash, file)| (hash.to_string(), terms(&file.terms))).collect(),
        fetch_info: fetch_info(&urls, &xorbs),
    };
    json(state, item_count, budget, build).await
}

/// Number of items in a response: terms, lengths of chunks, and parts of xorbs.
fn item_count(found: &Reconstruction, urls: &Urls) -> usize {
    let lens = found.chunk_raw_lens.iter().flatten();
    let part_count = urls.item_count(descriptor_count(&found.plan.xorbs));
    found.plan.file.terms.len() + lens.map(Vec::len).sum::<usize>() + part_count
}

fn descriptor_count(xorbs: &[XorbPlan]) -> usize {
    xorbs.iter().map(|xorb| xorb.descriptors.len()).sum()
}

/// The terms, with the lengths of their chunks if they were requested.
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

/// The URLs of a xorb in version 2: one URL for up to `MAX_URL_RANGE_COUNT` parts of the xorb, or
/// for one part if the URL is of the S3 store.
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

/// The URLs of xorbs in version 1: one URL for every part of a xorb.
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

/// The response for a file that does not exist, or that the caller may not read.
pub(super) fn no_such_file(file: FileHash) -> Problem {
    Problem::new(Code::NotFound, format!("File {file} not found."))
}
