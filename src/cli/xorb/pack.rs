//! `zorb xorb pack`: packs files into xorb files.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use serde::Serialize;

use super::{Input, cannot_read, verify_file};
use crate::cli::output::{Output, OutputArgs};
use crate::cli::units::{Count, Share, Size};
use crate::client::{Packed, Packer, Term};
use crate::format::compression::Policy;
use crate::format::xorb::BuiltXorb;
use crate::runtime::durable::{TempFile, create_directory};

/// Length of the buffer for reads.
const PIECE_LEN: usize = 1 << 20;

/// Maximum number of chunk ranges that are printed per file. A file with many repetitions has
/// thousands of them.
const MAX_SHOWN_TERM_COUNT: usize = 10;

/// Cut files into chunks and pack them into xorbs.
///
/// Writes one file `<hash>.xorb` per xorb, each complete or not at all; an existing one is verified
/// and left unchanged. A chunk that occurs again in this run is not stored again. Memory use is one
/// xorb (64 MiB) and about 1 MiB per GiB of input, whatever the sizes of the files.
#[derive(Debug, Args)]
pub(in crate::cli) struct PackArgs {
    /// Files, in the order in which they are packed; `-` is stdin
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Output directory; created if it does not exist
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    output_dir: PathBuf,
    /// How chunks are compressed
    #[arg(long, value_enum, default_value_t)]
    compression: Compression,
    #[command(flatten)]
    output: OutputArgs,
}

/// [`Policy`] as a command-line argument.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Compression {
    /// Try LZ4 with and without byte grouping on each chunk and keep the smallest
    BruteForce,
    /// Predict from each chunk's bytes whether grouping helps, and compress once
    #[default]
    Predict,
    /// Do not compress
    None,
    /// LZ4
    Lz4,
    /// Byte grouping, then LZ4
    Bg4,
}

impl From<Compression> for Policy {
    fn from(compression: Compression) -> Self {
        match compression {
            Compression::BruteForce => Self::BruteForce,
            Compression::Predict => Self::Predict,
            Compression::None => Self::None,
            Compression::Lz4 => Self::Lz4,
            Compression::Bg4 => Self::ByteGroupedLz4,
        }
    }
}

/// The records with `--json`: each xorb when it is written, then the files, then the total.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Record<'a> {
    Xorb { hash: String, path: &'a str, chunks: u32, raw_len: u64, serialized_len: u64, was_there: bool },
    File { path: &'a str, size: u64, file_hash: String, terms: Vec<TermRecord> },
    Total { files: usize, xorbs: u64, raw_len: u64, serialized_len: u64, duplicate_chunks: u64, duplicate_len: u64 },
}

/// A term of a file: consecutive chunks of one xorb. The terms in their order are the file.
#[derive(Debug, Serialize)]
struct TermRecord {
    xorb: String,
    start: u32,
    end: u32,
    raw_len: u64,
}

impl From<&Term> for TermRecord {
    fn from(term: &Term) -> Self {
        let Term { xorb, chunks, raw_len } = *term;
        Self { xorb: xorb.to_string(), start: chunks.start(), end: chunks.end(), raw_len }
    }
}

pub(super) fn run(args: PackArgs) -> anyhow::Result<()> {
    let dir = &args.output_dir;
    let mut target = Target { dir, output: Output::new(args.output), count: 0, raw_len: 0, serialized_len: 0 };
    create_directory(dir).with_context(|| format!("cannot create the directory {}", dir.display()))?;
    // The lengths are read first, so that a wrong path is reported before the work begins.
    let total = args.files.iter().map(|path| Input::len(path)).sum::<anyhow::Result<u64>>()?;
    let bar = target.output.bar(total, "packing");
    let mut packer = Packer::new(args.compression.into());
    for path in &args.files {
        feed(&mut packer, path, &mut target, &bar)?;
    }
    let (last, packed) = packer.finish();
    last.map_or(Ok(()), |xorb| target.publish(&xorb))?;
    bar.finish_and_clear();
    report(&target, &args.files, &packed)
}

/// Feeds a file to the packer, and writes each full xorb.
fn feed(packer: &mut Packer, path: &Path, target: &mut Target<'_>, bar: &ProgressBar) -> anyhow::Result<()> {
    let mut input = Input::open(path)?;
    let mut buffer = vec![0; PIECE_LEN];
    loop {
        let len = match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).with_context(|| cannot_read(path)),
        };
        let mut piece = &buffer[..len];
        while let Some(full) = packer.push(&mut piece) {
            target.publish(&full)?;
        }
        bar.inc(len as u64);
    }
    packer.end_file().map_or(Ok(()), |full| target.publish(&full))
}

/// The directory to which xorbs are written, and the totals so far.
struct Target<'a> {
    dir: &'a Path,
    output: Output,
    count: u64,
    raw_len: u64,
    serialized_len: u64,
}

impl Target<'_> {
    /// Writes a xorb to its file, and prints its line. An existing file is verified and left
    /// unchanged.
    fn publish(&mut self, built: &BuiltXorb) -> anyhow::Result<()> {
        let (xorb, hash) = (built.xorb(), built.xorb().hash());
        let path = self.dir.join(format!("{hash}.xorb"));
        let was_there = path.try_exists().with_context(|| cannot_read(&path))?;
        if was_there {
            match verify_file(&path)? {
                Ok(found) if found.hash() == hash => {}
                Ok(found) => bail!("{} already exists and is the xorb {}", path.display(), found.hash()),
                Err(error) => bail!("{} already exists and is damaged: {error}", path.display()),
            }
        } else {
            let write = || {
                let mut file = TempFile::create_beside(&path)?;
                file.write(built.bytes())?;
                file.publish(&path)
            };
            write().with_context(|| format!("cannot write {}", path.display()))?;
        }
        let (count, layout) = (xorb.layout().chunk_count(), xorb.layout());
        let (raw_len, serialized_len) = (layout.raw_len(), layout.serialized_len());
        self.count += 1;
        self.raw_len += raw_len;
        self.serialized_len += serialized_len;
        self.output.record(&Record::Xorb {
            hash: hash.to_string(),
            path: &path.to_string_lossy(),
            chunks: count,
            raw_len,
            serialized_len,
            was_there,
        })?;
        let (chunks, raw, serialized) = (Count(count.into(), "chunk"), Size(raw_len), Size(serialized_len));
        let share = Share { part: serialized_len, whole: raw_len };
        let remark = if was_there { ", already present" } else { "" };
        self.output.line(format_args!("xorb {hash}  {chunks}, {raw} → {serialized} ({share}){remark}"))?;
        Ok(())
    }
}

/// Prints each file with its terms, then the total.
fn report(target: &Target<'_>, paths: &[PathBuf], packed: &Packed) -> anyhow::Result<()> {
    let output = &target.output;
    for (path, file) in paths.iter().zip(&packed.files) {
        output.record(&Record::File {
            path: &path.to_string_lossy(),
            size: file.len,
            file_hash: file.hash.to_string(),
            terms: file.terms.iter().map(TermRecord::from).collect(),
        })?;
        output.line(format_args!("file {}  {}, {}", file.hash, Size(file.len), path.display()))?;
        for term in file.terms.iter().take(MAX_SHOWN_TERM_COUNT) {
            output.line(format_args!("     {}  chunks {}, {}", term.xorb, term.chunks, Size(term.raw_len)))?;
        }
        if file.terms.len() > MAX_SHOWN_TERM_COUNT {
            let rest = Count((file.terms.len() - MAX_SHOWN_TERM_COUNT) as u64, "more range");
            output.line(format_args!("     {rest}; --json has them all"))?;
        }
    }
    let Target { count, raw_len, serialized_len, .. } = *target;
    output.record(&Record::Total {
        files: packed.files.len(),
        xorbs: count,
        raw_len,
        serialized_len,
        duplicate_chunks: packed.duplicate_count,
        duplicate_len: packed.duplicate_len,
    })?;
    let total: u64 = packed.files.iter().map(|file| file.len).sum();
    let (files, xorbs) = (Count(packed.files.len() as u64, "file"), Count(count, "xorb"));
    let duplicates = Count(packed.duplicate_count, "duplicate chunk");
    output.line(format_args!(
        "{files}, {} → {xorbs}, {} ({}); {duplicates}, {}, deduplicated",
        Size(total),
        Size(serialized_len),
        Share { part: serialized_len, whole: total },
        Size(packed.duplicate_len),
    ))?;
    Ok(())
}
