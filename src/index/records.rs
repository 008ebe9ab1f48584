//! What the index is asked so that it can be made again without itself: what registrations do not say of themselves.

use futures_util::future::BoxFuture;

use super::error::IndexError;
use crate::format::shard::Sha256;
use crate::format::{FileHash, XorbHash};

/// A part of [`Index`](super::Index).
pub trait Recorded {
    /// Those of these xorbs that readers may see and that somebody of this domain has uploaded, in no order.
    fn owned_xorbs(&self, hashes: Vec<XorbHash>, domain: String) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// The repositories that have registered a file, ascending, and whether they have claimed the sha256 which is known of
    /// it.
    fn readers_of(&self, file: FileHash) -> BoxFuture<'_, Result<Vec<(String, bool)>, IndexError>>;

    /// The sha256 of a file that somebody has claimed and nobody has verified.
    fn unverified_sha256(&self, file: FileHash) -> BoxFuture<'_, Result<Option<Sha256>, IndexError>>;
}
