//! Writes records of what the index has: of files and Hub repositories without one, because an
//! older version made them, a backup was restored or the records were lost; and of a file whose
//! removal has failed.
//!
//! After [`Store::complete_records`] there is a record of everything that the index has. The work
//! can be stopped at any moment, and the next call continues behind the last complete page of
//! files, and with the first repository. Some files and repositories may then have two records, and
//! a rebuild makes them twice, which changes nothing. No other process may write records meanwhile.

use std::collections::BTreeMap;

use super::appended::AppendedRecord;
use super::record::{FromIndex, Later, Record, Registered, parse};
use super::{Store, places_of};
use crate::format::shard::{FileInfo, Sha256, Shard, write_upload};
use crate::format::{FileHash, RangeHash};
use crate::index::{FileRecord, Sha256State};
use crate::runtime::clock::Timestamp;
use crate::runtime::telemetry::chain;
use crate::service::contents::{Contents, runs};
use crate::service::error::StoreError;
use crate::service::register::distinct;

/// Files of one record, and the index rows of each.
#[derive(Default)]
struct Group {
    files: Vec<FileInfo>,
    records: Vec<FileRecord>,
    later: Vec<Later>,
}

impl Store {
    /// Ensures that there is a record of every file and Hub repository that the index has. Returns
    /// how many files were written, which is 0 if an earlier call was completed. No other process
    /// may use the store meanwhile.
    ///
    /// # Errors
    ///
    /// The store failed; the next call writes the missing records.
    pub async fn complete_records(&self) -> Result<u64, StoreError> {
        if self.records.is_complete().await? {
            // A version without records of Hub repositories may have written the mark.
            self.complete_hub_records().await?;
            return Ok(0);
        }
        let (mut after, mut count) = (self.written_up_to().await?, 0_u64);
        loop {
            let page = self.index.file_records(after).await?;
            after = page.last().map(|file| file.hash);
            let Some(last) = after else { break };
            // The rows of removed files are deleted in steps, and have no repository until then.
            count = count.saturating_add(page.iter().filter(|file| !file.repos.is_empty()).count() as u64);
            self.write_page(page, last).await?;
        }
        self.record_all_hub_states().await?;
        // The index has applied these records, since they were made from it. There is no open one:
        // a start has applied those of the last run, and no other process writes records now.
        if let (Some(id), Some(last)) = (self.index.store_mark().await?.id, self.records.last().await?) {
            self.index.set_store(id, Some(last.number())).await?;
        }
        self.records.set_complete().await?;
        Ok(count)
    }

    /// The last file of the last page that was written.
    async fn written_up_to(&self) -> Result<Option<FileHash>, StoreError> {
        let mut seqs = Vec::new();
        loop {
            let page = self.records.list(seqs.last().copied()).await?;
            if page.is_empty() {
                break;
            }
            seqs.extend(page);
        }
        for seq in seqs.into_iter().rev() {
            let Some(bytes) = self.records.read(seq).await? else { continue };
            if let Ok(Record::Register(Registered { origin: Some(FromIndex { up_to: Some(file), .. }), .. })) =
                parse(&bytes)
            {
                return Ok(file.parse().ok());
            }
        }
        Ok(None)
    }

    /// Settles the record of a removal whose transaction has failed, with the lock of the file.
    ///
    /// The transaction may have been committed, and a failed one may be there after a power cut. So
    /// with one server the record stays and counts as applied, and if the file still has claims,
    /// they get a record after it. Otherwise a later registration of the file would change nothing
    /// and have no record, and the next start or a rebuild would remove the file.
    pub(in crate::service) async fn settle_failed_removal(&self, removal: AppendedRecord, file: FileHash) {
        if self.index.is_shared() {
            removal.retain_unknown().await;
            return;
        }
        if let Err(error) = self.record_claims(file, removal.number()).await {
            tracing::warn!(%file, error = %chain(&error), "cannot record that a removal has failed");
            removal.retain_unknown().await;
        }
    }

    /// Appends the claims that a file has, if any, after the record of this removal.
    async fn record_claims(&self, file: FileHash, removal: u64) -> Result<(), StoreError> {
        let page = self.index.file_records(before(file)).await?;
        let claimed = page.into_iter().filter(|found| found.hash == file && !found.repos.is_empty());
        let mut seqs = self.write_page(claimed.collect(), file).await?;
        seqs.push(removal);
        Ok(self.index.take_records(seqs).await?)
    }

    /// Writes the records of a page of files, and returns their numbers. The last record names the
    /// last file of the page.
    async fn write_page(&self, page: Vec<FileRecord>, last: FileHash) -> Result<Vec<u64>, StoreError> {
        let (mut groups, mut written) = (BTreeMap::<(bool, Vec<String>), Group>::new(), Vec::new());
        for file in page {
            let Some(range_hashes) = self.range_hashes(&file).await? else {
                tracing::error!(file = %file.hash, "index inconsistent; cannot write a record of the file");
                continue;
            };
            for (repos, sha256) in self.readers_of(&file).await? {
                let (hash, terms) = (file.hash, file.terms.clone());
                // The record with the first repository comes first. A rebuild takes its time as
                // that of the file.
                let has_first = repos.iter().any(|repo| !file.later.contains_key(repo));
                let times = repos.iter().zip(0..).filter_map(|(repo, place)| Some((place, *file.later.get(repo)?)));
                let times: Vec<(u32, Timestamp)> = times.collect();
                let group = groups.entry((!has_first, repos)).or_default();
                let file_place = group.files.len();
                group.later.extend(times.into_iter().map(|(repo, at)| Later::new(file_place, repo, at)));
                group.files.push(FileInfo { hash, terms, range_hashes: Some(range_hashes.clone()), sha256 });
                group.records.push(file.clone());
            }
        }
        let count = groups.len();
        for (number, ((_, repos), Group { files, records, later })) in groups.into_iter().enumerate() {
            let named = distinct(files.iter().flat_map(|file| &file.terms).map(|term| term.xorb), &[]);
            let origin = FromIndex {
                since_ms: records.iter().map(|file| file.since.as_millis()).collect(),
                later,
                up_to: (number + 1 == count).then(|| last.to_string()),
            };
            let owners = places_of(records.into_iter().flat_map(|file| file.owners), &named);
            let at = self.clock.now();
            let write = move || {
                let shard = write_upload(&Shard { files, xorbs: Vec::new() });
                let shard = shard.expect("files that the index has are those of shards").into();
                Record::Register(Registered { at, repos, owners, origin: Some(origin), shard }).encode()
            };
            let record = self.pool.run(write).await;
            let seq = self.records.append(record).await?;
            // The index has the files, so the record must stay when this process has ended.
            self.index.close_record(seq.number()).await?;
            written.push(seq.number());
        }
        Ok(written)
    }

    /// The repositories with a file, grouped by the sha256 that they have claimed.
    async fn readers_of(&self, file: &FileRecord) -> Result<Vec<(Vec<String>, Option<Sha256>)>, StoreError> {
        let readers = match file.sha256 {
            Some((sha256, Sha256State::Verified)) => vec![(file.repos.clone(), Some(sha256))],
            Some((sha256, Sha256State::Claimed)) => {
                let readers = self.index.readers_of(file.hash).await?;
                let (claimants, others): (Vec<_>, Vec<_>) =
                    readers.into_iter().partition(|(_, has_claimed)| *has_claimed);
                let names = |readers: Vec<(String, bool)>| readers.into_iter().map(|(repo, _)| repo).collect();
                vec![(names(claimants), Some(sha256)), (names(others), None)]
            }
            None => vec![(file.repos.clone(), None)],
        };
        Ok(readers.into_iter().filter(|(repos, _)| !repos.is_empty()).collect())
    }

    /// The verification hashes of a file's terms; `None` if the index lacks a xorb or chunk that
    /// they name.
    async fn range_hashes(&self, file: &FileRecord) -> Result<Option<Vec<RangeHash>>, StoreError> {
        let (mut hashes, mut contents) = (Vec::with_capacity(file.terms.len()), Contents::default());
        for terms in runs(&file.terms) {
            contents = self.contents(contents, terms).await?;
            let terms = terms.to_vec();
            let hash = move || {
                let hashes = terms.iter().map(|term| Some(RangeHash::of(contents.chunks(term)?.hashes)));
                (hashes.collect::<Option<Vec<_>>>(), contents)
            };
            let run;
            (run, contents) = self.pool.run(hash).await;
            let Some(run) = run else { return Ok(None) };
            hashes.extend(run);
        }
        Ok(Some(hashes))
    }
}

/// The hash before this one in the order of their bytes; `None` before the first one.
fn before(file: FileHash) -> Option<FileHash> {
    let mut bytes = *file.as_bytes();
    for byte in bytes.iter_mut().rev() {
        let (less, is_borrowed) = byte.overflowing_sub(1);
        *byte = less;
        if !is_borrowed {
            return Some(FileHash::from_bytes(bytes));
        }
    }
    None
}
