//! Makes xorbs as clients would: files of noise, words and floats, cut by content, compressed, packed until full.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use zorb::format::chunker::Chunker;
use zorb::format::compression::Policy;
use zorb::format::xorb::{BuiltXorb, XorbBuilder};

use crate::set::{Chunk, Entry, INDEX};

/// Files in each xorb, a third of each kind.
const FILE_COUNT: usize = 12;

/// Bytes of each: together just what a xorb may have, 64 MiB raw.
const FILE_LEN: usize = (64 << 20) / FILE_COUNT / 4 * 4;

/// Different words of the text.
const WORD_COUNT: usize = 20_000;

/// How far back lies what is said again.
const PHRASE_DISTANCE: usize = 30_000;

/// Writes xorbs and their index into a directory.
#[expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a program that writes files and says so")]
pub(crate) fn make(directory: &Path, count: u32, seed: u64) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let threads = u32::try_from(std::thread::available_parallelism()?.get())?;
    let mut entries = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|first| {
                scope.spawn(move || {
                    let numbers = (first..count).step_by(threads as usize);
                    numbers
                        .map(|number| Ok((number, write(directory, seed, number)?)))
                        .collect::<anyhow::Result<Vec<_>>>()
                })
            })
            .collect();
        let mut entries = Vec::new();
        for worker in workers {
            entries.extend(worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))??);
        }
        anyhow::Ok(entries)
    })?;
    entries.sort_by_key(|(number, _)| *number);
    let entries: Vec<Entry> = entries.into_iter().map(|(_, entry)| entry).collect();
    let len: u64 = entries.iter().map(|entry| entry.serialized_len).sum();
    let mut index = BufWriter::new(File::create(directory.join(INDEX))?);
    serde_json::to_writer(&mut index, &entries)?;
    index.flush()?;
    println!("{count} xorbs, {len} bytes");
    Ok(())
}

fn write(directory: &Path, seed: u64, number: u32) -> anyhow::Result<Entry> {
    let xorb = build(&mut StdRng::seed_from_u64(seed << 32 | u64::from(number)))?;
    let verified = xorb.xorb();
    let hash = verified.hash().to_string();
    File::create(directory.join(&hash))?.write_all(xorb.bytes())?;
    let places = verified.layout().chunks().zip(verified.chunk_hashes());
    Ok(Entry {
        hash,
        serialized_len: verified.layout().serialized_len(),
        raw_len: verified.layout().raw_len(),
        chunks: places.map(|(place, hash)| Chunk { end: place.serialized.end(), hash: hash.to_string() }).collect(),
    })
}

fn build(rng: &mut StdRng) -> anyhow::Result<BuiltXorb> {
    let mut builder = XorbBuilder::new(Policy::Predict);
    for number in 0..FILE_COUNT {
        let file = match number % 3 {
            0 => noise(rng),
            1 => words(rng),
            _ => floats(rng),
        };
        let (mut chunker, mut rest) = (Chunker::new(), file.as_slice());
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(chunker.next_boundary(rest).unwrap_or(rest.len()));
            builder.push(chunk)?;
            rest = after;
        }
    }
    builder.finish().context("there are chunks")
}

fn noise(rng: &mut StdRng) -> Vec<u8> {
    let mut bytes = vec![0; FILE_LEN];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// Words as often as in a language, the n-th with a probability of about 1/n; and every so often something is said again.
fn words(rng: &mut StdRng) -> Vec<u8> {
    let words: Vec<Vec<u8>> = (0..WORD_COUNT)
        .map(|_| {
            let len = rng.random_range(2..10);
            (0..len).map(|_| rng.random_range(b'a'..=b'z')).collect()
        })
        .collect();
    let mut text = Vec::with_capacity(FILE_LEN + 128);
    while text.len() < FILE_LEN {
        let rank = f64::powf(20_000.0, rng.random::<f64>());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 20 000")]
        text.extend_from_slice(&words[rank as usize % WORD_COUNT]);
        text.push(if rng.random_ratio(1, 12) { b'\n' } else { b' ' });
        if rng.random_ratio(1, 16) && text.len() > PHRASE_DISTANCE {
            let start = text.len() - rng.random_range(100..PHRASE_DISTANCE);
            text.extend_from_within(start..start + rng.random_range(40..100));
        }
    }
    text.truncate(FILE_LEN);
    text
}

/// Weights as of a model: normally distributed, by Box and Muller.
fn floats(rng: &mut StdRng) -> Vec<u8> {
    let normal = |_| {
        let (u, v): (f32, f32) = (1.0 - rng.random::<f32>(), rng.random());
        0.02 * (-2.0 * u.ln()).sqrt() * (std::f32::consts::TAU * v).cos()
    };
    (0..FILE_LEN / 4).map(normal).flat_map(f32::to_le_bytes).collect()
}
