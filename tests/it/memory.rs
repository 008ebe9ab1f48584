//! The memory of uploads must not depend on their length, and shards must take no more than is stated.

use std::io::{Read, Write};
use std::net::TcpStream;

use bytes::Bytes;
use futures_util::stream;
use rand::rngs::StdRng;
use reqwest::{Body, Method};
use tokio::task::JoinSet;
use zorb::format::compression::Policy;
use zorb::format::shard::{Shard, write_upload};
use zorb::format::xorb::verify;
use zorb::format::{ChunkHash, XorbHash, merkle};

use crate::support::{Client, Response, Start, TestServer, Xorb, issue, official_xorb, random_bytes, rng, send};

/// Uploads at once.
const UPLOAD_COUNT: usize = 64;

/// What they may take together, beyond what the server takes when it is idle.
const ALLOWED_LEN: u64 = 64 << 20;

/// A server whose allocator returns freed pages to the system at once. By default jemalloc retains
/// them for ten seconds, up to a third of the peak, and how many depends on the timing. The limits
/// are about what the server holds.
fn server() -> Start {
    Start::default().env("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_uploads_of_64_mib_take_less_than_64_mib() {
    let taken = memory_of_uploads(server().start()).await;
    assert!(taken < ALLOWED_LEN, "{} MiB", taken >> 20);
}

/// docs/capacity.md states 1 MiB per upload and 0.7 MiB per connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_stay_within_the_stated_memory_with_freed_pages() {
    let taken = memory_of_uploads(TestServer::start()).await;
    assert!(taken < UPLOAD_COUNT as u64 * (17 << 20) / 10, "{} MiB", taken >> 20);
}

/// The peak memory of the server while it receives these uploads, beyond what it takes when idle.
async fn memory_of_uploads(server: TestServer) -> u64 {
    let mut rng = rng();
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
    assert_eq!(server.blobs().len(), UPLOAD_COUNT + 1);
    taken
}

#[test]
fn bodies_of_single_bytes_take_no_more_memory_than_length() {
    const CONNECTION_COUNT: usize = 16;
    const BYTE_COUNT: usize = 20_000;
    let server = server().start();
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
    // The rest at once: the response proves that every byte has arrived.
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

/// What docs/capacity.md states for shards that have arrived, all together.
const SHARDS_LEN: u64 = 864 << 20;

/// Bytes of the longest shard that is taken.
const SHARD_LEN: usize = 80 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn costliest_shards_of_three_tenants_take_what_is_stated() {
    for (name, shard) in costliest_shards() {
        assert!(shard.len() <= SHARD_LEN, "{name}: {}", shard.len());
        let server = server().with("auth", "token").start();
        let tokens = ["a/one", "b/two", "c/three"].map(|repo| issue(&server, "write", repo, &[]));
        let small = Xorb::mixed(&mut rng(), 50);
        let sent = send(&server.client(), "POST", &small.path(), Some(&tokens[0]), small.bytes.to_vec()).await;
        assert_eq!(sent.status, 201);
        let idle = memory(&server, "VmRSS:");
        let mut registrations = JoinSet::new();
        for token in tokens {
            registrations.spawn(refused(server.client().bearing(&token), shard.clone()));
        }
        let codes = registrations.join_all().await;
        let taken = memory(&server, "VmHWM:").saturating_sub(idle);
        println!("{name}: {} MiB beyond {} MiB; {codes:?}", taken >> 20, idle >> 20);
        assert!(taken < SHARDS_LEN, "{name}: {} MiB of {} MiB", taken >> 20, SHARDS_LEN >> 20);
    }
}

/// Sends a shard until it is refused for what it says; returns the code.
async fn refused(client: Client, shard: Bytes) -> String {
    loop {
        let response = client.post("/v1/shards", shard.clone()).await;
        match response.status {
            // Others had the memory for too long: stock clients try again, too.
            429 | 503 => {}
            400 => return response.json()["code"].as_str().expect("a code").to_owned(),
            other => panic!("{other}: {:?}", response.body),
        }
    }
}

/// Shards that take the most memory for each of their bytes: of many xorbs that are not stored.
fn costliest_shards() -> [(&'static str, Bytes); 4] {
    let mut rng = rng();
    let mut record = |fields: [u32; 4]| {
        let mut record = random_bytes(&mut rng, 32);
        record.extend(fields.into_iter().flat_map(u32::to_le_bytes));
        record
    };
    // The header, and a bookend for each section.
    let empty = write_upload(&Shard::default()).expect("an empty shard");
    let (header, bookend) = (&empty[..48], &empty[48..96]);
    let count = SHARD_LEN / 48 - 4;
    let term = [0, 1, 0, 1];
    let mut file_of = |term_count: usize| {
        let mut terms = [header, &record([0, u32::try_from(term_count).unwrap(), 0, 0])].concat();
        (0..term_count).for_each(|_| terms.extend(record(term)));
        terms.extend([bookend, bookend].concat());
        terms
    };
    // A hash table of 2^20 places is seven eighths full before it grows.
    let (terms, fewer_terms) = (file_of(count), file_of((7 << 17) + 1000));
    let mut files = header.to_vec();
    (0..count / 2).for_each(|_| files.extend([record([0, 1, 0, 0]), record(term)].concat()));
    files.extend([bookend, bookend].concat());
    let mut xorbs = [header, bookend].concat();
    (0..count / 2).for_each(|_| xorbs.extend([record([0, 1, 1, 0]), record([0, 1, 0, 0])].concat()));
    xorbs.extend(bookend);
    [("terms", terms.into()), ("fewer terms", fewer_terms.into()), ("files", files.into()), ("xorbs", xorbs.into())]
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
    let response = Response::of(client.request(Method::POST, &format!("/xorbs/{hash}")).body(body)).await;
    assert_eq!(response.status, 201, "{:?}", response.body);
}

/// A line of the kernel's account of the process, in bytes.
fn memory(server: &TestServer, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("this is Linux");
    let line = status.lines().find_map(|text| text.strip_prefix(line)).expect("the kernel tells");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB") << 10
}
