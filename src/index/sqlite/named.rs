//! The xorbs that a registration, or a switch of files to other xorbs, names. They must be visible
//! and sound, and GC must not delete them from then on.
//!
//! For most of them it is enough to read the row. A reference retains a xorb for as long as its
//! file exists, and the removal of the file touches the xorb. An update of a row writes the pages
//! with its layout, so updates for thousands of xorbs would be expensive. So only condemned xorbs
//! and those without a reference are updated.

use std::collections::HashMap;

use sqlx::{QueryBuilder, query};

use super::lists::{BATCH_COUNT, id_list, push_hashes};
use super::millis;
use super::rows::row;
use super::tx::Tx;
use crate::format::XorbHash;
use crate::index::XorbState;
use crate::index::error::IndexError;
use crate::runtime::clock::Timestamp;

/// Reads the indexes `xorbs_life` and `xorbs_damaged` only, which have all needed columns. In the
/// table, SQLite would have to read the whole layout to reach the columns behind it.
const SELECT: &str = "SELECT id, hash, state, \
     EXISTS (SELECT 1 FROM xorbs AS bad INDEXED BY xorbs_damaged WHERE bad.damaged_at IS NOT NULL AND bad.hash = xorbs.hash) \
     AS is_damaged FROM xorbs INDEXED BY xorbs_life WHERE state IN (1, 2) AND hash IN (";

/// The named xorbs, all visible and sound when they were read.
#[derive(Debug)]
pub(super) struct Named {
    ids: HashMap<XorbHash, i64>,
    condemned: Vec<i64>,
}

/// A named xorb that is not usable.
#[derive(Debug)]
pub(super) enum Unusable {
    /// The xorb is not visible.
    Unknown(XorbHash),
    /// The blob of the xorb is known to be damaged.
    Damaged(XorbHash),
}

impl Named {
    /// Finds the xorbs with these hashes, in the transaction that names them. The inner error is
    /// the first unusable xorb.
    pub(super) async fn find(tx: &mut Tx<'_>, hashes: &[XorbHash]) -> Result<Result<Self, Unusable>, IndexError> {
        row! { Found { id: i64, hash: XorbHash, state: XorbState, is_damaged: bool } }
        let mut named = Self { ids: HashMap::with_capacity(hashes.len()), condemned: Vec::new() };
        for batch in hashes.chunks(BATCH_COUNT) {
            let mut select = QueryBuilder::new(SELECT);
            push_hashes(&mut select, batch);
            let found: Vec<Found> = tx.all(select.build()).await?;
            named.ids.extend(found.iter().map(|xorb| (xorb.hash, xorb.id)));
            named.condemned.extend(found.iter().filter(|xorb| xorb.state == XorbState::Condemned).map(|xorb| xorb.id));
            if let Some(missing) = batch.iter().find(|hash| !named.ids.contains_key(*hash)) {
                return Ok(Err(Unusable::Unknown(*missing)));
            }
            if let Some(damaged) = found.iter().find(|xorb| xorb.is_damaged) {
                return Ok(Err(Unusable::Damaged(damaged.hash)));
            }
        }
        Ok(Ok(named))
    }

    pub(super) const fn ids(&self) -> &HashMap<XorbHash, i64> {
        &self.ids
    }

    pub(super) fn into_ids(self) -> HashMap<XorbHash, i64> {
        self.ids
    }

    /// Protects these xorbs from collection, after the references to them were written. A deletion
    /// that begins later waits for this transaction and then sees the references. A deletion that
    /// began earlier has set the state of the row, so that `find` did not return the xorb.
    pub(super) async fn retain(&self, tx: &mut Tx<'_>, now: Timestamp) -> Result<(), IndexError> {
        const UNREFERENCED: &str = "SELECT value FROM json_each(?) \
             WHERE NOT EXISTS (SELECT 1 FROM xorb_files WHERE xorb_id = value)";
        let unreferenced: Vec<i64> = tx.all(query(UNREFERENCED).bind(id_list(self.ids.values()))).await?;
        self.touch(tx, &unreferenced, now).await
    }

    /// Does the same if this transaction has written a reference to each of these xorbs.
    pub(super) async fn retain_referenced(&self, tx: &mut Tx<'_>, now: Timestamp) -> Result<(), IndexError> {
        self.touch(tx, &[], now).await
    }

    /// A damaged xorb that the stored terms of these files name, if there is one.
    pub(super) async fn find_damaged(tx: &mut Tx<'_>, files: &[i64]) -> Result<Option<XorbHash>, IndexError> {
        // Mostly no xorb is damaged, and then nothing is read of the files.
        const ANY: &str = "SELECT hash FROM xorbs INDEXED BY xorbs_damaged WHERE damaged_at IS NOT NULL LIMIT 1";
        const NAMED: &str = "SELECT hash FROM xorb_files CROSS JOIN xorbs ON xorbs.id = xorb_id \
             WHERE file_id IN (SELECT value FROM json_each(?)) AND EXISTS (SELECT 1 FROM xorbs AS bad INDEXED BY xorbs_damaged \
             WHERE bad.damaged_at IS NOT NULL AND bad.hash = xorbs.hash) LIMIT 1";
        if files.is_empty() || tx.find::<XorbHash>(query(ANY)).await?.is_none() {
            return Ok(None);
        }
        tx.find(query(NAMED).bind(id_list(files))).await
    }

    async fn touch(&self, tx: &mut Tx<'_>, unreferenced: &[i64], now: Timestamp) -> Result<(), IndexError> {
        const REGISTERED_AT: &str = "UPDATE visibility SET registered_at = ?1 WHERE registered_at < ?1";
        const TOUCH: &str = "UPDATE xorbs SET state = 1, since = max(since, ?) WHERE id = ?";
        for id in self.condemned.iter().chain(unreferenced).copied() {
            tx.execute(query(TOUCH).bind(millis(now)).bind(id)).await?;
        }
        // The other xorbs are not touched. When one loses its last reference, `touch_unreferenced`
        // sets its `since` to this time at least.
        tx.execute(query(REGISTERED_AT).bind(millis(now))).await.map(drop)
    }
}
