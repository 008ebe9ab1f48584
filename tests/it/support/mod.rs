//! A server process, clients, and xorbs to send.

#[cfg(all(feature = "postgres-tests", feature = "s3"))]
pub mod backend;
mod client;
mod files;
mod grants;
mod metrics;
mod official;
mod output;
#[cfg(feature = "postgres-tests")]
#[path = "../../../src/index/postgres/test_server.rs"]
pub mod postgres;
mod raw;
mod repository;
mod routes;
mod rust;
mod server;
mod shards;
mod tls;
mod tokens;
mod xorbs;

#[cfg(feature = "postgres-tests")]
use zorb::index::postgres::PostgresIndex;

pub use self::client::{Client, Response};
#[cfg(all(feature = "postgres-tests", feature = "s3"))]
pub use self::files::urls_of;
pub use self::files::{Promise, check_promise, read_file, register, stocked};
pub use self::grants::{Grant, ask, body_for_grant, crc64};
pub use self::metrics::{Metrics, eventually};
pub use self::official::official_xorb;
pub use self::output::output_of;
pub use self::raw::Raw;
pub use self::repository::{TextFile, files, read, root};
pub use self::routes::{RouteCase, routes};
pub use self::rust::{Import, Names, Text, functions, texts};
pub use self::server::{Start, TestServer, blob_path, blob_paths};
pub use self::shards::{UploadShard, many_files, sha256_of, shard_of, upload_shard};
pub use self::tls::{Certificates, is_alive, served_on};
pub use self::tokens::{guarded, issue, send, token_command};
pub use self::xorbs::{Xorb, header, kill_rounds, random_bytes, rng};
