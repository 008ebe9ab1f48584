//! The files of the repository.

use std::fs;
use std::path::Path;

/// A file of text.
#[derive(Debug)]
pub struct TextFile {
    /// Below the root.
    pub path: String,
    pub text: String,
}

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text of a file below the root.
pub fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("cannot read {path}: {error}"))
}

/// The files with one of these extensions in a directory and below it, in the order of their paths.
pub fn files(directory: &str, extensions: &[&str]) -> Vec<TextFile> {
    let mut found = Vec::new();
    let mut directories = vec![root().join(directory)];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("the directory can be read") {
            let path = entry.expect("the entry can be read").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extensions.iter().any(|wanted| extension == *wanted)) {
                let below = path.strip_prefix(root()).expect("it is below the root");
                let path = below.to_str().expect("names are text").to_owned();
                found.push(TextFile { text: read(&path), path });
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}
