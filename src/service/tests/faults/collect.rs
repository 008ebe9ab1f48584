//! Operations of garbage collection, with faults.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{FaultyIndex, index_error};
use crate::format::{FileHash, XorbHash};
use crate::index::{Collect, IndexError, RemovedClaims, TermPage, XorbLife};
use crate::runtime::clock::Timestamp;

impl Collect for FaultyIndex {
    fn xorb_lives(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbLife>, IndexError>> {
        self.faults.around("xorb_lives", self.weakness.xorb_lives(&self.inner, after, limit), index_error).boxed()
    }

    fn find_life(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbLife>, IndexError>> {
        self.faults.around("find_life", self.inner.find_life(hash), index_error).boxed()
    }

    fn term_runs(&self, after: u64, limit: u32) -> BoxFuture<'_, Result<TermPage, IndexError>> {
        self.faults.around("term_runs", self.weakness.term_runs(&self.inner, after, limit), index_error).boxed()
    }

    fn condemn_xorbs(
        &self,
        xorbs: Vec<XorbHash>,
        idle_since: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        self.faults
            .around("condemn_xorbs", self.weakness.condemn_xorbs(&self.inner, xorbs, idle_since, now), index_error)
            .boxed()
    }

    fn begin_deletions(
        &self,
        xorbs: Vec<XorbHash>,
        condemned_since: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        let begun = self.weakness.begin_deletions(&self.inner, xorbs, condemned_since, now);
        self.faults.around("begin_deletions", begun, index_error).boxed()
    }

    fn abandon_xorbs(
        &self,
        xorbs: Vec<XorbHash>,
        staged_since: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        self.faults
            .around("abandon_xorbs", self.weakness.abandon_xorbs(&self.inner, xorbs, staged_since, now), index_error)
            .boxed()
    }

    fn remove_claims_of(
        &self,
        file: FileHash,
        repo: Option<String>,
        now: Timestamp,
        record: Option<u64>,
    ) -> BoxFuture<'_, Result<RemovedClaims, IndexError>> {
        self.faults
            .around("remove_claims", self.weakness.remove_claims(&self.inner, (file, repo), now, record), index_error)
            .boxed()
    }

    fn sweep_removed(&self, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.faults.around("sweep_removed", self.weakness.sweep_removed(&self.inner, now), index_error).boxed()
    }

    fn generation(&self) -> BoxFuture<'_, Result<u64, IndexError>> {
        self.faults.around("generation", self.inner.generation(), index_error).boxed()
    }

    fn last_collection(&self) -> BoxFuture<'_, Result<Timestamp, IndexError>> {
        self.faults.around("last_collection", self.inner.last_collection(), index_error).boxed()
    }

    fn record_collection(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>> {
        self.faults.around("record_collection", self.inner.record_collection(now), index_error).boxed()
    }
}
