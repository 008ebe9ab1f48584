//! `zorb rca extract`: writes blobs to files below one directory. Blobs that cannot be verified are
//! left out.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use indicatif::ProgressBarIter;
use serde::Serialize;

use super::super::output::Plain;
use super::names::Place;
use super::{PIECE_LEN, describe, file_len, open_file};
use crate::cli::output::{Output, OutputArgs};
use crate::cli::stop::{self, Stop, Stoppable};
use crate::cli::units::{Count, Size};
use crate::rca::{Archive, Error, ReadOptions};
use crate::runtime::durable::Enclosure;

/// Write blobs to files.
///
/// The whole archive is verified first, and each file appears under its name when it is complete.
/// Names in the archive are untrusted: absolute names and names with `..`, `.` or an empty part are
/// refused, links are not followed, and existing files are not replaced without --force. A refused
/// name does not stop the others; the exit code is 1. Of several blobs with one name the last is
/// written.
#[derive(Debug, Args)]
pub(in crate::cli) struct ExtractArgs {
    /// An archive
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
    /// Only the blobs with these names
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Output directory; created if it does not exist
    #[arg(short = 'C', long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Replace existing files
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// The record of each blob with `--json`, and of each NAME that does not exist.
#[derive(Debug, Serialize)]
struct Row<'a> {
    name: &'a str,
    length: Option<u64>,
    error: Option<String>,
}

/// The last record with `--json`.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Last {
    extracted: u64,
    failed: u64,
    content_len: u64,
}

pub(super) fn run(args: ExtractArgs) -> anyhow::Result<()> {
    stop::run(move |stop| extract(&args, stop))
}

fn extract(args: &ExtractArgs, stop: &Stop) -> anyhow::Result<()> {
    let (output, path, dir) = (Output::new(args.output), &args.archive, args.directory.display());
    let bar = output.bar(file_len(path), path.display().to_string());
    let source = stop.watch(bar.wrap_read(open_file(path)?));
    let archive = Archive::open(source, ReadOptions::default()).map_err(|error| describe(path, error))?;
    let target = Enclosure::open(&args.directory).with_context(|| format!("cannot write to the directory {dir}"))?;
    let mut job = Job { archive, target, path, replace: args.force, stop, output: &output, last: Last::default() };
    let wanted = job.choose(&args.names)?;
    // The verification has moved the bar to its end. Writing reads the archive again.
    bar.reset();
    for index in wanted {
        job.extract(index)?;
    }
    job.target.sync().with_context(|| format!("cannot write to the directory {dir}"))?;
    bar.finish_and_clear();
    let Job { archive, last, .. } = job;
    if !archive.unverified().is_empty() {
        let count = Count(archive.unverified().len() as u64, "blob");
        output.complain(format_args!("left out, not verifiable: {count} before the damage"));
    }
    output.record(&last)?;
    output.line(format_args!("{}, {} to {dir}", Count(last.extracted, "blob"), Size(last.content_len)))?;
    match (archive.into_damage(), last.failed) {
        (Some(error), _) => Err(describe(path, error)),
        (None, 0) => Ok(()),
        (None, failed) => bail!("{} could not be extracted", Count(failed, "blob")),
    }
}

/// The archive, with a progress bar, and interruptible by a signal.
type Source = Stoppable<ProgressBarIter<File>>;

/// An extraction that is under way.
struct Job<'a> {
    archive: Archive<Source>,
    target: Enclosure,
    /// The path of the archive, for errors.
    path: &'a Path,
    /// Whether existing files are replaced.
    replace: bool,
    stop: &'a Stop,
    output: &'a Output,
    /// The totals so far.
    last: Last,
}

impl Job<'_> {
    /// The indexes of the blobs to write: those with these names, or all if `names` is empty. Of
    /// several blobs with one name, the last.
    fn choose(&mut self, names: &[String]) -> anyhow::Result<BTreeSet<usize>> {
        let entries = self.archive.verified().iter().enumerate();
        // A later blob replaces an earlier one of the same name in the map.
        let newest: HashMap<String, usize> = entries.map(|(index, entry)| (entry.name().to_owned(), index)).collect();
        if names.is_empty() {
            return Ok(newest.into_values().collect());
        }
        let mut chosen = BTreeSet::new();
        for name in names {
            match newest.get(name) {
                Some(index) => drop(chosen.insert(*index)),
                None => self.fail(name, &anyhow!("blob not found in the archive"))?,
            }
        }
        Ok(chosen)
    }

    /// Writes one blob to its file, and prints its record. Returns an error only if no further blob
    /// can be written; prints and counts any other.
    fn extract(&mut self, index: usize) -> anyhow::Result<()> {
        let Some(name) = self.archive.verified().get(index).map(|entry| entry.name().to_owned()) else { return Ok(()) };
        let length = match Place::of(&name) {
            Ok(place) => self.write(index, &place)?,
            Err(refusal) => Err(anyhow!("its name is not usable as a path: {refusal}; `cat` writes it to stdout")),
        };
        match length {
            Ok(length) => {
                self.last.extracted += 1;
                self.last.content_len += length;
                Ok(self.output.record(&Row { name: &name, length: Some(length), error: None })?)
            }
            Err(error) => self.fail(&name, &error),
        }
    }

    /// Writes a blob to a file. The outer error is about the archive, or says that a signal has
    /// stopped the command; it ends the extraction. The inner error is about this file.
    fn write(&mut self, index: usize, place: &Place<'_>) -> anyhow::Result<anyhow::Result<u64>> {
        let of_archive = |error: Error| describe(self.path, error);
        let mut file = match self.target.create(&place.directories) {
            Ok(file) => file,
            Err(error) => return Ok(Err(error.into())),
        };
        let Some(mut blob) = self.archive.blob(index).map_err(of_archive)? else { bail!("the list has changed") };
        let mut piece = vec![0; PIECE_LEN];
        let mut length = 0;
        loop {
            self.stop.check()?;
            // The last read also checks that the content has not changed since it was verified.
            let len = blob.read_content(&mut piece).map_err(of_archive)?;
            if len == 0 {
                break;
            }
            if let Err(error) = file.write(&piece[..len]) {
                return Ok(Err(error.into()));
            }
            length += len as u64;
        }
        let published = file.publish(place.file, self.replace).map(|()| length);
        Ok(published.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => anyhow!("{} already exists; --force replaces files", place.file),
            _ => error.into(),
        }))
    }

    /// Prints and counts a blob that could not be extracted.
    fn fail(&mut self, name: &str, error: &anyhow::Error) -> anyhow::Result<()> {
        self.last.failed += 1;
        self.output.complain(format_args!("cannot extract `{}`: {error:#}", Plain(name)));
        Ok(self.output.record(&Row { name, length: None, error: Some(format!("{error:#}")) })?)
    }
}
