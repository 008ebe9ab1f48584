//! Schemas that cannot be derived from a type.

use utoipa::ToSchema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

/// A hash in text: 64 hex digits. In responses they are in lower case.
#[derive(Debug, ToSchema)]
#[schema(pattern = "^[0-9a-fA-F]{64}$", min_length = 64, max_length = 64)]
#[expect(dead_code, reason = "it represents hashes in the document and has no values")]
pub struct HashText(String);

/// How a chunk is compressed.
pub(super) fn schemes() -> RefOr<Schema> {
    let words = Some(["none", "lz4", "bg4-lz4"]);
    RefOr::T(Schema::Object(ObjectBuilder::new().schema_type(Type::String).enum_values(words).build()))
}
