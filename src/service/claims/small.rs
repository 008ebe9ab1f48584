//! Claims of small files, which clients pack by the thousand into one xorb: read together, and
//! settled in one transaction. Alone each would take a query, a read and a transaction of its own.

use std::collections::HashMap;
use std::ops::Range;

use futures_util::TryStreamExt;
use sha2::{Digest, Sha256 as Hasher};

use crate::format::shard::{Sha256, Term};
use crate::format::{ByteRange, FileHash, XorbHash};
use crate::index::Claim;
use crate::runtime::telemetry::chain;
use crate::service::Cas;
use crate::service::download::StoredXorb;
use crate::service::error::{ReadError, StoreError};

/// Raw bytes of a file that is read together with others.
const SMALL_LEN: u64 = 256 << 10;

/// Raw bytes that are in memory at once: one file at least.
const MAX_RUN_LEN: u64 = 4 << 20;

/// Bytes between two files that are read and discarded: decoding them costs as much as another
/// read. Clients list files by hash, so the files of one page are scattered over their xorbs.
const MAX_GAP_LEN: u64 = 64 << 10;

/// Files that lie close together in a xorb.
struct Run {
    bytes: ByteRange,
    claims: Vec<Placed>,
}

/// A claim of a file, and the file's place in the raw bytes of its xorb.
type Placed = (Claim, ByteRange);

impl Cas {
    /// Settles the true claims of small files among these, and reads so many bytes for that, or one
    /// run more. Returns the others, which may be true as well, and how many bytes were read; 0
    /// where no claim was settled.
    pub(super) async fn settle_small(&self, claims: Vec<Claim>, max_len: u64) -> Result<(Vec<Claim>, u64), StoreError> {
        let terms = self.index.single_terms(claims.iter().map(|claim| claim.file).collect(), SMALL_LEN).await?;
        let mut terms: HashMap<FileHash, Term> = terms.into_iter().collect();
        let (mut of_xorb, mut rest): (HashMap<XorbHash, Vec<(Claim, Term)>>, _) = (HashMap::new(), Vec::new());
        for claim in claims {
            match terms.remove(&claim.file) {
                Some(term) => of_xorb.entry(term.xorb).or_default().push((claim, term)),
                None => rest.push(claim),
            }
        }
        let (mut settled, mut read_len): (Vec<Placed>, u64) = (Vec::new(), 0);
        for (hash, claims) in of_xorb {
            let Some(xorb) = self.find(hash).await? else {
                rest.extend(claims.into_iter().map(|(claim, _)| claim));
                continue;
            };
            let (runs, mismatched) = runs(&xorb, claims);
            rest.extend(mismatched);
            for Run { bytes, claims } in runs {
                if read_len >= max_len {
                    rest.extend(claims.into_iter().map(|(claim, _)| claim));
                    continue;
                }
                read_len = read_len.saturating_add(bytes.byte_len());
                match self.read_run(&xorb, bytes, &claims).await {
                    Ok((right, others)) => {
                        settled.extend(right);
                        rest.extend(others.into_iter().map(|(claim, _)| claim));
                    }
                    Err(error) => {
                        // The faulty file is found when each is read alone.
                        tracing::debug!(xorb = %hash, error = %chain(&error), "small files are not read together");
                        rest.extend(claims.into_iter().map(|(claim, _)| claim));
                    }
                }
            }
        }
        if settled.is_empty() {
            return Ok((rest, 0));
        }
        let claims = settled.into_iter().map(|(claim, _)| claim).collect();
        self.metrics.sha256_verified.inc_by(self.index.settle_true_claims(claims).await?);
        Ok((rest, read_len))
    }

    /// The claims of a run that are true, and those that are false.
    async fn read_run(
        &self,
        xorb: &StoredXorb,
        bytes: ByteRange,
        claims: &[Placed],
    ) -> Result<(Vec<Placed>, Vec<Placed>), ReadError> {
        let stream = self.read_unproven(xorb, bytes).await?;
        let read = stream.try_fold(Vec::new(), async |mut read: Vec<u8>, piece| {
            read.extend_from_slice(&piece);
            Ok(read)
        });
        let (read, claims) = (read.await?, claims.to_vec());
        let start = bytes.start();
        let compare = move || {
            let is_true = |(claim, place): &Placed| {
                let contents = within(*place, start).and_then(|inside| read.get(inside));
                contents.is_some_and(|contents| Sha256::from_digest(Hasher::digest(contents).into()) == claim.sha256)
            };
            claims.into_iter().partition::<Vec<_>, _>(is_true)
        };
        Ok(self.verify_pool.run(compare).await)
    }
}

/// A place in the bytes that were read from `start` on.
fn within(place: ByteRange, start: u64) -> Option<Range<usize>> {
    let offset = |at: u64| usize::try_from(at.checked_sub(start)?).ok();
    Some(offset(place.start())?..offset(place.end())?)
}

/// Groups files that are close together; returns those whose terms do not match the xorb apart.
fn runs(xorb: &StoredXorb, claims: Vec<(Claim, Term)>) -> (Vec<Run>, Vec<Claim>) {
    let (mut placed, mut mismatched) = (Vec::with_capacity(claims.len()), Vec::new());
    for (claim, term) in claims {
        let raw = xorb.layout().raw_range(term.chunks).filter(|raw| raw.byte_len() == u64::from(term.raw_len));
        match raw {
            Some(raw) => placed.push((claim, raw)),
            None => mismatched.push(claim),
        }
    }
    placed.sort_by_key(|(_, raw)| raw.start());
    let mut runs: Vec<Run> = Vec::new();
    for (claim, raw) in placed {
        if let Some(run) = runs.last_mut()
            && raw.start() <= run.bytes.end().saturating_add(MAX_GAP_LEN)
            && let Some(both) = ByteRange::new(run.bytes.start(), run.bytes.end().max(raw.end()))
            && both.byte_len() <= MAX_RUN_LEN
        {
            run.bytes = both;
            run.claims.push((claim, raw));
        } else {
            runs.push(Run { bytes: raw, claims: vec![(claim, raw)] });
        }
    }
    (runs, mismatched)
}
