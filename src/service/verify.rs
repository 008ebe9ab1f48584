//! Verifies a stored xorb: reads its blob to the end and checks that the bytes are the xorb.
//!
//! A blob is damaged if it is missing, if its bytes are not the xorb, or if the disk cannot read
//! it. Other failures (no descriptors, no permission, no directory) say nothing about the blob, and
//! are errors.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use rustix::io::Errno;
use thiserror::Error;
use tokio::time::{Instant, sleep_until};

use super::error::StoreError;
use crate::blob::{BlobError, BlobErrorKind, BlobKey, BlobStore, Draft};
use crate::format::limits::MAX_XORB_BODY_LEN;
use crate::format::xorb::{Layout, VerifiedXorb, Verifier, XorbError};
use crate::format::{ByteRange, ChunkHash, Crc64, XorbHash};
use crate::index::{Index, IndexError, IndexErrorKind, NewXorb, XorbHealth};
use crate::runtime::blocking::Pool;

/// The damage of a blob.
#[derive(Debug, Error)]
pub enum Damage {
    /// It does not exist.
    #[error("its blob is missing")]
    Missing,
    /// Its length is wrong, and its bytes are not the xorb in another serialization either.
    #[error("its blob has {actual} bytes, not {expected}")]
    Length {
        /// Bytes that it should have.
        expected: u64,
        /// Bytes that it has.
        actual: u64,
    },
    /// Its bytes are not a xorb.
    #[error("its blob is not a valid xorb")]
    Invalid(#[source] XorbError),
    /// Its bytes are another xorb.
    #[error("its blob is xorb {actual}")]
    OtherXorb {
        /// The hash of the other xorb.
        actual: XorbHash,
    },
    /// The disk cannot read it.
    #[error("its blob cannot be read to its end")]
    Unreadable(#[source] BlobError),
}

/// The result of a verification.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The blob is the xorb, perhaps in another serialization than the row describes.
    Sound(Proven),
    /// The blob is not the xorb.
    Damaged(Damage),
}

/// A blob that was verified to be its xorb.
#[derive(Debug)]
pub(super) struct Proven {
    xorb: VerifiedXorb,
    /// CRC-64/NVME of the blob.
    crc64: u64,
}

impl Proven {
    /// Whether the row and the chunk hashes in the index describe this blob. If they do not,
    /// readers would get wrong bytes.
    pub(super) async fn is_described(&self, index: &dyn Index, seen: &XorbHealth) -> Result<bool, IndexError> {
        if self.crc64 != seen.crc64 || self.xorb.layout().serialized_len() != seen.serialized_len {
            return Ok(false);
        }
        let is_same =
            |layout: &Layout, hashes: &[ChunkHash]| layout == self.xorb.layout() && hashes == self.xorb.chunk_hashes();
        let row = tolerate(index.find_xorb(seen.hash).await)?;
        let columns = tolerate(index.find_chunks(seen.hash).await)?;
        Ok(row.zip(columns).is_some_and(|(row, columns)| is_same(&row.layout, &columns.hashes)))
    }

    /// Bytes of the blob.
    pub(super) fn serialized_len(&self) -> u64 {
        self.xorb.layout().serialized_len()
    }

    /// A row that describes this blob.
    pub(super) fn into_row(self) -> NewXorb {
        let crc64 = self.crc64;
        let (hash, layout, chunk_hashes, schemes) = self.xorb.into_parts();
        NewXorb { hash, crc64, layout, chunk_hashes, schemes, owner: None, grant: None }
    }
}

/// The key of the blob that this row names.
pub(super) const fn key(seen: &XorbHealth) -> BlobKey {
    BlobKey::new(seen.hash, seen.incarnation)
}

/// Turns a row that cannot be parsed into `None`, because such a row describes no blob.
fn tolerate<T>(found: Result<Option<T>, IndexError>) -> Result<Option<T>, IndexError> {
    match found {
        Err(error) if error.kind == IndexErrorKind::Inconsistent => Ok(None),
        found => found,
    }
}

/// Limits the rate at which blobs are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    bytes_per_sec: Option<u64>,
    /// When the next byte may be read.
    next: Instant,
    /// Bytes read so far.
    read_len: u64,
}

impl Pace {
    /// A pace of at most this rate; `None` for no limit.
    pub(super) fn new(bytes_per_sec: Option<u64>) -> Self {
        Self { bytes_per_sec: bytes_per_sec.map(|rate| rate.max(1)), next: Instant::now(), read_len: 0 }
    }

    /// Bytes that were read so far.
    pub(super) const fn read_len(&self) -> u64 {
        self.read_len
    }

    /// Counts bytes, and waits until the limit allows more. Unused time is not credited.
    async fn spend(&mut self, len: u64) {
        self.read_len = self.read_len.saturating_add(len);
        let Some(rate) = self.bytes_per_sec else { return };
        let micros = len.saturating_mul(1_000_000) / rate;
        self.next = self.next.max(Instant::now()) + Duration::from_micros(micros);
        sleep_until(self.next).await;
    }
}

/// Reads blobs and verifies them.
#[derive(Clone, Debug)]
pub(super) struct BlobVerifier {
    pub(super) blobs: Arc<dyn BlobStore>,
    /// The workers that verify the bytes.
    pub(super) pool: Pool,
}

impl BlobVerifier {
    /// The length of a blob in bytes, or its damage.
    pub(super) async fn len(&self, key: BlobKey) -> Result<Result<u64, Damage>, StoreError> {
        let len = self.blobs.head(key).await;
        Ok(self.blame(len).await?.and_then(|len| len.ok_or(Damage::Missing)))
    }

    /// Separates damage of the blob from failures that say nothing about it.
    async fn blame<T>(&self, result: Result<T, BlobError>) -> Result<Result<T, Damage>, StoreError> {
        match result {
            Ok(value) => Ok(Ok(value)),
            Err(error) if is_of_blob(&error) => {
                // If the disk fails altogether, the probe fails, too. Then the error says nothing
                // about this blob.
                self.blobs.probe().await?;
                Ok(Err(Damage::Unreadable(error)))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads and verifies a blob, at most twice, because one bad transfer or one flipped bit in
    /// memory must not make it count as damaged.
    pub(super) async fn verify(
        &self,
        key: BlobKey,
        expected_len: Option<u64>,
        pace: &mut Pace,
    ) -> Result<Verdict, StoreError> {
        match self.verify_once(key, expected_len, pace).await? {
            Verdict::Damaged(_) => self.verify_once(key, expected_len, pace).await,
            sound @ Verdict::Sound(_) => Ok(sound),
        }
    }

    /// Copies a blob that was found sound into a draft. Returns `None` if its bytes are not the
    /// verified ones any more, for example because it was deleted meanwhile.
    pub(super) async fn copy(&self, key: BlobKey, proven: &Proven) -> Result<Option<Box<dyn Draft>>, StoreError> {
        let Some(bytes) = ByteRange::new(0, proven.serialized_len()) else { return Ok(None) };
        let Some(mut blob) = self.blobs.read(key, bytes).await? else { return Ok(None) };
        let (blobs, mut crc64) = (Arc::clone(&self.blobs), Crc64::new());
        let mut draft = self.pool.run(move || blobs.draft()).await?;
        while let Some(piece) = blob.try_next().await? {
            let write = move || {
                crc64.update(&piece);
                draft.write(&piece).map(|()| (draft, crc64))
            };
            (draft, crc64) = self.pool.run(write).await?;
        }
        Ok((crc64.value() == proven.crc64).then_some(draft))
    }

    async fn verify_once(
        &self,
        key: BlobKey,
        expected_len: Option<u64>,
        pace: &mut Pace,
    ) -> Result<Verdict, StoreError> {
        let len = match self.len(key).await? {
            Ok(len) => len,
            Err(damage) => return Ok(Verdict::Damaged(damage)),
        };
        // A wrong length alone is no damage: the blob may be another serialization of the xorb. If
        // the bytes are wrong, too, the length is reported as the damage.
        let wrong_len = expected_len.filter(|expected| *expected != len);
        let wrong_len = wrong_len.map(|expected| Damage::Length { expected, actual: len });
        let bytes = ByteRange::new(0, len).filter(|_| len <= MAX_XORB_BODY_LEN);
        let Some(bytes) = bytes else {
            let expected = expected_len.unwrap_or(MAX_XORB_BODY_LEN);
            return Ok(Verdict::Damaged(Damage::Length { expected, actual: len }));
        };
        match self.verify_bytes(key, bytes, pace).await? {
            Ok((xorb, crc64)) => {
                // A blob with a footer also verifies, but zorb stores no footer.
                if xorb.layout().serialized_len() != len {
                    let expected = xorb.layout().serialized_len();
                    return Ok(Verdict::Damaged(Damage::Length { expected, actual: len }));
                }
                if xorb.hash() != key.xorb_hash() {
                    let other = Damage::OtherXorb { actual: xorb.hash() };
                    return Ok(Verdict::Damaged(wrong_len.unwrap_or(other)));
                }
                Ok(Verdict::Sound(Proven { xorb, crc64 }))
            }
            Err(damage) => Ok(Verdict::Damaged(wrong_len.unwrap_or(damage))),
        }
    }

    async fn verify_bytes(
        &self,
        key: BlobKey,
        bytes: ByteRange,
        pace: &mut Pace,
    ) -> Result<Result<(VerifiedXorb, u64), Damage>, StoreError> {
        let mut blob = match self.blame(self.blobs.read(key, bytes).await).await? {
            Ok(Some(blob)) => blob,
            Ok(None) => return Ok(Err(Damage::Missing)),
            Err(damage) => return Ok(Err(damage)),
        };
        let (mut verifier, mut crc64) = (Verifier::new(MAX_XORB_BODY_LEN), Crc64::new());
        loop {
            let piece = match self.blame(blob.try_next().await).await? {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(damage) => return Ok(Err(damage)),
            };
            let len = piece.len() as u64;
            let work = move || {
                crc64.update(&piece);
                let mut rest = &piece[..];
                let taken = loop {
                    match verifier.next_frame(&mut rest) {
                        Ok(Some(_)) => {}
                        Ok(None) => break Ok(()),
                        Err(error) => break Err(error),
                    }
                };
                taken.map(|()| (verifier, crc64))
            };
            match self.pool.run(work).await {
                Ok(same) => (verifier, crc64) = same,
                Err(error) => return Ok(Err(Damage::Invalid(error))),
            }
            pace.spend(len).await;
        }
        Ok(verifier.finish().map(|xorb| (xorb, crc64.value())).map_err(Damage::Invalid))
    }
}

/// Whether a failed read is the fault of the blob: it ended early, or a sector is bad.
pub(super) fn is_of_blob(error: &BlobError) -> bool {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error.source.as_ref());
    let mut is_bad_sector = false;
    while let Some(error) = cause {
        let code = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        is_bad_sector |= code == Some(Errno::IO.raw_os_error());
        cause = error.source();
    }
    error.kind == BlobErrorKind::Corrupt || is_bad_sector
}
