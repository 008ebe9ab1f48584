//! Spent grants. A grant is a signed permission to upload one xorb once.

use futures_util::future::BoxFuture;

use super::error::IndexError;
use crate::runtime::clock::Timestamp;

/// A grant that cannot be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpentGrant {
    /// Its unique number.
    pub nonce: [u8; 16],
    /// When the grant expires. Afterwards it is refused anyway, so its row is not needed.
    pub expires: Timestamp,
}

/// The methods of [`Index`](super::Index) for spent grants.
pub trait GrantIndex {
    /// Records a grant as spent if its xorb existed already, so that no row goes live. May be
    /// repeated.
    fn spend_grant(&self, grant: SpentGrant) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Whether a grant is spent. One indexed read.
    fn is_grant_spent(&self, nonce: [u8; 16]) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Deletes the spent grants that expired before `before`. Returns their number.
    fn forget_grants(&self, before: Timestamp) -> BoxFuture<'_, Result<u64, IndexError>>;
}
