//! The service behind the routes, on a socket of its own.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::server::{ConnectionLimits, Site, serve};
use super::{AppState, Auth, KeySource, Keys, Pace, PublicAddress, Shared, router};
use crate::blob::memory::MemoryBlobStore;
use crate::blob::records::memory::MemoryRecordStore;
use crate::format::compression::Policy;
use crate::format::xorb::XorbBuilder;
use crate::index::sqlite::SqliteIndex;
use crate::runtime::blocking::Pool;
use crate::runtime::clock::SystemClock;
use crate::runtime::fair::Tenant;
use crate::runtime::metrics::Metrics;
use crate::service::access::KeyRing;
use crate::service::{Budget, Cas, Shares};

#[derive(Debug)]
struct NoOthers;

impl KeySource for NoOthers {
    fn changed(&self) -> Option<KeyRing> {
        None
    }
}

/// Uploads that are under way before anybody's body is read in turns.
const FIRST_COUNT: i64 = 8;

#[tokio::test]
async fn with_many_uploads_under_way_what_arrives_of_the_next_one_waits_for_its_turn() {
    let folder = tempfile::tempdir().unwrap();
    let (metrics, clock) = (Arc::new(Metrics::new()), Arc::new(SystemClock));
    let index = Arc::new(SqliteIndex::open(&folder.path().join("index.sqlite")).await.unwrap());
    let budget = Budget { upload_count: 32, verify_worker_count: 1, layout_cache_len: 1 << 20 };
    let (blobs, records) = (Arc::new(MemoryBlobStore::new()), Arc::new(MemoryRecordStore::new()));
    let cas = Cas::new(blobs, records, index, Arc::clone(&clock) as _, Arc::clone(&metrics), budget)
        .sharing(Shares { upload_len: 1 << 30, read_count: 1, publish_count: 1 }, budget);
    let pace = Pace { idle: Duration::from_secs(60), min_bytes_per_sec: 1 };
    let state = AppState::from(Shared {
        cas: cas.clone(),
        metrics: Arc::clone(&metrics),
        pace,
        deadline: Duration::from_secs(60),
        auth: Auth::Off,
        looks: Pool::new(1),
        keys: Keys::new(KeyRing::new([7; 32]), Arc::new(NoOthers)),
        clock,
        address: PublicAddress { url: None, trusted_proxies: Arc::new([]), is_encrypted: false },
        grants: false,
        audit: None,
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let site = Site { router: router(state), prefix: "".into(), tls: None };
    let limits = ConnectionLimits {
        max_count: 64,
        trusted_proxies: Arc::new([]),
        idle: pace.idle,
        send_pace: pace,
        drain: Duration::ZERO,
    };
    let stop = CancellationToken::new();
    let serving = serve(listener, site, Arc::clone(&metrics), limits, stop.clone().cancelled_owned());

    let uploading = async {
        let mut builder = XorbBuilder::new(Policy::None);
        builder.push(&[7; 9000]).unwrap();
        let xorb = builder.finish().unwrap();
        let begin = async || {
            let count = metrics.uploads_in_flight.get() + 1;
            let mut stream = TcpStream::connect(address).await.unwrap();
            let (hash, len) = (xorb.xorb().hash(), xorb.bytes().len());
            let head = format!("POST /xorbs/{hash} HTTP/1.1\r\nhost: zorb\r\ncontent-length: {len}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            until(|| metrics.uploads_in_flight.get() == count).await;
            stream
        };
        let turn = cas.read_turn(Tenant::new(1)).await.unwrap();
        let mut first = Vec::new();
        for _ in 0..FIRST_COUNT {
            first.push(begin().await);
        }
        // They are too few to be in anybody's way.
        first[0].write_all(xorb.bytes()).await.unwrap();
        assert_eq!(status(&mut first[0]).await, "HTTP/1.1 201");
        until(|| metrics.uploads_in_flight.get() == FIRST_COUNT - 1).await;
        first[0] = begin().await;
        let mut next = begin().await;
        assert_eq!(cas.reads_waiting(), 0, "nothing has arrived");
        next.write_all(xorb.bytes()).await.unwrap();
        until(|| cas.reads_waiting() == 1).await;
        drop(turn);
        assert_eq!(status(&mut next).await, "HTTP/1.1 200");
        assert_eq!(cas.reads_waiting(), 0);
        stop.cancel();
    };
    let both = async { tokio::join!(serving, uploading) };
    timeout(Duration::from_secs(60), both).await.expect("what waits is told");
}

/// Waits until something is so that nobody tells.
async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        sleep(Duration::from_millis(1)).await;
    }
}

async fn status(stream: &mut TcpStream) -> String {
    let mut begin = [0; 12];
    stream.read_exact(&mut begin).await.unwrap();
    String::from_utf8_lossy(&begin).into_owned()
}
