//! The base URL under which clients reach this server, from settings and request headers. The
//! server puts it into the URLs of its responses.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::header::HOST;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{Extensions, HeaderMap, HeaderValue, Request, Uri, Version};
use ipnet::IpNet;

use super::AppState;
use super::error::{Code, Problem};
use super::peer::{PeerAddr, network};

/// Names that end like this belong to a machine or to a network: no one can register them. The last
/// two are of Docker, Kubernetes and clouds.
const LOCAL_SUFFIXES: [&str; 7] = [".localhost", ".local", ".localdomain", ".lan", ".home.arpa", ".internal", ".svc"];

/// The settings for the base URL.
#[derive(Clone, Debug, Default)]
pub struct PublicAddress {
    /// The base URL, without a slash at the end. If it is not set, the base URL is taken from each
    /// request.
    pub url: Option<Arc<str>>,
    /// Proxies whose `X-Forwarded-*` headers are trusted. No other sender may set them, because it
    /// could make data URLs point to another server.
    pub trusted_proxies: Arc<[IpNet]>,
    /// Whether this server itself uses TLS.
    pub is_encrypted: bool,
}

impl PublicAddress {
    /// The path of the base URL, such as `/cas`, or nothing. Some proxies leave it in the path of a
    /// request, so that the server must remove it.
    #[must_use]
    pub fn path(&self) -> &str {
        let url = self.url.as_deref().unwrap_or_default();
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        rest.find('/').map_or("", |at| &rest[at..])
    }

    fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.trusted_proxies.iter().any(|net| net.contains(&peer))
    }

    /// The client of a trusted proxy: the last forwarded address that is not a trusted proxy
    /// itself. The addresses before it do not count, because the client may have invented them.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> Option<IpAddr> {
        if !self.trusts(peer) {
            return None;
        }
        let lines: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
        // From the last entry to the first. An entry that is no address ends the search.
        let entries = lines.into_iter().rev().filter_map(|line| line.to_str().ok()).flat_map(|line| line.rsplit(','));
        entries.map_while(|entry| entry.trim().parse().ok()).find(|address| !self.trusts(*address))
    }

    /// The address that identifies the client of a request without a token.
    pub(super) fn client_network(&self, headers: &HeaderMap, extensions: &Extensions) -> Option<IpAddr> {
        let peer = extensions.get::<PeerAddr>()?.0.ip();
        Some(network(self.client(peer, headers).unwrap_or(peer)))
    }

    /// Whether a request calls the server by a name that may be one of another site. A page of
    /// `evil.example` can let that name resolve to 127.0.0.1, or to another address that only this
    /// network reaches. Then the browser takes this server for the site of the page, and the page
    /// reads what the server sends.
    ///
    /// Addresses, names without a dot and those that end like [`LOCAL_SUFFIXES`] cannot be such
    /// names, and the name in the configured URL is not. A trusted proxy passes on any name.
    pub(super) fn is_foreign_name(&self, peer: IpAddr, headers: &HeaderMap, uri: &Uri) -> bool {
        let host = |text: &str| text.parse::<Authority>().ok().map(|authority| authority.host().to_ascii_lowercase());
        let asked = uri.authority().map(Authority::as_str).or_else(|| headers.get(HOST)?.to_str().ok()).and_then(host);
        let Some(asked) = asked else { return false };
        let name = asked.trim_end_matches('.');
        let is_address = name.starts_with('[') || name.parse::<IpAddr>().is_ok();
        let is_local = is_address || !name.contains('.') || LOCAL_SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
        let own = || host(self.url.as_deref()?.parse::<Uri>().ok()?.authority()?.as_str());
        !is_local && !self.trusts(peer) && own().is_none_or(|own| own.trim_end_matches('.') != name)
    }

    /// The base URL for the sender of a request with these headers and this target.
    fn of(&self, peer: Option<IpAddr>, headers: &HeaderMap, uri: &Uri) -> String {
        if let Some(url) = &self.url {
            return url.to_string();
        }
        let is_trusted = peer.is_some_and(|peer| self.trusts(peer));
        let forwarded = |name| if is_trusted { first(headers, name) } else { None };
        let scheme = forwarded("x-forwarded-proto").filter(|scheme| matches!(*scheme, "http" | "https"));
        // An absolute target takes precedence over the Host header (RFC 9112, section 3.2.2).
        let host = forwarded("x-forwarded-host").or_else(|| uri.authority().map(|authority| authority.as_str()));
        let host = host.or_else(|| headers.get(HOST)?.to_str().ok()).unwrap_or("localhost");
        let prefix = forwarded("x-forwarded-prefix").map_or("", |prefix| prefix.trim_end_matches('/'));
        let slash = if prefix.is_empty() || prefix.starts_with('/') { "" } else { "/" };
        let own_scheme = if self.is_encrypted { "https" } else { "http" };
        format!("{}://{host}{slash}{prefix}", scheme.unwrap_or(own_scheme))
    }
}

/// The first value of a header to which every proxy appends. It is from the proxy that is nearest
/// to the client.
fn first<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let value = headers.get(name)?.to_str().ok()?;
    value.split(',').next().map(str::trim).filter(|value| !value.is_empty())
}

/// Refuses an HTTP/1.1 request that does not have exactly one valid `Host` (RFC 9112, section 3.2).
/// With several ones, a proxy and this server could choose different ones.
pub(super) fn check_host<B>(request: &Request<B>) -> Result<(), Problem> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let is_valid = match (hosts.next(), hosts.next()) {
        (Some(host), None) => is_host(host),
        (None, _) => request.version() < Version::HTTP_11,
        (Some(_), Some(_)) => false,
    };
    let detail = "The request must have one Host header: a name, and optionally a port.";
    if is_valid { Ok(()) } else { Err(Problem::new(Code::InvalidRequest, detail)) }
}

/// Whether the value is a host name or an address, with an optional port.
fn is_host(value: &HeaderValue) -> bool {
    let Some(authority) = value.to_str().ok().and_then(|text| text.parse::<Authority>().ok()) else { return false };
    // An authority may begin with a user name, which a `Host` must not. Only a port may follow the
    // host.
    let port = authority.as_str().strip_prefix(authority.host()).map(|rest| rest.strip_prefix(':').unwrap_or(rest));
    let is_port =
        |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && (port.is_empty() || port.parse::<u16>().is_ok());
    !authority.host().is_empty() && port.is_some_and(is_port)
}

/// The base URL for the sender of a request, without a slash at the end.
#[derive(Debug)]
pub(super) struct BaseUrl(pub(super) String);

/// Maximum length of a base URL from request headers, because a response may repeat it 10⁵ times. A
/// host name has up to 253 bytes. A configured URL is not limited.
const MAX_BASE_LEN: usize = 320;

impl BaseUrl {
    /// Refuses a base URL that is too long.
    fn of_length(base: String) -> Result<Self, Problem> {
        if base.len() > MAX_BASE_LEN {
            let detail =
                format!("The Host header and the forwarded headers make a URL of more than {MAX_BASE_LEN} bytes.");
            return Err(Problem::new(Code::InvalidRequest, detail));
        }
        Ok(Self(base))
    }
}

impl FromRequestParts<AppState> for BaseUrl {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Problem> {
        let peer = parts.extensions.get::<PeerAddr>().map(|peer| peer.0.ip());
        let base = state.shared.address.of(peer, &parts.headers, &parts.uri);
        if state.shared.address.url.is_some() { Ok(Self(base)) } else { Self::of_length(base) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: Option<&str>, proxies: &[&str]) -> PublicAddress {
        let trusted_proxies = proxies.iter().map(|net| net.parse().unwrap()).collect();
        PublicAddress { url: url.map(Arc::from), trusted_proxies, is_encrypted: false }
    }

    fn check(address: &PublicAddress, peer: &str, headers: &[(&'static str, &str)], expected: &str) {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let base = address.of(Some(peer.parse().unwrap()), &headers, &Uri::from_static("/v1/x"));
        assert_eq!(base, expected, "{headers:?} from {peer}");
    }

    const FORWARDED: &[(&str, &str)] = &[
        ("host", "inside:8080"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "models.example"),
        ("x-forwarded-prefix", "/cas/"),
    ];

    #[test]
    fn forwarded_headers_count_only_from_trusted_proxies() {
        let address = address(None, &["10.0.0.0/8", "::1/128"]);
        check(&address, "10.1.2.3", FORWARDED, "https://models.example/cas");
        check(&address, "::1", FORWARDED, "https://models.example/cas");
        check(&address, "::ffff:10.1.2.3", FORWARDED, "https://models.example/cas");
        check(&address, "11.1.2.3", FORWARDED, "http://inside:8080");
        check(&super::tests::address(None, &[]), "127.0.0.1", FORWARDED, "http://inside:8080");
    }

    /// A long response repeats the base URL in each of its URLs.
    #[test]
    fn base_url_above_320_bytes_is_refused() {
        let base = |len: usize| BaseUrl::of_length("a".repeat(len));
        assert_eq!(base(320).unwrap().0.len(), 320);
        assert_eq!(base(321).unwrap_err().code(), Code::InvalidRequest);
    }

    #[test]
    fn http_1_1_needs_exactly_one_valid_host() {
        let is_accepted = |version: Version, hosts: &[&str]| {
            let request = Request::builder().uri("/v1/files").version(version);
            let request = hosts.iter().fold(request, |request, host| request.header(HOST, *host));
            check_host(&request.body(()).unwrap()).is_ok()
        };
        for host in ["zorb", "zorb.example:8080", "127.0.0.1:1", "[::1]:8080", "a_b", "zorb:"] {
            assert!(is_accepted(Version::HTTP_11, &[host]), "{host}");
        }
        for host in ["", ":80", "a@zorb", "zorb:x", "zorb:65536", "zorb:+1", "a b", "zorb/x", "a,b:1,c", "http://zorb"]
        {
            assert!(!is_accepted(Version::HTTP_11, &[host]), "{host}");
        }
        assert!(!is_accepted(Version::HTTP_11, &[]));
        assert!(!is_accepted(Version::HTTP_11, &["zorb", "zorb"]));
        assert!(is_accepted(Version::HTTP_10, &[]));
        assert!(!is_accepted(Version::HTTP_10, &["a", "b"]));
    }

    #[test]
    fn name_of_another_site_is_foreign() {
        const LOCAL: [&str; 8] = [
            "127.0.0.1:8080",
            "[::1]:8080",
            "localhost:1",
            "a.localhost",
            "zorb",
            "Host.Docker.internal.",
            "models.example:443",
            "models.example.",
        ];
        let is_foreign = |address: &PublicAddress, peer: &str, name: &str| {
            let headers = HeaderMap::from_iter([(HOST, name.parse().unwrap())]);
            let by_header = address.is_foreign_name(peer.parse().unwrap(), &headers, &Uri::from_static("/v1/x"));
            // HTTP/2 has the name in the target.
            let uri = format!("http://{name}/v1/x").parse().unwrap();
            assert_eq!(address.is_foreign_name(peer.parse().unwrap(), &HeaderMap::new(), &uri), by_header, "{name}");
            by_header
        };
        let address = address(Some("https://Models.example/cas"), &["127.0.0.2/32"]);
        for name in ["evil.example", "EVIL.example.:8080", "127.0.0.1.evil.example", "localhost.evil.example:80"] {
            for (peer, expected) in [("127.0.0.1", true), ("::1", true), ("10.0.0.1", true), ("127.0.0.2", false)] {
                assert_eq!(is_foreign(&address, peer, name), expected, "{name} from {peer}");
            }
        }
        for name in LOCAL {
            assert!(!is_foreign(&address, "127.0.0.1", name), "{name}");
        }
        assert!(!address.is_foreign_name("127.0.0.1".parse().unwrap(), &HeaderMap::new(), &Uri::from_static("/")));
    }

    #[test]
    fn client_is_the_last_address_that_is_no_trusted_proxy() {
        let address = address(None, &["10.0.0.0/8"]);
        let client = |peer: &str, lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append("x-forwarded-for", line.parse().unwrap());
            }
            address.client(peer.parse().unwrap(), &headers).map(|client| client.to_string())
        };
        assert_eq!(
            client("10.0.0.1", &["6.6.6.6, 1.2.3.4, 10.0.0.2"]).as_deref(),
            Some("1.2.3.4"),
            "6.6.6.6 is a claim"
        );
        assert_eq!(client("10.0.0.1", &["6.6.6.6", "1.2.3.4"]).as_deref(), Some("1.2.3.4"));
        assert_eq!(client("10.0.0.1", &["1.2.3.4, unknown"]), None, "an invalid entry ends the search");
        assert_eq!(client("10.0.0.1", &[]), None);
        assert_eq!(client("9.9.9.9", &["1.2.3.4"]), None, "the header of another sender is not trusted");
    }

    #[test]
    fn tls_server_urls_are_https_unless_a_trusted_proxy_differs() {
        let address = PublicAddress { is_encrypted: true, ..address(None, &["10.0.0.0/8"]) };
        check(&address, "11.1.2.3", FORWARDED, "https://inside:8080");
        check(&address, "10.1.2.3", &[("host", "inside"), ("x-forwarded-proto", "http")], "http://inside");
    }

    #[test]
    fn a_configured_url_takes_precedence_over_headers() {
        let address = address(Some("https://cas.example/x"), &["10.0.0.0/8"]);
        check(&address, "10.1.2.3", FORWARDED, "https://cas.example/x");
        assert_eq!(address.path(), "/x");
        assert_eq!(super::tests::address(Some("https://cas.example"), &[]).path(), "");
    }

    #[test]
    fn proxy_nearest_to_the_client_decides_the_host() {
        let headers = [("host", "inside"), ("x-forwarded-host", "outer.example, inner"), ("x-forwarded-proto", "ftp")];
        check(&address(None, &["10.0.0.0/8"]), "10.0.0.1", &headers, "http://outer.example");
    }
}
