//! Every limit of the archive code: the value, its unit, where the number comes from, and what
//! happens beyond it. "Our own number" is a choice of this crate that the format does not require.

/// Longest blob name in bytes that is read or written unless the options say otherwise: 1 MiB.
///
/// The format has no limit. This crate has one because it holds a name in memory, in contrast to
/// content, and a hundred bytes of archive can decompress to a very long name. 1 MiB is 256 times
/// the longest path of common operating systems. Beyond it, readers and writers return
/// `name_too_long`.
pub const DEFAULT_MAX_NAME_LEN: usize = 1 << 20;

/// Sum of the name lengths in bytes that [`Archive`](super::Archive) will hold: 256 MiB.
///
/// Our own number: enough for four million names of 64 bytes. Beyond it, opening fails with
/// `listing_too_long`. A [`Reader`](super::Reader) has no such limit, because it holds one name at
/// a time.
pub const DEFAULT_MAX_LISTING_LEN: usize = 256 << 20;

/// Largest zstd window, as its binary logarithm: 27, that is 128 MiB.
///
/// zstd's `ZSTD_WINDOWLOG_LIMIT_DEFAULT`: decoders accept windows up to this size by default, and
/// so does the reference. A blob with a larger window gives `zstd_error`. Options with a larger
/// window are refused.
pub const MAX_WINDOW_LOG: u32 = 27;

/// Smallest zstd window, as its binary logarithm: 10, zstd's `ZSTD_WINDOWLOG_MIN`.
pub const MIN_WINDOW_LOG: u32 = 10;

/// Compressed bytes of one blob that the [`Writer`](super::Writer) holds before it spills into the
/// archive, unless the options say otherwise: 8 MiB.
///
/// Our own number. A blob below it is written with the shortest varint. A longer one has a padded
/// varint and is read back to compute the hash: see [`Writer`](super::Writer).
pub const DEFAULT_BUFFER_LEN: usize = 8 << 20;

/// Bytes read or decompressed in one step: 128 KiB, zstd's largest block.
pub(crate) const STEP_LEN: usize = 128 << 10;

/// Bytes read at once by code that needs only the varint of each block and skips the rest: 4 KiB, a
/// page of most systems.
pub(crate) const SKIP_BUFFER_LEN: usize = 4 << 10;

/// Widest first size field in bits that a [`Layout`](super::Layout) may have: 1024.
///
/// Our own number; it bounds the header buffer. Doubling alone never gives a field of more than 128
/// bits, because a file is shorter than 2⁶⁴ bytes. Only a caller that asks for a wide first field
/// gets one.
pub const MAX_FIELD_BITS: u32 = 1024;

/// Longest metadata in bytes that a [`Layout`](super::Layout) may have: 64 KiB. Our own number; it
/// bounds the header buffer.
pub const MAX_METADATA_LEN: usize = 64 << 10;
