//! The address of the other end of a connection.

use std::net::SocketAddr;

/// The address of the client's end of the connection. The server adds it to the request's
/// extensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerAddr(pub(super) SocketAddr);
