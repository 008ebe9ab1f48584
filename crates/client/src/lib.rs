//! How to talk to a server, and how to make what it takes.
//!
//! * [`Packer`] cuts files into chunks and forms xorbs of them, without doing any input or output
//!   itself.
//! * [`Server`] puts and gets xorbs: tries again where that can help, goes on where a transfer
//!   broke off, and hands out nothing that it has not verified.
//!
//! Memory is bounded whatever the sizes: a xorb that is being packed, a few hundred KiB per
//! transfer. Nothing here knows how a server works inside, or what a terminal is.

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

/// Its examples are tests.
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
