//! In which form xorbs go into an archive: `backup_forms MIB [FILE…]` compares three on made-up data and on FILEs.
//!
//! - *as they are*: serialized, LZ4 and all;
//! - *raw*: the contents of their chunks;
//! - *unpacked*: LZ4 undone, byte grouping kept, which is what `zorb backup` does.
//!
//! Prints, per kind of data and form, the archive's size as a share of the raw bytes, and raw bytes per second of
//! writing (xorb to archive) and reading (archive to verified xorb), in memory and on one core. Seconds are those that
//! the kernel gave this thread, so a busy machine spoils them less.

use std::io::{Cursor, Read, Seek};
use std::time::Duration;

use anyhow::{Context, ensure};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use zorb::format::chunker::chunks;
use zorb::format::compression::{Decoder, Policy};
use zorb::format::xorb::{
    BuildError, BuiltXorb, RepackMode, Repacker, Splitter, Unpacked, Unpacker, XorbBuilder, parse_unpacked_table,
    verify,
};
use zorb::rca::{Reader, Writer};

#[derive(Clone, Copy, Debug)]
enum Form {
    AsIs,
    Raw,
    Unpacked,
}

#[expect(clippy::print_stdout, reason = "a small program that prints its result")]
fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let mib: usize = args.next().context("usage: backup_forms MIB [FILE…]")?.parse()?;
    let (len, mut rng) = (mib << 20, StdRng::seed_from_u64(1));
    let mut kinds = vec![
        ("words".to_owned(), words(&mut rng, len)),
        ("table of numbers".to_owned(), table(&mut rng, len)),
        ("f32 weights".to_owned(), f32_weights(&mut rng, len)),
        ("bf16 weights".to_owned(), bf16_weights(&mut rng, len)),
        ("noise".to_owned(), noise(&mut rng, len)),
    ];
    for path in args {
        kinds.push((path.clone(), std::fs::read(&path).with_context(|| format!("cannot read {path}"))?));
    }
    println!("| data | form | size | write MB/s | read MB/s |\n|---|---|---|---|---|");
    for (name, data) in &kinds {
        let xorbs = pack(data)?;
        for form in [Form::AsIs, Form::Raw, Form::Unpacked] {
            // The best of three: what else the machine does only ever makes it slower.
            let runs: Vec<_> = (0..3).map(|_| measure(&xorbs, form)).collect::<anyhow::Result<_>>()?;
            let write = runs.iter().map(|run| run.1).min().unwrap_or_default();
            let read = runs.iter().map(|run| run.2).min().unwrap_or_default();
            let size = runs.first().map_or(0, |run| run.0);
            println!(
                "| {name} | {form:?} | {:.1} % | {:.0} | {:.0} |",
                100.0 * share(size, data.len()),
                rate(data.len(), write),
                rate(data.len(), read)
            );
        }
    }
    Ok(())
}

/// Size of the archive, and the times of writing and of reading it.
fn measure(xorbs: &[BuiltXorb], form: Form) -> anyhow::Result<(usize, Duration, Duration)> {
    let begin = time_on_cpu()?;
    let mut writer = Writer::open(Cursor::new(Vec::new()))?;
    for xorb in xorbs {
        writer.append("x", content(xorb, form)?.as_slice())?;
    }
    let (write, mut archive) = (time_on_cpu()? - begin, writer.into_storage());
    let size = archive.get_ref().len();
    archive.rewind()?;
    let begin = time_on_cpu()?;
    let mut reader = Reader::new(archive)?;
    for xorb in xorbs {
        let mut content = Vec::new();
        reader.next_blob()?.context("a blob is missing")?.read_to_end(&mut content)?;
        ensure!(hash_of(&content, form, xorb)? == xorb.xorb().hash(), "a xorb came back changed");
    }
    ensure!(reader.next_blob()?.is_none(), "there is one blob too many");
    Ok((size, write, time_on_cpu()? - begin))
}

/// How long this thread has run.
fn time_on_cpu() -> anyhow::Result<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").context("the kernel does not say")?;
    let nanos = text.split(' ').next().context("the kernel says nothing")?;
    Ok(Duration::from_nanos(nanos.parse()?))
}

fn content(xorb: &BuiltXorb, form: Form) -> anyhow::Result<Vec<u8>> {
    Ok(match form {
        Form::AsIs => {
            verify(xorb.bytes())?;
            xorb.bytes().to_vec()
        }
        Form::Raw => {
            verify(xorb.bytes())?;
            raw(xorb.bytes())?
        }
        Form::Unpacked => {
            let mut unpacker = Unpacker::new(xorb.xorb().layout().raw_len());
            unpacker.push(xorb.bytes())?;
            let (_, Unpacked { table, contents }) = unpacker.finish()?;
            [table, contents].concat()
        }
    })
}

fn raw(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let (mut splitter, mut decoder, mut rest) = (Splitter::new(bytes.len() as u64), Decoder::new(), bytes);
    let mut raw = Vec::new();
    while let Some(frame) = splitter.next_frame(&mut rest)? {
        raw.extend_from_slice(decoder.decode(&frame.header, frame.payload())?);
    }
    Ok(raw)
}

/// Makes a serialized xorb of the content again, and says which one it is.
fn hash_of(content: &[u8], form: Form, xorb: &BuiltXorb) -> anyhow::Result<zorb::format::XorbHash> {
    Ok(match form {
        Form::AsIs => verify(content)?.hash(),
        Form::Raw => {
            let mut builder = XorbBuilder::new(Policy::Predict);
            let mut rest = content;
            for place in xorb.xorb().layout().chunks() {
                let (chunk, after) = rest.split_at(usize::try_from(place.raw.byte_len())?);
                builder.push(chunk)?;
                rest = after;
            }
            builder.finish().context("there is a chunk")?.xorb().hash()
        }
        Form::Unpacked => {
            let (table, mut rest) = content.split_at(4 * xorb.xorb().schemes().len());
            let (mut repacker, mut record) = (Repacker::new(RepackMode::Compressed), Vec::new());
            for chunk in parse_unpacked_table(table)? {
                let (contents, after) = rest.split_at(usize::try_from(chunk.raw_len)?);
                record.clear();
                repacker.push(chunk, contents, &mut record)?;
                rest = after;
            }
            repacker.finish().context("there is a chunk")?.hash()
        }
    })
}

fn pack(data: &[u8]) -> anyhow::Result<Vec<BuiltXorb>> {
    let (mut xorbs, mut builder) = (Vec::new(), XorbBuilder::new(Policy::Predict));
    for chunk in chunks(data) {
        if let Err(BuildError::Full { .. }) = builder.push(chunk) {
            let full = std::mem::replace(&mut builder, XorbBuilder::new(Policy::Predict));
            xorbs.extend(full.finish());
            builder.push(chunk)?;
        }
    }
    xorbs.extend(builder.finish());
    Ok(xorbs)
}

/// Words as often as in a language: the n-th with a probability of about 1/n.
fn words(rng: &mut StdRng, len: usize) -> Vec<u8> {
    let words: Vec<Vec<u8>> = (0..20_000)
        .map(|_| {
            let len = rng.random_range(2..10);
            (0..len).map(|_| rng.random_range(b'a'..=b'z')).collect()
        })
        .collect();
    let mut text = Vec::with_capacity(len + 16);
    while text.len() < len {
        let rank = f64::powf(20_000.0, rng.random::<f64>());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 20 000")]
        text.extend_from_slice(&words[rank as usize % words.len()]);
        text.push(if rng.random_ratio(1, 12) { b'\n' } else { b' ' });
    }
    text.truncate(len);
    text
}

fn table(rng: &mut StdRng, len: usize) -> Vec<u8> {
    let (mut text, mut row) = (Vec::with_capacity(len + 64), 0_u64);
    while text.len() < len {
        row += 1;
        let (id, price) = (rng.random_range(0..100_000), rng.random_range(0..100_000));
        text.extend_from_slice(format!("{row},{id},{}.{:02},EUR\n", price / 100, price % 100).as_bytes());
    }
    text.truncate(len);
    text
}

/// Normally distributed, by Box and Muller.
fn normal(rng: &mut StdRng) -> f32 {
    let (u, v): (f32, f32) = (1.0 - rng.random::<f32>(), rng.random());
    0.02 * (-2.0 * u.ln()).sqrt() * (std::f32::consts::TAU * v).cos()
}

fn f32_weights(rng: &mut StdRng, len: usize) -> Vec<u8> {
    (0..len / 4).flat_map(|_| normal(rng).to_le_bytes()).collect()
}

fn bf16_weights(rng: &mut StdRng, len: usize) -> Vec<u8> {
    let upper_half = |number: f32| {
        let [_, _, low, high] = number.to_le_bytes();
        [low, high]
    };
    (0..len / 2).flat_map(|_| upper_half(normal(rng))).collect()
}

fn noise(rng: &mut StdRng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill_bytes(&mut bytes);
    bytes
}

#[expect(clippy::cast_precision_loss, reason = "a share for people")]
fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(len: usize, time: Duration) -> f64 {
    len as f64 / 1e6 / time.as_secs_f64()
}
