//! New files of a registration: in batches, or in parts.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::slice;
use std::sync::Arc;

use sqlx::query;

use super::Mark;
use super::entry::{Entry, PART_XORB_COUNT, refusal};
use crate::format::XorbHash;
use crate::index::error::{Inconsistent, IndexError};
use crate::index::postgres::bulk::insert_rows;
use crate::index::postgres::lists::id_list;
use crate::index::postgres::millis;
use crate::index::postgres::named::Named;
use crate::index::postgres::terms::{self, TermRun};
use crate::index::postgres::tx::Tx;
use crate::index::{NewFile, Registered, record_len};

/// Rows of terms in one part: 16 of up to 512 terms are 352 KiB.
const PART_RUN_COUNT: usize = if cfg!(test) { 1 } else { 16 };

impl Entry<'_> {
    /// Inserts new files, each once, with terms, references and claims.
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
        insert_rows(tx, REFERENCES, &references, |columns, (xorb, file)| {
            columns.push_bind(*xorb).push_bind(*file);
        })
        .await?;
        insert_rows(tx, CLAIMS, &files, |columns, (id, file)| {
            columns.push_bind(*id).push_bind(registration.repo.as_str()).push_bind(file.sha256.is_some());
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

    /// Adds new files and their xorbs to the usage of the repository, and to its list of files. For
    /// rows with mark 0 the triggers do this.
    async fn count(
        &self,
        tx: &mut Tx<'_>,
        files: &[(i64, &NewFile)],
        counts: &BTreeMap<i64, i64>,
    ) -> Result<(), IndexError> {
        const ENTER: &str = "INSERT INTO repos (name) VALUES ($1) ON CONFLICT (name) DO NOTHING";
        const COUNT: &str = "UPDATE repos SET file_count = file_count + $1, logical_len = logical_len + $2, \
             physical_len = physical_len + $3 + (SELECT coalesce(sum(serialized_len), 0)::bigint \
                 FROM xorbs WHERE xorbs.id = ANY($4) AND NOT EXISTS \
                 (SELECT 1 FROM repo_xorbs AS known WHERE known.repo_id = repos.id AND known.xorb_id = xorbs.id)) \
             WHERE name = $5 RETURNING id";
        const CHARGE: &str = "INSERT INTO repo_xorbs (repo_id, xorb_id, file_count, len) \
             SELECT $1, xorbs.id, counted.file_count, coalesce(serialized_len, 0) \
             FROM unnest($2, $3) AS counted (xorb_id, file_count) JOIN xorbs ON xorbs.id = counted.xorb_id \
             ON CONFLICT (repo_id, xorb_id) DO UPDATE SET file_count = repo_xorbs.file_count + excluded.file_count";
        const LIST: (&str, &str) = ("INSERT INTO repo_files (repo_id, hash, file_id) ", "");
        let repo = self.registration.repo.as_str();
        let count = i64::try_from(files.len()).unwrap_or(i64::MAX);
        let logical_len: u64 = files.iter().map(|(_, file)| file.raw_len).sum();
        let record_len: u64 = files.iter().map(|(_, file)| record_len(file.terms.len())).sum();
        let (xorbs, counts): (Vec<i64>, Vec<i64>) = counts.iter().unzip();
        tx.execute(query(ENTER).bind(repo)).await?;
        let count = query(COUNT)
            .bind(count)
            .bind(logical_len.cast_signed())
            .bind(record_len.cast_signed())
            .bind(xorbs.as_slice())
            .bind(repo);
        let repo: i64 = tx.one(count).await?;
        tx.execute(query(CHARGE).bind(repo).bind(xorbs).bind(counts)).await?;
        insert_rows(tx, LIST, files, |columns, (id, file)| {
            columns.push_bind(repo).push_bind(file.hash.as_bytes().as_slice()).push_bind(*id);
        })
        .await
    }

    /// Lists the files of a step, to find them again if the registration is abandoned.
    pub(super) async fn list_files(&self, tx: &mut Tx<'_>, files: &[(i64, i64)]) -> Result<(), IndexError> {
        const LIST: (&str, &str) = (
            "INSERT INTO registration_files (registration, file_id, record_len) ",
            " ON CONFLICT (registration, file_id) DO UPDATE \
             SET record_len = registration_files.record_len + excluded.record_len",
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
        const REFER: &str = "INSERT INTO xorb_files (xorb_id, file_id) SELECT value, $1 FROM unnest($2) AS value";
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
        // Each part is charged when it is written, so each is checked against the quota.
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
            // The triggers charge them to the claim, which exists by now.
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
        let sql = "UPDATE file_repos SET record_len = $1 WHERE file_id = $2";
        let len = record_len(file.terms.len()).cast_signed();
        tx.execute(query(sql).bind(len).bind(id)).await.map(drop)
    }
}

/// An error, because without this reference GC would delete a xorb that a file needs.
fn unnamed(op: &'static str, xorb: XorbHash) -> IndexError {
    let reason = "the registration does not name this xorb of a term".to_owned();
    IndexError::inconsistent(op, Inconsistent { table: "xorbs", column: "id", key: xorb.to_string(), reason })
}

/// Ids for this many new files, ascending.
pub(in crate::index::postgres) async fn next_ids(tx: &mut Tx<'_>, count: usize) -> Result<Vec<i64>, IndexError> {
    const SQL: &str = "SELECT nextval(pg_get_serial_sequence('files', 'id')) FROM generate_series(1, $1)";
    tx.all(query(SQL).bind(i64::try_from(count).unwrap_or(i64::MAX))).await
}
