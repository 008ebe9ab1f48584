//! Manifests: lists of the files of a directory, with one JSON object per line.
//!
//! A manifest that is read may come from an untrusted source. So its paths must be checked before
//! files are written to them, and escaped before they are printed.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::output::Plain;
use crate::format::FileHash;

/// Maximum length of a line. A path has up to 4096 bytes, and JSON may escape each of them with 6
/// bytes.
const MAX_LINE_LEN: u64 = 64 << 10;

/// Maximum number of files in a manifest. Each takes about 300 bytes of memory.
const MAX_FILE_COUNT: usize = 10_000_000;

/// Permission bits that are recorded and restored. Set-user-id, set-group-id and sticky bits are
/// not, because they would be dangerous in an untrusted manifest.
const MODE_BITS: u32 = 0o777;

/// A line of a manifest. Fields that are not listed are ignored.
#[derive(Debug, Deserialize, Serialize)]
struct Line {
    path: String,
    hash: String,
    size: u64,
    /// Permission bits in octal, like `0644`.
    mode: Option<String>,
}

/// A file of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ManifestFile {
    /// Relative to the directory, with `/` between its parts.
    pub(super) path: String,
    pub(super) hash: FileHash,
    pub(super) size: u64,
    /// Permission bits.
    pub(super) mode: u32,
}

impl ManifestFile {
    /// The line of this file in a manifest, with the line break.
    pub(super) fn line(&self) -> String {
        let line = Line {
            path: self.path.clone(),
            hash: self.hash.to_string(),
            size: self.size,
            mode: Some(format!("{:04o}", self.mode & MODE_BITS)),
        };
        let mut text = serde_json::to_string(&line).expect("a line has string keys and finite numbers");
        text.push('\n');
        text
    }
}

/// Reads the files of a manifest, in its order. Fails if two of them have the same path.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<ManifestFile>> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
    parse(file).with_context(|| format!("{shown} is not a manifest"))
}

fn parse(source: impl Read) -> anyhow::Result<Vec<ManifestFile>> {
    let mut source = BufReader::new(source);
    let (mut files, mut seen) = (Vec::new(), HashSet::new());
    for number in 1_u64.. {
        let mut text = Vec::new();
        let len = (&mut source).take(MAX_LINE_LEN + 1).read_until(b'\n', &mut text)?;
        if len == 0 {
            break;
        }
        if text.len() as u64 > MAX_LINE_LEN || files.len() >= MAX_FILE_COUNT {
            bail!("line {number} is too long, or exceeds the maximum number of lines");
        }
        if text.trim_ascii().is_empty() {
            continue;
        }
        let line: Line = serde_json::from_slice(&text).with_context(|| format!("line {number}"))?;
        let hash = line.hash.parse().with_context(|| format!("line {number}"))?;
        let mode = match &line.mode {
            Some(mode) => {
                u32::from_str_radix(mode, 8).with_context(|| format!("line {number}: the mode is not octal"))?
            }
            None => 0o644,
        };
        if !seen.insert(line.path.clone()) {
            bail!("line {number}: duplicate path {}", Plain(&line.path));
        }
        files.push(ManifestFile { path: line.path, hash, size: line.size, mode: mode & MODE_BITS });
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        let file = |path: &str, mode| ManifestFile { path: path.to_owned(), hash: FileHash::EMPTY, size: 7, mode };
        let files = [file("a/ö \"x\"", 0o755), file("b\n", 0o600)];
        let text: String = files.iter().map(ManifestFile::line).collect();
        let hash = "0".repeat(64);
        assert!(
            text.starts_with(&format!(r#"{{"path":"a/ö \"x\"","hash":"{hash}","size":7,"mode":"0755"}}"#)),
            "{text}"
        );
        assert_eq!(parse(text.as_bytes()).unwrap(), files);
        // Without a mode, with an unknown field and an empty line before.
        let short = format!("\n{{\"path\":\"a\",\"hash\":\"{hash}\",\"size\":7,\"more\":[]}}");
        assert_eq!(parse(short.as_bytes()).unwrap(), [file("a", 0o644)]);
        // With set-user-id and the type of the file, which are ignored.
        let odd = text.replace("0755", "104755");
        assert_eq!(parse(odd.as_bytes()).unwrap()[0].mode, 0o755);
    }

    #[test]
    fn an_invalid_line_is_refused_with_its_number() {
        let hash = "0".repeat(64);
        let line = |path: &str| format!("{{\"path\":\"{path}\",\"hash\":\"{hash}\",\"size\":7}}\n");
        for (text, complaint) in [
            (format!("{}{}", line("a"), line("a")), "line 2: duplicate path a"),
            (format!("{}nonsense", line("a")), "line 2"),
            (line("a").replace('7', "-1"), "line 1"),
            (line("a").replace(&hash, "x"), "line 1"),
            (line(&"x".repeat(100_000)), "line 1 is too long"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(complaint), "{error}");
        }
    }
}
