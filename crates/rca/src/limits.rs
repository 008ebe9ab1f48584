//! Every limit of the archive code: value, unit, where the number is from, what happens beyond it.

/// Longest blob name in bytes that is read or written unless the options say otherwise: 1 MiB.
///
/// The format has no limit. Ours exists because a name, unlike content, is held in memory: a
/// hundred bytes of archive can decompress to a name of any length. 1 MiB is 256 times the longest
/// path of common operating systems. Beyond it: `name_too_long`, when reading and when appending.
pub const DEFAULT_MAX_NAME_LEN: usize = 1 << 20;

/// Sum of the name lengths in bytes that [`Archive`](super::Archive) will hold: 256 MiB.
///
/// Our own number: enough for four million xorb names, small against the memory of a machine that
/// keeps that many. Beyond it: `listing_too_long`; the streaming [`Reader`](super::Reader) has no
/// such limit because it holds one name.
pub const DEFAULT_MAX_LISTING_LEN: usize = 256 << 20;

/// Largest zstd window, as its binary logarithm: 27, that is 128 MiB.
///
/// zstd's own `ZSTD_WINDOWLOG_LIMIT_DEFAULT`: what every decoder accepts without being asked, the
/// reference's among them. Beyond it: `zstd_error` when reading, refused when configured.
pub const MAX_WINDOW_LOG: u32 = 27;

/// Smallest zstd window, as its binary logarithm: 10, zstd's `ZSTD_WINDOWLOG_MIN`.
pub const MIN_WINDOW_LOG: u32 = 10;

/// Compressed bytes of one blob that the [`Writer`](super::Writer) holds before it spills into the
/// archive, unless the options say otherwise: 8 MiB.
///
/// Our own number. A blob below it is written with the shortest varint and never read back.
pub const DEFAULT_BUFFER_LEN: usize = 8 << 20;

/// Bytes read or decompressed in one step: 128 KiB, zstd's largest block.
pub(crate) const STEP_LEN: usize = 128 << 10;

/// Bytes read at once where most of an archive is skipped: 4 KiB, a page of most systems. All that
/// is wanted is a varint per block.
pub(crate) const SKIP_BUFFER_LEN: usize = 4 << 10;

/// Widest first size field in bits that a [`Layout`](super::Layout) may have: 1024.
///
/// Our own number. Fields beyond 128 bits cannot be reached by doubling (a file is shorter than
/// 2⁶⁴ bytes), only by asking for them; this bounds the header buffer.
pub const MAX_FIELD_BITS: u32 = 1024;

/// Longest metadata in bytes that a [`Layout`](super::Layout) may have: 64 KiB. Our own number; it
/// bounds the header buffer.
pub const MAX_METADATA_LEN: usize = 64 << 10;
