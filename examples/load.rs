//! A load of uploads: `load METHOD URL LEN COUNT CONNECTIONS` sends COUNT different xorbs of LEN bytes to URL/<hash>.
//!
//! Prints bytes per second. Plain sockets and blocks of bytes that lie in memory, so that on a small machine the
//! client takes little of what is measured. The same bytes go to whatever takes a POST or a PUT.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use zorb::format::compression::Policy;
use zorb::format::xorb::XorbBuilder;
use zorb::format::{ChunkHash, merkle};

/// Bytes of the chunks that all xorbs share.
const CHUNK_LEN: usize = 64 << 10;

/// Xorbs that differ in their first chunk only, and therefore in their hash.
struct Xorbs {
    shared: Vec<u8>,
    shared_chunks: Vec<(ChunkHash, u64)>,
}

#[expect(clippy::print_stdout, reason = "a small program that prints its result")]
fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [method, url, len, count, connections] = args.as_slice() else {
        bail!("usage: load METHOD URL LEN COUNT CONNECTIONS");
    };
    let (len, count, connections): (usize, usize, usize) = (len.parse()?, count.parse()?, connections.parse()?);
    let address = url.strip_prefix("http://").context("URL is http://ADDR:PORT/PATH")?;
    let (address, path) = address.split_once('/').context("URL is http://ADDR:PORT/PATH")?;

    let mut rng = StdRng::seed_from_u64(1);
    let xorbs = Arc::new(Xorbs::new(&mut rng, len));
    let bodies: Vec<(String, Vec<u8>)> = (0..count).map(|_| xorbs.variant(&mut rng)).collect();
    let (bodies, next) = (Arc::new(bodies), Arc::new(AtomicUsize::new(0)));
    let begin = Instant::now();
    let workers: Vec<_> = (0..connections)
        .map(|_| {
            let (xorbs, bodies, next) = (Arc::clone(&xorbs), Arc::clone(&bodies), Arc::clone(&next));
            let (method, address, path) = (method.clone(), address.to_owned(), path.to_owned());
            spawn(move || {
                let mut connection = BufReader::new(TcpStream::connect(&address)?);
                while let Some((hash, head)) = bodies.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let target = format!("{method} /{path}/{hash}");
                    send(&mut connection, &address, &target, &[head.as_slice(), xorbs.shared.as_slice()])?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for worker in workers {
        worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))??;
    }
    let sent = bodies.iter().map(|(_, head)| head.len() + xorbs.shared.len()).sum::<usize>();
    let seconds = begin.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let (bytes_per_sec, per_sec) = (sent as f64 / seconds, count as f64 / seconds);
    println!("{bytes_per_sec:.0} bytes/s, {per_sec:.1} uploads/s");
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a program of its own has no pools")]
fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> std::thread::JoinHandle<T> {
    std::thread::spawn(work)
}

impl Xorbs {
    fn new(rng: &mut StdRng, len: usize) -> Self {
        let mut builder = XorbBuilder::new(Policy::None);
        let mut shared_chunks = Vec::new();
        let mut chunk = vec![0; CHUNK_LEN];
        // Room for the first chunk, which is another one each time, and for every chunk's header.
        while builder.serialized_len() + 2 * (CHUNK_LEN as u64 + 8) <= len as u64 {
            rng.fill_bytes(&mut chunk);
            builder.push(&chunk).expect("it stays below the limit");
            shared_chunks.push((ChunkHash::of(&chunk), CHUNK_LEN as u64));
        }
        let shared = builder.finish().map(|xorb| xorb.bytes().to_vec()).unwrap_or_default();
        Self { shared, shared_chunks }
    }

    /// The hash of one more xorb, and what comes before the shared chunks in it.
    fn variant(&self, rng: &mut StdRng) -> (String, Vec<u8>) {
        let mut first = vec![0; CHUNK_LEN];
        rng.fill_bytes(&mut first);
        let first_hash = ChunkHash::of(&first);
        let chunks = std::iter::once((&first_hash, CHUNK_LEN as u64));
        let hash = merkle::xorb_hash(chunks.chain(self.shared_chunks.iter().map(|(hash, len)| (hash, *len))));
        let mut builder = XorbBuilder::new(Policy::None);
        builder.push(&first).expect("one chunk fits");
        let head = builder.finish().expect("it has a chunk").bytes().to_vec();
        (hash.to_string(), head)
    }
}

/// One request on a connection that is kept, and its answer read to the end.
fn send(connection: &mut BufReader<TcpStream>, host: &str, target: &str, body: &[&[u8]]) -> anyhow::Result<()> {
    let len: usize = body.iter().map(|part| part.len()).sum();
    write!(connection.get_mut(), "{target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len}\r\n\r\n")?;
    for part in body {
        connection.get_mut().write_all(part)?;
    }
    let mut status = String::new();
    connection.read_line(&mut status)?;
    let mut answer_len = 0;
    loop {
        let mut line = String::new();
        connection.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            answer_len = value.trim().parse()?;
        }
    }
    let mut answer = vec![0; answer_len];
    connection.read_exact(&mut answer)?;
    ensure!(status.starts_with("HTTP/1.1 20"), "{status}{}", String::from_utf8_lossy(&answer));
    Ok(())
}
