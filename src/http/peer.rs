//! The other end of a connection.

use std::net::SocketAddr;

/// The client's end of the connection of a request. The server adds it to the request's
/// extensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerAddr(pub(super) SocketAddr);
