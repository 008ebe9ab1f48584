//! The error codes of responses, and the HTTP status of each.

use axum::http::StatusCode;

/// The failures that a client can distinguish. A code never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The hash in the path is not 64 hex digits.
    InvalidHash,
    /// A `range` or `format` parameter, or a `Range` or `X-Range-Dirty` header, is malformed, or no
    /// range of `X-Range-Dirty` begins within the file.
    InvalidRange,
    /// The body is not a xorb; `offset` is where it becomes invalid.
    MalformedXorb,
    /// A chunk or footer has an unknown version.
    UnsupportedVersion,
    /// A chunk has an unknown compression scheme.
    UnsupportedCompression,
    /// The body is not a shard; `offset` is where it becomes invalid.
    MalformedShard,
    /// A shard names a xorb that is not stored.
    MissingXorb,
    /// A shard makes a wrong statement about a xorb or a term.
    ShardMismatch,
    /// A shard does not prove that its client knows the contents of a term's chunks.
    NoProof,
    /// The terms of a shard hash to another file.
    FileHashMismatch,
    /// The file is registered with another sha256.
    Sha256Conflict,
    /// The body or the query of a request is malformed.
    InvalidRequest,
    /// Plain HTTP was sent to a port that speaks TLS.
    HttpsRequired,
    /// There is no valid token.
    Unauthorized,
    /// The token does not permit the request.
    Forbidden,
    /// The body is the xorb `actual`, not `claimed`.
    HashMismatch,
    /// The body is not the xorb for which the grant was issued.
    GrantMismatch,
    /// The body, or its decompressed data, exceeds a limit.
    TooLarge,
    /// The xorb has more chunks than the limit.
    TooManyChunks,
    /// The body ended within a chunk, or the connection within the body.
    IncompleteBody,
    /// The client sent the body too slowly.
    BodyTimeout,
    /// The tenant is over its share while other tenants wait; retry.
    TooManyRequests,
    /// The registration would exceed the quota of the repository or of its owner.
    QuotaExceeded,
    /// The resource has no bytes or chunks in the range.
    RangeNotSatisfiable,
    /// A condition of the request does not hold.
    PreconditionFailed,
    /// The resource exists already, or is being changed by others.
    Conflict,
    /// The resource or the route does not exist.
    NotFound,
    /// The server is overloaded, or the resource is being changed; retry.
    Overloaded,
    /// The request exceeded its time limit; retry.
    Deadline,
    /// The machine of the server fails temporarily, for example its disk.
    Unavailable,
    /// The server is not ready to serve.
    NotReady,
    /// The store is full.
    OutOfSpace,
    /// The stored bytes of a xorb are damaged.
    XorbDamaged,
    /// A bug or a fault of the server.
    Internal,
}

impl Code {
    /// Every code.
    pub const ALL: &[Self] = &[
        Self::InvalidHash,
        Self::InvalidRange,
        Self::MalformedXorb,
        Self::UnsupportedVersion,
        Self::UnsupportedCompression,
        Self::MalformedShard,
        Self::MissingXorb,
        Self::ShardMismatch,
        Self::NoProof,
        Self::FileHashMismatch,
        Self::Sha256Conflict,
        Self::InvalidRequest,
        Self::HttpsRequired,
        Self::Unauthorized,
        Self::Forbidden,
        Self::HashMismatch,
        Self::GrantMismatch,
        Self::TooLarge,
        Self::TooManyChunks,
        Self::IncompleteBody,
        Self::BodyTimeout,
        Self::QuotaExceeded,
        Self::RangeNotSatisfiable,
        Self::PreconditionFailed,
        Self::Conflict,
        Self::NotFound,
        Self::TooManyRequests,
        Self::Overloaded,
        Self::Deadline,
        Self::Unavailable,
        Self::NotReady,
        Self::OutOfSpace,
        Self::XorbDamaged,
        Self::Internal,
    ];

    /// The name of the code in a response.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidHash => "invalid_hash",
            Self::InvalidRange => "invalid_range",
            Self::MalformedXorb => "malformed_xorb",
            Self::UnsupportedVersion => "unsupported_version",
            Self::UnsupportedCompression => "unsupported_compression",
            Self::MalformedShard => "malformed_shard",
            Self::MissingXorb => "missing_xorb",
            Self::ShardMismatch => "shard_mismatch",
            Self::NoProof => "no_proof",
            Self::FileHashMismatch => "file_hash_mismatch",
            Self::Sha256Conflict => "sha256_conflict",
            Self::InvalidRequest => "invalid_request",
            Self::HttpsRequired => "https_required",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::HashMismatch => "hash_mismatch",
            Self::GrantMismatch => "grant_mismatch",
            Self::TooLarge => "too_large",
            Self::TooManyChunks => "too_many_chunks",
            Self::IncompleteBody => "incomplete_body",
            Self::BodyTimeout => "body_timeout",
            Self::QuotaExceeded => "quota_exceeded",
            Self::RangeNotSatisfiable => "range_not_satisfiable",
            Self::PreconditionFailed => "precondition_failed",
            Self::Conflict => "conflict",
            Self::NotFound => "not_found",
            Self::TooManyRequests => "too_many_requests",
            Self::Overloaded => "overloaded",
            Self::Deadline => "deadline",
            Self::Unavailable => "unavailable",
            Self::NotReady => "not_ready",
            Self::OutOfSpace => "out_of_space",
            Self::XorbDamaged => "xorb_damaged",
            Self::Internal => "internal",
        }
    }

    /// The status of the response.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::InvalidHash
            | Self::InvalidRequest
            | Self::HttpsRequired
            | Self::InvalidRange
            | Self::MalformedXorb
            | Self::UnsupportedVersion
            | Self::UnsupportedCompression
            | Self::MalformedShard
            | Self::MissingXorb
            | Self::ShardMismatch
            | Self::NoProof
            | Self::FileHashMismatch
            | Self::Sha256Conflict
            | Self::HashMismatch
            | Self::GrantMismatch
            | Self::TooManyChunks
            | Self::IncompleteBody => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            Self::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            Self::Conflict => StatusCode::CONFLICT,
            // An exceeded quota has a 413, too. Xet clients would retry a 507, and a 403 would
            // suggest a problem with the token.
            Self::TooLarge | Self::QuotaExceeded => StatusCode::PAYLOAD_TOO_LARGE,
            Self::RangeNotSatisfiable => StatusCode::RANGE_NOT_SATISFIABLE,
            // A 500 for a damaged xorb makes Xet clients give up after five retries. Of the 5xx
            // only a 501 would stop them at once, but it has other meanings on other routes
            // (spec 5.1, 5.6).
            Self::XorbDamaged | Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Overloaded | Self::Deadline | Self::Unavailable | Self::NotReady => StatusCode::SERVICE_UNAVAILABLE,
            Self::OutOfSpace => StatusCode::INSUFFICIENT_STORAGE,
        }
    }
}
