//! From "these bytes of this xorb or file" to a response: conditions, byte ranges, headers, the
//! stream (RFC 9110).

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
use crate::service::{Cas, Form, ReadError, ReadStream, RegisteredFile, StoredXorb};

/// Chunks of a response, half-open, as in `?range=`.
pub(super) const X_XORB_CHUNK_RANGE: HeaderName = HeaderName::from_static("x-xorb-chunk-range");

/// Their bytes in the whole xorb of the form asked for, half-open.
pub(super) const X_XORB_BYTE_RANGE: HeaderName = HeaderName::from_static("x-xorb-byte-range");

/// A xorb never changes under its hash; the `ETag` covers the rare second serialization.
const CACHE_FOREVER: HeaderValue = HeaderValue::from_static("public, immutable, max-age=31536000");

/// The same where not everybody may have it: no cache that many share may keep it, since it would
/// ask for no token.
const CACHE_PRIVATELY: HeaderValue = HeaderValue::from_static("private, immutable, max-age=31536000");

/// Number of headers of a response, with those of every response: a header map that grows is
/// rehashed.
const HEADER_COUNT: usize = 14;

const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Immutable bytes that ranges can be read of.
pub(super) trait Resource: Clone + Send + Sync + 'static {
    /// What it is, in a sentence.
    const NAME: &'static str;

    /// How many bytes there are.
    fn byte_len(&self) -> u64;

    /// Adds the headers that tell more of it.
    fn describe(&self, headers: &mut HeaderMap);

    /// Adds what a program can do about a range that is not there.
    fn unsatisfied(&self, problem: Problem) -> Problem;

    /// Streams bytes of it, counted from its start.
    fn read(self, cas: Cas, bytes: ByteRange) -> impl Future<Output = Result<ReadStream, ReadError>> + Send;
}

/// Some chunks of a xorb, in one form.
#[derive(Clone, Debug)]
pub(super) struct XorbPart {
    xorb: Arc<StoredXorb>,
    form: Form,
    chunks: ChunkRange,
    /// Their bytes in the whole xorb of this form.
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

    fn unsatisfied(&self, problem: Problem) -> Problem {
        problem.with("chunks", self.xorb.layout().chunk_count())
    }

    async fn read(self, cas: Cas, bytes: ByteRange) -> Result<ReadStream, ReadError> {
        let offset = self.bytes.start();
        let moved = ByteRange::new(offset + bytes.start(), offset + bytes.end());
        cas.read(&self.xorb, self.form, moved.expect("moving a range does not empty it")).await
    }
}

impl Resource for RegisteredFile {
    const NAME: &'static str = "file";

    fn byte_len(&self) -> u64 {
        self.len
    }

    fn describe(&self, _: &mut HeaderMap) {}

    fn unsatisfied(&self, problem: Problem) -> Problem {
        problem
    }

    async fn read(self, cas: Cas, bytes: ByteRange) -> Result<ReadStream, ReadError> {
        cas.read_file(self, bytes).await
    }
}

/// A resource, as a response has it.
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
    /// The representation of a file, which its hash names for ever.
    pub(super) fn of_file(file: RegisteredFile) -> Self {
        let etag = format!("\"{}\"", file.hash);
        Self { resource: file, etag, cache: CACHE_PRIVATELY }
    }
}

impl<R: Resource> Representation<R> {
    /// Responds to a GET or HEAD for it.
    pub(super) async fn respond(
        mut self,
        state: &AppState,
        method: &Method,
        headers: &HeaderMap,
        context: RequestContext,
    ) -> Result<Response<Body>, Problem> {
        if state.auth == Auth::Off {
            self.cache = CACHE_FOREVER;
        }
        // In this order (RFC 9110, section 13.2.2).
        if if_match(headers, &self.etag) == Some(false) {
            let detail = format!("The ETag of this {} matches none of If-Match.", R::NAME);
            return Err(Problem::new(Code::PreconditionFailed, detail));
        }
        if if_none_match(headers, &self.etag) == Some(true) {
            let mut response = StatusCode::NOT_MODIFIED.into_response();
            // The length of the 200 or none at all (RFC 9110, section 8.6); left alone, it would
            // become that of nothing.
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

    /// The ranges of a `Range` header that is to be obeyed, counted from the start of the
    /// representation.
    fn ranges(&self, headers: &HeaderMap) -> Result<Option<Vec<ByteRange>>, Problem> {
        let Some(range) = headers.get(RANGE).filter(|_| if_range(headers, &self.etag)) else { return Ok(None) };
        let len = self.resource.byte_len();
        let text = range.to_str().map_err(|_| RangeError::Malformed);
        text.and_then(|text| parse_byte_ranges(text, len)).map_err(|error| match error {
            RangeError::Malformed => Problem::new(
                Code::InvalidRange,
                "The Range header must be `bytes=` and a list of `A-B`, `A-` or \
                    `-N`.",
            ),
            RangeError::NotSatisfiable => {
                let detail = format!(
                    "The resource has {len} bytes; the Range header selects none of them, or too \
                    many."
                );
                self.resource.unsatisfied(Problem::new(Code::RangeNotSatisfiable, detail)).unsatisfied(len)
            }
        })
    }

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

    /// Several ranges as `multipart/byteranges`. The parts are opened sequentially, as the client
    /// reads; the first one at once, so that an unreadable xorb is an error response and not a cut
    /// connection.
    async fn multiple(
        &self,
        state: &AppState,
        ranges: &[ByteRange],
        context: RequestContext,
    ) -> Result<Response<Body>, Problem> {
        // Clients find the parts by searching for the boundary, so it must not occur in the data:
        // 256 random bits.
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
            Some((_, bytes)) => Some(sending.open(self.resource.clone().read(state.cas.clone(), *bytes)).await?),
            None => None,
        };
        let (cas, resource) = (state.cas.clone(), self.resource.clone());
        let parts = iter(parts).then(move |(head, bytes)| {
            let (cas, resource, opened) = (cas.clone(), resource.clone(), opened.take());
            async move {
                let data = match opened {
                    Some(data) => data,
                    None => resource.read(cas, bytes).await?,
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

    async fn stream(&self, state: &AppState, bytes: ByteRange, context: RequestContext) -> Result<Body, Problem> {
        let mut sending = Sending::begin(state, context).await?;
        let opened = sending.open(self.resource.clone().read(state.cas.clone(), bytes)).await?;
        Ok(sending.body(bytes.byte_len(), opened))
    }

    /// The headers of every response, 304 included.
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

/// A name of its own for each form, part and serialization.
fn etag(xorb: &StoredXorb, form: Form, chunks: ChunkRange) -> String {
    // Two numbers of chunks of up to four digits each, and punctuation.
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

fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("hex digits, numbers and punctuation are valid in a header")
}
