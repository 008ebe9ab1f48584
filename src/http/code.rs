//! The codes of failures, and the status of each.

use axum::http::StatusCode;

/// The failures that a client can tell apart. Names never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The hash in the path is not 64 hex digits.
    InvalidHash,
    /// A `range` or `format` parameter, or a `Range` or `X-Range-Dirty` header, is not of its form.
    InvalidRange,
    /// The body is no xorb, from byte `offset` on.
    MalformedXorb,
    /// A chunk or footer has an unknown version.
    UnsupportedVersion,
    /// A chunk has an unknown compression scheme.
    UnsupportedCompression,
    /// The body is no shard, from byte `offset` on.
    MalformedShard,
    /// A shard names a xorb that is not there.
    MissingXorb,
    /// A shard says of a xorb, or of a term, what is not so.
    ShardMismatch,
    /// A shard does not prove that its client knows the chunks of a term.
    NoProof,
    /// The terms of a shard make another file.
    FileHashMismatch,
    /// The file is known with another sha256.
    Sha256Conflict,
    /// The body or the query of a request is not of its form.
    InvalidRequest,
    /// Plain HTTP was sent to a port that speaks TLS.
    HttpsRequired,
    /// There is no valid token.
    Unauthorized,
    /// The request is not allowed.
    Forbidden,
    /// The body is the xorb `actual`, not `claimed`.
    HashMismatch,
    /// The body is not the one that the grant is for.
    GrantMismatch,
    /// The body, or what it decompresses to, is beyond the limit.
    TooLarge,
    /// The xorb has more chunks than a xorb may have.
    TooManyChunks,
    /// The body ended within a chunk, or the connection within the body.
    IncompleteBody,
    /// The body makes no progress.
    BodyTimeout,
    /// The tenant is over its share while other tenants wait; retry.
    TooManyRequests,
    /// There would be more than the quota of the repository, or of its owner, allows.
    QuotaExceeded,
    /// There is nothing in the range.
    RangeNotSatisfiable,
    /// A condition of the request does not hold.
    PreconditionFailed,
    /// There is no such thing, or no such route.
    NotFound,
    /// Too much is under way, or in the way; try again.
    Overloaded,
    /// The request took longer than a request may; try again.
    Deadline,
    /// The machine cannot do it for now.
    Unavailable,
    /// The server is not ready to serve.
    NotReady,
    /// The store is full.
    OutOfSpace,
    /// The stored bytes of a xorb are damaged.
    XorbDamaged,
    /// Something is broken here.
    Internal,
}

impl Code {
    /// Every code there is.
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

    /// Its name in the response.
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
            // Final for stock clients, unlike 507, and unlike 403 it does not suggest a problem
            // with the token.
            Self::TooLarge | Self::QuotaExceeded => StatusCode::PAYLOAD_TOO_LARGE,
            Self::RangeNotSatisfiable => StatusCode::RANGE_NOT_SATISFIABLE,
            // Only 501 would stop a stock client at once, but it means other things on other routes
            // (spec 5.1, 5.6). A 500 stops it after five attempts, and an upload of the xorb
            // repairs it.
            Self::XorbDamaged | Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Overloaded | Self::Deadline | Self::Unavailable | Self::NotReady => StatusCode::SERVICE_UNAVAILABLE,
            Self::OutOfSpace => StatusCode::INSUFFICIENT_STORAGE,
        }
    }
}
