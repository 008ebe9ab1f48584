//! The guards of compaction, broken like the others.

use super::guards::{BrokenGuards, Guard};
use crate::format::XorbHash;
use crate::index::sqlite::SqliteIndex;
use crate::index::{Collect, Compact, FileSwitch, IndexError, Switched};
use crate::runtime::clock::Timestamp;

impl BrokenGuards {
    pub(in crate::service::tests) async fn owners_of(
        &self,
        index: &SqliteIndex,
        xorbs: Vec<XorbHash>,
    ) -> Result<Vec<(XorbHash, String)>, IndexError> {
        if !self.lacks(Guard::CompactionGroupsOwners) {
            return index.owners_of(xorbs).await;
        }
        // As if every owner had uploaded every xorb.
        let domains = ["a", "b"];
        Ok(xorbs.iter().flat_map(|xorb| domains.map(|domain| (*xorb, domain.to_owned()))).collect())
    }

    pub(in crate::service::tests) async fn switch_terms(
        &self,
        index: &SqliteIndex,
        files: &[FileSwitch],
        now: Timestamp,
        record: Option<u64>,
    ) -> Result<Switched, IndexError> {
        let mut forced = Vec::new();
        if self.lacks(Guard::SwitchComparesTerms) {
            for file in files {
                let rows = index.terms_of(file.file).await?;
                for run in &file.runs {
                    let Some(current) = rows.iter().find(|row| row.row == run.row && row.terms != run.before) else {
                        continue;
                    };
                    index.force_terms(run.row, &run.before).await?;
                    forced.push(current.clone());
                }
            }
        }
        let before =
            if self.lacks(Guard::SwitchTouches) { index.xorb_lives(None, u32::MAX).await? } else { Vec::new() };
        let switched = index.switch_terms_of(files, now, record).await?;
        if switched != Switched::All {
            for row in forced {
                index.force_terms(row.row, &row.terms).await?;
            }
            return Ok(switched);
        }
        for life in before.into_iter().filter(|life| life.is_referenced) {
            if index.find_life(life.hash).await?.is_some_and(|life| !life.is_referenced) {
                let since = life.since.as_millis().cast_signed();
                index.corrupt_row("UPDATE xorbs SET since = ?2 WHERE hash = ?1", life.hash.as_bytes(), since).await?;
            }
        }
        for file in files {
            for (before, after) in changed(file) {
                if self.lacks(Guard::SwitchRefers) {
                    index.let_go(after, file).await?;
                }
                if self.lacks(Guard::SwitchKeepsWhatIsNamed) {
                    index.let_go(before, file).await?;
                }
            }
        }
        Ok(switched)
    }
}

/// The xorbs of changed terms, before and after the switch.
fn changed(file: &FileSwitch) -> Vec<(XorbHash, XorbHash)> {
    let mut changed = Vec::new();
    for run in &file.runs {
        let terms = run.before.iter().zip(&run.after).map(|(before, after)| (before.xorb, after.xorb));
        changed.extend(terms.filter(|(before, after)| before != after));
    }
    changed
}

impl SqliteIndex {
    /// Removes the reference of a file to a xorb, whatever its terms name.
    async fn let_go(&self, xorb: XorbHash, file: &FileSwitch) -> Result<(), IndexError> {
        const LET_GO: &str = "DELETE FROM xorb_files WHERE xorb_id = (SELECT id FROM xorbs WHERE hash = ?1) \
             AND file_id = (SELECT id FROM files WHERE hash = ?2)";
        self.corrupt_pair(LET_GO, xorb.as_bytes(), file.file.as_bytes()).await.map(drop)
    }
}
