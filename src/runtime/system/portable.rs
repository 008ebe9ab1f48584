//! What stands for the calls of Linux where there are none.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use socket2::SockRef;

/// Reads nothing: no call says whether it would wait.
pub(crate) const fn read_cached(_: &File, _: &mut [u8], _: u64) -> usize {
    0
}

/// Whether what is written to this file goes past the page cache: it never does.
///
/// # Errors
///
/// Always where it is to.
pub(crate) fn set_direct(_: &File, is_direct: bool) -> io::Result<()> {
    if is_direct { Err(io::ErrorKind::Unsupported.into()) } else { Ok(()) }
}

/// Does nothing: the sync writes all of it.
pub(crate) const fn begin_writeback(_: &File, _: &Range<u64>) {}

/// Bounds the bytes that the kernel takes for a client, those on their way included: a long fast
/// line is slower by that.
///
/// # Errors
///
/// The kernel refuses that length.
pub(crate) fn bound_unsent(socket: &impl AsFd, max_len: u32) -> io::Result<()> {
    SockRef::from(socket).set_send_buffer_size(usize::try_from(max_len).unwrap_or(usize::MAX))
}
