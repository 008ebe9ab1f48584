//! `zorb rca`: archives through the real binary.

mod append;
mod attacks;
mod extract;
mod read;
mod vectors;

use std::path::PathBuf;

use serde_json::Value;

use super::{Directory, Ran};
use crate::support::root;

/// What `ls --json` says: the blobs, and the last line.
pub(super) fn ls(directory: &Directory, archive: &str) -> (Vec<Value>, Value) {
    listing(&directory.zorb(&["rca", "ls", "--json", archive]))
}

/// The same of what it has printed.
pub(super) fn listing(ran: &Ran) -> (Vec<Value>, Value) {
    let mut records = ran.records();
    let last = records.pop().unwrap_or_else(|| panic!("there is a last line: {ran:?}"));
    let code = if last["error"].is_null() { 0 } else { 1 };
    assert_eq!(ran.code, Some(code), "{ran:?}");
    assert_eq!(ran.stderr.is_empty(), code == 0, "{}", ran.stderr);
    assert_eq!(last["blobs"], records.len(), "{last}");
    let keys: Vec<_> = last.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["blobs", "trailing_garbage", "dialect", "error"]);
    (records, last)
}

/// Names in the order of the archive.
pub(super) fn names(directory: &Directory, archive: &str) -> Vec<String> {
    ls(directory, archive).0.iter().map(|blob| blob["name"].as_str().unwrap().to_owned()).collect()
}

/// The directory with the recorded archives.
pub(super) fn recorded() -> PathBuf {
    root().join("crates/rca/tests/golden")
}

/// Makes an archive `a` of blobs with these names and contents, or extends it; each is a session of its own.
pub(super) fn archive(directory: &Directory, blobs: &[(&str, &[u8])]) {
    for (name, content) in blobs {
        let verb = if directory.path("a").exists() { "append" } else { "create" };
        let name = format!("--name={name}");
        directory.zorb_with_stdin(&["rca", verb, "a", "-", &name, "--quiet"], content).ok();
    }
}
