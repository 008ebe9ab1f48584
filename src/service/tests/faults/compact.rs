//! Operations of compaction, with faults.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{FaultyIndex, index_error};
use crate::format::{ChunkHash, FileHash, XorbHash};
use crate::index::{Compact, FilePage, FileSwitch, IndexError, Switched, TermRow, TermRowPage, Ticket};
use crate::runtime::clock::Timestamp;

impl Compact for FaultyIndex {
    fn term_rows(&self, after: u64, limit: u32) -> BoxFuture<'_, Result<TermRowPage, IndexError>> {
        self.faults.around("term_rows", self.inner.term_rows(after, limit), index_error).boxed()
    }

    fn terms_of(&self, file: FileHash) -> BoxFuture<'_, Result<Vec<TermRow>, IndexError>> {
        self.faults.around("terms_of", self.inner.terms_of(file), index_error).boxed()
    }

    fn files_of(&self, xorb: XorbHash, after: u64, limit: u32) -> BoxFuture<'_, Result<FilePage, IndexError>> {
        self.faults.around("files_of", self.inner.files_of(xorb, after, limit), index_error).boxed()
    }

    fn owners_of(&self, xorbs: Vec<XorbHash>) -> BoxFuture<'_, Result<Vec<(XorbHash, String)>, IndexError>> {
        self.faults.around("owners_of", self.weakness.owners_of(&self.inner, xorbs), index_error).boxed()
    }

    fn dedup_chunks_of(&self, xorb: XorbHash) -> BoxFuture<'_, Result<Vec<ChunkHash>, IndexError>> {
        self.faults.around("dedup_chunks_of", self.inner.dedup_chunks_of(xorb), index_error).boxed()
    }

    fn stage_new_xorb(
        &self,
        hash: XorbHash,
        ticket: Ticket,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.faults.around("stage_new_xorb", self.inner.stage_new_xorb(hash, ticket, now), index_error).boxed()
    }

    fn add_owners_and_dedup(
        &self,
        xorb: XorbHash,
        owners: Vec<String>,
        chunks: Vec<ChunkHash>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.faults
            .around("add_owners_and_dedup", self.inner.add_owners_and_dedup(xorb, owners, chunks, now), index_error)
            .boxed()
    }

    fn switch_terms_of<'a>(
        &'a self,
        files: &'a [FileSwitch],
        now: Timestamp,
        record: Option<u64>,
    ) -> BoxFuture<'a, Result<Switched, IndexError>> {
        self.faults
            .around("switch_terms", self.weakness.switch_terms(&self.inner, files, now, record), index_error)
            .boxed()
    }
}
