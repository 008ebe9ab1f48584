//! Tests of several processes of one database: each has an index with a session of its own.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use sqlx::{Connection, PgConnection, query};
use tokio::time::{sleep, timeout};

use super::interleaving::{condemned, registration, xorb};
use super::test_server::migrated;
use super::{PostgresIndex, SealedKeys, ServerAccess, Session};
use crate::format::{FileHash, StoreId, XorbHash};
use crate::index::{
    Collect, Cursor, IndexErrorKind, ObjectIndex, RecordIndex, RegisterIndex, Registered, StoreLockIndex,
    StoreLockKeys, Ticket, XorbIndex,
};
use crate::runtime::clock::{Clock, ManualClock, SystemClock, Timestamp};
use crate::runtime::task::TaskGroup;
use crate::runtime::telemetry::chain;

/// A process: its index, the number of its session in PostgreSQL, and what runs the session.
struct Process {
    index: PostgresIndex,
    session: i32,
    tasks: TaskGroup,
}

impl Process {
    async fn start(url: &str) -> Self {
        let mut session = Session::begin(url, &SystemClock).await.unwrap();
        assert!(session.try_lock_server(ServerAccess::Shared).await.unwrap());
        let number = session.number().await;
        let (handle, tasks) = (session.handle(), TaskGroup::new());
        tasks.spawn(session.run().map(drop));
        let index = PostgresIndex::open(url).await.unwrap().with_session(handle).await.unwrap();
        Self { index, session: number, tasks }
    }

    /// Ends the session, as PostgreSQL does when it cannot reach the process.
    async fn cut_off(&self, url: &str) {
        let mut connection = PgConnection::connect(url).await.unwrap();
        query("SELECT pg_terminate_backend($1)").bind(self.session).execute(&mut connection).await.unwrap();
        timeout(Duration::from_secs(10), self.tasks.join()).await.expect("the end of the session is noticed");
    }
}

fn files(bytes: &[u8]) -> Vec<FileHash> {
    bytes.iter().map(|byte| FileHash::from_bytes([*byte; 32])).collect()
}

/// Whether the process gets these locks, which are released at once.
async fn gets(process: &Process, keys: StoreLockKeys) -> bool {
    process.index.try_lock_store(keys).await.unwrap().is_some()
}

/// Releases are performed behind the back of who drops a lock.
async fn soon_gets(process: &Process, keys: StoreLockKeys) {
    for _ in 0..1000 {
        if gets(process, keys.clone()).await {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("{keys:?} is not released");
}

#[tokio::test]
async fn schema_changes_only_while_no_server_runs() {
    let url = migrated().await;
    let server = Process::start(&url).await;
    // Nothing is to be done, so servers may run.
    PostgresIndex::migrate(&url).await.unwrap();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    // As before the last migration.
    for sql in [
        "ALTER TABLE file_repos DROP COLUMN since",
        "DELETE FROM _sqlx_migrations WHERE version = (SELECT max(version) FROM _sqlx_migrations)",
    ] {
        query(sql).execute(&mut connection).await.unwrap();
    }
    let error = PostgresIndex::migrate(&url).await.unwrap_err();
    assert!(chain(&error).contains("servers of this store or another migration are running"), "{}", chain(&error));
    assert_eq!(PostgresIndex::open(&url).await.unwrap_err().kind, IndexErrorKind::Older);
    server.cut_off(&url).await;
    PostgresIndex::migrate(&url).await.unwrap();
    Process::start(&url).await.cut_off(&url).await;
}

#[tokio::test]
async fn registrations_share_the_locks_of_files_and_changes_do_not() {
    let url = migrated().await;
    let (one, other) = (Process::start(&url).await, Process::start(&url).await);
    let registering = one.index.try_lock_store(StoreLockKeys::to_register(files(&[1, 2]))).await.unwrap().unwrap();
    assert!(gets(&other, StoreLockKeys::to_register(files(&[2, 3]))).await);
    soon_gets(&other, StoreLockKeys::to_change(files(&[3]))).await;
    assert!(!gets(&other, StoreLockKeys::to_change(files(&[2, 3]))).await, "all or none");
    // The attempt has left nothing locked: neither here nor there.
    assert!(gets(&one, StoreLockKeys::to_change(files(&[3]))).await);
    drop(registering);
    soon_gets(&other, StoreLockKeys::to_change(files(&[1, 2]))).await;

    let changing = other.index.try_lock_store(StoreLockKeys::to_change(files(&[7]))).await.unwrap().unwrap();
    assert!(!gets(&one, StoreLockKeys::to_register(files(&[7]))).await);
    assert!(gets(&one, StoreLockKeys::to_change_hub_repo(7)).await);
    drop(changing);
    soon_gets(&one, StoreLockKeys::to_register(files(&[7]))).await;
}

#[tokio::test]
async fn registrations_of_a_repository_share_its_lock_with_no_change() {
    let url = migrated().await;
    let (one, other) = (Process::start(&url).await, Process::start(&url).await);
    let registering = one.index.try_lock_store(StoreLockKeys::to_register_for_hub_repo(7)).await.unwrap().unwrap();
    assert!(gets(&other, StoreLockKeys::to_register_for_hub_repo(7)).await);
    assert!(gets(&other, StoreLockKeys::to_change_hub_repo(8)).await);
    assert!(!gets(&other, StoreLockKeys::to_change_hub_repo(7)).await);
    drop(registering);
    soon_gets(&other, StoreLockKeys::to_change_hub_repo(7)).await;
}

/// They would sign URLs for the old blob after its deletion.
#[tokio::test]
async fn replacement_of_a_sound_blob_is_told_to_other_servers() {
    let url = migrated().await;
    let (one, other) = (Process::start(&url).await, Process::start(&url).await);
    let (now, hash) = (SystemClock.now(), xorb(1).hash);
    let (first, second) = (Ticket::random(), Ticket::random());
    one.index.stage_xorb(hash, first, now).await.unwrap();
    one.index.publish_xorb(xorb(1), first, now).await.unwrap();
    one.index.stage_xorb(hash, second, now).await.unwrap();
    one.index.begin_object(hash, second.incarnation(), 9, now).await.unwrap();
    let before = other.index.generation().await.unwrap();
    one.index.replace_xorb(xorb(1), second, second.incarnation(), now).await.unwrap();
    assert_ne!(other.index.generation().await.unwrap(), before);
}

/// Commands such as `zorb backup` have no session.
#[tokio::test]
async fn command_notices_a_database_that_was_set_back() {
    let url = migrated().await;
    let (server, command) = (Process::start(&url).await, PostgresIndex::open(&url).await.unwrap());
    assert!(!command.was_set_back().await.unwrap(), "a new database has no history");
    server.index.note_history().await.unwrap();
    assert!(!command.was_set_back().await.unwrap());
    // As after the promotion of a standby, which begins another timeline.
    let mut connection = PgConnection::connect(&url).await.unwrap();
    query("UPDATE store SET history = 'another'").execute(&mut connection).await.unwrap();
    assert!(command.was_set_back().await.unwrap());
}

#[tokio::test]
async fn locks_of_a_caller_that_does_not_wait_are_released() {
    let url = migrated().await;
    let (one, other) = (Process::start(&url).await, Process::start(&url).await);
    for _ in 0..50 {
        let keys = StoreLockKeys::to_change_hub_repo(7);
        let mut asked = one.index.try_lock_store(keys.clone());
        assert!((&mut asked).now_or_never().is_none());
        drop(asked);
        soon_gets(&other, keys).await;
    }
}

#[tokio::test]
async fn process_without_its_session_writes_nothing_and_locks_nothing() {
    let url = migrated().await;
    let (one, other) = (Process::start(&url).await, Process::start(&url).await);
    let keys = StoreLockKeys::to_change(files(&[1]));
    let locked = one.index.try_lock_store(keys.clone()).await.unwrap().unwrap();
    one.index.set_store(StoreId::from_bytes([1; 16]), Some(7)).await.unwrap();
    one.cut_off(&url).await;
    assert!(gets(&other, keys.clone()).await, "the lock ended with the session");
    let refused = one.index.set_store(StoreId::from_bytes([1; 16]), Some(8)).await.unwrap_err();
    assert_eq!(refused.kind, IndexErrorKind::Unavailable);
    assert!(one.index.next_record_number(0).await.is_err());
    let xorb = XorbHash::from_bytes([1; 32]);
    assert!(one.index.incarnation_to_delete(xorb).await.is_err());
    assert_eq!(one.index.incarnation_of(xorb).await.unwrap(), None, "it may read");
    assert!(one.index.try_lock_store(keys).await.is_err());
    drop(locked);
    assert_eq!(other.index.store_mark().await.unwrap().last_record, Some(7));
    other.index.set_store(StoreId::from_bytes([1; 16]), Some(9)).await.unwrap();
}

#[tokio::test]
async fn server_lock_is_of_one_process_alone_or_of_several() {
    let url = migrated().await;
    let [mut one, mut other] =
        [Session::begin(&url, &SystemClock).await.unwrap(), Session::begin(&url, &SystemClock).await.unwrap()];
    assert!(one.try_lock_server(ServerAccess::Alone).await.unwrap());
    for access in [ServerAccess::Alone, ServerAccess::Shared] {
        assert!(!other.try_lock_server(access).await.unwrap());
    }
    let (handle, tasks) = (one.handle(), TaskGroup::new());
    tasks.spawn(one.run().map(drop));
    handle.share().await.unwrap();
    assert!(!other.try_lock_server(ServerAccess::Alone).await.unwrap());
    assert!(other.try_lock_server(ServerAccess::Shared).await.unwrap());
    assert!(handle.try_lead().await.unwrap());
    let other_handle = other.handle();
    tasks.spawn(other.run().map(drop));
    assert!(!other_handle.try_lead().await.unwrap());
}

#[tokio::test]
async fn process_whose_clock_differs_gets_no_session() {
    let (url, now) = (migrated().await, SystemClock.now().as_millis());
    for (millis, is_right) in [(now, true), (now + 20_000, true), (now + 50_000, false), (now - 50_000, false)] {
        let clock = ManualClock::new(Timestamp::from_millis(millis));
        let begun = Session::begin(&url, &clock).await;
        assert_eq!(begun.is_ok(), is_right, "{millis}");
        if let Err(error) = begun {
            assert!(chain(&error).contains("the clocks of this machine and of PostgreSQL differ"), "{error:?}");
        }
    }
}

#[tokio::test]
async fn numbers_of_records_are_used_once_and_never_go_back() {
    let url = migrated().await;
    let (one, other) = (Process::start(&url).await, Process::start(&url).await);
    assert_eq!(one.index.next_record_number(0).await.unwrap(), 0);
    assert!(one.index.next_record_number(u64::MAX).await.is_err(), "there is none");
    for min in [0, 5, 9, 1000, 1003, 1_000_000_000] {
        let numbers = join_all(
            (0..20)
                .map(|n| if n % 2 == 0 { &one } else { &other })
                .map(async |process| process.index.next_record_number(min).await.unwrap()),
        )
        .await;
        let distinct: HashSet<u64> = numbers.iter().copied().collect();
        assert_eq!(distinct.len(), numbers.len(), "{numbers:?}");
        assert!(numbers.iter().all(|number| *number >= min), "{numbers:?}");
        let next = other.index.next_record_number(0).await.unwrap();
        assert!(numbers.iter().all(|number| *number < next), "{numbers:?} {next}");
    }
}

/// A record is open from the moment its number is taken until its change is made.
#[tokio::test]
async fn records_of_an_ended_process_are_abandoned_unless_applied() {
    let url = migrated().await;
    let (one, other) = (Process::start(&url).await, Process::start(&url).await);
    let id = StoreId::from_bytes([1; 16]);
    let [applied, closed, open] = [(); 3].map(|()| one.index.next_record_number(0));
    let (applied, closed, open) = (applied.await.unwrap(), closed.await.unwrap(), open.await.unwrap());
    let alive = other.index.next_record_number(0).await.unwrap();
    let given_up = one.index.next_record_number(0).await.unwrap();
    one.index.set_store(id, Some(applied)).await.unwrap();
    one.index.close_record(closed).await.unwrap();
    one.index.give_up_record(applied).await.unwrap();
    assert_eq!(other.index.abandoned_records().await.unwrap(), [] as [u64; 0], "its process lives");
    for (seq, is_open) in [(applied, false), (closed, false), (open, true)] {
        assert_eq!(one.index.is_record_open(seq).await.unwrap(), Some(is_open), "{seq}");
    }
    one.index.give_up_record(given_up).await.unwrap();
    assert_eq!(other.index.abandoned_records().await.unwrap(), [given_up], "its process lives, but not its change");
    other.index.close_record(given_up).await.unwrap();
    one.cut_off(&url).await;
    assert_eq!(other.index.abandoned_records().await.unwrap(), [open]);
    assert!(one.index.abandoned_records().await.is_err(), "only a process with a session may look");
    // A later change of another server does not hide it.
    other.index.set_store(id, Some(alive)).await.unwrap();
    assert_eq!(other.index.abandoned_records().await.unwrap(), [open]);
    other.index.close_record(open).await.unwrap();
    assert_eq!(other.index.abandoned_records().await.unwrap(), [] as [u64; 0]);
}

/// Two servers register the same file in steps: the second one has to wait, and does not stop the
/// first one.
#[tokio::test]
async fn registration_of_another_process_is_discarded_after_its_end() {
    let url = migrated().await;
    let (one, other) = (Process::start(&url).await, Process::start(&url).await);
    let new = registration(1);
    condemned(&one.index, 1).await;
    let begun = one.index.begin_registration(&new).await.unwrap();
    one.index.write_step(begun, &new, Cursor::start(&new)).await.unwrap();
    let refused = other.index.register_of(&new, None).await.unwrap_err();
    assert_eq!(refused.kind, IndexErrorKind::InProgress);
    assert!(chain(&refused).contains("another server is registering one of the files"), "{refused:?}");
    // A younger one in steps waits, too, and an older one does not wait.
    let younger = other.index.begin_registration(&new).await.unwrap();
    let waits = other.index.write_step(younger, &new, Cursor::start(&new)).await.unwrap_err();
    assert_eq!(waits.kind, IndexErrorKind::InProgress);
    let third = registration(4);
    condemned(&one.index, 4).await;
    other.index.write_step(younger, &third, Cursor::start(&third)).await.unwrap();
    one.index.write_step(begun, &third, Cursor::start(&third)).await.unwrap();
    let lost = other.index.publish_registration(younger, None).await.unwrap_err();
    assert_eq!(lost.kind, IndexErrorKind::Lost);
    assert_eq!(other.index.abandon_registrations_of_ended().await.unwrap(), 0);
    one.index.publish_registration(begun, None).await.unwrap();
    assert_eq!(other.index.register_of(&new, None).await.unwrap(), Some(Registered::Known));

    let newer = registration(2);
    condemned(&one.index, 2).await;
    let begun = one.index.begin_registration(&newer).await.unwrap();
    one.index.write_step(begun, &newer, Cursor::start(&newer)).await.unwrap();
    one.cut_off(&url).await;
    assert_eq!(other.index.register_of(&newer, None).await.unwrap(), Some(Registered::New));
    let begun = other.index.begin_registration(&registration(3)).await.unwrap();
    other.cut_off(&url).await;
    let last = Process::start(&url).await;
    assert_eq!(last.index.abandon_registrations_of_ended().await.unwrap(), 1, "{begun:?}");
}

#[tokio::test]
async fn sealed_keys_are_changed_one_after_another() {
    let url = migrated().await;
    let (one, other) = (Process::start(&url).await, Process::start(&url).await);
    assert_eq!(one.index.changed_keys(None).await.unwrap(), None);
    let add = |process: &'static str| {
        move |old: Option<Vec<u8>>| Ok::<_, String>([old.unwrap_or_default(), process.as_bytes().to_vec()].concat())
    };
    for _ in 0..5 {
        let changed = futures_util::join!(one.index.change_keys(add("a")), other.index.change_keys(add("b")));
        assert!(changed.0.unwrap().is_ok() && changed.1.unwrap().is_ok());
    }
    let SealedKeys { version, sealed } = one.index.changed_keys(None).await.unwrap().unwrap();
    assert_eq!((version, sealed.len()), (10, 10));
    assert_eq!(one.index.changed_keys(Some(version)).await.unwrap(), None);
    let refused = one.index.change_keys(|_| Err::<Vec<u8>, _>("no".to_owned())).await.unwrap();
    assert_eq!(refused, Err("no".to_owned()));
    assert_eq!(other.index.changed_keys(Some(version)).await.unwrap(), None);
}
