//! Reads an archive from front to back, for a restore or a repair of a store.

use std::io::{Read, Seek};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::mpsc;

use super::counted::Counted;
use super::error::ArchiveError;
use super::hub::next_part;
use super::record::{CatalogHead, FileHead, KeysHead, MAX_KEYS_LEN, Records, XorbHead, parse};
use super::write::{check_dialect, check_signature};
use super::{Kind, Watch};
use crate::format::XorbHash;
use crate::format::limits::MAX_XORB_CHUNK_COUNT;
use crate::format::xorb::{UNPACKED_ENTRY_LEN, UnpackedChunk, parse_unpacked_table};
use crate::index::FileRecord;
use crate::rca::{Event, Reader, UnverifiedBlob};
use crate::service::access::KeyRing;
use crate::service::hub::HubPart;

/// A parsed record of an archive. Whether the contents have the hash of the xorb or file was not
/// checked yet.
#[derive(Debug)]
pub(super) enum Item {
    Xorb(UnpackedXorb),
    File(FileRecord),
    Hub(HubPart),
    Keys(KeyRing),
}

/// A xorb as stored in an archive.
#[derive(Debug)]
pub(super) struct UnpackedXorb {
    pub(super) hash: XorbHash,
    /// The table: scheme and length of each chunk.
    pub(super) chunks: Vec<UnpackedChunk>,
    /// The unpacked contents of all chunks, in order.
    pub(super) contents: Vec<u8>,
}

/// The end of an archive that was read completely. All hashes of the archive itself were correct.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    /// Number of bytes that were read.
    pub(super) archive_len: u64,
    /// Whether bytes follow the end of the archive, because an append was interrupted.
    pub(super) trailing_garbage: bool,
}

/// Reads a whole archive and sends its records, in order. Blocks while it reads, and while the
/// channel is full. `None` if the receiver was dropped.
///
/// A record is sent before the hash that covers it was read. So the receiver must not trust a
/// record before this function has returned `Ok`, unless it checks the record in another way.
pub(super) fn read_archive<R: Read + Seek>(
    source: R,
    items: &mpsc::Sender<Item>,
    watch: &Arc<dyn Watch>,
) -> Result<Option<Ending>, ArchiveError> {
    let mut source = Counted::new(source);
    let read_len = source.read_len();
    check_signature(&mut source)?;
    let io = |source| ArchiveError::Io(crate::rca::Error::Io { op: "seek in", offset: 0, source });
    watch.total(source.seek(std::io::SeekFrom::End(0)).map_err(io)?);
    source.rewind().map_err(io)?;
    read_len.store(0, Ordering::Relaxed);
    let mut reader = Reader::new(source)?;
    let end = loop {
        match reader.next_event()? {
            Event::Blob(blob) => {
                if send_blob(blob, items)? == Channel::Closed {
                    return Ok(None);
                }
            }
            Event::Verified(_) => {}
            Event::End(end) => break end,
        }
        watch.position(read_len.load(Ordering::Relaxed));
    };
    check_dialect(reader.dialect())?;
    let archive_len = read_len.load(Ordering::Relaxed);
    Ok(Some(Ending { archive_len, trailing_garbage: end.trailing_garbage }))
}

/// Whether the receiver of the records still exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channel {
    Open,
    Closed,
}

/// Parses the records of a blob and sends them.
fn send_blob<R: Read>(blob: UnverifiedBlob<'_, R>, items: &mpsc::Sender<Item>) -> Result<Channel, ArchiveError> {
    let name = blob.name().to_owned();
    let kind = Kind::of(&name);
    let mut records = Records::new(&name, blob);
    loop {
        let item = match kind {
            Some(Kind::Signature) => None,
            Some(Kind::Xorbs) => next_xorb(&mut records)?.map(Item::Xorb),
            Some(Kind::Files) => match records.next::<FileHead>()? {
                Some(head) => Some(Item::File(records.file(head)?)),
                None => None,
            },
            Some(Kind::Hub) => next_part(&mut records)?.map(Item::Hub),
            Some(Kind::Keys) => next_keys(&mut records)?.map(Item::Keys),
            Some(Kind::Catalog) => {
                // A catalog only lists records that were read before. Reading it checks that it is
                // well-formed.
                while records.next::<CatalogHead>()?.is_some() {}
                None
            }
            None => return Err(records.malformed("this version does not support it; use a newer zorb")),
        };
        let Some(item) = item else { return Ok(Channel::Open) };
        if items.blocking_send(item).is_err() {
            return Ok(Channel::Closed);
        }
    }
}

/// Reads the next record of a blob with xorbs; `None` at the end of the blob.
fn next_xorb<R: Read>(records: &mut Records<'_, R>) -> Result<Option<UnpackedXorb>, ArchiveError> {
    let Some(head) = records.next::<XorbHead>()? else { return Ok(None) };
    let hash = parse(&head.xorb).map_err(|reason| records.malformed(&reason))?;
    // A number of chunks above the limit is lowered, but stays above the limit. So the table is not
    // read into memory as a whole, and parsing it fails.
    let table_len = u64::from(head.chunks.min(MAX_XORB_CHUNK_COUNT + 1)) * UNPACKED_ENTRY_LEN as u64;
    let table = records.body(table_len)?;
    let chunks = parse_unpacked_table(&table).map_err(|error| records.malformed(&error.to_string()))?;
    let len: u64 = chunks.iter().map(|chunk| u64::from(chunk.raw_len)).sum();
    if len != records.body_len() {
        return Err(records.malformed("a xorb is not as long as its table says"));
    }
    Ok(Some(UnpackedXorb { hash, chunks, contents: records.body(len)? }))
}

/// Reads the next record of a blob with keys; `None` at the end of the blob.
fn next_keys<R: Read>(records: &mut Records<'_, R>) -> Result<Option<KeyRing>, ArchiveError> {
    let Some(KeysHead { .. }) = records.next()? else { return Ok(None) };
    let text = records.whole_body(MAX_KEYS_LEN)?;
    let text = String::from_utf8(text).map_err(|_| records.malformed("the keys are not valid UTF-8"))?;
    KeyRing::parse(&text).map(Some).map_err(|error| records.malformed(&error.to_string()))
}
