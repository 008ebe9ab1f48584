//! The xorbs of a load: their bytes in memory, so that nothing is read while something is measured.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use rustix::fs::{Advice, fadvise};
use serde::{Deserialize, Serialize};

/// The name of the index in the directory of a set.
pub(crate) const INDEX: &str = "index.json";

/// One xorb as the index has it.
#[derive(Deserialize, Serialize)]
pub(crate) struct Entry {
    pub(crate) hash: String,
    pub(crate) serialized_len: u64,
    pub(crate) raw_len: u64,
    pub(crate) chunks: Vec<Chunk>,
}

/// One chunk: where it ends in the serialized xorb, and its hash.
#[derive(Deserialize, Serialize)]
pub(crate) struct Chunk {
    pub(crate) end: u64,
    pub(crate) hash: String,
}

/// One xorb with its bytes.
pub(crate) struct Xorb {
    pub(crate) hash: String,
    pub(crate) bytes: Vec<u8>,
    /// Where chunks end, with a 0 in front.
    pub(crate) ends: Vec<usize>,
}

pub(crate) struct Set {
    pub(crate) xorbs: Vec<Xorb>,
}

impl Set {
    /// The first `count` xorbs of a directory that `load make` has written, or all.
    pub(crate) fn load(directory: &Path, count: Option<usize>) -> anyhow::Result<Self> {
        let index = directory.join(INDEX);
        let file = File::open(&index).with_context(|| index.display().to_string())?;
        let entries: Vec<Entry> = serde_json::from_reader(BufReader::new(file))?;
        let count = count.unwrap_or(entries.len());
        ensure!(count > 0 && count <= entries.len(), "there are {} xorbs, not {count}", entries.len());
        let xorbs = entries.into_iter().take(count).map(|entry| Xorb::load(directory, entry));
        Ok(Self { xorbs: xorbs.collect::<anyhow::Result<_>>()? })
    }

    /// The first `count` xorbs, and the others.
    pub(crate) fn part(mut self, count: usize) -> (Self, Self) {
        let others = self.xorbs.split_off(count);
        (self, Self { xorbs: others })
    }

    /// Lets the kernel forget the files that a server reads, `served/ab/abcd...`, once they are on disk.
    pub(crate) fn drop_from_cache(&self, served: &Path) -> anyhow::Result<()> {
        for xorb in &self.xorbs {
            let path = xorb.path_in(served);
            let file = File::open(&path).with_context(|| path.display().to_string())?;
            // What is not written yet stays.
            file.sync_data()?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
        Ok(())
    }
}

impl Xorb {
    fn load(directory: &Path, entry: Entry) -> anyhow::Result<Self> {
        let path = directory.join(&entry.hash);
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .with_context(|| path.display().to_string())?;
        ensure!(bytes.len() as u64 == entry.serialized_len, "{} has {} bytes", path.display(), bytes.len());
        let ends = std::iter::once(Ok(0)).chain(entry.chunks.iter().map(|chunk| usize::try_from(chunk.end)));
        Ok(Self { hash: entry.hash, bytes, ends: ends.collect::<Result<_, _>>()? })
    }

    fn path_in(&self, served: &Path) -> PathBuf {
        served.join(&self.hash[..2]).join(&self.hash)
    }
}
