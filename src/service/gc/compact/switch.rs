//! Switches files to their new terms: first a durable record, then one transaction.
//!
//! Files are found by the old xorbs that they refer to, so that other files are not read. All terms
//! of a file are in memory while it is switched, 40 MB for a file of a TiB. Small files are
//! switched some at a time.

use std::collections::HashSet;

use super::CompactionPlan;
use super::execute::Running;
use crate::format::merkle::Aggregator;
use crate::format::shard::{FileInfo, Shard, Term};
use crate::format::{FileHash, RangeHash, XorbHash};
use crate::index::{FileSwitch, RunSwitch, Switched};
use crate::service::contents::{Contents, runs};
use crate::service::error::StoreError;
use crate::service::register::distinct;

/// Maximum number of files of one record and one transaction.
const MAX_FILE_COUNT: usize = 64;

/// Maximum number of terms of one record and one transaction. They take 1 MiB. The limit keeps
/// other writers from waiting for long. A file with more terms is switched alone.
const MAX_TERM_COUNT: usize = 24_000;

/// Maximum number of references to old xorbs that the files of one transaction lose. A file that
/// loses more is switched alone. Each deletion, and each new reference in its place, touches pages
/// in four tables and indexes. With this limit a write stays clearly below 50 ms, also on slow
/// disks (`cargo bench --bench gc`).
const MAX_REFERENCE_COUNT: usize = 128;

/// Files that are listed at once.
const PAGE_COUNT: u32 = 64;

/// Files to be switched together.
#[derive(Default)]
struct Batch {
    switches: Vec<FileSwitch>,
    /// The same files with their new terms, as the record has them.
    files: Vec<FileInfo>,
    term_count: usize,
    /// References to old xorbs that the files lose.
    reference_count: usize,
}

impl Batch {
    /// Whether the batch already has this file.
    fn has(&self, file: &FileHash) -> bool {
        self.files.iter().any(|other| other.hash == *file)
    }

    /// Whether a file with these terms and changed runs fits, too. An empty batch takes any file.
    fn fits(&self, term_count: usize, runs: &[RunSwitch]) -> bool {
        self.files.is_empty()
            || (self.files.len() < MAX_FILE_COUNT
                && self.term_count.saturating_add(term_count) <= MAX_TERM_COUNT
                && self.reference_count.saturating_add(lost_count(runs)) <= MAX_REFERENCE_COUNT)
    }

    fn push(&mut self, switch: FileSwitch, file: FileInfo) {
        self.term_count = self.term_count.saturating_add(file.terms.len());
        self.reference_count = self.reference_count.saturating_add(lost_count(&switch.runs));
        self.switches.push(switch);
        self.files.push(file);
    }

    /// Removes the files for which `is_out` returns true. Returns their number.
    fn take_out(&mut self, is_out: impl Fn(&FileInfo) -> bool) -> u64 {
        let before = self.files.len();
        let out: Vec<FileHash> = self.files.iter().filter(|file| is_out(file)).map(|file| file.hash).collect();
        self.switches.retain(|switch| !out.contains(&switch.file));
        self.files.retain(|file| !out.contains(&file.hash));
        (before - self.files.len()) as u64
    }
}

impl Running<'_> {
    /// Switches every file that needs a xorb whose chunks were copied.
    pub(super) async fn switch_all(&mut self, plan: &CompactionPlan) -> Result<(), StoreError> {
        let (mut batch, mut contents) = (Batch::default(), Contents::default());
        for source in plan.rewrites.iter().flat_map(|rewrite| &rewrite.sources) {
            if !self.moves.contains_key(&source.xorb) {
                continue;
            }
            let mut next = Some(0);
            while let Some(after) = next {
                let page = self.store.index.files_of(source.xorb, after, PAGE_COUNT).await?;
                next = page.next;
                for file in page.files {
                    contents = self.prepare(file, &mut batch, contents).await?;
                    if self.done.is_stopped {
                        return Ok(());
                    }
                }
            }
        }
        self.switch(&mut batch).await
    }

    /// Makes the new terms of a file, and adds it to the batch; switches a full batch first.
    async fn prepare(&mut self, file: FileHash, batch: &mut Batch, contents: Contents) -> Result<Contents, StoreError> {
        if batch.has(&file) {
            return Ok(contents);
        }
        let (mut switched, mut terms) = (Vec::new(), Vec::new());
        for row in self.store.index.terms_of(file).await? {
            let moved = |term: &Term| self.moves.get(&term.xorb).and_then(|moves| moves.of(term)).unwrap_or(*term);
            let after: Vec<Term> = row.terms.iter().map(moved).collect();
            terms.extend_from_slice(&after);
            if after != row.terms {
                switched.push(RunSwitch { row: row.row, before: row.terms, after });
            }
        }
        // Nothing to do: the file was removed, or its terms no longer name old xorbs.
        if switched.is_empty() {
            return Ok(contents);
        }
        let (range_hashes, contents) = self.prove(file, &terms, contents).await?;
        if range_hashes.is_none() {
            tracing::error!(%file, "index inconsistent, or a new xorb was removed; the file keeps its terms");
            self.done.failed += 1;
            return Ok(contents);
        }
        if !batch.fits(terms.len(), &switched) {
            self.switch(batch).await?;
        }
        let info = FileInfo { hash: file, terms, range_hashes, sha256: None };
        batch.push(FileSwitch { file, runs: switched }, info);
        Ok(contents)
    }

    /// Computes the file hash from these terms. Returns their verification hashes. Returns `None`
    /// if the hash differs, or if a xorb does not have the chunks of a term.
    async fn prove(
        &self,
        file: FileHash,
        terms: &[Term],
        mut contents: Contents,
    ) -> Result<(Option<Vec<RangeHash>>, Contents), StoreError> {
        let (mut hashes, mut chunks) = (Vec::with_capacity(terms.len()), Aggregator::new());
        for terms in runs(terms) {
            contents = self.store.contents(contents, terms).await?;
            let terms = terms.to_vec();
            let take = move || (take(&terms, &contents, &mut chunks), chunks, contents);
            let taken;
            (taken, chunks, contents) = self.store.pool.run(take).await;
            let Some(taken) = taken else { return Ok((None, contents)) };
            hashes.extend(taken);
        }
        let is_same = self.store.pool.run(move || chunks.file_hash()).await == file;
        Ok((is_same.then_some(hashes), contents))
    }

    /// Switches the files of the batch, which is empty afterwards. A file that cannot be switched
    /// is taken out, and the others are tried again without it.
    async fn switch(&mut self, batch: &mut Batch) -> Result<(), StoreError> {
        let mut batch = std::mem::take(batch);
        while !batch.files.is_empty() {
            if !self.pace.next().await {
                self.done.is_stopped = true;
                return Ok(());
            }
            let shard = Shard { files: batch.files, xorbs: Vec::new() };
            let appended = self.store.append_terms(&shard, self.new_xorbs(&shard.files)).await?;
            batch.files = shard.files;
            let (now, record) = (self.store.clock.now(), Some(appended.number()));
            match self.store.index.switch_terms_of(&batch.switches, now, record).await {
                Ok(Switched::All) => {
                    appended.retain();
                    self.done.file_count += batch.files.len() as u64;
                    return Ok(());
                }
                Ok(Switched::Other(file)) => {
                    appended.roll_back().await;
                    self.done.changed_count += batch.take_out(|other| other.hash == file);
                }
                Ok(Switched::Unusable(xorb)) => {
                    appended.roll_back().await;
                    tracing::warn!(%xorb, "a new xorb is damaged or was removed; files keep their old xorbs");
                    self.moves.retain(|_, moves| moves.to != xorb);
                    self.done.failed += batch.take_out(|file| file.terms.iter().any(|term| term.xorb == xorb));
                }
                Err(error) => {
                    // Keep the record: the transaction may have been committed.
                    appended.retain_unknown().await;
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// The new xorbs that these files name.
    fn new_xorbs(&self, files: &[FileInfo]) -> Vec<XorbHash> {
        let new: HashSet<XorbHash> = self.moves.values().map(|moves| moves.to).collect();
        let named = files.iter().flat_map(|file| &file.terms).map(|term| term.xorb);
        distinct(named.filter(|xorb| new.contains(xorb)), &[])
    }
}

/// Number of xorbs that the switched terms no longer name. The file loses at most this number of
/// references, because its other terms may still name some of these xorbs.
fn lost_count(runs: &[RunSwitch]) -> usize {
    let pairs = runs.iter().flat_map(|run| run.before.iter().zip(&run.after));
    pairs.filter(|(before, after)| before != after).map(|(before, _)| before.xorb).collect::<HashSet<_>>().len()
}

/// The verification hashes of some terms. Adds the chunks of the terms to the aggregator. `None` if
/// a xorb does not have these chunks.
fn take(terms: &[Term], contents: &Contents, chunks: &mut Aggregator) -> Option<Vec<RangeHash>> {
    let mut hashes = Vec::with_capacity(terms.len());
    for term in terms {
        let found = contents.chunks(term)?;
        hashes.push(RangeHash::of(found.hashes));
        found.hashes.iter().zip(found.raw_lens).for_each(|(hash, raw_len)| chunks.push(hash, u64::from(*raw_len)));
    }
    Some(hashes)
}
