//! The tail: the records that the index has not applied, and whether the index has the data that
//! they need.
//!
//! While a server is running these are registrations under way: the record is durable, and the
//! transaction has not ended. A crash can leave such records. In both cases the index has the xorbs
//! that the records name, because a registration is proven before its record is written. If the
//! index lacks such a xorb, it is older than the records.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::record::{HubRecord, Record, RecordError, parse};
use crate::blob::records::Seq;
use crate::blob::{BlobErrorKind, BlobKey};
use crate::format::shard::{Shard, parse_stored as parse_shard};
use crate::format::{FileHash, XorbHash};
use crate::index::{Reader, StoreMark};
use crate::service::Store;
use crate::service::error::StoreError;

/// The records after the last one that the index has applied.
#[derive(Debug, Default)]
pub struct Tail {
    /// The numbers of registrations, removals and changes of the Hub among them, ascending.
    pub(super) seqs: Vec<Seq>,
    /// The numbers of all that can be read, also of new terms and of parts of changes.
    pub(super) listed: BTreeSet<Seq>,
    /// Xorbs that their files need, and those of earlier records that were not applied completely.
    needed: HashSet<XorbHash>,
}

/// Why the index cannot apply the tail.
#[derive(Debug)]
pub(super) enum Inapplicable {
    /// This record cannot be read, or needs data that the index lacks.
    Record(Seq),
    /// A record of a newer program.
    Newer { seq: Seq, found: u32 },
}

/// The xorbs that the registrations of one file in the tail need.
#[derive(Debug)]
pub(super) struct Need {
    /// The record of the first of these registrations.
    seq: Seq,
    /// The repositories whose claims later records have not removed.
    repos: HashSet<String>,
    xorbs: HashSet<XorbHash>,
}

impl Need {
    /// The xorbs of the file.
    pub(super) fn into_xorbs(self) -> HashSet<XorbHash> {
        self.xorbs
    }
}

impl Tail {
    /// Whether it has no registration and no removal.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.seqs.is_empty()
    }

    /// Number of registrations and removals in it.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.seqs.len()
    }

    /// Removes records that are missing in a later reading of the tail, because they were applied
    /// or rolled back since.
    pub fn retain_of(&mut self, later: &Self) {
        self.seqs.retain(|seq| later.seqs.contains(seq));
    }

    /// Adds a record, which may be earlier than the others.
    pub(super) fn add(&mut self, seq: Seq) {
        self.listed.insert(seq);
        self.seqs.push(seq);
        self.seqs.sort_unstable();
    }

    /// Removes a record, which is not to be applied.
    pub(super) fn leave_out(&mut self, seq: Seq) {
        self.seqs.retain(|of_tail| *of_tail != seq);
        self.listed.remove(&seq);
    }

    /// Whether a file of an unapplied record has this xorb.
    #[must_use]
    pub fn needs(&self, xorb: &XorbHash) -> bool {
        self.needed.contains(xorb)
    }
}

impl Store {
    /// Reads the tail, and the earlier records that could not be applied (`mark.left`). Returns the
    /// reason if the index cannot apply the tail.
    pub(super) async fn read_tail(&self, mark: &StoreMark) -> Result<Result<Tail, Inapplicable>, StoreError> {
        let (mut tail, needs) = match self.read_tail_needs(mark).await? {
            Ok(read) => read,
            Err(why) => return Ok(Err(why)),
        };
        // Check each xorb only once, because small files share xorbs.
        let mut checked = HashSet::new();
        for need in needs.values() {
            let unchecked = need.xorbs.iter().copied().filter(|xorb| checked.insert(*xorb)).collect();
            if !self.has_all(&unchecked).await? {
                return Ok(Err(Inapplicable::Record(need.seq)));
            }
        }
        tail.needed.extend(needs.into_values().flat_map(Need::into_xorbs));
        for seq in &mark.left {
            self.read_left(Seq::new(*seq), &mut tail.needed).await?;
        }
        self.add_needs_of_open(&mut tail.needed).await?;
        Ok(Ok(tail))
    }

    /// With one server: adds the xorbs of open records up to the last applied one, which the next
    /// start may apply. If the server runs, its registrations under way are among them.
    pub(super) async fn add_needs_of_open(&self, needed: &mut HashSet<XorbHash>) -> Result<(), StoreError> {
        if !self.index.is_shared() {
            for seq in self.index.abandoned_records().await? {
                self.read_left(Seq::new(seq), needed).await?;
            }
        }
        Ok(())
    }

    /// Reads the records of the tail, and the needs of each file in them that the index does not
    /// have.
    pub(super) async fn read_tail_needs(
        &self,
        mark: &StoreMark,
    ) -> Result<Result<(Tail, HashMap<FileHash, Need>), Inapplicable>, StoreError> {
        let (mut tail, mut needs) = (Tail::default(), HashMap::new());
        let mut after = mark.last_record.map(Seq::new);
        loop {
            let page = self.records.list(after).await?;
            let Some(last) = page.last() else { break };
            after = Some(*last);
            for seq in page {
                if let Err(why) = self.read_unapplied(seq, &mut tail, &mut needs).await? {
                    return Ok(Err(why));
                }
            }
        }
        Ok(Ok((tail, needs)))
    }

    /// Adds the needs of a record of the tail to those of earlier ones.
    async fn read_unapplied(
        &self,
        seq: Seq,
        tail: &mut Tail,
        needs: &mut HashMap<FileHash, Need>,
    ) -> Result<Result<(), Inapplicable>, StoreError> {
        let record = match self.read_record(seq).await? {
            // The record was rolled back since it was listed.
            None => return Ok(Ok(())),
            Some(Ok(record)) => record,
            Some(Err(RecordError::Version { found })) => return Ok(Err(Inapplicable::Newer { seq, found })),
            Some(Err(_)) => return Ok(Err(Inapplicable::Record(seq))),
        };
        tail.listed.insert(seq);
        // Records of new terms are not in `seqs`: they register nothing, and only the process that
        // switches the files may apply them. A compaction that runs while a server starts may still
        // roll its record back. Nor are parts of a change, which have no effect without the last
        // record of the change.
        if !matches!(record, Record::Terms { .. } | Record::Hub(HubRecord { is_partial: true, .. })) {
            tail.seqs.push(seq);
        }
        let (shard, repos) = match record {
            // It needs no xorbs: the files of a commit were registered before.
            Record::Hub(_) => return Ok(Ok(())),
            Record::Register(registered) => (registered.shard, Some(registered.repos)),
            Record::Terms { shard, .. } => (shard, None),
            Record::Remove { file, repo, .. } => {
                if let Some(need) = needs.get_mut(&file) {
                    need.repos.retain(|other| repo.as_ref().is_some_and(|repo| repo != other));
                    if need.repos.is_empty() {
                        needs.remove(&file);
                    }
                }
                return Ok(Ok(()));
            }
        };
        let Ok(Shard { files, .. }) = self.pool.run(move || parse_shard(&shard)).await else {
            return Ok(Err(Inapplicable::Record(seq)));
        };
        let known = self.index.visible_files(files.iter().map(|file| file.hash).collect()).await?;
        let known: HashSet<FileHash> = known.into_iter().collect();
        for file in files {
            let xorbs: HashSet<XorbHash> = file.terms.iter().map(|term| term.xorb).collect();
            let is_known = known.contains(&file.hash);
            match (&repos, needs.get_mut(&file.hash)) {
                // The index has the terms of the file, and the record only adds readers.
                (Some(_), None) if is_known => {}
                // The terms of the first registration count, or those of a later switch.
                (Some(repos), Some(need)) => need.repos.extend(repos.iter().cloned()),
                (Some(repos), None) => {
                    needs.insert(file.hash, Need { seq, repos: repos.iter().cloned().collect(), xorbs });
                }
                (None, Some(need)) => need.xorbs = xorbs,
                // The new xorbs were stored before the record, and a collection may have to retain
                // them. The xorbs that the file has in the index must exist.
                (None, None) if is_known => {
                    tail.needed.extend(xorbs);
                    let xorbs = self.terms_in_use(file.hash).await?;
                    if !self.has_all(&xorbs).await? {
                        return Ok(Err(Inapplicable::Record(seq)));
                    }
                }
                // The file was removed since.
                (None, None) => {}
            }
        }
        Ok(Ok(()))
    }

    /// Adds the xorbs of an earlier record that was not applied, if the record can be read and its
    /// files are missing.
    async fn read_left(&self, seq: Seq, needed: &mut HashSet<XorbHash>) -> Result<(), StoreError> {
        let shard = match self.read_record(seq).await? {
            Some(Ok(Record::Register(registered))) => registered.shard,
            Some(Ok(Record::Terms { shard, .. })) => shard,
            _ => return Ok(()),
        };
        let Ok(shard) = self.pool.run(move || parse_shard(&shard)).await else { return Ok(()) };
        for file in shard.files {
            if self.index.find_file(file.hash, Reader::All, None).await?.is_none() {
                needed.extend(file.terms.iter().map(|term| term.xorb));
            }
        }
        Ok(())
    }

    /// The xorbs of a file in the index; none where the index does not have the file.
    pub(super) async fn terms_in_use(&self, file: FileHash) -> Result<HashSet<XorbHash>, StoreError> {
        let rows = self.index.terms_of(file).await?;
        Ok(rows.iter().flat_map(|row| &row.terms).map(|term| term.xorb).collect())
    }

    /// Whether the index is current for these xorbs. Each xorb with a blob must have a visible row.
    /// Each row that is not marked as damaged must have a blob of its length.
    pub(super) async fn has_all(&self, xorbs: &HashSet<XorbHash>) -> Result<bool, StoreError> {
        for xorb in xorbs {
            let Some(row) = self.index.find_xorb(*xorb).await? else {
                if self.has_blob(*xorb).await? {
                    return Ok(false);
                }
                // The xorb was deleted while its registration was under way: no index has it, and a
                // rebuild could not apply the record either. If its blob existed, the deletion
                // would have been interrupted, and a start restores such a xorb before it reads the
                // tail.
                continue;
            };
            // A xorb that is marked as damaged is skipped, because its blob may be missing although
            // the index is current.
            let key = BlobKey::new(*xorb, row.incarnation);
            if !row.is_damaged && self.blobs.head(key).await? != Some(row.layout.serialized_len()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a xorb without a visible row has a blob. Blobs of dead and pending objects do not
    /// count.
    async fn has_blob(&self, xorb: XorbHash) -> Result<bool, StoreError> {
        let keys = self.blobs.list_of(xorb).await?;
        let named = self.index.incarnation_of(xorb).await?;
        if keys.iter().any(|key| Some(key.incarnation()) == named) {
            return Ok(true);
        }
        let names = keys.iter().map(|key| (key.xorb_hash(), key.incarnation())).collect();
        Ok(!self.index.unknown_names(names).await?.is_empty())
    }

    /// A record, or why it is invalid; `None` where it was removed.
    pub(super) async fn read_record(&self, seq: Seq) -> Result<Option<Result<Record, RecordError>>, StoreError> {
        match self.records.read(seq).await {
            Ok(Some(bytes)) => Ok(Some(self.pool.run(move || parse(&bytes)).await)),
            Ok(None) => Ok(None),
            Err(error) if error.kind == BlobErrorKind::Corrupt => Ok(Some(Err(RecordError::Damaged))),
            Err(error) => Err(error.into()),
        }
    }
}
