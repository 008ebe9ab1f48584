//! What uploads cost in memory: it must not depend on how long they are.

use std::io::{Read, Write};
use std::net::TcpStream;

use bytes::Bytes;
use futures_util::stream;
use rand::rngs::StdRng;
use reqwest::{Body, Method};
use tokio::task::JoinSet;
use zorb::format::compression::Policy;
use zorb::format::xorb::verify;
use zorb::format::{ChunkHash, XorbHash, merkle};

use crate::support::{Answer, Client, TestServer, Xorb, official_xorb, random_bytes, rng};

/// Uploads at once.
const UPLOAD_COUNT: usize = 64;

/// What they may take together, beyond what the server takes when it is idle.
const ALLOWED_LEN: u64 = 64 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_concurrent_uploads_of_64_mib_take_less_than_64_mib() {
    let mut rng = rng();
    let server = TestServer::start();
    let client = server.client();
    // Idle means that every part has been used once: the pools, the database, the decoders.
    let small = Xorb::mixed(&mut rng, 50);
    assert_eq!(client.post(&small.path(), small.bytes.clone()).await.status, 201);
    assert_eq!(client.get(&small.path()).await.status, 200);
    let idle = memory(&server, "VmRSS:");

    let (_, bytes) = official_xorb(&mut rng);
    let full = verify(&bytes).expect("the official crate builds valid xorbs");
    let chunks: Vec<(ChunkHash, u64)> =
        full.layout().chunks().zip(full.chunk_hashes()).map(|(chunk, hash)| (*hash, chunk.raw.byte_len())).collect();
    let first_len = usize::try_from(full.layout().chunks().next().unwrap().serialized.end()).unwrap();
    let rest = Bytes::from(bytes).slice(first_len..);

    let mut uploads = JoinSet::new();
    for _ in 0..UPLOAD_COUNT {
        uploads.spawn(upload(client.clone(), variant(&mut rng, &chunks), rest.clone()));
    }
    uploads.join_all().await;
    let peak = memory(&server, "VmHWM:");
    let taken = peak.saturating_sub(idle);
    println!("idle {} KiB, peak {} KiB, {} KiB per upload", idle >> 10, peak >> 10, (taken >> 10) / 64);
    assert!(taken < ALLOWED_LEN, "{} MiB beyond the {} MiB of an idle server", taken >> 20, idle >> 20);
    assert_eq!(server.blobs().len(), UPLOAD_COUNT + 1);
}

#[test]
fn bodies_that_come_in_single_bytes_take_no_more_memory_than_they_are_long() {
    const CONNECTION_COUNT: usize = 16;
    const BYTE_COUNT: usize = 20_000;
    let server = TestServer::start();
    let xorb = Xorb::incompressible(&mut rng(), 128 << 10);
    let head = format!("POST {} HTTP/1.1\r\nHost: zorb\r\nContent-Length: {}\r\n\r\n", xorb.path(), xorb.bytes.len());
    let mut connections: Vec<TcpStream> = (0..CONNECTION_COUNT)
        .map(|_| {
            let mut connection = TcpStream::connect(server.address()).unwrap();
            connection.set_nodelay(true).unwrap();
            connection.write_all(head.as_bytes()).unwrap();
            connection
        })
        .collect();
    let idle = memory(&server, "VmRSS:");
    for byte in &xorb.bytes[..BYTE_COUNT] {
        for connection in &mut connections {
            connection.write_all(std::slice::from_ref(byte)).unwrap();
        }
    }
    // The rest at once: the answer proves that every byte has arrived.
    for connection in &mut connections {
        connection.write_all(&xorb.bytes[BYTE_COUNT..]).unwrap();
        let mut status = [0; 12];
        connection.read_exact(&mut status).unwrap();
        assert!(status.starts_with(b"HTTP/1.1 20"), "{}", String::from_utf8_lossy(&status));
    }
    let taken = memory(&server, "VmHWM:").saturating_sub(idle);
    println!("{} KiB per connection", (taken >> 10) / CONNECTION_COUNT as u64);
    assert!(taken < CONNECTION_COUNT as u64 * (2 << 20), "{} MiB beyond an idle server", taken >> 20);
}

/// Another first chunk makes another xorb: its hash, and the record of that chunk.
fn variant(rng: &mut StdRng, chunks: &[(ChunkHash, u64)]) -> (XorbHash, Bytes) {
    let first = Xorb::of(Policy::None, &[random_bytes(rng, 1000)]);
    let first_hash = first.verified.chunk_hashes()[0];
    let hashes = std::iter::once((&first_hash, 1000)).chain(chunks.iter().skip(1).map(|(hash, len)| (hash, *len)));
    (merkle::xorb_hash(hashes), first.bytes)
}

async fn upload(client: Client, (hash, first): (XorbHash, Bytes), rest: Bytes) {
    let portions: Vec<Bytes> = rest.chunks(1 << 20).map(|portion| rest.slice_ref(portion)).collect();
    let portions = std::iter::once(first).chain(portions).map(Ok::<_, std::io::Error>);
    let body = Body::wrap_stream(stream::iter(portions));
    let answer = Answer::of(client.request(Method::POST, &format!("/xorbs/{hash}")).body(body)).await;
    assert_eq!(answer.status, 201, "{:?}", answer.body);
}

/// A line of the kernel's account of the process, in bytes.
fn memory(server: &TestServer, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("this is Linux");
    let line = status.lines().find_map(|text| text.strip_prefix(line)).expect("the kernel tells");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB") << 10
}
