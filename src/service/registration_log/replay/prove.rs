//! Proves files of records against the new index.

use std::collections::HashSet;

use super::{Proven, Replay, Unproven};
use crate::blob::records::Seq;
use crate::format::shard::{CasInfo, FileInfo, Shard, parse_stored as parse_shard};
use crate::format::{ChunkHash, XorbHash};
use crate::index::{NewFile, Reader};
use crate::runtime::fair::Tenant;
use crate::service::contents::{Contents, runs};
use crate::service::error::RegisterError;
use crate::service::error::StoreError;
use crate::service::register::FirstChunk;
use crate::service::registration_log::rebuilt::RebuildError;
use crate::service::registration_log::record::Record;

/// A file, its first chunk, and whether its terms are those of a switch.
pub(super) type ProvenFile = (NewFile, FirstChunk, bool);

impl Replay<'_> {
    /// Proves the listed xorbs of a shard; missing ones are left out. Returns the proven xorbs, and
    /// the chunks of them that dedup may find.
    pub(super) async fn prove_listed(
        &mut self,
        seq: Seq,
        xorbs: &[CasInfo],
    ) -> Result<(Vec<(ChunkHash, XorbHash)>, Vec<XorbHash>), RebuildError> {
        let (mut dedup, mut listed) = (Vec::new(), Vec::new());
        for xorb in xorbs {
            match self.store.prove_xorbs(Tenant::SERVER, vec![xorb.clone()], &HashSet::new()).await {
                Ok(chunks) => {
                    dedup.extend(chunks);
                    listed.push(xorb.hash);
                }
                Err(RegisterError::MissingXorb { .. }) => {}
                Err(RegisterError::Store(error)) => return Err(error.into()),
                Err(other) => self.skip_damaged(seq, other),
            }
        }
        Ok((dedup, listed))
    }

    /// Proves files that fit into one run, each as [`prove`](Self::prove) does. If none of them was
    /// ever switched, they are proven together, and one by one only if that fails.
    pub(super) async fn prove_some(
        &self,
        seq: Seq,
        files: Vec<FileInfo>,
        mut contents: Contents,
    ) -> Result<(Vec<Result<ProvenFile, Unproven>>, Contents), RebuildError> {
        if files.len() > 1 && !files.iter().any(|file| self.switched.contains_key(&file.hash)) {
            match self.store.prove_files(Tenant::SERVER, files.clone(), contents).await {
                Ok((proven, contents)) => {
                    return Ok((proven.into_iter().map(|(file, first)| Ok((file, first, false))).collect(), contents));
                }
                Err(RegisterError::Store(error)) => return Err(error.into()),
                Err(_) => contents = Contents::default(),
            }
        }
        let mut outcomes = Vec::with_capacity(files.len());
        for file in files {
            let outcome;
            (outcome, contents) = self.prove(seq, file, contents).await?;
            outcomes.push(outcome);
        }
        Ok((outcomes, contents))
    }

    /// Proves a file by the terms of a later switch, or by those of its record, or by those of an
    /// earlier switch. Any terms that prove the file are valid. Several are tried, because a
    /// recorded switch may not have happened. A file that is registered already needs no proof.
    /// Returns the file, its first chunk, and whether its terms differ from those of its record.
    async fn prove(
        &self,
        seq: Seq,
        file: FileInfo,
        contents: Contents,
    ) -> Result<(Result<ProvenFile, Unproven>, Contents), RebuildError> {
        let switched = self.switched.get(&file.hash).map(Vec::as_slice).unwrap_or_default();
        let (before, later) = switched.split_at(switched.partition_point(|switched| *switched < seq));
        if let Some(proven) = self.prove_switched(later, &file).await? {
            return Ok((Ok(proven), Contents::default()));
        }
        let known = NewFile { hash: file.hash, raw_len: file.raw_len(), terms: Vec::new(), sha256: file.sha256 };
        let missing = match self.store.prove_file(Tenant::SERVER, file.clone(), contents).await {
            Ok((file, first, contents)) => return Ok((Ok((file, first, false)), contents)),
            Err(RegisterError::MissingXorb { xorb }) => xorb,
            Err(RegisterError::Store(error)) => return Err(error.into()),
            Err(other) => return Ok((Err(Unproven::False(other)), Contents::default())),
        };
        // If the file was registered before with other terms, no file refers to the xorbs of this
        // record, and they may have been deleted.
        let row = self.store.index.find_file(known.hash, Reader::All, None).await.map_err(StoreError::from)?;
        if row.is_some() {
            return Ok((Ok((known, None, false)), Contents::default()));
        }
        let proven = self.prove_switched(before, &file).await?;
        Ok((proven.ok_or(Unproven::Missing(missing)), Contents::default()))
    }

    /// Proves a file by the terms of one of these records, newest first.
    async fn prove_switched(&self, records: &[Seq], file: &FileInfo) -> Result<Option<ProvenFile>, RebuildError> {
        for seq in records.iter().rev() {
            let Some(terms) = self.terms_of(*seq, file).await? else { continue };
            match self.store.prove_file(Tenant::SERVER, terms, Contents::default()).await {
                Ok((proven, first, _)) => return Ok(Some((proven, first, true))),
                Err(RegisterError::Store(error)) => return Err(error.into()),
                Err(_) => {}
            }
        }
        Ok(None)
    }

    /// The file with the terms that this record gives it.
    pub(super) async fn terms_of(&self, seq: Seq, file: &FileInfo) -> Result<Option<FileInfo>, RebuildError> {
        let Some(Ok(Record::Terms { shard, .. })) = self.read(seq).await? else { return Ok(None) };
        let Ok(Shard { files, .. }) = parse_shard(&shard) else { return Ok(None) };
        let switched = files.into_iter().find(|switched| switched.hash == file.hash);
        Ok(switched.map(|switched| FileInfo { sha256: file.sha256, ..switched }))
    }

    /// Chunks of these files' xorbs that dedup may find according to the protocol, and the xorbs.
    pub(super) async fn chunks_to_ask_for(
        &self,
        files: impl Iterator<Item = &Proven>,
    ) -> Result<(Vec<(ChunkHash, XorbHash)>, Vec<XorbHash>), RebuildError> {
        let (mut chunks, mut seen) = (Vec::new(), HashSet::new());
        for terms in files.flat_map(|file| runs(&file.file.terms)) {
            let unseen = terms.iter().map(|term| term.xorb).filter(|xorb| !seen.contains(xorb));
            for (hash, xorb) in self.store.whole_contents(unseen).await? {
                let asked_for = xorb.chunk_hashes.iter().filter(|hash| hash.is_dedup_eligible());
                chunks.extend(asked_for.map(|chunk| (*chunk, hash)));
                seen.insert(hash);
            }
        }
        Ok((chunks, seen.into_iter().collect()))
    }
}
