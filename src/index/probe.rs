//! For test builds only: a hook at each statement of a write transaction, and a file of slow
//! transactions.
//!
//! The hook belongs to a thread. So a test whose runtime has one thread sees the statements of its
//! own indexes only.

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::time::Duration;

use super::error::{IndexError, IndexErrorKind};

/// Transactions that take at least this long are recorded.
const SLOW: Duration = Duration::from_millis(20);

/// The environment variable that names the file of slow transactions.
const SLOW_FILE: &str = "ZORB_TEST_SLOW_WRITES";

/// A place in a write transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Before the transaction begins.
    Begin,
    /// Before a statement.
    Statement,
    /// Before the commit.
    Commit,
    /// After the commit. A failure here is a commit with an unknown outcome.
    Committed,
}

/// Called at each place with the name of the operation. Returns whether the operation fails there.
pub type Hook = Box<dyn FnMut(Place, &'static str) -> bool + Send>;

thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// Sets the hook of this thread, or removes it.
pub fn set(hook: Option<Hook>) {
    HOOK.with_borrow_mut(|current| *current = hook);
}

/// Removes the hook of this thread, and returns it.
#[must_use]
pub fn take() -> Option<Hook> {
    HOOK.take()
}

/// Calls the hook of this thread, and returns the failure that it asks for.
pub(super) fn pass(place: Place, op: &'static str) -> Result<(), IndexError> {
    let fails = HOOK.with_borrow_mut(|hook| hook.as_mut().is_some_and(|hook| hook(place, op)));
    if !fails {
        return Ok(());
    }
    let source = io::Error::other(format!("a failure of a test, at {place:?}"));
    Err(IndexError { op, kind: IndexErrorKind::Other, source: Box::new(source) })
}

/// Appends a slow transaction to the file that the environment variable names: the milliseconds of
/// the transaction, those of its commit, and the operation with its database.
pub(super) fn record_slow(database: &'static str, op: &'static str, whole: Duration, statements: Duration) {
    static FILE: OnceLock<Option<std::ffi::OsString>> = OnceLock::new();
    let file = FILE.get_or_init(|| std::env::var_os(SLOW_FILE));
    let Some(file) = file.as_ref().filter(|_| whole >= SLOW) else { return };
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let line = format!("{:.1}\t{:.1}\t{op} ({database})\n", millis(whole), millis(whole.saturating_sub(statements)));
    let opened = OpenOptions::new().create(true).append(true).open(file);
    // A single write, because other processes append to the same file.
    opened.and_then(|mut file| file.write_all(line.as_bytes())).expect("the file of slow writes can be written");
}
