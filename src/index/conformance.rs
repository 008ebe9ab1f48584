//! The contract of [`Index`] as a test suite. SQLite and PostgreSQL pass all of it.

use std::path::PathBuf;
use std::sync::Arc;

use super::files::pack_terms;
use super::migrate::{POSTGRES, SQLITE, migrator};
use super::sqlite::SqliteIndex;
use super::{
    ClaimIndex, FileIndex, Index, IndexErrorKind, KnownSha256, NewXorb, Reader, Staging, Ticket, Totals, XorbState,
};
use crate::format::compression::Scheme;
use crate::format::shard::{Sha256, Term};
use crate::format::xorb::LayoutBuilder;
use crate::format::{ByteRange, ChunkHash, ChunkRange, FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

type Db = Arc<dyn Index>;

/// Runs each case on a fresh database.
macro_rules! suite {
    ($($case:ident)*) => {
        mod sqlite {
            $(#[tokio::test] async fn $case() {
                let directory = tempfile::tempdir().unwrap();
                let index = super::SqliteIndex::open(&directory.path().join("index.sqlite")).await.unwrap();
                super::$case(std::sync::Arc::new(index.clone())).await;
                index.close().await;
            })*
        }

        #[cfg(feature = "postgres-tests")]
        mod postgres {
            $(#[tokio::test] async fn $case() {
                let index = crate::index::postgres::test_hooks::fresh().await;
                super::$case(std::sync::Arc::new(index.clone())).await;
                index.close().await;
            })*
        }
    };
}

/// Runs each case on each database: the case has a type parameter, opens databases of its own and
/// looks into them.
macro_rules! suite_with_hooks {
    ($($case:ident)*) => {
        mod sqlite_with_hooks {
            $(#[tokio::test] async fn $case() {
                super::$case::<crate::index::conformance::backends::OnSqlite>().await;
            })*
        }

        #[cfg(feature = "postgres-tests")]
        mod postgres_with_hooks {
            $(#[tokio::test] async fn $case() {
                super::$case::<crate::index::conformance::backends::OnPostgres>().await;
            })*
        }
    };
}

/// Runs each case on a fresh database. The cases before the semicolon run once more on a database
/// that writes every registration in steps.
macro_rules! suite_in_steps {
    ($($case:ident)* $(; $($whole:ident)*)?) => {
        suite! { $($case)* $($($whole)*)? }

        mod sqlite_in_steps {
            $(#[tokio::test] async fn $case() {
                let directory = tempfile::tempdir().unwrap();
                let index = super::SqliteIndex::open(&directory.path().join("index.sqlite")).await.unwrap().in_steps();
                super::$case(std::sync::Arc::new(index.clone())).await;
                index.close().await;
            })*
        }

        #[cfg(feature = "postgres-tests")]
        mod postgres_in_steps {
            $(#[tokio::test] async fn $case() {
                let index = crate::index::postgres::test_hooks::fresh().await.in_steps();
                super::$case(std::sync::Arc::new(index.clone())).await;
                index.close().await;
            })*
        }
    };
}

mod archive;
pub(super) mod backends;
mod claims;
mod collect;
mod compact;
mod files;
mod grants;
mod health;
mod hub;
mod hub_rename;
mod hub_sweep;
mod hub_usage;
mod listing;
mod named;
mod objects;
mod open_records;
mod records;
mod repair;
mod statements;
mod steps;
mod steps_beside;
mod usage;

suite! {
    staged_xorb_is_invisible_and_published_one_reads_back
    second_staging_gets_the_row_and_the_first_cannot_publish
    staging_a_live_xorb_finds_it_and_changes_nothing
    deleting_row_cannot_become_staged_or_live
    only_staged_rows_are_abandoned_only_deleting_forgotten
    publication_without_staging_is_lost
    totals_count_what_readers_see
}

const ANY_LEN: std::ops::Range<u64> = 0..u64::MAX;
const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// A xorb of owner `org`. Chunk number n, from 1 on, has 8 + n serialized and 2 n raw bytes.
fn xorb(byte: u8, chunk_count: u8) -> NewXorb {
    let mut layout = LayoutBuilder::new();
    for chunk in 1..=chunk_count {
        layout.push(8 + u32::from(chunk), u32::from(chunk) * 2).unwrap();
    }
    NewXorb {
        hash: hash(byte),
        crc64: u64::MAX - u64::from(byte),
        layout: layout.finish().unwrap(),
        chunk_hashes: (1..=chunk_count).map(|chunk| ChunkHash::from_bytes([chunk; 32])).collect(),
        schemes: (0..chunk_count).map(|chunk| Scheme::from_byte(chunk % 3).unwrap()).collect(),
        owner: Some("org".to_owned()),
        grant: None,
    }
}

fn hash(byte: u8) -> XorbHash {
    XorbHash::from_bytes([byte; 32])
}

fn is_live(staging: Staging) -> bool {
    matches!(staging, Staging::Live { .. })
}

/// Stages and publishes a xorb, as an upload does.
async fn put(db: &Db, xorb: NewXorb) {
    let ticket = Ticket::random();
    assert_eq!(db.stage_xorb(xorb.hash, ticket, NOW).await.unwrap(), Staging::Staged);
    db.publish_xorb(xorb, ticket, NOW).await.unwrap();
}

async fn staged_xorb_is_invisible_and_published_one_reads_back(db: Db) {
    let (expected, ticket) = (xorb(1, 7), Ticket::random());
    assert_eq!(db.stage_xorb(hash(1), ticket, NOW).await.unwrap(), Staging::Staged);
    assert_eq!(db.find_xorb(hash(1)).await.unwrap(), None);
    assert_eq!(db.find_chunks(hash(1)).await.unwrap(), None);
    assert_eq!(db.unfinished_xorbs().await.unwrap(), [(hash(1), XorbState::Staged)]);

    db.publish_xorb(expected.clone(), ticket, NOW).await.unwrap();
    let found = db.find_xorb(hash(1)).await.unwrap().unwrap();
    assert_eq!((found.hash, found.crc64, found.layout), (hash(1), expected.crc64, expected.layout));
    let chunks = db.find_chunks(hash(1)).await.unwrap().unwrap();
    assert_eq!((chunks.hashes, chunks.schemes), (expected.chunk_hashes, expected.schemes));
    assert_eq!(db.unfinished_xorbs().await.unwrap(), []);
    assert_eq!(db.list_xorbs().await.unwrap(), [hash(1)]);
    assert_eq!(db.find_xorb(hash(2)).await.unwrap(), None);
}

async fn second_staging_gets_the_row_and_the_first_cannot_publish(db: Db) {
    let (first, second) = (Ticket::random(), Ticket::random());
    assert_eq!(db.stage_xorb(hash(1), first, NOW).await.unwrap(), Staging::Staged);
    assert_eq!(db.stage_xorb(hash(1), second, NOW).await.unwrap(), Staging::Staged);
    let lost = db.publish_xorb(xorb(1, 1), first, NOW).await.unwrap_err();
    assert_eq!(lost.kind, IndexErrorKind::Lost);
    assert_eq!(db.find_xorb(hash(1)).await.unwrap(), None);
    db.publish_xorb(xorb(1, 2), second, NOW).await.unwrap();
    assert_eq!(db.find_xorb(hash(1)).await.unwrap().unwrap().layout.chunk_count(), 2);
}

async fn staging_a_live_xorb_finds_it_and_changes_nothing(db: Db) {
    put(&db, xorb(1, 3)).await;
    let before = db.find_xorb(hash(1)).await.unwrap();
    let ticket = Ticket::random();
    let staged = db.stage_xorb(hash(1), ticket, NOW).await.unwrap();
    assert!(matches!(staged, Staging::Live { .. }));
    let lost = db.publish_xorb(xorb(1, 5), ticket, NOW).await.unwrap_err();
    assert_eq!(lost.kind, IndexErrorKind::Lost);
    assert_eq!(db.find_xorb(hash(1)).await.unwrap(), before);
}

async fn deleting_row_cannot_become_staged_or_live(db: Db) {
    let ticket = Ticket::random();
    db.stage_xorb(hash(1), ticket, NOW).await.unwrap();
    assert!(db.abandon_xorb(hash(1), NOW).await.unwrap());
    assert_eq!(db.stage_xorb(hash(1), Ticket::random(), NOW).await.unwrap(), Staging::Deleting);
    let lost = db.publish_xorb(xorb(1, 1), ticket, NOW).await.unwrap_err();
    assert_eq!(lost.kind, IndexErrorKind::Lost);
    assert_eq!(db.unfinished_xorbs().await.unwrap(), [(hash(1), XorbState::Deleting)]);
    assert!(db.forget_xorb(hash(1)).await.unwrap());
    assert_eq!(db.unfinished_xorbs().await.unwrap(), []);
    put(&db, xorb(1, 1)).await;
}

async fn only_staged_rows_are_abandoned_only_deleting_forgotten(db: Db) {
    assert!(!db.abandon_xorb(hash(1), NOW).await.unwrap());
    assert!(!db.forget_xorb(hash(1)).await.unwrap());
    put(&db, xorb(1, 1)).await;
    assert!(!db.abandon_xorb(hash(1), NOW).await.unwrap());
    assert!(!db.forget_xorb(hash(1)).await.unwrap());
    assert!(db.find_xorb(hash(1)).await.unwrap().is_some());
}

async fn publication_without_staging_is_lost(db: Db) {
    let lost = db.publish_xorb(xorb(1, 1), Ticket::random(), NOW).await.unwrap_err();
    assert_eq!(lost.kind, IndexErrorKind::Lost);
    assert_eq!(db.totals().await.unwrap(), Totals::default());
}

async fn totals_count_what_readers_see(db: Db) {
    assert_eq!(db.totals().await.unwrap(), Totals::default());
    put(&db, xorb(1, 1)).await;
    put(&db, xorb(2, 3)).await;
    db.stage_xorb(hash(3), Ticket::random(), NOW).await.unwrap();
    // Serialized chunks of 9, and of 9, 10 and 11 bytes; raw lengths of 2, and of 2, 4 and 6.
    assert_eq!(db.totals().await.unwrap(), Totals { xorb_count: 2, serialized_len: 39, raw_len: 14 });
}

#[tokio::test]
async fn index_is_read_back_after_it_was_closed_and_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("index.sqlite");
    let index = SqliteIndex::open(&path).await.unwrap();
    let db: Db = Arc::new(index.clone());
    put(&db, xorb(1, 3)).await;
    index.close().await;
    let db: Db = Arc::new(SqliteIndex::open(&path).await.unwrap());
    assert_eq!(db.find_xorb(hash(1)).await.unwrap().unwrap().layout, xorb(1, 3).layout);
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("index.sqlite");
    let contents = [b'x'; 4096];
    #[expect(clippy::disallowed_methods, reason = "a test may write a file plainly")]
    std::fs::write(&path, contents).unwrap();
    assert!(SqliteIndex::open(&path).await.is_err());
    assert_eq!(std::fs::read(&path).unwrap(), contents);
}

#[test]
fn every_migration_file_is_built_in_with_number_and_name() {
    for (database, migrations) in [("sqlite", SQLITE), ("postgres", POSTGRES)] {
        let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("migrations").join(database);
        let files = std::fs::read_dir(&directory).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        let built_in: Vec<_> = migrations.iter().map(|(number, name, _)| format!("{number:04}_{name}.sql")).collect();
        assert_eq!(files, built_in);
    }
}

#[tokio::test]
async fn a_database_of_an_older_schema_keeps_its_files() {
    use sqlx::{Connection, SqliteConnection, raw_sql};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("index.sqlite");
    let old: Vec<_> = SQLITE.iter().filter(|(version, ..)| *version < 4).copied().collect();
    let mut connection = SqliteConnection::connect(&format!("sqlite://{}?mode=rwc", path.display())).await.unwrap();
    migrator(&old).run(&mut connection).await.unwrap();
    let terms = [Term { xorb: hash(1), raw_len: 5, chunks: ChunkRange::new(0, 1).unwrap() }; 3];
    let packed: String = pack_terms(&terms).iter().map(|byte| format!("{byte:02x}")).collect();
    let insert = format!(
        "INSERT INTO files (hash, raw_len, terms, since, sha256, sha256_state) VALUES \
         (X'{}', 15, X'{packed}', 0, X'{}', 1), (X'{}', 0, X'', 0, NULL, 0); \
         INSERT INTO file_repos (file_id, repo) VALUES (1, 'org/a'), (2, 'org/a');",
        "01".repeat(32),
        "02".repeat(32),
        "00".repeat(32)
    );
    raw_sql(sqlx::AssertSqlSafe(insert)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();

    let index = SqliteIndex::open(&path).await.unwrap();
    let reader = Reader::Repo("org/a".to_owned());
    let whole = ByteRange::new(0, u64::MAX);
    let file = FileHash::from_bytes([1; 32]);
    let row = index.find_file(file, reader.clone(), whole).await.unwrap().unwrap();
    assert_eq!((row.raw_len, row.terms.as_slice()), (15, &terms[..]));
    let empty = index.find_file(FileHash::EMPTY, reader.clone(), whole).await.unwrap().unwrap();
    assert_eq!((empty.raw_len, empty.terms), (0, Vec::new()));
    let known = index.find_sha256(Sha256::from_digest([2; 32]), reader).await.unwrap();
    assert_eq!(known, Some(KnownSha256 { file, raw_len: 15, is_verified: false }));
    index.close().await;
}
