//! `create` and `append`.

use std::io::Write;

use serde_json::json;

use super::{Directory, Ran, archive, ls, names};
use crate::support::{random_bytes, rng};

#[test]
fn blob_is_named_by_typed_path_by_name_or_below_a_directory() {
    let directory = Directory::new();
    std::fs::create_dir_all(directory.path("dir/sub")).unwrap();
    for name in ["dir/b", "dir/a", "dir/sub/c", "one"] {
        directory.write(name, name.as_bytes());
    }
    std::os::unix::fs::symlink("../one", directory.path("dir/link")).unwrap();
    let text = directory.zorb(&["rca", "create", "x.rca", "one", "./dir//b"]).ok().text();
    assert!(text.starts_with("3 B → ") && text.ends_with(" B\n") && text.contains("2 blobs, 8 B → "), "{text}");
    directory.zorb(&["rca", "append", "x.rca", "one", "--name", "other name"]).ok();
    directory.zorb_with_stdin(&["rca", "append", "x.rca", "-", "--name", "from stdin"], b"piped").ok();
    let ran = directory.zorb(&["rca", "append", "x.rca", "-r", "dir/", "one"]).ok_with_remarks();
    assert_eq!(ran.stderr, "zorb: skipped dir/link: a link or not a regular file\n");
    let expected = ["one", "dir/b", "other name", "from stdin", "dir/a", "dir/b", "dir/sub/c", "one"];
    assert_eq!(names(&directory, "x.rca"), expected);
    // The archive in its own directory; and a name that cannot be extracted.
    std::fs::rename(directory.path("x.rca"), directory.path("dir/x.rca")).unwrap();
    let ran = directory.zorb(&["rca", "append", "dir/x.rca", "-r", "dir"]).ok_with_remarks();
    assert!(ran.stderr.contains("skipped dir/x.rca: it is the archive itself"), "{}", ran.stderr);
    let absolute = directory.path("one");
    let ran =
        directory.zorb(&["rca", "append", "dir/x.rca", absolute.to_str().unwrap(), "dir/../one"]).ok_with_remarks();
    assert!(
        ran.stderr.contains("`extract` will refuse the name") && ran.stderr.contains("; nor 1 others"),
        "{}",
        ran.stderr
    );

    let ran = directory.zorb(&["rca", "append", "dir/x.rca", "one", "--json"]).ok();
    let [row, last] = ran.records().try_into().unwrap();
    assert_eq!((&row["name"], &row["length"], &last["blobs"]), (&json!("one"), &json!(3), &json!(1)));
    assert_eq!(last["archive_len"], directory.read("dir/x.rca").len());
}

#[test]
fn what_cannot_be_read_is_found_before_anything_is_made() {
    let dir = Directory::new();
    dir.write("one", b"one");
    std::fs::create_dir(dir.path("dir")).unwrap();
    let run = |args: &[&str]| dir.zorb(&[&["rca"], args].concat());
    run(&["create", "a", "one", "missing"]).failed(1, &["cannot read missing: No such file"]);
    run(&["create", "a", "dir"]).failed(1, &["dir is a directory; -r appends the files in it"]);
    run(&["create", "a", "-"]).failed(2, &["stdin has no name; pass --name NAME"]);
    run(&["create", "a", "one", "one", "--name", "x"]).failed(2, &["--name is for one FILE"]);
    run(&["append", "a", "one"]).failed(1, &["cannot append to a; `zorb rca create` makes an archive: No such file"]);
    run(&["append", "one"]).failed(2, &[]);
    run(&["create", "nowhere/a", "one"]).failed(1, &["cannot create nowhere/a: No such file"]);
    run(&["create", "/dev/null", "one"]).failed(1, &["cannot append to /dev/null: not a regular file"]);
    assert_eq!(dir.names(), ["dir", "one"]);

    run(&["create", "a", "one"]).ok();
    run(&["create", "a", "one"]).failed(1, &["a already exists with", "`zorb rca append` adds to an archive"]);
    run(&["append", "a", "a"]).failed(1, &["a is the archive itself"]);
    run(&["append", "dir", "one"]).failed(1, &["cannot append to dir: Is a directory"]);
    // A name of a mebibyte and more fits no command line; one that is not UTF-8 does.
    use std::os::unix::ffi::OsStrExt;
    let odd = dir.path("").join(std::ffi::OsStr::from_bytes(b"odd\xff"));
    std::fs::File::create(&odd).unwrap();
    run(&["append", "a", "-r", "."]).failed(1, &["is not valid UTF-8; pass --name NAME"]);
    assert_eq!(names(&dir, "a"), ["one"]);
    // Empty archives are files of no length.
    run(&["create", "empty"]).ok();
    run(&["create", "empty", "one"]).ok();
    assert_eq!(names(&dir, "empty"), ["one"]);
}

#[test]
fn somebody_s_file_is_not_made_an_archive_without_force() {
    let directory = Directory::new();
    directory.write("one", b"one");
    let film = [&b"\0\0\0\x18ftypmp42"[..], &[7; 5000]].concat();
    let append = |more: &[&str]| directory.zorb(&[&["rca", "append", "file", "one"], more].concat());
    for (content, complaint) in [
        (
            &b"hello\n"[..],
            "does not look like an archive, so nothing was changed; --force overwrites it with an archive",
        ),
        (&film, "file has 5012 bytes and does not look like an archive"),
        (b"a text that is longer than a header, and shorter than it says", "file is damaged, and nothing was appended"),
    ] {
        directory.write("file", content);
        append(&[]).failed(1, &[complaint]);
        assert_eq!(directory.read("file"), content);
    }
    // Damage is not for --force.
    append(&["--force"]).failed(1, &["file is damaged"]);
    directory.write("file", &film);
    append(&["--force"]).ok();
    assert_eq!(names(&directory, "file"), ["one"]);
}

#[test]
fn an_archive_has_one_writer_at_a_time() {
    let directory = Directory::new();
    archive(&directory, &[("one", b"first")]);
    let start = || directory.start(&["rca", "append", "a", "-", "--name", "slow"]);
    let mut child = start();
    let append = || directory.zorb_with_stdin(&["rca", "append", "a", "-", "--name", "fast"], b"x");
    // It has the lock some time after it was started.
    loop {
        let ran = append();
        if ran.code == Some(1) {
            ran.failed(1, &["cannot append to a: another writer has the archive open"]);
            break;
        }
        // Or the other one had it just then, and the slow one was told so.
        if child.try_wait().unwrap().is_some() {
            child = start();
        }
    }
    // Who reads is not kept out.
    assert!(names(&directory, "a").len() <= 1_000_000);
    child.stdin.take().unwrap().write_all(b"content").unwrap();
    Ran::of(child).ok();
    assert_eq!(names(&directory, "a").last().unwrap(), "slow");
    append().ok();
}

#[test]
fn killed_append_keeps_what_was_there_and_the_next_goes_on() {
    let (directory, mut rng) = (Directory::new(), rng());
    archive(&directory, &[("one", b"first")]);
    let before = directory.read("a");
    // More than is held in memory, so that it is in the file before the end.
    let noise = random_bytes(&mut rng, 30 << 20);
    let mut child = directory.start(&["rca", "append", "a", "-", "--name", "killed"]);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&noise).unwrap();
    while directory.path("a").metadata().unwrap().len() < 8 << 20 {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    drop(stdin);

    let (blobs, last) = ls(&directory, "a");
    assert_eq!((blobs.len(), &last["trailing_garbage"], &last["error"]), (1, &json!(true), &json!(null)));
    let ran = directory.zorb_with_stdin(&["rca", "append", "a", "-", "--name", "two"], b"second").ok_with_remarks();
    assert!(ran.stderr.contains("of an interrupted append"), "{}", ran.stderr);
    assert_eq!(names(&directory, "a"), ["one", "two"]);
    assert_eq!(ls(&directory, "a").1["trailing_garbage"], false);
    assert!(directory.read("a").len() < before.len() + 200);

    // The same to the first append of all.
    let mut child = directory.start(&["rca", "create", "new", "-", "--name", "killed"]);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&noise).unwrap();
    while directory.path("new").metadata().map_or(0, |metadata| metadata.len()) < 8 << 20 {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    drop(stdin);
    assert_eq!(names(&directory, "new"), [""; 0]);
    directory.zorb_with_stdin(&["rca", "append", "new", "-", "--name", "two"], b"second").ok_with_remarks();
    assert_eq!(names(&directory, "new"), ["two"]);
}

#[test]
fn a_file_that_fails_in_the_middle_keeps_those_before_it() {
    let directory = Directory::new();
    directory.write("one", b"one");
    // It can be looked at, opened, and not read.
    let failing = "/proc/self/mem";
    let ran = directory.zorb(&["rca", "create", "a", "one", failing, "one"]).failed(1, &[]);
    let complaint = format!("zorb: only 1 blob was appended: cannot read {failing}: Input/output error");
    assert!(ran.stderr.contains(&complaint), "{}", ran.stderr);
    assert_eq!(names(&directory, "a"), ["one"]);
    directory.zorb(&["rca", "append", "a", "one"]).ok_with_remarks();
    assert_eq!(names(&directory, "a"), ["one", "one"]);
}
