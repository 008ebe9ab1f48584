//! A registration of very many files whose statements and commits fail, at places spread over all
//! of it. The unit tests break every statement of a small one.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rand::RngExt;
use rand::rngs::StdRng;
use sqlx::{Connection, SqliteConnection};
use zorb::format::compression::Scheme;
use zorb::format::shard::Term;
use zorb::format::xorb::LayoutBuilder;
use zorb::format::{ChunkHash, ChunkRange, FileHash, XorbHash};
use zorb::index::sqlite::SqliteIndex;
use zorb::index::sqlite::probe::{self, Place};
use zorb::index::{
    Allowance, Collect, Cursor, IndexError, NewFile, NewXorb, OpenRegistration, RecordIndex, RegisterIndex, Registered,
    Registration, Ticket, XorbIndex,
};
use zorb::runtime::clock::Timestamp;

use crate::support::{kill_rounds, rng};

/// Files of the registration.
const FILE_COUNT: usize = 50_000;

/// Failures at random places, beside the first of each kind of place, by default.
const FAILURE_COUNT: usize = 12;

/// After one in so many failures the whole registration is repeated.
const REPEAT_INTERVAL: usize = 10;

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

fn new_xorb(rng: &mut StdRng) -> NewXorb {
    let mut layout = LayoutBuilder::new();
    (0..400).for_each(|_| layout.push(40, 32).unwrap());
    NewXorb {
        hash: XorbHash::from_bytes(rng.random()),
        crc64: rng.random(),
        layout: layout.finish().unwrap(),
        chunk_hashes: (0..400).map(|_| ChunkHash::from_bytes(rng.random())).collect(),
        schemes: vec![Scheme::None; 400],
        owner: None,
        grant: None,
    }
}

fn registration(rng: &mut StdRng, xorb: &NewXorb) -> Registration {
    let file = |rng: &mut StdRng| {
        let chunks = ChunkRange::new(rng.random_range(0..399), 400).unwrap();
        let raw_len = chunks.count() * 32;
        let terms = vec![Term { xorb: xorb.hash, raw_len, chunks }];
        NewFile { hash: FileHash::from_bytes(rng.random()), raw_len: raw_len.into(), terms, sha256: None }
    };
    Registration {
        repo: "org/a".to_owned(),
        files: (0..FILE_COUNT).map(|_| file(rng)).collect(),
        xorbs: vec![xorb.hash],
        dedup: xorb.chunk_hashes.iter().map(|chunk| (*chunk, xorb.hash)).collect(),
        now: NOW,
        allowance: Allowance::default(),
    }
}

/// An operation of the registration.
enum Next {
    Begin,
    Enter(OpenRegistration, Cursor),
    Publish(OpenRegistration),
    Dedup(usize),
    Clear,
    Done,
}

/// Takes one operation; returns the one after it.
async fn take(index: &SqliteIndex, new: &Registration, next: &Next) -> Result<Next, IndexError> {
    Ok(match next {
        Next::Begin => Next::Enter(index.begin_registration(new).await?, Cursor::start(new)),
        Next::Enter(begun, from) => {
            let entered = index.write_step(*begun, new, from.clone()).await?;
            // `Known` where the step was committed and reported as failed.
            assert!(matches!(entered.outcome, Registered::New | Registered::Known), "{entered:?}");
            entered.next.map_or(Next::Publish(*begun), |from| Next::Enter(*begun, from))
        }
        Next::Publish(begun) => {
            index.publish_registration(*begun, Some(1)).await?;
            Next::Dedup(0)
        }
        Next::Dedup(from) if *from < new.dedup.len() => {
            index.write_dedup_step(new, *from, 128).await?;
            Next::Dedup(from + 128)
        }
        Next::Dedup(_) => Next::Clear,
        Next::Clear => {
            if index.sweep_registrations(None, NOW).await? {
                Next::Clear
            } else {
                Next::Done
            }
        }
        Next::Done => Next::Done,
    })
}

async fn register(index: &SqliteIndex, new: &Registration) {
    let mut next = Next::Begin;
    while !matches!(next, Next::Done) {
        next = take(index, new, &next).await.unwrap();
    }
}

/// The number of its files that can be seen.
async fn visible(index: &SqliteIndex, new: &Registration) -> usize {
    index.visible_files(new.files.iter().map(|file| file.hash).collect()).await.unwrap().len()
}

fn copy(from: &Path, to: &Path) {
    for suffix in ["", "-wal"] {
        let path = |path: &Path| PathBuf::from(format!("{}{suffix}", path.display()));
        let _ = std::fs::remove_file(path(to));
        if path(from).exists() {
            std::fs::copy(path(from), path(to)).unwrap();
        }
    }
}

/// Rows that only a registration writes.
async fn row_count(path: &Path) -> i64 {
    const SQL: &str = "SELECT (SELECT count(*) FROM files) + (SELECT count(*) FROM file_terms) \
         + (SELECT count(*) FROM xorb_files) + (SELECT count(*) FROM file_repos) + (SELECT count(*) FROM repo_files) \
         + (SELECT count(*) FROM repo_xorbs) + (SELECT count(*) FROM repos) \
         + (SELECT count(*) FROM registrations) + (SELECT count(*) FROM registration_files)";
    let mut connection = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
    let count = sqlx::query_scalar(SQL).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    count
}

/// What a start makes of the files of an index whose process has ended.
async fn check_start(path: &Path, new: &Registration, is_published: bool, case: &str) -> SqliteIndex {
    let index = SqliteIndex::open_unsynced(path).await.unwrap();
    index.abandon_registrations(None).await.unwrap();
    while index.sweep_registrations(None, NOW).await.unwrap() {}
    while index.sweep_removed(NOW).await.unwrap() {}
    assert_eq!(visible(&index, new).await, if is_published { FILE_COUNT } else { 0 }, "{case}");
    if !is_published {
        assert_eq!(row_count(path).await, 0, "{case}");
    }
    index
}

/// The number of failures, and the place of the last one.
fn last(failed: &[(Place, &'static str)]) -> (usize, (Place, &'static str)) {
    (failed.len(), *failed.last().unwrap())
}

/// Registers without a failure; returns the number of places.
async fn count_places(path: &Path, new: &Registration) -> usize {
    let index = SqliteIndex::open_unsynced(path).await.unwrap();
    let count: Arc<Mutex<usize>> = Arc::default();
    let counted = Arc::clone(&count);
    probe::set(Some(Box::new(move |_, _| {
        *counted.lock().unwrap() += 1;
        false
    })));
    register(&index, new).await;
    probe::set(None);
    assert_eq!(visible(&index, new).await, FILE_COUNT);
    index.close().await;
    let count = count.lock().unwrap();
    *count
}

#[tokio::test]
async fn failures_in_a_registration_of_50000_files_leave_nothing() {
    let failure_count = kill_rounds(FAILURE_COUNT);
    let (mut rng, begin) = (rng(), Instant::now());
    let directory = tempfile::tempdir().unwrap();
    let (empty, path, other) = (
        directory.path().join("empty.sqlite"),
        directory.path().join("index.sqlite"),
        directory.path().join("other.sqlite"),
    );
    let xorb = new_xorb(&mut rng);
    let new = registration(&mut rng, &xorb);
    let index = SqliteIndex::open_unsynced(&empty).await.unwrap();
    let ticket = Ticket::random();
    index.stage_xorb(xorb.hash, ticket, NOW).await.unwrap();
    index.publish_xorb(xorb, ticket, NOW).await.unwrap();
    index.close().await;

    copy(&empty, &path);
    let place_count = count_places(&path, &new).await;
    println!("{place_count} places in {:.1?}", begin.elapsed());

    // Fails at the sampled ones, and at the first one of each kind. Each operation is repeated
    // until it succeeds.
    let sample: HashSet<usize> = (0..failure_count).map(|_| rng.random_range(0..place_count)).collect();
    copy(&empty, &path);
    let index = SqliteIndex::open_unsynced(&path).await.unwrap();
    let failed: Arc<Mutex<Vec<(Place, &'static str)>>> = Arc::default();
    let (told, mut kinds, mut passed) = (Arc::clone(&failed), HashSet::new(), 0);
    probe::set(Some(Box::new(move |place, op| {
        passed += 1;
        let fails = kinds.insert((place, op)) || sample.contains(&(passed - 1));
        if fails {
            told.lock().unwrap().push((place, op));
        }
        fails
    })));
    let (mut next, mut is_published) = (Next::Begin, false);
    while !matches!(next, Next::Done) {
        match take(&index, &new, &next).await {
            Ok(after) => {
                is_published |= matches!(next, Next::Publish(_));
                next = after;
            }
            Err(error) => {
                let (number, (place, op)) = last(&failed.lock().unwrap());
                let case = format!("{place:?} of {op} failed: {error}");
                if let (Next::Publish(_), Place::Committed) = (&next, place) {
                    (is_published, next) = (true, Next::Dedup(0));
                }
                assert_eq!(visible(&index, &new).await, if is_published { FILE_COUNT } else { 0 }, "{case}");
                copy(&path, &other);
                // The copy is an index of its own, without failures.
                let hook = probe::take();
                let started = check_start(&other, &new, is_published, &case).await;
                if number.is_multiple_of(REPEAT_INTERVAL) && !is_published {
                    register(&started, &new).await;
                    assert_eq!(visible(&started, &new).await, FILE_COUNT, "{case}");
                }
                started.close().await;
                probe::set(hook);
            }
        }
    }
    probe::set(None);
    assert_eq!(visible(&index, &new).await, FILE_COUNT);
    index.close().await;
    let failed = failed.lock().unwrap();
    println!("{} failures in {:.1?}: {:?}", failed.len(), begin.elapsed(), failed.iter().collect::<HashSet<_>>());
    assert!(failed.len() >= failure_count, "{} failures", failed.len());
}
