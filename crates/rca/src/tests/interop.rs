//! Checks that an independent reader in another language reads the archives that this crate writes.

use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt};
use serde_json::Value;

use super::reference::{blobs, verify_with_python};
use super::support::{Blob, append, archive, blob, filling, noise, read, rng};
use crate::hash::Hasher;
use crate::varint;
use crate::{WriteOptions, Writer};

const ARCHIVES: usize = 500;

#[test]
fn independent_reader_reads_500_random_archives_alike() {
    let seed = std::env::var("ZORB_SEED").ok().map_or(4, |seed| seed.parse().unwrap());
    println!("ZORB_SEED={seed}");
    let (mut rng, dir) = (rng(seed), tempfile::tempdir().unwrap());
    let (mut files, mut truths) = (Vec::new(), Vec::new());
    let (mut crossing, mut full) = (0, 0);
    for n in 0..ARCHIVES {
        let (mut bytes, truth) = random_archive(&mut rng);
        crossing += usize::from(bytes.len() > 0x8000);
        full += usize::from(truth.iter().any(|(name, ..)| name == "fill"));
        let mut phantom = false;
        if n % 10 == 3 {
            // At the start of the file and after a full chunk, every reader takes garbage for a
            // chunk.
            phantom = bytes.is_empty() || bytes.len() == 0x8000;
            bytes.extend_from_slice(&noise(n as u64, rng.random_range(1..300)));
        }
        let path = dir.path().join(format!("{n}.rca"));
        File::create_new(&path).unwrap().write_all(&bytes).unwrap();
        files.push(path);
        truths.push((truth, phantom));
    }
    println!("{crossing} cross 0x8000, {full} have a session that ends there");
    assert!(crossing > 50 && full > 20, "{crossing} {full}");
    for ((path, (truth, phantom)), report) in files.iter().zip(&truths).zip(verify_with_python(&files)) {
        let what = format!("ZORB_SEED={seed} {}", path.display());
        let seen = read(File::open(path).unwrap());
        assert_eq!(seen.blobs, blobs(&report["blobs"]), "{what}");
        assert_eq!(seen.garbage(), report["trailing_garbage"].as_bool(), "{what}");
        assert_eq!(seen.code(), report["error"]["code"].as_str(), "{what}");
        assert_eq!(seen.blobs, *truth, "{what}");
        assert!(seen.error.is_none() || *phantom, "{what}: {:?}", seen.error);
        check_listing(path, &report, &what);
    }
}

/// Compares the output of `zorb rca ls --json` with the report of the independent reader.
fn check_listing(path: &Path, report: &Value, what: &str) {
    let zorb = std::env::var_os("ZORB_BINARY").expect("set ZORB_BINARY to the path of the `zorb` to be tested");
    let output = Command::new(&zorb).args(["rca", "ls", "--json"]).arg(path).output().unwrap();
    let lines: Result<Vec<Value>, _> = serde_json::Deserializer::from_slice(&output.stdout).into_iter().collect();
    let mut lines = lines.unwrap();
    let last = lines.pop().unwrap();
    assert_eq!(blobs(&Value::Array(lines)), blobs(&report["blobs"]), "{what}");
    assert_eq!(last["blobs"], report["blobs"].as_array().unwrap().len(), "{what}");
    assert_eq!(last["trailing_garbage"], report["trailing_garbage"], "{what}");
    assert_eq!(last["error"]["code"], report["error"]["code"], "{what}");
    assert_eq!(output.status.code(), Some(i32::from(!report["error"].is_null())), "{what}");
}

/// A random archive in memory, and its blobs.
fn random_archive(rng: &mut StdRng) -> (Vec<u8>, Vec<Blob>) {
    let (mut bytes, mut truth, mut earlier): (Vec<u8>, Vec<Blob>, Vec<u8>) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rng.random_range(1..5) {
        let options = WriteOptions {
            level: rng.random_range(1..10),
            buffer_len: *[50, 5000, 8 << 20].choose(rng).unwrap(),
            ..WriteOptions::default()
        };
        if rng.random_range(0..8) == 0 && bytes.len() < 0x7000 {
            let fill = filling(&bytes, &[], 0x8000);
            bytes = append(bytes, &[("fill", &fill)], WriteOptions::default()).unwrap();
            truth.push(blob("fill", &fill));
        }
        let mut writer = Writer::with_options(Cursor::new(bytes), options).unwrap();
        for _ in 0..rng.random_range(0..6) {
            let (name, content) = (random_name(rng), random_content(rng, &earlier));
            // In pieces of any size, as a file or a socket would give it.
            writer.append(&name, Cursor::new(&content).take(u64::MAX)).unwrap();
            truth.push(blob(&name, &content));
            earlier = content;
        }
        bytes = writer.into_storage().into_inner();
    }
    (bytes, truth)
}

fn random_name(rng: &mut StdRng) -> String {
    match rng.random_range(0..5) {
        0 => String::new(),
        1 => "the same".to_owned(),
        2 => format!("xorbs/{:016x}/{:x}", rng.random::<u64>(), rng.random::<u8>()),
        3 => "../".repeat(rng.random_range(0..1000)),
        _ => (0..rng.random_range(0..50)).map(|_| rng.random::<char>()).filter(|c| *c != '\0').collect(),
    }
}

fn random_content(rng: &mut StdRng, earlier: &[u8]) -> Vec<u8> {
    let most = match rng.random_range(0..50) {
        0 => 4 << 20,
        1..=4 => 300_000,
        5..=15 => 40_000,
        16..=30 => 5000,
        _ => 100,
    };
    let len = rng.random_range(0..=most);
    match rng.random_range(0..4) {
        0 => vec![rng.random(); len],
        1 => b"some text that is repeated; ".iter().copied().cycle().take(len).collect(),
        2 if !earlier.is_empty() => {
            let mut content: Vec<u8> = earlier.iter().copied().cycle().take(len).collect();
            let places = len.min(5);
            (0..places).for_each(|_| content[rng.random_range(0..len)] = rng.random());
            content
        }
        _ => {
            let mut content = vec![0; len];
            rng.fill_bytes(&mut content);
            content
        }
    }
}

/// An archive that ends `below` bytes before its second chunk is full. It has 2 GiB of zeros in an
/// unknown control block, then another session, so that the next writer need not hash the zeros
/// again.
fn sparse_archive(path: &Path, below: u64) -> Vec<Blob> {
    let (small, truth) = archive(&[&[("one", b"first")]]);
    let (first, reset_len, last) = (&small[10..], 10, [0x3f; 30]); // empty control blocks of type 31
    let inner_len = 0x8000_8000 - 10 - 12 - below;
    let zeros_len = inner_len - (first.len() + varint::PADDED_LEN + reset_len + last.len()) as u64;
    let begin = [first, &varint::encode_padded(3 | zeros_len << 6).unwrap()].concat();

    let mut hasher = Hasher::default();
    hasher.update(&begin);
    let zeros = vec![0; 1 << 20];
    let mut left = zeros_len;
    while left > 0 {
        let step = usize::try_from(left.min(1 << 20)).unwrap();
        hasher.update(&zeros[..step]);
        left -= step as u64;
    }
    let end = [&[0x81, 0x04], &hasher.digest().0[..], &last].concat();
    let mut hasher = Hasher::default();
    hasher.update(&end);
    let digest = hasher.digest().0;

    let mut file = File::create_new(path).unwrap();
    let mut put = |at: u64, bytes: &[u8]| {
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(bytes).unwrap();
    };
    put(0, &[&[0x80, 0], &digest[..], &begin].concat());
    put(0x8000, &[&u32::try_from(0x8000_0000 - below).unwrap().to_be_bytes()[..], &digest].concat());
    put(0x8000_8000 - below - end.len() as u64, &end);
    truth
}

#[test]
fn append_crosses_0x8000_0000_into_a_chunk_of_64_bit_size() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sparse.rca");
    let mut truth = sparse_archive(&path, 17);
    let content = noise(1, 1000);
    for name in ["crossing", "behind"] {
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut writer = Writer::open(file).unwrap();
        assert_eq!(writer.opened().garbage_len, 0);
        writer.append(name, content.as_slice()).unwrap();
        truth.push(blob(name, &content));
    }
    read(File::open(&path).unwrap()).assert_clean(&truth, "ours");
    let report = &verify_with_python(std::slice::from_ref(&path))[0];
    assert_eq!(blobs(&report["blobs"]), truth);
    assert!(report["error"].is_null(), "{report}");
    check_listing(&path, report, "sparse");
    let chunks = report["chunks"].as_array().unwrap();
    let third = &chunks[2];
    assert_eq!(
        (chunks.len(), third["offset"].as_u64(), third["size_field_bits"].as_u64()),
        (3, Some(0x8000_8000), Some(64))
    );
}
