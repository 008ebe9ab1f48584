//! Schemas of the OpenAPI document that Rust types do not express: patterns of texts, lists of
//! allowed values, ranges of numbers.

use utoipa::openapi::schema::{ArrayBuilder, KnownFormat, Object, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use super::code::Code;
use crate::wire::HashText;

/// A reference to [`HashText`], which is always in the document.
pub(super) fn hash() -> RefOr<Schema> {
    RefOr::Ref(Ref::from_schema_name(HashText::name()))
}

/// Several hashes in a query.
pub(super) fn hashes(max_count: usize) -> RefOr<Schema> {
    RefOr::T(Schema::Array(ArrayBuilder::new().items(hash()).max_items(Some(max_count)).build()))
}

/// Bytes of any kind.
pub(super) fn binary() -> RefOr<Schema> {
    let format = SchemaFormat::KnownFormat(KnownFormat::Binary);
    object(ObjectBuilder::new().schema_type(Type::String).format(Some(format)).build())
}

/// Any text.
pub(super) fn text() -> RefOr<Schema> {
    String::schema()
}

/// Text that matches this regular expression.
pub(super) fn form(pattern: &str) -> RefOr<Schema> {
    object(ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern)).build())
}

/// One of these words.
pub(super) fn one_of<'a>(words: impl IntoIterator<Item = &'a str>) -> RefOr<Schema> {
    object(ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).build())
}

/// A 32-bit number from 1 on.
pub(super) fn count() -> RefOr<Schema> {
    let format = SchemaFormat::KnownFormat(KnownFormat::UInt32);
    let number = ObjectBuilder::new().schema_type(Type::Integer).format(Some(format));
    object(number.minimum(Some(1)).maximum(Some(u32::MAX)).build())
}

/// A `Range` header with one byte range.
pub(super) fn byte_range() -> RefOr<Schema> {
    form("^bytes=([0-9]+-[0-9]*|-[0-9]+)$")
}

/// Several byte ranges, each with start and end.
pub(super) fn closed_byte_ranges() -> RefOr<Schema> {
    form("^bytes=[0-9]+-[0-9]+(,[0-9]+-[0-9]+)*$")
}

/// The error codes of responses.
pub(super) fn codes() -> RefOr<Schema> {
    one_of(Code::ALL.iter().map(|code| code.as_str()))
}

/// The states of a sha256.
pub(super) fn sha256_states() -> RefOr<Schema> {
    one_of(["verified", "claimed"])
}

/// A 64-bit number in decimal digits, as text.
pub(super) fn digits() -> RefOr<Schema> {
    form("^[0-9]{1,20}$")
}

/// The checksum algorithms of grants.
pub(super) fn checksums() -> RefOr<Schema> {
    one_of(["crc64nvme"])
}

/// The method with which the bytes of a grant are sent.
pub(super) fn grant_methods() -> RefOr<Schema> {
    one_of(["PUT"])
}

fn object(object: Object) -> RefOr<Schema> {
    RefOr::T(Schema::Object(object))
}
