//! Responses to requests whose body was not read completely.
//!
//! A rejected upload gets its response at once, although its client may still be sending. If the
//! rest of the body is short, the server reads and discards it, and reuses the connection. If the
//! rest is long, the server closes the connection.
//!
//! Closing a socket with unread bytes sends a reset, which can reach the client before the response
//! and destroy it. So the socket drains: it shuts down its sending half first, and then discards
//! received bytes for up to `DRAIN_TIME`.

use std::convert::Infallible;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::{ALLOW, CONNECTION, EXPECT};
use axum::http::{HeaderValue, Method, Request, Response, StatusCode};
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep, timeout};
use tower::ServiceExt;

/// Maximum rest of a body that is read to reuse the connection. Reading more would cost more than a
/// new connection.
const MAX_SHORT_REST: u64 = 64 << 10;

/// Time limit for reading a short rest. A second is enough, because most rests have arrived
/// already.
const SHORT_REST_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a closing connection is drained: the time that clients may need to read the response.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// Length of the buffer for discarded bytes.
const DISCARD_LEN: usize = 8 << 10;

/// Calls the router, and reads a short rest of the request's body. If the body was not read to its
/// end, sets `unread` and tells the client that the connection will be closed.
pub(super) async fn respond(
    router: Router,
    unread: Arc<AtomicBool>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let awaits_continue = request.headers().contains_key(EXPECT);
    let rest = Arc::default();
    let mut is_body_read = true;
    let request = if matches!(*request.method(), Method::GET | Method::HEAD) {
        // The bodies of these requests are ignored. They are read before the handler runs, because
        // a response may hold a permit, and a permit must not wait for a client.
        let (parts, body) = request.into_parts();
        is_body_read = body.is_end_stream() || (!awaits_continue && read_short(body).await);
        Request::from_parts(parts, Body::empty())
    } else {
        request.map(|body| Body::new(BorrowedBody { body: Some(body), rest: Arc::clone(&rest) }))
    };
    let mut response = router.oneshot(request).await?;
    // For its own 405 responses, axum adds `Allow` outside of all layers. This server responds with
    // 404 instead, so the header must go.
    if response.status() == StatusCode::NOT_FOUND {
        response.headers_mut().remove(ALLOW);
    }
    let rest = rest.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(rest) = rest {
        // Reading the body would send "100 Continue" to a client that waits for it, and the client
        // would send its body. And a client that was too slow gets no more time.
        let is_hopeless = awaits_continue || response.status() == StatusCode::REQUEST_TIMEOUT;
        is_body_read = !is_hopeless && read_short(rest).await;
    }
    if !is_body_read {
        unread.store(true, Ordering::Relaxed);
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// Reads and discards a body whose rest is short. Returns whether its end was reached.
async fn read_short(mut body: Incoming) -> bool {
    let mut left = MAX_SHORT_REST;
    let rest = async {
        while body.size_hint().lower() <= left {
            match body.frame().await {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(frame)) => {
                    let len = frame.data_ref().map_or(0, Bytes::len) as u64;
                    let Some(less) = left.checked_sub(len) else { return false };
                    left = less;
                }
            }
        }
        false
    };
    timeout(SHORT_REST_TIMEOUT, rest).await.unwrap_or(false)
}

/// The body of a request, for a handler. If the handler drops it before its end, the body is stored
/// in `rest`, so that the rest can still be read.
struct BorrowedBody {
    /// `None` after its end or an error.
    body: Option<Incoming>,
    rest: Arc<Mutex<Option<Incoming>>>,
}

impl HttpBody for BorrowedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for BorrowedBody {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            *self.rest.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }
}

/// A socket that drains when it is closed, if `unread` is set by then.
pub(super) struct DrainingSocket<S> {
    socket: S,
    unread: Arc<AtomicBool>,
    /// When draining ends. Set when the sending half has been shut down.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> DrainingSocket<S> {
    pub(super) fn new(socket: S, unread: Arc<AtomicBool>) -> Self {
        Self { socket, unread, deadline: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for DrainingSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for DrainingSocket<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { socket, unread, deadline } = &mut *self;
        let deadline = match deadline {
            Some(deadline) => deadline,
            None => {
                ready!(Pin::new(&mut *socket).poll_shutdown(context))?;
                if !unread.load(Ordering::Relaxed) {
                    return Poll::Ready(Ok(()));
                }
                deadline.insert(Box::pin(sleep(DRAIN_TIME)))
            }
        };
        let mut discard = [0; DISCARD_LEN];
        while deadline.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut discard);
            // After an error or the end of the stream, no bytes follow.
            if ready!(Pin::new(&mut *socket).poll_read(context, &mut buffer)).is_err() || buffer.filled().is_empty() {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use axum::extract::Request as AnyRequest;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::Instant;

    use super::*;

    /// Sends this text and nothing after it. Returns how long after that the handler was called,
    /// and the response.
    async fn ask(request: &str) -> (Duration, String) {
        let called = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&called);
        let router = Router::new().fallback(async move |_: AnyRequest| *seen.lock().unwrap() = Some(Instant::now()));
        let (mut client, server) = duplex(64 << 10);
        let unread = Arc::new(AtomicBool::new(false));
        let stream = TokioIo::new(DrainingSocket::new(server, Arc::clone(&unread)));
        let service = service_fn(move |request| respond(router.clone(), Arc::clone(&unread), request));
        let begun = Instant::now();
        client.write_all(request.as_bytes()).await.unwrap();
        let talk = async {
            let mut response = vec![0; 4 << 10];
            let len = client.read(&mut response).await.unwrap();
            drop(client);
            String::from_utf8(response[..len].to_vec()).unwrap().to_lowercase()
        };
        let (_, response) = tokio::join!(http1::Builder::new().serve_connection(stream, service), talk);
        let called = called.lock().unwrap().expect("the handler was called");
        (called - begun, response)
    }

    /// The handler may hold a permit, so it must run only after the wait for the client.
    #[tokio::test(start_paused = true)]
    async fn unsent_get_body_is_awaited_before_its_handler() {
        for method in ["GET", "HEAD"] {
            let (waited, response) =
                ask(&format!("{method} / HTTP/1.1\r\nhost: zorb\r\ncontent-length: 1\r\n\r\n")).await;
            assert!(waited >= SHORT_REST_TIMEOUT, "{method} {waited:?}");
            assert!(response.contains("connection: close"), "{response}");
        }
        // A handler that reads its body must be called before the body arrives.
        let (waited, response) = ask("POST / HTTP/1.1\r\nhost: zorb\r\ncontent-length: 1\r\n\r\n").await;
        assert!(waited < SHORT_REST_TIMEOUT, "{waited:?}");
        assert!(response.contains("connection: close"), "{response}");
    }

    /// A long body is not awaited, and the connection is closed after it.
    #[tokio::test(start_paused = true)]
    async fn get_with_no_or_short_body_keeps_its_connection() {
        let (body, long) = ("x".repeat(1000), MAX_SHORT_REST + 1);
        for (rest, is_kept) in [
            ("\r\n".to_owned(), true),
            (format!("content-length: 1000\r\n\r\n{body}"), true),
            (format!("content-length: {long}\r\n\r\n{body}"), false),
            ("expect: 100-continue\r\ncontent-length: 1\r\n\r\n".to_owned(), false),
        ] {
            let (waited, response) = ask(&format!("GET / HTTP/1.1\r\nhost: zorb\r\n{rest}")).await;
            assert_eq!(
                (waited, response.contains("connection: close")),
                (Duration::ZERO, !is_kept),
                "{rest}: {response}"
            );
            assert!(response.starts_with("http/1.1 200"), "{response}");
        }
    }
}
