//! The xorbs that a registration, or a switch of files to other xorbs, names. They must exist, and
//! GC must not delete them.
//!
//! A reference retains a xorb for as long as its file exists. The removal of the file touches the
//! xorb, so its row is only read here. An update makes a new version of a row, so a thousand
//! updates would be expensive. Only condemned xorbs and those without a reference are updated.

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

const SELECT: &str = "SELECT id, hash, state, damaged_at IS NOT NULL AS is_damaged FROM visible_xorbs \
     WHERE hash = ANY(";

/// The xorbs of the new terms of files, all visible and sound.
#[derive(Debug)]
pub(super) struct Named {
    ids: HashMap<XorbHash, i64>,
    condemned: Vec<i64>,
}

/// A xorb that the terms of a new file must not name.
#[derive(Debug)]
pub(super) enum Unusable {
    /// It is not visible.
    Unknown(XorbHash),
    /// It is quarantined.
    Damaged(XorbHash),
}

impl Named {
    /// Finds them, in the transaction that writes the files.
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

    /// Protects them from collection, after the files were written. A concurrent deletion waits for
    /// this transaction and then sees its rows. An earlier one has marked the row, so that `find`
    /// did not return it.
    pub(super) async fn retain(&self, tx: &mut Tx<'_>, now: Timestamp) -> Result<(), IndexError> {
        const UNREFERENCED: &str = "SELECT value FROM unnest($1) AS value \
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
        const ANY: &str = "SELECT hash FROM xorbs WHERE damaged_at IS NOT NULL LIMIT 1";
        const NAMED: &str = "SELECT hash FROM xorb_files JOIN xorbs ON xorbs.id = xorb_id \
             WHERE file_id = ANY($1) AND damaged_at IS NOT NULL LIMIT 1";
        if files.is_empty() || tx.find::<XorbHash>(query(ANY)).await?.is_none() {
            return Ok(None);
        }
        tx.find(query(NAMED).bind(id_list(files))).await
    }

    async fn touch(&self, tx: &mut Tx<'_>, unreferenced: &[i64], now: Timestamp) -> Result<(), IndexError> {
        const REGISTERED_AT: &str = "UPDATE visibility SET registered_at = $1 WHERE registered_at < $1";
        const TOUCH: &str = "UPDATE xorbs SET state = 1, since = greatest(since, $1) WHERE id = ANY($2)";
        let touched = id_list(self.condemned.iter().chain(unreferenced));
        if !touched.is_empty() {
            tx.execute(query(TOUCH).bind(millis(now)).bind(touched)).await?;
        }
        // For the untouched ones, which count from this time on when they lose their references.
        tx.execute(query(REGISTERED_AT).bind(millis(now))).await.map(drop)
    }
}
