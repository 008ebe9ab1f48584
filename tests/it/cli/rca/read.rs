//! `ls`, `verify` and `cat`.

use std::io::Read;

use serde_json::{Value, json};

use super::{Directory, archive, ls};
use crate::support::{random_bytes, rng};

/// `a`: two sessions and a third, whose hash is wrong.
fn damaged(directory: &Directory) {
    archive(directory, &[("one", b"first"), ("two", b"second")]);
    let sound_len = directory.read("a").len();
    archive(directory, &[("one", b"a later one"), ("three", b"third")]);
    let mut bytes = directory.read("a");
    // The hash in the header is that of the last session.
    bytes[9] ^= 1;
    directory.write("a", &bytes);
    assert!(bytes.len() > sound_len);
}

#[test]
fn listing_has_index_length_hash_name_and_a_summary() {
    let directory = Directory::new();
    archive(&directory, &[("one", b"first"), ("a\nb\x1b[2J", b"")]);
    let text = directory.zorb(&["rca", "ls", "a"]).ok().text();
    let expected = "     0            5  a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e  one\n     \
                    1            0  e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  a\\nb\\u{1b}[2J\n\
                    2 blobs in 2 sessions, 5 B\n";
    assert_eq!(text, expected);
    assert_eq!(directory.zorb(&["rca", "ls", "a", "--quiet"]).ok().text(), "");
    assert_eq!(directory.zorb(&["rca", "verify", "a"]).ok().text(), "ok a  2 blobs in 2 sessions, 5 B\n");

    let (blobs, last) = ls(&directory, "a");
    let one = json!({
        "name": "one", "length": 5, "sha256": "a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e",
    });
    assert_eq!((blobs.len(), &blobs[0], &blobs[1]["name"]), (2, &one, &json!("a\nb\x1b[2J")));
    assert_eq!(last, json!({ "blobs": 2, "trailing_garbage": false, "dialect": "reference", "error": null }));
}

#[test]
fn listing_before_damage_says_how_much_is_verified() {
    let directory = Directory::new();
    damaged(&directory);
    let complaint = "zorb: a is damaged: the chunk at byte 0 stores hash";
    let text = directory.zorb(&["rca", "ls", "a"]).failed(1, &[complaint]).text();
    assert!(text.ends_with("\n4 blobs before the damage, 27 B; verified: the first 3\n"), "{text}");
    let (blobs, last) = ls(&directory, "a");
    assert_eq!(blobs.len(), 4);
    let error = json!({ "code": "final_hash_mismatch", "offset": 0 });
    assert_eq!(last, json!({ "blobs": 4, "trailing_garbage": null, "dialect": "reference", "error": error }));
    let verified = directory.zorb(&["rca", "verify", "a", "--json"]).failed(1, &[complaint]).record();
    let expected = json!({
        "path": "a", "ok": false, "blobs": 4, "verified": 3, "sessions": 3, "content_len": 27,
        "trailing_garbage": null, "dialect": "reference", "error": error,
    });
    assert_eq!(verified, expected);
}

/// It writes nothing unverified.
#[test]
fn cat_writes_the_last_blob_of_a_name_or_one_at_an_index() {
    let (directory, mut rng) = (Directory::new(), rng());
    let long = random_bytes(&mut rng, 1_000_000);
    archive(&directory, &[("one", b"first"), ("long", &long), ("one", b"a later one"), ("", b"no name")]);
    let cat = |args: &[&str]| directory.zorb(&[&["rca", "cat", "a"], args].concat());
    assert_eq!(cat(&["one"]).ok().stdout, b"a later one");
    assert_eq!(cat(&["--index", "0"]).ok().stdout, b"first");
    assert!(cat(&["long"]).ok().stdout == long);
    assert_eq!(cat(&[""]).ok().stdout, b"no name");
    assert!(cat(&["two"]).failed(1, &["no blob two in a"]).stdout.is_empty());
    cat(&["--index", "4"]).failed(1, &["a has 4 blobs, numbered from 0; 4 exceeds them"]);

    std::fs::remove_file(directory.path("a")).unwrap();
    damaged(&directory);
    // What is vouched for can be had; that there is damage is said as well.
    assert_eq!(cat(&["two"]).failed(1, &["a is damaged"]).stdout, b"second");
    assert_eq!(cat(&["--index", "2"]).failed(1, &["a is damaged"]).stdout, b"a later one");
    for which in [&["three"][..], &["--index", "3"]] {
        let ran = cat(which).failed(1, &["a is damaged before that blob; its hash cannot be verified"]);
        assert!(ran.stdout.is_empty());
    }
    cat(&["four"]).failed(1, &["no blob four in a before its damage"]);
}

#[test]
fn whatever_is_no_archive_or_not_there_is_named_in_one_sentence() {
    let dir = Directory::new();
    dir.write("text", &b"this is a text and no archive, whatever it may look like\n".repeat(10_000));
    std::fs::create_dir(dir.path("dir")).unwrap();
    for verb in [&["ls"][..], &["verify"], &["extract"], &["cat", "--index=0"]] {
        let run = |file: &str| dir.zorb(&[&["rca"], verb, &[file]].concat());
        run("missing").failed(1, &["cannot read missing: No such file"]);
        run("dir").failed(1, &["cannot read dir: is a directory"]);
        let ran = run("text");
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(1), 1), "{ran:?}");
    }
    // An empty file is an empty archive.
    dir.write("empty", b"");
    assert_eq!(dir.zorb(&["rca", "ls", "empty"]).ok().text(), "0 blobs in 0 sessions, 0 B\n");
    let (blobs, last) = ls(&dir, "empty");
    assert_eq!((blobs.len(), &last["trailing_garbage"]), (0, &Value::Bool(false)));
}

#[test]
fn reader_that_stops_early_ends_the_listing_quietly() {
    let directory = Directory::new();
    let names: Vec<String> = (0..3000).map(|index| format!("files/{index}-{}", "x".repeat(100))).collect();
    std::fs::create_dir(directory.path("files")).unwrap();
    for name in &names {
        directory.write(name, b"");
    }
    directory.zorb(&["rca", "create", "a", "-r", "files", "--quiet"]).ok();
    for args in [&["ls", "a"][..], &["ls", "a", "--json"], &["cat", "a", "--index=0"]] {
        let mut child = directory.start(&[&["rca"], args].concat());
        let mut some = [0; 10];
        let len = child.stdout.take().unwrap().read(&mut some).unwrap();
        assert_eq!(len, if args[0] == "cat" { 0 } else { 10 });
        let ran = super::Ran::of(child);
        assert_eq!(ran.stderr, "", "{args:?}");
        assert_eq!(ran.code, Some(i32::from(args[0] == "ls")), "{args:?}");
    }
}

#[test]
fn archive_lists_from_a_pipe_and_trailing_garbage_is_fine() {
    let directory = Directory::new();
    archive(&directory, &[("one", b"first")]);
    let bytes = [directory.read("a"), b"half an append".to_vec()].concat();
    let text = directory.zorb_with_stdin(&["rca", "verify", "-"], &bytes).ok().text();
    assert_eq!(text, "ok -  1 blob in 1 session, 5 B; followed by an interrupted append\n");
}
