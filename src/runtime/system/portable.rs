//! Replacements for the system calls of Linux on other systems.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use socket2::SockRef;

/// Reads nothing, because no portable call fails instead of waiting for the disk.
pub(crate) const fn read_cached(_: &File, _: &mut [u8], _: u64) -> usize {
    0
}

/// Direct writes are unsupported, so they can only be turned off.
///
/// # Errors
///
/// `is_direct` is true.
pub(crate) fn set_direct(_: &File, is_direct: bool) -> io::Result<()> {
    if is_direct { Err(io::ErrorKind::Unsupported.into()) } else { Ok(()) }
}

/// Does nothing, so the sync writes all bytes.
pub(crate) const fn begin_writeback(_: &File, _: &Range<u64>) {}

/// Limits the bytes that the kernel buffers for a client, including those that were sent but are
/// not acknowledged yet. So a fast connection with a high latency becomes slower.
///
/// # Errors
///
/// The kernel refuses this length.
pub(crate) fn bound_unsent(socket: &impl AsFd, max_len: u32) -> io::Result<()> {
    SockRef::from(socket).set_send_buffer_size(usize::try_from(max_len).unwrap_or(usize::MAX))
}
