//! The tenant of a request: determined by the repository and the subject of its token, or without a
//! token by the address of its client. A data URL contains its tenant.

use std::net::{IpAddr, Ipv6Addr};

use axum::http::Extensions;

use super::auth::{Auth, Caller};
use super::peer::PeerAddr;
use crate::runtime::fair::Tenant;

/// Marks the numbers of IPv4 addresses. Without the mark, they would be small numbers, such as that
/// of [`Tenant::SERVER`].
const OF_ADDRESS: u64 = 0x5a0b_0add_0000_0000;

/// The tenant of a request. On a route that needs a token, the request must have passed the guard.
pub(super) fn tenant_of(auth: Auth, extensions: &Extensions) -> Tenant {
    match extensions.get::<Caller>() {
        Some(caller) if auth == Auth::Tokens => caller.0.tenant(),
        _ => extensions.get::<PeerAddr>().map_or(Tenant::SERVER, |peer| of_address(network(peer.0.ip()))),
    }
}

/// The address that identifies a tenant. For IPv6 it is the /64 network, because a client with one
/// address of a network usually has all of them.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address => address,
    }
}

/// The tenant of requests from this address or network.
pub(super) fn of_address(address: IpAddr) -> Tenant {
    let number = match address {
        IpAddr::V4(address) => OF_ADDRESS | u64::from(address.to_bits()),
        // The upper half is the network. The network of loopback is 0, which is the number of
        // `Tenant::SERVER`. So 1 is used instead, which no network has.
        IpAddr::V6(address) => u64::try_from(address.to_bits() >> 64).unwrap_or_default().max(1),
    };
    Tenant::new(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_ipv4_address_or_one_ipv6_network_is_one_tenant() {
        let tenant = |text: &str| of_address(network(text.parse().unwrap()));
        assert_eq!(tenant("10.0.0.1"), tenant("::ffff:10.0.0.1"));
        assert_ne!(tenant("10.0.0.1"), tenant("10.0.0.2"));
        assert_eq!(tenant("2001:db8:1:2::1"), tenant("2001:db8:1:2:ffff::9"));
        assert_ne!(tenant("2001:db8:1:2::1"), tenant("2001:db8:1:3::1"));
        for own in ["::1", "::", "127.0.0.1"] {
            assert_ne!(tenant(own), Tenant::SERVER, "{own}");
        }
    }
}
