//! The calls of Linux.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsFd;

use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl, fcntl_setfl};
use rustix::io::{ReadWriteFlags, preadv2};
use socket2::SockRef;

/// Reads what is in memory of the bytes at this place of a file, and waits for no disk. Returns how
/// many bytes were read; less than asked for says nothing about the rest.
pub(crate) fn read_cached(file: &File, bytes: &mut [u8], at: u64) -> usize {
    // Any error, not being supported included, is left to the read that may wait: it fails again,
    // or not.
    preadv2(file, &mut [IoSliceMut::new(bytes)], at, ReadWriteFlags::NOWAIT).unwrap_or(0)
}

/// Whether what is written to this file goes past the page cache.
///
/// # Errors
///
/// The file system cannot do that.
pub(crate) fn set_direct(file: &File, is_direct: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, is_direct);
    Ok(fcntl_setfl(file, flags)?)
}

/// Asks the kernel to begin to write out these bytes of a file, and does not wait.
pub(crate) fn begin_writeback(file: &File, bytes: &Range<u64>) {
    let len = NonZeroU64::new(bytes.end.saturating_sub(bytes.start));
    // It is advice. Where it is not taken, or not for this file system, the sync does all of it.
    let _ = fadvise(file, bytes.start, len, Advice::DontNeed);
}

/// Bounds the bytes that the kernel takes for a client that takes nothing, beside what is on its
/// way.
///
/// # Errors
///
/// The kernel, or the sandbox that stands for one, does not know this.
pub(crate) fn bound_unsent(socket: &impl AsFd, max_len: u32) -> io::Result<()> {
    SockRef::from(socket).set_tcp_notsent_lowat(max_len)
}
