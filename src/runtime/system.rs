//! What the operating systems do differently: the calls of Linux, and what stands for them
//! elsewhere.
//!
//! | what | Linux | elsewhere |
//! |---|---|---|
//! | [`read_cached`] | `preadv2` with `RWF_NOWAIT` | reads nothing: every read blocks a thread |
//! | [`set_direct`] | `O_DIRECT` | unsupported: what is written goes to the page cache |
//! | [`begin_writeback`] | `posix_fadvise` | nothing: the sync writes all of it |
//! | [`bound_unsent`] | `TCP_NOTSENT_LOWAT` | `SO_SNDBUF`, which also bounds bytes in flight |
//!
//! Durability needs no entry. `File::sync_all` and `File::sync_data` of the standard library use
//! `F_FULLFSYNC` on macOS, where `fsync` leaves bytes in the cache of the disk. So files and
//! directories are synced by these and never by `rustix::fs::fsync`; and SQLite is told to do the
//! same (`PRAGMA fullfsync`).
//!
//! `--cfg zorb_portable` takes the second column on Linux, too: `tests/cross.sh` runs the tests of
//! it.

#[cfg(all(target_os = "linux", any(test, not(zorb_portable))))]
mod linux;
#[cfg(any(test, zorb_portable, not(target_os = "linux")))]
mod portable;

#[cfg(all(target_os = "linux", not(zorb_portable)))]
pub(crate) use self::linux::{begin_writeback, bound_unsent, read_cached, set_direct};
#[cfg(any(zorb_portable, not(target_os = "linux")))]
pub(crate) use self::portable::{begin_writeback, bound_unsent, read_cached, set_direct};

#[cfg(test)]
mod tests;
