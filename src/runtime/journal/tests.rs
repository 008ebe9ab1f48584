#![expect(clippy::disallowed_methods, reason = "a test's files need not survive a crash")]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::{Journal, JournalCounts, Sink, Target};

fn open(path: &std::path::Path) -> (Journal, JournalCounts) {
    let counts = JournalCounts::default();
    let journal = Journal::open(Target::File(path.to_owned()), u64::MAX, counts.clone()).unwrap();
    (journal, counts)
}

/// A line after the close counts as lost, and only the owner can read the file.
#[tokio::test]
async fn lines_before_close_are_written_in_order_to_a_private_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lines");
    let (journal, counts) = open(&path);
    for number in 0..5000 {
        journal.append(number.to_string());
    }
    journal.close().await;
    journal.append("too late".to_owned());
    let expected: String = (0..5000).map(|number| format!("{number}\n")).collect();
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    assert_eq!((counts.written.get(), counts.lost.get()), (5000, 1));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn line_cut_by_a_crash_is_ended_before_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lines");
    fs::write(&path, "whole\nhal").unwrap();
    let (journal, _) = open(&path);
    journal.append("next".to_owned());
    journal.close().await;
    assert_eq!(fs::read_to_string(&path).unwrap(), "whole\nhal\nnext\n");
}

/// After a reopen, lines go to the file that has the name then. If no such file can be created, the
/// old file stays in use.
#[tokio::test]
async fn reopen_follows_the_name_or_keeps_the_old_file() {
    let directory = tempfile::tempdir().unwrap();
    let (inner, moved) = (directory.path().join("inner"), directory.path().join("moved"));
    fs::create_dir(&inner).unwrap();
    let path = inner.join("lines");
    let (journal, counts) = open(&path);
    let rename = |from: &std::path::Path, to: &std::path::Path| {
        assert!(std::process::Command::new("mv").arg(from).arg(to).status().unwrap().success());
    };
    journal.append("one".to_owned());
    journal.reopen().await;
    journal.append("two".to_owned());
    // Wait until both lines are written, so that the file can be renamed.
    while counts.written.get() < 2 {
        tokio::task::yield_now().await;
    }
    rename(&path, &moved);
    journal.append("three".to_owned());
    journal.reopen().await;
    journal.append("four".to_owned());
    while counts.written.get() < 4 {
        tokio::task::yield_now().await;
    }
    assert_eq!(fs::read_to_string(&moved).unwrap(), "one\ntwo\nthree\n");
    assert_eq!(fs::read_to_string(&path).unwrap(), "four\n");
    rename(&inner, &directory.path().join("gone"));
    journal.reopen().await;
    journal.append("five".to_owned());
    journal.close().await;
    assert_eq!(fs::read_to_string(directory.path().join("gone/lines")).unwrap(), "four\nfive\n");
}

#[test]
fn failed_write_marks_the_last_line_as_torn() {
    // A file that is open for reading only can be neither written nor truncated.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lines");
    fs::write(&path, "whole\n").unwrap();
    let mut sink = Sink::File { file: fs::File::open(&path).unwrap(), is_torn: false };
    assert!(sink.append(b"lost\n", u64::MAX).is_err());
    let Sink::File { is_torn, .. } = sink else { panic!("it was a file") };
    assert!(is_torn, "the next write ends the torn line");
    assert_eq!(fs::read_to_string(&path).unwrap(), "whole\n");
}

#[tokio::test]
async fn a_journal_that_cannot_be_written_loses_lines_and_counts_them() {
    let (journal, counts) = open(std::path::Path::new("/dev/full"));
    for _ in 0..3 {
        journal.append("x".to_owned());
    }
    journal.close().await;
    assert_eq!((counts.written.get(), counts.lost.get()), (0, 3));
}

#[tokio::test]
async fn full_file_takes_no_lines_until_it_is_moved_away() {
    let directory = tempfile::tempdir().unwrap();
    let (path, moved) = (directory.path().join("lines"), directory.path().join("moved"));
    fs::write(&path, "0123456\n").unwrap();
    let counts = JournalCounts::default();
    let journal = Journal::open(Target::File(path.clone()), 12, counts.clone()).unwrap();
    let ended = async |count| {
        while counts.written.get() + counts.lost.get() < count {
            tokio::task::yield_now().await;
        }
    };
    journal.append("abc".to_owned());
    ended(1).await;
    journal.append("d".to_owned());
    ended(2).await;
    assert_eq!(fs::read_to_string(&path).unwrap(), "0123456\nabc\n");
    assert!(std::process::Command::new("mv").arg(&path).arg(&moved).status().unwrap().success());
    journal.reopen().await;
    journal.append("e".to_owned());
    journal.close().await;
    assert_eq!(fs::read_to_string(&path).unwrap(), "e\n");
    assert_eq!((counts.written.get(), counts.lost.get()), (2, 1));
}
