//! Extractors: the parts of a request that handlers take as arguments.

use std::str::FromStr;

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;

use super::error::{Code, Problem};
use crate::format::xorb::Layout;
use crate::format::{ChunkRange, ChunkRangeSpec, ParseRangeError, XorbHash};
use crate::service::Form;

/// The hash in the path: the last parameter whose name is in `HASHES`.
pub(super) struct HashPath<H>(pub(super) H);

/// The xorb that the path names.
pub(super) type XorbPath = HashPath<XorbHash>;

/// Names of path parameters that are hashes.
const HASHES: [&str; 4] = ["hash", "xorb", "file", "digest"];

impl<S, H> FromRequestParts<S> for HashPath<H>
where
    S: Send + Sync,
    H: FromStr,
    Problem: From<H::Err>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let segments = Path::<Vec<(String, String)>>::from_request_parts(parts, state).await;
        let not_text = |_| Problem::new(Code::InvalidHash, "The hash in the path is not valid UTF-8.");
        let Path(segments) = segments.map_err(not_text)?;
        let hash = segments.iter().rfind(|(name, _)| HASHES.contains(&name.as_str())).map_or("", |(_, value)| value);
        Ok(Self(hash.parse()?))
    }
}

/// The xorb and the id of the grant, in the path of a commit.
pub(super) struct CommitPath {
    pub(super) xorb: XorbHash,
    pub(super) id: String,
}

impl<S: Send + Sync> FromRequestParts<S> for CommitPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let HashPath(xorb) = XorbPath::from_request_parts(parts, state).await?;
        let not_text = |_| Problem::new(Code::NotFound, "The grant id is not valid UTF-8; request a new grant.");
        let Path((_, _, id)) =
            Path::<(String, String, String)>::from_request_parts(parts, state).await.map_err(not_text)?;
        Ok(Self { xorb, id })
    }
}

/// The query parameters `range` and `format`: which chunks of a xorb, and in which form.
#[derive(Debug)]
pub(super) struct PartQuery {
    /// Not parsed yet, because that needs the number of chunks.
    range: Option<String>,
    pub(super) form: Form,
}

impl<S: Send + Sync> FromRequestParts<S> for PartQuery {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let garbled = |_: QueryRejection| Problem::new(Code::InvalidRequest, "The query string is malformed.");
        let Query(pairs) = Query::<Vec<(String, String)>>::from_request_parts(parts, state).await.map_err(garbled)?;
        let mut query = Self { range: None, form: Form::Serialized };
        let (mut range_count, mut form_count) = (0, 0);
        for (name, value) in pairs {
            match (name.as_str(), value.as_str()) {
                ("range", _) => {
                    range_count += 1;
                    query.range = Some(value);
                }
                ("format", "raw" | "xorb") => {
                    form_count += 1;
                    query.form = if value == "raw" { Form::Raw } else { Form::Serialized };
                }
                ("format", _) => {
                    let detail = "The parameter format must be `raw` (decompressed bytes) or `xorb` (stored bytes).";
                    return Err(Problem::new(Code::InvalidRange, detail));
                }
                // Unknown parameters are ignored, because proxies and signers add their own.
                _ => {}
            }
        }
        if range_count > 1 || form_count > 1 {
            return Err(Problem::new(Code::InvalidRange, "Duplicate parameter; request one range at a time."));
        }
        Ok(query)
    }
}

impl PartQuery {
    /// The requested chunks of a xorb with this layout; all chunks without `range`.
    pub(super) fn chunks(&self, layout: &Layout) -> Result<ChunkRange, Problem> {
        let count = layout.chunk_count();
        let Some(text) = &self.range else { return Ok(layout.whole()) };
        let spec: ChunkRangeSpec = text.parse().map_err(|_: ParseRangeError| {
            let detail = "The parameter range must be `A-B` for chunks [A,B), `A-`, `-N` for the last N, or `A`.";
            Problem::new(Code::InvalidRange, detail)
        })?;
        spec.resolve(count).ok_or_else(|| {
            let detail = format!("The xorb has {count} chunks, numbered from 0; the range exceeds them.");
            Problem::new(Code::RangeNotSatisfiable, detail).with("chunks", count)
        })
    }
}
