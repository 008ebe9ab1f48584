use std::cell::{Cell, RefCell};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{
    DIRECT_ALIGNMENT, Enclosure, TempDirectory, TempFile, create_directories_in, create_directory, open_or_create,
    remove,
};

thread_local! {
    /// The steps of this thread that `trace` has recorded, in order.
    static STEPS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };

    /// Whether the next sync of a directory in this thread fails.
    static FAILS: Cell<bool> = const { Cell::new(false) };
}

pub(super) fn trace(step: &'static str) {
    STEPS.with_borrow_mut(|steps| steps.push(step));
}

/// Fails once after `FAILS` was set.
pub(super) fn fail_as_told() -> io::Result<()> {
    if FAILS.replace(false) { Err(io::Error::other("a test")) } else { Ok(()) }
}

/// The steps during `work`, in order.
fn steps(work: impl FnOnce()) -> Vec<&'static str> {
    STEPS.take();
    work();
    STEPS.take()
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn file_is_synced_before_its_rename_and_directory_after() {
    let dir = directory();
    let path = dir.path().join("file");
    let steps = steps(|| {
        let mut file = TempFile::create(dir.path()).unwrap();
        file.write(b"bytes").unwrap();
        file.publish(&path).unwrap();
    });
    assert_eq!(steps, ["sync the file", "rename", "sync the directory"]);
    assert_eq!(std::fs::read(path).unwrap(), b"bytes");
}

/// For example a record: if it stayed, a later start would apply what was reported as failed.
#[test]
fn new_file_does_not_stay_if_its_directory_cannot_be_synced() {
    let dir = directory();
    let path = dir.path().join("file");
    for fails in [true, false] {
        let mut file = TempFile::create(dir.path()).unwrap();
        file.write(b"bytes").unwrap();
        FAILS.set(fails);
        assert_eq!(file.publish_new(&path).is_err(), fails);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), usize::from(!fails));
    }
}

/// Includes unaligned addresses and odd lengths, which a direct write cannot have.
#[test]
fn direct_and_buffered_writes_mix_at_any_offset() {
    let bytes: Vec<u8> = (0..4 * DIRECT_ALIGNMENT).map(|at| u8::try_from(at % 251).unwrap()).collect();
    let aligned = bytes.as_ptr().align_offset(DIRECT_ALIGNMENT);
    // Aligned bytes, bytes at an odd address, and an odd number of bytes.
    for (begin, len) in [(aligned, 2 * DIRECT_ALIGNMENT), (aligned + 1, DIRECT_ALIGNMENT), (aligned, 1000)] {
        let (directory, bytes) = (directory(), &bytes[begin..begin + len]);
        let path = directory.path().join("file");
        let mut file = TempFile::create(directory.path()).unwrap();
        // The second direct write is at an odd offset.
        for _ in 0..2 {
            file.write_direct(bytes).unwrap();
            file.write(b"odd").unwrap();
        }
        file.publish(&path).unwrap();
        assert!(std::fs::read(path).unwrap() == [bytes, b"odd", bytes, b"odd"].concat(), "{len} bytes");
    }
}

#[test]
fn partial_direct_write_is_completed_and_later_bytes_follow() {
    let bytes: Vec<u8> = (0..2 * DIRECT_ALIGNMENT).map(|at| u8::try_from(at % 251).unwrap()).collect();
    for written_len in [None, Some(0), Some(1), Some(DIRECT_ALIGNMENT), Some(bytes.len() - 1), Some(bytes.len())] {
        let directory = directory();
        let path = directory.path().join("file");
        let mut file = TempFile::create(directory.path()).unwrap();
        file.write(b"before").unwrap();
        file.file_mut().write_all_at(&bytes[..written_len.unwrap_or(0)], 6).unwrap();
        let written = written_len.ok_or_else(|| io::ErrorKind::InvalidInput.into());
        file.write_rest(6, written, &bytes).unwrap();
        file.write(b"behind").unwrap();
        file.publish(&path).unwrap();
        assert!(std::fs::read(path).unwrap() == [b"before", &bytes[..], b"behind"].concat(), "{written_len:?}");
    }
}

#[test]
fn parent_of_an_existing_directory_is_synced_too() {
    let dir = directory();
    let path = dir.path().join("a/b/c");
    assert_eq!(steps(|| create_directory(&path).unwrap()), ["sync the directory"; 3]);
    assert_eq!(steps(|| create_directory(&path).unwrap()), ["sync the directory"]);
    assert!(path.is_dir());
}

#[test]
fn many_directories_take_one_sync_existing_ones_too() {
    let dir = directory();
    let names = || ["a", "b"].map(str::to_owned).into_iter();
    for _ in 0..2 {
        assert_eq!(steps(|| create_directories_in(dir.path(), names()).unwrap()), ["sync the directory"]);
    }
    assert!(dir.path().join("b").is_dir());
}

#[test]
fn removal_is_durable_and_removing_nothing_is_no_error() {
    let dir = directory();
    let path = dir.path().join("file");
    std::fs::File::create(&path).unwrap();
    assert_eq!(steps(|| assert!(remove(&path).unwrap())), ["sync the directory"]);
    assert_eq!(steps(|| assert!(!remove(&path).unwrap())), [""; 0]);
}

#[test]
fn a_file_in_the_place_of_a_directory_is_an_error() {
    let directory = directory();
    let path = directory.path().join("file");
    std::fs::File::create(&path).unwrap();
    assert!(create_directory(&path).is_err());
    assert!(create_directory(Path::new("")).is_err());
}

#[test]
fn directory_creation_failure_is_an_error_and_final_dot_is_not() {
    let directory = directory();
    create_directory(&directory.path().join("new/deep/.")).unwrap();
    assert!(directory.path().join("new/deep").is_dir());
    // No directory can be created in /proc, although /proc exists.
    assert!(create_directory(Path::new("/proc/none/at/all")).is_err());
}

#[test]
fn a_new_name_is_taken_only_if_it_is_free() {
    let directory = directory();
    let path = directory.path().join("file");
    for content in ["first", "second"] {
        let mut file = TempFile::create_beside(&path).unwrap();
        file.write(content.as_bytes()).unwrap();
        let result = file.publish_new(&path);
        assert_eq!(result.is_ok(), content == "first", "{result:?}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"first");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn directory_is_published_whole_over_an_empty_one_or_none() {
    use std::os::unix::fs::PermissionsExt;
    let directory = directory();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let (new, empty, full) =
        (directory.path().join("new"), directory.path().join("empty"), directory.path().join("full"));
    create_directories_in(directory.path(), ["empty", "full", "full/x"].map(str::to_owned).into_iter()).unwrap();
    std::fs::set_permissions(&empty, std::fs::Permissions::from_mode(0o751)).unwrap();
    for path in [&new, &empty, &full] {
        let made = TempDirectory::create_beside(path).unwrap();
        assert_eq!(mode(made.path()), 0o700);
        create_directories_in(made.path(), ["inside".to_owned()].into_iter()).unwrap();
        assert_eq!(made.publish(path).is_ok(), path != &full);
    }
    assert_eq!((mode(&new), mode(&empty)), (0o700, 0o751));
    assert!(new.join("inside").is_dir() && empty.join("inside").is_dir() && full.join("x").is_dir());
    // The refused directory was removed with its contents.
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 3);
}

#[test]
fn opened_file_is_durable_if_new_and_unchanged_if_not() {
    let dir = directory();
    let path = dir.path().join("file");
    assert_eq!(steps(|| drop(open_or_create(&path).unwrap())), ["sync the directory"]);
    std::io::Write::write_all(&mut open_or_create(&path).unwrap(), b"bytes").unwrap();
    assert_eq!(steps(|| drop(open_or_create(&path).unwrap())), [""; 0]);
    assert_eq!(std::fs::read(&path).unwrap(), b"bytes");
    std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
    assert!(open_or_create(&dir.path().join("link")).is_err());
    assert!(!dir.path().join("nowhere").exists());
}

#[test]
fn files_of_one_directory_are_synced_each_and_names_once() {
    let dir = directory();
    let mut enclosure = Enclosure::open(dir.path()).unwrap();
    let steps = steps(|| {
        for (directories, name) in [(&["a", "b"][..], "1"), (&["a", "b"], "2"), (&["a"], "3")] {
            let mut file = enclosure.create(directories).unwrap();
            file.write(b"bytes").unwrap();
            file.publish(name, false).unwrap();
        }
        enclosure.sync().unwrap();
    });
    let file = ["sync the file", "rename"];
    let made = ["sync the directory"; 2];
    assert_eq!(steps, [&made[..], &file, &file, &made[..1], &file, &made[..1]].concat());
    assert_eq!(std::fs::read(dir.path().join("a/b/2")).unwrap(), b"bytes");
}

/// Also, an enclosed file replaces an existing one only with `replace`.
#[test]
fn enclosed_file_follows_no_link_and_leaves_nothing_behind() {
    let (directory, outside) = (directory(), directory());
    let path = |name: &str| directory.path().join(name);
    std::os::unix::fs::symlink(outside.path(), path("link")).unwrap();
    std::io::Write::write_all(&mut open_or_create(&path("file")).unwrap(), b"before").unwrap();
    let mut enclosure = Enclosure::open(directory.path()).unwrap();
    for directories in [&["link"][..], &["link", "deeper"], &["file"]] {
        let error = enclosure.create(directories).unwrap_err();
        assert!(error.to_string().contains("a link or a file"), "{error}");
    }
    let mut publish = |name: &str, replace| {
        let mut file = enclosure.create(&[]).unwrap();
        file.write(b"after").unwrap();
        file.publish(name, replace).map_err(|error| error.kind())
    };
    for name in ["file", "link"] {
        assert_eq!(publish(name, false), Err(std::io::ErrorKind::AlreadyExists), "{name}");
    }
    assert_eq!(std::fs::read(path("file")).unwrap(), b"before");
    // The link itself is replaced, never its target.
    for name in ["file", "link"] {
        publish(name, true).unwrap();
        assert_eq!(std::fs::read(path(name)).unwrap(), b"after");
    }
    assert_eq!(outside.path().read_dir().unwrap().count(), 0);
    assert_eq!(directory.path().read_dir().unwrap().count(), 2);
}
