//! `zorb rca cat`: writes the content of one blob to stdout.

use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;

use super::super::output::Plain;
use super::{PIECE_LEN, describe, file_len, open_file};
use crate::cli::output::{Output, OutputArgs, write_stdout};
use crate::cli::units::Count;
use crate::rca::{Archive, ReadOptions};

/// Write the content of a blob to stdout.
///
/// The archive is read twice, so it must be a file: first it is verified, then the blob is written.
/// Of a damaged archive, verified blobs before the damage can still be read; the exit code is 1,
/// because a later blob of that name may be lost.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["name", "index"])))]
pub(in crate::cli) struct CatArgs {
    /// An archive
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
    /// Its name; of several with this name, the last
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Its position in the archive, from 0, in the order of `ls`
    #[arg(long, value_name = "N")]
    index: Option<usize>,
}

pub(super) fn run(args: CatArgs) -> anyhow::Result<()> {
    let path = &args.archive;
    let output = Output::new(OutputArgs::default());
    let bar = output.bar(file_len(path), path.display().to_string());
    let archive = Archive::open(bar.wrap_read(open_file(path)?), ReadOptions::default());
    bar.finish_and_clear();
    let mut archive = archive.map_err(|error| describe(path, error))?;
    // Only the verified blobs are searched.
    let Some(index) = find(&archive, &args) else { return Err(missing(archive, &args)) };
    let mut blob = archive
        .blob(index)
        .map_err(|error| describe(path, error))?
        .ok_or_else(|| anyhow!("{} changed while it was read", path.display()))?;
    let mut piece = vec![0; PIECE_LEN];
    loop {
        match blob.read_content(&mut piece).map_err(|error| describe(path, error))? {
            0 => break,
            len => write_stdout(|stdout| stdout.write_all(&piece[..len]))?,
        }
    }
    archive.into_damage().map_or(Ok(()), |error| Err(describe(path, error)))
}

/// The index of the wanted blob among the verified blobs; of several with one name, the last.
fn find<R: std::io::Read + std::io::Seek>(archive: &Archive<R>, args: &CatArgs) -> Option<usize> {
    match (&args.name, args.index) {
        (Some(name), _) => archive.verified().iter().rposition(|entry| entry.name() == name),
        (None, index) => index.filter(|index| *index < archive.verified().len()),
    }
}

/// The error for a blob that does not exist, or cannot be verified.
fn missing<R: std::io::Read + std::io::Seek>(archive: Archive<R>, args: &CatArgs) -> anyhow::Error {
    let path = args.archive.display();
    let (verified, unverified) = (archive.verified().len(), archive.unverified());
    // Whether the blob is before the damage, but in a session whose hash cannot be checked.
    let is_there = match (&args.name, args.index) {
        (Some(name), _) => unverified.iter().any(|entry| entry.name() == name),
        (None, index) => index.is_some_and(|index| index < verified + unverified.len()),
    };
    let what = match (&args.name, args.index) {
        (Some(name), _) => format!("no blob {} in {path}", Plain(name)),
        (None, index) => {
            let count = Count(verified as u64, "blob");
            format!("{path} has {count}, numbered from 0; {} exceeds them", index.unwrap_or_default())
        }
    };
    match archive.into_damage() {
        Some(error) if is_there => {
            let what = format!("{path} is damaged before that blob; its hash cannot be verified");
            anyhow::Error::new(error).context(what)
        }
        Some(error) => anyhow::Error::new(error).context(format!("{what} before its damage")),
        None => anyhow!(what),
    }
}
