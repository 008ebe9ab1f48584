//! The commands for people, as the real binary: what they print, what they leave behind, how they exit.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed, which is what it is for")]

mod files;
mod get;
mod ls;
mod manifest;
mod network;
mod pull;
mod push;
mod put;
mod rca;
mod resume;
mod told;
mod usage;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{output_of, random_bytes};

/// A directory in which commands are run.
#[derive(Debug)]
pub struct Directory(TempDir);

/// How a command ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Directory {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("the test can make a temporary directory");
        std::fs::create_dir(directory.path().join(SPOOL)).expect("the directory is new");
        Self(directory)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    #[expect(clippy::disallowed_methods, reason = "a test's input need not survive a crash")]
    pub fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).expect("the test can write its input");
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Names of all files, sorted, those of commands' temporary files among them.
    pub fn names(&self) -> Vec<String> {
        let list = |path: &Path| -> Vec<String> {
            let entries = std::fs::read_dir(path).expect("the directory is there").map(|entry| entry.unwrap());
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
        };
        let mut names = list(self.0.path());
        names.retain(|name| name != SPOOL && name != CACHE);
        names.extend(list(&self.path(SPOOL)));
        names.sort();
        names
    }

    /// Runs `zorb` with these arguments in this directory.
    pub fn zorb(&self, args: &[&str]) -> Ran {
        self.zorb_with_stdin(args, b"")
    }

    pub fn zorb_with_stdin(&self, args: &[&str], stdin: &[u8]) -> Ran {
        let mut child = self.start(args);
        let sent = child.stdin.take().expect("stdin is piped").write_all(stdin);
        let ran = Ran::of(child);
        // A command that has seen enough may stop reading.
        if let Err(error) = sent {
            assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe, "{ran:?}");
        }
        ran
    }

    /// Starts `zorb` and does not wait for it.
    pub fn start(&self, args: &[&str]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zorb"));
        #[cfg(all(feature = "postgres-tests", feature = "s3"))]
        if let Some(data_dir) = data_dir_of(args) {
            command.envs(crate::support::backend::variables_of(&self.path(data_dir)));
        }
        command
            .args(args)
            .current_dir(self.0.path())
            .env("TMPDIR", self.path(SPOOL))
            .env("XDG_CACHE_HOME", self.path(CACHE))
            .env_remove("ZORB_SERVER")
            .env_remove("ZORB_TOKEN")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary was built for this test")
    }

    /// Packs files of this directory into `out`, and returns the records that were printed.
    pub fn pack(&self, args: &[&str]) -> Vec<Value> {
        let ran = self.zorb(&[&["xorb", "pack", "--json", "-o", "out"], args].concat());
        ran.ok().records()
    }
}

/// The data directory that these arguments name.
#[cfg(all(feature = "postgres-tests", feature = "s3"))]
fn data_dir_of<'a>(args: &[&'a str]) -> Option<&'a str> {
    let at = args.iter().position(|arg| *arg == "--data-dir")?;
    args.get(at + 1).copied()
}

/// Where the commands note what was sent.
const CACHE: &str = "cache";

/// Where the commands put temporary files that have no place of their own.
const SPOOL: &str = "spool";

impl Ran {
    pub fn of(child: Child) -> Self {
        let output = output_of(child);
        let stderr = String::from_utf8(output.stderr).expect("complaints are text");
        Self { code: output.status.code(), stdout: output.stdout, stderr }
    }

    /// Checks that it went well.
    pub fn ok(self) -> Self {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "{}", self.text());
        self
    }

    /// Checks that it went well, whatever it remarked.
    pub fn ok_with_remarks(self) -> Self {
        assert_eq!(self.code, Some(0), "{}\n{}", self.text(), self.stderr);
        self
    }

    /// Checks that it failed with this code and a complaint that contains all of these.
    pub fn failed(self, code: i32, complaints: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.text(), self.stderr);
        for complaint in complaints {
            assert!(self.stderr.contains(complaint), "no {complaint:?} in {:?}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// stdout as JSON, one object per line.
    pub fn records(&self) -> Vec<Value> {
        let text = self.text();
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}"));
        let records: Vec<Value> = text.lines().map(parse).collect();
        assert!(records.iter().all(Value::is_object), "{text}");
        records
    }

    /// The one record.
    pub fn record(&self) -> Value {
        let [record] = self.records().try_into().expect("there is one record");
        record
    }
}

/// Records of this type.
pub fn of_type<'a>(records: &'a [Value], name: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["type"] == name).collect()
}

/// Text that compresses, a little different everywhere.
pub fn prose(rng: &mut StdRng, len: usize) -> Vec<u8> {
    let words = ["chunk", "xorb", "shard", "term", "file", "store", "hash", "range"];
    let mut text = Vec::with_capacity(len + 16);
    while text.len() < len {
        text.extend_from_slice(words[rng.random_range(0..words.len())].as_bytes());
        text.push(b' ');
    }
    text.truncate(len);
    text
}

/// Numbers as models have them: they compress when their bytes are grouped.
pub fn floats(rng: &mut StdRng, len: usize) -> Vec<u8> {
    let number = || {
        let number: f32 = rng.random_range(-1.0..1.0);
        number.to_le_bytes()
    };
    std::iter::repeat_with(number).flatten().take(len).collect()
}

/// A URL without a server: the discard port, on which nothing listens.
pub const NO_SERVER: &str = "http://127.0.0.1:9";

/// Files whose sizes have reasons, and what is in them.
pub fn sample_files(rng: &mut StdRng) -> Vec<(&'static str, Vec<u8>)> {
    let noise = random_bytes(rng, 300_000);
    vec![
        ("empty", Vec::new()),
        // Not the one byte that is the rest of the zeros.
        ("byte", vec![rng.next_u32().to_le_bytes()[0] | 1]),
        // As short as a chunk that is cut may be, and one byte less.
        ("minimum", random_bytes(rng, 8_192)),
        ("short", random_bytes(rng, 8_191)),
        // Cut at the maximum twice, both the same, and a rest.
        ("zeros", vec![0; 2 * 131_072 + 1]),
        ("prose", prose(rng, 700_000)),
        ("floats", floats(rng, 500_001)),
        ("noise", noise.clone()),
        ("again", noise),
    ]
}
