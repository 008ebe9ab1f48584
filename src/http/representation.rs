//! Responses with bytes of a xorb or a file (RFC 9110): conditions, ranges, headers, and the stream
//! of bytes.

use std::fmt::Write;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, RANGE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::stream::{StreamExt, TryStreamExt, iter, once};

use super::AppState;
use super::auth::Auth;
use super::conditions::{if_match, if_none_match, if_range};
use super::error::{Code, Problem};
use super::range::{RangeError, parse_byte_ranges};
use super::sending::{RequestContext, Sending};
use crate::format::{ByteRange, ChunkRange};
use crate::service::{Form, ReadError, ReadStream, RegisteredFile, Server, StoredXorb};

/// The header with the chunks of a response, as a half-open range like that in `?range=`.
pub(super) const X_XORB_CHUNK_RANGE: HeaderName = HeaderName::from_static("x-xorb-chunk-range");

/// The header with the half-open byte range of these chunks in the whole xorb, in the requested
/// form.
pub(super) const X_XORB_BYTE_RANGE: HeaderName = HeaderName::from_static("x-xorb-byte-range");

/// `Cache-Control` without authentication. The contents under a hash never change. The serialized
/// bytes of a xorb may change, and then its `ETag` changes. A cached old serialization stays valid,
/// because it has the same chunks.
const CACHE_FOREVER: HeaderValue = HeaderValue::from_static("public, immutable, max-age=31536000");

/// `Cache-Control` with authentication. Shared caches must not store the response, because they
/// would serve it without a token.
const CACHE_PRIVATELY: HeaderValue = HeaderValue::from_static("private, immutable, max-age=31536000");

/// Number of headers of a response, with those for security and `X-Request-Id`. Capacity for all of
/// them is reserved at once, because a header map that grows is rehashed.
const HEADER_COUNT: usize = 14;

/// `Content-Type` of bytes of any kind.
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Bytes that do not change while they are sent. Ranges of them can be read.
pub(super) trait Resource: Clone + Send + Sync + 'static {
    /// The name of this kind of resource in an error message.
    const NAME: &'static str;

    /// The length in bytes.
    fn byte_len(&self) -> u64;

    /// Adds headers that describe the resource.
    fn describe(&self, headers: &mut HeaderMap);

    /// For a xorb, adds its number of chunks to the problem of a range that does not exist.
    fn add_chunk_count(&self, problem: Problem) -> Problem;

    /// Opens a stream of the bytes in a range, which counts from the start of the resource.
    fn read(self, server: Arc<Server>, bytes: ByteRange) -> impl Future<Output = Result<ReadStream, ReadError>> + Send;
}

/// Some chunks of a xorb, in one form.
#[derive(Clone, Debug)]
pub(super) struct XorbPart {
    xorb: Arc<StoredXorb>,
    form: Form,
    chunks: ChunkRange,
    /// The byte range of these chunks in the whole xorb, in this form.
    bytes: ByteRange,
}

impl Resource for XorbPart {
    const NAME: &'static str = "xorb";

    fn byte_len(&self) -> u64 {
        self.bytes.byte_len()
    }

    fn describe(&self, headers: &mut HeaderMap) {
        headers.insert(X_XORB_CHUNK_RANGE, value(self.chunks.to_string()));
        headers.insert(X_XORB_BYTE_RANGE, value(self.bytes.to_string()));
    }

    fn add_chunk_count(&self, problem: Problem) -> Problem {
        problem.with("chunks", self.xorb.layout().chunk_count())
    }

    async fn read(self, server: Arc<Server>, bytes: ByteRange) -> Result<ReadStream, ReadError> {
        let offset = self.bytes.start();
        let moved = ByteRange::new(offset + bytes.start(), offset + bytes.end());
        server.store.read(&self.xorb, self.form, moved.expect("moving a range does not empty it")).await
    }
}

impl Resource for RegisteredFile {
    const NAME: &'static str = "file";

    fn byte_len(&self) -> u64 {
        self.len
    }

    fn describe(&self, _: &mut HeaderMap) {}

    fn add_chunk_count(&self, problem: Problem) -> Problem {
        problem
    }

    async fn read(self, server: Arc<Server>, bytes: ByteRange) -> Result<ReadStream, ReadError> {
        server.read_file(self, bytes).await
    }
}

/// A resource with its `ETag` and `Cache-Control`.
#[derive(Debug)]
pub(super) struct Representation<R> {
    resource: R,
    etag: String,
    cache: HeaderValue,
}

impl Representation<XorbPart> {
    /// The representation of these chunks, which must be chunks of the xorb.
    pub(super) fn new(xorb: Arc<StoredXorb>, form: Form, chunks: ChunkRange) -> Self {
        let layout = xorb.layout();
        let bytes = match form {
            Form::Serialized => layout.serialized_range(chunks),
            Form::Raw => layout.raw_range(chunks),
        };
        let bytes = bytes.expect("the chunks were parsed against this layout");
        let etag = etag(&xorb, form, chunks);
        Self { resource: XorbPart { xorb, form, chunks, bytes }, etag, cache: CACHE_PRIVATELY }
    }
}

impl Representation<RegisteredFile> {
    /// The representation of a file. Its `ETag` is its hash, because the bytes under a hash never
    /// change.
    pub(super) fn of_file(file: RegisteredFile) -> Self {
        let etag = format!("\"{}\"", file.hash);
        Self { resource: file, etag, cache: CACHE_PRIVATELY }
    }
}

impl Representation<RegisteredFile> {
    /// The representation of a file of a revision, with the `ETag` of the caller. A revision may
    /// have another file later, so the caller must replace `Cache-Control` in the response.
    pub(super) fn of_revision(file: RegisteredFile, etag: String) -> Self {
        Self { resource: file, etag, cache: CACHE_PRIVATELY }
    }
}

impl<R: Resource> Representation<R> {
    /// Responds to a GET or HEAD request.
    pub(super) async fn respond(
        mut self,
        state: &AppState,
        method: &Method,
        headers: &HeaderMap,
        context: RequestContext,
    ) -> Result<Response<Body>, Problem> {
        if state.shared.auth == Auth::Off {
            self.cache = CACHE_FOREVER;
        }
        // RFC 9110, section 13.2.2, prescribes this order of the conditions.
        if if_match(headers, &self.etag) == Some(false) {
            let detail = format!("The ETag of this {} matches none of If-Match.", R::NAME);
            return Err(Problem::new(Code::PreconditionFailed, detail));
        }
        if if_none_match(headers, &self.etag) == Some(true) {
            let mut response = StatusCode::NOT_MODIFIED.into_response();
            // The length in a 304 must be that of the 200 (RFC 9110, section 8.6). Otherwise the
            // length of the empty body would be sent.
            response.headers_mut().insert(CONTENT_LENGTH, self.resource.byte_len().into());
            self.describe(response.headers_mut());
            return Ok(response);
        }
        let ranges = if *method == Method::GET { self.ranges(headers)? } else { None };
        let mut response = match ranges.as_deref() {
            None => self.whole(state, method, context).await?,
            Some([range]) => self.single(state, *range, context).await?,
            Some(ranges) => self.multiple(state, ranges, context).await?,
        };
        self.describe(response.headers_mut());
        Ok(response)
    }

    /// The ranges of the `Range` header, which count from the start of the resource. `None` without
    /// the header, if `If-Range` disables it, or if its unit is not bytes.
    fn ranges(&self, headers: &HeaderMap) -> Result<Option<Vec<ByteRange>>, Problem> {
        let Some(range) = headers.get(RANGE).filter(|_| if_range(headers, &self.etag)) else { return Ok(None) };
        let len = self.resource.byte_len();
        let text = range.to_str().map_err(|_| RangeError::Malformed);
        text.and_then(|text| parse_byte_ranges(text, len)).map_err(|error| match error {
            RangeError::Malformed => {
                let detail = "The Range header must be `bytes=` and a list of `A-B`, `A-` or `-N`.";
                Problem::new(Code::InvalidRange, detail)
            }
            RangeError::NotSatisfiable => {
                let detail = format!(
                    "The resource has {len} bytes; the Range header selects none of them, has too many ranges, or repeats bytes."
                );
                self.resource.add_chunk_count(Problem::new(Code::RangeNotSatisfiable, detail)).unsatisfied(len)
            }
        })
    }

    /// The response with the whole resource.
    async fn whole(
        &self,
        state: &AppState,
        method: &Method,
        context: RequestContext,
    ) -> Result<Response<Body>, Problem> {
        let len = self.resource.byte_len();
        let body = match ByteRange::new(0, len).filter(|_| *method != Method::HEAD) {
            Some(all) => self.stream(state, all, context).await?,
            None => Body::empty(),
        };
        let mut response = response(body);
        response.headers_mut().insert(CONTENT_LENGTH, len.into());
        response.headers_mut().insert(CONTENT_TYPE, OCTETS);
        Ok(response)
    }

    /// The response with one range.
    async fn single(
        &self,
        state: &AppState,
        range: ByteRange,
        context: RequestContext,
    ) -> Result<Response<Body>, Problem> {
        let mut response = response(self.stream(state, range, context).await?);
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        let headers = response.headers_mut();
        headers.insert(CONTENT_LENGTH, range.byte_len().into());
        headers.insert(CONTENT_TYPE, OCTETS);
        headers.insert(CONTENT_RANGE, value(self.content_range(range)));
        Ok(response)
    }

    /// The response with several ranges, as `multipart/byteranges`. The parts are opened one by one
    /// while the client reads. The first part is opened before the response begins, so that an
    /// unreadable xorb leads to an error response and not to a cut connection.
    async fn multiple(
        &self,
        state: &AppState,
        ranges: &[ByteRange],
        context: RequestContext,
    ) -> Result<Response<Body>, Problem> {
        // Clients find the parts by searching for the boundary. It has 256 random bits, so that it
        // does not occur in the data.
        let boundary = format!("{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>());
        let mut len = 0;
        let mut parts = Vec::with_capacity(ranges.len());
        for range in ranges {
            let begin = if parts.is_empty() { "" } else { "\r\n" };
            let content_range = self.content_range(*range);
            let head = format!(
                "{begin}--{boundary}\r\nContent-Type: application/octet-stream\r\nContent-Range: {content_range}\r\n\r\n"
            );
            len += head.len() as u64 + range.byte_len();
            parts.push((Bytes::from(head), *range));
        }
        let end = Bytes::from(format!("\r\n--{boundary}--\r\n"));
        len += end.len() as u64;

        let mut sending = Sending::begin(state, context).await?;
        let mut opened = match parts.first() {
            Some((_, bytes)) => Some(sending.open(self.resource.clone().read(state.server.clone(), *bytes)).await?),
            None => None,
        };
        let (server, resource) = (state.server.clone(), self.resource.clone());
        let parts = iter(parts).then(move |(head, bytes)| {
            let (server, resource, opened) = (server.clone(), resource.clone(), opened.take());
            async move {
                let data = match opened {
                    Some(data) => data,
                    None => resource.read(server, bytes).await?,
                };
                Ok::<_, ReadError>(once(async { Ok(head) }).chain(data))
            }
        });
        let stream = parts.try_flatten().chain(once(async { Ok(end) })).boxed();
        let mut response = response(sending.body(len, stream));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        let headers = response.headers_mut();
        headers.insert(CONTENT_LENGTH, len.into());
        headers.insert(CONTENT_TYPE, value(format!("multipart/byteranges; boundary={boundary}")));
        Ok(response)
    }

    /// A body with the bytes of a range.
    async fn stream(&self, state: &AppState, bytes: ByteRange, context: RequestContext) -> Result<Body, Problem> {
        let mut sending = Sending::begin(state, context).await?;
        let opened = sending.open(self.resource.clone().read(state.server.clone(), bytes)).await?;
        Ok(sending.body(bytes.byte_len(), opened))
    }

    /// Sets the headers of every successful response and of a 304.
    fn describe(&self, headers: &mut HeaderMap) {
        headers.insert(ETAG, value(self.etag.clone()));
        headers.insert(CACHE_CONTROL, self.cache.clone());
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        self.resource.describe(headers);
    }

    fn content_range(&self, range: ByteRange) -> String {
        format!("bytes {}-{}/{}", range.start(), range.last(), self.resource.byte_len())
    }
}

/// The `ETag` of some chunks of a xorb in one form. In serialized form it also depends on the
/// stored bytes, because the same chunks may be compressed in another way.
fn etag(xorb: &StoredXorb, form: Form, chunks: ChunkRange) -> String {
    // The hash, the CRC, and two chunk numbers of up to four digits each with punctuation.
    let mut etag = String::with_capacity(64 + 16 + 16);
    // Writing to a String does not fail.
    let _ = match form {
        Form::Serialized => write!(etag, "\"{}-{:016x}", xorb.hash(), xorb.crc64()),
        Form::Raw => write!(etag, "\"{}-raw", xorb.hash()),
    };
    if chunks != xorb.layout().whole() {
        let _ = write!(etag, "-{chunks}");
    }
    etag.push('"');
    etag
}

/// A response with capacity for all its headers.
fn response(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().reserve(HEADER_COUNT);
    response
}

/// A header value of text that the server made.
fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("the server makes header values of printable ASCII")
}
