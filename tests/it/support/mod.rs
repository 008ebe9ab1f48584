//! A server process, a client, and xorbs to send.

mod client;
mod server;
mod xorbs;

pub use self::client::{Answer, Client};
pub use self::server::{Start, TestServer};
pub use self::xorbs::{Xorb, random_bytes, rng};
