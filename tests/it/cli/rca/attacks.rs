//! Archives that were made to write where they have no business.

use std::os::unix::fs::symlink;

use super::{Directory, Ran, archive};

/// Extracts `a` to `out`, which lies beside something that must stay as it is.
fn extract(directory: &Directory, more: &[&str]) -> Ran {
    directory.zorb(&[&["rca", "extract", "a", "-C", "out"], more].concat())
}

fn names_in(directory: &Directory, name: &str) -> Vec<String> {
    let mut names: Vec<String> = directory
        .path(name)
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn escaping_names_are_refused_and_the_others_extracted() {
    let directory = Directory::new();
    let outside = directory.path("absolute");
    let outside = outside.to_str().unwrap();
    let refused = [outside, "../up", "x/../../up", "..", ".", "", "x//y", "x/", "./x", "/", "a/./b"];
    let mut blobs: Vec<(&str, &[u8])> = refused.iter().map(|name| (*name, &b"evil"[..])).collect();
    blobs.insert(3, ("good", b"good"));
    blobs.push(("x/good", b"good"));
    archive(&directory, &blobs);
    for force in [&[][..], &["--force"]] {
        let ran = extract(&directory, force).failed(1, &["11 blobs could not be extracted", "it is absolute", "`..`"]);
        assert_eq!(ran.text(), "2 blobs, 8 B to out\n");
        assert_eq!(ran.stderr.lines().count(), 12);
        assert_eq!(
            (names_in(&directory, "out"), names_in(&directory, "out/x")),
            (vec!["good".into(), "x".into()], vec!["good".into()])
        );
        assert_eq!(directory.names(), ["a", "out"]);
        std::fs::remove_dir_all(directory.path("out")).unwrap();
    }
    // Asked for by name they are refused as well, and `cat` still has them.
    extract(&directory, &["--", "../up"]).failed(1, &["cannot extract `../up`: its name is not usable as a path"]);
    assert_eq!(directory.zorb(&["rca", "cat", "a", "../up"]).ok().stdout, b"evil");
}

#[test]
fn links_are_neither_entered_nor_written_through() {
    let directory = Directory::new();
    archive(
        &directory,
        &[("dir/x", b"evil"), ("dir/deep/x", b"evil"), ("file", b"new"), ("dangling", b"new"), ("b/c", b"good")],
    );
    std::fs::create_dir(directory.path("outside")).unwrap();
    directory.write("outside/target", b"mine");
    std::fs::create_dir(directory.path("out")).unwrap();
    symlink("../outside", directory.path("out/dir")).unwrap();
    symlink("../outside/target", directory.path("out/file")).unwrap();
    symlink("../outside/new", directory.path("out/dangling")).unwrap();
    let complaint = "cannot extract `dir/x`: dir exists and is a link or a file";
    extract(&directory, &[]).failed(1, &[complaint, "cannot extract `file`: file already exists", "4 blobs could not"]);
    assert_eq!(directory.read("out/b/c"), b"good");
    // With --force the link itself makes room, what it led to stays; a directory is still none.
    extract(&directory, &["--force"]).failed(1, &[complaint, "2 blobs could not"]);
    assert_eq!(
        (names_in(&directory, "outside"), directory.read("outside/target")),
        (vec!["target".into()], b"mine".to_vec())
    );
    for name in ["out/file", "out/dangling"] {
        assert!(!directory.path(name).is_symlink() && directory.read(name) == b"new", "{name}");
    }
}

/// The user chose it.
#[test]
fn target_directory_itself_may_be_a_link() {
    let dir = Directory::new();
    archive(&dir, &[("x", b"x")]);
    std::fs::create_dir(dir.path("real")).unwrap();
    symlink("real", dir.path("out")).unwrap();
    extract(&dir, &[]).ok();
    assert_eq!(dir.read("real/x"), b"x");
    dir.write("file", b"");
    dir.zorb(&["rca", "extract", "a", "-C", "file"]).failed(1, &["cannot write to the directory file"]);
}

#[test]
fn names_too_long_for_the_file_system_stop_only_themselves() {
    let directory = Directory::new();
    let (part, path) = ("x".repeat(300), "y/".repeat(3000) + "z");
    archive(&directory, &[(&part, b""), (&path, b""), ("good", b"good")]);
    extract(&directory, &[&part, "good"]).failed(1, &["File name too long", "1 blob could not"]);
    assert_eq!(names_in(&directory, "out"), ["good"]);
}
