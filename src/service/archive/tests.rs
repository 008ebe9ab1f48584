//! Backups and restores over a store in memory, with its index in a temporary directory and
//! archives in memory.

mod damage;
mod incremental;
mod round_trip;
mod support;
