//! What a record claims, proven against the index that is being made.

use std::collections::HashSet;
use std::slice;

use super::{Proven, Replay, Unproven};
use crate::blob::records::Seq;
use crate::format::shard::{CasInfo, FileInfo, Shard, parse as parse_shard};
use crate::format::{ChunkHash, XorbHash};
use crate::index::{NewFile, Reader};
use crate::runtime::fair::Tenant;
use crate::service::contents::{Contents, runs};
use crate::service::error::StoreError;
use crate::service::register::RegisterError;
use crate::service::shard_records::rebuild::RebuildError;
use crate::service::shard_records::record::Record;

impl Replay<'_> {
    /// Proves what a shard says of xorbs, of which those that are not there are left out; returns their chunks that
    /// clients may ask for, and which xorbs they are.
    pub(super) async fn prove_listed(
        &mut self,
        seq: Seq,
        xorbs: &[CasInfo],
    ) -> Result<(Vec<(ChunkHash, XorbHash)>, Vec<XorbHash>), RebuildError> {
        let (mut dedup, mut listed) = (Vec::new(), Vec::new());
        for xorb in xorbs {
            match self.cas.prove_xorbs(Tenant::SERVER, slice::from_ref(xorb)).await {
                Ok(chunks) => {
                    dedup.extend(chunks);
                    listed.push(xorb.hash);
                }
                Err(RegisterError::MissingXorb { .. }) => {}
                Err(RegisterError::Store(error)) => return Err(error.into()),
                Err(other) => self.spoilt(seq, other),
            }
        }
        Ok((dedup, listed))
    }

    /// Proves a file by its newest terms, or by those of its record; one that is known already needs none of them.
    pub(super) async fn prove(
        &self,
        seq: Seq,
        file: FileInfo,
        contents: Contents,
    ) -> Result<(Result<(NewFile, Option<(ChunkHash, XorbHash)>), Unproven>, Contents), RebuildError> {
        if let Some(later) = self.switched.get(&file.hash).filter(|later| **later > seq)
            && let Some(terms) = self.terms_of(*later, &file).await?
            && let Ok((proven, first, contents)) = self.cas.prove_file(Tenant::SERVER, terms, Contents::default()).await
        {
            return Ok((Ok((proven, first)), contents));
        }
        let known = NewFile { hash: file.hash, raw_len: file.raw_len(), terms: Vec::new(), sha256: file.sha256 };
        let missing = match self.cas.prove_file(Tenant::SERVER, file, contents).await {
            Ok((file, first, contents)) => return Ok((Ok((file, first)), contents)),
            Err(RegisterError::MissingXorb { xorb }) => xorb,
            Err(RegisterError::Store(error)) => return Err(error.into()),
            Err(other) => return Ok((Err(Unproven::False(other)), Contents::default())),
        };
        // Its own xorbs were never referred to where the file was known before, and may be gone for good.
        let row = self.cas.index.find_file(known.hash, Reader::All, None).await.map_err(StoreError::from)?;
        let outcome = if row.is_some() { Ok((known, None)) } else { Err(Unproven::Missing(missing)) };
        Ok((outcome, Contents::default()))
    }

    /// The file with the terms that this record gives it.
    pub(super) async fn terms_of(&self, seq: Seq, file: &FileInfo) -> Result<Option<FileInfo>, RebuildError> {
        let Some(Ok(Record::Terms { shard, .. })) = self.read(seq).await? else { return Ok(None) };
        let Ok(Shard { files, .. }) = parse_shard(&shard) else { return Ok(None) };
        let switched = files.into_iter().find(|switched| switched.hash == file.hash);
        Ok(switched.map(|switched| FileInfo { sha256: file.sha256, ..switched }))
    }

    /// Chunks of these files' xorbs that clients may ask for by the rule of the protocol, and the xorbs.
    pub(super) async fn chunks_to_ask_for(
        &self,
        files: &[Proven],
    ) -> Result<(Vec<(ChunkHash, XorbHash)>, Vec<XorbHash>), RebuildError> {
        let (mut chunks, mut seen, mut contents) = (Vec::new(), HashSet::new(), Contents::default());
        for terms in files.iter().flat_map(|file| runs(&file.file.terms)) {
            contents = self.cas.contents(contents, terms.iter().map(|term| term.xorb)).await?;
            for term in terms {
                if let Some(xorb) = contents.get(&term.xorb).filter(|_| seen.insert(term.xorb)) {
                    let asked_for = xorb.chunk_hashes.iter().filter(|hash| hash.is_dedup_eligible());
                    chunks.extend(asked_for.map(|hash| (*hash, term.xorb)));
                }
            }
        }
        Ok((chunks, seen.into_iter().collect()))
    }
}
