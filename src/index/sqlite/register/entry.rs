//! Writes the files of a registration, in the transaction of a whole registration or of a step.
//! This file handles the files that the index has already; `insert.rs` inserts new ones.

use std::collections::{HashMap, HashSet};
use std::slice;

use sqlx::{QueryBuilder, query};

use super::{BATCH_FILE_COUNT, Mark};
use crate::format::shard::Sha256;
use crate::format::{FileHash, XorbHash};
use crate::index::error::IndexError;
use crate::index::register::{Discarded, SHORT_TERM_COUNT, count_within};
use crate::index::sqlite::claims::{ClaimOutcome, make_claim};
use crate::index::sqlite::discard;
use crate::index::sqlite::lists::push_hashes;
use crate::index::sqlite::millis;
use crate::index::sqlite::named::{Named, Unusable};
use crate::index::sqlite::remove::SMALL_CHARGE_COUNT;
use crate::index::sqlite::rows::row;
use crate::index::sqlite::tx::Tx;
use crate::index::{Cursor, NewFile, Registered, Registration, record_len};

/// The number of references in one part of a large file. Each reference is written to separate
/// places of three tables.
pub(super) const PART_XORB_COUNT: usize = if cfg!(test) { 2 } else { 256 };

/// The progress of a registration within one transaction.
pub(super) struct Entry<'r> {
    pub(super) registration: &'r Registration,
    pub(super) mark: Mark,
    /// Where the next batch or part begins.
    pub(super) at: Cursor,
    /// The outcome of the files that this transaction has written.
    pub(super) outcome: Registered,
    /// Whether one transaction cannot write it, because known files have too many references.
    pub(super) is_too_long: bool,
    /// The row ids of the xorbs of these files, all visible and sound in this transaction.
    pub(super) ids: HashMap<XorbHash, i64>,
    /// The number of rows with terms of large files that this transaction has written.
    pub(super) run_count: usize,
}

impl<'r> Entry<'r> {
    pub(super) fn new(registration: &'r Registration, mark: Mark, at: Cursor) -> Self {
        let (outcome, ids) = (Registered::Known, HashMap::new());
        Self { registration, mark, at, outcome, is_too_long: false, ids, run_count: 0 }
    }

    pub(super) fn is_done(&self) -> bool {
        let is_written = self.at.file == self.registration.files.len() && self.at.touched == self.at.sets.listed.len();
        is_written || self.is_too_long
    }

    /// Writes a batch of small files or a part of a large one; after the last file, touches some of
    /// the listed xorbs. Returns the reason if the registration is refused.
    pub(super) async fn write_some(&mut self, tx: &mut Tx<'_>) -> Result<Option<Registered>, IndexError> {
        let registration = self.registration;
        let Some(file) = registration.files.get(self.at.file) else {
            return self.touch_listed(tx).await;
        };
        if self.at.is_known {
            return self.charge_claim(tx, file).await.map(|()| None);
        }
        if file.is_large() {
            return self.write_large(tx, file).await;
        }
        let rest = &registration.files[self.at.file..];
        let mut term_count = 0;
        let fits = |file: &&NewFile| {
            term_count += file.terms.len();
            !file.is_large() && term_count <= SHORT_TERM_COUNT
        };
        let count = rest.iter().take(BATCH_FILE_COUNT).take_while(fits).count().max(1);
        let known = self.find_known(tx, &rest[..count]).await?;
        let reference_counts = rest[..count]
            .iter()
            .map(|file| known.get(&file.hash).map_or(0, |known| self.written_reference_count(known)));
        let fitting = count_within(SMALL_CHARGE_COUNT, reference_counts);
        if fitting < count && self.mark == Mark::Whole {
            self.is_too_long = true;
            return Ok(None);
        }
        if fitting == 0 {
            return self.claim_in_parts(tx, file, known).await;
        }
        let refused = self.write_batch(tx, &rest[..fitting], known).await?;
        self.at.file += fitting;
        Ok(refused)
    }

    /// Touches some of the xorbs that the shard lists and no file references.
    async fn touch_listed(&mut self, tx: &mut Tx<'_>) -> Result<Option<Registered>, IndexError> {
        let listed = &self.at.sets.listed;
        let end = listed.len().min(self.at.touched + PART_XORB_COUNT);
        let some = &listed[self.at.touched..end];
        let named = Named::find(tx, some).await?;
        self.at.touched = end;
        match named {
            Ok(named) => named.retain(tx, self.registration.now).await?,
            Err(unusable) => return Ok(Some(refusal(unusable))),
        }
        Ok(None)
    }

    /// Adds the outcome of one file or part: `New` prevails over `Added`, and `Added` over `Known`.
    pub(super) fn tell(&mut self, outcome: Registered) {
        if outcome == Registered::New || self.outcome == Registered::Known {
            self.outcome = outcome;
        }
    }

    /// Writes a batch of files. Returns the reason if the registration is refused.
    pub(super) async fn write_batch(
        &mut self,
        tx: &mut Tx<'_>,
        files: &[NewFile],
        known: HashMap<FileHash, Known>,
    ) -> Result<Option<Registered>, IndexError> {
        let xorbs: HashSet<XorbHash> = files.iter().flat_map(|file| &file.terms).map(|term| term.xorb).collect();
        let named = match Named::find(tx, &xorbs.into_iter().collect::<Vec<_>>()).await? {
            Ok(named) => named,
            Err(unusable) => return Ok(Some(refusal(unusable))),
        };
        let known = self.discard_hidden(tx, files, known).await?;
        // The terms of known files stay, so success would acknowledge files that cannot be read.
        let known_ids: Vec<i64> = known.values().map(|known| known.id).collect();
        if let Some(damaged) = Named::find_damaged(tx, &known_ids).await? {
            return Ok(Some(Registered::DamagedXorb(damaged)));
        }
        let (mut new, mut others, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        for file in files {
            match known.get(&file.hash) {
                None if seen.insert(file.hash) => new.push(file),
                Some(known) if known.covers_file(file) => {}
                // Also the second occurrence of a new file in the batch, because it may claim
                // another sha256.
                known => others.push((file, known)),
            }
        }
        if !new.is_empty() {
            self.insert_files(tx, &new, named.ids()).await?;
            self.tell(Registered::New);
        }
        for (file, known) in others {
            let id = match known {
                Some(known) => known.id,
                None => self.id_of(tx, file.hash).await?,
            };
            let in_parts = known.is_some_and(Known::has_many_references);
            match self.write_known(tx, id, file, in_parts).await? {
                Registered::Known => {}
                outcome @ (Registered::New | Registered::Added) => self.tell(outcome),
                refused => return Ok(Some(refused)),
            }
        }
        if known.is_empty() {
            // Each file is new, so each xorb has a reference by now.
            named.retain_referenced(tx, self.registration.now).await?;
        } else {
            named.retain(tx, self.registration.now).await?;
        }
        self.ids.extend(named.into_ids());
        Ok(None)
    }

    /// The files among `files` that the index has, also hidden ones of other registrations.
    pub(super) async fn find_known(
        &self,
        tx: &mut Tx<'_>,
        files: &[NewFile],
    ) -> Result<HashMap<FileHash, Known>, IndexError> {
        const SELECT: &str = "SELECT hash, files.id AS id, sha256, sha256_state, repo IS NOT NULL AS is_claimed, \
             coalesce(has_claimed, 0) AS has_claimed, claim, files.registration IN hidden AS is_hidden, \
             coalesce(file_repos.registration IN hidden, 0) AS is_repo_hidden, \
             coalesce(claim_registration IN hidden, 0) AS is_claim_hidden, files.registration AS registration, \
             coalesce(file_repos.registration, 0) AS repo_registration, \
             coalesce(claim_registration, 0) AS claim_registration, \
             (SELECT count(*) FROM (SELECT 1 FROM xorb_files WHERE file_id = files.id LIMIT +";
        const FROM: &str =
            ") AS counted) AS reference_count FROM files LEFT JOIN file_repos ON file_id = files.id AND repo = ";
        let mut known = HashMap::new();
        let hashes: Vec<FileHash> = files.iter().map(|file| file.hash).collect();
        for some in hashes.chunks(BATCH_FILE_COUNT) {
            let mut select = QueryBuilder::new(SELECT);
            select.push_bind(SMALL_CHARGE_COUNT + 1).push(FROM);
            select.push_bind(self.registration.repo.as_str()).push(" WHERE hash IN (");
            // The last hash is repeated up to a power of two, so that a connection prepares few
            // different statements.
            let padded = (0..some.len().next_power_of_two()).map(|index| &some[index.min(some.len() - 1)]);
            push_hashes(&mut select, padded);
            known.extend(tx.all::<Known>(select.build()).await?.into_iter().map(|found| (found.hash, found)));
        }
        Ok(known)
    }

    /// Whether an unfinished registration other than this one has written the file.
    pub(super) const fn is_hidden_of_other(&self, known: &Known) -> bool {
        known.is_hidden && known.registration != self.mark.of_claim()
    }

    /// The unfinished registration other than this one that has left a claim of this repository to
    /// the file.
    fn claim_of_other(&self, known: &Known) -> Option<i64> {
        (known.is_repo_hidden && known.repo_registration != self.mark.of_claim()).then_some(known.repo_registration)
    }

    /// The number of references that this batch must charge or discard for a known file.
    fn written_reference_count(&self, known: &Known) -> i64 {
        if self.is_hidden_of_other(known) {
            // A file with many references only becomes invisible.
            if known.has_many_references() { 0 } else { known.reference_count }
        } else if !known.is_claimed || self.claim_of_other(known).is_some() {
            known.reference_count
        } else {
            0
        }
    }

    /// Discards the hidden rows of other registrations among `known`, as far as these files need
    /// it. Those registrations are abandoned: the caller holds the locks of these files, so no
    /// other registration in progress writes them. Returns the files that are left.
    pub(super) async fn discard_hidden(
        &self,
        tx: &mut Tx<'_>,
        files: &[NewFile],
        mut known: HashMap<FileHash, Known>,
    ) -> Result<HashMap<FileHash, Known>, IndexError> {
        let (own, now) = (self.mark.of_claim(), self.registration.now);
        let (mut left, mut abandoned) = (HashMap::with_capacity(known.len()), Vec::new());
        for file in files {
            let Some(mut found) = known.remove(&file.hash) else { continue };
            if self.is_hidden_of_other(&found) {
                discard::abandon(tx, found.registration).await?;
                abandoned.push(found.id);
                continue;
            }
            if let Some(other) = self.claim_of_other(&found) {
                discard::abandon(tx, other).await?;
                // A few steps at most, because `claim_in_parts` handles files with many references.
                if discard::whole_claim(tx, found.id, other, now).await? == Discarded::File {
                    // It was the last one, so the file is inserted as a new one.
                    continue;
                }
                (found.is_claimed, found.has_claimed) = (false, false);
            } else if found.is_claim_hidden && found.claim_registration != own {
                discard::abandon(tx, found.claim_registration).await?;
                // Only the claimed sha256 is hidden, so this takes one step.
                discard::claim(tx, found.id, found.claim_registration, now).await?;
                found.has_claimed = false;
            }
            left.insert(found.hash, found);
        }
        discard::files(tx, &abandoned, now).await?;
        Ok(left)
    }

    /// The row id of a file that exists.
    pub(super) async fn id_of(&self, tx: &mut Tx<'_>, hash: FileHash) -> Result<i64, IndexError> {
        tx.one(query("SELECT id FROM files WHERE hash = ?").bind(hash.as_bytes().as_slice())).await
    }

    /// Takes the first step at claiming a file that the index has with many references: makes the
    /// claim, whose xorbs [`charge_claim`](Self::charge_claim) charges in the next steps. If an old
    /// claim must be discarded first, takes a step at that. Returns the reason if the registration
    /// is refused.
    pub(super) async fn claim_in_parts(
        &mut self,
        tx: &mut Tx<'_>,
        file: &NewFile,
        known: HashMap<FileHash, Known>,
    ) -> Result<Option<Registered>, IndexError> {
        if let Some(known) = known.get(&file.hash)
            && let Some(other) = self.claim_of_other(known)
        {
            discard::abandon(tx, other).await?;
            discard::claim(tx, known.id, other, self.registration.now).await?;
            // The next call takes the next step.
            return Ok(None);
        }
        let refused = self.write_batch(tx, slice::from_ref(file), known).await?;
        self.at.is_known = true;
        Ok(refused)
    }

    /// Charges the repository for the next xorbs of a file that is claimed in parts. If none is
    /// left, moves the cursor to the next file.
    async fn charge_claim(&mut self, tx: &mut Tx<'_>, file: &NewFile) -> Result<(), IndexError> {
        // `charged_below` is the place in the ordered xorbs of the file up to which the repository
        // is charged. A trigger charges the xorbs between the old place and the new one.
        const CHARGE: &str = "UPDATE file_repos SET charged_below = (SELECT xorb_id FROM xorb_files \
                 WHERE file_id = ?1 AND xorb_id >= charged_below ORDER BY xorb_id LIMIT 1 OFFSET ?3) \
             WHERE file_id = ?1 AND repo = ?2 AND charged_below IS NOT NULL";
        let count = i64::try_from(PART_XORB_COUNT).unwrap_or(i64::MAX);
        let id = self.id_of(tx, file.hash).await?;
        let charge = query(CHARGE).bind(id).bind(self.registration.repo.as_str()).bind(count);
        if tx.execute(charge).await? == 0 {
            (self.at.file, self.at.is_known) = (self.at.file + 1, false);
        } else {
            // The outcome `New` makes the caller check the quota for this part.
            self.tell(Registered::New);
        }
        Ok(())
    }

    /// Registers one file that the index has: writes the claim of the repository and the claimed
    /// sha256. The stored terms stay, so readers see no change. `in_parts`: it is charged later.
    async fn write_known(
        &self,
        tx: &mut Tx<'_>,
        id: i64,
        file: &NewFile,
        in_parts: bool,
    ) -> Result<Registered, IndexError> {
        const CLAIM: &str = "INSERT INTO file_repos (file_id, repo, record_len, registration, claim_registration, charged_below, since) \
             SELECT ?1, ?2, ?3, 0, 0, ?4, nullif(?5, (SELECT since FROM files WHERE id = ?1)) \
             WHERE NOT EXISTS (SELECT 1 FROM file_repos WHERE file_id = ?1 AND repo = ?2)";
        const MARK: &str =
            "UPDATE file_repos SET registration = ?1, claim_registration = ?1 WHERE file_id = ?2 AND repo = ?3";
        const RECORD: &str = "UPDATE file_repos SET record_len = record_len + ?1, claim_registration = ?4 \
             WHERE file_id = ?2 AND repo = ?3";
        let repo = self.registration.repo.as_str();
        let record_len = record_len(file.terms.len()).cast_signed();
        let charged_below = in_parts.then_some(0_i64);
        let (now, mark) = (millis(self.registration.now), self.mark.of_claim());
        let claim = query(CLAIM).bind(id).bind(repo).bind(record_len).bind(charged_below).bind(now);
        let added = tx.execute(claim).await?;
        if added > 0 && mark != 0 {
            // The triggers count a row with mark 0. The mark of the step then hides it.
            tx.execute(query(MARK).bind(mark).bind(id).bind(repo)).await?;
        }
        let made = match file.sha256 {
            None => ClaimOutcome::Known,
            Some(sha256) => make_claim(tx, id, repo, sha256).await?,
        };
        let (outcome, further_len) = match (added, made) {
            (0, ClaimOutcome::Other(unverified)) => return Ok(Registered::OtherSha256 { file: file.hash, unverified }),
            (0, ClaimOutcome::Known) => return Ok(Registered::Known),
            // A false sha256 of a file of others counts as none: a refusal would tell of them.
            (1.., ClaimOutcome::Known | ClaimOutcome::New | ClaimOutcome::Other(_)) => (Registered::New, 0),
            // The repository had the file already. It is charged for one more record, which will
            // contain the sha256.
            (0, ClaimOutcome::New) => (Registered::Added, record_len),
        };
        if outcome == Registered::Added {
            tx.execute(query(RECORD).bind(further_len).bind(id).bind(repo).bind(mark)).await?;
        }
        self.list_files(tx, &[(id, further_len)]).await?;
        Ok(outcome)
    }
}

row! {
    /// A file that the index has, and the claim of the repository of the registration to it.
    pub(super) Known {
        hash: FileHash,
        id: i64,
        sha256: Option<Sha256>,
        sha256_state: i64,
        is_claimed: bool,
        has_claimed: bool,
        claim: Option<Sha256>,
        // Whether an unpublished registration wrote the file, its claim or its sha256; and which.
        is_hidden: bool,
        is_repo_hidden: bool,
        is_claim_hidden: bool,
        registration: i64,
        repo_registration: i64,
        claim_registration: i64,
        // The xorbs of its stored terms, at most `SMALL_CHARGE_COUNT + 1`.
        reference_count: i64,
    }
}

impl Known {
    /// Whether the file is claimed in parts. The terms that a client submits do not tell, because
    /// another client may have packed the same chunks into many more xorbs.
    const fn has_many_references(&self) -> bool {
        self.reference_count > SMALL_CHARGE_COUNT
    }

    /// Whether nothing is to be written for this file: the repository has it, and the sha256 of
    /// `file`, if any, is verified or was claimed by this repository before.
    fn covers_file(&self, file: &NewFile) -> bool {
        let is_known = |claimed: Sha256| match self.sha256_state {
            0 => false,
            1 => self.has_claimed && self.claim.or(self.sha256) == Some(claimed),
            _ => self.sha256 == Some(claimed),
        };
        self.is_claimed && file.sha256.is_none_or(is_known)
    }
}

/// The refusal of a registration that names an unusable xorb.
pub(super) fn refusal(unusable: Unusable) -> Registered {
    match unusable {
        Unusable::Unknown(xorb) => Registered::MissingXorb(xorb),
        Unusable::Damaged(xorb) => Registered::DamagedXorb(xorb),
    }
}
