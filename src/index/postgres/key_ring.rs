//! The sealed key ring of several servers, in one row. The index knows nothing of its contents.

use sqlx::query;

use super::PostgresIndex;
use super::rows::row;
use crate::index::error::IndexError;

/// A sealed key ring, and the number of its change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedKeys {
    /// Greater after each change.
    pub version: u64,
    /// The ring.
    pub sealed: Vec<u8>,
}

row! { Stored { version: u64, sealed: Vec<u8> } }

impl PostgresIndex {
    /// The sealed key ring if its version is not `seen`; `None` also if there is none.
    ///
    /// # Errors
    ///
    /// The database does not respond.
    pub async fn changed_keys(&self, seen: Option<u64>) -> Result<Option<SealedKeys>, IndexError> {
        const SQL: &str = "SELECT version, sealed FROM key_ring WHERE version IS DISTINCT FROM $1";
        let seen = seen.map(u64::cast_signed);
        let found: Option<Stored> = self.read("read the keys").find(query(SQL).bind(seen)).await?;
        Ok(found.map(|Stored { version, sealed }| SealedKeys { version, sealed }))
    }

    /// Replaces the sealed key ring in one transaction, beside which no other one changes it.
    /// `make` gets the old one, if there is one, and returns the new one; after its error nothing
    /// is changed.
    ///
    /// # Errors
    ///
    /// The database does not respond; or, as the inner result, that of `make`.
    pub async fn change_keys<E>(
        &self,
        make: impl FnOnce(Option<Vec<u8>>) -> Result<Vec<u8>, E> + Send,
    ) -> Result<Result<(), E>, IndexError> {
        const FIND: &str = "SELECT sealed FROM key_ring";
        const WRITE: &str = "INSERT INTO key_ring (id, version, sealed) VALUES (1, 1, $1) \
             ON CONFLICT (id) DO UPDATE SET version = key_ring.version + 1, sealed = $1";
        let mut held = self.writing("change the keys").await?;
        let mut tx = held.begin().await?;
        let sealed = match make(tx.find(query(FIND)).await?) {
            Ok(sealed) => sealed,
            Err(error) => {
                tx.rollback().await?;
                return Ok(Err(error));
            }
        };
        tx.execute(query(WRITE).bind(sealed)).await?;
        tx.commit().await?;
        Ok(Ok(()))
    }
}
