//! A client of a server of the Xet protocol, and the tools to build xorbs and shards.
//!
//! * [`Packer`] cuts files into chunks and forms xorbs of them, without doing any input or output
//!   itself.
//! * [`Server`] pushes and pulls files, and puts and gets xorbs. It retries temporary failures,
//!   continues broken transfers, and verifies everything that it returns.
//!
//! Memory is bounded whatever the sizes of files are; each call states its bound. The crate does
//! not depend on the code of the server, and it prints nothing.

mod activity;
mod body;
mod error;
mod get;
mod hash;
mod list;
mod machine;
mod pack;
mod pull;
mod push;
mod put;
mod remove;
mod retry;
mod server;
mod text;
mod tls;
mod token;
mod usage;
mod verify;
mod watch;
pub mod wire;

/// Makes the examples of the README doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use self::error::{Failure, Refusal, RequestError};
pub use self::get::{GetError, Got, Sink, Wanted};
pub use self::hash::hash_reader;
pub use self::list::{Listed, Listing};
pub use self::machine::{Running, Workers};
pub use self::pack::{Packed, PackedFile, Packer, Term};
pub use self::pull::{FileSink, MAX_BATCH_COUNT, Pull, PullError, Pulled};
pub use self::push::{Push, PushError, PushWatch, Pushed, PushedFile, ResumeCache, Unread};
pub use self::put::{Put, PutError};
pub use self::retry::RetryPolicy;
pub use self::server::{Authorities, ParseAuthoritiesError, ParseUrlError, Server, ServerUrl};
pub use self::text::is_shown;
pub use self::token::{ParseTokenError, Token};
pub use self::verify::verify_reader;
pub use self::watch::{Unwatched, Watch};
pub use self::wire::{ListedFile, ListedXorb, OwnerUsage, RemovedFile, RepoUsage, Usage, UsageLimits, UsagePage};
