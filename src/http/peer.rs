//! The address of the other end of a connection.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The address of the client's end of the connection. The server adds it to the request's
/// extensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerAddr(pub(super) SocketAddr);

/// The address that identifies a client. For IPv6 it is the /64 network, because a client with one
/// address of a network usually has all of them.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address => address,
    }
}
