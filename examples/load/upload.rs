//! Sends each xorb of a set once, a few at once.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::ensure;

use crate::account::Account;
use crate::report::{Report, Tally};
use crate::response::Response;
use crate::set::{Set, Xorb};
use crate::target::Target;

/// Longest response that is taken.
const MAX_RESPONSE_LEN: usize = 64 << 10;

/// What a server says of a xorb that it did not have.
const STORED: &[u8] = br#""was_inserted":true"#;

pub(crate) fn upload(set: &Set, target: &Target, connections: usize, account: &Account) -> anyhow::Result<Report> {
    let next = AtomicUsize::new(0);
    let mut streams = Vec::new();
    for _ in 0..connections {
        streams.push(target.connect()?);
    }
    let begun = account.begin()?;
    let tally = std::thread::scope(|scope| {
        let next = &next;
        let threads: Vec<_> =
            streams.into_iter().map(|stream| scope.spawn(move || send_all(set, target, stream, next))).collect();
        let mut tally = Tally::default();
        for thread in threads {
            tally.merge(thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?);
        }
        anyhow::Ok(tally)
    })?;
    Ok(Report::new(&tally, &begun.end()?))
}

/// Sends what nobody else has begun with, until nothing is left or something fails.
fn send_all(set: &Set, target: &Target, mut stream: TcpStream, next: &AtomicUsize) -> Tally {
    let mut tally = Tally::default();
    while let Some(xorb) = set.xorbs.get(next.fetch_add(1, Ordering::Relaxed)) {
        let begin = Instant::now();
        match send(target, &mut stream, xorb) {
            Ok(()) => {
                tally.latencies.add(begin.elapsed());
                tally.len += xorb.bytes.len() as u64;
            }
            Err(error) => {
                tally.fail(&error);
                break;
            }
        }
    }
    tally
}

fn send(target: &Target, stream: &mut TcpStream, xorb: &Xorb) -> anyhow::Result<()> {
    stream.write_all(target.put(xorb).as_bytes())?;
    stream.write_all(&xorb.bytes)?;
    let (mut response, mut buffer, mut body) = (Response::default(), vec![0; 4096], Vec::new());
    let mut len = None;
    while len.is_none_or(|len| body.len() < len) {
        let count = stream.read(&mut buffer)?;
        ensure!(count > 0, "the server has closed the connection");
        let mut piece = &buffer[..count];
        if len.is_none() {
            len = response.take_head(&mut piece)?;
        }
        body.extend_from_slice(piece);
        ensure!(body.len() <= MAX_RESPONSE_LEN, "a response without an end");
    }
    // Nothing is measured by what is there already.
    ensure!(body.windows(STORED.len()).any(|part| part == STORED), "it says {}", String::from_utf8_lossy(&body));
    Ok(())
}
