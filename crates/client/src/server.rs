//! A server, and single requests to it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy as RedirectPolicy;
use reqwest::{Client, RequestBuilder, Response, Url};
use rustls::pki_types::CertificateDer;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::time::{Instant, timeout, timeout_at};

use super::activity::Activity;
use super::error::{Cause, Failure, Refusal, RequestError};
use super::machine::now;
use super::retry::{Retries, RetryPolicy};
use super::tls;
use super::token::Token;
use super::watch::Watch;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time in which a server may send nothing, before or within a response.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Time for a whole response in text: this, and in addition the time for its bytes at
/// [`MIN_TEXT_RATE`]. Without this limit a server that sends one byte a minute could hold a command
/// for days, because it is never silent for [`READ_TIMEOUT`].
const TEXT_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes per second of a response in text, at least: 33 kbit/s.
const MIN_TEXT_RATE: u64 = 4 << 10;

/// Maximum bytes of a response that is not a xorb: a list of 8192 chunks has about 2 MiB.
const MAX_TEXT_LEN: usize = 8 << 20;

/// The URL of a server: `http` or `https`, a host, and optionally a path, for a server behind a
/// proxy that serves it under this path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl(Url);

/// The certificate authorities that a client trusts: those of the machine (the default), or only
/// the given ones.
#[derive(Clone, Debug, Default)]
pub struct Authorities(Option<Arc<[CertificateDer<'static>]>>);

/// A text is not a list of certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no valid PEM certificate found")]
pub struct ParseAuthoritiesError;

impl Authorities {
    /// Trusts only the authorities with these certificates in PEM.
    ///
    /// # Errors
    ///
    /// The text has no certificate, or one of them is damaged.
    pub fn parse(pem: &[u8]) -> Result<Self, ParseAuthoritiesError> {
        tls::parse(pem).map(|certificates| Self(Some(certificates.into()))).ok_or(ParseAuthoritiesError)
    }
}

/// Why a text is not the address of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParseUrlError {
    /// It is not a URL.
    #[error("not a URL such as http://127.0.0.1:8080")]
    Url,
    /// It is a URL with another scheme.
    #[error("a server's URL begins with http:// or https://")]
    Scheme,
    /// It has a user, password, query or fragment.
    #[error("a server's URL has no user, password, query or fragment")]
    Excess,
}

/// A server. Cloning it is cheap and shares its connections.
#[derive(Clone, Debug)]
pub struct Server {
    http: Client,
    url: ServerUrl,
    /// For requests to the server itself, not to data URLs.
    token: Option<Token>,
    /// The client for data URLs with `https` if the server itself uses plain HTTP: `http` then
    /// trusts no certificates.
    tls: Arc<OnceLock<Client>>,
    authorities: Authorities,
    /// Text that is added to the error if the server cannot be reached.
    hint: &'static str,
    pub(super) retry: RetryPolicy,
}

impl Server {
    /// A server at this address; nothing is sent yet.
    ///
    /// Proxies of the environment are used, except for addresses of this machine.
    ///
    /// # Errors
    ///
    /// This machine has no certificates to check `https` with.
    pub fn new(url: ServerUrl, retry: RetryPolicy) -> Result<Self, RequestError> {
        Self::trusting(url, retry, Authorities::default())
    }

    /// As [`Server::new`], with these CA certificates instead of the system's, for the server and
    /// for its data URLs.
    ///
    /// # Errors
    ///
    /// As for [`Server::new`].
    pub fn trusting(url: ServerUrl, retry: RetryPolicy, authorities: Authorities) -> Result<Self, RequestError> {
        let http =
            build(url.is_plain(), url.is_loopback(), &authorities).map_err(|error| url.unreachable("", error))?;
        Ok(Self { http, url, token: None, tls: Arc::default(), authorities, hint: "", retry })
    }

    /// The same server, with this token in its requests.
    #[must_use]
    pub fn with_token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// The same server, with this text after the address in the error for an unreachable server.
    #[must_use]
    pub fn with_hint(mut self, hint: &'static str) -> Self {
        self.hint = hint;
        self
    }

    /// Asks the server once whether it can store and serve.
    ///
    /// # Errors
    ///
    /// It cannot, or does not respond within `limit`.
    pub async fn ready(&self, limit: Duration) -> Result<(), RequestError> {
        let asked = timeout(limit, async { self.send(self.get_request("readyz"), &Activity::new()).await }).await;
        asked.unwrap_or_else(|_| Err(RequestError::Silent { url: self.url.to_string(), limit })).map(drop)
    }

    /// The URL of the server.
    #[must_use]
    pub const fn url(&self) -> &ServerUrl {
        &self.url
    }

    pub(super) fn get_request(&self, path: &str) -> RequestBuilder {
        self.authorized(self.http.get(self.url.join(path)))
    }

    pub(super) fn head_request(&self, path: &str) -> RequestBuilder {
        self.authorized(self.http.head(self.url.join(path)))
    }

    pub(super) fn post_request(&self, path: &str) -> RequestBuilder {
        self.authorized(self.http.post(self.url.join(path)))
    }

    pub(super) fn delete_request(&self, path: &str) -> RequestBuilder {
        self.authorized(self.http.delete(self.url.join(path)))
    }

    /// A request to a signed data URL, and the server at this URL, which may be another one: the
    /// token is not sent, and errors name the host of the URL.
    pub(super) fn data_request(&self, url: &str) -> Result<(Self, RequestBuilder), RequestError> {
        let url: ServerUrl =
            Url::parse(url).map(ServerUrl).map_err(|_| self.invalid_response("a data URL is malformed"))?;
        let http = match url.0.scheme() {
            "http" => &self.http,
            "https" if !self.url.is_plain() => &self.http,
            "https" => match self.tls.get() {
                Some(http) => http,
                None => {
                    let http = build(false, false, &self.authorities).map_err(|error| self.unreachable(error))?;
                    self.tls.get_or_init(|| http)
                }
            },
            _ => return Err(self.invalid_response("a data URL is neither http nor https")),
        };
        let server = if url.0.origin() == self.url.0.origin() {
            self.clone()
        } else {
            Self { token: None, hint: "", url: url.origin(), ..self.clone() }
        };
        Ok((server, http.get(url.0)))
    }

    /// Adds the token, if there is one.
    fn authorized(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.token {
            Some(token) => request.header(AUTHORIZATION, token.header()),
            None => request,
        }
    }

    /// Sends a request. A response with a status other than success is an error. If nothing touches
    /// `activity` for [`READ_TIMEOUT`] before the response, that is an error, too, so a body stream
    /// must touch it with each piece.
    pub(super) async fn send(&self, request: RequestBuilder, activity: &Activity) -> Result<Response, RequestError> {
        let response = tokio::select! {
            sent = request.send() => sent.map_err(|error| self.unreachable(error))?,
            () = activity.silence(READ_TIMEOUT) => return Err(self.silent()),
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let (status, wait) = (response.status(), retry_after(response.headers()));
        let id = request_id(&response);
        // If the body does not arrive, the error status is still reported.
        let body = self.body(response, MAX_TEXT_LEN).await.unwrap_or_default();
        let refusal = Refusal::parse(status, &body, wait).with_request_id(id.as_deref());
        Err(RequestError::Refused { url: self.url.to_string(), refusal })
    }

    /// The next bytes of a response.
    pub(super) async fn next_piece(&self, response: &mut Response) -> Result<Option<bytes::Bytes>, RequestError> {
        match timeout(READ_TIMEOUT, response.chunk()).await {
            Ok(Ok(piece)) => Ok(piece),
            Ok(Err(error)) => Err(RequestError::BrokenOff { url: self.url.to_string(), source: Cause::new(error) }),
            Err(_) => Err(self.silent()),
        }
    }

    /// A response as JSON.
    pub(super) async fn json<T: DeserializeOwned>(&self, response: Response) -> Result<T, RequestError> {
        self.json_within(response, MAX_TEXT_LEN).await
    }

    /// A response as JSON of at most `max_len` bytes.
    pub(super) async fn json_within<T: DeserializeOwned>(
        &self,
        response: Response,
        max_len: usize,
    ) -> Result<T, RequestError> {
        let text = self.body(response, max_len).await?;
        serde_json::from_slice(&text).map_err(|_| self.invalid_response("unexpected JSON"))
    }

    /// GETs JSON, with retries.
    pub(super) async fn get_json<T: DeserializeOwned>(
        &self,
        path: &str,
        watch: &Arc<dyn Watch>,
    ) -> Result<T, RequestError> {
        let mut retries = Retries::new(self.retry, Arc::clone(watch));
        loop {
            let failed = match self.send(self.get_request(path), &Activity::new()).await {
                Ok(response) => self.json(response).await,
                Err(error) => Err(error),
            };
            match failed {
                Ok(value) => return Ok(value),
                Err(error) => retries.after(error).await?,
            }
        }
    }

    pub(super) fn invalid_response(&self, what: &'static str) -> RequestError {
        RequestError::InvalidResponse { url: self.url.to_string(), what }
    }

    pub(super) fn failed(&self, failure: Failure) -> RequestError {
        RequestError::Failed { url: self.url.to_string(), failure }
    }

    fn unreachable(&self, error: reqwest::Error) -> RequestError {
        self.url.unreachable(self.hint, error)
    }

    fn silent(&self) -> RequestError {
        RequestError::Silent { url: self.url.to_string(), limit: READ_TIMEOUT }
    }

    /// A whole response, of at most `max_len` bytes.
    pub(super) async fn body(&self, mut response: Response, max_len: usize) -> Result<Vec<u8>, RequestError> {
        let mut body = Vec::new();
        let begin = Instant::now();
        loop {
            let limit = TEXT_TIMEOUT + Duration::from_secs(body.len() as u64 / MIN_TEXT_RATE);
            let slow = |_| RequestError::Slow { url: self.url.to_string(), len: body.len() as u64, limit };
            let piece = timeout_at(begin + limit, self.next_piece(&mut response)).await.map_err(slow)??;
            let Some(piece) = piece else { return Ok(body) };
            if body.len() + piece.len() > max_len {
                return Err(self.invalid_response("the response is too long"));
            }
            body.extend_from_slice(&piece);
        }
    }
}

/// The id that the server's log has for the request of this response.
pub(super) fn request_id(response: &Response) -> Option<String> {
    Some(response.headers().get("x-request-id")?.to_str().ok()?.to_owned())
}

/// An HTTP client. `is_plain`: only for plain HTTP, so without certificates. `is_loopback`: without
/// a proxy.
fn build(is_plain: bool, is_loopback: bool, authorities: &Authorities) -> reqwest::Result<Client> {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        // A provider that is already installed stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    let builder = || {
        let builder = Client::builder()
            .user_agent(concat!("zorb/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            // The server sends no redirects, so a redirect means that the address is wrong. A
            // redirected upload would also lose its body.
            .redirect(RedirectPolicy::none());
        if is_loopback { builder.no_proxy() } else { builder }
    };
    match &authorities.0 {
        // A small container may have no certificates at all, and plain HTTP needs none.
        _ if is_plain => builder().tls_certs_only([]).build(),
        Some(certificates) => match tls::config(certificates) {
            Some(config) => builder().tls_backend_preconfigured(config).build(),
            // None of the certificates can be used, so no server is trusted.
            None => builder().tls_certs_only([]).build(),
        },
        None => builder().build(),
    }
}

/// The `Retry-After` header, in either of its forms (RFC 9110, section 10.2.3).
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(secs) = text.parse() {
        return Some(Duration::from_secs(secs));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    Some(at.duration_since(now()).unwrap_or_default())
}

impl ServerUrl {
    fn unreachable(&self, hint: &'static str, error: reqwest::Error) -> RequestError {
        RequestError::Unreachable { url: self.to_string(), hint, source: Cause::new(error) }
    }

    /// The same without path and query, which can have a signature.
    fn origin(&self) -> Self {
        let mut url = self.0.clone();
        url.set_path("");
        url.set_query(None);
        Self(url)
    }

    fn join(&self, path: &str) -> String {
        format!("{self}/{path}")
    }

    fn is_plain(&self) -> bool {
        self.0.scheme() == "http"
    }

    fn is_loopback(&self) -> bool {
        let host = self.0.host_str().unwrap_or_default();
        let address: Option<IpAddr> = host.trim_start_matches('[').trim_end_matches(']').parse().ok();
        host == "localhost" || address.is_some_and(|address| address.is_loopback())
    }
}

impl FromStr for ServerUrl {
    type Err = ParseUrlError;

    fn from_str(text: &str) -> Result<Self, ParseUrlError> {
        let url = Url::parse(text).map_err(|_| ParseUrlError::Url)?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(ParseUrlError::Scheme);
        }
        let plain = url.username().is_empty() && url.password().is_none();
        if plain && url.query().is_none() && url.fragment().is_none() {
            Ok(Self(url))
        } else {
            Err(ParseUrlError::Excess)
        }
    }
}

impl fmt::Display for ServerUrl {
    /// Without a slash at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests;
