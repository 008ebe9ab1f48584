//! `zorb xorb`: pack, inspect, verify, unpack.

use std::os::unix::fs::MetadataExt;

use serde_json::{Value, json};
use zorb::format::compression::Policy;
use zorb::format::xorb::write_v1;

use super::{Directory, Ran, of_type, sample_files};
use crate::support::{Xorb, rng};

/// The contents of a packed file, put together with `zorb xorb unpack`.
pub(super) fn unpack_file(directory: &Directory, file: &Value) -> Vec<u8> {
    let terms = file["terms"].as_array().expect("a file has terms");
    let unpack = |term: &Value| {
        let path = format!("out/{}.xorb", term["xorb"].as_str().unwrap());
        let range = format!("{}-{}", term["start"], term["end"]);
        let ran = directory.zorb(&["xorb", "unpack", &path, "--range", &range, "--quiet"]).ok();
        assert_eq!(term["raw_len"], ran.stdout.len());
        ran.stdout
    };
    terms.iter().flat_map(unpack).collect()
}

#[test]
fn several_files_become_one_xorb_and_come_out_as_they_went_in() {
    let (directory, mut rng) = (Directory::new(), rng());
    let files = sample_files(&mut rng);
    for (name, bytes) in &files {
        directory.write(name, bytes);
    }
    let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    let mut lens = Vec::new();
    let mut hashes = Vec::new();
    for compression in ["none", "lz4", "bg4", "predict", "brute-force"] {
        let records = directory.pack(&[&names[..], &["--compression", compression]].concat());
        let xorbs = of_type(&records, "xorb");
        assert_eq!(xorbs.len(), 1, "{records:?}");
        let path = directory.path(xorbs[0]["path"].as_str().unwrap());
        assert_eq!(xorbs[0]["serialized_len"], path.metadata().unwrap().len());
        directory.zorb(&["xorb", "verify", path.to_str().unwrap()]).ok();
        lens.push(xorbs[0]["serialized_len"].as_u64().unwrap());
        hashes.push(xorbs[0]["hash"].clone());

        let packed = of_type(&records, "file");
        for ((name, bytes), record) in files.iter().zip(&packed) {
            assert_eq!((&record["path"], &record["size"]), (&json!(name), &json!(bytes.len())));
            assert!(unpack_file(&directory, record) == *bytes, "{compression}: {name} is different");
        }
        assert_eq!(packed.len(), files.len());
        // The second of two files that are the same, and the second of the zeros.
        assert_eq!((&packed[7]["terms"], &packed[7]["file_hash"]), (&packed[8]["terms"], &packed[8]["file_hash"]));
        let duplicate_len = &of_type(&records, "total")[0]["duplicate_len"];
        assert_eq!(*duplicate_len, 300_000 + 131_072);
        std::fs::remove_dir_all(directory.path("out")).unwrap();
    }
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "the hash depends on the compression: {hashes:?}");
    let [none, lz4, bg4, predict, brute_force] = lens.try_into().unwrap();
    assert!(brute_force <= lz4.min(bg4).min(predict) && lz4.max(bg4) < none, "{none} {lz4} {bg4} {predict}");
}

#[test]
fn a_xorb_that_is_there_is_checked_and_left_alone() {
    let (directory, mut rng) = (Directory::new(), rng());
    directory.write("file", &super::prose(&mut rng, 100_000));
    let first = directory.pack(&["file"]);
    let path = first[0]["path"].as_str().unwrap().to_owned();
    assert_eq!(first[0]["was_there"], false);
    let inode = || directory.path(&path).metadata().unwrap().ino();
    let before = inode();
    let second = directory.pack(&["file"]);
    assert_eq!((&second[0]["was_there"], inode()), (&json!(true), before));
    let text = directory.zorb(&["xorb", "pack", "file", "-o", "out"]).ok().text();
    assert!(text.contains(", already present"), "{text}");

    // Not what its name says: neither kept as if it were nor overwritten.
    let other = Xorb::mixed(&mut rng, 3);
    directory.write(&path, &other.bytes);
    let pack = || directory.zorb(&["xorb", "pack", "file", "-o", "out"]);
    pack().failed(1, &["already exists", &other.hash()]);
    directory.write(&path, b"nonsense");
    pack().failed(1, &["already exists and is damaged"]);
    assert_eq!(directory.read(&path), b"nonsense");
}

#[test]
fn packing_reads_stdin_and_names_what_it_cannot_read() {
    let directory = Directory::new();
    let ran = directory.zorb_with_stdin(&["xorb", "pack", "-", "-o", "out", "--json"], b"hello").ok();
    let records = ran.records();
    let file = of_type(&records, "file")[0];
    assert_eq!((&file["path"], &file["size"]), (&json!("-"), &json!(5)));
    assert_eq!(unpack_file(&directory, file), b"hello");

    directory.write("there", b"x");
    directory
        .zorb(&["xorb", "pack", "there", "missing", "-o", "none"])
        .failed(1, &["cannot read missing: No such file"]);
    assert_eq!(directory.path("none").read_dir().unwrap().count(), 0, "the wrong name was found before the work began");
    directory.zorb(&["xorb", "pack", "out"]).failed(1, &["cannot read out"]);
    directory.zorb(&["xorb", "pack", "there", "-o", "there"]).failed(1, &["there"]);
}

#[test]
fn nothing_but_empty_files_gives_no_xorb() {
    let directory = Directory::new();
    directory.write("empty", b"");
    let records = directory.pack(&["empty", "empty"]);
    assert_eq!(records.len(), 3, "{records:?}");
    assert_eq!((&records[0]["file_hash"], &records[0]["terms"]), (&json!("0".repeat(64)), &json!([])));
    assert_eq!(directory.path("out").read_dir().unwrap().count(), 0);
}

#[test]
fn inspect_shows_every_chunk_and_a_footer() {
    let (directory, mut rng) = (Directory::new(), rng());
    let xorb = Xorb::mixed(&mut rng, 12);
    let mut with_footer = xorb.bytes.to_vec();
    write_v1(&xorb.verified, &mut with_footer);
    for (bytes, footer_len) in [(xorb.bytes.to_vec(), 0), (with_footer, 96 + 12 * 40)] {
        directory.write("x", &bytes);
        let report = directory.zorb(&["xorb", "inspect", "x", "--json"]).ok().record();
        assert_eq!((&report["hash"], &report["len"]), (&json!(xorb.hash()), &json!(bytes.len())));
        assert_eq!((&report["serialized_len"], &report["raw_len"]), (&json!(xorb.bytes.len()), &json!(xorb.raw.len())));
        assert_eq!(report["damage"], Value::Null);
        let expected = match footer_len {
            0 => Value::Null,
            len => json!({ "version": 1, "offset": xorb.bytes.len(), "len": len }),
        };
        assert_eq!(report["footer"], expected);
        let chunks = report["chunks"].as_array().unwrap();
        assert_eq!(chunks.len(), 12);
        for (place, chunk) in xorb.verified.layout().chunks().zip(chunks) {
            let index = usize::try_from(place.index).unwrap();
            let expected = json!({
                "index": place.index,
                "hash": xorb.verified.chunk_hashes()[index].to_string(),
                "scheme": xorb.verified.schemes()[index].to_string(),
                "serialized_offset": place.serialized.start(), "serialized_len": place.serialized.byte_len(),
                "raw_offset": place.raw.start(), "raw_len": place.raw.byte_len(),
            });
            assert_eq!(*chunk, expected);
        }
        let text = directory.zorb_with_stdin(&["xorb", "inspect", "-"], &bytes).ok().text();
        let footer =
            if footer_len == 0 { "footer  none".to_owned() } else { format!("footer  version 1, {footer_len} B") };
        assert!(text.contains(&footer) && text.contains(&xorb.hash()), "{text}");
        assert_eq!(text.lines().count(), 6 + 1 + 1 + 12, "{text}");
    }
}

#[test]
fn damage_is_reported_with_its_offset_after_what_is_sound() {
    let (directory, mut rng) = (Directory::new(), rng());
    let xorb = Xorb::incompressible(&mut rng, 5 * 131_072);
    let record_len = 8 + 131_072;
    // (what was done, chunks before it, offset that is told, code)
    let cut = |len: usize| xorb.bytes[..len].to_vec();
    let set = |at: usize, value: u8| {
        let mut bytes = xorb.bytes.to_vec();
        bytes[at] = value;
        bytes
    };
    let long = [&xorb.bytes[..], b"XETBLOB\x07"].concat();
    for (bytes, chunks, offset, code) in [
        (Vec::new(), 0, 0, "incomplete_body"),
        (cut(1), 0, 1, "incomplete_body"),
        (cut(2 * record_len + 8), 2, 2 * record_len + 8, "incomplete_body"),
        (set(2 * record_len, 9), 2, 2 * record_len, "unsupported_version"),
        (set(record_len + 4, 99), 1, record_len + 4, "unsupported_compression"),
        (set(3 * record_len + 7, 0xff), 3, 3 * record_len + 5, "malformed_xorb"),
        (long, 5, 5 * record_len + 7, "unsupported_version"),
    ] {
        directory.write("x", &bytes);
        let ran = directory
            .zorb(&["xorb", "inspect", "x", "--json"])
            .failed(1, &["x is damaged: ", &format!("byte {offset}")]);
        let report = ran.record();
        assert_eq!(report["chunks"].as_array().unwrap().len(), chunks, "{code} at {offset}");
        assert_eq!((&report["damage"]["offset"], &report["damage"]["code"]), (&json!(offset), &json!(code)));
        assert_eq!(report["hash"], Value::Null);
        let text = directory.zorb(&["xorb", "inspect", "x"]).failed(1, &["x is damaged"]).text();
        assert!(text.contains(&format!("chunks  {chunks} before the damage")), "{text}");

        let ran = directory.zorb(&["xorb", "verify", "x", "--json"]).failed(1, &[&format!("byte {offset}")]);
        let record = ran.record();
        assert_eq!((&record["ok"], &record["offset"], &record["code"]), (&json!(false), &json!(offset), &json!(code)));
        directory.zorb(&["xorb", "unpack", "x", "-o", "raw"]).failed(1, &["x is not a valid xorb"]);
        let ran = directory.zorb(&["xorb", "unpack", "x", "--range", "0"]).failed(1, &["x is not a valid xorb"]);
        assert_eq!(ran.stdout, b"");
        assert_eq!(directory.names(), ["x"]);
    }
}

#[test]
fn verify_takes_its_expectation_from_the_flag_or_the_name() {
    let (directory, mut rng) = (Directory::new(), rng());
    let (xorb, other) = (Xorb::mixed(&mut rng, 3), Xorb::mixed(&mut rng, 4));
    let (named, misnamed) = (format!("{}.xorb", xorb.hash()), format!("{}.xorb", other.hash()));
    for name in [&named, &misnamed, "any"] {
        directory.write(name, &xorb.bytes);
    }
    let verify = |args: &[&str]| directory.zorb(&[&["xorb", "verify"], args].concat());
    for args in
        [&[named.as_str()][..], &["any"], &["any", "--hash", &xorb.hash()], &[&misnamed, "--hash", &xorb.hash()]]
    {
        let text = verify(args).ok().text();
        assert!(text.starts_with(&format!("ok {}  3 chunks, ", xorb.hash())), "{text}");
    }
    verify(&[&misnamed]).failed(1, &[&format!("it is {}, not {}", xorb.hash(), other.hash())]);
    verify(&["any", "--hash", &other.hash()]).failed(1, &["is a valid xorb, but it is"]);
    let record = verify(&["any", "--hash", &other.hash(), "--json"]).failed(1, &[]).record();
    assert_eq!((&record["code"], &record["expected"]), (&json!("hash_mismatch"), &json!(other.hash())));
    verify(&["missing"]).failed(1, &["cannot read missing"]);
    assert_eq!(verify(&["any", "--quiet"]).ok().stdout, b"");
    directory.zorb_with_stdin(&["xorb", "verify", "-", "--hash", &xorb.hash()], &xorb.bytes).ok();
    directory.zorb_with_stdin(&["xorb", "verify", "-", "--hash", &other.hash()], &xorb.bytes).failed(1, &[]);
}

#[test]
fn unpack_takes_the_ranges_of_the_server() {
    let (directory, mut rng) = (Directory::new(), rng());
    let xorb = Xorb::mixed(&mut rng, 9);
    let mut with_footer = xorb.bytes.to_vec();
    write_v1(&xorb.verified, &mut with_footer);
    directory.write("x", &with_footer);
    for (range, (start, end)) in
        [("0-9", (0, 9)), ("3", (3, 4)), ("2-5", (2, 5)), ("7-", (7, 9)), ("-2", (7, 9)), ("0-1", (0, 1))]
    {
        let expected = xorb.raw(start, end);
        let ran = directory.zorb(&["xorb", "unpack", "x", "--range", range]);
        assert_eq!((ran.code, ran.stdout == expected), (Some(0), true), "{range}: {}", ran.stderr);
        let record = directory.zorb(&["xorb", "unpack", "x", "--range", range, "-o", "raw", "--json"]).ok().record();
        assert_eq!(directory.read("raw"), expected);
        let expected = json!({
            "hash": xorb.hash(), "path": "raw", "start": start, "end": end, "raw_len": expected.len(),
        });
        assert_eq!(record, expected);
    }
    assert!(directory.zorb_with_stdin(&["xorb", "unpack", "-", "-q"], &xorb.bytes).ok().stdout == xorb.raw);
    // What was there stays when nothing better comes.
    for (range, code) in [("9", 1), ("0-10", 1), ("-10", 1), ("3-3", 2), ("-0", 2), ("a", 2)] {
        directory.zorb(&["xorb", "unpack", "x", "--range", range, "-o", "raw"]).failed(code, &["range"]);
    }
    assert_eq!(directory.read("raw"), xorb.raw(0, 1));
    // A link stays one, and leads to the new data.
    std::os::unix::fs::symlink("raw", directory.path("link")).unwrap();
    directory.zorb(&["xorb", "unpack", "x", "--range", "1", "-o", "link", "-q"]).ok();
    assert_eq!((directory.path("link").is_symlink(), directory.read("raw")), (true, xorb.raw(1, 2).to_vec()));
    assert_eq!(directory.names(), ["link", "raw", "x"]);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure_to_talk_about() {
    let (directory, mut rng) = (Directory::new(), rng());
    let chunks: Vec<_> = (0..5_000).map(|_| super::random_bytes(&mut rng, 10)).collect();
    directory.write("x", &Xorb::of(Policy::None, &chunks).bytes);
    let mut child = directory.start(&["xorb", "inspect", "x"]);
    // A closed pipe instead of a reader.
    drop(child.stdout.take());
    child.stdin = None;
    let ran = Ran::of(child);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""));
}
