use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;

/// A file of this mode.
fn file(directory: &Path, mode: u32) -> PathBuf {
    let path = directory.join("file");
    File::create(&path).unwrap().write_all(b"text").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o777
}

#[test]
fn private_file_is_read_only_if_no_other_user_has_access() {
    let directory = tempfile::tempdir().unwrap();
    for (mode, is_good) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)] {
        let path = file(directory.path(), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let read = read_private(&path);
        assert_eq!(read.as_deref().ok(), is_good.then_some("text"), "{mode:o}");
        if let Err(error) = read {
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
        fs::remove_file(path).unwrap();
    }
    assert_eq!(read_private(&directory.path().join("none")).unwrap_err().kind(), ErrorKind::NotFound);
}

/// Needs root, as .ci/run has it.
#[cfg(feature = "full-tests")]
#[test]
fn what_root_writes_belongs_to_the_owner_of_the_directory() {
    use crate::runtime::durable::TempFile;

    const OWNER: (u32, u32) = (12_345, 54_321);
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(directory.path(), Some(OWNER.0), Some(OWNER.1)).unwrap();
    let (path, lock) = (directory.path().join("file"), directory.path().join("lock"));
    let mut file = TempFile::create_beside(&path).unwrap();
    file.write(b"text").unwrap();
    file.publish(&path).unwrap();
    open_lock(&lock).unwrap();
    for path in [path, lock] {
        let metadata = path.metadata().unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), OWNER, "{}", path.display());
    }
}

#[test]
fn private_file_and_lock_are_not_opened_through_a_link() {
    let directory = tempfile::tempdir().unwrap();
    let (path, link) = (file(directory.path(), 0o600), directory.path().join("link"));
    symlink(&path, &link).unwrap();
    for error in [read_private(&link).unwrap_err(), open_lock(&link).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains("link"), "{error}");
    }
    fs::remove_file(&link).unwrap();
    symlink(directory.path().join("nowhere"), &link).unwrap();
    assert!(open_lock(&link).is_err());
    assert!(!directory.path().join("nowhere").exists());
    assert_eq!(fs::read(&path).unwrap(), b"text");
}

#[test]
fn lock_keeps_its_bytes_and_is_closed_to_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), 0o666);
    drop(open_lock(&path).unwrap());
    assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"text".to_vec(), 0o600));
    let new = directory.path().join("new");
    drop(open_lock(&new).unwrap());
    assert_eq!(mode(&new), 0o600);
}

#[test]
fn pipe_or_directory_in_the_place_of_a_file_is_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [&pipe, directory.path()] {
        assert!(read_private(path).is_err() && open_lock(path).is_err(), "{}", path.display());
    }
}

#[test]
fn private_file_above_its_limit_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), 0o600);
    File::options().write(true).open(&path).unwrap().set_len(MAX_PRIVATE_LEN + 1).unwrap();
    assert_eq!(read_private(&path).unwrap_err().kind(), ErrorKind::FileTooLarge);
}

#[test]
fn file_of_user_root_or_directory_owner_is_trusted() {
    let trusted = |owner, user, directory| is_trusted(owner, user, || Ok(directory)).unwrap();
    assert!(trusted(1000, 1000, 0) && trusted(0, 1000, 1000) && trusted(1000, 0, 1000));
    assert!(!trusted(1001, 1000, 1001) && !trusted(1001, 0, 1000) && !trusted(1001, 0, 0));
}

/// Takes root: no other user can give files away.
#[cfg(feature = "full-tests")]
#[test]
fn private_file_and_lock_of_another_user_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), 0o600);
    assert!(read_private(&path).is_ok() && open_lock(&path).is_ok());
    std::os::unix::fs::chown(&path, Some(1001), None).expect("this test is run by root");
    for error in [read_private(&path).unwrap_err(), open_lock(&path).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains("belongs to user 1001"), "{error}");
    }
}
