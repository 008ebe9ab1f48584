//! The loads against a server of a few lines, which can be told to lie.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use crate::account::Account;
use crate::paced::{self, Pace};
use crate::plan::Plan;
use crate::read::{self, Load};
use crate::set::Set;
use crate::target::{Kind, Target};
use crate::{make, upload};

/// One xorb as `load make` writes it.
fn one_xorb() -> (TempDir, Set) {
    let directory = tempfile::tempdir().unwrap();
    make::make(directory.path(), 1, 3).unwrap();
    let set = Set::load(directory.path(), None).unwrap();
    (directory, set)
}

/// Serves these bytes at every path, by Range or whole, and takes whatever is uploaded.
#[expect(clippy::disallowed_methods, reason = "a program of its own has no pools")]
fn serve(bytes: Vec<u8>, stored: &'static str) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = Target::new(Kind::Zorb, &listener.local_addr().unwrap().to_string());
    let bytes = Arc::new(bytes);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let bytes = Arc::clone(&bytes);
            // Clients end connections as they like.
            std::thread::spawn(move || drop(response_all(stream.unwrap(), &bytes, stored)));
        }
    });
    target
}

fn response_all(mut stream: TcpStream, bytes: &[u8], stored: &str) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let (mut range, mut body_len) = (None, 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if let Some(text) = line.strip_prefix("Range: bytes=") {
                let (start, last) = text.trim().split_once('-').unwrap();
                range = Some(Range { start: start.parse().unwrap(), end: last.parse::<usize>().unwrap() + 1 });
            }
            if let Some(text) = line.strip_prefix("Content-Length: ") {
                body_len = text.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        if body_len > 0 {
            std::io::copy(&mut std::io::Read::take(&mut reader, body_len), &mut std::io::sink())?;
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{stored}", stored.len())?;
        } else {
            let body = &bytes[range.unwrap_or(0..bytes.len())];
            write!(stream, "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\n\r\n", body.len())?;
            stream.write_all(body)?;
        }
    }
}

fn once(set: &Set, target: &Target, chunks: Option<usize>, verify: u64) -> anyhow::Result<crate::report::Tally> {
    let load = Load { connections: 3, threads: 2, verify, time: None, stop: None };
    read::run(set, target, &Plan::once(set, chunks), &load)
}

/// Over more connections than threads.
#[test]
fn plan_of_everything_reads_every_byte_once() {
    let (_directory, set) = one_xorb();
    let target = serve(set.xorbs[0].bytes.clone(), "");
    for chunks in [Some(1), Some(16), None] {
        let tally = once(&set, &target, chunks, 1).unwrap();
        assert_eq!((tally.len, tally.errors), (set.xorbs[0].bytes.len() as u64, 0), "{}", tally.first_error);
        let runs = (set.xorbs[0].ends.len() - 1).div_ceil(chunks.unwrap_or(usize::MAX));
        assert_eq!(tally.latencies.count(), runs as u64);
    }
}

#[test]
fn wrong_byte_of_a_xorb_is_one_error_unless_unchecked() {
    let (_directory, set) = one_xorb();
    let mut bytes = set.xorbs[0].bytes.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let target = serve(bytes, "");
    let tally = once(&set, &target, Some(16), 1).unwrap();
    assert_eq!(tally.errors, 1);
    assert!(tally.first_error.contains("wrong"), "{}", tally.first_error);
    // Of one thread, the first response alone is compared; the order is the same each time, and it is another part.
    let load = Load { connections: 3, threads: 1, verify: u64::MAX, time: None, stop: None };
    let tally = read::run(&set, &target, &Plan::once(&set, Some(16)), &load).unwrap();
    assert_eq!(tally.errors, 0, "{}", tally.first_error);
}

#[test]
fn a_load_for_a_time_ends_with_it_and_counts_what_was_cut_short() {
    let (_directory, set) = one_xorb();
    let target = serve(set.xorbs[0].bytes.clone(), "");
    let load = Load { connections: 2, threads: 1, verify: 1, time: Some(Duration::from_secs(2)), stop: None };
    let tally = read::run(&set, &target, &Plan::random(&set, Some(1)), &load).unwrap();
    assert_eq!(tally.errors, 0, "{}", tally.first_error);
    assert!(tally.latencies.count() > 0 && tally.len > 0);
    assert!(tally.time.unwrap() >= Duration::from_secs(2));
}

#[test]
fn a_steady_rate_is_kept_where_the_server_keeps_up() {
    let (_directory, set) = one_xorb();
    let target = serve(set.xorbs[0].bytes.clone(), "");
    let pace = Pace { connections: 2, rate: 100, time: Duration::from_millis(300) };
    let tally = paced::run(&set, &target, &Plan::random(&set, Some(1)), &pace).unwrap();
    assert_eq!((tally.latencies.count(), tally.errors), (30, 0), "{}", tally.first_error);
}

#[test]
fn an_upload_counts_only_where_the_server_did_not_have_it() {
    let (_directory, set) = one_xorb();
    let account = Account::new(None);
    let taken = upload::upload(&set, &serve(Vec::new(), r#"{"was_inserted":true}"#), 2, &account).unwrap();
    assert_eq!((taken.requests, taken.bytes, taken.errors), (1, set.xorbs[0].bytes.len() as u64, 0));
    let known = upload::upload(&set, &serve(Vec::new(), r#"{"was_inserted":false}"#), 1, &account).unwrap();
    assert_eq!((known.requests, known.errors), (0, 1));
    assert!(known.first_error.contains("false"), "{}", known.first_error);
}

#[test]
fn the_same_seed_makes_the_same_xorbs_and_they_are_valid() {
    let (_directory, set) = one_xorb();
    let (_other, again) = one_xorb();
    let xorb = &set.xorbs[0];
    assert_eq!(xorb.bytes, again.xorbs[0].bytes);
    let verified = zorb::format::xorb::verify(&xorb.bytes).unwrap();
    assert_eq!(verified.hash().to_string(), xorb.hash);
    let len = xorb.bytes.len() >> 20;
    assert!((46..56).contains(&len), "{len} MiB");
    let mut schemes: Vec<_> = verified.schemes().to_vec();
    schemes.dedup();
    assert!(schemes.len() >= 12, "every file is packed in its own way");
}
