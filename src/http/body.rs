//! Request bodies that have to make progress.

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
use crate::service::{BodyError, Cas, UploadError};

/// A body as a stream of pieces that ends in [`BodyError::Stalled`] when the client is too slow.
///
/// Only the time that is spent waiting for the client counts: a server that is busy does not blame
/// the client.
pub(super) struct PacedBody {
    body: BodyDataStream,
    pace: Pace,
    metrics: Arc<Metrics>,
    received_len: u64,
    waited: Duration,
    wait: Option<Wait>,
    /// Who sends it and to whom, until its first piece is asked for: only then it counts among
    /// those that arrive.
    undecided: Option<(RequestContext, Cas)>,
    /// How it is read, from its first piece on, where that was to be decided.
    gate: Option<Receiving>,
    /// The last piece, held while the read buffer should shrink: hyper reuses its buffer only if no
    /// piece of it is held.
    kept: Option<Bytes>,
}

/// The client is being waited for.
struct Wait {
    since: Instant,
    /// What had been lost with waiting for permits before.
    lost: Duration,
    patience: Duration,
    deadline: Pin<Box<Sleep>>,
}

impl PacedBody {
    pub(super) fn new(body: Body, state: &AppState) -> Self {
        Self {
            body: body.into_data_stream(),
            pace: state.pace,
            metrics: Arc::clone(&state.metrics),
            received_len: 0,
            waited: Duration::ZERO,
            wait: None,
            undecided: None,
            gate: None,
            kept: None,
        }
    }

    /// The same, read in permits if many arrive when it begins to, and amply if not.
    pub(super) fn of_upload(body: Body, state: &AppState, sender: RequestContext) -> Self {
        Self { undecided: Some((sender, state.cas.clone())), ..Self::new(body, state) }
    }

    /// All of it, where that is no more than so many bytes.
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

    /// How much longer the client may take until its next piece.
    fn patience(&self) -> Duration {
        let earned = Duration::from_secs(self.received_len / self.pace.min_bytes_per_sec.max(1));
        let left = (self.pace.idle + earned).saturating_sub(self.waited);
        left.min(self.pace.idle)
    }

    /// For how long what has arrived has waited for its permits.
    fn lost(&self) -> Duration {
        self.gate.as_ref().map_or(Duration::ZERO, Receiving::lost)
    }
}

impl Stream for PacedBody {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some((sender, cas)) = self.undecided.take() {
            self.gate = Some(sender.receive(&cas));
        }
        let left = HttpBody::size_hint(&self.body).exact();
        let is_tapering = self.gate.as_ref().is_some_and(|gate| gate.expect(left));
        if let Poll::Ready(piece) = self.body.poll_next_unpin(context) {
            if let Some(wait) = self.wait.take() {
                let lost = self.lost().saturating_sub(wait.lost);
                self.waited += wait.since.elapsed().saturating_sub(lost);
            }
            return Poll::Ready(piece.map(|piece| {
                let piece = piece.map_err(|error| BodyError::Aborted(error.into_inner()))?;
                self.kept = is_tapering.then(|| piece.clone());
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

    /// A body of which nothing has come.
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
            kept: None,
        }
    }

    #[tokio::test]
    async fn a_client_whose_bytes_wait_for_their_turn_is_not_blamed() {
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
        assert!(body.next().now_or_never().is_none(), "it was the server that let it wait");
        assert!(matches!(blamed.next().await, Some(Err(BodyError::Stalled))));
        drop(other);
        assert_eq!(socket.read(&mut [0; 4]).await.unwrap(), 3);
        // From now on it is the client again.
        let begin = Instant::now();
        assert!(matches!(body.next().await, Some(Err(BodyError::Stalled))));
        assert!((STALL / 2..STALL + STALL / 100).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    }

    /// A socket, and how many bytes the last read of it could have taken, and the longest one.
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

    /// It waits for the next request with little memory.
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
