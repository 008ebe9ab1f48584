//! `zorb xorb unpack`: writes the decompressed chunks of a xorb.

use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use serde::Serialize;

use super::read_xorb;
use crate::cli::Usage;
use crate::cli::destination::Destination;
use crate::cli::output::{Output, OutputArgs};
use crate::cli::units::{Count, Size};
use crate::client::Sink;
use crate::format::compression::Decoder;
use crate::format::xorb::{Layout, Splitter, verify};
use crate::format::{ChunkRange, ChunkRangeSpec};

/// Why splitting and decompressing cannot fail.
const VERIFIED: &str = "the whole xorb was verified a moment ago";

/// Write the decompressed contents of a xorb's chunks.
///
/// The whole xorb is verified first; of a damaged one nothing is written. The file appears under
/// its name when it is complete.
#[derive(Debug, Args)]
pub(in crate::cli) struct UnpackArgs {
    /// A xorb file; `-` is stdin
    #[arg(value_name = "X")]
    file: PathBuf,
    /// Only these chunks: A-B for [A,B), A- from A on, -N the last N, or just A
    #[arg(long, value_name = "A-B", allow_hyphen_values = true)]
    range: Option<ChunkRangeSpec>,
    /// Output file; `-` is stdout, the default unless it is a terminal
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    target: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// The record with `--json`.
#[derive(Debug, Serialize)]
struct Record {
    hash: String,
    path: String,
    start: u32,
    end: u32,
    raw_len: u64,
}

pub(super) fn run(args: UnpackArgs) -> anyhow::Result<()> {
    let destination = Destination::new(args.target.as_deref())?;
    if args.output.is_json() && destination.is_stdout() {
        bail!(Usage("with --json stdout carries JSON; give -o FILE for the data"));
    }
    let output = Output::new(args.output).beside_data(destination.is_stdout());
    let bytes = read_xorb(&args.file)?;
    let name = args.file.display();
    let xorb = verify(&bytes).map_err(|error| anyhow!("{name} is not a valid xorb: {error}"))?;
    let count = xorb.layout().chunk_count();
    let chunks = match args.range {
        None => xorb.layout().whole(),
        Some(range) => range.resolve(count).with_context(|| {
            format!("{name} has {}, numbered from 0; the range {range} exceeds them", Count(count.into(), "chunk"))
        })?,
    };
    let mut draft = destination.draft()?;
    let (mut splitter, mut decoder) = (Splitter::new(bytes.len() as u64), Decoder::new());
    let (mut rest, mut raw_len) = (slice(&bytes, xorb.layout(), chunks), 0);
    while let Some(frame) = splitter.next_frame(&mut rest).expect(VERIFIED) {
        let raw = decoder.decode(&frame.header, frame.payload()).expect(VERIFIED);
        draft.write(raw).with_context(|| format!("cannot write {destination}"))?;
        raw_len += raw.len() as u64;
    }
    destination.publish(draft)?;
    let (hash, start, end) = (xorb.hash().to_string(), chunks.start(), chunks.end());
    output.line(format_args!("{hash}  chunks {chunks}, {} to {destination}", Size(raw_len)))?;
    output.record(&Record { hash, path: destination.to_string(), start, end, raw_len })?;
    Ok(())
}

/// The serialized bytes of these chunks.
fn slice<'a>(xorb: &'a [u8], layout: &Layout, chunks: ChunkRange) -> &'a [u8] {
    let range = layout.serialized_range(chunks).expect("the range was resolved against this xorb");
    let at = |offset| usize::try_from(offset).expect("the xorb is in memory");
    &xorb[at(range.start())..at(range.end())]
}
