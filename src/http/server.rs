//! Accepts, limits and serves connections, and drains them when the server stops.
//!
//! When [`serve`] returns, no connection is open. A request that was cut off at the end of the
//! drain time was not acknowledged.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::http::uri::{PathAndQuery, Uri};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use ipnet::IpNet;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::conn_state::{ConnState, PacedStream, Responding};
use super::connection_limiter::{ConnectionLimiter, REFUSAL};
use super::drain::{DrainingSocket, respond};
use super::peer::PeerAddr;
use super::tls::{self, Opened, Tls};
use super::{Pace, error};
use crate::runtime::metrics::Metrics;
use crate::runtime::system::bound_unsent;
use crate::runtime::task::TaskGroup;
use crate::service::Transfer;

/// Maximum bytes of a request head, and of the trailers of a chunked body. The read buffer may hold
/// twice as much while a head arrives. nginx accepts 32 KiB.
const MAX_HEAD_LEN: usize = 64 << 10;

/// Maximum size of hyper's read buffer. [`conn_state`](super::conn_state) decides which connections
/// may use all of it, because together they would take most of the server's memory.
const MAX_READ_LEN: usize = 512 << 10;

/// Maximum unsent bytes in the kernel's send buffer: one piece, in addition to the bytes in flight.
/// Without this limit, the buffer of a connection takes up to 4 MiB. With a thousand slow clients
/// the kernel then runs out of socket memory and drops received packets, which are resent only
/// after 200 ms.
const MAX_UNSENT_LEN: u32 = 256 << 10;

/// Maximum number of connections that wait in the kernel to be accepted. It is the default maximum
/// of Linux (`net.core.somaxconn`). With tokio's default of 1024, a burst of 1200 loses connections
/// (`cargo bench --bench overload`).
const BACKLOG: u32 = 4096;

/// Time limit for the first request head of a connection, as for a TLS handshake. It is short,
/// because a client connects only when it has a request to send.
const FIRST_HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a failed accept. The cause is mostly "too many open files", and without a pause the
/// loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The parts of a server that do not depend on a connection.
#[derive(Clone, Debug)]
pub struct Site {
    /// The routes.
    pub router: Router,
    /// A prefix of the paths of requests, such as `/cas`. A proxy may remove it or pass it on.
    /// Empty if there is none.
    pub prefix: Arc<str>,
    /// Certificate and key; `None` for plain HTTP.
    pub tls: Option<Tls>,
}

/// Limits of connections.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// Maximum number of connections. For a further one, the connection that has been idle for
    /// longest is closed.
    pub max_count: usize,
    /// Proxies that stand for many clients, so that they have no limit per address.
    pub trusted_proxies: Arc<[IpNet]>,
    /// Time limit for the next request head, from the end of the previous request. The first head
    /// has ten seconds at most.
    pub idle: Duration,
    /// Minimum pace of a response.
    pub send_pace: Pace,
    /// Maximum time for requests in flight after a stop signal.
    pub drain: Duration,
}

/// Listens at an address, with a backlog for thousands of simultaneous connections.
///
/// # Errors
///
/// The address is in use, or this process is not permitted to use it.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Without this option, `bind` fails while connections of a previous process are still open.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The HTTP/1.1 settings of every connection. `idle` limits the time for a request head.
pub(super) fn configured(idle: Duration) -> http1::Builder {
    let mut http = http1::Builder::new();
    // A client may shut down its sending half, and still wait for the response.
    http.half_close(true).timer(TokioTimer::new()).header_read_timeout(idle);
    http.max_header_size(MAX_HEAD_LEN).max_buf_size(MAX_READ_LEN);
    http
}

/// Serves until `stop` is ready. Then accepts no more connections, waits for requests in flight up
/// to [`ConnectionLimits::drain`], and cuts off the rest.
pub async fn serve(
    listener: TcpListener,
    site: Site,
    metrics: Arc<Metrics>,
    limits: ConnectionLimits,
    stop: impl Future<Output = ()> + Send,
) {
    let http = Arc::new(configured(limits.idle));
    let (tasks, graceful) = (TaskGroup::new(), GracefulShutdown::new());
    let limiter = ConnectionLimiter::new(limits.max_count, Arc::clone(&limits.trusted_proxies));
    let first_head = limits.idle.min(FIRST_HEAD_TIMEOUT);
    // `stopping` ends handshakes and idle connections, `cutting_off` ends all connections.
    let (stopping, cutting_off) = (CancellationToken::new(), CancellationToken::new());
    let mut stop = pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        let prepared = accepted.and_then(|(stream, peer)| Ok((prepare(stream)?, PeerAddr(peer))));
        let (stream, peer) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(mut permit) = limiter.admit(peer.0.ip()) else {
            metrics.connections_refused.inc();
            tracing::debug!(peer = %peer.0.ip(), "connection refused: limit reached, overall or for this address");
            // A failure is ignored: then the client sees only the end of the connection. A TLS
            // client gets no response, because it could not read a plain one.
            if site.tls.is_none() {
                let _ = stream.try_write(REFUSAL);
            }
            continue;
        };
        let conn = Arc::new(ConnState::default());
        let stream = PacedStream::new(stream, Arc::clone(&conn), limits.send_pace, stopping.clone());
        let (site, http, watcher, metrics) =
            (site.clone(), Arc::clone(&http), graceful.watcher(), Arc::clone(&metrics));
        let (stopping, cutting_off) = (stopping.clone(), cutting_off.clone());
        tasks.spawn(async move {
            if stopping.run_until_cancelled(permit.seat(&conn)).await.is_none() {
                return;
            }
            metrics.connections.inc();
            let connection = async {
                let opened = stopping.run_until_cancelled(tls::open(stream, site.tls.as_ref())).await;
                match opened {
                    Some(Ok(opened)) => serve_requests(&http, opened, (peer, &conn, first_head), site, watcher).await,
                    Some(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                    None => {}
                }
            };
            let until_evicted = async {
                tokio::select! {
                    () = connection => {}
                    () = permit.evicted() => tracing::debug!("closed an idle connection to accept a new one"),
                }
            };
            // A request that is cut off here was not acknowledged. The audit log has a line for it.
            let _ = cutting_off.run_until_cancelled(until_evicted).await;
            metrics.connections.dec();
            if conn.is_cut_off() {
                metrics.slow_readers.inc();
            }
            drop(permit);
        });
    }
    drop(listener);
    // `stopping` must be cancelled first, because the graceful shutdown makes the connections check
    // it.
    stopping.cancel();
    if timeout(limits.drain, async { graceful.shutdown().await }).await.is_err() {
        tracing::warn!("drain_timeout is over; cutting off requests in flight");
        cutting_off.cancel();
    }
    tasks.join().await;
}

/// Serves the requests of one connection until it ends.
async fn serve_requests(
    http: &http1::Builder,
    opened: Opened,
    (peer, conn, first_head): (PeerAddr, &Arc<ConnState>, Duration),
    site: Site,
    watcher: Watcher,
) {
    let unread = Arc::new(AtomicBool::new(false));
    let router = if opened.is_plaintext { error::wrong_scheme() } else { site.router };
    let stream = TokioIo::new(DrainingSocket::new(opened.stream, Arc::clone(&unread)));
    let sender = Arc::clone(conn);
    let service = service_fn(move |request| {
        let mut request = normalise(request, &site.prefix);
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(Arc::clone(&sender));
        let (conn, router, unread) = (Arc::clone(&sender), router.clone(), Arc::clone(&unread));
        async move {
            // If the connection was evicted, this future waits until it is dropped with the
            // connection.
            let Some(in_flight) = conn.begin() else { return pending().await };
            let response = respond(router, unread, request).await?;
            conn.send(response.extensions().get::<Arc<Transfer>>().cloned());
            Ok::<_, Infallible>(response.map(|body| Responding { body, _in_flight: in_flight }))
        }
    });
    // Completes if no request head has arrived in time.
    let no_head = async {
        sleep(first_head).await;
        if conn.has_begun() {
            pending::<()>().await;
        }
    };
    tokio::select! {
        served = watcher.watch(http.serve_connection(stream, service)) => {
            if let Err(error) = served {
                tracing::debug!(%error, "connection failed");
            }
        }
        () = no_head => tracing::debug!("closed a new connection that sent no request"),
    }
}

/// Sets the options of a new socket.
fn prepare(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    // Without this socket option the server works, but uses more socket memory.
    if let Err(error) = bound_unsent(&stream, MAX_UNSENT_LEN) {
        tracing::debug!(%error, "cannot bound the socket's send buffer");
    }
    Ok(stream)
}

/// Removes the prefix from the path of a request, if a proxy has passed it on. Also reduces several
/// leading slashes to one: some clients append `/v1/…` to an endpoint with a trailing slash, so
/// that they send `//v1/…`.
fn normalise<B>(mut request: Request<B>, prefix: &str) -> Request<B> {
    let given = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    let rest = given.strip_prefix(prefix).filter(|rest| rest.starts_with('/')).unwrap_or(given);
    if rest == given && !rest.starts_with("//") {
        return request;
    }
    let single = format!("/{}", rest.trim_start_matches('/'));
    let mut parts = request.uri().clone().into_parts();
    parts.path_and_query = PathAndQuery::try_from(single).ok();
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    request
}

#[cfg(test)]
mod tests {
    use socket2::SockRef;

    use super::*;

    #[test]
    fn trailing_slash_and_proxy_prefix_change_nothing() {
        let seen = |prefix: &str, target: &str| {
            let request = Request::builder().uri(target).body(()).unwrap();
            normalise(request, prefix).uri().to_string()
        };
        for target in ["/v1/shards?x=//y", "//v1/shards?x=//y", "/cas/v1/shards?x=//y", "/cas//v1/shards?x=//y"] {
            assert_eq!(seen("/cas", target), "/v1/shards?x=//y", "{target}");
        }
        assert_eq!(seen("/cas", "/castle/v1"), "/castle/v1");
        assert_eq!(seen("/cas", "/cas"), "/cas");
        assert_eq!(seen("", "/v1//x"), "/v1//x");
    }

    #[tokio::test]
    async fn kernel_buffers_little_for_a_client_that_reads_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpSocket::new_v4().unwrap();
        // A small receive buffer, so that few bytes are in flight.
        client.set_recv_buffer_size(4 << 10).unwrap();
        let client = client.connect(listener.local_addr().unwrap()).await.unwrap();
        let stream = prepare(listener.accept().await.unwrap().0).unwrap();
        // As large as the kernel would let the send buffer grow.
        SockRef::from(&stream).set_send_buffer_size(4 << 20).unwrap();
        let (bytes, mut taken_len) = (vec![0; 64 << 10], 0);
        stream.writable().await.unwrap();
        while let Ok(len) = stream.try_write(&bytes) {
            taken_len += len;
        }
        assert!((1..=2 * MAX_UNSENT_LEN as usize).contains(&taken_len), "{taken_len}");
        drop(client);
    }
}
