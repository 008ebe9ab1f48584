//! Too much of everything, one thing at a time: shares, deadlines, slow readers, connections, descriptors, memory.

use std::process::Command;
use std::time::Duration;

use tokio::time::timeout;
use zorb::http::server::listen;
use zorb::runtime::descriptors::raise_limit;

use crate::support::{Metrics, Raw, Start, TestServer, Xorb, eventually, guarded, issue, rng, send};

/// The head of an upload with a token.
async fn begin(server: &TestServer, xorb: &Xorb, len: usize, token: &str) -> Raw {
    let mut connection = Raw::connect(server).await;
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: zorb\r\nauthorization: Bearer {token}\r\ncontent-length: {len}\r\n\r\n",
        xorb.path()
    );
    connection.send(head).await;
    connection
}

/// Waits until so many uploads are under way.
async fn under_way(server: &TestServer, admin: &str, count: f64) {
    let client = server.client().bearing(admin);
    eventually("the uploads are counted", async || Metrics::of(&client).await.get("zorb_uploads_in_flight") == count)
        .await;
}

fn tenants(server: &TestServer) -> [String; 3] {
    [("write", "a/one"), ("write", "b/two"), ("admin", "*")].map(|(scope, repo)| issue(server, scope, repo, &[]))
}

#[tokio::test]
async fn free_slot_goes_to_the_tenant_with_less_the_other_gets_429() {
    let (server, mut rng) = (Start::default().with("auth", "token").with("max_uploads", 4).start(), rng());
    let (xorb, client) = (Xorb::mixed(&mut rng, 3), server.client());
    let [flood, other, admin] = tenants(&server);
    let post = async |token: &str| send(&client, "POST", &xorb.path(), Some(token), xorb.bytes.to_vec()).await;
    let mut uploads = Vec::new();
    for _ in 0..4 {
        uploads.push(begin(&server, &xorb, 1000, &flood).await);
    }
    under_way(&server, &admin, 4.0).await;
    // Alone it has all; who comes is refused without being to blame.
    let problem = post(&other).await.problem(503, "overloaded");
    // The code alone does not say which limit it was.
    let detail = problem["detail"].as_str().expect("a sentence");
    let is_its_line = |line: &str| line.contains("responded") && line.contains(detail);
    assert!(server.log().lines().any(is_its_line), "{}", server.log());
    drop(uploads.pop());
    under_way(&server, &admin, 3.0).await;
    let refused = post(&flood).await;
    refused.problem(429, "too_many_requests");
    assert!(refused.header("retry-after").parse::<u64>().expect("whole seconds") >= 1);
    assert_eq!(post(&other).await.status, 201);
}

#[tokio::test]
async fn upload_budget_counts_declared_lengths() {
    let start = Start::default().with("max_uploads", 4).with("upload_budget", 100 << 20);
    let (server, mut rng) = (start.start(), rng());
    let (xorb, client) = (Xorb::mixed(&mut rng, 3), server.client());
    let large = Raw::begin_upload(&server, &xorb.path(), 64 << 20).await;
    eventually("it is under way", async || Metrics::of(&client).await.get("zorb_uploads_in_flight") == 1.0).await;
    let mut refused = Raw::begin_upload(&server, &xorb.path(), 64 << 20).await;
    refused.response().await.problem(503, "overloaded");
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201, "a small one fits");
    drop(large);
}

#[tokio::test]
async fn request_beyond_its_timeout_ends_with_503_and_closes() {
    let server = Start::default().with("request_timeout", "1s").start();
    let mut connection = Raw::begin_upload(&server, "/v1/reconstructions", 100).await;
    let response = connection.response().await;
    response.problem(503, "deadline");
    assert!(response.header("retry-after").parse::<u64>().expect("whole seconds") >= 1);
    assert_eq!(connection.rest().await, b"", "what comes next could be the body");
    // An upload takes as long as it takes.
    let xorb = Xorb::incompressible(&mut rng(), 64_000);
    let mut upload = Raw::begin_upload(&server, &xorb.path(), xorb.bytes.len()).await;
    for piece in xorb.bytes.chunks(8000) {
        upload.send(piece).await;
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    assert_eq!(upload.response().await.status, 201);
}

/// A server with a xorb of 40 MiB, of which a client takes 4 MiB per second: how much of it comes.
async fn read_slowly(rate: u64) -> (usize, usize, f64) {
    let server = Start::default().with("send_timeout", "3s").with("min_download_rate", rate).start();
    let (client, xorb) = (server.client(), Xorb::incompressible(&mut rng(), 40 << 20));
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let mut connection = Raw::connect(&server).await;
    connection.send(format!("GET {} HTTP/1.1\r\nhost: zorb\r\n\r\n", xorb.path())).await;
    assert_eq!(connection.head().await.status, 200);
    let mut came_len = 0;
    while came_len < xorb.bytes.len() {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let len = connection.read_some(200 << 10).await;
        if len == 0 {
            break;
        }
        came_len += len;
    }
    (came_len, xorb.bytes.len(), Metrics::of(&client).await.get("zorb_http_slow_readers_total"))
}

#[tokio::test]
async fn slow_reader_is_cut_off_and_a_fast_one_gets_everything() {
    let ((cut_len, len, cut), (all_len, _, none)) = tokio::join!(read_slowly(1 << 40), read_slowly(1 << 19));
    assert!(cut_len < len, "{cut_len} of {len}");
    assert_eq!((all_len, cut, none), (len, 1.0, 0.0));
}

#[tokio::test]
async fn stalled_clients_hold_no_permit_so_others_are_served() {
    let (server, mut rng) = (Start::default().with("max_concurrent_reads", 1).start(), rng());
    let (client, xorb) = (server.client(), Xorb::incompressible(&mut rng, 60 << 20));
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let mut stuck = Vec::new();
    for query in ["", "?format=raw", "", "?range=1-"] {
        let mut connection = Raw::connect(&server).await;
        connection.send(format!("GET {}{query} HTTP/1.1\r\nhost: zorb\r\n\r\n", xorb.path())).await;
        assert_eq!(connection.head().await.status, 200);
        stuck.push(connection);
    }
    for query in ["", "?format=raw"] {
        assert_eq!(client.get(&format!("{}{query}", xorb.path())).await.status, 200);
    }
    let parts = client.get_with(&xorb.path(), &[("range", "bytes=0-9,20-29")]).await;
    assert_eq!(parts.status, 206);
    assert_eq!(Metrics::of(&client).await.get("zorb_io_permits_waiting"), 0.0);
}

/// Connects until the server refuses; all of those that it takes response.
async fn open_connections(server: &TestServer, address: &str) -> Vec<Raw> {
    let mut connections = Vec::new();
    while connections.len() < 15 {
        let mut connection = Raw::connect_from(server, address).await;
        // It may have been refused, and closed, already.
        let _ = connection.try_send("GET /healthz HTTP/1.1\r\nhost: zorb\r\n\r\n").await;
        match connection.status().await {
            Some(200) => connections.push(connection),
            refused => {
                assert!(refused.is_none_or(|status| status == 503), "{refused:?}");
                break;
            }
        }
    }
    connections
}

#[tokio::test]
async fn one_address_cannot_take_all_connections_unless_a_proxy() {
    let start = || Start::default().with("max_connections", 16);
    let server = start().start();
    // Opened first: until the server has noticed the closed ones, another connection is refused.
    let client = server.client();
    assert_eq!(client.get("/healthz").await.status, 200);
    let many = open_connections(&server, "127.0.0.1").await;
    assert_eq!(many.len(), 13);
    // One address has an eighth at most of these 16; the next connection of anybody would wait.
    let mut other = Vec::new();
    for _ in 0..2 {
        let mut connection = Raw::connect_from(&server, "127.0.0.2").await;
        connection.send("GET /healthz HTTP/1.1\r\nhost: zorb\r\n\r\n").await;
        assert_eq!(connection.status().await, Some(200));
        other.push(connection);
    }
    drop(many);
    eventually("connections are accepted again", async || open_connections(&server, "127.0.0.1").await.len() > 10)
        .await;
    drop(other);
    eventually("they are counted", async || {
        Metrics::of(&client).await.get("zorb_http_connections_refused_total") >= 1.0
    })
    .await;

    let trusting = start().with("trusted_proxies", "127.0.0.1").start();
    assert_eq!(open_connections(&trusting, "127.0.0.1").await.len(), 15);
}

#[tokio::test]
async fn a_crowd_that_comes_before_anybody_is_let_in_is_not_cut_off() {
    const COUNT: usize = 1200;
    assert!(raise_limit() > 2 * COUNT);
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let clients: Vec<_> = (0..COUNT).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    for _ in &clients {
        timeout(Duration::from_secs(10), listener.accept()).await.expect("each of them is there").unwrap();
    }
}

/// The log says so.
#[tokio::test]
async fn open_file_limit_is_raised_and_settings_lowered_to_fit() {
    let hard = |server: &TestServer| {
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap().to_owned();
        let numbers: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        (numbers[0], numbers[1])
    };
    let server = Start::default().descriptors("-S -n 64").start();
    let (soft, max) = hard(&server);
    assert_eq!(soft, max);
    let metrics = Metrics::of(&server.client()).await;
    assert_eq!(metrics.get("zorb_descriptors_max"), max);
    assert!((10.0..100.0).contains(&metrics.get("zorb_descriptors_open")), "{metrics:?}");

    let small = Start::default().descriptors("-n 300").with("max_uploads", 16).with("disk_workers", 4).start();
    assert_eq!(hard(&small), (300.0, 300.0));
    // 300 less 16 drafts of uploads and of shards each, 4 each for blobs and records, 20 of the index and a reserve of 64; of these 176 an eighth for blobs
    // that are kept open, and two for each.
    assert!(small.log().contains("max_connections=77"), "{}", small.log());
    assert_eq!(small.client().get("/readyz").await.status, 200);

    let directory = tempfile::tempdir().unwrap();
    let refused = Command::new("sh")
        .args(["-c", "ulimit -n 100 && exec \"$0\" serve --listen 127.0.0.1:0 --data-dir \"$1\""])
        .args([env!("CARGO_BIN_EXE_zorb").as_ref(), directory.path()])
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && log.contains("the open file limit is 100") && log.contains("ulimit"), "{log}");
}

#[tokio::test]
async fn downloads_by_url_count_for_whoever_was_given_the_url() {
    let (server, mut rng) = (guarded(), rng());
    let [writer, _, _] = tenants(&server);
    let (xorb, client) = (Xorb::mixed(&mut rng, 5), server.client());
    assert_eq!(send(&client, "POST", &xorb.path(), Some(&writer), xorb.bytes.to_vec()).await.status, 201);
    let shard = crate::support::upload_shard(&xorb, 0, 5);
    assert_eq!(send(&client, "POST", "/v1/shards", Some(&writer), shard.bytes()).await.status, 200);
    let plan = async |token: &str| {
        let path = format!("/v2/reconstructions/{}", shard.file_hash());
        let plan = send(&client, "GET", &path, Some(token), Vec::new()).await.json();
        plan["xorbs"][xorb.hash()][0]["url"].as_str().expect("a URL").to_owned()
    };
    let reader = |subject: &str| issue(&server, "read", "a/one", &["--subject", subject]);
    let (alice, bob) = (reader("alice"), reader("bob"));
    // Signed texts are base64 of version, key, end of validity, and then whose it is.
    let tag = |url: &str| url.split_once("?s=").expect("a signature").1[18..28].to_owned();
    assert_eq!(tag(&plan(&alice).await), tag(&plan(&alice).await));
    assert_ne!(tag(&plan(&alice).await), tag(&plan(&bob).await));
}

/// The table of docs/capacity.md, for connections: 0.7 MiB each, whatever they do.
#[tokio::test]
async fn slow_readers_and_senders_stay_within_the_stated_memory() {
    const READER_COUNT: usize = 80;
    const SENDER_COUNT: usize = 40;
    let (server, mut rng) = (TestServer::start(), rng());
    let (client, xorb) = (server.client(), Xorb::incompressible(&mut rng, 60 << 20));
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    assert_eq!(client.get(&xorb.path()).await.status, 200);
    let memory = |line: &str| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
        let line = status.lines().find_map(|text| text.strip_prefix(line)).unwrap().to_owned();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    };
    let idle = memory("VmRSS:");
    let mut slow = Vec::new();
    for _ in 0..READER_COUNT {
        let mut connection = Raw::connect(&server).await;
        connection.send(format!("GET {} HTTP/1.1\r\nhost: zorb\r\n\r\n", xorb.path())).await;
        assert_eq!(connection.head().await.status, 200);
        slow.push(connection);
    }
    for _ in 0..SENDER_COUNT {
        let mut connection = Raw::begin_upload(&server, &xorb.path(), xorb.bytes.len()).await;
        connection.send(&xorb.bytes[..1 << 20]).await;
        slow.push(connection);
    }
    #[expect(clippy::cast_precision_loss, reason = "some")]
    let count = SENDER_COUNT as f64;
    eventually("all are there", async || Metrics::of(&client).await.get("zorb_uploads_in_flight") == count).await;
    let taken = memory("VmHWM:").saturating_sub(idle);
    let allowed = (READER_COUNT + SENDER_COUNT) * (700 << 10) + SENDER_COUNT * (1 << 20);
    println!("{} KiB per connection", (taken >> 10) / slow.len());
    assert!(taken < allowed, "{} MiB of {} MiB", taken >> 20, allowed >> 20);
    assert_eq!(client.get(&format!("{}?range=0", xorb.path())).await.status, 200);
}
