//! The resume state of a push: the xorbs that it has sent and not registered yet. If the push is
//! interrupted, the next one does not send their chunks again.
//!
//! The state has one file per xorb that the server has acknowledged: a shard that lists the chunks
//! of the xorb, named by its hash. The chunks must aggregate to this hash, so a torn or foreign
//! file is detected and removed. A push assumes that the server still has the xorb, until the
//! server refuses a registration. Everything here blocks.

use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use xet_format::merkle::xorb_hash;
use xet_format::shard::{CasInfo, Shard, parse, write_upload};
use xet_format::{ChunkHash, XorbHash};

use crate::machine::{now, replace_file};
use crate::server::ServerUrl;

/// Lifetime of an entry: the server retains unregistered xorbs for this long (spec 7.5).
const LIFE: Duration = Duration::from_secs(21 * 24 * 3600);

/// Entries that are read, at most; the latest ones are read. They stand for a quarter of a TiB of
/// data, and take 60 bytes of memory for each of its chunks.
const MAX_ENTRY_COUNT: usize = 4096;

/// Bytes of an entry, at most: 8192 chunks.
const MAX_ENTRY_LEN: u64 = 1 << 20;

/// Bytes of the readable part of a directory's name.
const MAX_NAME_LEN: usize = 100;

/// The resume state of pushes to one server, in a directory of its own.
#[derive(Clone, Debug)]
pub struct ResumeCache {
    directory: PathBuf,
}

impl ResumeCache {
    /// The resume state for this server, in a subdirectory of `base`. Creates nothing yet.
    #[must_use]
    pub fn new(base: &Path, server: &ServerUrl) -> Self {
        let url = server.to_string();
        let readable: String =
            url.chars().map(|character| if character.is_ascii_alphanumeric() { character } else { '-' }).collect();
        let readable: String = readable.chars().take(MAX_NAME_LEN).collect();
        // The hash is necessary because the readable part may be the same for two servers.
        let hash: String = ChunkHash::of(url.as_bytes()).to_string().chars().take(16).collect();
        Self { directory: base.join(format!("{readable}-{hash}")) }
    }

    /// The xorbs that were sent, the latest first. Removes expired and invalid entries.
    pub(super) fn load(&self) -> Vec<CasInfo> {
        let now = now();
        let mut entries: Vec<(Duration, DirEntry)> = Vec::new();
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let Ok(modified) = entry.metadata().and_then(|metadata| metadata.modified()) else { continue };
            let age = now.duration_since(modified).unwrap_or_default();
            if age > LIFE {
                discard(&entry.path());
            } else {
                entries.push((age, entry));
            }
        }
        entries.sort_by_key(|(age, _)| *age);
        let paths = entries.into_iter().take(MAX_ENTRY_COUNT).map(|(_, entry)| entry.path());
        paths.filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION)).filter_map(read).collect()
    }

    /// Records that the server has acknowledged a xorb.
    pub(super) fn add(&self, xorb: &CasInfo) -> io::Result<()> {
        let shard = Shard { files: Vec::new(), xorbs: vec![xorb.clone()] };
        let bytes = write_upload(&shard).map_err(io::Error::other)?;
        replace_file(&self.path(&xorb.hash), &bytes)
    }

    /// The entry of one xorb; `None` if it has no valid entry.
    pub(super) fn find(&self, xorb: &XorbHash) -> Option<CasInfo> {
        read(self.path(xorb))
    }

    /// Removes the entries of xorbs, because they are registered or because the server has lost
    /// them.
    pub(super) fn forget(&self, xorbs: impl IntoIterator<Item = XorbHash>) {
        xorbs.into_iter().for_each(|xorb| discard(&self.path(&xorb)));
    }

    fn path(&self, xorb: &XorbHash) -> PathBuf {
        self.directory.join(format!("{xorb}.{EXTENSION}"))
    }
}

/// The extension of the files of entries.
const EXTENSION: &str = "shard";

/// Removes a file of the resume state. The removal need not be durable: if the file reappears after
/// a crash, it is read once more, which is harmless.
fn discard(path: &Path) {
    let _ = fs::remove_file(path);
}

/// Reads an entry; removes an invalid one.
fn read(path: PathBuf) -> Option<CasInfo> {
    let is_short = path.metadata().ok()?.len() <= MAX_ENTRY_LEN;
    let xorb = if is_short { parse_entry(&fs::read(&path).ok()?, &path) } else { None };
    if xorb.is_none() {
        discard(&path);
    }
    xorb
}

/// Parses an entry; `None` if it is not a shard of the one xorb that the file name states.
fn parse_entry(bytes: &[u8], path: &Path) -> Option<CasInfo> {
    let [xorb] = parse(bytes).ok()?.xorbs.try_into().ok()?;
    let xorb: CasInfo = xorb;
    let actual = xorb_hash(xorb.chunks.iter().map(|chunk| (&chunk.hash, chunk.raw_len.into())));
    let name = path.file_stem()?.to_str()?;
    (actual == xorb.hash && name == actual.to_string()).then_some(xorb)
}

#[cfg(test)]
mod tests;
