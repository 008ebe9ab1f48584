//! A server process, a client, and xorbs to send.

mod client;
mod official;
mod server;
mod xorbs;

pub use self::client::{Answer, Client};
pub use self::official::official_xorb;
pub use self::server::{Start, TestServer};
pub use self::xorbs::{Xorb, random_bytes, rng};
