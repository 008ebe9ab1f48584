//! The socket under a connection: what a client takes, how fast, and for how long it keeps the server waiting.
//!
//! Three things are known here and nowhere else, because only the socket knows them:
//!
//! * *The client does not take what it asked for.* Only the time that the server waits for it counts, as with bodies of
//!   requests: `stall` of grace, and then as long as the bytes that it has taken of this answer are worth. What the
//!   kernel has room for is taken at once, whoever is at the other end.
//! * *A piece has gone out.* Its turn ([`Turn`]) is over when the kernel has all of it. While the kernel takes no more
//!   because the client is slow it is given back: a turn is for work of this machine, and never waits for a client. What
//!   is left of the piece goes out in a turn again, for a hundred clients that take a little at the same moment are as
//!   much work as a hundred that ask.
//! * *Nothing has been asked yet* when the server stops: then half a head is as good as none, and the connection ends.

mod piece;

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use self::piece::PieceTurn;
use super::Pace;
use crate::runtime::fair::Turn;

/// What the handlers of a connection and its socket tell each other.
#[derive(Debug, Default)]
pub(super) struct Outlet {
    turn: PieceTurn,
    /// Requests whose head has arrived.
    request_count: AtomicU64,
    /// Clients that were cut off because they took too little; there is one at most.
    is_cut_off: AtomicBool,
}

impl Outlet {
    /// A request has arrived.
    pub(super) fn begin(&self) {
        self.request_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Keeps the turn of a piece until that is out.
    pub(super) fn hold(&self, turn: Turn) {
        self.turn.hold(turn);
    }

    /// Ends the turn of the piece before.
    pub(super) fn release(&self) {
        self.turn.release();
    }

    /// Whether the client was cut off because it took too little.
    pub(super) fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::Relaxed)
    }
}

/// A socket with an [`Outlet`].
pub(super) struct Watched<S> {
    socket: S,
    outlet: Arc<Outlet>,
    pace: Pace,
    /// Cancelled when the server is told to stop.
    stopping: CancellationToken,
    /// Of the answer that is being sent.
    answer: Answer,
    wait: Option<Wait>,
}

#[derive(Default)]
struct Answer {
    number: u64,
    taken_len: u64,
    waited: Duration,
}

/// The client is being waited for.
struct Wait {
    since: Instant,
    /// How long of that it was the client who waited, for its turn.
    lost: Duration,
    deadline: Pin<Box<Sleep>>,
}

impl<S> Watched<S> {
    pub(super) fn new(socket: S, outlet: Arc<Outlet>, pace: Pace, stopping: CancellationToken) -> Self {
        Self { socket, outlet, pace, stopping, answer: Answer::default(), wait: None }
    }

    pub(super) const fn socket(&self) -> &S {
        &self.socket
    }

    /// How much longer the client may take nothing.
    fn patience(&self) -> Duration {
        let earned = Duration::from_secs(self.answer.taken_len / self.pace.min_bytes_per_sec.max(1));
        (self.pace.idle + earned).saturating_sub(self.answer.waited).min(self.pace.idle)
    }

    /// Gets the turn of a piece again whose client has taken nothing for a while.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(wait) = &mut self.wait else { return Poll::Ready(()) };
        wait.lost += ready!(self.outlet.turn.poll_resume(context));
        Poll::Ready(())
    }

    /// What has come of a write, or an error when the client has taken nothing, or too little, for too long.
    fn account(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let number = self.outlet.request_count.load(Ordering::Relaxed);
        if number != self.answer.number {
            self.answer = Answer { number, ..Answer::default() };
        }
        if let Poll::Ready(written) = written {
            if let Some(wait) = self.wait.take() {
                self.answer.waited += wait.since.elapsed().saturating_sub(wait.lost);
            }
            self.answer.taken_len += written.as_ref().map_or(0, |len| *len as u64);
            return Poll::Ready(written);
        }
        self.outlet.turn.pause();
        if self.wait.is_none() {
            let since = Instant::now();
            let deadline = Box::pin(sleep_until(since + self.patience()));
            self.wait = Some(Wait { since, lost: Duration::ZERO, deadline });
        }
        let is_over = self.wait.as_mut().is_some_and(|wait| wait.deadline.as_mut().poll(context).is_ready());
        if !is_over {
            return Poll::Pending;
        }
        self.outlet.is_cut_off.store(true, Ordering::Relaxed);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes too little of its answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.outlet.request_count.load(Ordering::Relaxed) == 0 && self.stopping.is_cancelled() {
            // The end of what the client sends, as far as the server is concerned.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_turn(context));
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.account(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_turn(context));
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, pieces);
        self.account(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Called when everything was written.
        self.outlet.release();
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outlet.release();
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

impl<S> Drop for Watched<S> {
    fn drop(&mut self) {
        self.outlet.release();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::{advance, sleep};

    use super::*;
    use crate::runtime::fair::{FairGate, Tenant};

    const STALL: Duration = Duration::from_secs(10);

    /// A socket of which the kernel buffers 100 bytes, and its other end.
    fn pair(min_bytes_per_sec: u64) -> (Watched<DuplexStream>, Arc<Outlet>, DuplexStream) {
        let (socket, client) = duplex(100);
        let outlet = Arc::new(Outlet::default());
        let pace = Pace { idle: STALL, min_bytes_per_sec };
        outlet.begin();
        (Watched::new(socket, Arc::clone(&outlet), pace, CancellationToken::new()), outlet, client)
    }

    /// Sends so many bytes to a client that takes `piece` bytes every `pause`; returns how long that took, and how it
    /// ended.
    async fn send(rate: u64, len: usize, piece: usize, pause: Duration) -> (Duration, io::Result<()>, bool) {
        let (mut socket, outlet, mut client) = pair(rate);
        let begin = Instant::now();
        let sending = async {
            let sent = socket.write_all(&vec![0; len]).await;
            drop(socket);
            (begin.elapsed(), sent)
        };
        let taking = async {
            let mut bytes = vec![0; piece];
            loop {
                sleep(pause).await;
                if client.read(&mut bytes).await.unwrap() == 0 {
                    return;
                }
            }
        };
        let ((took, sent), ()) = tokio::join!(sending, taking);
        (took, sent, outlet.is_cut_off())
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_cut_off_after_the_grace() {
        let (mut socket, outlet, _client) = pair(1);
        let begin = Instant::now();
        let error = socket.write_all(&[0; 200]).await.unwrap_err();
        assert_eq!((error.kind(), begin.elapsed()), (io::ErrorKind::TimedOut, STALL));
        assert!(outlet.is_cut_off());
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_a_little_again_and_again_is_cut_off_by_the_rate_and_who_takes_enough_is_not() {
        // 10 bytes per second; 100 are buffered, which is worth ten seconds.
        let (took, sent, cut) = send(10, 10_000, 5, Duration::from_secs(1)).await;
        assert!(sent.is_err() && cut);
        assert!((20..60).contains(&took.as_secs()), "{took:?}");
        let (took, sent, cut) = send(10, 10_000, 11, Duration::from_secs(1)).await;
        assert!(sent.is_ok() && !cut);
        assert!(took.as_secs() > 800, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_in_which_the_server_has_nothing_to_send_does_not_count_and_every_answer_begins_anew() {
        let (mut socket, outlet, mut client) = pair(100);
        for _ in 0..5 {
            outlet.begin();
            advance(STALL * 10).await;
            let (sent, _) = tokio::join!(socket.write_all(&[0; 150]), async {
                sleep(STALL * 9 / 10).await;
                client.read_exact(&mut [0; 150]).await
            });
            sent.unwrap();
        }
        // What was taken of the answers before is worth nothing now.
        outlet.begin();
        let begin = Instant::now();
        socket.write_all(&[0; 150]).await.unwrap_err();
        assert_eq!(begin.elapsed(), STALL);
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_ends_when_its_piece_is_out_or_the_client_takes_no_more() {
        let (gate, tenant) = (FairGate::patient(1), Tenant::new(1));
        let (mut socket, outlet, mut client) = pair(1);
        outlet.hold(gate.wait(tenant, 1).await);
        socket.write_all(&[0; 100]).await.unwrap();
        assert_eq!(gate.load(), (1, 0), "it fits, and may be only the beginning");
        socket.flush().await.unwrap();
        assert_eq!(gate.load(), (0, 0));
        outlet.hold(gate.wait(tenant, 1).await);
        let mut stuck = Box::pin(socket.write_all(&[0; 100]));
        assert!((&mut stuck).now_or_never().is_none());
        assert_eq!(gate.load(), (0, 0), "the client is waited for without a turn");
        drop(stuck);
        client.read_exact(&mut [0; 100]).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_of_a_piece_goes_out_in_a_turn_again_and_waiting_for_it_is_not_the_clients_fault() {
        let (gate, tenant) = (FairGate::patient(1), Tenant::new(1));
        let (mut socket, outlet, mut client) = pair(1);
        outlet.hold(gate.wait(tenant, 1).await);
        let mut sending = Box::pin(async {
            socket.write_all(&[0; 250]).await?;
            socket.flush().await
        });
        assert!((&mut sending).now_or_never().is_none());
        let other = gate.wait(Tenant::new(2), 1).await;
        client.read_exact(&mut [0; 100]).await.unwrap();
        assert!((&mut sending).now_or_never().is_none());
        assert_eq!(gate.load(), (1, 1), "it is in line");
        // Much longer than anybody may take.
        advance(STALL * 5).await;
        assert!((&mut sending).now_or_never().is_none());
        drop(other);
        assert!((&mut sending).now_or_never().is_none());
        assert_eq!(gate.load(), (1, 0), "it has its turn, and lets everybody go before it who is ready");
        assert!((&mut sending).now_or_never().is_none());
        assert_eq!(gate.load(), (0, 0), "it has written and waits for the client again");
        client.read_exact(&mut [0; 100]).await.unwrap();
        sending.await.unwrap();
        assert_eq!(gate.load(), (0, 0));
        assert!(!outlet.is_cut_off());
        client.read_exact(&mut [0; 50]).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_ends_while_it_is_in_line_for_its_turn_leaves_the_line() {
        let (gate, tenant) = (FairGate::patient(1), Tenant::new(1));
        let (mut socket, outlet, mut client) = pair(1);
        outlet.hold(gate.wait(tenant, 1).await);
        assert!(socket.write_all(&[0; 250]).now_or_never().is_none());
        let other = gate.wait(Tenant::new(2), 1).await;
        client.read_exact(&mut [0; 100]).await.unwrap();
        assert!(socket.write_all(&[0; 250]).now_or_never().is_none());
        assert_eq!(gate.load(), (1, 1));
        drop(socket);
        assert_eq!(gate.load(), (1, 0));
        drop(other);
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_end_a_connection_on_which_nothing_was_asked_reads_nothing_more() {
        let (socket, mut client) = duplex(100);
        let (outlet, stopping) = (Arc::new(Outlet::default()), CancellationToken::new());
        let pace = Pace { idle: STALL, min_bytes_per_sec: 1 };
        let mut socket = Watched::new(socket, Arc::clone(&outlet), pace, stopping.clone());
        client.write_all(b"GET / HT").await.unwrap();
        socket.read_exact(&mut [0; 4]).await.unwrap();
        stopping.cancel();
        assert_eq!(socket.read(&mut [0; 4]).await.unwrap(), 0);
        outlet.begin();
        assert_eq!(socket.read(&mut [0; 4]).await.unwrap(), 4, "of what was begun the rest is read");
    }
}
