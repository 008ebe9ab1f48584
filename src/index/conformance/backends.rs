//! The databases that run the cases, and what some cases need of them beside the verbs.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{Index, SqliteIndex};
use crate::index::{Cursor, IndexError, RegisterIndex, Registered, Registration};

/// An index that a case can look into. Statements are in the words of SQLite; another database
/// translates the few that occur.
pub(in crate::index) trait TestIndex: Index + Clone {
    /// Runs statements that violate the rules of the database, like bit rot or a bug.
    fn tamper<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, ()>;

    /// Runs a statement; returns whether the database allows it.
    fn is_accepted<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, bool>;

    /// Lines that describe the stored usage and file lists, and lines that describe the same
    /// recounted from claims and references. Both must be equal.
    fn recounted(&self) -> BoxFuture<'_, [Vec<String>; 2]>;

    /// The number of rows of unfinished registrations and removals, and of rows without their file.
    fn left_row_count(&self) -> BoxFuture<'_, i64>;
}

/// A database that runs cases.
pub(in crate::index) trait Backend {
    type Index: TestIndex;
    /// What must exist as long as the index.
    type Place: Send + Sync;

    fn fresh() -> BoxFuture<'static, (Self::Place, Self::Index)>;
}

/// SQLite, in a file of its own for each case.
#[derive(Debug)]
pub(in crate::index) struct OnSqlite;

impl Backend for OnSqlite {
    type Index = SqliteIndex;
    type Place = tempfile::TempDir;

    fn fresh() -> BoxFuture<'static, (Self::Place, SqliteIndex)> {
        async {
            let directory = tempfile::tempdir().unwrap();
            let index = SqliteIndex::open(&directory.path().join("index.sqlite")).await.unwrap();
            (directory, index)
        }
        .boxed()
    }
}

impl TestIndex for SqliteIndex {
    fn tamper<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, ()> {
        self.tamper(sql).boxed()
    }

    fn is_accepted<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, bool> {
        self.is_accepted(sql).boxed()
    }

    fn recounted(&self) -> BoxFuture<'_, [Vec<String>; 2]> {
        self.recounted().boxed()
    }

    fn left_row_count(&self) -> BoxFuture<'_, i64> {
        self.left_row_count().boxed()
    }
}

/// PostgreSQL, in a database of its own for each case.
#[cfg(feature = "postgres-tests")]
#[derive(Debug)]
pub(in crate::index) struct OnPostgres;

#[cfg(feature = "postgres-tests")]
impl Backend for OnPostgres {
    type Index = crate::index::postgres::PostgresIndex;
    type Place = ();

    fn fresh() -> BoxFuture<'static, ((), Self::Index)> {
        async { ((), crate::index::postgres::test_hooks::fresh().await) }.boxed()
    }
}

/// Writes any registration in steps, as a server does with long ones.
pub(in crate::index) async fn register_in_steps(
    index: &(impl RegisterIndex + Sync + ?Sized),
    registration: &Registration,
    record: Option<u64>,
) -> Result<Registered, IndexError> {
    let begun = index.begin_registration(registration).await?;
    let (mut outcome, mut next) = (Registered::Known, Some(Cursor::start(registration)));
    while let Some(from) = next {
        let entered = index.write_step(begun, registration, from).await?;
        next = entered.next;
        match entered.outcome {
            Registered::Known => {}
            Registered::Added if outcome == Registered::New => {}
            told => outcome = told,
        }
    }
    if matches!(outcome, Registered::New | Registered::Added) {
        index.publish_registration(begun, record).await?;
    }
    if matches!(outcome, Registered::New | Registered::Added | Registered::Known) {
        index.write_dedup_step(registration, 0, usize::MAX).await?;
    }
    index.abandon_registrations(Some(begun.id)).await?;
    while index.sweep_registrations(None, registration.now).await? {}
    Ok(outcome)
}
