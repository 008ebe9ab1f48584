//! The files of a registration, in the transaction of a whole one or of a step: looks up the known
//! ones, and writes their changes.

use std::collections::{HashMap, HashSet};

use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use super::{BATCH_FILE_COUNT, Mark};
use crate::format::shard::Sha256;
use crate::format::{FileHash, XorbHash};
use crate::index::error::IndexError;
use crate::index::sqlite::claims::{Made, make_claim, parse_sha256};
use crate::index::sqlite::files::{SqliteQuery, execute, file_hash, push_files};
use crate::index::sqlite::named::{Named, Unusable};
use crate::index::sqlite::write::statement;
use crate::index::sqlite::{discard, get, map};
use crate::index::steps::SHORT_TERM_COUNT;
use crate::index::{Claim, Cursor, NewFile, Registered, Registration, record_len};

/// References of one part of a large file. Each is a separate place in three tables.
pub(super) const PART_XORB_COUNT: usize = if cfg!(test) { 2 } else { 256 };

/// A registration in progress, in the transaction of a whole one or of a step.
pub(super) struct Entry<'r> {
    pub(super) op: &'static str,
    pub(super) registration: &'r Registration,
    pub(super) mark: Mark,
    pub(super) at: Cursor,
    pub(super) outcome: Registered,
}

impl<'r> Entry<'r> {
    pub(super) const fn new(op: &'static str, registration: &'r Registration, mark: Mark, at: Cursor) -> Self {
        Self { op, registration, mark, at, outcome: Registered::Known }
    }

    pub(super) fn is_done(&self) -> bool {
        self.at.file == self.registration.files.len() && self.at.touched == self.at.sets.listed.len()
    }

    /// Writes the next batch or part. Returns the reason if the registration is refused.
    pub(super) async fn write_some(
        &mut self,
        connection: &mut SqliteConnection,
    ) -> Result<Option<Registered>, IndexError> {
        let registration = self.registration;
        let Some(file) = registration.files.get(self.at.file) else {
            return self.touch_listed(connection).await;
        };
        if file.is_large() {
            return self.write_large(connection, file).await;
        }
        let rest = &registration.files[self.at.file..];
        let mut term_count = 0;
        let fits = |file: &&NewFile| {
            term_count += file.terms.len();
            !file.is_large() && term_count <= SHORT_TERM_COUNT
        };
        let count = rest.iter().take(BATCH_FILE_COUNT).take_while(fits).count().max(1);
        let refused = self.write_batch(connection, &rest[..count]).await?;
        self.at.file += count;
        Ok(refused)
    }

    async fn touch_listed(&mut self, connection: &mut SqliteConnection) -> Result<Option<Registered>, IndexError> {
        let listed = &self.at.sets.listed;
        let end = listed.len().min(self.at.touched + PART_XORB_COUNT);
        let some = &listed[self.at.touched..end];
        let named = Named::find(self.op, connection, some).await?;
        self.at.touched = end;
        match named {
            Ok(named) => named.retain(self.op, connection, self.registration.now).await?,
            Err(unusable) => return Ok(Some(refusal(unusable))),
        }
        Ok(None)
    }

    pub(super) fn tell(&mut self, told: Registered) {
        if told == Registered::New || self.outcome == Registered::Known {
            self.outcome = told;
        }
    }

    pub(super) async fn write_batch(
        &mut self,
        connection: &mut SqliteConnection,
        files: &[NewFile],
    ) -> Result<Option<Registered>, IndexError> {
        let op = self.op;
        let xorbs: HashSet<XorbHash> = files.iter().flat_map(|file| &file.terms).map(|term| term.xorb).collect();
        let named = match Named::find(op, connection, &xorbs.into_iter().collect::<Vec<_>>()).await? {
            Ok(named) => named,
            Err(unusable) => return Ok(Some(refusal(unusable))),
        };
        let known = self.find_known(connection, files).await?;
        let (mut new, mut others, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        for file in files {
            match known.get(&file.hash) {
                None if seen.insert(file.hash) => new.push(file),
                Some(known) if known.has_all_of(file) => {}
                // Also a second occurrence in the shard: it may claim another sha256.
                known => others.push((file, known)),
            }
        }
        if !new.is_empty() {
            self.insert_files(connection, &new, named.ids()).await?;
            self.tell(Registered::New);
        }
        for (file, known) in others {
            let id = match known {
                Some(known) => known.id,
                None => self.id_of(connection, file.hash).await?,
            };
            match self.write_known(connection, id, file).await? {
                Registered::Known => {}
                told @ (Registered::New | Registered::Added) => self.tell(told),
                refused => return Ok(Some(refused)),
            }
        }
        named.retain(op, connection, self.registration.now).await?;
        Ok(None)
    }

    /// Those of these files that the index has. Rows of an abandoned registration are discarded
    /// first: the caller holds the locks of these files, so that no other registration writes them.
    pub(super) async fn find_known(
        &self,
        connection: &mut SqliteConnection,
        files: &[NewFile],
    ) -> Result<HashMap<FileHash, Known>, IndexError> {
        const SELECT: &str = "SELECT hash, files.id, sha256, sha256_state, repo IS NOT NULL, \
             coalesce(has_claimed, 0), claim, files.registration IN hidden, \
             coalesce(file_repos.registration IN hidden, 0), coalesce(claim_registration IN hidden, 0), \
             files.registration, coalesce(file_repos.registration, 0), coalesce(claim_registration, 0) \
             FROM files LEFT JOIN file_repos ON file_id = files.id AND repo = ";
        let op = self.op;
        let mut known = HashMap::new();
        let hashes: Vec<FileHash> = files.iter().map(|file| file.hash).collect();
        for some in hashes.chunks(BATCH_FILE_COUNT) {
            let mut query = QueryBuilder::<Sqlite>::new(SELECT);
            query.push_bind(self.registration.repo.clone()).push(" WHERE hash IN (");
            // A power of two of parameters, so that few statements are prepared.
            let padded = (0..some.len().next_power_of_two()).map(|index| &some[index.min(some.len() - 1)]);
            push_files(&mut query, padded);
            let rows = query.build().fetch_all(statement(op, connection)?).await.map_err(|error| map(op, error))?;
            let mut abandoned = Vec::new();
            for row in &rows {
                let hash = file_hash(op, get(op, row, 0)?)?;
                let digest = |index| {
                    let digest: Option<&[u8]> = get(op, row, index)?;
                    digest.map(|digest| parse_sha256(op, hash, digest)).transpose()
                };
                let id: i64 = get(op, row, 1)?;
                let is_own = |index| Ok::<_, IndexError>(get::<i64>(op, row, index)? == self.mark.of_claim());
                if get::<bool>(op, row, 7)? && !is_own(10)? {
                    abandoned.push(id);
                    continue;
                }
                let mut is_claimed: bool = get(op, row, 4)?;
                let mut has_claimed: bool = get(op, row, 5)?;
                if get::<bool>(op, row, 8)? && !is_own(11)? {
                    discard::claim(op, connection, id, get(op, row, 11)?, self.registration.now).await?;
                    (is_claimed, has_claimed) = (false, false);
                } else if get::<bool>(op, row, 9)? && !is_own(12)? {
                    discard::claim(op, connection, id, get(op, row, 12)?, self.registration.now).await?;
                    has_claimed = false;
                }
                let found = Known {
                    id,
                    sha256: digest(2)?,
                    state: get(op, row, 3)?,
                    is_claimed,
                    has_claimed,
                    claim: digest(6)?,
                };
                known.insert(hash, found);
            }
            discard::files(op, connection, &abandoned, self.registration.now).await?;
        }
        Ok(known)
    }

    pub(super) async fn id_of(&self, connection: &mut SqliteConnection, hash: FileHash) -> Result<i64, IndexError> {
        let query = sqlx::query("SELECT id FROM files WHERE hash = ?").bind(hash.as_bytes().to_vec());
        let row = query.fetch_one(statement(self.op, connection)?).await.map_err(|error| map(self.op, error))?;
        get(self.op, &row, 0)
    }

    /// Registers one known file. Its terms stay, so readers see no change.
    async fn write_known(
        &self,
        connection: &mut SqliteConnection,
        id: i64,
        file: &NewFile,
    ) -> Result<Registered, IndexError> {
        const CLAIM: &str = "INSERT INTO file_repos (file_id, repo, record_len, registration, claim_registration) \
             SELECT ?1, ?2, ?3, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM file_repos WHERE file_id = ?1 AND repo = ?2)";
        const MARK: &str =
            "UPDATE file_repos SET registration = ?1, claim_registration = ?1 WHERE file_id = ?2 AND repo = ?3";
        const RECORD: &str = "UPDATE file_repos SET record_len = record_len + ?1, claim_registration = ?4 \
             WHERE file_id = ?2 AND repo = ?3";
        let (op, repo) = (self.op, self.registration.repo.as_str());
        let record_len = record_len(file.terms.len()).cast_signed();
        let bound = |query: SqliteQuery| query.bind(id).bind(repo.to_owned()).bind(record_len);
        let added = execute(op, connection, CLAIM, bound).await?;
        let mark = self.mark.of_claim();
        if added > 0 && mark != 0 {
            // The triggers have counted it, like any row that is written singly.
            execute(op, connection, MARK, |query| query.bind(mark).bind(id).bind(repo.to_owned())).await?;
        }
        let made = match file.sha256 {
            None => Made::Known,
            Some(sha256) => make_claim(op, connection, id, repo, Claim { file: file.hash, sha256 }).await?,
        };
        let (told, further_len) = match (added, made) {
            (_, Made::Other(unverified)) => return Ok(Registered::OtherSha256 { file: file.hash, unverified }),
            (0, Made::Known) => return Ok(Registered::Known),
            (1.., Made::Known | Made::New) => (Registered::New, 0),
            // The file has a further record.
            (0, Made::New) => (Registered::Added, record_len),
        };
        if told == Registered::Added {
            let bound = |query: SqliteQuery| query.bind(further_len).bind(id).bind(repo.to_owned()).bind(mark);
            execute(op, connection, RECORD, bound).await?;
        }
        self.list_files(connection, &[(id, further_len)]).await?;
        Ok(told)
    }
}

/// A file that the index has.
pub(super) struct Known {
    id: i64,
    sha256: Option<Sha256>,
    state: i64,
    /// Whether the repository of the registration has it.
    is_claimed: bool,
    has_claimed: bool,
    claim: Option<Sha256>,
}

impl Known {
    /// Whether there is nothing to write for this file: its repository has it, with the claimed
    /// sha256.
    fn has_all_of(&self, file: &NewFile) -> bool {
        let is_known = |claimed: Sha256| match self.state {
            0 => false,
            1 => self.has_claimed && self.claim.or(self.sha256) == Some(claimed),
            _ => self.sha256 == Some(claimed),
        };
        self.is_claimed && file.sha256.is_none_or(is_known)
    }
}

pub(super) fn refusal(unusable: Unusable) -> Registered {
    match unusable {
        Unusable::Unknown(xorb) => Registered::MissingXorb(xorb),
        Unusable::Damaged(xorb) => Registered::DamagedXorb(xorb),
    }
}
