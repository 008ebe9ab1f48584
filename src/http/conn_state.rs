//! The socket under a connection, and the state that only the socket knows:
//!
//! * *The client reads too slowly.* Only the time that the server waits for the client counts, as
//!   with request bodies: `stall` of grace, plus the time that the received bytes of this response
//!   are worth at the minimum rate. The kernel's send buffer takes its bytes at once in any case.
//! * *Others wait for the budget of its response.* Then the slowest responses are cut at once
//!   ([`Transfer`]).
//! * *A piece was sent.* Its permit ([`Permit`]) is released when the kernel has all of it. While
//!   the kernel takes no more because the client is slow, the permit is returned: permits are for
//!   work of this machine and never wait for a client. The rest of the piece is sent with a new
//!   permit, because a hundred clients that read a little at the same time are as much work as a
//!   hundred requests.
//! * *The socket is readable.* Bodies of uploads are read with permits ([`receive_gate`]), which
//!   are acquired then and not before.
//! * *No request has begun* when the server stops: then the connection is closed, even within a
//!   request head.

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

/// A connection with this many unsent bytes gets no other piece. Less, like the part headers of a
/// response with many ranges, is sent together.
const MAX_AHEAD_LEN: u64 = 64 << 10;

/// What the handlers of a connection and its socket tell each other.
#[derive(Debug, Default)]
pub(super) struct ConnState {
    permit: PiecePermit,
    /// Whether there is a connection.
    is_watched: AtomicBool,
    /// Bytes that the connection was given and that are not out yet, as far as is known.
    unsent_len: AtomicU64,
    /// Who waits until they are.
    sent: AtomicWaker,
    receive_gate: ReceiveGate,
    /// Requests whose head has arrived.
    request_count: AtomicU64,
    activity: Activity,
    /// The progress of the current response, if it holds a budget that others may wait for.
    transfer: Mutex<Option<Arc<Transfer>>>,
    /// Clients that were cut off because they took too little; there is one at most.
    is_cut_off: AtomicBool,
}

impl ConnState {
    /// A request has arrived. `None` where the connection is about to end: nothing may be begun
    /// that its client would not be told of.
    pub(super) fn begin(self: &Arc<Self>) -> Option<InFlight> {
        let in_flight = InFlight::begin(self)?;
        self.request_count.fetch_add(1, Ordering::Relaxed);
        Some(in_flight)
    }

    /// Whether a request has arrived.
    pub(super) fn has_begun(&self) -> bool {
        self.request_count.load(Ordering::Relaxed) > 0
    }

    /// What it is doing, for who needs its place.
    pub(super) const fn activity(&self) -> &Activity {
        &self.activity
    }

    /// A response is being sent, whose progress is recorded here.
    pub(super) fn send(&self, transfer: Option<Arc<Transfer>>) {
        *self.transfer.lock().unwrap_or_else(PoisonError::into_inner) = transfer;
    }

    fn transfer(&self) -> Option<Arc<Transfer>> {
        self.transfer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps the permit of a piece of so many bytes until that is out.
    pub(super) fn hold(&self, permit: Permit, len: usize) {
        if self.is_watched.load(Ordering::Relaxed) {
            self.unsent_len.fetch_add(len as u64, Ordering::Relaxed);
        }
        self.permit.hold(permit);
    }

    /// Everything is out: ends the permit.
    fn release(&self) {
        self.permit.release();
        self.unsent_len.store(0, Ordering::Relaxed);
        self.sent.wake();
        self.activity.flushed();
    }

    /// Waits until the connection may be given something again, unless there is none, and ends the
    /// permit of the piece before.
    pub(super) async fn sent(&self) {
        poll_fn(|context| {
            self.sent.register(context.waker());
            let is_full = self.unsent_len.load(Ordering::Relaxed) >= MAX_AHEAD_LEN;
            if is_full { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        self.permit.release();
    }

    /// Reads what arrives in permits like this one, or, without one, as much at once as the result
    /// is told to, as long as that lives.
    pub(super) fn receive(self: Arc<Self>, permit: Option<Paused>) -> Receiving {
        Receiving::new(self, permit)
    }

    /// Whether the client was cut off because it took too little.
    pub(super) fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::Relaxed)
    }
}

/// What a connection goes over.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// Ready when the kernel may take bytes. After a write that had to wait, not before it has said
    /// so.
    fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// The same for bytes that have arrived, or their end.
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

/// A socket whose reads and writes are paced.
pub(super) struct PacedStream<S> {
    socket: S,
    conn: Arc<ConnState>,
    pace: Pace,
    /// Cancelled when the server is told to stop.
    stopping: CancellationToken,
    /// Of the current response.
    response: Response,
    wait: Option<Wait>,
}

#[derive(Default)]
struct Response {
    number: u64,
    taken_len: u64,
    waited: Duration,
}

/// The client is being waited for.
struct Wait {
    since: Instant,
    /// How much of that the client waited for a permit.
    lost: Duration,
    deadline: Pin<Box<Sleep>>,
    /// Ready when others wait for the budget of its response.
    cut_off: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl Wait {
    /// Ready when it has lasted too long.
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
        conn.is_watched.store(true, Ordering::Relaxed);
        Self { socket, conn, pace, stopping, response: Response::default(), wait: None }
    }

    pub(super) const fn socket(&self) -> &S {
        &self.socket
    }

    /// How much longer the client may take nothing.
    fn patience(&self) -> Duration {
        let earned = Duration::from_secs(self.response.taken_len / self.pace.min_bytes_per_sec.max(1));
        (self.pace.idle + earned).saturating_sub(self.response.waited).min(self.pace.idle)
    }

    /// Gets the permit of a piece again when its client takes something again.
    fn poll_permit(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.wait.is_none() {
            return Poll::Ready(Ok(()));
        }
        // Polled instead of tried: hyper tries several times in a row, and each attempt would take
        // a permit for nothing and return at once.
        if self.conn.permit.is_paused() && self.socket.poll_write_ready(context).is_pending() {
            return self.account(context, Poll::Pending).map_ok(drop);
        }
        let lost = ready!(self.conn.permit.poll_resume(context));
        if let Some(wait) = &mut self.wait {
            wait.lost += lost;
        }
        Poll::Ready(Ok(()))
    }

    /// What has come of a write, or an error when the client has taken nothing, or too little, for
    /// too long.
    fn account(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let number = self.conn.request_count.load(Ordering::Relaxed);
        if number != self.response.number {
            self.response = Response { number, ..Response::default() };
        }
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
            // The end of what the client sends, as far as the server is concerned.
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
        // Called when everything was written.
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
