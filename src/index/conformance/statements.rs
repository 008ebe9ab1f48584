//! Makes each statement and commit of some work fail once, and copies the database before each, as
//! a killed process would leave it. Readers see only results of finished operations, the next start
//! cleans up, and the work can be repeated.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

#[cfg(feature = "postgres-tests")]
use super::backends::Backend;
use super::backends::TestIndex;
use super::files::{file, file_hash, registration, sha256, term};
use super::{Db, NOW, SqliteIndex, hash, put, xorb};
use crate::format::ChunkHash;
use crate::format::shard::Term;
use crate::index::probe::{self, Place};
use crate::index::{Cursor, FileSwitch, IndexError, NewFile, Registration, RunSwitch, Switched};

/// The work that is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// A registration in steps: new files, a large one, and known ones.
    Register,
    /// The removal of files of two repositories, and the sweep.
    Remove,
    /// A switch of files to another xorb, as a compaction makes it.
    Switch,
    /// The discard of an abandoned registration.
    Discard,
}

fn small(byte: u8) -> NewFile {
    NewFile { sha256: Some(sha256(byte)), ..file(byte, &[term(1, 0, 2)]) }
}

fn large(byte: u8) -> NewFile {
    file(byte, &[term(1, 0, 1), term(2, 0, 2), term(3, 1, 3), term(1, 1, 3), term(4, 1, 2)])
}

/// Small files, a large one, known ones, a xorb that no file names, and deduplication entries.
fn several() -> Registration {
    let dedup = vec![(ChunkHash::from_bytes([1; 32]), hash(1)), (ChunkHash::from_bytes([2; 32]), hash(2))];
    let files = vec![small(50), large(60), small(51), small(40), small(41)];
    Registration { dedup, ..registration("org/a", files, &[1, 2, 3, 4, 5]) }
}

/// The store before the work.
async fn prepare(work: Work, index: &impl TestIndex) {
    let db: Db = Arc::new(index.clone());
    for byte in 1..=5 {
        put(&db, xorb(byte, 3)).await;
    }
    // File 40 belongs to another repository, and file 41 has no sha256 yet.
    db.register(&registration("org/b", vec![small(40)], &[1])).await.unwrap();
    db.register(&registration("org/a", vec![file(41, &[term(1, 0, 2)])], &[1])).await.unwrap();
    match work {
        Work::Register => {}
        Work::Remove | Work::Switch => run(Work::Register, index, &mut Vec::new()).await.unwrap(),
        Work::Discard => {
            let new = several();
            let begun = db.begin_registration(&new).await.unwrap();
            let mut next = Some(Cursor::start(&new));
            while let Some(from) = next {
                next = db.write_step(begun, &new, from).await.unwrap().next;
            }
            db.abandon_registrations(None).await.unwrap();
        }
    }
}

/// Does the work; adds the visible state after each of its operations to `seen`.
async fn run(work: Work, index: &impl TestIndex, seen: &mut Vec<String>) -> Result<(), IndexError> {
    let db: Db = Arc::new(index.clone());
    seen.push(visible(&db).await);
    match work {
        Work::Register => {
            let new = several();
            let begun = db.begin_registration(&new).await?;
            let mut next = Some(Cursor::start(&new));
            while let Some(from) = next {
                next = db.write_step(begun, &new, from).await?.next;
                seen.push(visible(&db).await);
            }
            db.publish_registration(begun, Some(7)).await?;
            seen.push(visible(&db).await);
            for from in 0..new.dedup.len() {
                db.write_dedup_step(&new, from, 1).await?;
            }
            // A published registration cannot be abandoned.
            assert_eq!(db.abandon_registrations(Some(begun.id)).await?, 0);
            while db.sweep_registrations(None, NOW).await? {}
        }
        Work::Remove => {
            for (byte, repo) in [(50, Some("org/a")), (40, Some("org/a")), (60, None), (41, None)] {
                db.remove_claims(file_hash(byte), repo.map(str::to_owned), NOW).await?;
                seen.push(visible(&db).await);
            }
            while db.sweep_removed(NOW).await? {}
        }
        Work::Switch => {
            let switches = [switch(&db, 50).await, switch(&db, 60).await, switch(&db, 40).await];
            let switched = db.switch_terms(&switches, NOW).await?;
            assert!(matches!(switched, Switched::All), "{switched:?}");
        }
        Work::Discard => {
            while db.sweep_registrations(None, NOW).await? {}
            while db.sweep_removed(NOW).await? {}
        }
    }
    seen.push(visible(&db).await);
    Ok(())
}

/// Replaces xorb 1 by xorb 5 in a file.
async fn switch(db: &Db, byte: u8) -> FileSwitch {
    let moved = |term: &Term| if term.xorb == hash(1) { Term { xorb: hash(5), ..*term } } else { *term };
    let rows = db.terms_of(file_hash(byte)).await.unwrap();
    let runs = rows.into_iter().map(|row| {
        let after = row.terms.iter().map(moved).collect();
        RunSwitch { row: row.row, before: row.terms, after }
    });
    FileSwitch { file: file_hash(byte), runs: runs.collect() }
}

/// The files that readers see, and the last applied record.
async fn visible(db: &Db) -> String {
    let mut files = db.file_records(None).await.unwrap();
    // Keep only files of this test, whose hashes repeat one byte: a removed file has a random hash.
    files.retain(|file| file.hash.as_bytes().iter().all(|byte| *byte == file.hash.as_bytes()[0]));
    format!("{:?} {files:?}", db.store_mark().await.unwrap().last_record)
}

/// The stored state, as a text to be compared.
async fn stored(index: &impl TestIndex) -> String {
    let db: Db = Arc::new(index.clone());
    let lives = db.xorb_lives(None, 100).await.unwrap();
    let usage = (db.repo_usage("org/a".to_owned()).await.unwrap(), db.repo_usage("org/b".to_owned()).await.unwrap());
    let chunks = db.dedup_chunk_count().await.unwrap();
    format!("{} {lives:?} {usage:?} {chunks}", visible(&db).await)
}

/// Opens the index that a killed process has left, and cleans up as a server start does.
async fn start(path: &Path, case: &str) -> SqliteIndex {
    let index = SqliteIndex::open_unsynced(path).await.unwrap();
    clean_up(&index, case).await;
    index
}

/// Cleans up as a start does.
async fn clean_up(index: &impl TestIndex, case: &str) {
    let db: Db = Arc::new(index.clone());
    let before = visible(&db).await;
    db.abandon_registrations(None).await.unwrap();
    while db.sweep_registrations(None, NOW).await.unwrap() {}
    while db.sweep_removed(NOW).await.unwrap() {}
    assert_eq!(visible(&db).await, before, "{case}");
    assert_eq!(index.left_row_count().await, 0, "{case}");
    let [stored, counted] = index.recounted().await;
    assert_eq!(stored, counted, "{case}");
}

/// Copies the files of an index; no commit may be running.
fn copy(from: &Path, to: &Path) {
    for suffix in ["", "-wal"] {
        let path = |path: &Path| PathBuf::from(format!("{}{suffix}", path.display()));
        if path(from).exists() {
            std::fs::copy(path(from), path(to)).unwrap();
        }
    }
}

/// Checks an index on which the work was interrupted: its visible state, the cleanup, and the
/// repeated work.
async fn check(work: Work, path: &Path, allowed: &BTreeSet<String>, last: &str, case: &str) {
    let index = start(path, case).await;
    repeat(work, &index, allowed, last, case).await;
    index.close().await;
}

/// Checks the visible state, and repeats the work.
async fn repeat(work: Work, index: &impl TestIndex, allowed: &BTreeSet<String>, last: &str, case: &str) {
    assert!(allowed.contains(&visible(&(Arc::new(index.clone()) as Db)).await), "{case}");
    // A switch that was committed cannot be repeated, because its old terms no longer exist.
    let is_switched =
        work == Work::Switch && visible(&(Arc::new(index.clone()) as Db)).await != *state_before(allowed, last);
    if !is_switched {
        run(work, index, &mut Vec::new()).await.unwrap();
        while (Arc::new(index.clone()) as Db).sweep_removed(NOW).await.unwrap() {}
    }
    assert_eq!(stored(index).await, last, "{case}");
}

/// Of two visible states, the one before the work. `last` begins with the one after the work.
fn state_before<'a>(allowed: &'a BTreeSet<String>, last: &str) -> &'a String {
    allowed.iter().find(|state| !last.starts_with(state.as_str())).unwrap()
}

/// Interrupts the work at each place, by a kill and by a failure.
async fn break_everywhere(work: Work) {
    let directory = tempfile::tempdir().unwrap();
    let prepared = directory.path().join("prepared.sqlite");
    let index = SqliteIndex::open_unsynced(&prepared).await.unwrap();
    prepare(work, &index).await;
    index.close().await;

    // A run without a failure records the places, and copies the files at each place.
    let whole = directory.path().join("whole.sqlite");
    copy(&prepared, &whole);
    let index = SqliteIndex::open_unsynced(&whole).await.unwrap();
    let places: Arc<Mutex<Vec<(Place, &'static str)>>> = Arc::default();
    let (recorded, copies, source) = (Arc::clone(&places), directory.path().to_owned(), whole.clone());
    probe::set(Some(Box::new(move |place, op| {
        let mut recorded = recorded.lock().unwrap();
        copy(&source, &copies.join(format!("killed-{}.sqlite", recorded.len())));
        recorded.push((place, op));
        false
    })));
    let mut seen = Vec::new();
    run(work, &index, &mut seen).await.unwrap();
    probe::set(None);
    let last = stored(&index).await;
    index.close().await;
    let (places, allowed) = (std::mem::take(&mut *places.lock().unwrap()), seen.into_iter().collect::<BTreeSet<_>>());
    let count = |place| places.iter().filter(|(found, _)| *found == place).count();
    println!("{work:?}: {} statements, {} commits", count(Place::Statement), count(Place::Commit));
    assert!(count(Place::Statement) > 8 && count(Place::Commit) > 0, "{places:?}");
    match work {
        Work::Register | Work::Switch => assert_eq!(allowed.len(), 2, "before and after"),
        Work::Remove => assert_eq!(allowed.len(), 5),
        Work::Discard => assert_eq!(allowed.len(), 1),
    }

    for (n, (place, op)) in places.iter().enumerate() {
        let case = format!("{work:?} killed at place {n}: {place:?} of {op}");
        check(work, &directory.path().join(format!("killed-{n}.sqlite")), &allowed, &last, &case).await;

        let case = format!("{work:?} failed at place {n}: {place:?} of {op}");
        let path = directory.path().join("failed.sqlite");
        let _ = std::fs::remove_file(directory.path().join("failed.sqlite-wal"));
        copy(&prepared, &path);
        let index = SqliteIndex::open_unsynced(&path).await.unwrap();
        let mut left = n;
        probe::set(Some(Box::new(move |_, _| {
            let fails = left == 0;
            left = left.wrapping_sub(1);
            fails
        })));
        let failed = run(work, &index, &mut Vec::new()).await;
        probe::set(None);
        failed.expect_err(&case);
        assert!(allowed.contains(&visible(&(Arc::new(index.clone()) as Db)).await), "{case}");
        index.close().await;
        check(work, &path, &allowed, &last, &case).await;
    }
}

/// As above for a database whose files cannot be copied: a killed process is for the server the
/// same as one that fails and rolls back. A case prepares its own database, so one in `STRIDE` is
/// run, from a random one on.
#[cfg(feature = "postgres-tests")]
async fn fail_everywhere<B: Backend>(work: Work) {
    const STRIDE: usize = 8;
    let places: Arc<Mutex<Vec<(Place, &'static str)>>> = Arc::default();
    let (told, mut seen) = (Arc::clone(&places), Vec::new());
    let (_place, index) = B::fresh().await;
    prepare(work, &index).await;
    probe::set(Some(Box::new(move |place, op| {
        told.lock().unwrap().push((place, op));
        false
    })));
    run(work, &index, &mut seen).await.unwrap();
    probe::set(None);
    let last = stored(&index).await;
    let (places, allowed) = (std::mem::take(&mut *places.lock().unwrap()), seen.into_iter().collect::<BTreeSet<_>>());
    println!("{work:?}: {} places", places.len());
    for (n, (place, op)) in places.iter().enumerate().skip(rand::random_range(0..STRIDE)).step_by(STRIDE) {
        let case = format!("{work:?} failed at place {n}: {place:?} of {op}");
        let (_place, index) = B::fresh().await;
        prepare(work, &index).await;
        let mut left = n;
        probe::set(Some(Box::new(move |_, _| {
            let fails = left == 0;
            left = left.wrapping_sub(1);
            fails
        })));
        let failed = run(work, &index, &mut Vec::new()).await;
        probe::set(None);
        failed.expect_err(&case);
        assert!(allowed.contains(&visible(&(Arc::new(index.clone()) as Db)).await), "{case}");
        clean_up(&index, &case).await;
        repeat(work, &index, &allowed, &last, &case).await;
    }
}

#[cfg(feature = "postgres-tests")]
#[tokio::test]
async fn postgres_survives_failures_of_statements() {
    use super::backends::OnPostgres;
    for work in [Work::Register, Work::Remove, Work::Switch, Work::Discard] {
        fail_everywhere::<OnPostgres>(work).await;
    }
}

#[tokio::test]
async fn registration_survives_a_failure_of_every_statement() {
    break_everywhere(Work::Register).await;
}

#[tokio::test]
async fn removal_survives_a_failure_of_every_statement() {
    break_everywhere(Work::Remove).await;
}

#[tokio::test]
async fn switch_survives_a_failure_of_every_statement() {
    break_everywhere(Work::Switch).await;
}

#[tokio::test]
async fn discard_survives_a_failure_of_every_statement() {
    break_everywhere(Work::Discard).await;
}
