//! Inserts the new files of a registration: small ones in batches, and large ones in parts.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::slice;
use std::sync::Arc;

use sqlx::query;

use super::Mark;
use super::entry::{Entry, PART_XORB_COUNT, refusal};
use crate::format::XorbHash;
use crate::index::error::{Inconsistent, IndexError};
use crate::index::sqlite::bulk::insert_rows;
use crate::index::sqlite::lists::id_list;
use crate::index::sqlite::millis;
use crate::index::sqlite::named::Named;
use crate::index::sqlite::terms::{self, TermRun};
use crate::index::sqlite::tx::Tx;
use crate::index::{NewFile, Registered, record_len};

/// The number of rows with terms in one part: 16 rows of up to 512 terms are 352 KiB.
const PART_RUN_COUNT: usize = if cfg!(test) { 1 } else { 16 };

impl Entry<'_> {
    /// Inserts new files with terms, references and claims. Each file must occur once. `ids` has
    /// the row id of each xorb that they name.
    pub(super) async fn insert_files(
        &self,
        tx: &mut Tx<'_>,
        files: &[&NewFile],
        ids: &HashMap<XorbHash, i64>,
    ) -> Result<(), IndexError> {
        const FILES: (&str, &str) =
            ("INSERT INTO files (id, hash, raw_len, since, sha256, sha256_state, registration) ", "");
        const REFERENCES: (&str, &str) = ("INSERT INTO xorb_files (xorb_id, file_id) ", "");
        const CLAIMS: (&str, &str) =
            ("INSERT INTO file_repos (file_id, repo, has_claimed, record_len, registration, claim_registration) ", "");
        let (registration, mark) = (self.registration, self.mark.of_new(files.len()));
        let ids_of_files = next_ids(tx, files.len()).await?;
        let files: Vec<(i64, &NewFile)> = ids_of_files.into_iter().zip(files.iter().copied()).collect();
        let now = millis(registration.now);
        insert_rows(tx, FILES, &files, |columns, (id, file)| {
            columns.push_bind(*id).push_bind(file.hash.as_bytes().as_slice()).push_bind(file.raw_len.cast_signed());
            let digest = file.sha256.map(|sha256| sha256.as_digest().to_vec());
            columns.push_bind(now).push_bind(digest).push_bind(i64::from(file.sha256.is_some()));
            columns.push_bind(mark);
        })
        .await?;
        let runs: Vec<TermRun> = files.iter().flat_map(|(id, file)| terms::runs(*id, &file.terms)).collect();
        terms::insert_runs(tx, &runs).await?;
        let (mut references, mut counts) = (Vec::new(), BTreeMap::<i64, i64>::new());
        for (id, file) in &files {
            let xorbs: HashSet<XorbHash> = file.terms.iter().map(|term| term.xorb).collect();
            for xorb in xorbs {
                let id_of_xorb = *ids.get(&xorb).ok_or_else(|| unnamed(tx.op(), xorb))?;
                references.push((id_of_xorb, *id));
                *counts.entry(id_of_xorb).or_default() += 1;
            }
        }
        references.sort_unstable();
        // Before the claims: the trigger `usage_refer` charges every repository that has a claim,
        // but `count` or the trigger `usage_claim` charges once for all references.
        insert_rows(tx, REFERENCES, &references, |columns, (xorb, file)| {
            columns.push_bind(*xorb).push_bind(*file);
        })
        .await?;
        // `has_claimed` and `claim_registration` are about the claimed sha256. The other columns
        // are about the claim of the repository to the file.
        insert_rows(tx, CLAIMS, &files, |columns, (id, file)| {
            columns.push_bind(*id).push_bind(registration.repo.as_str()).push_bind(i64::from(file.sha256.is_some()));
            columns.push_bind(record_len(file.terms.len()).cast_signed());
            columns.push_bind(mark).push_bind(self.mark.of_claim());
        })
        .await?;
        if mark != 0 {
            self.count(tx, &files, &counts).await?;
        }
        let listed: Vec<(i64, i64)> = files.iter().map(|(id, _)| (*id, 0)).collect();
        self.list_files(tx, &listed).await
    }

    /// Adds new files and their xorbs to the usage of the repository, and the files to its list.
    /// `counts` has the number of these files that reference each xorb. Triggers do the same, but
    /// only for rows with mark 0.
    async fn count(
        &self,
        tx: &mut Tx<'_>,
        files: &[(i64, &NewFile)],
        counts: &BTreeMap<i64, i64>,
    ) -> Result<(), IndexError> {
        const ENTER: &str = "INSERT INTO repos (name) VALUES (?) ON CONFLICT (name) DO NOTHING";
        const COUNT: &str = "UPDATE repos SET file_count = file_count + ?1, logical_len = logical_len + ?2, \
             physical_len = physical_len + ?3 + (SELECT coalesce(sum(serialized_len), 0) \
                 FROM json_each(?4) CROSS JOIN xorbs ON xorbs.id = value ->> 0 WHERE NOT EXISTS \
                 (SELECT 1 FROM repo_xorbs AS known WHERE known.repo_id = repos.id AND known.xorb_id = value ->> 0)) \
             WHERE name = ?5 RETURNING id";
        const CHARGE: &str = "INSERT INTO repo_xorbs (repo_id, xorb_id, file_count, len) \
             SELECT ?1, xorbs.id, value ->> 1, coalesce(serialized_len, 0) \
             FROM json_each(?2) CROSS JOIN xorbs ON xorbs.id = value ->> 0 \
             WHERE true ON CONFLICT (repo_id, xorb_id) DO UPDATE SET file_count = file_count + excluded.file_count";
        const LIST: (&str, &str) = ("INSERT INTO repo_files (repo_id, hash, file_id) ", "");
        let repo = self.registration.repo.as_str();
        let count = i64::try_from(files.len()).unwrap_or(i64::MAX);
        let logical_len: u64 = files.iter().map(|(_, file)| file.raw_len).sum();
        let record_len: u64 = files.iter().map(|(_, file)| record_len(file.terms.len())).sum();
        let counts: Vec<String> = counts.iter().map(|(xorb, count)| format!("[{xorb},{count}]")).collect();
        let counts = format!("[{}]", counts.join(","));
        tx.execute(query(ENTER).bind(repo)).await?;
        let count = query(COUNT)
            .bind(count)
            .bind(logical_len.cast_signed())
            .bind(record_len.cast_signed())
            .bind(counts.as_str())
            .bind(repo);
        let repo: i64 = tx.one(count).await?;
        tx.execute(query(CHARGE).bind(repo).bind(counts)).await?;
        insert_rows(tx, LIST, files, |columns, (id, file)| {
            columns.push_bind(repo).push_bind(file.hash.as_bytes().as_slice()).push_bind(*id);
        })
        .await
    }

    /// Enters the files of a step in `registration_files`, so that an abandoned registration finds
    /// them. Does nothing for a whole registration. The second number of a pair is the length of a
    /// further record, or 0 if the file is new to the repository.
    pub(super) async fn list_files(&self, tx: &mut Tx<'_>, files: &[(i64, i64)]) -> Result<(), IndexError> {
        const LIST: (&str, &str) = (
            "INSERT INTO registration_files (registration, file_id, record_len) ",
            " ON CONFLICT DO UPDATE SET record_len = record_len + excluded.record_len",
        );
        let Mark::Step(registration) = self.mark else { return Ok(()) };
        insert_rows(tx, LIST, files, |columns, (file, record_len)| {
            columns.push_bind(registration).push_bind(*file).push_bind(*record_len);
        })
        .await
    }

    /// Writes the next part of a file with very many terms: its row and claim, then its references,
    /// then its terms. Returns the reason if the registration is refused.
    pub(super) async fn write_large(
        &mut self,
        tx: &mut Tx<'_>,
        file: &NewFile,
    ) -> Result<Option<Registered>, IndexError> {
        const REFER: &str = "INSERT INTO xorb_files (xorb_id, file_id) SELECT value, ? FROM json_each(?)";
        if self.at.part == 0 {
            let some = slice::from_ref(file);
            let known = self.find_known(tx, some).await?;
            if known.get(&file.hash).is_some_and(|known| !self.is_hidden_of_other(known)) {
                return self.claim_in_parts(tx, file, known).await;
            }
            self.discard_hidden(tx, some, known).await?;
            self.insert_large(tx, file).await?;
            self.at.part = 1;
            self.tell(Registered::New);
            return Ok(None);
        }
        let id = self.id_of(tx, file.hash).await?;
        // The outcome `New` makes the caller check the quota, because each part of references
        // charges the repository.
        self.tell(Registered::New);
        let sets = Arc::clone(&self.at.sets);
        let xorbs = sets.of_large.get(&self.at.file).map_or(&[][..], Vec::as_slice);
        let part = self.at.part - 1;
        if let Some(some) = xorbs.chunks(PART_XORB_COUNT).nth(part) {
            let named = match Named::find(tx, some).await? {
                Ok(named) => named,
                Err(unusable) => return Ok(Some(refusal(unusable))),
            };
            let ids = id_list(named.ids().values());
            // The triggers charge the repository for these references, because its claim exists.
            tx.execute(query(REFER).bind(id).bind(ids)).await?;
            named.retain_referenced(tx, self.registration.now).await?;
            self.ids.extend(named.into_ids());
            self.at.part += 1;
            return Ok(None);
        }
        let part = part - xorbs.len().div_ceil(PART_XORB_COUNT);
        let runs: Vec<TermRun> =
            terms::runs(id, &file.terms).skip(part * PART_RUN_COUNT).take(PART_RUN_COUNT).collect();
        terms::insert_runs(tx, &runs).await?;
        self.run_count += runs.len();
        self.at.part += 1;
        if runs.len() < PART_RUN_COUNT {
            (self.at.file, self.at.part) = (self.at.file + 1, 0);
        }
        Ok(None)
    }

    /// Inserts the row of a large file and the claim to it, without terms and references.
    async fn insert_large(&self, tx: &mut Tx<'_>, file: &NewFile) -> Result<(), IndexError> {
        let bare = NewFile { hash: file.hash, raw_len: file.raw_len, terms: Vec::new(), sha256: file.sha256 };
        self.insert_files(tx, &[&bare], &HashMap::new()).await?;
        let id = self.id_of(tx, file.hash).await?;
        // `insert_files` has charged the record of a file without terms. The trigger `usage_record`
        // charges the difference.
        let sql = "UPDATE file_repos SET record_len = ? WHERE file_id = ?";
        let len = record_len(file.terms.len()).cast_signed();
        tx.execute(query(sql).bind(len).bind(id)).await.map(drop)
    }
}

/// The error if a term names a xorb that was not looked up. Without an error the reference would be
/// missing, and GC would delete a xorb that a file needs.
fn unnamed(op: &'static str, xorb: XorbHash) -> IndexError {
    let reason = "a term names this xorb, but its row was not looked up".to_owned();
    IndexError::inconsistent(op, Inconsistent { table: "xorbs", column: "id", key: xorb.to_string(), reason })
}

/// The ids of the next new files, ascending. Chosen here and not by SQLite, because the rows of
/// terms and references in the same batch need the ids.
pub(in crate::index::sqlite) async fn next_ids(tx: &mut Tx<'_>, count: usize) -> Result<Vec<i64>, IndexError> {
    let first: i64 = tx.one(query("SELECT coalesce(max(id), 0) + 1 FROM files")).await?;
    Ok((first..).take(count).collect())
}
