//! Backups and restores over a store in memory, its index in a temporary folder, and archives in memory.

mod damage;
mod incremental;
mod round_trip;
mod support;
