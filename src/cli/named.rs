//! Names on the command line for files of a server: a hash, or the first digits of one.

use std::str::FromStr;
use std::sync::Arc;

use anyhow::bail;
use thiserror::Error;

use crate::client::{ListedFile, Server, Watch};
use crate::format::FileHash;

/// Minimum number of digits of a hash prefix.
const MIN_PREFIX_LEN: usize = 4;

/// Number of hex digits of a hash.
const HASH_LEN: usize = 64;

/// Maximum number of hashes with the same prefix that an error lists.
const MAX_SHOWN_COUNT: usize = 4;

/// The name of a file, as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NamedFile {
    Hash(FileHash),
    /// The first digits of a hash, in lower case.
    Prefix(String),
}

impl NamedFile {
    fn prefix(&self) -> Option<&str> {
        match self {
            Self::Hash(_) => None,
            Self::Prefix(prefix) => Some(prefix),
        }
    }
}

/// The text is not the name of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a file is named by the 64 hex digits of its hash, or by at least the first {MIN_PREFIX_LEN} of them")]
pub(super) struct ParseNameError;

impl FromStr for NamedFile {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        if text.len() == HASH_LEN {
            return text.parse().map(Self::Hash).map_err(|_| ParseNameError);
        }
        let is_prefix = (MIN_PREFIX_LEN..HASH_LEN).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_hexdigit());
        if is_prefix { Ok(Self::Prefix(text.to_ascii_lowercase())) } else { Err(ParseNameError) }
    }
}

/// Looks up files by their names, and returns each file once, in the order of the names. All
/// prefixes are looked up in one pass over the server's list. A whole hash is not looked up, so its
/// file may not exist.
///
/// # Errors
///
/// No file has a prefix, or several files have it, or the server fails.
pub(super) async fn resolve(
    server: &Server,
    names: &[NamedFile],
    watch: &Arc<dyn Watch>,
) -> anyhow::Result<Vec<FileHash>> {
    let mut found: Vec<Vec<FileHash>> = names.iter().map(|_| Vec::new()).collect();
    let mut after = None;
    // Whether the list was read to its end. Without prefixes, it need not be read.
    let mut is_searched = names.iter().all(|name| name.prefix().is_none());
    while !is_searched {
        let page = server.list::<ListedFile>(after, watch).await?;
        for file in &page.entries {
            for (name, found) in names.iter().zip(&mut found) {
                if name.prefix().is_some_and(|prefix| file.hash.to_ascii_lowercase().starts_with(prefix)) {
                    found.push(file.hash.parse()?);
                }
            }
        }
        after = page.next;
        is_searched = after.is_none();
    }
    let mut files = Vec::new();
    for (name, found) in names.iter().zip(found) {
        let file = match (name, found.as_slice()) {
            (NamedFile::Hash(file), _) => *file,
            (NamedFile::Prefix(_), [file]) => *file,
            (NamedFile::Prefix(prefix), []) => {
                bail!("no readable file on the server has a hash that begins with {prefix}")
            }
            (NamedFile::Prefix(prefix), several) => {
                let shown: Vec<String> = several.iter().take(MAX_SHOWN_COUNT).map(FileHash::to_string).collect();
                let more = if several.len() > MAX_SHOWN_COUNT { ", …" } else { "" };
                bail!("the hashes of {} files begin with {prefix}: {}{more}", several.len(), shown.join(", "))
            }
        };
        if !files.contains(&file) {
            files.push(file);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_hash_or_its_first_digits() {
        let hash = "0123456789abcdef".repeat(4);
        assert_eq!(hash.parse(), Ok(NamedFile::Hash(hash.parse().unwrap())));
        assert_eq!("01aB".parse(), Ok(NamedFile::Prefix("01ab".to_owned())));
        assert_eq!(hash[..63].parse(), Ok(NamedFile::Prefix(hash[..63].to_owned())));
        for text in ["", "012", "012g", &format!("{hash}0"), &"g".repeat(64)] {
            assert_eq!(text.parse::<NamedFile>(), Err(ParseNameError), "{text}");
        }
    }
}
