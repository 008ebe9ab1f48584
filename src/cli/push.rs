//! `zorb push`: uploads files to a server.

mod walk;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;

use self::walk::{Found, walk};
use super::Usage;
use super::bar::FileCount;
use super::destination::Destination;
use super::manifest::ManifestFile;
use super::output::{Output, OutputArgs, Plain};
use super::remote::{self, RemoteArgs};
use super::units::{Count, Share, Size, Wait};
use crate::client::{Push, PushError, PushWatch, Pushed, PushedFile, RequestError, ResumeCache, Sink, Unread, Workers};
use crate::format::compression::Policy;
use crate::runtime::telemetry::chain;

/// Upload files to a server, without the chunks that it already has.
///
/// Files are cut into chunks; a chunk that the server has, or that occurred before, is not sent
/// again. New chunks fill xorbs across files, and when the server has all xorbs, the files are
/// registered. Only then a line with hash and path is printed for each file, in the order given:
/// `zorb pull HASH` downloads it.
///
/// A directory stands for all files below it, sorted by name. Links in it are not followed, only
/// links given as arguments; devices, sockets and pipes are skipped.
///
/// An interrupted push can be repeated: acknowledged xorbs are recorded in the cache directory and
/// not sent again. A file that changes while it is read is left out, and the exit code is 1.
#[derive(Debug, Args)]
pub(super) struct PushArgs {
    /// Files and directories
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Xorbs to compress or send in parallel; each takes 64 MiB of memory
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Directory for the resume state [default: zorb in $XDG_CACHE_HOME or ~/.cache]
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Also write a manifest of the pushed directory: a line of JSON per file, with path, hash,
    /// size and mode
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Neither read nor write the resume state
    #[arg(long, conflicts_with = "cache_dir")]
    no_resume: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// The records with `--json`: the files in the order given, then the total.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Record<'a> {
    File { hash: String, path: &'a str, len: u64, sha256: String, new_len: u64, duplicate_len: u64 },
    Failed { path: &'a str, error: String },
    Total { files: usize, len: u64, new_len: u64, duplicate_len: u64, xorbs: u64, sent_len: u64 },
}

pub(super) fn run(args: PushArgs) -> anyhow::Result<()> {
    let output = Output::new(args.output);
    let server = args.remote.server()?;
    // The walk and the names come first, so that a wrong name is reported before the upload begins.
    let Found { paths, modes, len, skipped_count } = walk(&args.paths)?;
    let listed = match &args.manifest {
        Some(manifest) => Some((Destination::new(Some(manifest))?, names(&args.paths, &paths)?)),
        None => None,
    };
    if skipped_count > 0 {
        output.remark(format_args!(
            "skipped {skipped_count} in the directories: links, special files, or temporary files"
        ));
    }
    let resume = match (args.no_resume, args.cache_dir.or_else(cache_dir)) {
        (false, Some(directory)) => Some(ResumeCache::new(&directory.join("push"), server.url())),
        _ => None,
    };
    let push = Push { paths, policy: Policy::Predict, job_count: args.jobs.into(), resume };
    let pushed = remote::run_resumable(async {
        let watch = Shown::watch(&output, len, push.paths.len() as u64);
        let workers = Workers::new(std::thread::available_parallelism().map_or(1, usize::from));
        Ok(Box::pin(server.push(&push, &workers, watch)).await?)
    })?;
    report(&output, &push.paths, &pushed)?;
    match listed {
        Some((manifest, names)) => write_manifest(&manifest, names, &modes, &pushed),
        None => Ok(()),
    }
}

/// The names of the files in a manifest: their paths relative to the only directory on the command
/// line.
fn names(typed: &[PathBuf], paths: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let [directory] = typed else { bail!(Usage("--manifest is for one directory")) };
    if !directory.is_dir() {
        bail!(Usage("--manifest is for a directory"));
    }
    let name = |path: &PathBuf| {
        let below = path.strip_prefix(directory).ok().and_then(Path::to_str);
        let text = path.to_string_lossy();
        below
            .map(str::to_owned)
            .with_context(|| format!("{} is not valid UTF-8, which a manifest requires", Plain(&text)))
    };
    paths.iter().map(name).collect()
}

/// Writes the manifest of a push. [`report`] has failed before if a file was not pushed, so the
/// manifest lists every file.
fn write_manifest(manifest: &Destination, names: Vec<String>, modes: &[u32], pushed: &Pushed) -> anyhow::Result<()> {
    let mut draft = manifest.draft()?;
    for ((path, mode), file) in names.into_iter().zip(modes).zip(&pushed.files) {
        let Ok(file) = file else { continue };
        let line = ManifestFile { path, hash: file.hash, size: file.len, mode: *mode }.line();
        draft.write(line.as_bytes()).with_context(|| cannot_write_to(manifest))?;
    }
    manifest.publish(draft)
}

fn cannot_write_to(manifest: &Destination) -> String {
    format!("cannot write {manifest}")
}

/// The cache directory of zorb, after the XDG Base Directory Specification; `None` if neither
/// variable is set.
fn cache_dir() -> Option<PathBuf> {
    // The specification says to ignore relative paths.
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    Some(set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?.join("zorb"))
}

/// Prints the result of each file, then the total. Fails if a file was not pushed.
fn report(output: &Output, paths: &[PathBuf], pushed: &Pushed) -> anyhow::Result<()> {
    let (mut len, mut new_len, mut file_count, mut failed_count) = (0, 0, 0, 0);
    for (path, file) in paths.iter().zip(&pushed.files) {
        report_file(output, path, file)?;
        match file {
            Ok(file) => {
                file_count += 1;
                len += file.len;
                new_len += file.new_len;
            }
            Err(_) => failed_count += 1,
        }
    }
    let (xorbs, sent_len, duplicate_len) = (pushed.xorb_count, pushed.sent_len, len - new_len);
    output.record(&Record::Total { files: file_count, len, new_len, duplicate_len, xorbs, sent_len })?;
    output.summary(format_args!(
        "{}, {}: {} sent in {} ({}), {} known",
        Count(file_count as u64, "file"),
        Size(len),
        Size(sent_len),
        Count(xorbs, "xorb"),
        Share { part: sent_len, whole: len },
        Size(duplicate_len),
    ));
    match failed_count {
        0 => Ok(()),
        count => bail!("{count} of {} not pushed", Count(paths.len() as u64, "file")),
    }
}

fn report_file(output: &Output, path: &Path, file: &Result<PushedFile, Unread>) -> anyhow::Result<()> {
    let name = path.to_string_lossy();
    match file {
        Ok(PushedFile { hash, sha256, len, new_len }) => {
            output.line(format_args!("{hash}  {}", Plain(&name)))?;
            output.record(&Record::File {
                hash: hash.to_string(),
                path: &name,
                len: *len,
                sha256: sha256.to_string(),
                new_len: *new_len,
                duplicate_len: len - new_len,
            })?;
        }
        Err(error) => {
            output.complain(Plain(&chain(error)));
            output.record(&Record::Failed { path: &name, error: chain(error) })?;
        }
    }
    Ok(())
}

/// Shows the progress of a push on the terminal.
#[derive(Debug)]
struct Shown {
    reading: ProgressBar,
    sending: ProgressBar,
    files: FileCount,
    output: Output,
}

impl Shown {
    fn watch(output: &Output, len: u64, count: u64) -> Arc<dyn PushWatch> {
        let files = FileCount::of(count);
        let (reading, sending) = (output.counted_bar(len, "reading", &files), output.bar(0, "sending"));
        Arc::new(Self { reading, sending, files, output: output.clone() })
    }
}

impl PushWatch for Shown {
    fn read(&self, len: u64) {
        self.reading.inc(len);
    }

    fn file_read(&self) {
        self.files.inc();
    }

    fn to_send(&self, len: u64) {
        self.sending.inc_length(len);
    }

    fn sent(&self, len: u64) {
        self.sending.inc(len);
    }

    fn unsent(&self, len: u64) {
        self.sending.dec(len);
    }

    fn retrying(&self, error: &RequestError, delay: Duration) {
        self.output.remark(format_args!("{}; trying again in {}", chain(error), Wait(delay)));
    }

    fn starting_over(&self, error: &PushError) {
        self.output.remark(format_args!("{}; starting over without the chunks that it seemed to have", chain(error)));
        self.reading.set_position(0);
        self.files.reset();
    }

    fn not_resumable(&self, error: &io::Error) {
        self.output.remark(format_args!(
            "cannot save the resume state: {error}; an interrupted push would send \
            everything again"
        ));
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.reading.finish_and_clear();
        self.sending.finish_and_clear();
    }
}
