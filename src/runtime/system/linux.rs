//! The system calls of Linux.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsFd;

use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl, fcntl_setfl};
use rustix::io::{ReadWriteFlags, preadv2};
use socket2::SockRef;

/// Reads bytes at this offset of a file that are in the page cache, without waiting for the disk.
/// Returns the number of bytes read; a short read does not mean the end of the file.
pub(crate) fn read_cached(file: &File, bytes: &mut [u8], at: u64) -> usize {
    // Any error counts as 0 bytes, also that of an unsupported call. The caller then reads with a
    // blocking call, which reports a persistent error.
    preadv2(file, &mut [IoSliceMut::new(bytes)], at, ReadWriteFlags::NOWAIT).unwrap_or(0)
}

/// Turns direct writes (past the page cache) to this file on or off.
///
/// # Errors
///
/// The file system does not support direct writes.
pub(crate) fn set_direct(file: &File, is_direct: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, is_direct);
    Ok(fcntl_setfl(file, flags)?)
}

/// Asks the kernel to begin to write these bytes of a file to the disk, and does not wait.
pub(crate) fn begin_writeback(file: &File, bytes: &Range<u64>) {
    let len = NonZeroU64::new(bytes.end.saturating_sub(bytes.start));
    // This is only advice. If the kernel or the file system ignores it, the sync writes all bytes.
    let _ = fadvise(file, bytes.start, len, Advice::DontNeed);
}

/// Limits the unsent bytes that the kernel buffers for a slow client. Bytes that were sent but are
/// not acknowledged yet do not count.
///
/// # Errors
///
/// The kernel, or a sandbox that emulates it, does not support this option.
pub(crate) fn bound_unsent(socket: &impl AsFd, max_len: u32) -> io::Result<()> {
    SockRef::from(socket).set_tcp_notsent_lowat(max_len)
}
