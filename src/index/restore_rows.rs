//! Writes the files of a restore, one text for every database. All rows of a table are written with
//! few statements, because each statement costs a round trip.

/// Defines `write_files` for the index of a database. `$in_hashes` is the SQL before a list of
/// hashes, up to its opening parenthesis. The place of use imports what the text names.
macro_rules! restore_rows {
    ($database:ty, $in_hashes:literal) => {
        /// Inserts these files, and replaces existing ones with the same hash. Of two records of a
        /// file, the last one counts.
        async fn write_files(tx: &mut Tx<'_>, files: &[RestoredFile]) -> Result<(), IndexError> {
            const DELETE: &str = concat!("DELETE FROM files WHERE hash ", $in_hashes);
            const FILES: (&str, &str) = ("INSERT INTO files (id, hash, raw_len, since, sha256, sha256_state) ", "");
            const REFERENCES: (&str, &str) = ("INSERT INTO xorb_files (xorb_id, file_id) ", "");
            const CLAIMS: (&str, &str) =
                ("INSERT INTO file_repos (file_id, repo, record_len, has_claimed, since) ", "");
            const OWNERS: (&str, &str) = ("INSERT INTO xorb_domains (xorb_id, domain) ", " ON CONFLICT DO NOTHING");
            const DEDUP: (&str, &str) = ("INSERT INTO dedup_chunks (chunk_hash, xorb_id) ", " ON CONFLICT DO NOTHING");
            let last: HashMap<FileHash, &FileRecord> =
                files.iter().map(|file| (file.record.hash, &file.record)).collect();
            let mut records: Vec<&FileRecord> = last.into_values().collect();
            records.sort_unstable_by_key(|record| *record.hash.as_bytes());
            for some in records.chunks(BATCH_COUNT) {
                let mut delete = QueryBuilder::<$database>::new(DELETE);
                push_hashes(&mut delete, some.iter().map(|record| &record.hash));
                tx.execute(delete.build()).await?;
            }
            let ids = next_ids(tx, records.len()).await?;
            let records: Vec<(i64, &FileRecord)> = ids.into_iter().zip(records).collect();
            insert_rows(tx, FILES, &records, |columns, (id, file)| {
                columns.push_bind(*id).push_bind(file.hash.as_bytes().as_slice()).push_bind(file.raw_len.cast_signed());
                let digest = file.sha256.as_ref().map(|(sha256, _)| sha256.as_digest().to_vec());
                columns.push_bind(millis(file.since)).push_bind(digest).push_bind(state_number(file));
            })
            .await?;
            let runs: Vec<TermRun> = records.iter().flat_map(|(id, file)| terms::runs(*id, &file.terms)).collect();
            terms::insert_runs(tx, &runs).await?;
            let xorbs = ids_of_xorbs(tx, files).await?;
            let mut references = Vec::new();
            for (id, file) in &records {
                let named: HashSet<XorbHash> = file.terms.iter().map(|term| term.xorb).collect();
                for xorb in named {
                    let xorb = xorbs.get(&xorb).ok_or_else(|| IndexError::lost(tx.op(), 0))?;
                    references.push((*xorb, *id));
                }
            }
            references.sort_unstable();
            insert_rows(tx, REFERENCES, &references, |columns, (xorb, file)| {
                columns.push_bind(*xorb).push_bind(*file);
            })
            .await?;
            // Usage counts the registration record of each claim, too. The first start writes these
            // records.
            let mut claims = Vec::new();
            for (id, file) in &records {
                let claimants: HashSet<&String> = file.claimants.iter().collect();
                let is_claimed = matches!(file.sha256, Some((_, Sha256State::Claimed)));
                claims.extend(file.repos.iter().map(|repo| (*id, *file, repo, is_claimed && claimants.contains(repo))));
            }
            insert_rows(tx, CLAIMS, &claims, |columns, (id, file, repo, has_claimed)| {
                columns.push_bind(*id).push_bind(repo.as_str()).push_bind(record_len(file.terms.len()).cast_signed());
                columns.push_bind(*has_claimed).push_bind(file.later.get(*repo).copied().map(millis));
            })
            .await?;
            let owners = files.iter().flat_map(|file| &file.record.owners);
            let owners: Vec<_> = owners.filter_map(|(xorb, owner)| Some((*xorbs.get(xorb)?, owner))).collect();
            insert_rows(tx, OWNERS, &owners, |columns, (xorb, owner)| {
                columns.push_bind(*xorb).push_bind(owner.as_str());
            })
            .await?;
            let dedup = files.iter().flat_map(|file| &file.dedup);
            let dedup: Vec<_> = dedup.filter_map(|(chunk, xorb)| Some((*chunk, *xorbs.get(xorb)?))).collect();
            insert_rows(tx, DEDUP, &dedup, |columns, (chunk, xorb)| {
                columns.push_bind(chunk.as_bytes().as_slice()).push_bind(*xorb);
            })
            .await
        }

        /// The row ids of the visible ones among the xorbs that these files name.
        async fn ids_of_xorbs(tx: &mut Tx<'_>, files: &[RestoredFile]) -> Result<HashMap<XorbHash, i64>, IndexError> {
            const SELECT: &str = concat!("SELECT hash, id FROM visible_xorbs WHERE hash ", $in_hashes);
            row! { Found { hash: XorbHash, id: i64 } }
            let mut named = HashSet::new();
            for RestoredFile { record, dedup } in files {
                named.extend(record.terms.iter().map(|term| term.xorb));
                named.extend(record.owners.iter().map(|(xorb, _)| *xorb));
                named.extend(dedup.iter().map(|(_, xorb)| *xorb));
            }
            let named: Vec<XorbHash> = named.into_iter().collect();
            let mut ids = HashMap::with_capacity(named.len());
            for some in named.chunks(BATCH_COUNT) {
                let mut select = QueryBuilder::<$database>::new(SELECT);
                push_hashes(&mut select, some);
                ids.extend(tx.all::<Found>(select.build()).await?.into_iter().map(|found| (found.hash, found.id)));
            }
            Ok(ids)
        }

        /// The column `sha256_state` of a file.
        const fn state_number(file: &FileRecord) -> i64 {
            match file.sha256 {
                None => 0,
                Some((_, Sha256State::Claimed)) => 1,
                Some((_, Sha256State::Verified)) => 2,
            }
        }
    };
}

pub(super) use restore_rows;
