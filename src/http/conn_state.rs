//! The socket of a connection, and the state that the socket shares with the handlers of its
//! requests.
//!
//! A handler sends a long response in *pieces* of about 256 KiB. Each piece needs a [`Permit`] of a
//! fair gate, which limits the work of this machine. A response also holds a part of the memory
//! budget for responses until the client has received it.
//!
//! The socket does this:
//!
//! * It cuts off a client that reads a response too slowly. Only the time in which the server waits
//!   for the client counts, as with request bodies. One wait may last [`Pace::idle`]. All waits of
//!   a response together may last `idle`, plus the time in which the bytes that the client took
//!   would be sent at the minimum rate. Bytes in the kernel's send buffer count as taken.
//! * It cuts off a response at once if other tenants wait for its budget and it is one of the
//!   slowest ([`Transfer`]).
//! * It releases the permit of a piece when the kernel has taken the whole piece. If the kernel
//!   takes no more because the client is slow, it releases the permit at once. A permit is for work
//!   of this machine and must not wait for a client.
//! * It acquires a new permit before it sends the rest of such a piece. A hundred clients that read
//!   a little at the same time cause as much work as a hundred requests.
//! * It reads the bodies of uploads with permits ([`receive_gate`]), which it acquires only when
//!   bytes have arrived.
//! * It closes the connection if the server stops before a request has begun, even within a request
//!   head.

mod activity;
mod piece;
mod receive_gate;

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use self::activity::Activity;
pub(super) use self::activity::{InFlight, Responding};
use self::piece::PiecePermit;
pub(super) use self::piece::yield_to_ready;
use self::receive_gate::ReceiveGate;
pub(super) use self::receive_gate::Receiving;
use super::Pace;
use crate::runtime::fair::{Paused, Permit};
use crate::service::Transfer;

/// A connection with at least this many unsent bytes gets no further piece. Fewer bytes are sent
/// together with the next piece, for example the part headers of a response with many ranges.
const MAX_AHEAD_LEN: u64 = 64 << 10;

/// The state that the handlers of a connection and its socket share.
#[derive(Debug, Default)]
pub(super) struct ConnState {
    /// The permit of the piece that is being sent.
    permit: PiecePermit,
    /// Whether a [`PacedStream`] uses this state. `false` in tests of handlers.
    has_socket: AtomicBool,
    /// Bytes that were passed to the connection since it was last flushed. The kernel may not have
    /// taken them yet.
    unsent_len: AtomicU64,
    /// Wakes the task that waits in [`ConnState::sent()`].
    sent: AtomicWaker,
    receive_gate: ReceiveGate,
    /// Number of requests whose head has arrived.
    request_count: AtomicU64,
    activity: Activity,
    /// The progress of the current response, if it holds a budget for which others may wait.
    transfer: Mutex<Option<Arc<Transfer>>>,
    /// Whether the client was cut off because it read too slowly.
    is_cut_off: AtomicBool,
}

impl ConnState {
    /// Records that the head of a request has arrived. `None` if the connection was evicted: then
    /// the request must not be served, because the client would not get the response.
    pub(super) fn begin(self: &Arc<Self>) -> Option<InFlight> {
        let in_flight = InFlight::begin(self)?;
        self.request_count.fetch_add(1, Ordering::Relaxed);
        Some(in_flight)
    }

    /// Whether a request has arrived.
    pub(super) fn has_begun(&self) -> bool {
        self.request_count.load(Ordering::Relaxed) > 0
    }

    /// The activity of the connection, by which the limiter chooses the connection to evict.
    pub(super) const fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Records that a response is being sent, and where its progress is recorded.
    pub(super) fn send(&self, transfer: Option<Arc<Transfer>>) {
        *self.transfer.lock().unwrap_or_else(PoisonError::into_inner) = transfer;
    }

    fn transfer(&self) -> Option<Arc<Transfer>> {
        self.transfer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Holds the permit of a piece of `len` bytes until the kernel has taken the piece.
    pub(super) fn hold(&self, permit: Permit, len: usize) {
        if self.has_socket.load(Ordering::Relaxed) {
            self.unsent_len.fetch_add(len as u64, Ordering::Relaxed);
        }
        self.permit.hold(permit);
    }

    /// Releases the permit, because the kernel has taken everything or the connection ends.
    fn release(&self) {
        self.permit.release();
        self.unsent_len.store(0, Ordering::Relaxed);
        self.sent.wake();
        self.activity.flushed();
    }

    /// Waits until the connection may get another piece, and releases the permit of the previous
    /// one. Does not wait if no [`PacedStream`] uses this state.
    pub(super) async fn sent(&self) {
        poll_fn(|context| {
            self.sent.register(context.waker());
            let is_full = self.unsent_len.load(Ordering::Relaxed) >= MAX_AHEAD_LEN;
            if is_full { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        self.permit.release();
    }

    /// Sets how the socket is read while the result lives. With a permit, each read acquires it
    /// again. Without one, reads are large and need no permit.
    pub(super) fn receive(self: Arc<Self>, permit: Option<Paused>) -> Receiving {
        Receiving::new(self, permit)
    }

    /// Whether the client was cut off because it read too slowly.
    pub(super) fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::Relaxed)
    }
}

/// The socket of a connection.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// Ready when the kernel may take bytes. To be called after a write that was pending.
    fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Ready when bytes or the end of the stream have arrived.
    fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
}

impl Socket for TcpStream {
    fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_write_ready(self, context)
    }

    fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_read_ready(self, context)
    }
}

/// A socket that cuts off slow readers and reads and writes with permits: see the
/// [module](self).
pub(super) struct PacedStream<S> {
    socket: S,
    conn: Arc<ConnState>,
    pace: Pace,
    /// Cancelled when the server begins to stop.
    stopping: CancellationToken,
    /// The progress of the current response.
    response: Response,
    /// The current wait for the client to read.
    wait: Option<Wait>,
}

/// The progress of a response.
#[derive(Default)]
struct Response {
    /// The number of its request on this connection, from 1.
    number: u64,
    /// Bytes that the kernel has taken.
    taken_len: u64,
    /// Total of the completed waits for the client.
    waited: Duration,
}

/// A wait for the client to read.
struct Wait {
    since: Instant,
    /// The part of this time that was spent waiting for a permit.
    lost: Duration,
    /// When the wait is too long.
    deadline: Pin<Box<Sleep>>,
    /// Completes when the response is cut off, because other tenants wait for its budget.
    cut_off: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl Wait {
    /// Ready when the wait is too long or the response is cut off.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(cut_off) = &mut self.cut_off
            && cut_off.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(());
        }
        self.deadline.as_mut().poll(context)
    }
}

impl<S: Socket> PacedStream<S> {
    pub(super) fn new(socket: S, conn: Arc<ConnState>, pace: Pace, stopping: CancellationToken) -> Self {
        conn.has_socket.store(true, Ordering::Relaxed);
        Self { socket, conn, pace, stopping, response: Response::default(), wait: None }
    }

    pub(super) const fn socket(&self) -> &S {
        &self.socket
    }

    /// How long the next wait for the client may last.
    fn patience(&self) -> Duration {
        let earned = Duration::from_secs(self.response.taken_len / self.pace.min_bytes_per_sec.max(1));
        (self.pace.idle + earned).saturating_sub(self.response.waited).min(self.pace.idle)
    }

    /// Before a write: if the previous write was pending, waits until the client reads again, and
    /// then for the permit of the rest of the piece.
    fn poll_permit(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.wait.is_none() {
            return Poll::Ready(Ok(()));
        }
        // Readiness is polled before the permit is acquired. hyper tries several writes in a row,
        // and each would otherwise acquire a permit only to release it at once.
        if self.conn.permit.is_paused() && self.socket.poll_write_ready(context).is_pending() {
            return self.account(context, Poll::Pending).map_ok(drop);
        }
        let lost = ready!(self.conn.permit.poll_resume(context));
        if let Some(wait) = &mut self.wait {
            wait.lost += lost;
        }
        Poll::Ready(Ok(()))
    }

    /// Records the result of a write, and returns it. Returns an error instead if the client has
    /// read too slowly, or if the response is cut off.
    fn account(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        // If a new request has begun since the last write, its response begins with this write.
        let number = self.conn.request_count.load(Ordering::Relaxed);
        if number != self.response.number {
            self.response = Response { number, ..Response::default() };
        }
        // If the write has ended, the wait for the client has ended, too.
        if let Poll::Ready(written) = written {
            if let Some(wait) = self.wait.take() {
                self.response.waited += wait.since.elapsed().saturating_sub(wait.lost);
            }
            let len = written.as_ref().map_or(0, |len| *len as u64);
            self.response.taken_len += len;
            if let Some(transfer) = self.conn.transfer() {
                transfer.moved(len);
            }
            return Poll::Ready(written);
        }
        // The kernel takes nothing: no permit is held while the client is waited for.
        self.conn.permit.pause();
        if self.wait.is_none() {
            let since = Instant::now();
            let deadline = Box::pin(sleep_until(since + self.patience()));
            let cut_off = self.conn.transfer().map(|transfer| Box::pin(transfer.cut_off()));
            self.wait = Some(Wait { since, lost: Duration::ZERO, deadline, cut_off });
        }
        let is_over = self.wait.as_mut().is_some_and(|wait| wait.poll_end(context).is_ready());
        if !is_over {
            return Poll::Pending;
        }
        self.conn.is_cut_off.store(true, Ordering::Relaxed);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads the response too slowly")))
    }
}

impl<S: Socket> AsyncRead for PacedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.conn.request_count.load(Ordering::Relaxed) == 0 && self.stopping.is_cancelled() {
            // No request has begun, and the server stops. The end of the stream makes hyper close
            // the connection.
            return Poll::Ready(Ok(()));
        }
        ready!(self.conn.receive_gate.poll_begin(&self.socket, context))?;
        let max_len = self.conn.receive_gate.max_len();
        let read = Pin::new(&mut (&mut self.socket).take(max_len)).poll_read(context, buffer);
        self.conn.receive_gate.end();
        read
    }
}

impl<S: Socket> AsyncWrite for PacedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_permit(context))?;
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.account(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_permit(context))?;
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, pieces);
        self.account(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes only after it has written everything, so the kernel has the whole piece.
        self.conn.release();
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.conn.release();
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

impl<S> Drop for PacedStream<S> {
    fn drop(&mut self) {
        self.conn.release();
        self.conn.receive_gate.forget();
    }
}

#[cfg(test)]
mod tests;
