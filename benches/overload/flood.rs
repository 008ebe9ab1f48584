//! The load: a process with one thread, which runs where nothing else does, until its stdin ends.

use std::cell::Cell;
use std::io::Read;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;

use crate::xorbs::{Variant, Xorbs};

/// Connections that never end their heads, that send their bodies a little at a time, and that take their responses so.
const HALF_HEAD_COUNT: usize = 400;
const SLOW_BODY_COUNT: usize = 200;
const SLOW_READER_COUNT: usize = 400;

/// Clients of the flooding tenant that upload, and that read.
const UPLOADER_COUNT: usize = 100;
const READER_COUNT: usize = 100;

/// Chunks of what they upload: 4 MiB.
const CHUNK_COUNT: usize = 64;

/// Different xorbs, so that the disk does not fill: later ones are verified, but not stored again.
const VARIANT_COUNT: usize = 512;

/// Bytes that the kernel keeps for a reader. By itself it keeps up to 32 MiB for each, since this process is slow to take
/// them: then all sockets of the machine are short of memory, those of the quiet tenant as well. Elsewhere these are the
/// buffers of other machines.
const RECEIVE_LEN: u32 = 512 << 10;

/// Bytes of one system call. The kernel may let nobody else run until one is over, however urgent that is, and to send 4 MiB over
/// loopback takes it milliseconds: the core would be away as if the load had a higher priority than the server.
const CALL_LEN: usize = 64 << 10;

/// Pause of the slow ones.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Default)]
struct Did {
    uploads: Cell<u64>,
    read_len: Cell<u64>,
    refused: Cell<u64>,
    broken: Cell<u64>,
    connected: Cell<usize>,
}

struct Load {
    address: std::net::SocketAddr,
    flood_token: String,
    slow_token: String,
    hash: String,
    xorbs: Xorbs,
    variants: Vec<Variant>,
    next: Cell<usize>,
    did: Did,
}

pub(crate) fn run(args: &[&str]) -> ExitCode {
    let [address, flood_token, slow_token, hash] = args else { panic!("four arguments") };
    let mut rng = StdRng::seed_from_u64(2);
    let xorbs = Xorbs::new(&mut rng, CHUNK_COUNT);
    let load = Rc::new(Load {
        address: address.parse().unwrap(),
        flood_token: (*flood_token).to_owned(),
        slow_token: (*slow_token).to_owned(),
        hash: (*hash).to_owned(),
        variants: (0..VARIANT_COUNT).map(|_| xorbs.variant(&mut rng)).collect(),
        xorbs,
        next: Cell::default(),
        did: Did::default(),
    });
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let local = LocalSet::new();
    let begin = Instant::now();
    for _ in 0..HALF_HEAD_COUNT {
        local.spawn_local(Rc::clone(&load).half_head());
    }
    for _ in 0..SLOW_BODY_COUNT {
        local.spawn_local(Rc::clone(&load).slow_body(rng.next_u64()));
    }
    for _ in 0..SLOW_READER_COUNT {
        local.spawn_local(Rc::clone(&load).slow_reader());
    }
    for _ in 0..UPLOADER_COUNT {
        local.spawn_local(Rc::clone(&load).uploader());
    }
    for _ in 0..READER_COUNT {
        local.spawn_local(Rc::clone(&load).reader());
    }
    let all = HALF_HEAD_COUNT + SLOW_BODY_COUNT + SLOW_READER_COUNT + UPLOADER_COUNT + READER_COUNT;
    let until = Rc::clone(&load);
    local.block_on(&runtime, async move {
        while until.did.connected.get() < all {
            sleep(Duration::from_millis(20)).await;
        }
        println!("flooding");
        let (ended, end) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let _ = std::io::stdin().read(&mut [0]);
            let _ = ended.send(());
        });
        let _ = end.await;
    });
    let (did, seconds) = (&load.did, begin.elapsed().as_secs_f64());
    println!(
        "{all} connections, {:.0} uploads/s of 4 MiB, {:.0} MiB/s read, {} refused, {} broken, in {seconds:.0} s",
        did.uploads.get() as f64 / seconds,
        did.read_len.get() as f64 / seconds / f64::from(1 << 20),
        did.refused.get(),
        did.broken.get(),
    );
    ExitCode::SUCCESS
}

impl Load {
    async fn connect(&self, receive_len: Option<u32>) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        if let Some(len) = receive_len {
            socket.set_recv_buffer_size(len).unwrap();
        }
        let stream = socket.connect(self.address).await.unwrap();
        self.did.connected.set(self.did.connected.get() + 1);
        stream
    }

    /// One byte of a head at a time, for ever.
    async fn half_head(self: Rc<Self>) {
        let mut stream = self.connect(None).await;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: zorb\r\nX: ").await.unwrap();
        while stream.write_all(b"x").await.is_ok() {
            sleep(PAUSE).await;
        }
        // The server has had enough of it. Come again.
        spawn_local(self.half_head());
    }

    async fn slow_body(self: Rc<Self>, number: u64) {
        let mut stream = self.connect(None).await;
        let head = format!(
            "POST /xorbs/{number:064x} HTTP/1.1\r\nHost: zorb\r\nAuthorization: Bearer {}\r\nContent-Length: 60000000\r\n\r\n",
            self.slow_token
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        for piece in self.xorbs.shared.chunks(2048).cycle() {
            if stream.write_all(piece).await.is_err() {
                break;
            }
            sleep(PAUSE).await;
        }
        count(&self.did.broken);
        sleep(PAUSE).await;
        spawn_local(self.slow_body(number));
    }

    async fn slow_reader(self: Rc<Self>) {
        let mut stream = self.connect(Some(8 << 10)).await;
        stream.write_all(self.get(&self.slow_token).as_bytes()).await.unwrap();
        let mut buffer = [0; 8 << 10];
        while stream.read(&mut buffer).await.is_ok_and(|len| len > 0) {
            sleep(PAUSE).await;
        }
        count(&self.did.broken);
        sleep(PAUSE).await;
        spawn_local(self.slow_reader());
    }

    /// Whole xorbs, one after the other, as fast as they come.
    async fn reader(self: Rc<Self>) {
        let (mut buffer, request) = (vec![0; CALL_LEN], self.get(&self.flood_token));
        let mut stream = self.connect(Some(RECEIVE_LEN)).await;
        loop {
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut left = 1023 * (crate::xorbs::CHUNK_LEN + 8);
            while left > 0 {
                match stream.read(&mut buffer).await {
                    Ok(len) if len > 0 => {
                        // The head counts as well; what it makes is not worth a parser.
                        left = left.saturating_sub(len);
                        self.did.read_len.set(self.did.read_len.get() + len as u64);
                    }
                    _ => {
                        count(&self.did.broken);
                        stream = self.connect(Some(RECEIVE_LEN)).await;
                        left = 0;
                    }
                }
            }
        }
    }

    async fn uploader(self: Rc<Self>) {
        let mut stream = self.connect(None).await;
        loop {
            let number = self.next.replace(self.next.get() + 1);
            let Variant { hash, first } = &self.variants[number % VARIANT_COUNT];
            match self.upload(&mut stream, hash, first).await {
                Some(200 | 201) => count(&self.did.uploads),
                status => {
                    count(if status.is_some() { &self.did.refused } else { &self.did.broken });
                    stream = self.connect(None).await;
                    sleep(PAUSE).await;
                }
            }
        }
    }

    async fn upload(&self, stream: &mut TcpStream, hash: &str, first: &[u8]) -> Option<u16> {
        let head = format!(
            "POST /xorbs/{hash} HTTP/1.1\r\nHost: zorb\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n",
            self.flood_token,
            first.len() + self.xorbs.shared.len()
        );
        for part in [head.as_bytes(), first, &self.xorbs.shared].into_iter().flat_map(|part| part.chunks(CALL_LEN)) {
            stream.write_all(part).await.ok()?;
        }
        let mut buffer = [0; 2048];
        let len = stream.read(&mut buffer).await.ok()?;
        std::str::from_utf8(&buffer[..len]).ok()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
    }

    fn get(&self, token: &str) -> String {
        format!("GET /xorbs/{} HTTP/1.1\r\nHost: zorb\r\nAuthorization: Bearer {token}\r\n\r\n", self.hash)
    }
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}
