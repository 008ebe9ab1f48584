//! Requests and responses.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write;
use std::io;
use std::net::TcpListener;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Query, Request, State as Shared};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::stream::iter;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::Account;
use crate::presigned::{SIGNATURE, hex, is_signed};
use crate::state::{Fault, Object, Op, State, Upload};

/// Maximum number of names on a page of a list. Real servers have 1000; with few, a test sees
/// several pages.
const PAGE_COUNT: usize = 100;

/// The header with the metadata that zorb writes.
const TAG: &str = "x-amz-meta-zorb-put";

/// A part must not be shorter, except the last one.
const MIN_PART_LEN: usize = 5 << 20;

pub(crate) type Parameters = BTreeMap<String, String>;

/// Serves until `stopped`.
pub(crate) fn serve(listener: TcpListener, state: Arc<Mutex<State>>, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener).expect("the listener is non-blocking");
        let router: Router = Router::new().fallback(respond).with_state(state);
        tokio::select! {
            _ = axum::serve(listener, router) => {}
            _ = stopped => {}
        }
    });
}

async fn respond(
    Shared(state): Shared<Arc<Mutex<State>>>,
    Query(parameters): Query<Parameters>,
    request: Request,
) -> Result<Response, Infallible> {
    let (head, body) = request.into_parts();
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        return Ok(problem(StatusCode::BAD_REQUEST, "IncompleteBody"));
    };
    let path = head.uri.path().trim_start_matches('/').to_owned();
    let (bucket, name) = path.split_once('/').unwrap_or((&path, ""));
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    let is_accepted = state.ignores_signatures && parameters.contains_key(SIGNATURE);
    if let Some(refused) = check(&state.account, &head, &parameters, &body).filter(|_| !is_accepted) {
        return Ok(refused);
    }
    let Some(op) = op_of(&head.method, name, &parameters) else {
        return Ok(problem(StatusCode::NOT_IMPLEMENTED, "NotImplemented"));
    };
    let is_conditional = state.obeys_if_range && head.headers.contains_key("if-range");
    let fault = state.meet(op).or(is_conditional.then_some(Fault::Whole));
    if let Some(Fault::Refused(status)) = fault {
        return Ok(problem(status_of(status), "Refused"));
    }
    if !state.buckets.contains_key(bucket) {
        return Ok(problem(StatusCode::NOT_FOUND, "NoSuchBucket"));
    }
    let at = Place { bucket, name };
    let response = perform(&mut state, op, &at, &parameters, &head.headers, body, fault);
    Ok(match fault {
        Some(Fault::DoneBut(status)) => problem(status_of(status), "DoneAllTheSame"),
        _ => response,
    })
}

/// The object of a request, or the bucket if the name is empty.
struct Place<'a> {
    bucket: &'a str,
    name: &'a str,
}

fn op_of(method: &Method, name: &str, parameters: &Parameters) -> Option<Op> {
    let has = |name: &str| parameters.contains_key(name);
    Some(match *method {
        Method::GET if name.is_empty() && has("list-type") => Op::List,
        Method::GET if !name.is_empty() && has(SIGNATURE) => Op::Signed,
        Method::GET if !name.is_empty() => Op::Get,
        Method::HEAD if !name.is_empty() => Op::Head,
        Method::PUT if has("partNumber") => Op::Part,
        Method::PUT if !name.is_empty() => Op::Put,
        Method::DELETE if has("uploadId") => Op::Abort,
        Method::DELETE if !name.is_empty() => Op::Delete,
        Method::POST if has("uploads") => Op::Begin,
        Method::POST if has("uploadId") => Op::Complete,
        _ => return None,
    })
}

/// Refuses another key, and a body that is not the signed one.
fn check(account: &Account, head: &Parts, parameters: &Parameters, body: &Bytes) -> Option<Response> {
    if parameters.contains_key(SIGNATURE) {
        return (!is_signed(account, head, parameters))
            .then(|| problem(StatusCode::FORBIDDEN, "SignatureDoesNotMatch"));
    }
    let headers = &head.headers;
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let credential = format!("AWS4-HMAC-SHA256 Credential={}/", account.access_key);
    let scope = format!("/{}/s3/", account.region);
    if !text("authorization").starts_with(&credential) || !text("authorization").contains(&scope) {
        return Some(problem(StatusCode::FORBIDDEN, "InvalidAccessKeyId"));
    }
    let signed = text("x-amz-content-sha256");
    let has_hash = !signed.is_empty() && signed != "UNSIGNED-PAYLOAD";
    (has_hash && signed != hex(&Sha256::digest(body)))
        .then(|| problem(StatusCode::BAD_REQUEST, "XAmzContentSHA256Mismatch"))
}

/// Performs a request to an existing bucket.
fn perform(
    state: &mut State,
    op: Op,
    at: &Place<'_>,
    parameters: &Parameters,
    headers: &HeaderMap,
    body: Bytes,
    fault: Option<Fault>,
) -> Response {
    let tag = || headers.get(TAG).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let upload_id = parameters.get("uploadId").map(String::as_str).unwrap_or_default();
    let Some(objects) = state.buckets.get_mut(at.bucket) else {
        return problem(StatusCode::NOT_FOUND, "NoSuchBucket");
    };
    match op {
        Op::List => list(objects, parameters),
        Op::Get | Op::Signed | Op::Head => match objects.get(at.name) {
            Some(object) => send(object, headers, op, fault),
            None => problem(StatusCode::NOT_FOUND, "NoSuchKey"),
        },
        Op::Put => {
            objects.insert(at.name.to_owned(), Object { bytes: body, tag: tag() });
            stored()
        }
        Op::Delete => {
            objects.remove(at.name);
            empty(StatusCode::NO_CONTENT)
        }
        Op::Begin => {
            state.last_upload += 1;
            let id = format!("upload-{}", state.last_upload);
            let (bucket, name) = (at.bucket.to_owned(), at.name.to_owned());
            state.uploads.insert(id.clone(), Upload { bucket, name, tag: tag(), parts: BTreeMap::new() });
            xml(&format!("<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"))
        }
        Op::Part => match (state.uploads.get_mut(upload_id), parameters.get("partNumber").map(|text| text.parse())) {
            (Some(upload), Some(Ok(number))) if upload.name == at.name && upload.bucket == at.bucket => {
                upload.parts.insert(number, body);
                stored()
            }
            _ => problem(StatusCode::NOT_FOUND, "NoSuchUpload"),
        },
        Op::Complete => complete(state, upload_id, at),
        Op::Abort => match state.uploads.remove(upload_id) {
            Some(_) => empty(StatusCode::NO_CONTENT),
            None => problem(StatusCode::NOT_FOUND, "NoSuchUpload"),
        },
    }
}

/// Like Garage, does not find an upload that was completed before.
fn complete(state: &mut State, upload_id: &str, at: &Place<'_>) -> Response {
    let Some(upload) = state.uploads.remove(upload_id) else {
        return problem(StatusCode::NOT_FOUND, "NoSuchUpload");
    };
    let count = u32::try_from(upload.parts.len()).unwrap_or(u32::MAX);
    let all_but_last = upload.parts.values().take(upload.parts.len().saturating_sub(1));
    if !upload.parts.keys().copied().eq(1..=count) || all_but_last.into_iter().any(|part| part.len() < MIN_PART_LEN) {
        return problem(StatusCode::BAD_REQUEST, "InvalidPart");
    }
    let mut bytes = BytesMut::new();
    upload.parts.values().for_each(|part| bytes.extend_from_slice(part));
    let object = Object { bytes: bytes.freeze(), tag: upload.tag };
    state.buckets.entry(upload.bucket).or_default().insert(upload.name, object);
    xml(&format!(
        "<CompleteMultipartUploadResult><Key>{}</Key><ETag>\"etag\"</ETag></CompleteMultipartUploadResult>",
        at.name
    ))
}

/// Sends an object, or the one range that was requested.
fn send(object: &Object, headers: &HeaderMap, op: Op, fault: Option<Fault>) -> Response {
    let len = object.bytes.len();
    let range = headers.get("range").and_then(|value| value.to_str().ok()).and_then(range_of);
    let range = range.filter(|_| fault != Some(Fault::Whole));
    let (status, part) = match range {
        None => (StatusCode::OK, 0..len),
        Some(range) if range.start >= len => return problem(StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange"),
        Some(range) => (StatusCode::PARTIAL_CONTENT, range.start..range.end.min(len)),
    };
    let mut response = Response::builder()
        .status(status)
        .header("content-length", part.len())
        .header("last-modified", httpdate::fmt_http_date(UNIX_EPOCH))
        .header("etag", "\"etag\"");
    if status == StatusCode::PARTIAL_CONTENT {
        response = response.header("content-range", format!("bytes {}-{}/{len}", part.start, part.end - 1));
    }
    if let Some(tag) = &object.tag {
        response = response.header(TAG, tag);
    }
    let bytes = object.bytes.slice(part);
    let body = match fault {
        _ if op == Op::Head => Body::empty(),
        Some(Fault::CutAfter(len)) => {
            let sent = bytes.slice(..len.min(bytes.len()));
            Body::from_stream(iter([Ok(sent), Err(io::Error::other("cut"))]))
        }
        _ => Body::from(bytes),
    };
    response.body(body).expect("the headers are valid")
}

/// The range of a header `bytes=0-9`, half-open.
fn range_of(text: &str) -> Option<Range<usize>> {
    let (start, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let (start, last): (u64, u64) = (start.parse().ok()?, last.parse().ok()?);
    let at = |offset| usize::try_from(offset).unwrap_or(usize::MAX);
    Some(at(start)..at(last.saturating_add(1)))
}

fn list(objects: &BTreeMap<String, Object>, parameters: &Parameters) -> Response {
    let text = |name: &str| parameters.get(name).map(String::as_str).unwrap_or_default();
    let (prefix, delimiter) = (text("prefix"), text("delimiter"));
    let after = text("continuation-token").max(text("start-after"));
    let (mut contents, mut directories, mut last) = (String::new(), Vec::<String>::new(), None);
    let mut count = 0;
    let mut is_truncated = false;
    for (name, object) in objects.range(after.to_owned()..).filter(|(name, _)| name.as_str() > after) {
        let Some(rest) = name.strip_prefix(prefix) else { continue };
        let directory = (!delimiter.is_empty()).then(|| rest.split_once(delimiter)).flatten();
        let directory = directory.map(|(directory, _)| format!("{prefix}{directory}{delimiter}"));
        if directory
            .as_ref()
            .is_some_and(|directory| directories.last() == Some(directory) || directory.as_str() <= after)
        {
            last = Some(name);
            continue;
        }
        if count == PAGE_COUNT {
            is_truncated = true;
            break;
        }
        count += 1;
        last = Some(name);
        match directory {
            Some(directory) => directories.push(directory),
            None => {
                let len = object.bytes.len();
                let _ = write!(
                    contents,
                    "<Contents><Key>{name}</Key><LastModified>1970-01-01T00:00:00.000Z</LastModified>\
                     <ETag>\"etag\"</ETag><Size>{len}</Size></Contents>"
                );
            }
        }
    }
    let directories = directories.iter().fold(String::new(), |mut text, directory| {
        let _ = write!(text, "<CommonPrefixes><Prefix>{directory}</Prefix></CommonPrefixes>");
        text
    });
    let token =
        last.filter(|_| is_truncated).map(|name| format!("<NextContinuationToken>{name}</NextContinuationToken>"));
    xml(&format!(
        "<ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>{}{contents}{directories}</ListBucketResult>",
        token.unwrap_or_default()
    ))
}

fn stored() -> Response {
    Response::builder().header("etag", "\"etag\"").body(Body::empty()).expect("the headers are valid")
}

fn empty(status: StatusCode) -> Response {
    Response::builder().status(status).body(Body::empty()).expect("the headers are valid")
}

fn xml(text: &str) -> Response {
    Response::builder().header("content-type", "application/xml").body(text.to_owned().into()).expect("it is valid")
}

fn problem(status: StatusCode, code: &str) -> Response {
    let mut response = xml(&format!("<Error><Code>{code}</Code></Error>"));
    *response.status_mut() = status;
    response
}

fn status_of(status: u16) -> StatusCode {
    StatusCode::from_u16(status).expect("a fault has a valid status")
}
