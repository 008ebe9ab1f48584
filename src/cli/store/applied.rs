//! Whether the index has applied all records of its store. A crash may have left some, and an index
//! that was set back to an older state lacks some: the next first start applies them.
//!
//! After `Ok` of [`check_all_applied`] the index had applied every record that existed before. It
//! says nothing of records that a server adds since.

use std::time::Duration;

use anyhow::bail;
use tokio::time::sleep;

use super::{StoreIndex, StoreLocation, advice, compare, try_lock};
use crate::cli::units::Count;

/// Interval between two checks whether registrations in flight have finished.
const SETTLE_PAUSE: Duration = Duration::from_millis(500);

/// Maximum number of such checks, so that a command waits at most 10 seconds. A registration takes
/// milliseconds, and up to a second on slow disks.
const SETTLE_COUNT: usize = 20;

/// Checks that the index has applied every record that exists now. A backup would silently lack the
/// other ones. A compaction adds records, and the last of them would count as the last applied one,
/// so that no start would apply those before it. While a process serves or checks the store, waits
/// for the registrations that are under way.
///
/// # Errors
///
/// The index lacks records, or is in a database that was set back, or either cannot be read.
pub(in crate::cli) async fn check_all_applied(location: &StoreLocation, index: &StoreIndex) -> anyhow::Result<()> {
    // The tail is the list of records that the index has not applied.
    let mut tail = compare(location, index).await?;
    for _ in 0..SETTLE_COUNT {
        if tail.is_empty() || !is_in_use(location) {
            break;
        }
        sleep(SETTLE_PAUSE).await;
        // Removes the records that were applied meanwhile. New records do not prolong the wait.
        tail.retain_of(&compare(location, index).await?);
    }
    let dir = location.data_dir.display();
    if !tail.is_empty() {
        let count = Count(tail.len() as u64, "record");
        bail!("the index of {dir} has not applied {count} of the last run; start zorb serve once to apply them");
    }
    // Then a first start also applies records before the last applied one.
    let was_set_back = index.shared().was_set_back().await;
    if was_set_back.map_err(|error| advice::explain(location, error.into()))? {
        bail!("the database was set back, or a standby was promoted; start zorb serve once to apply what it lacks");
    }
    Ok(())
}

/// Whether registrations may be under way: another process has locked the data directory, or it
/// cannot be locked, or other machines can serve the store. The other process may be no server:
/// `zorb fsck` has the lock, too.
fn is_in_use(location: &StoreLocation) -> bool {
    location.shared_database().is_some() || !matches!(try_lock(&location.data_dir), Ok(Some(_)))
}
