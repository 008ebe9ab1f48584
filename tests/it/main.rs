//! Promises to clients, kept by the real server: each test starts the binary on a socket and a folder of its own.
#![expect(unreachable_pub, reason = "nothing of a test binary is reachable, and `pub(crate)` everywhere says no more")]

mod cli;
mod crash;
mod memory;
mod official;
mod smoke;
mod support;
mod tidy;
