//! Request bodies with a minimum pace: a client that sends too slowly is cut off.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http_body::Body as HttpBody;
use tokio::time::{Instant, Sleep, sleep_until};

use super::conn_state::Receiving;
use super::sending::RequestContext;
use super::{AppState, Pace};
use crate::runtime::metrics::Metrics;
use crate::service::{BodyError, Server, UploadError};

/// A body as a stream of pieces. It ends with [`BodyError::Stalled`] if the client is too slow.
///
/// One wait for the client may last [`Pace::idle`]. All waits together may last `idle`, plus the
/// time in which the bytes so far would arrive at the minimum rate. Only the time in which the
/// server waits for the client counts. So a busy server does not cut off its clients.
pub(super) struct PacedBody {
    body: BodyDataStream,
    pace: Pace,
    metrics: Arc<Metrics>,
    /// Bytes received so far.
    received_len: u64,
    /// Total of the completed waits for the client.
    waited: Duration,
    /// The current wait for the client.
    wait: Option<Wait>,
    /// For an upload, what [`RequestContext::receive`] needs, until the first piece is polled. Only
    /// from then on the upload counts among those under way.
    undecided: Option<(RequestContext, Arc<Server>)>,
    /// For an upload, from its first piece on: how the socket is read.
    gate: Option<Receiving>,
    /// The last piece, near the end of a body with large reads. Holding it makes hyper allocate a
    /// new, smaller buffer, because hyper reuses a buffer only if no piece of it is held.
    held_piece: Option<Bytes>,
}

/// A wait for the client to send.
struct Wait {
    since: Instant,
    /// [`PacedBody::lost`] when this wait began.
    lost: Duration,
    /// Maximum length of this wait.
    patience: Duration,
    /// When the wait is too long. Postponed by the time that received bytes wait for permits.
    deadline: Pin<Box<Sleep>>,
}

impl PacedBody {
    pub(super) fn new(body: Body, state: &AppState) -> Self {
        Self {
            body: body.into_data_stream(),
            pace: state.shared.pace,
            metrics: Arc::clone(&state.shared.metrics),
            received_len: 0,
            waited: Duration::ZERO,
            wait: None,
            undecided: None,
            gate: None,
            held_piece: None,
        }
    }

    /// The body of an upload. It is read with permits if many uploads are under way when its first
    /// piece is polled.
    pub(super) fn of_upload(body: Body, state: &AppState, sender: RequestContext) -> Self {
        Self { undecided: Some((sender, state.server.clone())), ..Self::new(body, state) }
    }

    /// Receives the whole body. Fails if it has more than `max_len` bytes.
    pub(super) async fn collect(mut self, max_len: u64) -> Result<Bytes, UploadError> {
        let mut bytes = BytesMut::new();
        while let Some(piece) = self.next().await {
            let piece = piece?;
            if bytes.len() as u64 + piece.len() as u64 > max_len {
                return Err(UploadError::TooLarge { limit: max_len });
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes.freeze())
    }

    /// How long the client may take until its next piece.
    fn patience(&self) -> Duration {
        let earned = Duration::from_secs(self.received_len / self.pace.min_bytes_per_sec.max(1));
        let left = (self.pace.idle + earned).saturating_sub(self.waited);
        left.min(self.pace.idle)
    }

    /// Total time that received bytes have waited for permits. The client is not to blame for it.
    fn lost(&self) -> Duration {
        self.gate.as_ref().map_or(Duration::ZERO, Receiving::lost)
    }
}

impl Stream for PacedBody {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some((sender, server)) = self.undecided.take() {
            self.gate = Some(sender.receive(&server));
        }
        let left = HttpBody::size_hint(&self.body).exact();
        // Whether these are the last bytes of a body with large reads.
        let is_tapering = self.gate.as_ref().is_some_and(|gate| gate.expect(left));
        if let Poll::Ready(piece) = self.body.poll_next_unpin(context) {
            if let Some(wait) = self.wait.take() {
                let lost = self.lost().saturating_sub(wait.lost);
                self.waited += wait.since.elapsed().saturating_sub(lost);
            }
            return Poll::Ready(piece.map(|piece| {
                let piece = piece.map_err(|error| BodyError::Aborted(error.into_inner()))?;
                self.held_piece = is_tapering.then(|| piece.clone());
                self.received_len += piece.len() as u64;
                self.metrics.received_bytes.inc_by(piece.len() as u64);
                Ok(piece)
            }));
        }
        if self.wait.is_none() {
            let (since, lost, patience) = (Instant::now(), self.lost(), self.patience());
            self.wait = Some(Wait { since, lost, patience, deadline: Box::pin(sleep_until(since + patience)) });
        }
        let lost = self.lost();
        if let Some(wait) = &mut self.wait {
            ready!(wait.deadline.as_mut().poll(context));
            // The timer has fired, but bytes may have waited for permits meanwhile.
            let deadline = wait.since + wait.patience + lost.saturating_sub(wait.lost);
            if deadline > Instant::now() {
                wait.deadline.as_mut().reset(deadline);
                ready!(wait.deadline.as_mut().poll(context));
            }
        }
        Poll::Ready(Some(Err(BodyError::Stalled)))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::http::{Request, Response};
    use futures_util::FutureExt;
    use futures_util::stream::pending;
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::advance;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::http::conn_state::{ConnState, PacedStream};
    use crate::http::server::configured;
    use crate::runtime::fair::{FairGate, Tenant};

    const STALL: Duration = Duration::from_secs(10);

    /// A body whose client sends nothing.
    fn silent(gate: Option<Receiving>) -> PacedBody {
        PacedBody {
            body: Body::from_stream(pending::<Result<Bytes, std::io::Error>>()).into_data_stream(),
            pace: Pace { idle: STALL, min_bytes_per_sec: 1 },
            metrics: Arc::new(Metrics::new()),
            received_len: 0,
            waited: Duration::ZERO,
            wait: None,
            undecided: None,
            gate,
            held_piece: None,
        }
    }

    #[tokio::test]
    async fn waits_of_received_bytes_for_permits_do_not_count() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (conn, gate) = (Arc::new(ConnState::default()), FairGate::unbounded(1));
        let (pace, stopping) = (Pace { idle: STALL, min_bytes_per_sec: 1 }, CancellationToken::new());
        let mut socket = PacedStream::new(listener.accept().await.unwrap().0, Arc::clone(&conn), pace, stopping);
        let mut body = silent(Some(conn.receive(Some(gate.deferred(Tenant::new(1), 1)))));
        let mut blamed = silent(None);
        let other = gate.wait(Tenant::new(2), 1).await;
        client.write_all(b"abc").await.unwrap();
        socket.socket().readable().await.unwrap();
        tokio::time::pause();
        assert!(body.next().now_or_never().is_none() && blamed.next().now_or_never().is_none());
        assert!(socket.read(&mut [0; 4]).now_or_never().is_none());
        advance(STALL * 5).await;
        assert!(body.next().now_or_never().is_none(), "the server let the bytes wait");
        assert!(matches!(blamed.next().await, Some(Err(BodyError::Stalled))));
        drop(other);
        assert_eq!(socket.read(&mut [0; 4]).await.unwrap(), 3);
        // From now on the server waits for the client again.
        let begin = Instant::now();
        assert!(matches!(body.next().await, Some(Err(BodyError::Stalled))));
        assert!((STALL / 2..STALL + STALL / 100).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    }

    /// A socket that records the buffer sizes of reads: that of the last read, and the largest.
    struct Offered(PacedStream<DuplexStream>, Arc<[AtomicUsize; 2]>);

    impl AsyncRead for Offered {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.1[0].store(buf.remaining(), Ordering::Relaxed);
            self.1[1].fetch_max(buf.remaining(), Ordering::Relaxed);
            Pin::new(&mut self.0).poll_read(context, buf)
        }
    }

    impl AsyncWrite for Offered {
        fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(context)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(context)
        }
    }

    /// A connection that waits for its next request must need little memory.
    #[tokio::test]
    async fn connection_shrinks_its_buffer_after_a_large_body() {
        let (socket, mut client) = duplex(1 << 20);
        let (conn, pace) = (Arc::new(ConnState::default()), Pace { idle: STALL, min_bytes_per_sec: 1 });
        let stopping = CancellationToken::new();
        let offered = Arc::<[AtomicUsize; 2]>::default();
        let socket = Offered(PacedStream::new(socket, Arc::clone(&conn), pace, stopping), Arc::clone(&offered));
        let service = service_fn(|request: Request<Incoming>| {
            let mut body = silent(Some(Arc::clone(&conn).receive(None)));
            body.body = Body::new(request.into_body()).into_data_stream();
            async move {
                while body.next().await.transpose().unwrap().is_some() {}
                Ok::<_, Infallible>(Response::new(Body::empty()))
            }
        });
        let asking = async {
            for _ in 0..2 {
                client.write_all(b"POST / HTTP/1.1\r\ncontent-length: 8388608\r\n\r\n").await.unwrap();
                client.write_all(&vec![0; 8 << 20]).await.unwrap();
                let mut response = Vec::new();
                while !response.ends_with(b"\r\n\r\n") {
                    response.push(client.read_u8().await.unwrap());
                }
                assert!(response.starts_with(b"HTTP/1.1 200 OK"));
                let [last, longest] = &*offered;
                assert!(longest.load(Ordering::Relaxed) >= 512 << 10);
                assert!(last.load(Ordering::Relaxed) <= 128 << 10, "{last:?}");
            }
            drop(client);
        };
        let (served, ()) = tokio::join!(configured(STALL).serve_connection(TokioIo::new(socket), service), asking);
        served.unwrap();
    }
}
