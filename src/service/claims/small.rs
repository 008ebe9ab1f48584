//! Verifies the claims of small files. Clients pack thousands of small files into one xorb. So
//! files that are close to each other are read with one read, and all are settled in one
//! transaction. One query, read and transaction per file would take longer.

use std::collections::HashMap;
use std::ops::Range;

use futures_util::TryStreamExt;
use sha2::{Digest, Sha256 as Hasher};

use crate::format::shard::{Sha256, Term};
use crate::format::{ByteRange, FileHash, XorbHash};
use crate::index::Claim;
use crate::runtime::telemetry::chain;
use crate::service::Store;
use crate::service::download::StoredXorb;
use crate::service::error::{ReadError, StoreError};

/// Maximum length of a file that is read together with others.
const SMALL_LEN: u64 = 256 << 10;

/// Maximum raw length of a run. A run is in memory as a whole.
const MAX_RUN_LEN: u64 = 4 << 20;

/// Maximum gap between two files of a run. The bytes of the gap are decoded and discarded, and to
/// decode this many bytes costs as much as a separate read. Gaps are common: a page lists files in
/// the order of their registration. Clients register files in the order of their hashes, which is
/// not the order in a xorb.
const MAX_GAP_LEN: u64 = 64 << 10;

/// Files that are close to each other in a xorb and are read together.
struct Run {
    /// The raw bytes of the xorb from the first of these files to the last.
    bytes: ByteRange,
    claims: Vec<Placed>,
}

/// A claim, and the range of its file in the raw bytes of the xorb.
type Placed = (Claim, ByteRange);

impl Store {
    /// Reads the small files of these claims together, and settles the claims that are true. Begins
    /// no further run after `max_len` bytes were read.
    ///
    /// Returns the claims that were not settled, and how many bytes were read. A returned claim may
    /// be true or false, and its file must be read alone. If no claim was settled, the returned
    /// number of bytes is 0: the reads were no progress, and do not count for the round.
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
                        // One of the files cannot be read. Each is read alone later, which shows
                        // which one.
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

    /// Reads a run. Returns its claims that are true, and the others.
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
        Ok(self.pool.run(compare).await)
    }
}

/// The indexes of a range of the xorb in a buffer with the bytes of the xorb from `start` on.
fn within(place: ByteRange, start: u64) -> Option<Range<usize>> {
    let offset = |at: u64| usize::try_from(at.checked_sub(start)?).ok();
    Some(offset(place.start())?..offset(place.end())?)
}

/// Groups the files of these claims into runs. Also returns the claims whose term does not match
/// the layout of the xorb.
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
