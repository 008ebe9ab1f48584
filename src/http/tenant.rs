//! The tenant of a request: determined by the repository and the subject of its token, or without a
//! token by the address of its client. A data URL contains its tenant.

use std::net::IpAddr;

use axum::http::{Extensions, HeaderMap};

use super::auth::{Auth, Caller};
use super::origin::PublicAddress;
use crate::runtime::fair::Tenant;

/// Marks the numbers of IPv4 addresses. Without the mark, they would be small numbers, such as that
/// of [`Tenant::SERVER`].
const OF_ADDRESS: u64 = 0x5a0b_0add_0000_0000;

/// The tenant of a request. On a route that needs a token, the request must have passed the guard.
/// The address is that of the client, if a trusted proxy says which one it is.
pub(super) fn tenant_of(auth: Auth, address: &PublicAddress, headers: &HeaderMap, extensions: &Extensions) -> Tenant {
    if let Some(caller) = extensions.get::<Caller>().filter(|_| auth == Auth::Tokens) {
        return caller.0.tenant();
    }
    address.client_network(headers, extensions).map_or(Tenant::SERVER, of_address)
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
    use crate::http::peer::{PeerAddr, network};

    #[test]
    fn client_behind_a_trusted_proxy_is_its_own_tenant() {
        let proxies: Vec<_> = ["10.0.0.0/8"].iter().map(|net| net.parse().unwrap()).collect();
        let address = PublicAddress { trusted_proxies: proxies.into(), ..PublicAddress::default() };
        let tenant = |peer: &str, client: &str| {
            let mut extensions = Extensions::new();
            extensions.insert(PeerAddr(format!("{peer}:1").parse().unwrap()));
            let headers = [("x-forwarded-for".parse().unwrap(), client.parse().unwrap())].into_iter().collect();
            tenant_of(Auth::Off, &address, &headers, &extensions)
        };
        assert_eq!(tenant("10.0.0.1", "1.2.3.4"), of_address("1.2.3.4".parse().unwrap()));
        assert_ne!(tenant("10.0.0.1", "1.2.3.4"), tenant("10.0.0.1", "1.2.3.5"));
        assert_eq!(tenant("11.0.0.1", "1.2.3.4"), tenant("11.0.0.1", "1.2.3.5"), "no proxy of ours");
    }

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
