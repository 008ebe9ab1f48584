//! System calls that only Linux has, and their replacements on other operating systems.
//!
//! | what | Linux | elsewhere |
//! |---|---|---|
//! | [`read_cached`] | `preadv2` with `RWF_NOWAIT` | reads nothing: every read blocks a thread |
//! | [`set_direct`] | `O_DIRECT` | unsupported: all writes go through the page cache |
//! | [`begin_writeback`] | `posix_fadvise` | nothing: the sync writes all bytes |
//! | [`bound_unsent`] | `TCP_NOTSENT_LOWAT` | `SO_SNDBUF`, which also bounds bytes in flight |
//!
//! The table has no row for durability. On macOS, `fsync` leaves bytes in the cache of the disk, so
//! `File::sync_all` and `File::sync_data` of the standard library use `F_FULLFSYNC` there. This
//! program syncs with these two methods, and `PRAGMA fullfsync` makes SQLite do the same.
//!
//! `--cfg zorb_portable` selects the column "elsewhere" on Linux, too. `tests/cross.sh` runs the
//! tests with it.

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
