//! `extract`, where nobody means harm.

use serde_json::json;

use super::{Directory, archive};
use crate::support::{random_bytes, rng};

#[test]
fn files_come_out_as_they_went_in_and_of_equal_names_the_last() {
    let (directory, mut rng) = (Directory::new(), rng());
    let long = random_bytes(&mut rng, 3_000_000);
    let blobs: [(&str, &[u8]); 5] =
        [("a.txt", b"old"), ("sub/deep/long", &long), ("größe", b""), ("a.txt", b"new"), ("sub/b", b"b")];
    archive(&directory, &blobs);
    let text = directory.zorb(&["rca", "extract", "a", "-C", "out/there"]).ok().text();
    assert_eq!(text, "4 blobs, 2.9 MiB to out/there\n");
    assert_eq!(directory.read("out/there/a.txt"), b"new");
    assert!(directory.read("out/there/sub/deep/long") == long);
    assert_eq!(directory.read("out/there/größe"), b"");

    // Into this directory, some of them, with a name that is not there.
    let ran = directory.zorb(&["rca", "extract", "a", "sub/b", "sub/c", "a.txt", "sub/b", "--json"]);
    let ran =
        ran.failed(1, &["cannot extract `sub/c`: blob not found in the archive", "1 blob could not be extracted"]);
    let row = |name: &str, length: u64| json!({ "name": name, "length": length, "error": null });
    let missing = json!({ "name": "sub/c", "length": null, "error": "blob not found in the archive" });
    let last = json!({ "extracted": 2, "failed": 1, "content_len": 4 });
    assert_eq!(ran.records(), [missing, row("a.txt", 3), row("sub/b", 1), last]);
    assert_eq!(
        (directory.read("sub/b"), directory.names()),
        (b"b".to_vec(), ["a", "a.txt", "out", "sub"].map(str::to_owned).to_vec())
    );
}

#[test]
fn what_is_there_already_is_replaced_only_with_force() {
    let dir = Directory::new();
    archive(&dir, &[("one", b"from the archive"), ("two", b"from the archive"), ("dir", b"x"), ("two/below", b"y")]);
    std::fs::create_dir_all(dir.path("out/dir")).unwrap();
    dir.write("out/one", b"mine");
    let extract = |more: &[&str]| dir.zorb(&[&["rca", "extract", "a", "-C", "out"], more].concat());
    let complaints = [
        "cannot extract `one`: one already exists; --force replaces files",
        "cannot extract `dir`: dir already exists",
        // A blob of the same archive is in its way.
        "cannot extract `two/below`: two exists and is a link or a file",
        "3 blobs could not be extracted",
    ];
    extract(&[]).failed(1, &complaints);
    assert_eq!((dir.read("out/one"), dir.read("out/two")), (b"mine".to_vec(), b"from the archive".to_vec()));
    extract(&["--force"]).failed(1, &["cannot extract `dir`: Is a directory", complaints[2], "2 blobs could not"]);
    assert_eq!(dir.read("out/one"), b"from the archive");
    let left: Vec<_> = dir.path("out").read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "no temporary file is left: {left:?}");
}

#[test]
fn of_a_damaged_archive_what_is_vouched_for_is_extracted() {
    let directory = Directory::new();
    archive(&directory, &[("one", b"first"), ("two", b"second")]);
    let mut bytes = directory.read("a");
    bytes[9] ^= 1;
    directory.write("a", &bytes);
    let ran = directory.zorb(&["rca", "extract", "a", "-C", "out"]);
    ran.failed(1, &["a is damaged", "left out, not verifiable: 1 blob before the damage"]);
    assert_eq!(directory.read("out/one"), b"first");
    assert!(!directory.path("out/two").exists());
}

#[test]
fn a_signal_leaves_no_temporary_file() {
    let directory = Directory::new();
    // Much work from few bytes, so that the signal comes in the middle of it.
    let zeros = vec![0; 64 << 20];
    archive(&directory, &[("zeros", &zeros), ("again", &zeros), ("more", &zeros)]);
    let child = directory.start(&["rca", "extract", "a", "-C", "out"]);
    let temporary = || {
        let Ok(entries) = directory.path("out").read_dir() else { return false };
        entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(".zorb-"))
    };
    while !temporary() {
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let ran = super::Ran::of(child).failed(1, &["stopped by SIGTERM"]);
    assert!(ran.stdout.is_empty() && !temporary());
}
