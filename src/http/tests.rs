//! Tests of the routes with a real service behind them, most of them over sockets.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use futures_util::{FutureExt, StreamExt};
use http_body::Body;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::origin::BaseUrl;
use super::render::json;
use super::server::{ConnectionLimits, Site, serve};
use super::tenant::of_address;
use super::{AppState, Auth, Code, KeySource, Keys, Origins, Pace, PublicAddress, Shared, router};
use super::{openapi, routes};
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
use crate::service::{ResponseBudget, Server, Settings};

/// A source whose keys never change.
#[derive(Debug)]
struct FixedKeys;

impl KeySource for FixedKeys {
    fn changed(&self) -> Option<KeyRing> {
        None
    }
}

/// Maximum number of uploads whose bodies are read without permits.
const FIRST_COUNT: i64 = 8;

/// A server without authentication, with one permit for pieces, and blobs in memory.
async fn state(directory: &Path) -> AppState {
    let (metrics, clock) = (Arc::new(Metrics::new()), Arc::new(SystemClock));
    let index = Arc::new(SqliteIndex::open(&directory.join("index.sqlite")).await.unwrap());
    let (blobs, records) = (Arc::new(MemoryBlobStore::new()), Arc::new(MemoryRecordStore::new()));
    let server = Server::new(&Settings {
        layout_cache_len: 1 << 20,
        publish_count: 1,
        upload_count: 32,
        upload_len: 1 << 30,
        read_count: 1,
        ..Settings::over(blobs, records, index, Arc::clone(&clock) as _, Arc::clone(&metrics))
    });
    let shared = Arc::new(Shared {
        metrics,
        pace: Pace { idle: Duration::from_secs(60), min_bytes_per_sec: 1 },
        deadline: Duration::from_secs(60),
        auth: Auth::Off,
        stats_pool: Pool::new(1),
        keys: Keys::new(KeyRing::new([7; 32]), Arc::new(FixedKeys)),
        clock,
        address: PublicAddress { url: None, trusted_proxies: Arc::new([]), is_encrypted: false },
        grants: false,
        hub: true,
        anonymous_read: false,
        creates_private: true,
        cors_origins: Origins::default(),
        audit: None,
    });
    AppState { server, shared }
}

/// The address of a server, and a future that serves there until `stop`.
async fn served(state: AppState, stop: &CancellationToken) -> (SocketAddr, impl Future) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (metrics, pace) = (Arc::clone(&state.shared.metrics), state.shared.pace);
    let site = Site { router: router(state), prefix: "".into(), tls: None };
    let limits = ConnectionLimits {
        max_count: 64,
        trusted_proxies: Arc::new([]),
        idle: pace.idle,
        send_pace: pace,
        drain: Duration::ZERO,
    };
    (address, serve(listener, site, metrics, limits, stop.clone().cancelled_owned()))
}

#[tokio::test]
async fn with_many_uploads_the_next_body_waits_for_a_permit() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(directory.path()).await;
    let (server, metrics) = (state.server.clone(), Arc::clone(&state.shared.metrics));
    let stop = CancellationToken::new();
    let (address, serving) = served(state, &stop).await;

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
        let permit = server.read_permit(Tenant::new(1)).await.unwrap();
        let mut first = Vec::new();
        for _ in 0..FIRST_COUNT {
            first.push(begin().await);
        }
        // Up to `FIRST_COUNT` uploads need no permits.
        first[0].write_all(xorb.bytes()).await.unwrap();
        assert_eq!(status(&mut first[0]).await, "HTTP/1.1 201");
        until(|| metrics.uploads_in_flight.get() == FIRST_COUNT - 1).await;
        first[0] = begin().await;
        let mut next = begin().await;
        assert_eq!(server.reads_waiting(), 0, "nothing has arrived");
        next.write_all(xorb.bytes()).await.unwrap();
        until(|| server.reads_waiting() == 1).await;
        drop(permit);
        assert_eq!(status(&mut next).await, "HTTP/1.1 200");
        assert_eq!(server.reads_waiting(), 0);
        stop.cancel();
    };
    let both = async { tokio::join!(serving, uploading) };
    timeout(Duration::from_secs(60), both).await.expect("the waiting body gets its permit");
}

/// A request is refused if there is no budget for its response.
#[tokio::test]
async fn long_response_holds_its_budget_until_its_last_byte() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(directory.path()).await;
    let short = || json(&state, 1, ResponseBudget::default(), || "a");
    let long = || json(&state, 1, ResponseBudget::default(), || "a".repeat(8 << 20));
    let held = long().await.unwrap();
    assert_eq!(held.headers()[CONTENT_TYPE], "application/json");
    assert_eq!(held.body().size_hint().exact(), Some((8 << 20) + 2));
    let is_full = async || state.server.response_budget(1 << 30).await.is_err();
    assert!(is_full().await);
    let mut pieces = held.into_body().into_data_stream();
    let piece = pieces.next().await.unwrap().unwrap();
    assert!(pieces.next().await.is_none());
    drop(pieces);
    assert!(is_full().await, "a piece of the response is not sent yet");
    drop(piece.slice(7..9));
    drop(piece);
    let others = state.server.response_budget(1 << 30).await.unwrap();
    assert_eq!(long().await.unwrap_err().code(), Code::Overloaded);
    assert_eq!(to_bytes(short().await.unwrap().into_body(), 10).await.unwrap(), "\"a\"");
    drop(others);
    assert!(long().await.is_ok());
}

#[tokio::test]
async fn stalled_client_holds_its_response_budget_until_it_leaves() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(directory.path()).await;
    let (server, stop) = (state.server.clone(), CancellationToken::new());
    let (address, serving) = served(state, &stop).await;
    let asking = async {
        let mut builder = XorbBuilder::new(Policy::None);
        for index in 0..8192_u32 {
            builder.push(&index.to_le_bytes()).unwrap();
        }
        let xorb = builder.finish().unwrap();
        let (hash, len) = (xorb.xorb().hash(), xorb.bytes().len());
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("POST /xorbs/{hash} HTTP/1.1\r\nhost: zorb\r\ncontent-length: {len}\r\n\r\n");
        stream.write_all(&[head.as_bytes(), xorb.bytes()].concat()).await.unwrap();
        assert_eq!(status(&mut stream).await, "HTTP/1.1 201");
        let ask = async || {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(64 << 10).unwrap();
            let mut stream = socket.connect(address).await.unwrap();
            let head = format!("GET /xorbs/{hash}/chunks HTTP/1.1\r\nhost: zorb\r\nconnection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            stream
        };
        // The response is longer than what the kernel buffers for a client that reads nothing.
        let mut one = ask().await;
        assert_eq!(status(&mut one).await, "HTTP/1.1 200");
        let text_len = server.budgeted_len();
        assert!(text_len > 1 << 20, "{text_len}");
        let two = ask().await;
        until(|| server.budgeted_len() == 2 * text_len).await;
        drop(two);
        until(|| server.budgeted_len() == text_len).await;
        let mut rest = Vec::new();
        one.read_to_end(&mut rest).await.unwrap();
        assert!(rest.ends_with(b"}]}"));
        until(|| server.budgeted_len() == 0).await;
        stop.cancel();
    };
    let both = async { tokio::join!(serving, asking) };
    timeout(Duration::from_secs(60), both).await.expect("each budget is released");
}

#[tokio::test]
async fn slow_readers_of_long_responses_are_cut_off_for_others() {
    const COUNT: usize = 50;
    let directory = tempfile::tempdir().unwrap();
    let state = state(directory.path()).await;
    let (server, metrics, stop) = (state.server.clone(), Arc::clone(&state.shared.metrics), CancellationToken::new());
    let (address, serving) = served(state, &stop).await;
    let asking = async {
        let mut builder = XorbBuilder::new(Policy::None);
        for index in 0..8192_u32 {
            builder.push(&index.to_le_bytes()).unwrap();
        }
        let xorb = builder.finish().unwrap();
        let (hash, len) = (xorb.xorb().hash(), xorb.bytes().len());
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("POST /xorbs/{hash} HTTP/1.1\r\nhost: zorb\r\ncontent-length: {len}\r\n\r\n");
        stream.write_all(&[head.as_bytes(), xorb.bytes()].concat()).await.unwrap();
        assert_eq!(status(&mut stream).await, "HTTP/1.1 201");
        let mut slow = Vec::new();
        for _ in 0..COUNT {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(64 << 10).unwrap();
            let mut stream = socket.connect(address).await.unwrap();
            let head = format!("GET /xorbs/{hash}/chunks HTTP/1.1\r\nhost: zorb\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            assert_eq!(status(&mut stream).await, "HTTP/1.1 200");
            slow.push(stream);
        }
        let flood = of_address("127.0.0.1".parse().unwrap());
        let mut budgets = Vec::new();
        while let Ok(budget) = flood.doing(server.response_budget(2 << 20)).await {
            budgets.push(budget);
        }
        assert!(server.budgeted_len() > 100 << 20, "the most that one tenant gets of 128 MiB");
        // Another tenant gets a third of the whole budget, although little of it is free now: slow
        // readers are cut off for it.
        for number in 0..20 {
            loop {
                match Tenant::new(5).doing(server.response_budget(2 << 20)).await {
                    Ok(budget) => break budgets.push(budget),
                    Err(_) => assert!(number > 0, "some of the budget is free at first"),
                }
                sleep(Duration::from_millis(10)).await;
            }
        }
        assert!(server.budgeted_len() <= 128 << 20);
        until(|| metrics.slow_readers.get() > 0).await;
        stop.cancel();
    };
    let both = async { tokio::join!(serving, asking) };
    timeout(Duration::from_secs(50), both).await.expect("earlier than by the time limit of a minute");
}

#[tokio::test]
async fn one_address_gets_a_share_of_routes_without_token() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(directory.path()).await;
    let without_token = routes::routes(&state).into_iter().filter(|route| route.needs.is_none());
    // The URLs of these are signed, and count for the tenant that was given them.
    let signed = ["/v1/data/{xorb}", "/lfs/objects/{digest}"];
    let open: Vec<_> = without_token.flat_map(|route| route.paths).filter(|path| !signed.contains(path)).collect();
    assert!(open.len() >= 4, "{open:?}");
    let (server, stop) = (state.server.clone(), CancellationToken::new());
    let (address, serving) = served(state, &stop).await;
    let asking = async {
        let ask = async |from: &str, path: &str| {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
            let mut stream = socket.connect(address).await.unwrap();
            let method = if path.starts_with("/api/telemetry/") { "HEAD" } else { "GET" };
            stream.write_all(format!("{method} {path} HTTP/1.1\r\nhost: zorb\r\n\r\n").as_bytes()).await.unwrap();
            stream
        };
        let flood = of_address("127.0.0.1".parse().unwrap());
        let mut permits = Vec::new();
        while let Some(permit) = server.open_permit(flood).now_or_never() {
            permits.push(permit.unwrap());
        }
        let mut waiting = Vec::new();
        for path in &open {
            waiting.push(ask("127.0.0.1", path).await);
        }
        for (path, same) in open.iter().zip(&waiting) {
            let expected = if *path == "/v1/token" { "HTTP/1.1 401" } else { "HTTP/1.1 200" };
            assert_eq!(status(&mut ask("127.0.0.2", path).await).await, expected, "{path}");
            assert_eq!(same.try_read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "{path}");
        }
        drop(permits);
        for same in &mut waiting {
            assert_eq!(&status(same).await[..8], "HTTP/1.1");
        }
        stop.cancel();
    };
    let both = async { tokio::join!(serving, asking) };
    timeout(Duration::from_secs(60), both).await.expect("each has its permit");
}

#[tokio::test]
async fn openapi_document_is_made_once() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [one, two] = [state(directories[0].path()).await, state(directories[1].path()).await];
    let handler = openapi::document(routes::routes);
    let text = async |state: AppState, host: &str| {
        let response = handler(State(state), BaseUrl(format!("http://{host}"))).await;
        String::from_utf8(to_bytes(response.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap()
    };
    let first = text(one, "a").await;
    let parsed: serde_json::Value = serde_json::from_str(&first).unwrap();
    assert_eq!(parsed["servers"][0]["url"], "http://a");
    assert!(parsed["paths"]["/healthz"].is_object());
    // The state of a server with more routes. They would be in the document if it were made again.
    let shared = Arc::new(Shared { grants: true, ..Arc::into_inner(two.shared).unwrap() });
    let two = AppState { shared, ..two };
    assert_eq!(text(two, "b").await, first.replace("http://a", "http://b"));
}

/// Polls until a condition holds, because the metrics send no notification.
async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        sleep(Duration::from_millis(1)).await;
    }
}

/// Reads the beginning of a response: its version and its status.
async fn status(stream: &mut TcpStream) -> String {
    let mut begin = [0; 12];
    stream.read_exact(&mut begin).await.unwrap();
    String::from_utf8_lossy(&begin).into_owned()
}
