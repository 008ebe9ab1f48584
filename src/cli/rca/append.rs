//! `zorb rca append`: appends blobs to an archive. A blob is durable when its line is printed. A
//! crash leaves all earlier blobs in the archive.

use std::fs::File;
use std::io::{Read, stdin};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;

use super::super::output::Plain;
use super::cannot_read;
use super::sources::{self, Source, SourceArgs};
use crate::cli::output::{Output, OutputArgs};
use crate::cli::units::{Count, Share, Size};
use crate::rca::{Error, WriteOptions, Writer};

/// Append files to an archive, one blob each.
///
/// A blob that was reported is durable. A crash leaves the archive with all blobs before; the next
/// append truncates anything after them. Blobs of one command are compressed together, so append
/// similar files with one command. An archive has one writer at a time; concurrent readers see
/// complete blobs.
///
/// Refuses a damaged archive, and a file that does not look like an archive.
#[derive(Debug, Args)]
pub(in crate::cli) struct AppendArgs {
    /// An archive
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
    /// Files; `-` is stdin
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    sources: SourceArgs,
    /// Overwrite a file that does not look like an archive; its contents are lost
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// The record of each blob with `--json`.
#[derive(Debug, Serialize)]
struct Row<'a> {
    name: &'a str,
    length: u64,
    stored_len: u64,
}

/// The last record with `--json`.
#[derive(Debug, Serialize)]
struct Last {
    blobs: usize,
    archive_len: u64,
}

pub(super) fn run(args: AppendArgs) -> anyhow::Result<()> {
    let (output, path) = (Output::new(args.output), args.archive.as_path());
    let name = path.display();
    let sources = sources::find(path, &args.files, &args.sources, &output)?;
    let file = match File::options().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot append to {name}; `zorb rca create` makes an archive"));
        }
        Err(error) => return Err(error).with_context(|| cannot_append(path)),
    };
    check_kind(&file, path)?;
    let options = WriteOptions { level: args.sources.level, ..WriteOptions::default() };
    let writer = Writer::with_options(file, options).map_err(|error| refused(path, error))?;
    let opened = writer.opened();
    if opened.is_foreign && !args.force {
        bail!(
            "{name} has {} and does not look like an archive, so nothing was changed; --force overwrites it with \
             an archive",
            Count(opened.garbage_len, "byte"),
        );
    }
    if opened.garbage_len > 0 && !opened.is_foreign {
        let len = Count(opened.garbage_len, "byte");
        output.remark(format_args!("{name}: truncated {len} of an interrupted append"));
    }
    if opened.torn_header {
        output.remark(format_args!("{name}: repaired a header torn by a crash"));
    }
    append_all(writer, path, &sources, &output)
}

/// Appends the sources in order, and prints a line for each. Ends at the first that fails; those
/// before it stay appended.
pub(super) fn append_all(
    mut writer: Writer<File>,
    path: &Path,
    sources: &[Source],
    output: &Output,
) -> anyhow::Result<()> {
    let bar = output.bar(sources.iter().map(|source| source.len).sum(), "appending");
    let (begin, mut content_len) = (writer.opened().committed_end, 0);
    for (index, source) in sources.iter().enumerate() {
        // Tells a source that cannot be read from an archive that cannot be written.
        let appended = append_one(&mut writer, source, &bar).map_err(|error| match error.downcast::<Error>() {
            Ok(Error::Content { source: error }) => anyhow!(error).context(cannot_read(&source.path)),
            Ok(error) => anyhow!(error).context(cannot_append(path)),
            Err(error) => error,
        });
        let (length, stored_len) = match appended {
            Ok(appended) => appended,
            Err(error) if index == 0 => return Err(error),
            Err(error) => return Err(error.context(format!("only {} appended", were(index)))),
        };
        content_len += length;
        output.record(&Row { name: &source.name, length, stored_len })?;
        let share = Share { part: stored_len, whole: length };
        let sizes = format_args!("{} → {} ({share})", Size(length), Size(stored_len)).to_string();
        output.line(format_args!("{sizes:<32}  {}", Plain(&source.name)))?;
    }
    bar.finish_and_clear();
    let archive_len = writer.committed_end();
    output.record(&Last { blobs: sources.len(), archive_len })?;
    let (blobs, stored_len) = (Count(sources.len() as u64, "blob"), archive_len.saturating_sub(begin));
    let share = Share { part: stored_len, whole: content_len };
    let (content, stored, whole) = (Size(content_len), Size(stored_len), Size(archive_len));
    output.line(format_args!("{blobs}, {content} → {stored} ({share}); {}, {whole}", path.display()))?;
    Ok(())
}

/// Appends one source. Returns its length, and by how much the archive grew.
fn append_one(writer: &mut Writer<File>, source: &Source, bar: &ProgressBar) -> anyhow::Result<(u64, u64)> {
    let content: Box<dyn Read> = if source.is_stdin() {
        Box::new(stdin())
    } else {
        Box::new(File::open(&source.path).with_context(|| cannot_read(&source.path))?)
    };
    let appended = writer.append(&source.name, bar.wrap_read(content))?;
    Ok((appended.content_len, appended.stored_len))
}

/// “1 blob was”, “2 blobs were”.
fn were(count: usize) -> String {
    let verb = if count == 1 { "was" } else { "were" };
    format!("{} {verb}", Count(count as u64, "blob"))
}

/// Refuses anything but a regular file, because a device or a pipe cannot be locked, truncated and
/// synced as an archive needs.
pub(super) fn check_kind(file: &File, path: &Path) -> anyhow::Result<()> {
    if !file.metadata().with_context(|| cannot_append(path))?.is_file() {
        bail!("{}: not a regular file", cannot_append(path));
    }
    Ok(())
}

/// The error of an archive that cannot be appended to.
pub(super) fn refused(path: &Path, error: Error) -> anyhow::Error {
    let what = match &error {
        error if error.is_damage() => format!("{} is damaged, and nothing was appended", path.display()),
        _ => cannot_append(path),
    };
    anyhow!(error).context(what)
}

/// The text of an error about this archive.
fn cannot_append(path: &Path) -> String {
    format!("cannot append to {}", path.display())
}
