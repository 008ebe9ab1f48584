//! The tenant that is measured: one connection, one range after the other, on a blocking socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::server::{Server, Stored};
use crate::xorbs::{CHUNK_LEN, Xorbs};

/// Chunks of a range: 1 MiB, the piece that the server reads at once.
const RANGE_COUNT: u32 = 16;

pub(crate) struct Quiet {
    connection: BufReader<TcpStream>,
    address: String,
    token: String,
    hash: String,
    chunk_count: u32,
    range_count: u32,
    rng: StdRng,
    buffer: Vec<u8>,
}

impl Quiet {
    pub(crate) fn connect(server: &Server, stored: &Stored) -> Self {
        Self {
            connection: open(&server.address),
            address: server.address.clone(),
            token: server.quiet_token.clone(),
            hash: stored.hash.clone(),
            chunk_count: stored.chunk_count,
            range_count: RANGE_COUNT,
            rng: StdRng::seed_from_u64(7),
            buffer: vec![0; 1 << 20],
        }
    }

    /// The same with ranges of so many chunks.
    pub(crate) fn reading(mut self, range_count: u32) -> Self {
        self.range_count = range_count;
        self
    }

    /// Seconds of each of so many reads, or of those for which there was time.
    pub(crate) fn reads(&mut self, count: usize, limit: Duration) -> Vec<f64> {
        let begin = Instant::now();
        let mut times = Vec::with_capacity(count);
        while times.len() < count && begin.elapsed() < limit {
            let start = self.rng.random_range(0..=self.chunk_count - self.range_count);
            let path = format!("/xorbs/{}?range={start}-{}", self.hash, start + self.range_count);
            let request = format!("GET {path} HTTP/1.1\r\nHost: zorb\r\nAuthorization: Bearer {}\r\n\r\n", self.token);
            let asked = Instant::now();
            self.connection.get_mut().write_all(request.as_bytes()).unwrap();
            let (status, len) = head(&mut self.connection);
            let mut left = len;
            while left > 0 {
                let part = left.min(self.buffer.len());
                left -= self.connection.read(&mut self.buffer[..part]).unwrap();
            }
            times.push(asked.elapsed().as_secs_f64());
            assert_eq!(
                (status, len),
                (200, self.range_count as usize * (CHUNK_LEN + 8)),
                "a range of the quiet tenant"
            );
        }
        times
    }

    /// Uploads that succeed, of so many, at the second try at the latest.
    pub(crate) fn upload_some(&mut self, count: usize) -> usize {
        let xorbs = Xorbs::new(&mut self.rng, 2);
        let mut done = 0;
        for _ in 0..count {
            let variant = xorbs.variant(&mut self.rng);
            let body = [&variant.first[..], &xorbs.shared].concat();
            let is_done = (0..2).any(|_| {
                let mut connection = open(&self.address);
                put(&mut connection, &self.token, &variant.hash, &body) / 100 == 2
            });
            done += usize::from(is_done);
        }
        done
    }
}

pub(crate) fn open(address: &str) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    BufReader::with_capacity(64 << 10, stream)
}

/// Sends a xorb; returns the status.
pub(crate) fn put(connection: &mut BufReader<TcpStream>, token: &str, hash: &str, body: &[u8]) -> u16 {
    post(connection, token, &format!("/xorbs/{hash}"), body)
}

/// Sends something; returns the status.
pub(crate) fn post(connection: &mut BufReader<TcpStream>, token: &str, path: &str, body: &[u8]) -> u16 {
    let head_text = format!(
        "POST {path} HTTP/1.1\r\nHost: zorb\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    connection.get_mut().write_all(head_text.as_bytes()).unwrap();
    connection.get_mut().write_all(body).unwrap();
    let (status, len) = head(connection);
    connection.read_exact(&mut vec![0; len]).unwrap();
    status
}

/// Asks for something and reads all of it; returns the status.
pub(crate) fn fetch(connection: &mut BufReader<TcpStream>, token: &str, path: &str) -> u16 {
    let request = format!("GET {path} HTTP/1.1\r\nHost: zorb\r\nAuthorization: Bearer {token}\r\n\r\n");
    connection.get_mut().write_all(request.as_bytes()).unwrap();
    let (status, len) = head(connection);
    assert_eq!(io::copy(&mut connection.take(len as u64), &mut io::sink()).unwrap(), len as u64);
    status
}

/// Status and length of a response.
fn head(connection: &mut BufReader<TcpStream>) -> (u16, usize) {
    let (mut status, mut len) = (0, 0);
    loop {
        let mut line = String::new();
        assert!(connection.read_line(&mut line).unwrap() > 0, "the server hung up");
        if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
            status = rest[..3].parse().unwrap();
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            len = value.trim().parse().unwrap();
        }
        if line == "\r\n" {
            return (status, len);
        }
    }
}

/// The value below which so large a part of them is.
pub(crate) fn percentile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
    let index = ((sorted.len() as f64 * part) as usize).min(sorted.len() - 1);
    sorted[index]
}
