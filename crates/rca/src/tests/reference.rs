//! Reads the recorded results of the reference, and runs the independent reader.

use std::path::{Path, PathBuf};
#[cfg(feature = "independent-reader")]
use std::process::Command;

use serde_json::Value;

use super::support::Blob;

/// The directory with `vectors.json`.
pub(super) fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

pub(super) fn manifest() -> Value {
    serde_json::from_slice(&load("vectors.json")).unwrap()
}

pub(super) fn load(file: &str) -> Vec<u8> {
    let path = dir().join(file);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

pub(super) fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

pub(super) fn blobs(value: &Value) -> Vec<Blob> {
    let blob = |b: &Value| (text(&b["name"]).to_owned(), text(&b["sha256"]).to_owned(), b["length"].as_u64().unwrap());
    list(value).iter().map(blob).collect()
}

pub(super) fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// The reports of the independent reader, one per file. One process reads all files.
#[cfg(feature = "independent-reader")]
pub(super) fn verify_with_python(files: &[PathBuf]) -> Vec<Value> {
    let python = std::env::var("ZORB_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let probe = Command::new(&python).args(["-c", "import zstandard"]).output();
    assert!(
        probe.is_ok_and(|output| output.status.success()),
        "`{python}` cannot `import zstandard`: set ZORB_PYTHON to the python3 of a virtual environment in which \
         `pip install zstandard` was run"
    );
    let output =
        Command::new(&python).arg(dir().join("verify_rca.py")).arg("--no-layout").args(files).output().unwrap();
    let reports: Result<Vec<Value>, _> = serde_json::Deserializer::from_slice(&output.stdout).into_iter().collect();
    let reports = reports.unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(reports.len(), files.len(), "{}", String::from_utf8_lossy(&output.stderr));
    reports
}
