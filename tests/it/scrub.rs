//! A bit that flips on the disk: found by the running server, refused to readers, healed by whoever has the bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use zorb::format::compression::Policy;

use crate::backup::{Stored, store, text};
use crate::cli::Directory;
use crate::support::{
    Client, Grant, Metrics, Response, Start, TestServer, Xorb, ask, blob_path, blob_paths, eventually, random_bytes,
    read_file, rng, upload_shard,
};

/// Where a server keeps the bytes of a xorb.
pub fn blob(data_dir: &Path, xorb: &Xorb) -> PathBuf {
    blob_path(data_dir, &xorb.hash())
}

/// Flips one bit of a file where it is.
pub fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).expect("the blob is there");
    bytes[at] ^= 0x10;
    fs::write(path, bytes).expect("the blob can be written");
}

/// A xorb in two serializations of other lengths.
pub fn in_two_forms() -> (Xorb, Xorb) {
    let mut rng = rng();
    let mut chunks: Vec<_> = (0..6).map(|_| random_bytes(&mut rng, 9_000)).collect();
    chunks.extend((0..6).map(|number| format!("{number} the same again ").repeat(800).into_bytes()));
    let (plain, small) = (Xorb::of(Policy::None, &chunks), Xorb::of(Policy::Lz4, &chunks));
    assert!(plain.hash() == small.hash() && plain.bytes.len() != small.bytes.len());
    (plain, small)
}

/// A server that scrubs all the time.
fn scrubbing() -> Start {
    Start::default().with("scrub_interval", "1s").with("scrub_rate", 1 << 30).with("grants", true)
}

async fn damaged_count(client: &Client) -> f64 {
    Metrics::of(client).await.get("zorb_store_damaged_xorbs")
}

/// What a reconstruction says of where to fetch the first part of a file.
pub async fn first_fetch(client: &Client, file: &str) -> (String, String) {
    let plan = client.get(&format!("/v2/reconstructions/{file}")).await.json();
    let fetch = plan["xorbs"].as_object().unwrap().values().next().unwrap()[0].clone();
    let bytes = &fetch["ranges"][0]["bytes"];
    let range = format!("bytes={}-{}", bytes["start"], bytes["end"]);
    (format!("/{}", fetch["url"].as_str().unwrap().splitn(4, '/').nth(3).unwrap()), range)
}

/// Fetches that.
pub async fn fetch(client: &Client, (path, range): &(String, String)) -> Response {
    client.get_with(path, &[("range", range)]).await
}

/// Nobody gets a byte of it, and whoever asks whether to upload it is told to.
async fn check_refused(client: &Client, Stored { file, xorb }: &Stored, url: &(String, String)) {
    for path in [
        format!("/v1/reconstructions/{file}"),
        format!("/v2/reconstructions/{file}"),
        format!("/v1/reconstructions?file_id={file}"),
        xorb.path(),
        xorb.xet_path(),
        format!("{}?format=raw", xorb.path()),
        format!("{}?range=3", xorb.path()),
    ] {
        let problem = client.get(&path).await.problem(500, "xorb_damaged");
        assert_eq!(problem["xorb"], xorb.hash(), "{path}");
    }
    for range in ["bytes=5-9", "bytes=1-2,7-9"] {
        client.get_with(&xorb.path(), &[("range", range)]).await.problem(500, "xorb_damaged");
    }
    fetch(client, url).await.problem(500, "xorb_damaged");
    let shard = upload_shard(xorb, 0, xorb.chunk_count());
    for route in ["/v1/shards", "/v2/shards"] {
        client.post(route, shard.bytes()).await.problem(500, "xorb_damaged");
    }
    assert_eq!(client.head(&xorb.path()).await.status, 404);
    assert_eq!(client.head(&format!("/xorb/default/{}", xorb.hash())).await.status, 404);
    let chunk = format!("/v1/chunks/default/{}", xorb.chunk_hash(0));
    client.get(&chunk).await.problem(404, "not_found");
    assert_eq!(ask(client, &xorb.hash(), &xorb.bytes).await.status, 201);
    // Where its chunks are is still known, and how long the file is.
    assert_eq!(client.get(&format!("{}/chunks", xorb.path())).await.status, 200);
    assert_eq!(client.head(&format!("/v1/files/{file}")).await.status, 200);
}

/// Reads a file over and over; says how often.
pub async fn keep_reading(client: Client, stored: Stored, stop: Arc<AtomicBool>) -> usize {
    let mut count = 0;
    while !stop.load(Ordering::SeqCst) {
        for version in ["v1", "v2"] {
            let contents = read_file(&client, version, &stored.file, None).await.unwrap();
            assert!(contents == stored.xorb.raw, "the other file reads wrong");
            count += 1;
        }
    }
    count
}

/// By the running server.
#[tokio::test(flavor = "multi_thread")]
async fn flipped_bit_is_found_refused_and_healed_by_an_upload() {
    let server = scrubbing().start();
    let (client, (plain, small)) = (server.client(), in_two_forms());
    let stored = store(&client, plain.clone()).await;
    let other = store(&client, Xorb::mixed(&mut rng(), 9)).await;
    let stop = Arc::new(AtomicBool::new(false));
    let reading = tokio::spawn(keep_reading(server.client(), other, Arc::clone(&stop)));
    let url = first_fetch(&client, &stored.file).await;
    assert_eq!(client.get(&format!("/v1/chunks/default/{}", plain.chunk_hash(0))).await.status, 200);
    assert_eq!(client.head(&plain.path()).await.status, 200);

    flip(&blob(server.data_dir(), &plain), plain.bytes.len() / 2);
    eventually("the scrub finds it", async || damaged_count(&client).await == 1.0).await;
    check_refused(&client, &stored, &url).await;
    let log = server.log();
    let errors: Vec<_> = log.lines().filter(|line| line.contains("ERROR")).collect();
    assert!(
        matches!(errors[..], [line] if line.contains(&plain.hash()) && line.contains(&stored.file)),
        "not one line that names the xorb and its file: {errors:?}"
    );

    // The same bytes as before, in a new blob: URLs are made anew.
    let response = client.post(&plain.xet_path(), plain.bytes.clone()).await;
    assert_eq!((response.status, response.json()["was_inserted"].clone()), (200, Value::Bool(true)));
    assert_eq!(damaged_count(&client).await, 0.0);
    fetch(&client, &url).await.problem(403, "forbidden");
    let url = first_fetch(&client, &stored.file).await;
    assert_eq!(fetch(&client, &url).await.status, 206);
    assert_eq!(read_file(&client, "v2", &stored.file, None).await.unwrap(), plain.raw);

    // In another serialization, by grant: what was told of the places of chunks is not true any more.
    let newest =
        |paths: Vec<PathBuf>| paths.into_iter().max_by_key(|path| fs::metadata(path).unwrap().modified().unwrap());
    flip(&newest(blob_paths(server.data_dir(), &plain.hash())).unwrap(), 20);
    eventually("the scrub finds it again", async || damaged_count(&client).await == 1.0).await;
    check_refused(&client, &stored, &url).await;
    let grant = Grant::of(&client, &small).await;
    assert_eq!(grant.send(&client, small.bytes.clone()).await.status, 200);
    client.get(&plain.path()).await.problem(500, "xorb_damaged");
    assert_eq!(grant.commit(&client).await.status, 200);
    fetch(&client, &url).await.problem(403, "forbidden");
    assert_eq!(fetch(&client, &first_fetch(&client, &stored.file).await).await.status, 206);
    for version in ["v1", "v2"] {
        assert_eq!(read_file(&client, version, &stored.file, None).await.unwrap(), plain.raw);
    }
    assert_eq!(client.get(&plain.path()).await.body, small.bytes);
    assert_eq!(client.get(&format!("/v1/chunks/default/{}", plain.chunk_hash(0))).await.status, 200);
    assert_eq!(client.post("/v1/shards", upload_shard(&plain, 0, 12).bytes()).await.json()["result"], 0);
    let metrics = Metrics::of(&client).await;
    assert_eq!((metrics.get("zorb_scrub_damaged_total"), metrics.get("zorb_store_repaired_xorbs_total")), (2.0, 2.0));
    let mut hashes = server.blobs();
    hashes.dedup();
    let paths = hashes.iter().flat_map(|hash| blob_paths(server.data_dir(), hash));
    let on_disk: u64 = paths.map(|path| size(&path)).sum();
    assert_eq!(metrics.get("zorb_store_bytes") + metrics.get("zorb_store_replaced_bytes"), on_disk as f64);

    stop.store(true, Ordering::SeqCst);
    assert!(reading.await.unwrap() > 2, "the other file was hardly read");
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

#[tokio::test]
async fn a_part_of_a_file_that_needs_no_damaged_xorb_is_served() {
    let server = scrubbing().start();
    let (client, mut rng) = (server.client(), rng());
    let (good, bad) = (Xorb::mixed(&mut rng, 4), Xorb::mixed(&mut rng, 4));
    for xorb in [&good, &bad] {
        assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    }
    let shard = crate::support::shard_of(&[(&good, 0, 4), (&bad, 0, 4)]);
    assert_eq!(client.post("/v1/shards", shard.bytes()).await.status, 200);
    fs::remove_file(blob(server.data_dir(), &bad)).expect("the blob is there");
    eventually("the scrub finds it", async || damaged_count(&client).await == 1.0).await;
    let (file, len) = (shard.file_hash(), good.raw.len() as u64);
    let part = read_file(&client, "v2", &file, Some((0, len - 1))).await.unwrap();
    assert_eq!(part, good.raw);
    for (first, last) in [(0, len), (len, len)] {
        let refused = read_file(&client, "v2", &file, Some((first, last))).await.unwrap_err();
        refused.problem(500, "xorb_damaged");
    }
}

/// Also after a restart.
#[tokio::test]
async fn damage_met_by_a_reader_is_checked_and_stays_refused() {
    // Nothing is due for a month.
    let server = TestServer::start();
    let (client, (plain, _)) = (server.client(), in_two_forms());
    let stored = store(&client, plain.clone()).await;
    flip(&blob(server.data_dir(), &plain), 100);
    let raw = format!("{}?format=raw", plain.path());
    assert!(
        Response::try_of(client.request(reqwest::Method::GET, &raw))
            .await
            .map_or(true, |response| response.status == 500)
    );
    eventually("it is checked", async || damaged_count(&client).await == 1.0).await;
    client.get(&format!("/v2/reconstructions/{}", stored.file)).await.problem(500, "xorb_damaged");

    let server = server.restart();
    let client = server.client();
    client.get(&format!("/v2/reconstructions/{}", stored.file)).await.problem(500, "xorb_damaged");
    assert_eq!(damaged_count(&client).await, 1.0);
    // Somebody puts the file back, from wherever: a start looks at what is damaged.
    fs::write(blob(server.data_dir(), &plain), &plain.bytes).expect("the blob can be written");
    let server = server.restart();
    let client = server.client();
    eventually("it is taken back", async || damaged_count(&client).await == 0.0).await;
    assert_eq!(read_file(&client, "v2", &stored.file, None).await.unwrap(), plain.raw);
}

#[tokio::test]
async fn push_heals_missing_data_and_pull_takes_no_wrong_bytes() {
    let (server, directory) = (scrubbing().start(), Directory::new());
    let bytes = random_bytes(&mut rng(), 700_000);
    directory.write("file", &bytes);
    let push = ["push", "--json", "--server", server.url(), "file"];
    let records = directory.zorb(&push).ok().records();
    let file = crate::cli::of_type(&records, "file")[0]["hash"].as_str().unwrap().to_owned();
    let name = &server.blobs()[0];
    flip(&server.blob(name), 300_000);
    let client = server.client();
    eventually("the scrub finds it", async || damaged_count(&client).await == 1.0).await;
    let pull = |to: &str| directory.zorb(&["pull", "--retries", "0", "--server", server.url(), &file, "-o", to]);
    pull("refused").failed(1, &["xorb_damaged"]);
    assert!(!directory.path("refused").exists());
    // From another machine: this one remembers what it has sent.
    let fresh = Directory::new();
    fresh.write("file", &bytes);
    fresh.zorb(&push).ok();
    assert_eq!(damaged_count(&client).await, 0.0);
    pull("healed").ok();
    assert_eq!(directory.read("healed"), bytes);
}

#[tokio::test]
async fn fsck_finds_the_same_without_a_server_and_an_archive_heals_it() {
    let (server, directory) = (TestServer::start(), Directory::new());
    let (client, mut rng) = (server.client(), rng());
    let (hurt, well) = (store(&client, Xorb::mixed(&mut rng, 9)).await, store(&client, Xorb::mixed(&mut rng, 9)).await);
    let data_dir = server.data_dir().to_owned();
    let zorb = |args: &[&str]| directory.zorb(&[args, &["--json", "--data-dir", text(&data_dir)]].concat());
    zorb(&["backup", "b.rca"]).ok();
    // Beside the server there is nothing to put blobs in place with.
    zorb(&["fsck", "--repair", "--from", "b.rca"]).failed(2, &["a server runs"]);
    let keep = server.directory();
    server.terminate();
    assert!(server.wait().success());

    flip(&blob(&data_dir, &hurt.xorb), 50);
    assert_eq!(zorb(&["fsck"]).ok().record()["findings"], 0);
    let found = zorb(&["fsck", "--deep"]).failed(1, &["1 finding left"]).records();
    assert_eq!((&found[0]["kind"], &found[0]["xorb"]), (&"wrong_bytes".into(), &hurt.xorb.hash().into()));
    assert_eq!((&found[0]["files"][0], &found[0]["file_count"]), (&hurt.file.as_str().into(), &1.into()));
    let marked = zorb(&["fsck", "--deep", "--repair"]).failed(1, &[]).records();
    assert_eq!(marked[0]["outcome"], "quarantined");
    // It is known by now, also to one who does not read all.
    assert_eq!(zorb(&["fsck"]).failed(1, &[]).records()[0]["kind"], "wrong_bytes");
    let server = Start::default().data_dir(&data_dir).start();
    let client = server.client();
    client.get(&format!("/v2/reconstructions/{}", hurt.file)).await.problem(500, "xorb_damaged");
    assert_eq!(read_file(&client, "v2", &well.file, None).await.unwrap(), well.xorb.raw);
    server.terminate();
    assert!(server.wait().success());

    let healed = zorb(&["fsck", "--repair", "--from", "b.rca"]).ok().records();
    let (healed, summary) = (&healed[healed.len() - 2], &healed[healed.len() - 1]);
    assert_eq!((&healed["type"], &healed["xorb"]), (&"restored".into(), &hurt.xorb.hash().into()));
    assert_eq!((&summary["restored"], &summary["left"]), (&1.into(), &0.into()));
    assert_eq!(zorb(&["fsck", "--deep"]).ok().record()["findings"], 0);
    let server = Start::default().data_dir(&data_dir).start();
    for stored in [hurt, well] {
        assert_eq!(read_file(&server.client(), "v2", &stored.file, None).await.unwrap(), stored.xorb.raw);
    }
    drop(keep);
}
