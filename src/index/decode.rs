//! Rows of any database to values, by the names of their columns.
//!
//! [`row!`] and [`by_name!`] make a value of a row whose columns have the names of its fields. A
//! query names its expressions so. A database implements [`Cells`] for its rows.

use super::error::Inconsistent;
use super::files::parse_terms;
use super::{
    ChunkColumns, Claim, DeadObject, FileEntry, HealthSums, ObjectSums, RepoKind, RepoUsage, Ticket, Totals,
    TotalsError, Usage, XorbContents, XorbEntry, XorbHealth, XorbLife, XorbPart, XorbRow, XorbState, rows,
};
use crate::format::compression::Scheme;
use crate::format::shard::{Sha256, Term};
use crate::format::xorb::Layout;
use crate::format::{ChunkHash, FileHash, StoreId, XorbHash};
use crate::git::ObjectId;
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

/// A place in a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    /// The column of this name.
    Name(&'static str),
    /// The first column.
    First,
}

/// A row of a database: its values as the database has them.
pub(super) trait Cells {
    fn integer(&self, at: At) -> sqlx::Result<i64>;
    fn flag(&self, at: At) -> sqlx::Result<bool>;
    fn text(&self, at: At) -> sqlx::Result<String>;
    fn bytes(&self, at: At) -> sqlx::Result<&[u8]>;
    fn is_null(&self, at: At) -> sqlx::Result<bool>;
}

/// Implements [`Cells`] for a row type of sqlx.
macro_rules! cells {
    ($row:ty) => {
        impl $crate::index::decode::Cells for $row {
            $crate::index::decode::cells! { integer: i64, flag: bool, text: String }

            fn bytes(&self, at: $crate::index::decode::At) -> sqlx::Result<&[u8]> {
                match at {
                    $crate::index::decode::At::Name(name) => sqlx::Row::try_get(self, name),
                    $crate::index::decode::At::First => sqlx::Row::try_get(self, 0),
                }
            }

            fn is_null(&self, at: $crate::index::decode::At) -> sqlx::Result<bool> {
                let value = match at {
                    $crate::index::decode::At::Name(name) => sqlx::Row::try_get_raw(self, name)?,
                    $crate::index::decode::At::First => sqlx::Row::try_get_raw(self, 0)?,
                };
                Ok(sqlx::ValueRef::is_null(&value))
            }
        }
    };
    ($($name:ident: $type:ty),+) => {
        $(fn $name(&self, at: $crate::index::decode::At) -> sqlx::Result<$type> {
            match at {
                $crate::index::decode::At::Name(name) => sqlx::Row::try_get(self, name),
                $crate::index::decode::At::First => sqlx::Row::try_get(self, 0),
            }
        })+
    };
}
pub(super) use cells;

/// A value that a row describes.
pub(super) trait FromRow: Send + Sized {
    fn from_row(row: &impl Cells) -> sqlx::Result<Self>;
}

/// A value of one column.
pub(super) trait Column<'r>: Sized {
    fn read(row: &'r impl Cells, at: At) -> sqlx::Result<Self>;
}

/// Reads the column of this name.
pub(super) fn column<'r, T: Column<'r>>(row: &'r impl Cells, name: &'static str) -> sqlx::Result<T> {
    T::read(row, At::Name(name))
}

/// Reads a type by its fields.
macro_rules! by_name {
    ($name:ident { $($field:ident),+ $(,)? }) => {
        impl $crate::index::decode::FromRow for $name {
            fn from_row(row: &impl $crate::index::decode::Cells) -> sqlx::Result<Self> {
                Ok(Self { $($field: $crate::index::decode::column(row, stringify!($field))?),+ })
            }
        }
    };
}
pub(super) use by_name;

/// Defines the row of a query.
macro_rules! row {
    ($(#[$meta:meta])* $vis:vis $name:ident { $($field:ident: $type:ty),+ $(,)? }) => {
        $(#[$meta])*
        $vis struct $name {
            $($field: $type),+
        }
        $crate::index::decode::by_name!($name { $($field),+ });
    };
}
pub(super) use row;

/// Types that are read from one column, also from the only one of a row.
macro_rules! columns {
    ($($type:ty: |$row:ident, $at:ident| $read:expr;)+) => {
        $(
            impl<'r> Column<'r> for $type {
                fn read($row: &'r impl Cells, $at: At) -> sqlx::Result<Self> {
                    $read
                }
            }

            impl FromRow for $type {
                fn from_row(row: &impl Cells) -> sqlx::Result<Self> {
                    Self::read(row, At::First)
                }
            }
        )+
    };
}

columns! {
    i64: |row, at| row.integer(at);
    u32: |row, at| u32::try_from(row.integer(at)?).map_err(|error| sqlx::Error::Decode(Box::new(error)));
    bool: |row, at| row.flag(at);
    String: |row, at| row.text(at);
    Vec<u8>: |row, at| row.bytes(at).map(<[u8]>::to_vec);
    u64: |row, at| i64::read(row, at).map(i64::cast_unsigned);
    Timestamp: |row, at| u64::read(row, at).map(Self::from_millis);
    Incarnation: |row, at| i64::read(row, at).map(rows::incarnation);
    Ticket: |row, at| i64::read(row, at).map(Self::from_number);
    XorbHash: |row, at| bytes(row, at, ("xorbs", "hash")).map(Self::from_bytes);
    FileHash: |row, at| bytes(row, at, ("files", "hash")).map(Self::from_bytes);
    ChunkHash: |row, at| bytes(row, at, ("dedup_chunks", "chunk_hash")).map(Self::from_bytes);
    Sha256: |row, at| bytes(row, at, ("files", "sha256")).map(Self::from_digest);
    StoreId: |row, at| bytes(row, at, ("store", "store_id")).map(Self::from_bytes);
    ObjectId: |row, at| bytes(row, at, ("hub_blobs", "oid")).map(Self::from_bytes);
    RepoKind: |row, at| {
        let value = i64::read(row, at)?;
        Self::from_number(value).ok_or_else(|| invalid(row, ("hub_repos", "kind"), format!("{value} is no kind")))
    };
    XorbState: |row, at| {
        let value = i64::read(row, at)?;
        rows::state(value).ok_or_else(|| invalid(row, ("xorbs", "state"), format!("{value} is no state")))
    };
    Layout: |row, at| {
        Self::parse(<&[u8]>::read(row, at)?).map_err(|error| invalid(row, ("xorbs", "layout"), error.to_string()))
    };
    AnyTerms: |row, at| <&[u8]>::read(row, at).map(parse_terms).map(Self);
    Vec<Term>: |row, at| {
        let terms = parse_terms(<&[u8]>::read(row, at)?);
        terms.ok_or_else(|| invalid(row, ("file_terms", "terms"), "no packed terms".to_owned()))
    };
}

/// A run of terms; `None` if it does not parse.
pub(super) struct AnyTerms(pub(super) Option<Vec<Term>>);

impl<'r> Column<'r> for &'r [u8] {
    fn read(row: &'r impl Cells, at: At) -> sqlx::Result<Self> {
        row.bytes(at)
    }
}

impl<'r, T: Column<'r>> Column<'r> for Option<T> {
    fn read(row: &'r impl Cells, at: At) -> sqlx::Result<Self> {
        if row.is_null(at)? { Ok(None) } else { T::read(row, at).map(Some) }
    }
}

fn bytes<const LEN: usize>(row: &impl Cells, at: At, of: (&'static str, &'static str)) -> sqlx::Result<[u8; LEN]> {
    let bytes = row.bytes(at)?;
    bytes.try_into().map_err(|_| invalid(row, of, format!("{} bytes, not {LEN}", bytes.len())))
}

/// The error of a column, with the hash in the same row.
fn invalid(row: &impl Cells, (table, column): (&'static str, &'static str), reason: String) -> sqlx::Error {
    let hash = row.bytes(At::Name("hash")).ok().and_then(|hash| hash.try_into().ok()).map(XorbHash::from_bytes);
    let key = match (hash, table) {
        (None, _) => "a row".to_owned(),
        (Some(hash), "files" | "file_terms") => format!("file {hash}"),
        (Some(hash), _) => format!("xorb {hash}"),
    };
    Inconsistent { table, column, key, reason }.into()
}

by_name!(XorbRow { hash, incarnation, crc64, layout, is_damaged, replaced_at });
by_name!(XorbEntry { hash, chunk_count, serialized_len, raw_len });
by_name!(XorbHealth { hash, incarnation, ticket, crc64, serialized_len, verified_at, damaged_at });
by_name!(HealthSums { damaged_count, oldest });
by_name!(Totals { xorb_count, serialized_len, raw_len });
by_name!(TotalsError { xorb_count, serialized_len, raw_len });
by_name!(DeadObject { hash, incarnation, len });
by_name!(ObjectSums { count, len });
by_name!(FileEntry { hash, raw_len, sha256, registered });
by_name!(Claim { file, sha256 });
by_name!(Usage { file_count, logical_len, physical_len });

impl FromRow for RepoUsage {
    fn from_row(row: &impl Cells) -> sqlx::Result<Self> {
        Ok(Self { repo: column(row, "repo")?, usage: Usage::from_row(row)? })
    }
}

impl FromRow for ChunkColumns {
    fn from_row(row: &impl Cells) -> sqlx::Result<Self> {
        let hash: XorbHash = column(row, "hash")?;
        Ok(rows::chunk_columns(&hash, column(row, "hashes")?, column(row, "schemes")?)?)
    }
}

impl FromRow for XorbContents {
    fn from_row(row: &impl Cells) -> sqlx::Result<Self> {
        let ChunkColumns { hashes, .. } = FromRow::from_row(row)?;
        Ok(Self { hash: column(row, "hash")?, layout: column(row, "layout")?, chunk_hashes: hashes })
    }
}

impl FromRow for XorbPart {
    fn from_row(row: &impl Cells) -> sqlx::Result<Self> {
        let layout = (column(row, "layout")?, column(row, "layout_len")?);
        let hashes = (column(row, "hashes")?, column(row, "hashes_len")?);
        Ok(rows::part(column(row, "hash")?, column(row, "first")?, layout, hashes)?)
    }
}

impl FromRow for XorbLife {
    fn from_row(row: &impl Cells) -> sqlx::Result<Self> {
        let moment = |name| {
            let value: i64 = column(row, name)?;
            // Cast to unsigned, a time before 1970 would lie in the far future, and the other way
            // round.
            let millis = u64::try_from(value);
            millis.map(Timestamp::from_millis).map_err(|_| invalid(row, ("xorbs", name), format!("{value} is no time")))
        };
        Ok(Self {
            hash: column(row, "hash")?,
            state: column(row, "state")?,
            since: moment("since")?,
            lease_until: moment("lease_until")?,
            is_referenced: column(row, "is_referenced")?,
            serialized_len: column(row, "serialized_len")?,
        })
    }
}

impl From<Inconsistent> for sqlx::Error {
    fn from(error: Inconsistent) -> Self {
        Self::Decode(Box::new(error))
    }
}

/// The columns of the chunks of a xorb, as the index stores them.
pub(super) fn pack_chunks(hashes: &[ChunkHash], schemes: &[Scheme]) -> (Vec<u8>, Vec<u8>) {
    let hashes = hashes.iter().flat_map(|hash| *hash.as_bytes()).collect();
    (hashes, schemes.iter().map(|scheme| scheme.as_byte()).collect())
}
