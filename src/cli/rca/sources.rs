//! The sources of `zorb rca append` and `create`: files, directories and stdin, and the names of
//! their blobs.
//!
//! All sources are found before the archive is written, so that a wrong path or name changes
//! nothing. Each file is opened only when it is appended. If it cannot be opened then, the blobs
//! before it stay appended.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args;

use super::super::output::Plain;
use super::cannot_read;
use super::names::Place;
use crate::cli::Usage;
use crate::cli::output::Output;

/// Arguments about sources, shared by `append` and `create`.
#[derive(Debug, Args)]
pub(super) struct SourceArgs {
    /// The blob's name, for one FILE; without it the path as given
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Append all files of directories, in the order of their names
    #[arg(short, long, conflicts_with = "name")]
    recursive: bool,
    /// zstd level; higher is smaller and slower
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=22))]
    pub(super) level: i32,
}

/// A file or stdin, to be appended as one blob.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) name: String,
    /// Length of the file when it was found, for the progress bar only; 0 for stdin.
    pub(super) len: u64,
}

impl Source {
    pub(super) fn is_stdin(&self) -> bool {
        self.path == Path::new("-")
    }
}

/// Finds the sources that the arguments name, in order. Fails if one of them is the archive itself.
/// Prints a remark if `extract` will refuse a name.
pub(super) fn find(
    archive: &Path,
    files: &[PathBuf],
    args: &SourceArgs,
    output: &Output,
) -> anyhow::Result<Vec<Source>> {
    if args.name.is_some() && files.len() != 1 {
        bail!(Usage("--name is for one FILE"));
    }
    let mut search = Search {
        archive: fs::metadata(archive).ok().as_ref().map(identity),
        is_recursive: args.recursive,
        output,
        found: Vec::new(),
    };
    for path in files {
        match &args.name {
            Some(name) => search.add_named(path, name)?,
            None if path == Path::new("-") => bail!(Usage("stdin has no name; pass --name NAME")),
            None => search.add(path)?,
        }
    }
    report_unextractable_names(&search.found, output);
    Ok(search.found)
}

/// The search for sources, with those found so far.
struct Search<'a> {
    /// [`identity`] of the archive, if it exists.
    archive: Option<(u64, u64)>,
    is_recursive: bool,
    output: &'a Output,
    found: Vec<Source>,
}

impl Search<'_> {
    /// Adds a file or stdin from the command line, with the name of `--name`.
    fn add_named(&mut self, path: &Path, name: &str) -> anyhow::Result<()> {
        let len = match path == Path::new("-") {
            true => 0,
            false => self.check_path(path)?.len(),
        };
        self.found.push(Source { path: path.to_owned(), name: name.to_owned(), len });
        Ok(())
    }

    /// Adds a file from the command line, or with `--recursive` a directory. Follows symbolic
    /// links.
    fn add(&mut self, path: &Path) -> anyhow::Result<()> {
        if self.is_recursive && path.is_dir() {
            return self.add_directory(path);
        }
        let len = self.check_path(path)?.len();
        self.found.push(Source { path: path.to_owned(), name: name_of(path)?, len });
        Ok(())
    }

    /// Adds all regular files below a directory, ordered by name, except the archive. Skips
    /// symbolic links, because they can form cycles and lead out of the directory.
    fn add_directory(&mut self, directory: &Path) -> anyhow::Result<()> {
        let list = || -> std::io::Result<Vec<_>> { fs::read_dir(directory)?.collect() };
        let mut entries = list().with_context(|| cannot_read(directory))?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            let metadata = entry.metadata().with_context(|| cannot_read(&path))?;
            if metadata.is_dir() {
                self.add_directory(&path)?;
            } else if !metadata.is_file() {
                self.output.remark(format_args!("skipped {}: a link or not a regular file", path.display()));
            } else if self.archive == Some(identity(&metadata)) {
                self.output.remark(format_args!("skipped {}: it is the archive itself", path.display()));
            } else {
                let name = name_of(&path)?;
                self.found.push(Source { path, name, len: metadata.len() });
            }
        }
        Ok(())
    }

    /// Checks that a path exists and is neither a directory nor the archive. Returns its metadata.
    fn check_path(&self, path: &Path) -> anyhow::Result<Metadata> {
        let metadata = fs::metadata(path).with_context(|| cannot_read(path))?;
        if metadata.is_dir() {
            bail!("{} is a directory; -r appends the files in it", path.display());
        }
        if self.archive == Some(identity(&metadata)) {
            bail!("{} is the archive itself, which cannot be put into itself", path.display());
        }
        Ok(metadata)
    }
}

/// Device and inode, by which two paths of the same file are recognized.
fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// The blob's name: the path as given, without `.` and empty parts (`./a//b` becomes `a/b`).
fn name_of(path: &Path) -> anyhow::Result<String> {
    let parts: PathBuf = path.components().filter(|part| *part != Component::CurDir).collect();
    let name = parts.into_os_string().into_string();
    name.map_err(|_| anyhow!("the name {} is not valid UTF-8; pass --name NAME", path.display()))
}

/// Prints a remark about names that `extract` will refuse. It is no error, because an archive may
/// have such names.
fn report_unextractable_names(found: &[Source], output: &Output) {
    let mut refused = found.iter().filter_map(|source| Some((&source.name, Place::of(&source.name).err()?)));
    if let Some((name, refusal)) = refused.next() {
        let more = match refused.count() {
            0 => String::new(),
            count => format!("; nor {count} others"),
        };
        output.remark(format_args!("`extract` will refuse the name `{}`: {refusal}{more}", Plain(name)));
    }
}
