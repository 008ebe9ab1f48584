//! `zorb xorb inspect`: prints the contents of a xorb, up to the first damage.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use serde::Serialize;

use super::read_xorb;
use crate::cli::output::{Output, OutputArgs};
use crate::cli::units::{Count, Share, Size};
use crate::format::compression::Scheme;
use crate::format::limits::MAX_XORB_BODY_LEN;
use crate::format::xorb::{VerifiedChunk, Verifier, XorbError};

/// Offset of the version within a footer: 7 bytes that identify the footer come first.
const FOOTER_VERSION_OFFSET: usize = 7;

/// Print the contents of a xorb: a summary, and each chunk with hash, scheme and offsets.
///
/// Chunks are decompressed and hashed as they are read. Of a damaged xorb the chunks before the
/// damage are printed, then the position of the damage, and the exit code is 1.
#[derive(Debug, Args)]
pub(in crate::cli) struct InspectArgs {
    /// A xorb file; `-` is stdin
    #[arg(value_name = "X")]
    file: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

/// The contents of a xorb. Also the record with `--json`.
#[derive(Debug, Default, Serialize)]
struct Report {
    path: String,
    /// `None` if the xorb is damaged.
    hash: Option<String>,
    /// Bytes of the file.
    len: u64,
    /// Bytes of the serialized chunks.
    serialized_len: u64,
    raw_len: u64,
    chunks: Vec<Row>,
    footer: Option<Footer>,
    damage: Option<Damage>,
}

/// A chunk.
#[derive(Debug, Serialize)]
struct Row {
    index: u32,
    hash: String,
    scheme: String,
    serialized_offset: u64,
    serialized_len: u64,
    raw_offset: u64,
    raw_len: u64,
}

/// The footer after the chunks, which a xorb file may have.
#[derive(Debug, Serialize)]
struct Footer {
    version: u8,
    offset: u64,
    len: u64,
}

/// The first damage, after which nothing is read.
#[derive(Debug, Serialize)]
struct Damage {
    code: &'static str,
    offset: u64,
    chunk: Option<u32>,
    detail: String,
}

pub(super) fn run(args: InspectArgs) -> anyhow::Result<()> {
    let output = Output::new(args.output);
    let bytes = read_xorb(&args.file)?;
    let mut report = Report { path: args.file.display().to_string(), len: bytes.len() as u64, ..Report::default() };
    let result = report.fill(&bytes);
    report.damage = result.err().map(|error| Damage {
        code: error.class().code(),
        offset: error.offset,
        chunk: error.chunk,
        detail: error.to_string(),
    });
    output.record(&report)?;
    report.print(&output)?;
    match report.damage {
        Some(damage) => bail!("{} is damaged: {}", report.path, damage.detail),
        None => Ok(()),
    }
}

impl Report {
    /// Reads the xorb up to its end or to the first damage.
    fn fill(&mut self, bytes: &[u8]) -> Result<(), XorbError> {
        let mut verifier = Verifier::new(MAX_XORB_BODY_LEN);
        let mut rest = bytes;
        while let Some(chunk) = verifier.next_chunk(&mut rest)? {
            self.push(&chunk);
        }
        let xorb = verifier.finish()?;
        self.hash = Some(xorb.hash().to_string());
        let len = self.len - self.serialized_len;
        let footer = usize::try_from(self.serialized_len).ok().and_then(|start| bytes.get(start..)).unwrap_or_default();
        // The bytes after the chunks are a valid footer, or there are none: `finish` has checked
        // it.
        let version = footer.get(FOOTER_VERSION_OFFSET);
        self.footer = version.map(|version| Footer { version: *version, offset: self.serialized_len, len });
        Ok(())
    }

    /// Adds a chunk to the report.
    fn push(&mut self, chunk: &VerifiedChunk<'_>) {
        let (serialized_len, raw_len) = (chunk.frame.bytes.len() as u64, chunk.raw.len() as u64);
        self.chunks.push(Row {
            index: chunk.frame.index,
            hash: chunk.hash.to_string(),
            scheme: chunk.frame.header.scheme.to_string(),
            serialized_offset: chunk.frame.offset,
            serialized_len,
            raw_offset: self.raw_len,
            raw_len,
        });
        self.serialized_len += serialized_len;
        self.raw_len += raw_len;
    }

    fn print(&self, output: &Output) -> anyhow::Result<()> {
        let Self { serialized_len, raw_len, .. } = *self;
        output.line(format_args!("file    {}, {}", self.path, exact(self.len)))?;
        output.line(format_args!("xorb    {}", self.hash.as_deref().unwrap_or("unknown (damaged)")))?;
        let sound = if self.damage.is_some() { " before the damage" } else { "" };
        output.line(format_args!("chunks  {}{sound}: {}", self.chunks.len(), self.schemes()))?;
        output.line(format_args!("raw     {}", exact(raw_len)))?;
        let share = Share { part: serialized_len, whole: raw_len };
        output.line(format_args!("stored  {}, {share} of raw", exact(serialized_len)))?;
        match &self.footer {
            // The verification ended before it reached a footer.
            None if self.damage.is_some() => {}
            Some(footer) => output.line(format_args!("footer  version {}, {}", footer.version, exact(footer.len)))?,
            None => output.line("footer  none")?,
        }
        if self.chunks.is_empty() {
            return Ok(());
        }
        output.line("")?;
        output.line(format_args!(
            "{:>5}  {:64}  {:7}  {:>8}  {:>7}  {:>8}  {:>7}  {:>6}",
            "index", "hash", "scheme", "offset", "length", "raw at", "raw", "share"
        ))?;
        for row in &self.chunks {
            let Row { index, hash, scheme, serialized_offset, serialized_len, raw_offset, raw_len } = row;
            let share = Share { part: *serialized_len, whole: *raw_len };
            output.line(format_args!(
                "{index:>5}  {hash}  {scheme:7}  {serialized_offset:>8}  {serialized_len:>7}  {raw_offset:>8}  \
                 {raw_len:>7}  {share:>6}"
            ))?;
        }
        Ok(())
    }

    /// The number of chunks of each compression scheme.
    fn schemes(&self) -> String {
        let of = |scheme: Scheme| {
            let name = scheme.to_string();
            let count = self.chunks.iter().filter(|row| row.scheme == name).count();
            format!("{count} {name}")
        };
        [Scheme::None, Scheme::Lz4, Scheme::ByteGroupedLz4].map(of).join(", ")
    }
}

/// A rounded size, with the exact number of bytes.
fn exact(len: u64) -> String {
    if len < 1024 { Size(len).to_string() } else { format!("{} ({})", Size(len), Count(len, "byte")) }
}
