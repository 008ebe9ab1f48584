//! Files of a server as people name them: by a hash, or by the beginning of one.

use std::str::FromStr;
use std::sync::Arc;

use anyhow::bail;
use thiserror::Error;

use crate::client::{ListedFile, Server, Watch};
use crate::format::FileHash;

/// Digits of the beginning of a hash, at least.
const MIN_PREFIX_LEN: usize = 4;

/// Digits of a hash.
const HASH_LEN: usize = 64;

/// Hashes that are shown of those that begin alike, at most.
const MAX_SHOWN_COUNT: usize = 4;

/// What was typed for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NamedFile {
    Hash(FileHash),
    /// The beginning of a hash, in lower case.
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

/// A text names no file.
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

/// Which files these are, each once. Only beginnings are looked up, all of them in one reading of
/// the server's list.
pub(super) async fn resolve(
    server: &Server,
    names: &[NamedFile],
    watch: &Arc<dyn Watch>,
) -> anyhow::Result<Vec<FileHash>> {
    let mut found: Vec<Vec<FileHash>> = names.iter().map(|_| Vec::new()).collect();
    let mut after = None;
    // A hash that was typed as a whole is not looked up.
    let mut is_over = names.iter().all(|name| name.prefix().is_none());
    while !is_over {
        let page = server.list::<ListedFile>(after, watch).await?;
        for file in &page.entries {
            for (name, found) in names.iter().zip(&mut found) {
                if name.prefix().is_some_and(|prefix| file.hash.to_ascii_lowercase().starts_with(prefix)) {
                    found.push(file.hash.parse()?);
                }
            }
        }
        after = page.next;
        is_over = after.is_none();
    }
    let mut files = Vec::new();
    for (name, found) in names.iter().zip(found) {
        let file = match (name, found.as_slice()) {
            (NamedFile::Hash(file), _) => *file,
            (NamedFile::Prefix(_), [file]) => *file,
            (NamedFile::Prefix(prefix), []) => bail!(
                "no readable file on the server has a hash that begins with \
                {prefix}"
            ),
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
