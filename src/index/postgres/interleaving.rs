//! Tests of two processes on one database: two indexes with connections of their own.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::join;
use tokio::time::{sleep, timeout};

use super::collect::delete_some;
use super::register::write_whole;
use super::{PostgresIndex, test_server};
use crate::format::compression::Scheme;
use crate::format::shard::Term;
use crate::format::xorb::LayoutBuilder;
use crate::format::{ChunkHash, ChunkRange, FileHash, XorbHash};
use crate::index::migrate::POSTGRES;
use crate::index::{
    Allowance, Collect, Cursor, IndexErrorKind, NewFile, NewXorb, RegisterIndex, Registered, Registration, Ticket,
    XorbIndex, XorbState,
};
use crate::runtime::clock::Timestamp;
use crate::runtime::telemetry::chain;

const BEFORE: Timestamp = Timestamp::from_millis(1_000);
const NOW: Timestamp = Timestamp::from_millis(2_000);

/// How long a verb is watched before it counts as waiting.
const WAIT: Duration = Duration::from_millis(200);

pub(super) fn xorb(number: u8) -> NewXorb {
    let mut layout = LayoutBuilder::new();
    layout.push(9, 2).unwrap();
    NewXorb {
        hash: XorbHash::from_bytes([number; 32]),
        crc64: 1,
        layout: layout.finish().unwrap(),
        chunk_hashes: vec![ChunkHash::from_bytes([number; 32])],
        schemes: vec![Scheme::from_byte(0).unwrap()],
        owner: None,
        grant: None,
    }
}

/// A file of this one xorb.
pub(super) fn registration(number: u8) -> Registration {
    let xorb = XorbHash::from_bytes([number; 32]);
    let term = Term { xorb, raw_len: 2, chunks: ChunkRange::new(0, 1).unwrap() };
    let file = NewFile { hash: FileHash::from_bytes([number; 32]), raw_len: 2, terms: vec![term], sha256: None };
    Registration {
        repo: "org/a".to_owned(),
        files: vec![file],
        xorbs: vec![xorb],
        dedup: Vec::new(),
        now: NOW,
        allowance: Allowance::default(),
    }
}

/// Two indexes of one database, as two processes have.
async fn two() -> (PostgresIndex, PostgresIndex) {
    let url = test_server::migrated().await;
    (PostgresIndex::open(&url).await.unwrap(), PostgresIndex::open(&url).await.unwrap())
}

/// Publishes a xorb that GC may delete.
pub(super) async fn condemned(index: &PostgresIndex, number: u8) -> XorbHash {
    let (new, ticket) = (xorb(number), Ticket::random());
    let hash = new.hash;
    index.stage_xorb(hash, ticket, BEFORE).await.unwrap();
    index.publish_xorb(new, ticket, BEFORE).await.unwrap();
    assert_eq!(index.condemn_xorbs(vec![hash], BEFORE, BEFORE).await.unwrap(), [hash]);
    hash
}

async fn state(index: &PostgresIndex, hash: XorbHash) -> XorbState {
    index.find_life(hash).await.unwrap().unwrap().state
}

#[tokio::test]
async fn deletion_waits_for_a_registration_and_finds_its_reference() {
    let (one, other) = two().await;
    let hash = condemned(&one, 1).await;
    let new = registration(1);
    let mut held = one.writing("register files").await.unwrap();
    let mut tx = held.begin().await.unwrap();
    assert_eq!(write_whole(&mut tx, &new, Cursor::start(&new)).await.unwrap(), Some(Registered::New));

    let mut deletion = pin!(other.begin_deletions(vec![hash], NOW, NOW));
    assert!(timeout(WAIT, &mut deletion).await.is_err(), "it must wait");
    // Readers of both processes see the state before, and do not wait.
    assert_eq!(state(&other, hash).await, XorbState::Condemned);
    tx.commit().await.unwrap();
    assert_eq!(deletion.await.unwrap(), []);
    assert_eq!(state(&other, hash).await, XorbState::Live);
}

#[tokio::test]
async fn registration_waits_for_a_deletion_and_is_refused() {
    let (one, other) = two().await;
    let hash = condemned(&one, 1).await;
    let mut held = one.writing("begin to delete xorbs").await.unwrap();
    let mut tx = held.begin().await.unwrap();
    assert_eq!(delete_some(&mut tx, &[hash], NOW, NOW).await.unwrap(), [hash]);

    let new = registration(1);
    let mut registered = pin!(other.register(&new));
    assert!(timeout(WAIT, &mut registered).await.is_err(), "it must wait");
    assert_eq!(state(&other, hash).await, XorbState::Condemned);
    tx.commit().await.unwrap();
    assert_eq!(registered.await.unwrap(), Registered::MissingXorb(hash));
    assert_eq!(state(&other, hash).await, XorbState::Deleting);
}

#[tokio::test]
async fn of_a_racing_registration_and_deletion_one_succeeds() {
    let (one, other) = two().await;
    let (mut deleted_count, mut registered_count) = (0, 0);
    for number in 1..=100 {
        let hash = condemned(&one, number).await;
        let new = registration(number);
        let deletion = async {
            sleep(Duration::from_micros(rand::random_range(0..1500))).await;
            other.begin_deletions(vec![hash], NOW, NOW).await.unwrap()
        };
        let registering = async {
            sleep(Duration::from_micros(rand::random_range(0..1500))).await;
            one.register(&new).await.unwrap()
        };
        let (deleted, registered) = join(deletion, registering).await;
        match registered {
            Registered::New => {
                assert_eq!(deleted, [], "xorb {number}");
                assert_eq!(state(&one, hash).await, XorbState::Live);
                registered_count += 1;
            }
            Registered::MissingXorb(_) => {
                assert_eq!(deleted, [hash], "xorb {number}");
                deleted_count += 1;
            }
            refused => panic!("{refused:?}"),
        }
    }
    println!("{deleted_count} deleted, {registered_count} registered");
    assert!(deleted_count > 0 && registered_count > 0, "both orders occur");
}

/// The session of a paused process ends at the server; what it was writing must not be committed.
#[tokio::test]
async fn writer_that_loses_its_session_changes_nothing() {
    let (one, other) = two().await;
    let hash = condemned(&one, 1).await;
    let new = registration(1);
    let mut held = one.writing("register files").await.unwrap();
    let mut tx = held.begin().await.unwrap();
    write_whole(&mut tx, &new, Cursor::start(&new)).await.unwrap();
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND granted \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let ended: i64 = other.read("end a session").one(sqlx::query(end)).await.unwrap();
    assert_eq!(ended, 1);
    // Its lock ends with it.
    assert_eq!(other.begin_deletions(vec![hash], NOW, NOW).await.unwrap(), [hash]);
    assert_eq!(tx.commit().await.unwrap_err().kind, IndexErrorKind::Unavailable);
    drop(held);
    assert_eq!(one.register(&new).await.unwrap(), Registered::MissingXorb(hash));
}

/// PostgreSQL rolls such a transaction back and reports the commit as successful.
#[tokio::test]
async fn commit_after_a_failed_statement_is_an_error() {
    let index = super::test_hooks::fresh().await;
    let mut held = index.writing("fail").await.unwrap();
    let mut tx = held.begin().await.unwrap();
    tx.execute(sqlx::query("UPDATE totals SET xorb_count = 7")).await.unwrap();
    tx.execute(sqlx::query("SELECT 1 / 0")).await.unwrap_err();
    assert!(chain(&tx.commit().await.unwrap_err()).contains("has failed"));
    drop(held);
    assert_eq!(index.totals().await.unwrap().xorb_count, 0);
}

/// Longer than the setting `lock_timeout`, after which the server ends the wait.
#[tokio::test]
async fn writer_that_waits_long_for_another_tries_again() {
    let (one, other) = two().await;
    let hash = condemned(&one, 1).await;
    let mut held = one.writing("register files").await.unwrap();
    let tx = held.begin().await.unwrap();
    let deletion = other.begin_deletions(vec![hash], NOW, NOW);
    let release = async {
        sleep(Duration::from_millis(5500)).await;
        tx.rollback().await.unwrap();
    };
    let (deleted, ()) = join(deletion, release).await;
    assert_eq!(deleted.unwrap(), [hash]);
    drop(held);
    assert!(one.longest_write.get() > Duration::from_secs(5));
}

#[tokio::test]
async fn only_a_database_with_the_schema_of_this_program_is_opened() {
    let url = test_server::empty().await;
    let error = PostgresIndex::open(&url).await.unwrap_err();
    assert_eq!(error.kind, IndexErrorKind::Older);
    assert!(chain(&error).contains("it has no schema yet: run zorb db migrate"));
    // Several processes may migrate at once.
    let (one, other) = join(PostgresIndex::migrate(&url), PostgresIndex::migrate(&url)).await;
    one.unwrap();
    other.unwrap();
    let index = PostgresIndex::open(&url).await.unwrap();
    assert_eq!(POSTGRES.len(), 12);
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (999, 'x', TRUE, '', 0)",
    )
    .execute(&index.writers)
    .await
    .unwrap();
    index.close().await;
    for error in [PostgresIndex::open(&url).await.unwrap_err(), PostgresIndex::migrate(&url).await.unwrap_err()] {
        assert_eq!(error.kind, IndexErrorKind::Newer);
        assert!(chain(&error).contains("its schema has version 999"), "{}", chain(&error));
    }
}

#[tokio::test]
async fn password_is_in_no_error_and_no_debug_output() {
    let url = test_server::migrated().await.replace("user=zorb", "user=unknown&password=secret-word");
    let error = PostgresIndex::open(&url).await.unwrap_err();
    let text = format!("{error:?} {}", chain(&error));
    assert!(!text.contains("secret-word"), "{text}");
    let url = test_server::migrated().await + "&password=secret-word";
    let index = PostgresIndex::open(&url).await.unwrap();
    assert!(!format!("{index:?}").contains("secret-word"));
}
