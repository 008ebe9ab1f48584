//! Tests of sockets: most over in-memory pipes with a buffer of 100 bytes instead of one in the
//! kernel.

use std::task::{Wake, Waker};

use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::TcpListener;
use tokio::task::yield_now;
use tokio::time::{advance, sleep};

use super::receive_gate::{AMPLE_READ_LEN, READ_LEN, TAPER_LEN};
use super::*;
use crate::runtime::fair::{FairGate, Tenant};

const STALL: Duration = Duration::from_secs(10);

impl Socket for DuplexStream {
    fn poll_write_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_read_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A socket with a buffer of 100 bytes, its state with one request begun, and its other end.
fn pair(min_bytes_per_sec: u64) -> (PacedStream<DuplexStream>, Arc<ConnState>, DuplexStream) {
    let (socket, client) = duplex(100);
    let conn = Arc::new(ConnState::default());
    let pace = Pace { idle: STALL, min_bytes_per_sec };
    conn.begin();
    (PacedStream::new(socket, Arc::clone(&conn), pace, CancellationToken::new()), conn, client)
}

/// Sends `len` bytes to a client that reads `piece` bytes every `pause`. Returns how long that
/// took, the result, and whether the client was cut off.
async fn send(rate: u64, len: usize, piece: usize, pause: Duration) -> (Duration, io::Result<()>, bool) {
    let (mut socket, conn, mut client) = pair(rate);
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
    (took, sent, conn.is_cut_off())
}

#[tokio::test(start_paused = true)]
async fn client_that_reads_nothing_is_cut_off_after_the_idle_time() {
    let (mut socket, conn, _client) = pair(1);
    let begin = Instant::now();
    let error = socket.write_all(&[0; 200]).await.unwrap_err();
    assert_eq!((error.kind(), begin.elapsed()), (io::ErrorKind::TimedOut, STALL));
    assert!(conn.is_cut_off());
}

#[tokio::test(start_paused = true)]
async fn slow_reader_is_cut_off_by_rate_and_a_fast_one_is_not() {
    // At 10 bytes per second, the buffered 100 bytes are worth ten seconds.
    let (took, sent, cut) = send(10, 10_000, 5, Duration::from_secs(1)).await;
    assert!(sent.is_err() && cut);
    assert!((20..60).contains(&took.as_secs()), "{took:?}");
    let (took, sent, cut) = send(10, 10_000, 11, Duration::from_secs(1)).await;
    assert!(sent.is_ok() && !cut);
    assert!(took.as_secs() > 800, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn time_without_data_does_not_count_and_each_response_is_new() {
    let (mut socket, conn, mut client) = pair(100);
    for _ in 0..5 {
        conn.begin();
        advance(STALL * 10).await;
        let (sent, _) = tokio::join!(socket.write_all(&[0; 150]), async {
            sleep(STALL * 9 / 10).await;
            client.read_exact(&mut [0; 150]).await
        });
        sent.unwrap();
    }
    // Bytes that the client has read of earlier responses do not count.
    conn.begin();
    let begin = Instant::now();
    socket.write_all(&[0; 150]).await.unwrap_err();
    assert_eq!(begin.elapsed(), STALL);
}

#[tokio::test(start_paused = true)]
async fn permit_ends_when_its_piece_is_sent_or_the_client_stalls() {
    let (gate, tenant) = (FairGate::unbounded(1), Tenant::new(1));
    let (mut socket, conn, mut client) = pair(1);
    conn.hold(gate.wait(tenant, 1).await, 100);
    socket.write_all(&[0; 100]).await.unwrap();
    assert_eq!(gate.load(), (1, 0), "the buffer has it, but more may follow");
    socket.flush().await.unwrap();
    assert_eq!(gate.load(), (0, 0));
    conn.hold(gate.wait(tenant, 1).await, 100);
    let mut stuck = Box::pin(socket.write_all(&[0; 100]));
    assert!((&mut stuck).now_or_never().is_none());
    assert_eq!(gate.load(), (0, 0), "the client is waited for without a permit");
    drop(stuck);
    client.read_exact(&mut [0; 100]).await.unwrap();
}

/// The wait for a permit is not counted against the client.
#[tokio::test(start_paused = true)]
async fn rest_of_a_piece_waits_for_a_permit_without_blame() {
    let (gate, tenant) = (FairGate::unbounded(1), Tenant::new(1));
    let (mut socket, conn, mut client) = pair(1);
    conn.hold(gate.wait(tenant, 1).await, 100);
    let mut sending = Box::pin(async {
        socket.write_all(&[0; 250]).await?;
        socket.flush().await
    });
    assert!((&mut sending).now_or_never().is_none());
    let other = gate.wait(Tenant::new(2), 1).await;
    client.read_exact(&mut [0; 100]).await.unwrap();
    assert!((&mut sending).now_or_never().is_none());
    assert_eq!(gate.load(), (1, 1), "it waits for a permit");
    // Much longer than a client may pause.
    advance(STALL * 5).await;
    assert!((&mut sending).now_or_never().is_none());
    drop(other);
    assert!((&mut sending).now_or_never().is_none());
    assert_eq!(gate.load(), (1, 0), "it has its permit, and lets ready tasks run first");
    assert!((&mut sending).now_or_never().is_none());
    assert_eq!(gate.load(), (0, 0), "it has written and waits for the client again");
    client.read_exact(&mut [0; 100]).await.unwrap();
    sending.await.unwrap();
    assert_eq!(gate.load(), (0, 0));
    assert!(!conn.is_cut_off());
    client.read_exact(&mut [0; 50]).await.unwrap();
}

#[tokio::test]
async fn no_permit_is_acquired_until_the_client_reads() {
    let gate = FairGate::unbounded(1);
    let (mut socket, conn, mut client) = tcp_pair().await;
    conn.hold(gate.wait(Tenant::new(1), 1).await, 100);
    let bytes = vec![0; 1 << 20];
    while socket.write(&bytes).now_or_never().is_some() {}
    for _ in 0..10 {
        assert!(socket.write(&bytes).now_or_never().is_none());
        assert_eq!(gate.load(), (0, 0));
        yield_now().await;
    }
    let taking = async { while client.read(&mut vec![0; 1 << 20]).await.unwrap() > 0 {} };
    let sending = async {
        socket.write_all(&bytes).await.unwrap();
        assert_eq!(gate.load(), (1, 0), "the rest was sent with a permit");
        drop(socket);
    };
    tokio::join!(taking, sending);
    assert_eq!(gate.load(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn closed_connection_leaves_the_queue_for_a_permit() {
    let (gate, tenant) = (FairGate::unbounded(1), Tenant::new(1));
    let (mut socket, conn, mut client) = pair(1);
    conn.hold(gate.wait(tenant, 1).await, 100);
    assert!(socket.write_all(&[0; 250]).now_or_never().is_none());
    let other = gate.wait(Tenant::new(2), 1).await;
    client.read_exact(&mut [0; 100]).await.unwrap();
    assert!(socket.write_all(&[0; 250]).now_or_never().is_none());
    assert_eq!(gate.load(), (1, 1));
    drop(socket);
    assert_eq!(gate.load(), (1, 0));
    drop(other);
}

/// Whether the task was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A TCP socket, and its other end.
async fn tcp_pair() -> (PacedStream<TcpStream>, Arc<ConnState>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (socket, _) = listener.accept().await.unwrap();
    let (conn, pace) = (Arc::new(ConnState::default()), Pace { idle: STALL, min_bytes_per_sec: 1 });
    (PacedStream::new(socket, Arc::clone(&conn), pace, CancellationToken::new()), conn, client)
}

#[tokio::test]
async fn body_read_takes_a_permit_on_arrival_and_ends_it_each_read() {
    let (gate, tenant) = (FairGate::unbounded(1), Tenant::new(1));
    let (mut socket, conn, mut client) = tcp_pair().await;
    let mut bytes = [0; 4];
    // A new socket counts as readable until a read was tried.
    assert!(socket.read(&mut bytes).now_or_never().is_none());
    let arriving = Arc::clone(&conn).receive(Some(gate.deferred(tenant, 1)));
    for _ in 0..3 {
        assert!(socket.read(&mut bytes).now_or_never().is_none());
        assert_eq!(gate.load(), (0, 0), "nothing has arrived");
        yield_now().await;
    }
    client.write_all(b"abcdefghij").await.unwrap();
    socket.read_exact(&mut bytes).await.unwrap();
    assert_eq!((&bytes, gate.load(), arriving.lost() < STALL), (b"abcd", (0, 0), true));

    let other = gate.wait(Tenant::new(2), 1).await;
    assert!(socket.read(&mut bytes).now_or_never().is_none());
    assert_eq!(gate.load(), (1, 1), "it waits for a permit");
    let before = arriving.lost();
    sleep(Duration::from_millis(2)).await;
    assert!(arriving.lost() >= before + Duration::from_millis(2));
    let reading = async {
        socket.read_exact(&mut bytes).await.unwrap();
        assert_eq!((&bytes, gate.load()), (b"efgh", (0, 0)));
        assert!(arriving.lost() >= before + Duration::from_millis(2), "completed waits are counted");
    };
    tokio::join!(reading, async { drop(other) });

    // Bytes after the body are read without a permit. The task of a read that still waits for one
    // is woken.
    let other = gate.wait(Tenant::new(2), 1).await;
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    assert!(Pin::new(&mut socket).poll_read(&mut context, &mut ReadBuf::new(&mut bytes)).is_pending());
    assert!(!woken.0.load(Ordering::Relaxed));
    drop(arriving);
    assert_eq!((gate.load(), woken.0.load(Ordering::Relaxed)), ((1, 0), true));
    assert_eq!(socket.read(&mut bytes).await.unwrap(), 2);
    drop(other);
}

/// Reads the bytes that have arrived; returns their number.
async fn read_len(socket: &mut PacedStream<DuplexStream>) -> u64 {
    socket.read(&mut vec![0; 1 << 20]).await.unwrap() as u64
}

#[tokio::test]
async fn large_reads_only_for_bodies_read_amply_and_far_from_end() {
    let (gate, tenant) = (FairGate::unbounded(1), Tenant::new(1));
    let (socket, mut client) = duplex(2 << 20);
    let (conn, pace) = (Arc::new(ConnState::default()), Pace { idle: STALL, min_bytes_per_sec: 1 });
    let mut socket = PacedStream::new(socket, Arc::clone(&conn), pace, CancellationToken::new());
    client.write_all(&vec![0; 2 << 20]).await.unwrap();
    assert_eq!(read_len(&mut socket).await, READ_LEN, "a request head");
    let arriving = Arc::clone(&conn).receive(None);
    assert_eq!(read_len(&mut socket).await, READ_LEN, "the length is not known yet");
    for left in [None, Some(TAPER_LEN - 1)] {
        assert!(arriving.expect(left));
        assert_eq!(read_len(&mut socket).await, READ_LEN, "{left:?}");
    }
    assert!(!arriving.expect(Some(TAPER_LEN)));
    assert_eq!(read_len(&mut socket).await, AMPLE_READ_LEN);
    drop(arriving);
    assert_eq!(read_len(&mut socket).await, READ_LEN, "the next head");
    let paced = Arc::clone(&conn).receive(Some(gate.deferred(tenant, 1)));
    assert!(!paced.expect(Some(u64::MAX)));
    assert_eq!(read_len(&mut socket).await, READ_LEN);
}

/// Without a [`PacedStream`], the next piece need not wait.
#[tokio::test]
async fn next_piece_waits_until_a_long_one_is_sent() {
    let (gate, tenant) = (FairGate::unbounded(1), Tenant::new(1));
    let alone = ConnState::default();
    for _ in 0..2 {
        alone.hold(gate.wait(tenant, 1).await, 64 << 10);
        assert!(alone.sent().now_or_never().is_some());
        assert_eq!(gate.load(), (0, 0));
    }

    let (mut socket, conn, mut client) = pair(1);
    assert!(conn.sent().now_or_never().is_some(), "nothing was passed to the connection");
    conn.hold(gate.wait(tenant, 1).await, (64 << 10) - 1);
    assert!(conn.sent().now_or_never().is_some(), "it is sent with the next piece");
    assert_eq!(gate.load(), (0, 0));
    conn.hold(gate.wait(tenant, 1).await, 1);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut waiting = Box::pin(conn.sent());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    socket.write_all(&[0; 100]).await.unwrap();
    assert_eq!((woken.0.load(Ordering::Relaxed), gate.load()), (false, (1, 0)));
    socket.flush().await.unwrap();
    assert_eq!((woken.0.load(Ordering::Relaxed), gate.load()), (true, (0, 0)));
    assert!(waiting.now_or_never().is_some());

    conn.hold(gate.wait(tenant, 1).await, 64 << 10);
    assert!(conn.sent().now_or_never().is_none());
    drop(socket);
    assert!(conn.sent().now_or_never().is_some(), "the connection is closed");
    client.read_exact(&mut [0; 100]).await.unwrap();
}

#[tokio::test]
async fn closed_connection_leaves_the_queue_for_its_body() {
    let gate = FairGate::unbounded(1);
    let (mut socket, conn, mut client) = tcp_pair().await;
    let arriving = conn.receive(Some(gate.deferred(Tenant::new(1), 1)));
    let other = gate.wait(Tenant::new(2), 1).await;
    client.write_all(b"abc").await.unwrap();
    socket.socket().readable().await.unwrap();
    assert!(socket.read(&mut [0; 4]).now_or_never().is_none());
    assert_eq!(gate.load(), (1, 1));
    drop(socket);
    assert_eq!(gate.load(), (1, 0));
    drop((arriving, other));
}

#[tokio::test(start_paused = true)]
async fn idle_connection_reads_nothing_after_shutdown_begins() {
    let (socket, mut client) = duplex(100);
    let (conn, stopping) = (Arc::new(ConnState::default()), CancellationToken::new());
    let pace = Pace { idle: STALL, min_bytes_per_sec: 1 };
    let mut socket = PacedStream::new(socket, Arc::clone(&conn), pace, stopping.clone());
    client.write_all(b"GET / HT").await.unwrap();
    socket.read_exact(&mut [0; 4]).await.unwrap();
    stopping.cancel();
    assert_eq!(socket.read(&mut [0; 4]).await.unwrap(), 0);
    conn.begin();
    assert_eq!(socket.read(&mut [0; 4]).await.unwrap(), 4, "a request that has begun is read");
}
