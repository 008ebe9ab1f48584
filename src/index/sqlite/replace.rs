//! Replaces a database by another one. After a crash and the next start, either the old or the new
//! database is in place and complete.
//!
//! ```text
//! index.sqlite.new              being built; discarded after a crash
//! index.sqlite.rebuilt-<ms>     complete and durable; the valid one from now on
//! index.sqlite.old-<ms>         the replaced one, with its -wal and -shm
//! ```
//!
//! The rename from `.new` to `.rebuilt-<ms>` commits the replacement. Then the old database is
//! renamed, with its WAL, because the old WAL would corrupt the new database. At last the new
//! database is renamed to `index.sqlite`. If these renames are interrupted, [`Replacement::finish`]
//! completes them at the next start.
//!
//! Between the last two renames `index.sqlite` does not exist. So a process that creates a missing
//! index must call `finish` first.
//!
//! All functions block. No process may have either database open.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::index::error::{IndexError, IndexErrorKind};
use crate::runtime::clock::Timestamp;
use crate::runtime::durable::{remove, rename, sync_file};

/// The files of a database, in the order of their renames.
const SUFFIXES: [&str; 3] = ["-wal", "-shm", ""];

/// The replacement of the database at a path.
#[derive(Clone, Debug)]
pub struct Replacement {
    path: PathBuf,
}

impl Replacement {
    /// The replacement of the database at this path, which may be missing.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Returns the path for building the new database, after removing files of an earlier attempt.
    ///
    /// # Errors
    ///
    /// A file of an earlier attempt cannot be removed.
    pub fn begin(&self) -> Result<PathBuf, IndexError> {
        let path = self.beside(".new");
        for suffix in SUFFIXES {
            remove(&with_suffix(&path, suffix))
                .map_err(|error| failed("remove a database that was not finished", error))?;
        }
        Ok(path)
    }

    /// Puts the new, closed database in place of the old one. Returns the new name of the old one,
    /// if there was one.
    ///
    /// # Errors
    ///
    /// The new database was not closed cleanly, or a file cannot be renamed. If the replacement was
    /// committed, [`Replacement::finish`] completes it.
    pub fn publish(&self, now: Timestamp) -> Result<Option<PathBuf>, IndexError> {
        let op = "publish a database";
        let new = self.beside(".new");
        for suffix in ["-wal", "-shm"] {
            if with_suffix(&new, suffix).exists() {
                return Err(failed(op, io::Error::other("its WAL was not checkpointed")));
            }
        }
        sync_file(&new).map_err(|error| failed(op, error))?;
        let rebuilt = self.beside(&format!(".rebuilt-{}", now.as_millis()));
        rename(&new, &rebuilt).map_err(|error| failed(op, error))?;
        self.put_in_place(&rebuilt).map_err(|error| failed(op, error))
    }

    /// Completes an interrupted replacement. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// A file cannot be renamed; the next call resumes.
    pub fn finish(&self) -> Result<bool, IndexError> {
        let op = "finish publishing a database";
        let rebuilt = self.find_rebuilt().map_err(|error| failed(op, error))?;
        let Some(rebuilt) = rebuilt else { return Ok(false) };
        self.put_in_place(&rebuilt).map_err(|error| failed(op, error))?;
        Ok(true)
    }

    fn find_rebuilt(&self) -> io::Result<Option<PathBuf>> {
        let directory =
            self.path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (mut found, prefix) = (None, self.beside(".rebuilt-"));
        let prefix = prefix.file_name().unwrap_or_default().as_encoded_bytes();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(prefix) {
                // There is at most one such file, because each replacement is finished before the
                // next one begins.
                found = found.max(Some(entry.path()));
            }
        }
        Ok(found)
    }

    fn put_in_place(&self, rebuilt: &Path) -> io::Result<Option<PathBuf>> {
        let name = rebuilt.to_string_lossy();
        let time = name.rsplit_once('-').map_or("", |(_, time)| time);
        let old = self.free_name(time);
        let mut had_old = false;
        for suffix in SUFFIXES {
            let from = with_suffix(&self.path, suffix);
            if from.exists() {
                rename(&from, &with_suffix(&old, suffix))?;
                had_old = suffix.is_empty();
            }
        }
        rename(rebuilt, &self.path)?;
        Ok(had_old.then_some(old))
    }

    /// A free name for the old database. After an interrupted move this returns the same name
    /// again: the main file is renamed last, so the name is still free.
    fn free_name(&self, time: &str) -> PathBuf {
        let mut old = self.beside(&format!(".old-{time}"));
        while old.exists() {
            old = with_suffix(&old, "+");
        }
        old
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        with_suffix(&self.path, suffix)
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

fn failed(op: &'static str, source: io::Error) -> IndexError {
    IndexError { op, kind: IndexErrorKind::Other, source: Box::new(source) }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test makes files that look like databases")]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(77);

    fn names(directory: &Path) -> Vec<(String, String)> {
        let read = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap())
        };
        let mut names: Vec<_> = fs::read_dir(directory).unwrap().map(read).collect();
        names.sort();
        names
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    fn directory(files: &[(&str, &str)]) -> (tempfile::TempDir, Replacement) {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        let replacement = Replacement::of(&directory.path().join("i"));
        (directory, replacement)
    }

    #[test]
    fn new_database_is_put_in_place_and_the_old_one_keeps_its_wal() {
        let (directory, replacement) =
            directory(&[("i", "old"), ("i-wal", "old log"), ("i.new", "half"), ("i.new-wal", "x")]);
        let new = replacement.begin().unwrap();
        assert!(!replacement.finish().unwrap());
        assert_eq!(names(directory.path()), pairs(&[("i", "old"), ("i-wal", "old log")]));
        fs::write(&new, "new").unwrap();
        let old = replacement.publish(NOW).unwrap().unwrap();
        assert_eq!(old, directory.path().join("i.old-77"));
        let expected = pairs(&[("i", "new"), ("i.old-77", "old"), ("i.old-77-wal", "old log")]);
        assert_eq!(names(directory.path()), expected);
        assert!(!replacement.finish().unwrap());
    }

    /// No file of one index is mixed with files of the other.
    #[test]
    fn replacement_cut_short_after_any_step_is_completed() {
        let old: &[(&str, &str)] = &[("i-wal", "old log"), ("i-shm", "old shm"), ("i", "old")];
        for moved in 0..=old.len() {
            let mut files: Vec<(String, &str)> = vec![("i.rebuilt-77".to_owned(), "new")];
            for (at, (name, text)) in old.iter().enumerate() {
                let name = if at < moved { name.replacen('i', "i.old-77", 1) } else { (*name).to_owned() };
                files.push((name, text));
            }
            let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), *text)).collect();
            let (directory, replacement) = directory(&files);
            assert!(replacement.finish().unwrap(), "{moved} moved");
            let expected =
                pairs(&[("i", "new"), ("i.old-77", "old"), ("i.old-77-shm", "old shm"), ("i.old-77-wal", "old log")]);
            assert_eq!(names(directory.path()), expected, "{moved} moved");
            assert!(!replacement.finish().unwrap());
        }
    }

    #[test]
    fn new_index_is_put_in_place_without_an_old_one() {
        let (directory, replacement) = directory(&[("i.new", "new")]);
        assert_eq!(replacement.publish(NOW).unwrap(), None);
        assert_eq!(names(directory.path()), pairs(&[("i", "new")]));
    }

    /// An old index is never overwritten.
    #[test]
    fn index_with_its_wal_is_not_published_nor_old_overwritten() {
        let (_directory, replacement) = directory(&[("i", "old"), ("i.new", "new"), ("i.new-wal", "log")]);
        replacement.publish(NOW).unwrap_err();
        let (directory, replacement) = directory(&[("i", "old"), ("i.new", "new"), ("i.old-77", "older")]);
        replacement.publish(NOW).unwrap();
        assert_eq!(names(directory.path()), pairs(&[("i", "new"), ("i.old-77", "older"), ("i.old-77+", "old")]));
    }
}
