//! Tests of the archive code, mostly through its public interface.

mod archive;
mod chunks;
mod crash;
mod dialects;
mod first_append;
#[cfg(feature = "independent-reader")]
mod interop;
mod negative;
mod outline;
mod reference;
mod sha256;
mod storage;
mod support;
mod vectors;
mod writer;
mod zstd_stream;
